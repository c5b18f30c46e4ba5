//! Other processes of this host: the abstract Unix sockets under which they are found, and who may stand behind them.
//!
//! The kernel scopes an abstract name to the network namespace, as it does the address in it, gives it to one socket
//! at a time and takes it back with the process. So a bound name is also a claim that no crash leaves behind.
//!
//! | name | socket | held by |
//! |---|---|---|
//! | `@gdrc/<address>/<port>` | listens | the first device of the address: links of datagrams |
//! | `@gdrc/<address>/<port>/door/<block>` | listens | the owner of the QPN block: links |
//! | `@gdrc/<address>/<port>/block/<block>` | datagrams | the owner of the QPN block: the claim, and its mail |
//! | `@gdrc/<address>/<port>/service/<port space>/<port>` | datagrams | who listens for connections there |
//! | `@gdrc/<address>/<port>/life/<block>` | listens | the owner of the QPN block: connections to it end with it |

use crate::addr::Endpoint;
use crate::sys::{check, errno, Fd};
use gdrcore_core::error::Result;
use std::fmt::Arguments;
use std::io::Write;
use std::os::fd::RawFd;

/// An abstract socket name.
#[derive(Clone, Copy)]
pub(crate) struct Name {
    addr: libc::sockaddr_un,
    len: libc::socklen_t,
}

impl Name {
    /// The name of an address itself.
    pub(crate) fn address(at: &Endpoint) -> Name {
        Name::below(at, format_args!(""))
    }

    /// Where links to the owner of a QPN block are asked for.
    pub(crate) fn door(at: &Endpoint, block: u16) -> Name {
        Name::below(at, format_args!("/door/{block}"))
    }

    /// The claim and the mail of the owner of a QPN block.
    pub(crate) fn block(at: &Endpoint, block: u16) -> Name {
        Name::below(at, format_args!("/block/{block}"))
    }

    /// The mail of whoever listens for connections.
    pub(crate) fn service(at: &Endpoint, port_space: u16, port: u16) -> Name {
        Name::below(at, format_args!("/service/{port_space}/{port}"))
    }

    /// What ends when the owner of a QPN block does.
    pub(crate) fn life(at: &Endpoint, block: u16) -> Name {
        Name::below(at, format_args!("/life/{block}"))
    }

    fn below(at: &Endpoint, rest: Arguments<'_>) -> Name {
        // SAFETY: zeroes are a valid sockaddr_un.
        let mut addr: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
        let mut text = [0u8; 106];
        let ip = std::net::Ipv6Addr::from(at.ip);
        let mut left = &mut text[..];
        // The longest form, an IPv6 address with zone and a service, has 92 bytes: it cannot fail.
        let _ = match at.to_v4() {
            Some([a, b, c, d]) => write!(left, "gdrc/{a}.{b}.{c}.{d}/{}{rest}", at.port),
            None if at.scope_id != 0 => write!(left, "gdrc/{ip}%{}/{}{rest}", at.scope_id, at.port),
            None => write!(left, "gdrc/{ip}/{}{rest}", at.port),
        };
        let unused = left.len();
        let len = text.len() - unused;
        for (to, &from) in addr.sun_path[1..].iter_mut().zip(&text[..len]) {
            *to = from as libc::c_char;
        }
        Name { addr, len: (core::mem::offset_of!(libc::sockaddr_un, sun_path) + 1 + len) as libc::socklen_t }
    }

    /// For `bind`, `connect` and `sendto`; its length counts, not a zero byte.
    pub(crate) fn parts(&self) -> (*const libc::sockaddr, libc::socklen_t) {
        ((&raw const self.addr).cast(), self.len)
    }

    /// A socket of a type, bound to the name.
    ///
    /// # Errors
    /// `AddressInUse`: somebody has it. `Os`.
    pub(crate) fn bind(&self, kind: i32) -> Result<Fd> {
        let fd = socket(kind)?;
        let (name, len) = self.parts();
        // SAFETY: `len` bytes of `self` are initialised and live through the call.
        check(unsafe { libc::bind(fd.raw(), name, len) })?;
        Ok(fd)
    }

    /// A socket that listens under the name, for packets in sequence.
    ///
    /// # Errors
    /// As [`Name::bind`].
    pub(crate) fn listen(&self) -> Result<Fd> {
        let fd = self.bind(libc::SOCK_SEQPACKET)?;
        // SAFETY: no pointers.
        check(unsafe { libc::listen(fd.raw(), 128) })?;
        Ok(fd)
    }

    #[cfg(test)]
    pub(crate) fn text(&self) -> String {
        let n = self.len as usize - core::mem::offset_of!(libc::sockaddr_un, sun_path);
        self.addr.sun_path[..n].iter().map(|&c| c as u8 as char).collect()
    }
}

/// An unbound socket.
///
/// # Errors
/// `Os`, `NoMemory`.
pub(crate) fn socket(kind: i32) -> Result<Fd> {
    // SAFETY: no pointers.
    Fd::from_call(unsafe { libc::socket(libc::AF_UNIX, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0) })
}

/// The next caller of a socket that listens, trusted or not.
pub(crate) fn accept(fd: RawFd) -> Option<Fd> {
    let none = core::ptr::null_mut();
    // SAFETY: no addresses are asked for.
    let rc = unsafe { libc::accept4(fd, none, none.cast(), libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) };
    Fd::from_call(rc).ok()
}

/// Whether the other end of a connection is still there. What it says is thrown away.
pub(crate) fn is_open(fd: RawFd) -> bool {
    let mut byte = 0u8;
    // SAFETY: room for one byte.
    let n = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_DONTWAIT) };
    n > 0 || n < 0 && matches!(errno(), libc::EAGAIN | libc::EINTR)
}

/// Who may be a process at the other end: this user, or root (the router may be root's).
pub(crate) fn is_trusted_user(uid: libc::uid_t) -> bool {
    is_own_user(uid) || uid == 0
}

/// Whether a process is of this user.
pub(crate) fn is_own_user(uid: libc::uid_t) -> bool {
    // SAFETY: no precondition.
    uid == unsafe { libc::geteuid() }
}

/// The process at the other end of a connected socket, as the kernel noted it when it began to listen, or connected.
pub(crate) fn peer_of(fd: RawFd) -> Option<libc::ucred> {
    // SAFETY: zeroes are valid credentials.
    let mut cred: libc::ucred = unsafe { core::mem::zeroed() };
    let mut len = core::mem::size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the pointers describe `cred` and its length, both live through the call.
    let rc = unsafe { libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_PEERCRED, (&raw mut cred).cast(), &mut len) };
    (rc == 0).then_some(cred)
}

/// Whether the process at the other end of a connected socket is trusted.
pub(crate) fn is_trusted(fd: RawFd) -> bool {
    peer_of(fd).is_some_and(|peer| is_trusted_user(peer.uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gdrcore_core::error::Error;

    #[test]
    fn names_tell_addresses_apart() {
        let v4 = Endpoint::v4([192, 0, 2, 1], 4791);
        assert_eq!(Name::address(&v4).text(), "\0gdrc/192.0.2.1/4791");
        assert_eq!(Name::block(&v4, 7).text(), "\0gdrc/192.0.2.1/4791/block/7");
        let mut ip = [0; 16];
        (ip[0], ip[1], ip[15]) = (0xfe, 0x80, 1);
        assert_eq!(Name::address(&Endpoint::new(ip, 3, 1)).text(), "\0gdrc/fe80::1%3/1");
        let most = Endpoint { ip: [0xfe; 16], scope_id: u32::MAX, port: u16::MAX };
        assert!(Name::service(&most, u16::MAX, u16::MAX).text().ends_with("%4294967295/65535/service/65535/65535"));
    }

    #[test]
    fn a_name_has_one_owner() {
        let at = Endpoint::v4([127, 76, std::process::id() as u8, 1], 4791);
        let name = Name::block(&at, 1);
        let first = name.bind(libc::SOCK_DGRAM).unwrap();
        assert_eq!(name.bind(libc::SOCK_DGRAM).unwrap_err(), Error::AddressInUse);
        drop(first);
        // Another test of this process may have forked just now: its child has the socket until it calls exec.
        let free = (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(1));
            name.bind(libc::SOCK_DGRAM).is_ok()
        });
        assert!(free);
    }
}
