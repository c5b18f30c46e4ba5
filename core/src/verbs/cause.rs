//! Why something went wrong: the last-cause record of a QP and of a context.

use crate::numbered;
use core::fmt;

numbered! {
    /// Causes of errors (gdrc_cause.code, gdrc_wc.vendor_err); gdrc_cause_str describes each.
    /// Numbers are never reused.
    #[non_exhaustive]
    CauseCode: &'static str {
        /// Nothing went wrong yet.
        #[default]
        None = 0, "no error so far";
        /// arg0 = lkey, arg1 = address.
        LocalKey = 1, "local key unknown, expired or of another protection domain";
        /// arg0 = lkey, arg1 = address.
        LocalRange = 2, "local buffer leaves its memory region";
        /// arg0 = lkey, arg1 = address.
        LocalAccess = 3, "memory region is not registered for local write";
        /// arg0 = lkey, arg1 = address.
        LocalMemoryGone = 4, "registered memory is no longer mapped (munmap, or file truncated)";
        /// The peer answered NAK 0x62; arg0 = rkey, arg1 = remote address.
        RemoteAccess = 5, "peer refused: remote key unknown or expired, range or access wrong";
        /// The peer answered NAK 0x61.
        RemoteInvalidRequest = 6, "peer refused: operation not enabled, too long \
                                   for its receive buffer, or out of sequence";
        /// The peer answered NAK 0x63.
        RemoteOperation = 7, "peer failed while it executed the operation";
        /// arg0 = ACK timeout in ns, arg1 = retries made.
        RetryExceeded = 8, "peer silent: all retries used (peer dead, \
                            wrong address or QPN, or packets filtered)";
        /// arg0 = RNR retries made.
        RnrRetryExceeded = 9, "peer posts no receive buffers: all RNR retries used";
        /// arg0 = deadline in ns.
        Deadline = 10, "peer silent until the configured deadline";
        /// arg0 = errno of the ICMP refusal.
        PeerUnreachable = 11, "network refuses: nothing listens there, or no route";
        /// arg0 = path MTU, arg1 = link MTU.
        MtuExceeded = 12, "path MTU is larger than what the link carries";
        /// As responder; arg0 = rkey, arg1 = address.
        PeerUsedBadKey = 13, "peer used a remote key that is unknown, \
                              expired or of another protection domain";
        /// As responder; arg0 = rkey, arg1 = address.
        PeerLeftRange = 14, "peer addressed memory outside the region";
        /// As responder; arg0 = rkey, arg1 = address.
        PeerLacksAccess = 15, "peer used an access that the region, window or QP does not allow";
        /// As responder; arg0 = opcode.
        PeerBadRequest = 16, "peer sent an opcode, length or sequence that is not valid here";
        /// As responder; arg0 = message bytes, arg1 = buffer bytes.
        MessageTooLong = 17, "message is longer than the receive buffer";
        /// The peer answered with something that does not fit the request.
        BadResponse = 18, "peer's response does not fit the request";
        /// The program moved the QP to ERR, or an earlier request failed.
        Flushed = 19, "flushed: the queue pair is in the error state";
        /// arg0 = rkey.
        BadWindow = 20, "memory window cannot be bound or invalidated so";
        /// arg0 = send opcode.
        BadOpcode = 21, "operation is not allowed on this type of queue pair";
        /// arg0 = message bytes, arg1 = largest.
        TooLong = 22, "message is longer than this transport carries";
        /// arg0 = address handle.
        BadAddressHandle = 23, "address handle is stale or of another protection domain";
        /// arg0 = errno.
        Socket = 24, "socket error";
        /// arg0 = address.
        MisalignedAtomic = 25, "atomic address is not aligned to 8 bytes";
        /// The peer was reached over a link.
        PathLost = 26, "the process at the other end of the shared memory is gone \
                         or broke its ring";
        /// An idle queue pair (keepalive_ms of gdrc_config); arg0 = keepalive interval in ns, arg1
        /// = questions without an answer.
        Keepalive = 27, "peer silent: it answers no keepalive (dead, stopped, \
                         or it neither polls nor has a helper thread)";
        /// A rule of this machine's firewall; arg0 = errno. EPERM: the kernel refused to send.
        /// ECONNREFUSED: an ICMP error in the name of a socket that is there.
        Firewall = 28, "this machine's own firewall refuses to send there";
        /// The kernel refused to send: no route, or a prohibiting one; arg0 = errno.
        NoRoute = 29, "this machine has no route there";
        /// The peer's process is on this machine and lives, but does not read its packets; arg0 =
        /// ACK timeout in ns (0: a connection was asked for), arg1 = retries made.
        NotPolled = 30, "peer silent: its process is alive, but nobody polls its device \
            (stopped, or busy elsewhere): poll there, or gdrc_helper_start";
        /// The peer's process is on this machine and reads its packets, but this queue pair gets no
        /// answer; arg0 = ACK timeout in ns, arg1 = retries made.
        Unanswered = 31, "peer silent: its process is alive and takes packets, but this queue pair \
            gets no answer: wrong QPN, not connected to this one, or this machine's firewall drops \
            what comes in";
        /// No answer to a connection request; arg0 = the port.
        NoAnswer = 32, "no connection manager answers there: peer down, \
                        wrong address, or packets dropped on the way";
        /// The peer rejected a connection request; arg0 = the status of the event (UD: that of the
        /// SIDR_REP), arg1 = the port that was asked for, plus 2^16 for UD.
        Rejected = 33, "peer rejected the connection";
        /// The router that carried the packets is gone, or has ended the session (arg0 = 0); arg0 =
        /// how long it was waited for, in ns.
        RouterLost = 34, "the router that carried this connection is gone, or has ended \
                           the session";
        /// The target's answer to a DC initiator; arg0 = number of the DCT.
        DcKey = 35, "the DC target refused the access key";
        /// arg0 = number of the DCT, arg1 = 1: its device was opened anew meanwhile.
        DcTargetGone = 36, "the DC target ended, or forgot this initiator, \
                            while requests were under way";
        /// arg0 = number of the DCT.
        DcNoContext = 37, "the DC target had no responder context free until the deadline";
        /// A NIC's own error; arg0 = completion status, arg1 = its vendor's number.
        DeviceError = 40, "the device failed";
        /// arg0 = errno, if there was one.
        DeviceGone = 41, "the device was removed or has failed for good";
        /// arg0 = port.
        PortDown = 42, "the device's port went down";
        /// arg0 = CQ.
        CqOverrun = 43, "a completion queue overflowed: it is smaller \
                         than the requests that complete into it";
        /// arg0 = rule of the faults.
        Injected = 44, "a fault that was injected";
    }
}

/// The last cause of an error on a QP or context: 64 bytes. Frozen.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// One of [`CauseCode`].
    pub code: u32,
    /// The completion status that it led to, 0 if none.
    pub wc_status: u32,
    /// The peer's GID, zero if none.
    pub peer: [u8; 16],
    /// The local QPN, 0 if none.
    pub qpn: u32,
    /// The peer's QPN.
    pub remote_qpn: u32,
    /// PSN concerned.
    pub psn: u32,
    /// The counter that counts it: an index for gdrc_counter_name; UINT32_MAX: none does.
    pub counter: u32,
    /// By code.
    pub arg0: u64,
    /// By code.
    pub arg1: u64,
    /// Device time of the event in nanoseconds.
    pub time_ns: u64,
}

const _: () = assert!(core::mem::size_of::<Cause>() == 64);

/// The bit of a rejection's arg1 for UD, above the port.
const OF_UD: u64 = 1 << 16;

/// arg1 of a rejected request for a port.
pub const fn asked_port(port: u16, datagram: bool) -> u64 {
    port as u64 | if datagram { OF_UD } else { 0 }
}

/// What an errno adds to the text of a cause.
fn means(code: CauseCode, errno: u64) -> &'static str {
    match (code, errno) {
        (CauseCode::PeerUnreachable, 111) => {
            ": its host, or a firewall in its name, says that no process has that UDP port"
        }
        (CauseCode::Firewall, 111) => {
            ": the peer's socket is there, and a rule rejects in its name"
        }
        (CauseCode::PeerUnreachable, 13 | 101 | 113) => {
            ": a firewall or router on the way, or its host, says so"
        }
        (CauseCode::NoRoute, 13) => ": a prohibit route",
        (CauseCode::NoRoute, 22) => ": a blackhole route, or this device's own address is gone",
        _ => "",
    }
}

/// Why a connection was rejected, in words.
pub fn rejection(reason: u64, datagram: bool) -> &'static str {
    match (datagram, reason) {
        (false, 1) => "it has no queue pair left",
        (false, 3) => "its tables are full",
        (false, 4) => "it waited in vain, or let the id go",
        (false, 5) => "it does not support this",
        (false, 6) => "it does not know the communication id",
        (false, 8) => "nobody listens at this port",
        (false, 9) => "it does not know the transport",
        (false, 10) => "it still has a connection to this queue pair",
        (false, 12) => "the request names another address than it came from or to",
        (false, 26) => "the path MTU is larger than its link carries",
        (false, 28) => "its program said no",
        (true, 1) => "nobody listens at this port",
        (true, 2) => "its program said no",
        (true, 3) => "its tables are full",
        _ => "see IBTA 12.6.7.2",
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use CauseCode::*;
        let code = CauseCode::from_u32(self.code).unwrap_or_default();
        f.write_str(code.text())?;
        let (a, b) = (self.arg0, self.arg1);
        match code {
            None => return Ok(()),
            // A NIC that says no more than the status.
            _ if a == 0 && b == 0 => {}
            LocalKey | LocalRange | LocalAccess | LocalMemoryGone => {
                write!(f, " (lkey {a:#010x}, address {b:#x})")?
            }
            RemoteAccess | PeerUsedBadKey | PeerLeftRange | PeerLacksAccess => {
                write!(f, " (rkey {a:#010x}, address {b:#x})")?
            }
            RetryExceeded | NotPolled | Unanswered => {
                write!(f, " ({b} retries, ACK timeout {} us)", a / 1000)?
            }
            Keepalive => write!(f, " ({b} asked after {} ms)", a / 1_000_000)?,
            RnrRetryExceeded => write!(f, " ({a} retries)")?,
            RouterLost => write!(f, " (waited {} ms for it)", a / 1_000_000)?,
            Deadline => write!(f, " ({} ms)", a / 1_000_000)?,
            PeerUnreachable | Socket | Firewall | NoRoute => {
                write!(f, " (errno {a}{})", means(code, a))?
            }
            Rejected => {
                let (port, words) = (b & 0xffff, rejection(a, b & OF_UD != 0));
                write!(f, " to its port {port} (reason {a}: {words})")?
            }
            NoAnswer => write!(f, " (port {a} was asked for)")?,
            MtuExceeded => write!(f, " (path MTU {a} over link MTU {b})")?,
            MessageTooLong | TooLong => write!(f, " ({a} bytes, room for {b})")?,
            PeerBadRequest | BadOpcode => write!(f, " (opcode {a:#04x})")?,
            BadWindow => write!(f, " (rkey {a:#010x})")?,
            DeviceError => write!(f, " (status {a}, vendor error {b:#x})")?,
            DeviceGone => write!(f, " (errno {a})")?,
            PortDown => write!(f, " (port {a})")?,
            MisalignedAtomic => write!(f, " (address {a:#x})")?,
            _ => {}
        }
        if self.qpn != 0 {
            write!(
                f,
                "; local QP {:#x}, remote QP {:#x}, PSN {:#x}",
                self.qpn, self.remote_qpn, self.psn
            )?;
        }
        if self.peer != [0; 16] {
            let ip = core::net::Ipv6Addr::from(self.peer);
            if let Some(v4) = ip.to_ipv4_mapped() {
                write!(f, ", peer {v4}")?
            } else {
                write!(f, ", peer {ip}")?
            }
        }
        Ok(())
    }
}
