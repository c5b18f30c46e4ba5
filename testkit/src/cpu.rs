//! CPU time of threads and processes, for tests of sleeping: other work on the machine changes wall
//! time, but not CPU time.

use std::time::Duration;

fn clock(id: libc::clockid_t) -> Option<Duration> {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one whole timespec of ours.
    let rc = unsafe { libc::clock_gettime(id, &mut t) };
    (rc == 0).then(|| Duration::new(t.tv_sec as u64, t.tv_nsec as u32))
}

/// CPU time of the calling thread.
pub fn of_thread() -> Duration {
    clock(libc::CLOCK_THREAD_CPUTIME_ID).expect("every thread has a clock")
}

/// CPU time of this process.
pub fn of_process() -> Duration {
    clock(libc::CLOCK_PROCESS_CPUTIME_ID).expect("every process has a clock")
}

/// CPU time of another process; `None` once it is gone.
pub fn of(pid: u32) -> Option<Duration> {
    // Linux's id of a process's CPU clock, as clock_getcpuclockid(3) computes it: the complement of
    // the pid above three bits, whose value 2 selects the scheduler's count of all threads.
    clock((!(pid as libc::clockid_t) << 3) | 2)
}

/// How many times the calling thread has slept: has given up the CPU to wait for an event.
pub fn sleeps_of_thread() -> u64 {
    // SAFETY: zeroes are a valid rusage, which the call fills.
    let (rc, usage) = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        (libc::getrusage(libc::RUSAGE_THREAD, &mut usage), usage)
    };
    assert_eq!(rc, 0, "getrusage");
    usage.ru_nvcsw as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_takes_cpu_time_and_sleep_does_not() {
        let before = of_thread();
        while of_thread() - before < Duration::from_millis(20) {}
        assert!(of_process() >= of_thread());
        let (mut child, used) =
            (std::process::Command::new("sleep").arg("60").spawn().expect("sleep"), before);
        let asleep = of(child.id()).expect("a child that lives");
        child.kill().and_then(|()| child.wait()).expect("an end");
        assert_eq!(of(child.id()), None);
        let slept = sleeps_of_thread();
        (0..10).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        assert!(sleeps_of_thread() >= slept + 10);
        let own = of(std::process::id()).expect("this process");
        assert!(
            own >= used + Duration::from_millis(20) && asleep < own,
            "{own:?}, a sleeping child {asleep:?}"
        );
    }
}
