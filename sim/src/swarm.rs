//! Runs seeds on all cores, and shrinks a failing one.

use std::io::{IsTerminal, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::scenario::{feature, Limits};
use crate::world::{Stats, World};

thread_local! {
    /// The seed that this thread runs, for the report of a panic.
    static SEED: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Time limit of a smaller world: one that takes longer hangs, as the larger one did.
const TRY: Duration = Duration::from_secs(60);

/// The seed that this thread runs.
pub fn seed() -> u64 {
    SEED.with(std::cell::Cell::get)
}

/// Runs the world of a seed.
pub fn run(seed: u64, limits: &Limits, verbose: bool) -> Result<Stats, String> {
    SEED.with(|s| s.set(seed));
    let mut world = World::new(seed, limits);
    world.verbose = verbose;
    world.run()
}

/// A range of seeds.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// The first.
    pub from: u64,
    /// The seed behind the last.
    pub to: u64,
    /// No further world is started once so many packets were sent.
    pub packets: u64,
    /// Threads.
    pub threads: usize,
}

/// The result of a swarm.
pub struct Outcome {
    /// Sum over the worlds that passed.
    pub stats: Stats,
    /// Seeds that failed, and the reasons.
    pub failed: Vec<(u64, String)>,
}

/// Runs worlds until the seeds or the packets are used up. Each world is the same as if run alone.
pub fn swarm(seeds: &Seeds, limits: &Limits, verbose: bool) -> Outcome {
    let next = AtomicU64::new(seeds.from);
    let enough = AtomicBool::new(false);
    let out = Mutex::new(Outcome { stats: Stats::default(), failed: Vec::new() });
    let begun = Instant::now();
    let told = AtomicU64::new(0);
    let work = || {
        while !enough.load(Ordering::Relaxed) {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.to {
                break;
            }
            let done = run(seed, limits, verbose);
            let mut out = out.lock().expect("a panic ends the process");
            match done {
                Ok(stats) => out.stats.add(&stats),
                Err(e) => {
                    println!(
                        "seed {seed}: FAILED; repeat it with {}\n  {e}",
                        command(seed, limits)
                    );
                    out.failed.push((seed, e));
                }
            }
            if out.stats.net.packets >= seeds.packets || out.failed.len() >= 4 {
                enough.store(true, Ordering::Relaxed);
            }
            let age = begun.elapsed().as_secs();
            let every = if std::io::stderr().is_terminal() { 1 } else { 60 };
            if age >= told.load(Ordering::Relaxed) + every {
                told.store(age, Ordering::Relaxed);
                progress(age, &out);
            }
        }
    };
    std::thread::scope(|s| {
        for _ in 1..seeds.threads {
            s.spawn(work);
        }
        work();
    });
    out.into_inner().expect("a panic ends the process")
}

fn progress(age: u64, out: &Outcome) {
    let (worlds, packets) = (out.stats.worlds, out.stats.net.packets);
    let line =
        format!("{age} s: {worlds} worlds, {packets} packets, {} failed\n", out.failed.len());
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// The arguments that repeat a world.
fn arguments(seed: u64, limits: &Limits) -> Vec<String> {
    let all = Limits::default();
    let mut out = vec!["--seed".into(), seed.to_string()];
    let mut add = |name: &str, n: u64, default: u64| {
        if n != default {
            out.extend([name.into(), n.to_string()]);
        }
    };
    add("--hosts", limits.hosts as u64, all.hosts as u64);
    add("--links", limits.links as u64, all.links as u64);
    add("--ops", limits.ops.into(), all.ops.into());
    if limits.without != 0 {
        let names = feature::NAMES.iter().filter(|f| limits.without & f.1 != 0).map(|f| f.0);
        out.extend(["--without".into(), names.collect::<Vec<_>>().join(",")]);
    }
    out
}

/// The command that repeats a world.
pub fn command(seed: u64, limits: &Limits) -> String {
    format!("sim {}", arguments(seed, limits).join(" "))
}

/// Removes from a failing world everything that its failure does not need.
pub fn shrink(seed: u64, limits: &Limits, fails: &mut dyn FnMut(&Limits) -> bool) -> Limits {
    let mut best = *limits;
    let mut tried = |best: &mut Limits, smaller: Limits| {
        let better = smaller != *best && fails(&smaller);
        if better {
            println!("  still fails: {}", command(seed, &smaller));
            *best = smaller;
        }
        better
    };
    loop {
        let before = best;
        for &(_, bit) in feature::NAMES {
            let smaller = Limits { without: best.without | bit, ..best };
            tried(&mut best, smaller);
        }
        for n in 1..best.links {
            let smaller = Limits { links: n, ..best };
            if tried(&mut best, smaller) {
                break;
            }
        }
        for n in 1..best.hosts {
            let smaller = Limits { hosts: n, ..best };
            if tried(&mut best, smaller) {
                break;
            }
        }
        let mut step = best.ops.min(4096) / 2;
        while step > 0 {
            let ops = best.ops.min(4096).saturating_sub(step).max(1);
            let smaller = Limits { ops, ..best };
            if !tried(&mut best, smaller) {
                step /= 2;
            }
        }
        if best == before {
            return best;
        }
    }
}

/// Whether a world fails, found out in a process of its own: it may panic or hang.
pub fn fails_alone(seed: u64, limits: &Limits) -> bool {
    let Ok(exe) = std::env::current_exe() else { return false };
    let child = Command::new(exe)
        .args(arguments(seed, limits))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let Ok(mut child) = child else { return false };
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return !status.success(),
            Ok(None) if begun.elapsed() < TRY => std::thread::sleep(Duration::from_millis(5)),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                return true;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_made_as_small_as_it_goes() {
        // Fails if there is loss between two hosts, from 13 requests on.
        let mut fails = |l: &Limits| l.without & feature::LOSS == 0 && l.hosts >= 2 && l.ops >= 13;
        let small = shrink(5, &Limits::default(), &mut fails);
        let all = feature::NAMES.iter().fold(0, |a, f| a | f.1);
        assert_eq!(small, Limits { hosts: 2, links: 1, ops: 13, without: all & !feature::LOSS });
        assert!(command(5, &small)
            .starts_with("sim --seed 5 --hosts 2 --links 1 --ops 13 --without dup,"));
    }

    #[test]
    fn threads_change_nothing_but_the_order() {
        let one = Seeds { from: 0, to: 6, packets: u64::MAX, threads: 1 };
        let two = Seeds { threads: 2, ..one };
        let limits = Limits { ops: 10, ..Limits::default() };
        let [a, b] = [one, two].map(|s| swarm(&s, &limits, false));
        assert_eq!((a.failed, b.failed), (vec![], vec![]));
        assert_eq!(format!("{:?}", a.stats), format!("{:?}", b.stats));
    }

    #[test]
    fn a_world_that_failed_once_passes() {
        use feature::*;
        // A receive that failed inside its message while its CQ was full was never completed.
        let without =
            LOSS | DUP | PARTITION | REVERSE | RESTART | ARM | SRQ | WINDOW | DRAIN | WEAK;
        let (seed, limits) = (1_000_280, Limits { hosts: 3, links: 2, ops: 2654, without });
        let out = swarm(
            &Seeds { from: seed, to: seed + 1, packets: u64::MAX, threads: 1 },
            &limits,
            false,
        );
        assert_eq!(out.failed, vec![], "{}", command(seed, &limits));
        assert!(out.stats.net.packets > 100_000);
    }
}
