//! A connection: what a queue pair and one peer have agreed on and told each other. Another peer
//! means another connection; the queues stay.

use super::req::{Ready, Req};
use super::resp::Resp;
use super::NONE;
use crate::dcqcn::Dcqcn;
use crate::wire::Psn;

/// The watch over a connection on which nothing happens.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// When to look next; 0: it is not watched.
    pub at: u64,
    /// `rcvd_pkts` at the last look.
    pub seen: u64,
    /// Questions asked since something came, and when the first was.
    pub tries: u32,
    /// See `tries`.
    pub since: u64,
    /// A question is to be sent.
    pub ask: bool,
}

/// How many packets came for a queue pair of late that no honest peer sends, and what follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Siege {
    /// When the count began.
    pub since: u64,
    /// How many since then.
    pub count: u32,
    /// Until then what may be forged is believed only when it is said twice; 0: always at once.
    pub until: u64,
    /// UDP ports from which packets came that moved the connection on, the last first; 0: none yet.
    pub ports: [u16; 2],
}

/// A queue pair's connection to its peer.
///
/// It holds nothing of the queues but the requester's positions in the send ring
/// ([`Req::starting_at`]), and no rule: those are methods of `roce::conn::Conn`.
#[derive(Debug)]
pub struct Connection {
    /// Index of the peer's address, or [`NONE`].
    pub peer: u32,
    /// Path MTU in bytes.
    pub mtu: u32,
    /// The peer is a QP of this engine (not UD, which decides per message).
    pub loopback: bool,
    /// ACK timeout in nanoseconds; the configured deadline when the attribute is 0.
    pub timeout_ns: u64,
    /// Rate of what is sent while the path is congested.
    pub congestion: Dcqcn,
    /// When the next congestion notification may leave.
    pub cnp_at: u64,
    /// Packets sent when the last congestion notification came, and how many notifications they and
    /// those before may still draw.
    pub cnp_sent: u64,
    /// See `cnp_sent`.
    pub cnp_credit: u32,
    /// Congestion notifications are not heeded until then.
    pub cnp_deaf: u64,
    /// Packets that no honest peer sends.
    pub siege: Siege,
    /// Its peer sends from its own UDP port, and from ports that were allowed for its address:
    /// others are refused.
    pub own_port: bool,
    /// Requester.
    pub req: Req,
    /// Whether the peer has receive requests for what is sent.
    pub ready: Ready,
    /// See [`Ready`].
    pub ready_psn: Psn,
    /// Responder.
    pub resp: Resp,
    /// Keepalive.
    pub keep: Keep,
}

impl Default for Connection {
    /// That of a queue pair which has no peer yet.
    fn default() -> Connection {
        Connection {
            peer: NONE,
            mtu: 0,
            loopback: false,
            timeout_ns: 0,
            congestion: Dcqcn::default(),
            cnp_at: 0,
            cnp_sent: 0,
            cnp_credit: 0,
            cnp_deaf: 0,
            siege: Siege::default(),
            own_port: false,
            req: Req::default(),
            ready: Ready::default(),
            ready_psn: Psn::default(),
            resp: Resp::default(),
            keep: Keep::default(),
        }
    }
}

impl Connection {
    /// Ends it: what follows begins with nothing but its memory, and the path MTU and ACK timeout
    /// that hold until attributes name others (UD's never do). Returns the index of the peer's
    /// address, or [`NONE`].
    ///
    /// `at`: position in the send ring of what is posted next. `sent_pkts`: packets that the queue
    /// pair has sent, about which no later notification can be.
    pub fn end(&mut self, at: u32, sent_pkts: u64) -> u32 {
        let mut ended = core::mem::take(self);
        ended.resp.reset();
        self.resp = ended.resp;
        self.req = Req::starting_at(at);
        (self.mtu, self.timeout_ns) = (ended.mtu, ended.timeout_ns);
        self.cnp_sent = sent_pkts;
        ended.peer
    }
}
