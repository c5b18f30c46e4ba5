//! A connection: the state that a queue pair shares with one peer. Another peer means another
//! connection; the queues stay.

use super::req::{PeerReady, Req, RnrTrial, SendBlock};
use super::resp::Resp;
use super::NONE;
use crate::dcqcn::Dcqcn;

/// Keepalive state of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub struct Keep {
    /// Time of the next check; 0: it is not watched.
    pub at: u64,
    /// `rcvd_pkts` at the last check.
    pub seen: u64,
    /// Keepalives sent since the last packet came.
    pub tries: u32,
    /// The time of the first of them.
    pub since: u64,
    /// A keepalive is to be sent.
    pub ask: bool,
    /// Idle time before the next keepalive.
    pub every: u64,
    /// By which rules.
    pub plan: KeepPlan,
}

/// When an idle connection is asked about, and when its peer counts as gone.
#[derive(Clone, Copy, Debug, Default)]
pub struct KeepPlan {
    /// Idle time before the first keepalive; 0: none is sent.
    pub first: u64,
    /// Each answer doubles it while nothing else comes, up to this.
    pub most: u64,
    /// Longest wait for an answer.
    pub wait: u64,
    /// Keepalives without an answer after which the peer is gone.
    pub tries: u32,
    /// As many, if the network has said that nobody is there.
    pub tries_refused: u32,
}

/// Packets that no honest peer sends: how many came lately, and the siege that follows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Siege {
    /// When the count began.
    pub since: u64,
    /// How many since then.
    pub count: u32,
    /// End of the siege; 0: there was none.
    pub until: u64,
    /// UDP ports of packets that advanced the connection, the latest first; 0: none yet.
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
    /// ACK timeout in nanoseconds. When the attribute is 0: the configured deadline, or `NEVER_NS`
    /// if there is none.
    pub timeout_ns: u64,
    /// The process at the other end of the peer's link has ended.
    pub peer_ended: bool,
    /// Send rate while the path is congested.
    pub congestion: Dcqcn,
    /// When the next congestion notification may leave.
    pub cnp_at: u64,
    /// Packets sent when the last CNP came.
    pub cnp_sent: u64,
    /// CNPs that packets up to then may still cause.
    pub cnp_credit: u32,
    /// CNPs are ignored until then.
    pub cnp_deaf: u64,
    /// Packets that no honest peer sends.
    pub siege: Siege,
    /// The peer is known to be a soft device: packets from UDP ports that are neither its own nor
    /// allowed for its address are refused.
    pub own_port: bool,
    /// Requester.
    pub req: Req,
    /// Whether the peer has receive requests for what is sent.
    pub peer_ready: PeerReady,
    /// How much is tried while that is in doubt.
    pub trial: RnrTrial,
    /// Responder.
    pub resp: Resp,
    /// Keepalive.
    pub keep: Keep,
}

impl Default for Connection {
    /// The connection of a queue pair which has no peer yet.
    fn default() -> Connection {
        Connection {
            peer: NONE,
            mtu: 0,
            loopback: false,
            timeout_ns: 0,
            peer_ended: false,
            congestion: Dcqcn::default(),
            cnp_at: 0,
            cnp_sent: 0,
            cnp_credit: 0,
            cnp_deaf: 0,
            siege: Siege::default(),
            own_port: false,
            req: Req::default(),
            peer_ready: PeerReady::default(),
            trial: RnrTrial::default(),
            resp: Resp::default(),
            keep: Keep::default(),
        }
    }
}

impl Connection {
    /// Leaves the peer for another: the state of the path and of the peer begins anew, and the
    /// requester goes on where it is. All that was sent has ended. Returns the index of the peer's
    /// address, or [`NONE`].
    pub fn leave_peer(&mut self) -> u32 {
        let mut left = core::mem::take(self);
        let peer = left.peer;
        left.req.set_send_block(SendBlock::None);
        *self = Connection {
            mtu: left.mtu,
            timeout_ns: left.timeout_ns,
            cnp_sent: left.cnp_sent,
            req: left.req,
            resp: left.resp,
            ..Connection::default()
        };
        peer
    }

    /// Ends it. Its memory stays, as do the path MTU and the ACK timeout, until attributes name
    /// others (UD's never do). Returns the index of the peer's address, or [`NONE`].
    ///
    /// `at`: position in the send ring of the next post. `sent_pkts`: packets that the queue pair
    /// has sent; no later CNP is about them.
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
