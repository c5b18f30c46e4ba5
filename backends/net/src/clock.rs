//! Time and randomness.
//!
//! Time is CLOCK_MONOTONIC through the vdso, not the TSC itself. The vdso reads the TSC if that is
//! sound (some 20 ns a call) and falls back by itself if it is not (migrated and nested virtual
//! machines). A calibration of our own would have to detect those cases.

use gdrcore_core::error::Result;

/// Nanoseconds of CLOCK_MONOTONIC. Any thread. Cost: one vdso call, no system call on usual
/// machines.
#[inline]
pub fn now_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC)
}

/// Milliseconds until `end_ns`, rounded up, for the system's calls; -1, which is for ever, for
/// `u64::MAX`.
pub fn ms_until(end_ns: u64, now_ns: u64) -> i32 {
    match end_ns {
        u64::MAX => -1,
        end => i32::try_from(end.saturating_sub(now_ns).div_ceil(1_000_000)).unwrap_or(i32::MAX),
    }
}

/// The end of a wait that begins now, from the milliseconds of the system's calls; negative: never,
/// which is `u64::MAX`.
pub fn end_of(timeout_ms: i32) -> u64 {
    let limit = u64::try_from(timeout_ms).map(|ms| ms * 1_000_000);
    limit.map_or(u64::MAX, |ns| now_ns().saturating_add(ns))
}

/// Nanoseconds since the epoch (CLOCK_REALTIME); for captures, never for timers.
pub fn wall_ns() -> u64 {
    read(libc::CLOCK_REALTIME)
}

#[inline]
fn read(clock: libc::clockid_t) -> u64 {
    let mut ts = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `ts` is valid memory for the result. Both clocks exist on every Linux, so the call
    // cannot fail.
    unsafe { libc::clock_gettime(clock, &mut ts) };
    (ts.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(ts.tv_nsec as u64)
}

/// Fills `out` from the system's random source.
///
/// # Errors
/// `Unsupported` where the kernel lacks getrandom (before 3.17, or a filter forbids it).
pub fn random(out: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        // SAFETY: pointer and length are those of `rest`.
        let rc = unsafe { libc::getrandom(rest.as_mut_ptr().cast(), rest.len(), 0) };
        if rc > 0 {
            done += rc as usize;
        } else if crate::sys::errno() != libc::EINTR {
            return Err(gdrcore_core::refuse!(
                Unsupported,
                "the kernel gives no random numbers (getrandom)"
            ));
        }
    }
    Ok(())
}

/// A random 64-bit seed, never 0 (0 means "not given" in `Config::seed`).
///
/// # Errors
/// As [`random`].
pub fn random_seed() -> Result<u64> {
    let mut b = [0u8; 8];
    random(&mut b)?;
    Ok(u64::from_ne_bytes(b).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_runs_forward() {
        let a = now_ns();
        let b = now_ns();
        assert!(a > 0 && b >= a);
        assert!(wall_ns() > 1_600_000_000_000_000_000);
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(random_seed().unwrap(), random_seed().unwrap());
        let mut big = [0u8; 1000];
        random(&mut big).unwrap();
        assert!(big.iter().any(|&b| b != 0));
    }
}
