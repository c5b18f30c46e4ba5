//! Bare UDP sockets: the kernel's own cost, for comparison in the same run.

use std::io::ErrorKind;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

/// `SOL_UDP`, `UDP_SEGMENT`, `UDP_GRO`.
const SOL_UDP: i32 = 17;
const UDP_SEGMENT: i32 = 103;
const UDP_GRO: i32 = 104;

/// A socket in non-blocking mode.
pub struct Bare(UdpSocket);

fn set(s: &UdpSocket, option: i32, value: i32) {
    let len = size_of::<i32>() as u32;
    // SAFETY: a live descriptor, and a pointer to an int with its length.
    let rc =
        unsafe { libc::setsockopt(s.as_raw_fd(), SOL_UDP, option, (&raw const value).cast(), len) };
    assert_eq!(rc, 0, "setsockopt {option}");
}

impl Bare {
    /// Binds. With `segment` > 0 sends are cut into datagrams of so many bytes, and received ones
    /// are joined.
    pub fn open(address: &str, segment: i32) -> Bare {
        let s = UdpSocket::bind(address).expect("bind");
        s.set_nonblocking(true).expect("nonblocking");
        if segment > 0 {
            set(&s, UDP_SEGMENT, segment);
            set(&s, UDP_GRO, 1);
        }
        Bare(s)
    }

    /// The address and port that it is bound to.
    pub fn address(&self) -> std::net::SocketAddr {
        self.0.local_addr().expect("address")
    }

    /// Sends; retries while the buffer is full.
    pub fn send(&self, data: &[u8], to: &str) {
        let to: std::net::SocketAddr = to.parse().expect("address");
        self.send_to(data, &to);
    }

    /// As [`Bare::send`], with a parsed address.
    #[inline]
    pub fn send_to(&self, data: &[u8], to: &std::net::SocketAddr) {
        loop {
            match self.0.send_to(data, to) {
                Ok(_) => return,
                Err(e) if e.kind() == ErrorKind::WouldBlock => core::hint::spin_loop(),
                Err(e) => panic!("send: {e}"),
            }
        }
    }

    /// Bytes received, or 0.
    #[inline]
    pub fn receive(&self, buf: &mut [u8]) -> usize {
        match self.0.recv_from(buf) {
            Ok((n, _)) => n,
            Err(e) if e.kind() == ErrorKind::WouldBlock => 0,
            Err(e) => panic!("receive: {e}"),
        }
    }
}
