//! A tee that writes what a port carries as Ethernet/IP/UDP frames, for Wireshark.
//!
//! Classic pcap with nanosecond times. The frames are made up from what the port knows: MAC addresses from the ends
//! of the IP addresses, TTL 64, DF set. Everything that the ICRC covers is as on the wire, given the identification.
//! A tee never harms what it watches: where the disk is full or fails it stops, counts, and says so.

use crate::addr::Endpoint;
use crate::sys::{check, errno, Fd};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::wire::ip::{emit_frame_headers, ETHERNET_LEN};
use gdrcore_core::wire::pcap::{FileHeader, RECORD_HEADER_LEN};
use std::ffi::CStr;

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
    /// Bytes of whole records in the file.
    written: u64,
    /// Frames in the buffer.
    waiting: u64,
    frames: u64,
    lost: u64,
    /// What stopped the tee, 0 while it runs.
    failed: i32,
    /// From CLOCK_MONOTONIC to the epoch.
    wall_offset_ns: u64,
}

// SAFETY: the buffer belongs to this value alone and is tied to no thread.
unsafe impl Send for Pcap {}

impl Pcap {
    /// Creates or truncates the file and writes its header.
    ///
    /// # Errors
    /// `NoMemory`: `len` is below [`MEM_MIN`]. `Unsupported`: the path is a pipe or socket, whose reader could block
    /// or kill the program. Whatever open(2) or write(2) says.
    ///
    /// # Safety
    /// `mem` is `len` writable bytes that nobody else uses while the capture lives.
    pub unsafe fn open(path: &CStr, mem: *mut u8, len: usize) -> Result<Pcap> {
        if mem.is_null() || len < MEM_MIN {
            return Err(Error::NoMemory);
        }
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        // SAFETY: the path is a C string.
        let fd = match Fd::from_call(unsafe { libc::open(path.as_ptr(), flags, 0o644) }) {
            // A pipe without reader.
            Err(Error::Os(libc::ENXIO)) => return Err(Error::Unsupported),
            other => other?,
        };
        // SAFETY: stat is plain data for which zeroes are valid.
        let mut st: libc::stat = unsafe { core::mem::zeroed() };
        // SAFETY: `st` has room for the answer.
        check(unsafe { libc::fstat(fd.raw(), &mut st) })?;
        match st.st_mode & libc::S_IFMT {
            libc::S_IFREG => {
                // SAFETY: takes no pointers.
                check(unsafe { libc::ftruncate(fd.raw(), 0) })?;
            }
            libc::S_IFCHR => {}
            _ => return Err(Error::Unsupported),
        }
        let wall_offset_ns = crate::clock::wall_ns().wrapping_sub(crate::clock::now_ns());
        // SAFETY: `len` writable bytes by the caller's promise; initialised so that slices of it are sound.
        unsafe { mem.write_bytes(0, len) };
        let mut p = Pcap {
            fd,
            buffer: mem,
            capacity: len,
            used: 0,
            written: 0,
            waiting: 0,
            frames: 0,
            lost: 0,
            failed: 0,
            wall_offset_ns,
        };
        let mut header = [0u8; FileHeader::LEN];
        FileHeader::ethernet().emit(&mut header);
        p.append(&[&header]);
        p.flush();
        match p.failed {
            0 => Ok(p),
            e => Err(crate::sys::error_of(e)),
        }
    }

    /// Writes one packet: `udp_payload` is BTH to ICRC, `ident` the IPv4 identification that it has on the wire,
    /// `now_ns` of CLOCK_MONOTONIC. Cost: a copy; one write(2) per buffer.
    pub fn frame(&mut self, now_ns: u64, src: &Endpoint, dst: &Endpoint, ident: u16, udp_payload: &[u8]) {
        if self.failed != 0 {
            self.lost += 1;
            return;
        }
        let mut record = [0u8; RECORD_HEADER_LEN];
        let frame = &mut [0u8; FRAME_HEADER];
        let headers =
            emit_frame_headers(&src.ip, &dst.ip, src.port, dst.port, ident, udp_payload.len(), frame).unwrap_or(0);
        if headers == 0 {
            // Longer than any datagram; no port carries it.
            self.lost += 1;
            return;
        }
        if !(src.is_v4() && dst.is_v4()) {
            // IPv6 forbids a zero UDP checksum, and readers complain of it. The ICRC does not cover the field.
            let sum = udp6_checksum(&frame[ETHERNET_LEN..headers], udp_payload);
            frame[headers - 2..headers].copy_from_slice(&sum.to_be_bytes());
        }
        let wall = now_ns.wrapping_add(self.wall_offset_ns);
        // A frame is below 64 KiB and its headers.
        let bytes = (headers + udp_payload.len()) as u32;
        FileHeader::ethernet().emit_record(wall, bytes, bytes, &mut record);
        self.waiting += 1;
        self.append(&[&record, &frame[..headers], udp_payload]);
    }

    /// Writes the packets of a burst: each `seg` bytes, the last maybe shorter, with identifications from `ident` on.
    pub fn burst(&mut self, now_ns: u64, src: &Endpoint, dst: &Endpoint, ident: u16, seg: u16, data: &[u8]) {
        for (k, packet) in data.chunks(usize::from(seg).max(1)).enumerate() {
            self.frame(now_ns, src, dst, ident.wrapping_add(k as u16), packet);
        }
    }

    /// Writes what the buffer holds to the file.
    pub fn flush(&mut self) {
        if self.failed == 0 && self.used > 0 {
            let iov = [libc::iovec { iov_base: self.buffer.cast(), iov_len: self.used }];
            self.write(iov);
        }
        self.used = 0;
    }

    /// Frames that reached the file, and frames that did not.
    pub fn counts(&self) -> (u64, u64) {
        (self.frames, self.lost)
    }

    /// What stopped the tee, if anything did.
    pub fn failure(&self) -> Option<Error> {
        (self.failed != 0).then(|| crate::sys::error_of(self.failed))
    }

    /// Puts the parts of one record into the buffer; records larger than the buffer go out directly.
    fn append(&mut self, parts: &[&[u8]]) {
        let bytes: usize = parts.iter().map(|p| p.len()).sum();
        if self.used + bytes > self.capacity {
            // The frame at hand is not in the buffer yet.
            let at_hand = self.waiting.min(1);
            self.waiting -= at_hand;
            self.flush();
            self.waiting += at_hand;
        }
        if self.failed != 0 {
            self.lost += std::mem::take(&mut self.waiting);
            return;
        }
        if bytes > self.capacity {
            let part = |i: usize| {
                let p = parts.get(i).copied().unwrap_or(&[]);
                libc::iovec { iov_base: p.as_ptr().cast_mut().cast(), iov_len: p.len() }
            };
            self.write([part(0), part(1), part(2)]);
            return;
        }
        for p in parts {
            // SAFETY: `used + bytes <= capacity` was established above; the caller's slices are not our buffer.
            unsafe { core::ptr::copy_nonoverlapping(p.as_ptr(), self.buffer.add(self.used), p.len()) };
            self.used += p.len();
        }
    }

    /// Writes all parts, or stops the tee and cuts the file back to whole records.
    fn write<const N: usize>(&mut self, mut iov: [libc::iovec; N]) {
        let frames = std::mem::take(&mut self.waiting);
        let mut done = 0u64;
        let mut at = 0;
        while at < N {
            if iov[at].iov_len == 0 {
                at += 1;
                continue;
            }
            // SAFETY: the vectors from `at` on name live memory; writing only reads it.
            let rc = unsafe { libc::writev(self.fd.raw(), &iov[at], (N - at) as i32) };
            let Ok(mut n) = usize::try_from(rc) else {
                if errno() == libc::EINTR {
                    continue;
                }
                self.failed = errno();
                self.lost += frames;
                let whole = libc::off_t::try_from(self.written).unwrap_or(libc::off_t::MAX);
                // SAFETY: takes no pointers. Fails on devices, where there is nothing to cut.
                unsafe { libc::ftruncate(self.fd.raw(), whole) };
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
        self.written += done;
        self.frames += frames;
    }
}

impl Drop for Pcap {
    fn drop(&mut self) {
        self.flush();
    }
}

/// UDP checksum over an IPv6 header, the UDP header behind it (its checksum zero) and the payload.
fn udp6_checksum(headers: &[u8], payload: &[u8]) -> u16 {
    // Source, destination and the UDP header, then the pseudo header's length and protocol. All even in length, so
    // that the sums may be added.
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
