//! Descriptors that a tenant sends as memory.

use super::*;
use gdrcore_net::map::Map;
use gdrcore_testkit::skip;
use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::OpenOptionsExt;

const PAGE: u64 = 4096;

/// A file of a FUSE server that never answers, and the server.
fn silent_file() -> std::io::Result<(File, File)> {
    let server = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let dir = std::env::temp_dir().join(format!("gdrc-silent-{}", std::process::id()));
    fs::write(&dir, "")?;
    let at = std::ffi::CString::new(dir.as_os_str().as_encoded_bytes())?;
    let options = format!("fd={},rootmode=100000,user_id=0,group_id=0\0", server.as_raw_fd());
    // A thread's own namespace: nobody else sees the mount.
    let mount = move || {
        let done = |rc| if rc == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) };
        let null = std::ptr::null();
        // SAFETY: all strings end with a zero and live through the calls.
        unsafe {
            done(libc::unshare(libc::CLONE_NEWNS))?;
            let private = libc::MS_REC | libc::MS_PRIVATE;
            done(libc::mount(null, c"/".as_ptr(), null, private, null.cast()))?;
            let kind = c"fuse".as_ptr();
            done(libc::mount(kind, at.as_ptr(), kind, 0, options.as_ptr().cast()))?;
        }
        OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(at.to_str().unwrap())
    };
    let file = std::thread::spawn(mount).join().unwrap();
    fs::remove_file(dir)?;
    Ok((file?, server))
}

/// A region of a sealed memfd of four pages, which is there.
fn buffer(tenant: &mut ByHand) -> (OwnedFd, NewRegion) {
    let pd = tenant.ask::<call::PdAlloc>(&());
    let (map, fd) = Map::with_file(c"buffer", 4 * PAGE as usize).unwrap();
    // SAFETY: all of it, and nobody reads it.
    unsafe { map.as_ptr().write_bytes(1, map.len()) };
    let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
    let (addr, iova, pieces) = (PAGE + 64, PAGE + 64, vec![(PAGE, 2 * PAGE)]);
    (fd, NewRegion { pd, addr, length: PAGE, iova, access, pieces })
}

#[test]
fn a_descriptor_that_is_no_buffer_is_refused() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let (fd, region) = buffer(&mut tenant);
    let at = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let open = |flags: i32, path: &str| {
        OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap().into()
    };
    // SAFETY: no pointers; a new descriptor, if it is one.
    let event = unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, 0)) };
    let (pipe, _writer) = std::io::pipe().unwrap();
    let read_only: OwnedFd = open(0, &at);
    let cases: [(&str, OwnedFd); 6] = [
        ("a pipe", pipe.into()),
        ("an eventfd", event),
        ("a folder", open(0, "/")),
        ("a path to memory", open(libc::O_PATH, &at)),
        ("a device", open(0, "/dev/null")),
        ("a file", open(0, "/proc/self/exe")),
    ];
    for (what, fd) in &cases {
        let dma_buf = tenant.try_ask_with::<call::DmaBufMrReg>(&region, Some(fd.as_fd()));
        assert_eq!(dma_buf.err(), Some(Error::Access), "{what}");
        let file = tenant.try_ask_with::<call::MrReg>(&region, Some(fd.as_fd()));
        assert_eq!(file.err(), Some(Error::Access), "{what} as a file");
    }
    let mut by_reader = |access| {
        let region = NewRegion { access, ..region.clone() };
        tenant.try_ask_with::<call::DmaBufMrReg>(&region, Some(read_only.as_fd())).err()
    };
    assert_eq!(by_reader(region.access), Some(Error::Access), "it may not be written");
    assert_eq!(by_reader(0), None);
    tenant.try_ask_with::<call::DmaBufMrReg>(&region, Some(fd.as_fd())).unwrap();
}

#[test]
fn a_range_that_is_not_in_the_buffer_is_refused() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let (fd, good) = buffer(&mut tenant);
    let last = u64::MAX - PAGE + 1;
    type Spoil = fn(NewRegion, u64) -> NewRegion;
    let of_pieces: [(&str, (u64, u64)); 7] = [
        ("beyond its end", (4 * PAGE, 2 * PAGE)),
        ("more than it has", (3 * PAGE, 2 * PAGE)),
        ("no offset of a page", (64, 2 * PAGE)),
        ("no whole pages", (PAGE, PAGE + 64)),
        ("nothing", (PAGE, 0)),
        ("an offset that wraps", (last, 2 * PAGE)),
        ("a length that wraps", (2 * PAGE, last)),
    ];
    let of_regions: [(&str, Spoil); 4] = [
        ("more than its pieces", |r, _| NewRegion { length: 2 * PAGE - 63, ..r }),
        ("a length that wraps the address", |r, _| NewRegion { length: u64::MAX, ..r }),
        ("an iova that wraps", |r, last| NewRegion { iova: last + 64, ..r }),
        ("unknown flags", |r, _| NewRegion { access: 1 << 30, ..r }),
    ];
    let pieces =
        of_pieces.map(|(what, piece)| (what, NewRegion { pieces: vec![piece], ..good.clone() }));
    let regions = of_regions.map(|(what, spoil)| (what, spoil(good.clone(), last)));
    for (what, region) in pieces.into_iter().chain(regions) {
        let refused = tenant.try_ask_with::<call::DmaBufMrReg>(&region, Some(fd.as_fd()));
        assert_eq!(refused.err(), Some(Error::Invalid), "{what}");
    }
    let stranger = NewRegion { pd: good.pd + 1, ..good.clone() };
    let refused = tenant.try_ask_with::<call::DmaBufMrReg>(&stranger, Some(fd.as_fd()));
    assert_eq!(refused.err(), Some(Error::StaleHandle));
    let whole = NewRegion { length: 2 * PAGE - 64, ..good };
    let ((mr, _), _) = tenant.try_ask_with::<call::DmaBufMrReg>(&whole, Some(fd.as_fd())).unwrap();
    tenant.ask::<call::MrDereg>(&mr);
}

#[test]
fn no_server_of_a_file_is_asked() {
    let running = Running::start();
    let mut tenant = ByHand::new(&running, 1);
    let (file, _server) = match silent_file() {
        Ok(made) => made,
        Err(why) => skip!("no mount of FUSE: {why}"),
    };
    let (_, region) = buffer(&mut tenant);
    let refused = [
        tenant.try_ask_with::<call::DmaBufMrReg>(&region, Some(file.as_fd())).err(),
        tenant.try_ask_with::<call::MrReg>(&region, Some(file.as_fd())).err(),
        tenant.try_ask_with::<call::File>(&(), Some(file.as_fd())).err(),
    ];
    assert_eq!(refused, [Some(Error::Access); 3]);
}
