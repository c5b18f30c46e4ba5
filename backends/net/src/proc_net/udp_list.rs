//! The UDP sockets of this network namespace, from the kernel's lists.

use crate::addr::Endpoint;
use crate::sys::Fd;
use core::ffi::CStr;

/// The kernel's list of IPv4 sockets.
pub(super) const V4: &CStr = c"/proc/thread-self/net/udp";
/// Of IPv6 sockets.
pub(super) const V6: &CStr = c"/proc/thread-self/net/udp6";

/// Longest line that is looked at; the kernel's have 128 bytes for IPv4 and some 170 for IPv6.
const LINE: usize = 512;
/// Most bytes that are read, so that a host with a hundred thousand sockets costs milliseconds, not
/// seconds.
const MOST: usize = 16 << 20;

/// A socket of the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Socket {
    /// The address that it is bound to.
    ip: [u8; 16],
    pub(super) port: u16,
    /// The address and port whose packets alone it receives; port 0: it is not connected.
    remote: ([u8; 16], u16),
    /// Bytes that were not read, with the kernel's overhead.
    pub(super) unread: u64,
    /// Its user.
    pub(super) user: u32,
}

impl Socket {
    /// Whether it is bound to an address and port, or to that port of all addresses.
    pub(super) fn has(&self, at: &Endpoint) -> bool {
        let everywhere = self.ip == [0; 16] || self.ip[10..] == [0xff, 0xff, 0, 0, 0, 0];
        self.port == at.port && (self.ip == at.ip || everywhere)
    }

    /// Whether it receives packets of one peer only.
    pub(super) fn is_connected(&self) -> bool {
        self.remote.1 != 0
    }

    /// Whether it is bound to an address, and connected to an address and port.
    pub(super) fn leads(&self, from: &Endpoint, to: &Endpoint) -> bool {
        self.ip == from.ip && self.is_connected() && self.remote == (to.ip, to.port)
    }
}

/// Passes each socket of a list to `f`; none if procfs is not readable. No allocation.
pub(super) fn each(list: &CStr, mut f: impl FnMut(&Socket)) {
    // SAFETY: a C string; no other pointers.
    let Ok(fd) =
        Fd::from_call(unsafe { libc::open(list.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) })
    else {
        return;
    };
    let (mut line, mut len) = ([0u8; LINE], 0);
    let (mut piece, mut total) = ([0u8; 4096], 0);
    while total < MOST {
        // SAFETY: room for as many bytes.
        let n = unsafe { libc::read(fd.raw(), piece.as_mut_ptr().cast(), piece.len()) };
        let Some(n) = usize::try_from(n).ok().filter(|&n| n > 0) else { return };
        total += n;
        for &b in piece.iter().take(n) {
            if b == b'\n' {
                if let Some(socket) = core::str::from_utf8(&line[..len]).ok().and_then(socket) {
                    f(&socket);
                }
                len = 0;
            } else if len < LINE {
                line[len] = b;
                len += 1;
            }
        }
    }
}

/// A line: `sl local remote st tx:rx tr:when retrnsmt uid ...`.
fn socket(line: &str) -> Option<Socket> {
    let mut words = line.split_ascii_whitespace().skip(1);
    let (local, remote) = (words.next()?, words.next()?);
    let (ip, port) = address(local)?;
    let (_, unread) = words.nth(1)?.split_once(':')?;
    let unread = u64::from_str_radix(unread, 16).ok()?;
    let user = words.nth(2)?.parse().ok()?;
    Some(Socket { ip, port, remote: address(remote)?, unread, user })
}

/// Reads an address of the list: words of 32 bits in the machine's byte order, then the port.
fn address(text: &str) -> Option<([u8; 16], u16)> {
    let (ip, port) = text.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let mut bytes = [0; 16];
    if ip.len() == 8 {
        bytes[10..12].fill(0xff);
        bytes[12..].copy_from_slice(&word(0)?);
    } else {
        for (to, at) in bytes.chunks_exact_mut(4).zip([0, 8, 16, 24]) {
            to.copy_from_slice(&word(at)?);
        }
    }
    Some((bytes, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_lines_are_skipped() {
        for line in [
            "",
            "  sl  local_address rem_address   st",
            "1: 00:1 2",
            "1: 0100007F:zz 0 0 0 0 0 0",
            "1: 0100007F:12B7 0 0 0 0 0 x",
        ] {
            assert_eq!(socket(line), None, "{line}");
        }
        let line = " 12: 0100007F:12B7 00000000:0000 07 00000000:00000300 \
                    00:00000000 00000000  1000        0 1 2";
        let of = Endpoint::v4([127, 0, 0, 1], 4791);
        let remote = (Endpoint::v4([0; 4], 0).ip, 0);
        assert_eq!(
            socket(line),
            Some(Socket { ip: of.ip, port: 4791, remote, unread: 0x300, user: 1000 })
        );
        assert!(socket(line).is_some_and(|s| !s.is_connected()));
        assert!(socket(line).is_some_and(|s| s.has(&of) && !s.has(&Endpoint { port: 4792, ..of })));
        let peer = line.replace("00000000:0000", "0200007F:12B7");
        let to = Endpoint::v4([127, 0, 0, 2], 4791);
        assert!(socket(&peer).is_some_and(|s| s.is_connected() && s.leads(&of, &to)));
        for (from, to) in [(of, of), (to, to), (of, Endpoint { port: 4792, ..to })] {
            assert!(socket(&peer).is_some_and(|s| !s.leads(&from, &to)), "{from:?} to {to:?}");
        }
        for n in 0..line.len() {
            let _ = socket(&line[..n]);
            let mut bad = line.as_bytes().to_vec();
            bad[n] = (bad[n].wrapping_add(0x51)) & 0x7f;
            let _ = socket(core::str::from_utf8(&bad).unwrap());
        }
    }
}
