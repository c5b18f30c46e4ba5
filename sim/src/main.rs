//! The seeded simulator: `sim --seed N` repeats a failure of `sim --seeds A..B` exactly.

mod bottleneck;
mod buf;
mod chaos;
mod host;
mod life;
mod link;
mod net;
mod numbers;
mod oracle;
mod scenario;
mod slow;
mod swarm;
mod trap;
mod world;

use lexopt::prelude::*;
use std::ffi::OsString;
use std::process::ExitCode;

use scenario::{feature, Limits};
use swarm::{Outcome, Seeds};

#[global_allocator]
static ALLOCATOR: trap::Trap = trap::Trap;

const HELP: &str = "\
Usage: sim [--seed N | --seeds A..B | --count N] [--swarm] [--packets N] [limits] [--verbose]
       sim --bottleneck [--seed N]

Runs engines against a network that loses, doubles, reorders and damages packets and falls apart,
restarts them under way, and checks every byte and every completion. All that happens in a world
follows from its seed.

  --seed N        the world of seed N
  --seeds A..B    the worlds of seeds A to B-1
  --count N       the worlds of seeds 0 to N-1 (default 1000)
  --packets N     worlds from the first seed on until N packets were sent
  --swarm         on all cores, and what fails is made small
  --threads N     with --swarm: on N threads
  --shrink        makes the world of --seed small, if it fails
  --hosts N, --links N, --ops N, --without FEATURE,...
                  no more than that: a smaller world of the same seed
  --features      names the features
  --verbose       prints the links and every completion
  --help, --version
  --bottleneck    eight flows through one switch port instead, with congestion control and
                  without (default seed 0)
";

#[derive(Default)]
struct Args {
    from: u64,
    to: u64,
    packets: Option<u64>,
    threads: usize,
    swarm: bool,
    shrink: bool,
    verbose: bool,
    bottleneck: bool,
    limits: Limits,
}

fn parse(args: impl Iterator<Item = OsString>) -> Result<Option<Args>, lexopt::Error> {
    let mut out = Args { to: 1000, ..Args::default() };
    let mut args = lexopt::Parser::from_args(args);
    while let Some(arg) = args.next()? {
        match arg {
            Long("seed") => {
                out.from = args.value()?.parse()?;
                out.to = out.from.saturating_add(1);
            }
            Long("seeds") => {
                let range = args.value()?.string()?;
                let (a, b) =
                    range.split_once("..").ok_or_else(|| format!("'{range}' is not A..B"))?;
                (out.from, out.to) = (OsString::from(a).parse()?, OsString::from(b).parse()?);
            }
            Long("count") => (out.from, out.to) = (0, args.value()?.parse()?),
            Long("packets") => out.packets = Some(args.value()?.parse()?),
            Long("threads") => out.threads = args.value()?.parse()?,
            Long("swarm") => out.swarm = true,
            Long("shrink") => out.shrink = true,
            Long("hosts") => out.limits.hosts = args.value()?.parse::<usize>()?.max(1),
            Long("links") => out.limits.links = args.value()?.parse::<usize>()?.max(1),
            Long("ops") => out.limits.ops = args.value()?.parse::<u32>()?.max(1),
            Long("without") => {
                for name in args.value()?.string()?.split(',') {
                    let found = feature::NAMES.iter().find(|f| f.0 == name);
                    out.limits.without |=
                        found.ok_or_else(|| format!("no feature '{name}'; see --features"))?.1;
                }
            }
            Long("features") => {
                feature::NAMES.iter().for_each(|f| println!("{}", f.0));
                return Ok(None);
            }
            Short('v') | Long("verbose") => out.verbose = true,
            Long("bottleneck") => out.bottleneck = true,
            Short('h') | Long("help") => {
                print!("{HELP}");
                return Ok(None);
            }
            Short('V') | Long("version") => {
                println!("sim {}", env!("CARGO_PKG_VERSION"));
                return Ok(None);
            }
            _ => return Err(arg.unexpected()),
        }
    }
    Ok(Some(out))
}

/// Runs the bottleneck with and without congestion control, and prints both.
fn bottleneck(seed: u64) -> ExitCode {
    for (name, dcqcn) in bottleneck::NAMES.into_iter().zip([true, false]) {
        match bottleneck::run(seed, dcqcn, 200) {
            Ok(report) => bottleneck::print(name, &report),
            Err(e) => {
                eprintln!("sim: seed {seed}: {e}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

fn report(out: &Outcome) {
    let (s, n, c) = (&out.stats, out.stats.net, out.stats.counters);
    println!(
        "{} packets: {} lost, {} doubled, {} late, {} damaged, {} replayed; {} \
         partitions, {} restarts; {} requests ended well, {} did not; {} links made anew",
        n.packets,
        n.lost,
        n.doubled,
        n.late,
        n.corrupted,
        n.replayed,
        n.cuts,
        s.restarts,
        s.ended,
        s.failed,
        s.remade
    );
    println!(
        "{} sent again, {} duplicates, {} timeouts, {} RNR, {} sequence \
         errors, {} waits for a CQ, {} for a window; {:.1} s of virtual time",
        c.retransmitted_pkts,
        c.duplicate_request,
        c.retry_timeouts,
        c.rcvd_rnr_err,
        c.rcvd_seq_err,
        c.cq_full,
        c.window_closed,
        s.time_ns as f64 / 1e9
    );
    println!(
        "DC: {} opened, {} closed, {} asked to close, {} found no context, {} were gone",
        c.dc_opened, c.dc_closed, c.dc_reclaimed, c.dc_busy, c.dc_gone
    );
    println!(
        "devices of several engines: {} packets, {} of them between two engines of one",
        s.of_engines, s.within_devices
    );
    println!("{} passed, {} failed", s.worlds, out.failed.len());
}

fn main() -> ExitCode {
    let args = match parse(std::env::args_os().skip(1)) {
        Ok(Some(args)) => args,
        Ok(None) => return ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("sim: {e}; see --help");
            return ExitCode::from(2);
        }
    };
    if args.bottleneck {
        return bottleneck(args.from);
    }
    let hook = std::panic::take_hook();
    let limits = args.limits;
    std::panic::set_hook(Box::new(move |info| {
        eprintln!(
            "panic; repeat it with {0}, make it small with {0} --shrink",
            swarm::command(swarm::seed(), &limits)
        );
        hook(info);
    }));
    if args.shrink {
        let small = swarm::shrink(args.from, &limits, &mut |l| swarm::fails_alone(args.from, l));
        println!("repeat it with {}", swarm::command(args.from, &small));
        return ExitCode::SUCCESS;
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = match (args.swarm, args.threads) {
        (false, _) => 1,
        (true, 0) => cores,
        (true, n) => n,
    };
    let (packets, to) = args.packets.map_or((u64::MAX, args.to), |n| (n, u64::MAX));
    let out = swarm::swarm(&Seeds { from: args.from, to, packets, threads }, &limits, args.verbose);
    if let (true, Some((seed, _))) = (args.swarm, out.failed.first()) {
        let small = swarm::shrink(*seed, &limits, &mut |l| swarm::fails_alone(*seed, l));
        println!("the first failure, made small: repeat it with {}", swarm::command(*seed, &small));
    }
    report(&out);
    if out.failed.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With debug assertions and overflow checks, which the release build does not have.
    #[test]
    fn a_few_worlds_hold() {
        for seed in 0..40 {
            if let Err(e) = super::swarm::run(seed, &Limits::default(), false) {
                panic!("seed {seed}: {e}");
            }
        }
    }

    #[test]
    fn a_seed_repeats_exactly() {
        let [a, b] =
            [7, 7].map(|seed| format!("{:?}", super::swarm::run(seed, &Limits::default(), false)));
        assert_eq!(a, b);
    }
}
