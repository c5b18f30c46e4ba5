//! Files that change while they are copied.

use super::*;
use std::fs::FileTimes;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// Bytes of the file: while it is copied, in pieces of 64 KiB, a writer has many turns.
const LEN: usize = 64 << 20;

/// Changes a file again and again while `meanwhile` runs.
fn beside<T>(mut change: impl FnMut(u64) + Send, meanwhile: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut n = 0;
            while !over.load(Ordering::Relaxed) {
                change(n);
                n += 1;
                // The copy needs the core as well.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let done = meanwhile();
        over.store(true, Ordering::Relaxed);
        done
    })
}

/// Writes the source, last changed an hour ago.
fn old_file(copy: &Copy) -> fs::File {
    copy.file(LEN);
    let file = fs::File::options().write(true).read(true).open(copy.from.join("data"));
    let file = file.expect("the source");
    let hour = Duration::from_secs(3600);
    file.set_times(FileTimes::new().set_modified(SystemTime::now() - hour)).expect("its time");
    file
}

/// Eight other bytes at another place each time.
fn rewrite(file: &fs::File, n: u64) {
    let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (LEN as u64 - 8);
    file.write_all_at(&n.to_le_bytes(), at).expect("a write");
}

/// The client's result while the file is changed again and again.
fn copied_beside(copy: &Copy, more: &[&str], change: impl FnMut(u64) + Send) -> Done {
    beside(change, || run(copy.client(more).args(["-s", "64k", "-n", "2"]), 120))
}

fn refused(copy: &Copy, done: &Done) {
    assert_eq!(done.code(), Some(1), "{done}");
    assert!(done.output.contains("not copied, because it changed meanwhile"), "{done}");
    assert!(copy.arrived().is_empty(), "a torn file");
    assert_eq!(copy.leftovers(), 0);
}

#[test]
fn a_file_that_is_written_meanwhile_does_not_arrive() {
    let copy = Copy::new("written", 81);
    let file = old_file(&copy);
    let server = Running::start(&mut copy.server(&["-1"]));
    let done = copied_beside(&copy, &[], |n| rewrite(&file, n));
    assert!(server.finish(LIMIT).ok());
    refused(&copy, &done);
}

#[test]
fn a_file_that_changes_is_copied_as_it_is_read_if_that_is_asked_for() {
    let copy = Copy::new("changing", 82);
    let file = old_file(&copy);
    let server = Running::start(&mut copy.server(&["-1"]));
    let done = copied_beside(&copy, &["--changing"], |n| rewrite(&file, n));
    assert!(server.finish(LIMIT).ok());
    assert!(done.ok(), "{done}");
    assert!(done.output.contains("it changed while it was copied"), "{done}");
    assert_eq!(fs::metadata(copy.to.join("data")).expect("the copy").len(), LEN as u64);
}

/// Who sets the time back cannot set back the ctime.
#[test]
fn a_file_whose_time_is_set_back_does_not_arrive() {
    let copy = Copy::new("set-back", 83);
    let file = old_file(&copy);
    let was = file.metadata().expect("metadata").modified().expect("a time");
    let server = Running::start(&mut copy.server(&["-1"]));
    let done = copied_beside(&copy, &[], |n| {
        rewrite(&file, n);
        file.set_times(FileTimes::new().set_modified(was)).expect("its time");
    });
    assert!(server.finish(LIMIT).ok());
    refused(&copy, &done);
}

/// A mapping of a file in memory changes without any change of its times; a second look finds it
/// where the file is young.
#[test]
fn a_young_file_that_changes_and_keeps_its_time_does_not_arrive() {
    let mut copy = Copy::new("mapped", 84);
    copy.from = PathBuf::from(format!("/dev/shm/gdrcore-copy-{}", std::process::id()));
    if fs::create_dir(&copy.from).is_err() {
        skip!("no /dev/shm here");
    }
    copy.file(LEN);
    let path = copy.from.join("data");
    let file = fs::File::options().read(true).write(true).open(&path).expect("the source");
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let fd = file.as_raw_fd();
    // SAFETY: a new mapping at an address of the kernel's choice.
    let map = unsafe { libc::mmap(std::ptr::null_mut(), LEN, prot, libc::MAP_SHARED, fd, 0) };
    assert_ne!(map, libc::MAP_FAILED);
    let map = map as usize;
    let write = |at: usize, byte: u8| {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(map + at);
        // SAFETY: inside the mapping, which lives until the end of the test. The copying process
        // only reads.
        unsafe { at.write_volatile(byte) };
    };
    // The first write to each page sets the file's time, and none that follows.
    (0..LEN).step_by(4096).for_each(|at| write(at, 1));
    // However long the programs take to start, it is young.
    let soon = SystemTime::now() + Duration::from_secs(3600);
    file.set_times(FileTimes::new().set_modified(soon)).expect("its time");
    let server = Running::start(&mut copy.server(&["-1"]));
    let done = copied_beside(&copy, &[], |n| {
        write((n as usize).wrapping_mul(0x9e37_79b9_7f4a_7c15) % LEN, n as u8);
    });
    let ended = server.finish(LIMIT).ok();
    let _ = fs::remove_dir_all(&copy.from);
    assert!(ended);
    refused(&copy, &done);
}

/// A file that is only touched arrives: its bytes are the same.
#[test]
fn a_file_whose_mode_changes_meanwhile_arrives() {
    let copy = Copy::new("touched", 85);
    let file = old_file(&copy);
    let server = Running::start(&mut copy.server(&["-1"]));
    let done = copied_beside(&copy, &[], |n| {
        let mode = if n % 2 == 0 { 0o600 } else { 0o640 };
        file.set_permissions(fs::Permissions::from_mode(mode)).expect("its mode");
    });
    assert!(server.finish(LIMIT).ok());
    assert!(done.ok(), "{done}");
    assert!(fs::read(copy.to.join("data")).expect("the copy") == pattern(LEN as u64, LEN));
}
