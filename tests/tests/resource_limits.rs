//! Limits of the system, and the signals that stand behind some: a call returns an error with a
//! reason, or goes on by another way, and no signal ends the program. Each test runs in a process
//! of its own, since it changes the whole process.

use gdrcore_core::Error;
use gdrcore_net::reason;
use gdrcore_net::soft::{soft_flags as flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connected, connected_pair, succeed, Op, Shape};
use gdrcore_tests::or_skip;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{as_root, is_alone, scratch};
use std::ffi::CString;

/// As [`is_alone`], without the signals that limits raise.
fn alone(test: &str) -> bool {
    is_alone(test) && {
        // A program that expects none of these signals; the tests' runtime ignores SIGPIPE.
        for signal in [libc::SIGPIPE, libc::SIGXFSZ] {
            // SAFETY: sets the default action.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        reason::install();
        true
    }
}

fn limit(resource: libc::__rlimit_resource_t, to: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: to };
    // SAFETY: a whole limit, which lives through the call.
    assert_eq!(unsafe { libc::setrlimit(resource, &limit) }, 0);
}

fn words() -> String {
    reason::with_text(|words| words.to_string())
}

/// Writes 10,000 bytes from one device to the other.
fn works(x: &Soft, y: &Soft) {
    let (mut a, mut b) = connected_pair(x.dev(), y.dev());
    a.post(1, Op::Write(0, None), 0, 10_000).expect("post_send");
    succeed(&mut a, &mut b, 1);
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error_of_the_link() {
    if !alone("a_limit_on_the_size_of_files_is_an_error_of_the_link") {
        return;
    }
    let open = |last, path| {
        Soft::open(&address(last), &SoftConfig { path, ..SoftConfig::default() }).expect("open")
    };
    let shm = [1, 2].map(|last| open(last, PathChoice::Shm));
    let auto = [3, 4].map(|last| open(last, PathChoice::Auto));
    limit(libc::RLIMIT_FSIZE, 64 << 10);
    let refused = connected(shm[0].dev(), shm[1].dev(), Shape::default()).err();
    assert_eq!(refused, Some(Error::Os(libc::EFBIG)));
    assert!(words().contains("ulimit -f"), "{}", words());
    // The network needs no file.
    works(&auto[0], &auto[1]);
}

#[test]
fn a_limit_on_the_size_of_files_ends_a_capture_and_no_traffic() {
    if !alone("a_limit_on_the_size_of_files_ends_a_capture_and_no_traffic") {
        return;
    }
    let dir = scratch("limited-capture");
    let file = dir.join("all.pcap");
    let pcap = CString::new(file.to_str().expect("UTF-8")).expect("no NUL");
    let config = SoftConfig { path: PathChoice::Udp, pcap: Some(&pcap), ..SoftConfig::default() };
    let x = Soft::open(&address(1), &config).expect("open");
    let y = Soft::open(&address(2), &SoftConfig::default()).expect("open");
    limit(libc::RLIMIT_FSIZE, 64 << 10);
    for _ in 0..20 {
        works(&x, &y);
    }
    drop((x, y));
    let len = std::fs::metadata(&file).expect("the capture").len();
    assert!((24..=64 << 10).contains(&len), "{len}");
}

/// What this library prints must not end a program whose standard error nobody reads.
#[test]
fn standard_error_without_a_reader_ends_no_program() {
    if !alone("standard_error_without_a_reader_ends_no_program") {
        return;
    }
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors; standard error becomes the pipe's end.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::close(ends[0]);
        libc::dup2(ends[1], libc::STDERR_FILENO);
    }
    reason::say(format_args!("nobody reads this"));
    // SAFETY: a descriptor without a reader: the system's own error.
    let n = unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        libc::write(libc::STDERR_FILENO, b"x".as_ptr().cast(), 1)
    };
    assert_eq!((n, std::io::Error::last_os_error().raw_os_error()), (-1, Some(libc::EPIPE)));
}

#[test]
fn without_threads_a_device_works_and_says_why_it_has_no_helper() {
    or_skip!(as_root());
    if !alone("without_threads_a_device_works_and_says_why_it_has_no_helper") {
        return;
    }
    // The limit is on the user's processes.
    // SAFETY: of this thread, which makes the devices; no pointers.
    assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, 30_003, 30_003, 30_003) }, 0);
    limit(libc::RLIMIT_NPROC, 0);
    let helper = SoftConfig { flags: flags::HELPER, ..SoftConfig::default() };
    let refused = Soft::open(&address(1), &helper).err();
    assert_eq!(refused, Some(Error::Os(libc::EAGAIN)));
    assert!(words().contains("ulimit -u"), "{}", words());
    let [x, y] = [1, 2].map(|last| Soft::new(&address(last)));
    works(&x, &y);
}
