//! Time limits of tests.
//!
//! A test waits for the event that it needs. The limits here only end a test that hangs: no test
//! passes or fails by its speed. They grow with [`factor`]: `scripts/test.sh` measures one at its
//! start and passes it on as `GDRC_TEST_PATIENCE`; a test program that begins under more load than
//! that takes the factor of the load average.

use std::process::Command;
use std::sync::mpsc::{channel, RecvTimeoutError, Sender};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The name of the environment variable that holds the least factor.
pub const VARIABLE: &str = "GDRC_TEST_PATIENCE";

/// The largest factor that is estimated.
const MOST: u32 = 10;

/// How many times slower this machine may be than an idle one with two CPUs.
pub fn factor() -> u32 {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    *FACTOR.get_or_init(|| {
        let least = std::env::var(VARIABLE).map_or(1, |text| {
            parse(&text)
                .unwrap_or_else(|| panic!("{VARIABLE}={text}: must be a whole number from 1"))
        });
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        least.max(guess(&std::fs::read_to_string("/proc/loadavg").unwrap_or_default(), cpus))
    })
}

/// Passes the factor on to a program that a test starts, unless the command sets the variable.
pub fn hand_on(command: &mut Command) {
    if !command.get_envs().any(|(name, _)| name == VARIABLE) {
        command.env(VARIABLE, factor().to_string());
    }
}

/// The factor to expect from `/proc/loadavg` on so many CPUs.
fn guess(loadavg: &str, cpus: u32) -> u32 {
    let load = loadavg.split(' ').next().and_then(|l| l.parse::<f64>().ok()).unwrap_or(0.0);
    let shares = (load / f64::from(cpus)).ceil().max(1.0) as u32;
    (if cpus == 1 { 2 * shares } else { shares }).min(MOST)
}

fn parse(text: &str) -> Option<u32> {
    text.parse().ok().filter(|&n| n >= 1)
}

/// A limit: `seconds` of an idle machine with two CPUs, times [`factor`]. A passing test never
/// waits that long.
pub fn limit(seconds: u64) -> Duration {
    Duration::from_secs(seconds) * factor()
}

/// An ACK timeout code (4.096 us x 2^code): `code` of an idle machine with two CPUs, raised until
/// the time is at least [`factor`] times as long.
///
/// A process that gets no CPU for half a second is no fault of the device, but looks like a silent
/// peer.
pub fn ack_timeout(code: u8) -> u8 {
    raised(code, factor())
}

/// 0 (no timeout) stays, and 31 is the largest code.
fn raised(code: u8, factor: u32) -> u8 {
    match code {
        0 => 0,
        _ => (code + factor.next_power_of_two().ilog2() as u8).min(31),
    }
}

/// As [`limit`], in milliseconds.
pub fn limit_ms(seconds: u64) -> i32 {
    i32::try_from(limit(seconds).as_millis()).expect("less than three weeks")
}

/// The time at which [`limit`] expires.
pub fn deadline(seconds: u64) -> Instant {
    Instant::now() + limit(seconds)
}

/// Calls `turn` until it returns a value, at most for `seconds` (see [`limit`]).
///
/// A turn that finds nothing may sleep or yield by itself; this function does neither.
///
/// # Panics
/// When the time is over, with the text of `missing`.
pub fn until<T>(
    seconds: u64,
    missing: impl FnOnce() -> String,
    mut turn: impl FnMut() -> Option<T>,
) -> T {
    let end = deadline(seconds);
    loop {
        if let Some(found) = turn() {
            return found;
        }
        if Instant::now() > end {
            panic!("within {:?}: {}", limit(seconds), missing());
        }
    }
}

/// As [`until`], for a condition that another thread or process makes true: checks it every
/// millisecond.
///
/// # Panics
/// When the time is over, with `missing`.
pub fn wait_for(seconds: u64, missing: &str, mut is: impl FnMut() -> bool) {
    run_until(seconds, missing, || {
        let found = is();
        if !found {
            std::thread::sleep(Duration::from_millis(1));
        }
        found
    });
}

/// As [`wait_for`], for a condition that the turns themselves bring about: does not sleep between
/// them.
///
/// # Panics
/// When the time is over, with `missing`.
pub fn run_until(seconds: u64, missing: &str, mut turn: impl FnMut() -> bool) {
    until(seconds, || missing.to_string(), || turn().then_some(()));
}

/// Ends the process if it is not dropped in time: for a call that must return by itself.
pub struct Watch(Option<Sender<()>>);

/// The process aborts after `seconds` (see [`limit`]) unless the watch is dropped before.
pub fn watch(seconds: u64, what: &str) -> Watch {
    let (send, dropped) = channel();
    let (limit, what) = (limit(seconds), what.to_string());
    std::thread::spawn(move || {
        if dropped.recv_timeout(limit) == Err(RecvTimeoutError::Timeout) {
            eprintln!("not within {limit:?}: {what}");
            std::process::abort();
        }
    });
    Watch(Some(send))
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.0.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_is_a_whole_number_from_one() {
        assert_eq!((parse("1"), parse("8")), (Some(1), Some(8)));
        for wrong in ["0", "", "1.5", "-1", "x"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
        assert_eq!(limit(3), Duration::from_secs(3) * factor());
    }

    #[test]
    fn an_ack_timeout_is_at_least_the_factor_times_as_long() {
        for (code, factor, is) in [(14, 1, 14), (14, 2, 15), (14, 3, 16), (14, 10, 18)] {
            assert_eq!(raised(code, factor), is, "{code} at {factor}");
        }
        assert_eq!((raised(0, 10), raised(30, 10)), (0, 31));
    }

    #[test]
    fn the_load_average_raises_the_factor() {
        for (load, cpus, factor) in [
            ("0.00 0 0", 2, 1),
            ("1.99 9 9", 2, 1),
            ("4.1 0 0", 2, 3),
            ("0.5 0 0", 1, 2),
            ("90 0 0", 4, 10),
            ("", 8, 1),
        ] {
            assert_eq!(guess(load, cpus), factor, "{load} on {cpus}");
        }
    }

    #[test]
    fn a_wait_that_times_out_names_its_event() {
        let caught = std::panic::catch_unwind(|| wait_for(0, "a sign", || false))
            .expect_err("the time is over");
        assert!(
            caught.downcast_ref::<String>().is_some_and(|t| t.ends_with(": a sign")),
            "{caught:?}"
        );
        let mut n = 0;
        assert_eq!(until(0, String::new, || (n == 0).then(|| n += 1)), ());
    }
}
