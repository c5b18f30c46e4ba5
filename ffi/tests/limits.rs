//! What an open says where the system's limits are too low for it. Each case is a process of its
//! own, since a limit concerns the whole process.

mod common;

use common::*;
use core::ptr::{null, null_mut};
use gdrcore::*;
use gdrcore_testkit::place;
use std::ffi::CString;
use std::process::Command;

const CASE: &str = "GDRCORE_LIMIT";

/// Lowers a limit, and opens a device. Returns the error and its words.
fn open_with(resource: libc::__rlimit_resource_t, to: u64) -> (i32, String) {
    let [a, b, c, d] = place::loopback(10, 1);
    let name = CString::new(format!("soft:{a}.{b}.{c}.{d}")).expect("no NUL");
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: a whole limit, which lives through the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
    let mut ctx = null_mut();
    let rc = c!(gdrc_open(name.as_ptr(), null(), &mut ctx));
    (rc, open_error())
}

#[test]
fn a_limit_that_is_too_low_is_named() {
    let cases = [
        (libc::RLIMIT_NOFILE, 12, libc::EMFILE, "ulimit -n"),
        (libc::RLIMIT_AS, 1 << 20, libc::ENOMEM, "ulimit -v"),
        (libc::RLIMIT_DATA, 1 << 20, libc::ENOMEM, "-d"),
        // No effect: nothing is locked or queued, and our threads' stacks have sizes of their own.
        (libc::RLIMIT_MEMLOCK, 0, 0, ""),
        (libc::RLIMIT_STACK, 128 << 10, 0, ""),
        (libc::RLIMIT_SIGPENDING, 0, 0, ""),
        (libc::RLIMIT_MSGQUEUE, 0, 0, ""),
        (libc::RLIMIT_FSIZE, 0, 0, ""),
    ];
    if let Ok(case) = std::env::var(CASE) {
        let (resource, to, errno, words) = cases[case.parse::<usize>().expect("a number")];
        let (rc, said) = open_with(resource, to);
        assert_eq!(rc, -errno, "{resource}: {said}");
        assert!(said.contains(words), "{resource}: {said}");
        return;
    }
    for k in 0..cases.len() {
        let done = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_limit_that_is_too_low_is_named", "--nocapture"])
            .env(CASE, k.to_string())
            .output()
            .expect("it starts");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "case {k}: {} {said}", done.status);
    }
}
