use super::*;
use crate::map::Map;
use gdrcore_core::wire::icrc::{check_exact, Flow};
use gdrcore_core::wire::pcap::{Record, Records};
use std::ffi::CString;
use std::path::PathBuf;
use std::process::Command;

struct Rig {
    pcap: Pcap,
    _mem: Map,
}

fn path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("gdrcore-{name}-{}.pcap", std::process::id()))
}

fn open(path: &std::path::Path, len: usize) -> Result<Rig> {
    let mem = Map::new(len.max(1)).unwrap();
    let name = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the map has at least `len` bytes and is dropped after the capture.
    let pcap = unsafe { Pcap::open(&name, mem.as_ptr(), len) }?;
    Ok(Rig { pcap, _mem: mem })
}

/// Frames of a capture: nanoseconds since the epoch, and bytes.
fn read(path: &std::path::Path) -> Vec<(u64, Vec<u8>)> {
    let file = std::fs::read(path).unwrap();
    let records = Records::of(&file).expect("a capture file");
    assert_eq!(*records.header(), FileHeader::ethernet());
    let take = |r: Record| {
        assert_eq!(r.wire_len as usize, r.frame.len());
        (r.time_ns, r.frame.to_vec())
    };
    records.map(|r| take(r.expect("whole records"))).collect()
}

fn packets(from: &Endpoint, to: &Endpoint, n: usize, seg: usize) -> Vec<u8> {
    let flow = Flow::from_gids(&from.ip, &to.ip, from.port, to.port);
    let mut data = vec![0u8; n * seg];
    for (k, p) in data.chunks_mut(seg).enumerate() {
        // UD SEND ONLY, so that a reader knows what follows.
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
    if let Ok(out) = Command::new("tshark").args(["-r", file.to_str().unwrap(), "-q", "-z", "expert,warn"]).output() {
        let text = String::from_utf8_lossy(&out.stdout);
        assert!(!text.contains("Malformed") && !text.contains("hecksum"), "{text}");
    } else {
        println!("skipped: tshark is not installed");
    }
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_reader_sees_whole_records_before_the_end() {
    let file = path("early");
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    let mut r = open(&file, MEM_MIN).unwrap();
    assert_eq!(read(&file).len(), 0, "the header is there at once");
    for k in 0..100 {
        r.pcap.burst(k, &a, &b, 0, 100, &packets(&a, &b, 1, 100));
        read(&file);
    }
    assert!(!read(&file).is_empty());
    drop(r);
    assert_eq!(read(&file).len(), 100, "closing flushes");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn a_full_disk_stops_the_tee_and_is_counted() {
    // The file header itself fails on /dev/full.
    assert!(matches!(open("/dev/full".as_ref(), MEM_MIN), Err(Error::Os(libc::ENOSPC))));
    let mut r = open("/dev/null".as_ref(), MEM_MIN).unwrap();
    let (a, b) = (Endpoint::v4([10, 1, 0, 1], 4791), Endpoint::v4([10, 1, 0, 2], 4791));
    // Let the same descriptor lead to /dev/full, as a disk that fills up does.
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
        let good = frames > 0 && lost > 0 && frames + lost == 200 && r.pcap.failure() == Some(Error::Os(libc::EFBIG));
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
