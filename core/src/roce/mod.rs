//! The transport: requester, completer and responder over the tables of QPs, CQs, keys and peers.
//!
//! Sans-IO: packets come in through [`Transport::handle_run`], go out through
//! [`Transport::transmit`], time comes as an argument. Everything here runs inside the engine's
//! lock, which the [`EngineKey`] in [`Transport`] stands for.
//!
//! Files as the standard divides the work:
//!
//! - `requester` (requests out), `completer` (answers in), `responder` (requests in), `answers`
//!   (answers out);
//! - `datagram` (UD), `multicast` (groups), `peer_write` (WRITEs that need no packet), `dc` (DC's
//!   associations);
//! - `rules`: the rules that several of these files apply, each once; `frame`: how single messages
//!   are written and read;
//! - `conn`: one queue pair looked up for all of them; `queues` (completions, flush, states),
//!   `timers`, `causes`, `receipts` (ACKs that outlive their sender);
//! - `congestion` (marks, notifications), `rnr` (peers that are not ready), `siege` (forged
//!   packets), `witness` (why a peer is silent), `keepalive`;
//! - `run` (n packets of one message), `txbuf` (the burst being built), `peer` (addresses and
//!   windows), `peer_memory`.

mod answers;
mod causes;
mod completer;
mod congestion;
mod conn;
mod datagram;
pub mod dc;
pub(crate) mod endless;
pub mod frame;
mod injected;
mod keepalive;
pub mod multicast;
pub mod peer;
pub mod peer_memory;
pub mod peer_write;
mod queues;
mod receipts;
mod requester;
mod responder;
mod rnr;
pub(crate) mod rules;
pub mod run;
pub mod siblings;
mod siege;
mod timers;
pub mod txbuf;
pub mod witness;

use crate::arena::{RawSlice, Table};
use crate::bitmap::Bitmap;
use crate::config::Config;
use crate::counters::Counters;
use crate::mem::RegisteredMemory;
use crate::roce::peer::{Path, Peer, PeerAddr};
use crate::verbs::cause::Cause;
use crate::verbs::objects::{Ah, Cq, Pd, Qp, Srq, Xrcd};
use crate::verbs::port_events::PortEvents;
use crate::verbs::shared::{EngineKey, Shared};
use crate::wheel::Wheel;
use crate::wire::PacketKind;
use run::Run;

/// Longest time that an owed ACK waits for a packet to leave with.
pub const ACK_DELAY_NS: u64 = 20_000;
/// Packets after which an owed ACK waits no longer.
pub const ACK_PACKETS: u32 = 8;
/// Most messages that are announced to slow memory behind one that waits for it.
pub(crate) const AHEAD: u32 = 8;
/// Bytes of a piece of a READ. A request asks for one or several pieces.
pub const READ_PIECE: u32 = 64 << 10;

/// State of a QP after `transmit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The QP has nothing more to send now; an event makes it ready again.
    Idle,
    /// The burst is full; the QP has more.
    Full,
    /// The QP's next packet travels on another path (another link, loopback, or the port).
    OtherPath,
}

/// Sender of an arriving packet or record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's GID.
    pub gid: [u8; 16],
    /// How the packet or record came.
    pub path: Path,
    /// The sender's UDP port, if the packet came through the port.
    pub port: u16,
}

/// All state of the transport.
pub struct Transport {
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// Peers.
    pub peers: Table<Peer>,
    /// The peer of queue pairs that have none.
    pub nobody: Peer,
    /// Responder contexts of DC targets.
    pub dc: dc::contexts::Contexts,
    /// State that the queue pairs share.
    pub common: Common,
}

/// State that the queue pairs of an engine share: its other objects, sets of QPs that wait,
/// counters.
pub struct Common {
    /// Proof of the lock.
    pub key: EngineKey,
    /// The configuration, every zero replaced.
    pub config: Config,
    /// This engine's own address.
    pub local: PeerAddr,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Address handles.
    pub ahs: Table<Ah>,
    /// Handles of AHs.
    pub ah_pool: crate::pool::Pool,
    /// AHs that have ended.
    pub ahs_ended: u64,
    /// Protection domains.
    pub pds: Table<Pd>,
    /// Handles of PDs.
    pub pd_pool: crate::pool::Pool,
    /// Memory regions and windows, and the kinds of memory.
    pub memory: RegisteredMemory,
    /// XRC domains.
    pub xrcds: Table<Xrcd>,
    /// Handles of XRC domains.
    pub xrcd_pool: crate::pool::Pool,
    /// QP index + 1 by QPN, within the block.
    pub by_qpn: RawSlice<u32>,
    /// SRQ index + 1 by SRQ number, within the block.
    pub by_srqn: RawSlice<u32>,
    /// First QPN of the block.
    pub qpn_base: u32,
    /// The other engines of a device without a port.
    pub siblings: siblings::Siblings,
    /// A peer may answer through the port what it received over a link, and the other way round.
    pub mixed_paths: bool,
    /// Until then an ACK timeout of a peer behind the port costs no retry
    /// ([`crate::engine::EngineGuard::begin_outage`]).
    pub port_excused: u64,
    /// QPs with something to send.
    pub ready: Bitmap,
    /// Full bursts.
    pub bursts: u32,
    /// QPs that owe an ACK.
    pub acks: rules::ack::AckQueue,
    /// QPs that wait for slow memory.
    pub mem_wait: Bitmap,
    /// QPs that wait for room in a CQ.
    pub cq_wait: Bitmap,
    /// Full CQs for which QPs of `cq_wait` wait.
    pub full_cqs: Bitmap,
    /// CQs that have failed and whose event the program has not taken.
    pub cq_errors: u32,
    /// QPs that wait for a window to open.
    pub win_wait: Bitmap,
    /// QPs that owe their peer a congestion notification; `ready` as well.
    pub cnp_owed: Bitmap,
    /// One timer per QP.
    pub wheel: Wheel,
    /// Until then some QP may be besieged.
    pub siege_until: u64,
    /// QPs whose peers are soft devices refuse packets from UDP ports that were not allowed.
    pub check_ports: bool,
    /// Short WRITEs travel through the port as a WRITE for each packet.
    pub divides_writes: bool,
    /// Before a request fails because its peer is silent, the caller of the engine is asked why.
    pub has_witness: bool,
    /// QPs whose requests are about to fail because the peer is silent.
    pub suspects: Bitmap,
    /// QPs whose peer was silent until they failed: their connections are over.
    pub silent: Bitmap,
    /// The last UDP port refused by `check_ports`, and the peer in whose name it sent: the caller
    /// may find out the port's owner.
    pub refused_port: Option<(PeerAddr, u16)>,
    /// Counts ACK timeouts, and requests that came again: a message or its answer was lost.
    pub loss_signs: u32,
    /// Events that belong to no queue pair, and those of queue pairs that have ended. A queue pair
    /// counts its own.
    pub counters: Counters,
    /// The last cause on any QP.
    pub cause: Cause,
    /// Members of multicast groups.
    pub members: multicast::Members,
    /// The QP whose ACK timer is armed at the next read of the clock
    /// ([`Transport::arm_deferred_timer`]), or [`NONE`](crate::verbs::NONE).
    pub timer_deferred: u32,
    /// CQ polled by the thread that runs this round.
    pub handoff: rules::cq::CompletionHandoff,
    /// QPs with asynchronous events that the program has not taken. SRQs hold theirs themselves.
    pub event_qps: Bitmap,
    /// Asynchronous events of the port.
    pub port_events: PortEvents,
    /// Counts changes that [`Transport::mappable_region`] depends on: states and attributes of QPs,
    /// regions that end.
    pub changes: u32,
    /// Queue pairs that have got a first PSN ([`crate::engine::EngineGuard::connections_begun`]).
    pub connections_begun: u32,
    /// A QP waits for room in a CQ whose free entries are all reserved, so that one must be taken
    /// back.
    pub reclaim: bool,
}

impl Transport {
    /// Whether the peer of an RC QP has sent a request in order since it was connected: a sender
    /// that sees none of our messages would have to guess the PSN.
    pub(crate) fn has_heard(&self, qpn: u32) -> bool {
        let Some(qp) = self.common.qp_of(qpn).and_then(|qi| self.qps.get(qi)) else { return false };
        qp.kind.is_reliable() && qp.can_receive() && qp.conn.resp.epsn.get() != qp.attr.rq_psn
    }

    /// Takes one run from a peer. Any run that a peer can send is legal input.
    pub fn handle_run(&mut self, s: &Shared, now: u64, from: &Origin, run: &Run, payload: &[u8]) {
        match self.common.qp_of(run.dest_qpn) {
            Some(qi) if run.kind == PacketKind::DcControl => {
                self.handle_dc_control(s, qi, now, from, run, payload);
            }
            Some(qi) => self.conn(s, qi).handle_run(now, from, run, payload),
            // IBTA CA17-33: Packets for QP0 are dropped without an answer, as are those for a
            // number that no queue pair has.
            None => self.common.counters.rcvd_no_qp += 1,
        }
    }

    /// The path of the next packets of a QP.
    pub(crate) fn next_path(&self, s: &Shared, qi: usize) -> Option<Path> {
        let qp = &self.qps[qi];
        if !qp.kind.has_fixed_peer() {
            return self.next_unfixed_path(s, qi);
        }
        self.path_to_peer(qi)
    }
}

impl Common {
    /// The QP of a QPN.
    pub fn qp_of(&self, qpn: u32) -> Option<usize> {
        let i = qpn.wrapping_sub(self.qpn_base) as usize;
        match self.by_qpn.get(i) {
            Some(&n) if n != 0 => Some(n as usize - 1),
            _ => None,
        }
    }

    /// The SRQ of a number.
    pub(crate) fn srq_of(&self, number: u32) -> Option<usize> {
        let i = number.wrapping_sub(self.qpn_base) as usize;
        self.by_srqn.get(i).and_then(|n| n.checked_sub(1)).map(|i| i as usize)
    }

    /// Whether a QPN is of this engine's block.
    pub fn owns(&self, qpn: u32) -> bool {
        (qpn.wrapping_sub(self.qpn_base) as usize) < self.by_qpn.len()
    }

    /// Wakes QPs that waited for a window to open.
    #[inline(always)]
    pub(crate) fn wake_windows(&mut self) {
        if !self.win_wait.is_empty() {
            self.wake_waiting();
        }
    }

    #[cold]
    #[inline(never)]
    fn wake_waiting(&mut self) {
        let mut from = 0;
        while let Some(qi) = self.win_wait.next_from(from) {
            self.win_wait.clear(qi);
            self.ready.set(qi);
            from = qi + 1;
        }
    }
}
