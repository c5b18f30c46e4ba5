//! The seeded simulator: `sim --seed N` repeats what `sim --seeds A..B` found, exactly.

mod buf;
mod host;
mod life;
mod link;
mod net;
mod oracle;
mod rng;
mod slow;
mod trap;
mod world;

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

#[global_allocator]
static ALLOCATOR: trap::Trap = trap::Trap;

/// The seed under way, for the report of a panic.
static SEED: AtomicU64 = AtomicU64::new(0);

const HELP: &str = "\
Usage: sim [--seed N | --seeds A..B | --count N] [--verbose]

Runs engines against a network that loses, doubles, reorders and damages packets, and checks every byte and
every completion. All that happens follows from the seed.

  --seed N      the world of seed N
  --seeds A..B  the worlds of seeds A to B-1
  --count N     the worlds of seeds 0 to N-1 (default 1000)
  --verbose     print the links and every completion
";

struct Args {
    from: u64,
    to: u64,
    verbose: bool,
}

fn parse(args: impl Iterator<Item = String>) -> Result<Option<Args>, String> {
    let mut out = Args { from: 0, to: 1000, verbose: false };
    let mut args = args;
    let number = |s: &str| s.parse::<u64>().map_err(|_| format!("'{s}' is not a number"));
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--seed" => {
                out.from = number(&value()?)?;
                out.to = out.from.saturating_add(1);
            }
            "--seeds" => {
                let range = value()?;
                let (a, b) = range.split_once("..").ok_or_else(|| format!("'{range}' is not A..B"))?;
                (out.from, out.to) = (number(a)?, number(b)?);
            }
            "--count" => (out.from, out.to) = (0, number(&value()?)?),
            "--verbose" | "-v" => out.verbose = true,
            "--help" | "-h" => return Ok(None),
            _ => return Err(format!("unknown option '{arg}'; --help shows what there is")),
        }
    }
    Ok(Some(out))
}

fn run(seed: u64, verbose: bool) -> Result<world::Stats, String> {
    SEED.store(seed, Ordering::Relaxed);
    let mut world = world::World::new(seed);
    world.verbose = verbose;
    world.run()
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(Some(args)) => args,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(e) => {
            eprintln!("sim: {e}");
            return ExitCode::from(2);
        }
    };
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        eprintln!("seed {}: panic; repeat it with --seed {0}", SEED.load(Ordering::Relaxed));
        hook(info);
    }));
    let mut stats = world::Stats::default();
    let (mut passed, mut failed) = (0u64, 0u64);
    for seed in args.from..args.to {
        match run(seed, args.verbose) {
            Ok(s) => {
                passed += 1;
                stats.add(&s);
            }
            Err(e) => {
                failed += 1;
                println!("seed {seed}: FAILED; repeat it with --seed {seed}\n  {e}");
            }
        }
    }
    let (n, c) = (stats.net, stats.counters);
    println!(
        "{} packets: {} lost, {} doubled, {} late, {} damaged; {} requests ended well, {} did not; {} links made anew",
        n.packets, n.lost, n.doubled, n.late, n.corrupted, stats.ended, stats.failed, stats.remade
    );
    println!(
        "{} sent again, {} duplicates, {} timeouts, {} RNR, {} sequence errors, {} waits for a CQ, {} for a window; \
         {:.1} s of virtual time",
        c.retransmitted_pkts,
        c.duplicate_request,
        c.retry_timeouts,
        c.rcvd_rnr_err,
        c.rcvd_seq_err,
        c.cq_full,
        c.window_closed,
        stats.time_ns as f64 / 1e9
    );
    println!("{passed} passed, {failed} failed");
    if failed == 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[cfg(test)]
mod tests {
    /// With debug assertions and overflow checks, which the release build lacks.
    #[test]
    fn a_few_worlds_hold() {
        for seed in 0..40 {
            if let Err(e) = super::run(seed, false) {
                panic!("seed {seed}: {e}");
            }
        }
    }

    #[test]
    fn a_seed_repeats_exactly() {
        let [a, b] = [7, 7].map(|seed| format!("{:?}", super::run(seed, false)));
        assert_eq!(a, b);
    }
}
