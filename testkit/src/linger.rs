//! Descriptors whose last close takes minutes.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};

/// Where the bytes go that nobody reads.
pub struct Sink(TcpListener);

impl Sink {
    /// A sink for any number of connections.
    pub fn new() -> Sink {
        Sink(TcpListener::bind("127.0.0.1:0").expect("a listener"))
    }

    /// A descriptor whose last close waits for five minutes, or until its deaf end is dropped, too.
    pub fn lingering(&self) -> (OwnedFd, TcpStream) {
        let stream = TcpStream::connect(self.0.local_addr().expect("bound")).expect("connect");
        let (deaf, _) = self.0.accept().expect("accept");
        let linger = libc::linger { l_onoff: 1, l_linger: 300 };
        // SAFETY: a live value and its length.
        let rc = unsafe {
            libc::setsockopt(
                stream.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_LINGER,
                (&raw const linger).cast(),
                size_of_val(&linger) as libc::socklen_t,
            )
        };
        assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
        stream.set_nonblocking(true).expect("non-blocking");
        while (&stream).write(&[0; 65536]).is_ok() {}
        (stream.into(), deaf)
    }
}

impl Default for Sink {
    fn default() -> Sink {
        Sink::new()
    }
}
