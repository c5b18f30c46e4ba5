//! Assigns the kernel's errors to their destinations.
//!
//! An ICMP message queues a record on the socket that names the destination. It also leaves an
//! errno that the next call of any kind reports, whatever destination that call had. So an errno
//! alone does not identify the failed destination. The queue is drained, and only a send that fails
//! again with an empty queue is itself at fault.

use super::{Ancillary, UdpPort};
use crate::addr::{Endpoint, SockAddr};
use crate::port::{ErrorKind, PortError};
use crate::sys::get_option;
use gdrcore_core::error::Result;
use heapless::Deque;

/// Errors that wait for [`UdpPort::take_error`].
const QUEUE: usize = 16;
/// Most records that one drain takes, so that a flood of ICMP cannot stall the port.
const DRAIN_MAX: usize = 64;

/// A short queue of errors, and whether the kernel may hold more.
pub(super) struct Errors {
    queue: Deque<PortError, QUEUE>,
    /// The last drain stopped at its bound.
    more: bool,
}

impl Errors {
    pub(super) const fn new() -> Self {
        Errors { queue: Deque::new(), more: false }
    }

    /// Adds an error, or merges it with an equal one. False: there is no room.
    fn push(&mut self, e: PortError) -> bool {
        for known in &mut self.queue {
            // The kernel's own records of an unconnected socket lack the port.
            let port = known.dst.port == e.dst.port || known.dst.port == 0 || e.dst.port == 0;
            if port && known.dst.same_host(&e.dst) && known.errno == e.errno {
                known.dst.port = known.dst.port.max(e.dst.port);
                // A refusal by the network is more exact than the send error that it caused.
                if known.kind == ErrorKind::Send {
                    known.kind = e.kind;
                }
                known.mtu = if e.mtu != 0 { e.mtu } else { known.mtu };
                return true;
            }
        }
        self.queue.push_back(e).is_ok()
    }
}

impl UdpPort {
    /// Whether [`UdpPort::take_error`] returns an error. Cost: none.
    #[inline]
    pub fn has_error(&self) -> bool {
        !self.errors.queue.is_empty() || self.errors.more
    }

    /// Takes the oldest error of a destination. Cost: none unless the kernel holds more than was
    /// drained.
    ///
    /// Errors appear at the next send or receive after they happened. After EPOLLERR without an
    /// error, call [`UdpPort::drain_errors`].
    pub fn take_error(&mut self) -> Option<PortError> {
        if self.errors.queue.is_empty() && self.errors.more {
            self.drain_errors();
        }
        self.errors.queue.pop_front()
    }

    /// Takes the kernel's records, at most 64. Returns how many of them came from the network.
    /// Cost: one system call for each, and one more.
    pub fn drain_errors(&mut self) -> usize {
        self.errors.more = false;
        let mut icmp = 0;
        for _ in 0..DRAIN_MAX {
            match read_record(self.fd.raw(), self.local.is_v4()) {
                Record::Empty => return icmp,
                Record::Foreign => {}
                Record::Error { error, from_network } => {
                    if from_network {
                        icmp += 1;
                        self.counters.icmp_err += 1;
                    }
                    self.report(error);
                }
            }
        }
        self.errors.more = true;
        icmp
    }

    /// Whether the kernel could queue a record. With a full receive buffer, an ICMP message leaves
    /// an errno and nothing else.
    pub(super) fn has_room_for_records(&self) -> bool {
        // SK_MEMINFO_RMEM_ALLOC, SK_MEMINFO_RCVBUF, and seven more.
        let memory: Result<[u32; 9]> =
            get_option(self.fd.raw(), libc::SOL_SOCKET, libc::SO_MEMINFO);
        memory.is_ok_and(|memory| memory[0] < memory[1] / 2)
    }

    /// Queues an error for [`UdpPort::take_error`].
    pub(super) fn report(&mut self, e: PortError) {
        if !self.errors.push(e) {
            self.counters.errors_lost += 1;
        }
    }
}

enum Record {
    Empty,
    /// A record that is no error of a destination.
    Foreign,
    Error {
        error: PortError,
        from_network: bool,
    },
}

fn read_record(fd: i32, v4: bool) -> Record {
    let mut dst = SockAddr::zeroed();
    // Room for sock_extended_err and the refusing host's address, with headers.
    let mut control = Ancillary([0; 256]);
    // The kernel returns the offending packet; its destination is in `dst` already.
    let mut payload = [0u8; 4];
    let mut iov = libc::iovec { iov_base: payload.as_mut_ptr().cast(), iov_len: payload.len() };
    // SAFETY: zeroes are valid for msghdr.
    let mut msg: libc::msghdr = unsafe { core::mem::zeroed() };
    msg.msg_name = (&raw mut dst).cast();
    msg.msg_namelen = SockAddr::LEN;
    msg.msg_iov = &mut iov;
    msg.msg_iovlen = 1;
    msg.msg_control = (&raw mut control).cast();
    msg.msg_controllen = size_of_val(&control) as _;
    // SAFETY: `msg` names live buffers and their lengths.
    if unsafe { libc::recvmsg(fd, &mut msg, libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT) } < 0 {
        return Record::Empty;
    }
    let Some(dst) = Endpoint::from_sockaddr(&dst) else { return Record::Foreign };
    let wanted = if v4 {
        (libc::IPPROTO_IP, libc::IP_RECVERR)
    } else {
        (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)
    };
    // SAFETY: `msg` and its control buffer are as the kernel left them, inside the lengths given.
    let mut cmsg = unsafe { libc::CMSG_FIRSTHDR(&msg) };
    while !cmsg.is_null() {
        // SAFETY: the macros only return headers that lie whole in the control buffer, which is
        // aligned for them.
        let head = unsafe { *cmsg };
        // SAFETY: CMSG_LEN has no precondition.
        let whole = unsafe { libc::CMSG_LEN(size_of::<libc::sock_extended_err>() as u32) } as usize;
        if (head.cmsg_level, head.cmsg_type) == wanted && head.cmsg_len as usize >= whole {
            // SAFETY: the length was checked; the data may be unaligned for the struct.
            let e =
                unsafe { libc::CMSG_DATA(cmsg).cast::<libc::sock_extended_err>().read_unaligned() };
            return classify(dst, &e);
        }
        // SAFETY: as for the first header.
        cmsg = unsafe { libc::CMSG_NXTHDR(&msg, cmsg) };
    }
    Record::Foreign
}

fn classify(dst: Endpoint, e: &libc::sock_extended_err) -> Record {
    let errno = i32::try_from(e.ee_errno).unwrap_or(libc::EIO);
    let from_network = matches!(e.ee_origin, libc::SO_EE_ORIGIN_ICMP | libc::SO_EE_ORIGIN_ICMP6);
    if !from_network && e.ee_origin != libc::SO_EE_ORIGIN_LOCAL {
        return Record::Foreign;
    }
    let (kind, mtu) = match (errno, from_network) {
        (libc::EMSGSIZE, _) => (ErrorKind::Mtu, e.ee_info),
        (_, true) => (ErrorKind::Icmp, 0),
        (_, false) => (ErrorKind::Send, 0),
    };
    Record::Error { error: PortError { dst, errno, kind, mtu }, from_network }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(host: u8, port: u16, kind: ErrorKind, errno: i32, mtu: u32) -> PortError {
        PortError { dst: Endpoint::v4([127, 0, 0, host], port), errno, kind, mtu }
    }

    /// The waiting errors: port, kind and MTU of each.
    fn all(errors: Errors) -> Vec<(u16, ErrorKind, u32)> {
        errors.queue.iter().map(|e| (e.dst.port, e.kind, e.mtu)).collect()
    }

    #[test]
    fn of_two_errors_of_a_destination_the_newer_facts_count() {
        let too_long = |port, mtu| error(1, port, ErrorKind::Mtu, libc::EMSGSIZE, mtu);
        let mut errors = Errors::new();
        assert!(errors.push(too_long(4791, 1400)) && errors.push(too_long(4791, 1300)));
        assert_eq!(all(errors), [(4791, ErrorKind::Mtu, 1300)]);
        // A record without an MTU, and one without a port, take nothing away.
        let mut errors = Errors::new();
        for e in [too_long(0, 1400), too_long(4791, 0), too_long(0, 0)] {
            assert!(errors.push(e));
        }
        assert_eq!(all(errors), [(4791, ErrorKind::Mtu, 1400)]);
        // The network's refusal replaces the send error, and no send error the refusal.
        let refused = |kind| error(1, 4791, kind, libc::ECONNREFUSED, 0);
        for order in [[ErrorKind::Send, ErrorKind::Icmp], [ErrorKind::Icmp, ErrorKind::Send]] {
            let mut errors = Errors::new();
            order.iter().for_each(|&kind| assert!(errors.push(refused(kind))));
            assert_eq!(all(errors), [(4791, ErrorKind::Icmp, 0)], "{order:?}");
        }
        // Another host, port or errno is another error.
        let mut errors = Errors::new();
        errors.push(too_long(4791, 1400));
        errors.push(error(2, 4791, ErrorKind::Mtu, libc::EMSGSIZE, 1200));
        errors.push(too_long(4792, 1100));
        errors.push(refused(ErrorKind::Icmp));
        assert_eq!(all(errors).iter().map(|e| e.2).collect::<Vec<_>>(), [1400, 1200, 1100, 0]);
    }

    #[test]
    fn a_full_queue_refuses_and_has_room_again() {
        let mut errors = Errors::new();
        let of = |n: usize| error(n as u8, 4791, ErrorKind::Icmp, libc::EHOSTUNREACH, 0);
        assert!((0..QUEUE).all(|n| errors.push(of(n))) && !errors.push(of(QUEUE)));
        assert!(errors.push(of(3)), "one that waits already");
        assert_eq!(errors.queue.pop_front().map(|e| e.dst.ip[15]), Some(0));
        assert!(errors.push(of(QUEUE)) && !errors.push(of(QUEUE + 1)));
        let rest: Vec<u8> = errors.queue.iter().map(|e| e.dst.ip[15]).collect();
        assert_eq!(rest, (1..=QUEUE as u8).collect::<Vec<_>>());
    }
}
