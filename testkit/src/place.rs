//! Addresses and ports on loopback that no other test process uses.
//!
//! A process claims a number by binding an abstract Unix socket of that name, which the kernel
//! frees with the process. Such names belong to the network namespace, as the addresses do.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::OnceLock;

/// Numbers that a process may claim. 127.0.0.0/16 and the rest of the lower half are left to tests
/// that name an address in full.
const FIRST: u8 = 100;
const COUNT: u32 = 150;
/// Ports of each number; they end below the kernel's range of ephemeral ports (32768).
const PORTS: u16 = 60;
const FIRST_PORT: u16 = 23_000;

struct Claim {
    number: u8,
    _socket: UnixDatagram,
}

fn claim() -> Option<Claim> {
    let start = std::process::id();
    (0..COUNT).find_map(|i| {
        let number = FIRST + ((start.wrapping_add(i)) % COUNT) as u8;
        let name = SocketAddr::from_abstract_name(format!("gdrcore-test-place/{number}")).ok()?;
        UnixDatagram::bind_addr(&name).ok().map(|socket| Claim { number, _socket: socket })
    })
}

/// This process's own number, from 100 to 249.
pub fn number() -> u8 {
    static OWN: OnceLock<Claim> = OnceLock::new();
    OWN.get_or_init(|| {
        claim().unwrap_or_else(|| panic!("{COUNT} test processes run in this network namespace"))
    })
    .number
}

/// An IPv4 loopback address of this process's own; the test chooses `group` and `last`.
pub fn loopback(group: u8, last: u8) -> [u8; 4] {
    [127, number(), group, last]
}

/// A port of this process's own, for programs that listen on all addresses of the host. No TCP
/// socket listens on it.
pub fn port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let first = FIRST_PORT + u16::from(number() - FIRST) * PORTS;
    let next = || first + NEXT.fetch_add(1, Ordering::Relaxed) % PORTS;
    let is_free =
        |port: &u16| std::net::TcpListener::bind((std::net::Ipv4Addr::UNSPECIFIED, *port)).is_ok();
    (0..PORTS).map(|_| next()).find(is_free).expect("a port without a listener")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_and_are_free() {
        let (a, b) = (port(), port());
        assert_ne!(a, b);
        let _taken = std::net::TcpListener::bind(("127.0.0.1", a)).expect("free");
        assert!((0..2 * PORTS).all(|_| port() != a));
        assert!(FIRST_PORT + COUNT as u16 * PORTS <= 32_768);
    }

    #[test]
    fn a_claimed_number_is_unique() {
        let own = number();
        assert_eq!(loopback(3, 4), [127, own, 3, 4]);
        let other = claim().expect("another number");
        assert_ne!(other.number, own);
        let again = claim().expect("a third");
        assert!(again.number != own && again.number != other.number);
    }
}
