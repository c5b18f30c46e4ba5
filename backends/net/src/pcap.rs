//! Captures a port's packets as Ethernet/IP/UDP frames, for Wireshark.
//!
//! Classic pcap with nanosecond times. The port does not see the lower headers, so the capture
//! makes them up: MAC addresses from the ends of the IP addresses, TTL 64, DF set. With the right
//! identification, every field that the ICRC covers is as on the wire. A capture never harms the
//! traffic: on a full or failing disk it stops, counts the lost frames and prints an error.
//!
//! Each burst is in the file before it is sent or handled, so a capture is complete however the
//! process ends. A record is written whole, at the end of the file, by one write, so several
//! devices and processes may share a file. A writer holds a shared lock on the file; only a file
//! without a lock is begun anew.

use crate::addr::Endpoint;
use crate::error_stream;
use crate::signals::without_signals;
use crate::sys::{any_ready, check, errno, stat, statx, Fd};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::refuse;
use gdrcore_core::wire::ip::{emit_frame_headers, ETHERNET_LEN};
use std::ffi::CStr;
use std::os::fd::RawFd;
use std::sync::Mutex;
use std::time::Duration;

/// The beginning of a file: classic pcap, version 2.4, in the byte order of this machine; times in
/// nanoseconds; whole Ethernet frames.
fn file_header() -> [u8; 24] {
    let mut b = [0; 24];
    b[..4].copy_from_slice(&0xA1B2_3C4Du32.to_ne_bytes());
    b[4..6].copy_from_slice(&2u16.to_ne_bytes());
    b[6..8].copy_from_slice(&4u16.to_ne_bytes());
    // The longest record that readers of the format accept, and the link type of Ethernet.
    b[16..20].copy_from_slice(&(256u32 << 10).to_ne_bytes());
    b[20..].copy_from_slice(&1u32.to_ne_bytes());
    b
}

/// The head of the record of a frame of `bytes` bytes, seen `time_ns` after the epoch. The format's
/// seconds end in 2106.
fn record_header(time_ns: u64, bytes: u32) -> [u8; 16] {
    let (seconds, rest) = ((time_ns / 1_000_000_000) as u32, (time_ns % 1_000_000_000) as u32);
    let mut b = [0; 16];
    for (to, word) in b.chunks_exact_mut(4).zip([seconds, rest, bytes, bytes]) {
        to.copy_from_slice(&word.to_ne_bytes());
    }
    b
}

/// Least bytes of memory for [`Pcap::open`].
pub const MEM_MIN: usize = 4096;

/// Ethernet, IPv6 and UDP.
const FRAME_HEADER: usize = ETHERNET_LEN + 40 + 8;

/// An open capture file with its write buffer. One thread at a time.
#[derive(Debug)]
pub struct Pcap {
    fd: Fd,
    buffer: *mut u8,
    capacity: usize,
    used: usize,
    /// Frames in the buffer.
    buffered: u64,
    /// Frames in the file.
    written: u64,
    lost: u64,
    /// Errno that stopped the capture, 0 while it runs.
    failure: i32,
    /// From CLOCK_MONOTONIC to the epoch.
    wall_offset_ns: u64,
}

// SAFETY: the buffer belongs to this value alone and is tied to no thread.
unsafe impl Send for Pcap {}

/// Identity of a file: device, inode and, where the file system knows it, the nanosecond of its
/// creation, because inodes are used again.
type FileId = (u64, u64, u64);

/// Captures that this process has begun, which its other devices continue. Further ones are not
/// remembered: the next device begins such a file anew if no other writer has it.
static BEGUN: Mutex<[FileId; 64]> = Mutex::new([(0, 0, 0); 64]);

/// Attempts to lock a file, a millisecond apart: another writer holds the lock while it writes the
/// header.
const TRIES: u32 = 2000;

/// Treatment of an existing capture without a writer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Earlier {
    /// Begins it anew, unless this process has begun it.
    Replace,
    /// Appends to it.
    Keep,
}

/// Exchanges the lock of the file for another kind. False: another writer's lock forbids it, and
/// the former lock may be lost.
///
/// # Errors
/// The file system has no locks.
fn lock(fd: RawFd, how: i32) -> Result<bool> {
    // SAFETY: takes no pointers.
    match check(unsafe { libc::flock(fd, how | libc::LOCK_NB) }) {
        Ok(_) => Ok(true),
        Err(Error::Again | Error::Os(libc::EINTR)) => Ok(false),
        Err(e) => Err(e),
    }
}

/// When a file was made, in nanoseconds since the epoch; 0: unknown.
fn birth(fd: RawFd) -> u64 {
    statx(fd, 0, libc::STATX_BTIME).map_or(0, |x| {
        (x.stx_btime.tv_sec as u64)
            .wrapping_mul(1_000_000_000)
            .wrapping_add(u64::from(x.stx_btime.tv_nsec))
    })
}

/// Whether a file begins with our header. `None`: it is empty.
fn has_header(fd: RawFd) -> Result<Option<bool>> {
    let (mut found, wanted) = ([0u8; 24], file_header());
    // SAFETY: the buffer has room for as many bytes as are asked for.
    let n = check(unsafe { libc::pread(fd, found.as_mut_ptr().cast(), found.len(), 0) } as i32)?;
    Ok((n > 0).then_some(n as usize == found.len() && found == wanted))
}

fn write_header(fd: RawFd, replace: bool) -> Result<()> {
    if replace {
        // SAFETY: takes no pointers.
        check(unsafe { libc::ftruncate(fd, 0) })?;
    }
    if has_header(fd)?.is_some() {
        return Ok(());
    }
    let header = file_header();
    // SAFETY: the buffer lives through the call.
    let write = || unsafe { libc::write(fd, header.as_ptr().cast(), header.len()) } as i32;
    let n = check(without_signals(write))?;
    if n as usize == header.len() {
        Ok(())
    } else {
        Err(Error::Os(libc::ENOSPC))
    }
}

/// Empties a file without a writer and writes its header, or finds its header. On return this
/// writer holds a lock on the file.
fn begin(fd: RawFd, id: FileId, earlier: Earlier) -> Result<()> {
    let mut replace = earlier == Earlier::Replace;
    for _ in 0..TRIES {
        // No wait here: in the child of a fork the mutex may be locked for good.
        let Ok(mut ours) = BEGUN.try_lock() else {
            std::thread::sleep(Duration::from_millis(1));
            continue;
        };
        replace &= !ours.contains(&id);
        // On a file system without locks the last writer to begin wins.
        if lock(fd, libc::LOCK_EX).unwrap_or(true) {
            write_header(fd, std::mem::take(&mut replace))?;
        }
        // The writer of the header may still hold the exclusive lock, or may have emptied the file
        // again.
        if lock(fd, libc::LOCK_SH).unwrap_or(true) {
            match has_header(fd)? {
                Some(true) => {
                    if let Some(free) = ours.iter_mut().find(|x| **x == id || **x == (0, 0, 0)) {
                        *free = id;
                    }
                    return Ok(());
                }
                Some(false) => {
                    return Err(refuse!(
                        Invalid,
                        "pcap_path: the file exists and is no capture of ours"
                    ))
                }
                None => {}
            }
        }
        drop(ours);
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(refuse!(Busy, "pcap_path: another program keeps the file locked"))
}

/// Prints that the capture has ended, if standard error has room: the data path waits for no
/// reader.
#[cold]
fn print_end(fd: RawFd, errno: i32) {
    let path = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    let path = path.unwrap_or_else(|_| "file".into());
    let (path, reason) = (path.display(), std::io::Error::from_raw_os_error(errno));
    let line = format!("gdrcore: the capture {path} ends here ({reason}); traffic continues\n");
    if any_ready([(libc::STDERR_FILENO, libc::POLLOUT)]) {
        let _ = without_signals(|| error_stream::write(libc::STDERR_FILENO, &line, None));
    }
}

impl Pcap {
    /// Opens a capture file. A file with other writers, or one that this process has begun, is
    /// continued.
    ///
    /// # Errors
    /// `NoMemory`: `len` is below [`MEM_MIN`]. `Unsupported`: the path is a pipe or socket, whose
    /// reader could block or kill the program. `Invalid`: the file to be continued is not a capture
    /// of ours. `Busy`: another process keeps the file locked. Errors of open(2) and write(2).
    ///
    /// # Safety
    /// `mem` is `len` writable bytes that nothing else uses while the capture lives.
    pub unsafe fn open(path: &CStr, earlier: Earlier, mem: *mut u8, len: usize) -> Result<Pcap> {
        if mem.is_null() || len < MEM_MIN {
            return Err(Error::NoMemory);
        }
        let append =
            libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the path is a C string.
        let open =
            |access| Fd::from_call(unsafe { libc::open(path.as_ptr(), append | access, 0o644) });
        let fd = match open(libc::O_RDWR) {
            // With O_RDWR: a socket, or a device without a driver.
            Err(Error::Os(libc::ENXIO)) => {
                return Err(refuse!(Unsupported, "pcap_path: this pipe has no reader"))
            }
            other => other?,
        };
        let st = stat(fd.raw())?;
        let is_file = match st.st_mode & libc::S_IFMT {
            libc::S_IFREG => true,
            libc::S_IFCHR => false,
            _ => return Err(refuse!(Unsupported, "pcap_path: neither a file nor a pipe")),
        };
        if is_file {
            begin(fd.raw(), (st.st_dev, st.st_ino, birth(fd.raw())), earlier)?;
        }
        let wall_offset_ns = crate::clock::wall_ns().wrapping_sub(crate::clock::now_ns());
        // SAFETY: `len` writable bytes by the contract; initialised so that slices of them are
        // sound.
        unsafe { mem.write_bytes(0, len) };
        let mut p = Pcap {
            fd,
            buffer: mem,
            capacity: len,
            used: 0,
            buffered: 0,
            written: 0,
            lost: 0,
            failure: 0,
            wall_offset_ns,
        };
        if !is_file {
            p.append(&[&file_header()], 0);
            p.flush();
        }
        match p.failure {
            0 => Ok(p),
            e => Err(crate::sys::error_of(e)),
        }
    }

    /// Puts one packet into the buffer. `udp_payload` is BTH to ICRC, `ident` the IPv4
    /// identification on the wire, `now_ns` of CLOCK_MONOTONIC. Cost: a copy; one write(2) per
    /// buffer.
    pub fn frame(
        &mut self,
        now_ns: u64,
        src: &Endpoint,
        dst: &Endpoint,
        ident: u16,
        udp_payload: &[u8],
    ) {
        if self.failure != 0 {
            self.lost += 1;
            return;
        }
        let frame = &mut [0u8; FRAME_HEADER];
        let headers = emit_frame_headers(
            &src.ip,
            &dst.ip,
            src.port,
            dst.port,
            ident,
            udp_payload.len(),
            frame,
        )
        .unwrap_or(0);
        if headers == 0 {
            // Longer than any datagram; no port carries it.
            self.lost += 1;
            return;
        }
        if !(src.is_v4() && dst.is_v4()) {
            // IPv6 forbids a zero UDP checksum, and readers complain of it. The ICRC does not cover
            // the field.
            let sum = udp6_checksum(&frame[ETHERNET_LEN..headers], udp_payload);
            frame[headers - 2..headers].copy_from_slice(&sum.to_be_bytes());
        }
        let wall = now_ns.wrapping_add(self.wall_offset_ns);
        // A frame is below 64 KiB and its headers.
        let bytes = (headers + udp_payload.len()) as u32;
        self.append(&[&record_header(wall, bytes), &frame[..headers], udp_payload], 1);
    }

    /// Writes a burst to the file, by one write(2) if it fits into the buffer: packets of `seg`
    /// bytes, of which the last may be shorter, with identifications from `ident` on.
    pub fn burst(
        &mut self,
        now_ns: u64,
        src: &Endpoint,
        dst: &Endpoint,
        ident: u16,
        seg: u16,
        data: &[u8],
    ) {
        for (k, packet) in data.chunks(usize::from(seg).max(1)).enumerate() {
            self.frame(now_ns, src, dst, ident.wrapping_add(k as u16), packet);
        }
        self.flush();
    }

    /// Writes the buffer's records to the file.
    pub fn flush(&mut self) {
        if self.failure == 0 && self.used > 0 {
            let iov = [libc::iovec { iov_base: self.buffer.cast(), iov_len: self.used }];
            self.write(iov);
        }
        self.used = 0;
    }

    /// Frames that reached the file, and frames that did not.
    pub fn counts(&self) -> (u64, u64) {
        (self.written, self.lost)
    }

    /// The error that stopped the capture, if any.
    pub fn failure(&self) -> Option<Error> {
        (self.failure != 0).then(|| crate::sys::error_of(self.failure))
    }

    /// Puts the parts of one record, with so many frames, into the buffer. A record larger than the
    /// buffer is written directly.
    fn append(&mut self, parts: &[&[u8]], frames: u64) {
        let bytes: usize = parts.iter().map(|p| p.len()).sum();
        if self.used + bytes > self.capacity {
            self.flush();
        }
        if self.failure != 0 {
            self.lost += frames;
            return;
        }
        self.buffered += frames;
        if bytes > self.capacity {
            let part = |i: usize| {
                let p = parts.get(i).copied().unwrap_or(&[]);
                libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() }
            };
            self.write([part(0), part(1), part(2)]);
            return;
        }
        for p in parts {
            // SAFETY: `used + bytes <= capacity` was established above; the caller's slices are not
            // our buffer.
            unsafe {
                core::ptr::copy_nonoverlapping(p.as_ptr(), self.buffer.add(self.used), p.len())
            };
            self.used += p.len();
        }
    }

    /// Writes all parts. If that fails, stops the capture and cuts the file back to whole records.
    fn write<const N: usize>(&mut self, mut iov: [libc::iovec; N]) {
        let frames = std::mem::take(&mut self.buffered);
        let mut done = 0u64;
        let mut at = 0;
        while at < N {
            if iov[at].iov_len == 0 {
                at += 1;
                continue;
            }
            // SAFETY: the vectors from `at` on name live memory; writing only reads it.
            let write = || unsafe { libc::writev(self.fd.raw(), &iov[at], (N - at) as i32) };
            let rc = without_signals(write);
            let Ok(mut n) = usize::try_from(rc) else {
                if errno() == libc::EINTR {
                    continue;
                }
                self.stop(errno(), done, frames);
                self.lost += frames;
                return;
            };
            done += n as u64;
            while n > 0 {
                let take = n.min(iov[at].iov_len);
                // Stays inside the vector or ends at its end.
                iov[at].iov_base = iov[at].iov_base.wrapping_byte_add(take);
                iov[at].iov_len -= take;
                n -= take;
                if iov[at].iov_len == 0 {
                    at += 1;
                }
            }
        }
        self.written += frames;
    }

    /// Ends the capture after a write of `frames` frames failed. The write's first `begun` bytes
    /// have reached the file; they are cut off, because a record may be torn.
    #[cold]
    fn stop(&mut self, errno: i32, begun: u64, frames: u64) {
        self.failure = errno;
        // Our last write has left the position behind its bytes. If another writer's records follow
        // there, nothing is cut. A device has no length to cut.
        // SAFETY: takes no pointers.
        unsafe {
            let at = libc::lseek(self.fd.raw(), 0, libc::SEEK_CUR);
            let end = libc::lseek(self.fd.raw(), 0, libc::SEEK_END);
            if begun > 0 && at == end {
                libc::ftruncate(self.fd.raw(), at.saturating_sub_unsigned(begun));
            }
        }
        if frames > 0 {
            print_end(self.fd.raw(), errno);
        }
    }
}

impl Drop for Pcap {
    fn drop(&mut self) {
        self.flush();
    }
}

/// UDP checksum over an IPv6 header, the UDP header behind it (its checksum zero) and the payload.
fn udp6_checksum(headers: &[u8], payload: &[u8]) -> u16 {
    // Source, destination and the UDP header, then the pseudo header's length and protocol. All
    // even in length, so that the sums may be added.
    let mut sum = u64::from(libc::IPPROTO_UDP as u16) + 8 + payload.len() as u64;
    for part in [headers.get(8..).unwrap_or(&[]), payload] {
        for pair in part.chunks(2) {
            sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        }
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    match !(sum as u16) {
        0 => 0xffff,
        sum => sum,
    }
}

#[cfg(test)]
mod tests;
