use super::*;
use crate::map::Map;
use gdrcore_core::wire::icrc::IcrcFlow;
use gdrcore_testkit::descriptors::fork;
use gdrcore_testkit::icrc::check_exact;
use gdrcore_testkit::patience::deadline;
use gdrcore_testkit::pcap::records;
use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

struct Rig {
    pcap: Pcap,
    _mem: Map,
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gdrcore-{name}-{}.pcap", std::process::id()))
}

fn open(path: &std::path::Path, len: usize) -> Result<Rig> {
    open_as(path, Earlier::Replace, len)
}

fn open_as(path: &std::path::Path, earlier: Earlier, len: usize) -> Result<Rig> {
    let mem = Map::new(len.max(1)).unwrap();
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the map has at least `len` bytes and is dropped after the capture.
    let pcap = unsafe { Pcap::open(&name, earlier, mem.as_ptr(), len) }?;
    Ok(Rig { pcap, _mem: mem })
}

/// Frames of a capture: nanoseconds since the epoch, and bytes.
fn read(path: &std::path::Path) -> Vec<(u64, Vec<u8>)> {
    let file = std::fs::read(path).unwrap();
    assert_eq!(file.first_chunk(), Some(&file_header()));
    records(&file).iter().map(|r| (r.time_ns, r.frame.to_vec())).collect()
}

fn packets(from: &Endpoint, to: &Endpoint, n: usize, seg: usize) -> Vec<u8> {
    let flow = IcrcFlow::from_gids(&from.ip, &to.ip, from.port, to.port);
    let mut data = vec![0u8; n * seg];
    for (k, p) in data.chunks_mut(seg).enumerate() {
        // UD SEND ONLY, a valid opcode for the reader.
        p[0] = 0x64;
        p[1] = 0x40;
        p[2..4].fill(0xff);
        p[7] = 2;
        p[11] = k as u8;
        flow.append_icrc(k as u16, p);
    }
    data
}

#[test]
fn bursts_become_frames_with_right_icrcs() {
    let file = path("burst");
    let a4 = Endpoint::v4([10, 1, 0, 1], 4791);
    let b4 = Endpoint::v4([10, 1, 0, 2], 4791);
    let a6 = Endpoint::parse("[2001:db8::1]").unwrap();
    let b6 = Endpoint::parse("[2001:db8::2]").unwrap();
    let mut r = open(&file, MEM_MIN).unwrap();
    let now = crate::clock::now_ns();
    r.pcap.burst(now, &a4, &b4, 0, 60, &packets(&a4, &b4, 20, 60));
    r.pcap.burst(now + 5, &a6, &b6, 0, 61, &packets(&a6, &b6, 20, 61));
    // Larger than the buffer.
    r.pcap.burst(now, &a4, &b4, 0, 8000, &packets(&a4, &b4, 3, 8000));
    r.pcap.burst(now, &a4, &b4, 0, 60, &packets(&a4, &b4, 1, 60));
    r.pcap.flush();
    assert_eq!(r.pcap.counts(), (44, 0));
    drop(r);
    let frames = read(&file);
    assert_eq!(frames.len(), 44);
    for (_, f) in &frames {
        check_exact(&f[ETHERNET_LEN..]).unwrap();
    }
    let wall = crate::clock::wall_ns() / 1_000_000_000;
    assert!((frames[0].0 / 1_000_000_000).abs_diff(wall) < 100, "wall clock");
    assert_eq!(frames[20].0 - frames[0].0, 5, "nanoseconds");
    let _fork = fork();
    if let Ok(out) = Command::new("tshark")
        .args(["-r", file.to_str().unwrap(), "-q", "-z", "expert,warn"])
        .output()
    {
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(!text.contains("Malformed") && !text.contains("hecksum"), "{text}");
    } else {
        gdrcore_testkit::skip::skipped(format_args!("tshark is not installed"));
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_burst_is_in_the_file_when_it_leaves() {
    let file = path("early");
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    let mut r = open(&file, MEM_MIN).unwrap();
    assert_eq!(read(&file).len(), 0, "the header is there at once");
    for k in 0..100 {
        r.pcap.burst(k, &a, &b, 0, 100, &packets(&a, &b, 2, 100));
        assert_eq!(read(&file).len(), 2 * (k as usize + 1));
    }
    std::fs::remove_file(&file).unwrap();
}

/// Threads and processes write one file at once. The frames of each are there, whole and in the
/// writer's order.
#[test]
fn captures_share_a_file() {
    let file = path("shared");
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    let write = |who: u8| {
        let from = Endpoint::v4([10, 1, 1, who], 4791);
        let mut r = open(&file, MEM_MIN).unwrap();
        for k in 0..500 {
            // Some are longer than the buffer.
            let (n, seg) = if k % 50 == 0 { (2, 5000) } else { (1 + k % 3, 80) };
            r.pcap.burst(k as u64, &from, &b, k as u16, seg as u16, &packets(&from, &b, n, seg));
        }
        assert_eq!(r.pcap.counts().1, 0);
        r.pcap.counts().0
    };
    // The first has the file open all the time.
    let mut first = open(&file, MEM_MIN).unwrap();
    first.pcap.burst(0, &a, &b, 0, 60, &packets(&a, &b, 1, 60));
    let _fork = fork();
    // SAFETY: the child calls `write`, which uses its own files and memory, and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let n = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| write(9))).unwrap_or(0);
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(n == 0)) };
    }
    let each: Vec<u64> = std::thread::scope(|s| {
        let threads: Vec<_> = (1..4).map(|who| s.spawn(move || write(who))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert_eq!(status, 0);
    let frames = read(&file);
    assert_eq!(frames.len() as u64, 1 + each[0] * 4);
    for who in [1, 2, 3, 9] {
        let times: Vec<u64> = frames
            .iter()
            .filter(|(_, f)| f[ETHERNET_LEN + 12..ETHERNET_LEN + 16] == [10, 1, 1, who])
            .map(|(t, _)| *t)
            .collect();
        assert_eq!(times.len() as u64, each[0], "{who}");
        assert!(times.is_sorted(), "{who}");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn only_captures_without_writers_and_not_begun_here_are_replaced() {
    let file = path("earlier");
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    let one = |r: &mut Rig| r.pcap.burst(0, &a, &b, 0, 60, &packets(&a, &b, 1, 60));
    let counted = |file: &std::path::Path| read(file).len();
    // Another process left a capture.
    let bytes = {
        let other = path("left");
        let mut r = open(&other, MEM_MIN).unwrap();
        one(&mut r);
        let bytes = std::fs::read(&other).unwrap();
        std::fs::remove_file(&other).unwrap();
        bytes
    };
    std::fs::write(&file, &bytes).unwrap();
    let mut r = open_as(&file, Earlier::Keep, MEM_MIN).unwrap();
    one(&mut r);
    assert_eq!(counted(&file), 2, "kept");
    drop(r);
    let again = path("again");
    std::fs::write(&again, &bytes).unwrap();
    let mut r = open(&again, MEM_MIN).unwrap();
    assert_eq!(counted(&again), 0, "replaced");
    one(&mut r);
    let mut beside = open(&again, MEM_MIN).unwrap();
    one(&mut beside);
    assert_eq!(counted(&again), 2, "continued while it is written");
    drop((r, beside));
    let mut r = open(&again, MEM_MIN).unwrap();
    one(&mut r);
    assert_eq!(counted(&again), 3, "continued by the process that began it");
    drop(r);
    // Another file may have the inode of one that this process began and removed.
    for n in 0..8 {
        let other = path("inode");
        drop(open(&other, MEM_MIN).unwrap());
        std::fs::remove_file(&other).unwrap();
        std::fs::write(&other, &bytes).unwrap();
        drop(open(&other, MEM_MIN).unwrap());
        assert_eq!(counted(&other), 0, "replaced, in round {n}");
        std::fs::remove_file(&other).unwrap();
    }
    // A foreign file is not appended to, but may be replaced. The wait for a lock that another
    // process keeps ends.
    let foreign = path("foreign");
    std::fs::write(&foreign, b"something else, and long enough").unwrap();
    assert!(matches!(open_as(&foreign, Earlier::Keep, MEM_MIN), Err(Error::Invalid)));
    assert_eq!(std::fs::read(&foreign).unwrap(), b"something else, and long enough");
    let stranger = std::fs::File::open(&foreign).unwrap();
    stranger.lock().unwrap();
    assert!(matches!(open(&foreign, MEM_MIN), Err(Error::Busy)));
    assert_eq!(std::fs::read(&foreign).unwrap(), b"something else, and long enough");
    drop(stranger);
    // A child that another test has just forked holds the file's description, and so its lock,
    // until it execs.
    let end = deadline(60);
    let mut r = loop {
        match open(&foreign, MEM_MIN) {
            Err(Error::Busy) => assert!(Instant::now() < end, "the lock stays"),
            other => break other.unwrap(),
        }
    };
    one(&mut r);
    assert_eq!(counted(&foreign), 1);
    for file in [file, again, foreign] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_full_disk_stops_the_tee_and_is_counted() {
    // The file header itself fails on /dev/full.
    assert!(matches!(open("/dev/full".as_ref(), MEM_MIN), Err(Error::Os(libc::ENOSPC))));
    let mut r = open("/dev/null".as_ref(), MEM_MIN).unwrap();
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    // The same descriptor now leads to /dev/full, as when a disk fills up.
    let full = CString::new("/dev/full").unwrap();
    // SAFETY: opens and duplicates descriptors of this test only.
    unsafe {
        let fd = libc::open(full.as_ptr(), libc::O_WRONLY | libc::O_CLOEXEC);
        libc::dup3(fd, r.pcap.fd.raw(), libc::O_CLOEXEC);
        libc::close(fd);
    }
    for k in 0..100 {
        r.pcap.burst(k, &a, &b, 0, 100, &packets(&a, &b, 1, 100));
    }
    r.pcap.flush();
    assert_eq!(r.pcap.counts(), (0, 100));
    assert_eq!(r.pcap.failure(), Some(Error::Os(libc::ENOSPC)));
}

#[test]
fn a_file_that_cannot_grow_ends_with_a_whole_record() {
    // A child with a limit on file sizes; SIGXFSZ ignored as servers do.
    let file = path("limit");
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    let data = packets(&a, &b, 1, 100);
    let mut r = open(&file, MEM_MIN).unwrap();
    let _fork = fork();
    // SAFETY: the child sets its own limits, writes by plain system calls and leaves by _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let limit = libc::rlimit { rlim_cur: 10_000, rlim_max: 10_000 };
        // SAFETY: as above.
        unsafe {
            libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
            libc::setrlimit(libc::RLIMIT_FSIZE, &limit);
        }
        for k in 0..200 {
            r.pcap.burst(k, &a, &b, 0, 100, &data);
        }
        r.pcap.flush();
        let (frames, lost) = r.pcap.counts();
        let good = frames > 0
            && lost > 0
            && frames + lost == 200
            && r.pcap.failure() == Some(Error::Os(libc::EFBIG));
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(pid, &mut status, 0) };
    assert_eq!(status, 0);
    assert!(!read(&file).is_empty());
    drop(r);
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn bad_paths_and_memory_are_refused() {
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    assert!(matches!(open("/nonexistent/x".as_ref(), MEM_MIN), Err(Error::Os(libc::ENOENT))));
    assert!(open("/tmp".as_ref(), MEM_MIN).is_err());
    assert!(matches!(open("/dev/null".as_ref(), MEM_MIN - 1), Err(Error::NoMemory)));
    let fifo = path("fifo");
    let name = CString::new(fifo.to_str().unwrap()).unwrap();
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(matches!(open(&fifo, MEM_MIN), Err(Error::Unsupported)));
    std::fs::remove_file(&fifo).unwrap();
    // More than a datagram.
    let mut r = open("/dev/null".as_ref(), MEM_MIN).unwrap();
    r.pcap.frame(0, &a, &b, 0, &vec![0; 70_000]);
    r.pcap.frame(0, &a, &b, 0, &[]);
    r.pcap.burst(0, &a, &b, 0, 0, &[1, 2]);
    r.pcap.flush();
    assert_eq!(r.pcap.counts(), (3, 1));
}
