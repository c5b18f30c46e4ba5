//! The transport: requester, completer and responder over the tables of QPs, CQs, keys and peers.
//!
//! Sans-IO: packets come in through [`Transport::handle_run`], go out through [`Transport::transmit`],
//! time comes as an argument. Everything here runs inside the engine's lock, which the [`EngineKey`]
//! in [`Transport`] stands for.
//!
//! Files as the standard divides the work: `requester` (requests out), `completer` (answers in),
//! `responder` (requests in), `answers` (answers out), `datagram` (UD), `multicast` (groups), `congestion` (marks, notifications),
//! `siege` (what strangers forge), `rnr` (peers that are not ready), `witness` (why a peer is silent), `direct`, `lone` and `lone_wire`
//! (what needs none of their questions), `mapped` (what needs no packet), `queues` (completions, flush, states).

mod answers;
mod completer;
mod congestion;
mod datagram;
mod direct;
mod keepalive;
pub mod lone;
mod lone_wire;
pub mod mapped;
pub mod multicast;
pub mod peer;
pub mod peer_memory;
mod queues;
mod requester;
mod responder;
mod rnr;
pub(crate) mod rules;
pub mod run;
mod siege;
pub mod txbuf;
mod witness;

use crate::arena::{RawSlice, Table};
use crate::bitmap::Bitmap;
use crate::config::Config;
use crate::counters::Counters;
use crate::mem::{Access, Providers, Regions, Token};
use crate::roce::peer::{Path, Peer, PeerAddr};
use crate::verbs::cause::{Cause, CauseCode};
use crate::verbs::objects::{Ah, Cq, Hold, Pd, Qp, Srq};
use crate::verbs::shared::{EngineKey, Shared};
use crate::verbs::types::{qp_state, qp_type};
use crate::wheel::Wheel;
use crate::wire::Class;
use run::Run;

/// An owed ACK waits at most this long for company.
pub const ACK_DELAY_NS: u64 = 20_000;
/// An owed ACK does not wait once this many packets have come.
pub const ACK_PACKETS: u32 = 8;
/// While one message waits for slow memory, so many behind it may set out there as well.
pub(crate) const AHEAD: u32 = 8;
/// READs are asked for in pieces of this many bytes.
pub const READ_PIECE: u32 = 64 << 10;

/// What `transmit` left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// The QP has nothing more to send now; an event will say when it has.
    Idle,
    /// The burst is full; the QP has more.
    Full,
    /// What the QP sends next travels on the other path (another link, loopback, or the port).
    OtherPath,
}

/// Who sent what arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The sender's GID.
    pub gid: [u8; 16],
    /// How it came.
    pub path: Path,
    /// The sender's UDP port, where it came through the port.
    pub port: u16,
}

/// All state of the transport.
pub struct Transport {
    /// Proof of the lock.
    pub key: EngineKey,
    /// The configuration, every zero replaced.
    pub config: Config,
    /// This engine's GID.
    pub gid: [u8; 16],
    /// Queue pairs.
    pub qps: Table<Qp>,
    /// Completion queues.
    pub cqs: Table<Cq>,
    /// Shared receive queues.
    pub srqs: Table<Srq>,
    /// Address handles.
    pub ahs: Table<Ah>,
    /// Handles of AHs.
    pub ah_pool: crate::pool::Pool,
    /// Protection domains.
    pub pds: Table<Pd>,
    /// Handles of PDs.
    pub pd_pool: crate::pool::Pool,
    /// Peers.
    pub peers: Table<Peer>,
    /// Memory regions and windows.
    pub regions: Regions,
    /// Kinds of memory.
    pub providers: Providers,
    /// QP index + 1 by QPN, within the block.
    pub by_qpn: RawSlice<u32>,
    /// First QPN of the block.
    pub qpn_base: u32,
    /// Peers may answer through the port what they hear over a link, and the other way round.
    pub mixed_paths: bool,
    /// QPs with something to send.
    pub ready: Bitmap,
    /// QPs that owe an ACK.
    pub acks: rules::ack::AckQueue,
    /// QPs that wait for slow memory.
    pub mem_wait: Bitmap,
    /// QPs that wait for room in a CQ.
    pub cq_wait: Bitmap,
    /// CQs that they wait for.
    pub full_cqs: Bitmap,
    /// QPs that wait for a window to open.
    pub win_wait: Bitmap,
    /// QPs that owe their peer a congestion notification; `ready` as well.
    pub cnp_owed: Bitmap,
    /// One timer per QP.
    pub wheel: Wheel,
    /// Until then some QP may be besieged.
    pub siege_until: u64,
    /// QPs whose peers are of this kind refuse packets from other UDP ports than those that were allowed.
    pub check_ports: bool,
    /// Whoever runs the engine may know why a peer is silent, and is asked before it is given up.
    pub has_witness: bool,
    /// QPs whose peers are about to be given up.
    pub suspects: Bitmap,
    /// A port that was refused so, and its peer: the caller may look who that is.
    pub refused_port: Option<(PeerAddr, u16)>,
    /// Events of the whole device.
    pub counters: Counters,
    /// The last cause on any QP.
    pub cause: Cause,
    /// Members of multicast groups.
    pub members: multicast::Members,
    /// The QP whose only request left without a date ([`Transport::date`]), or [`NONE`](crate::verbs::objects::NONE).
    pub undated: u32,
    /// CQ polled by the thread that runs this round.
    pub handoff: rules::cq::CompletionHandoff,
    /// QPs and SRQs with asynchronous events: QPs by index.
    pub event_qps: Bitmap,
    /// Moves with everything that [`Transport::mappable`] asks: states and attributes of QPs, regions that end.
    pub changes: u32,
}

impl Transport {
    /// The QP of a QPN.
    #[inline]
    pub fn qp_of(&self, qpn: u32) -> Option<usize> {
        let i = qpn.wrapping_sub(self.qpn_base) as usize;
        match self.by_qpn.get(i) {
            Some(&n) if n != 0 => Some(n as usize - 1),
            _ => None,
        }
    }

    /// Whether the peer of an RC QP has sent something in order since it was connected: who does not see our messages would have to
    /// guess the PSN.
    pub(crate) fn has_heard(&self, qpn: u32) -> bool {
        let Some(qp) = self.qp_of(qpn).and_then(|qi| self.qps.get(qi)) else { return false };
        qp.kind == qp_type::RC && qp.can_receive() && qp.resp.epsn.get() != qp.attr.rq_psn
    }

    /// Whether a QPN is of this engine's block.
    #[inline]
    pub fn owns(&self, qpn: u32) -> bool {
        (qpn.wrapping_sub(self.qpn_base) as usize) < self.by_qpn.len()
    }

    /// Takes one run from a peer. Anything a peer can send is legal input here.
    #[inline]
    pub fn handle_run(&mut self, s: &Shared, now: u64, from: &Origin, run: &Run, payload: &[u8]) {
        let Some(qi) = self.qp_of(run.dest_qpn) else {
            self.counters.rcvd_no_qp += 1;
            return;
        };
        let qp = &mut self.qps[qi];
        if !qp.can_receive() {
            if !self.repeat_nak(qi, from, run) {
                self.counters.rcvd_no_qp += 1;
            }
            return;
        }
        let class = match qp.kind {
            qp_type::RC => Class::Rc,
            qp_type::UC => Class::Uc,
            _ => Class::Ud,
        };
        if run.class == Class::Cnp && qp.kind != qp_type::UD {
            return self.handle_cnp(qi, now, from);
        }
        if run.class != class {
            self.refuse(qi, now);
            return;
        }
        // The membership bit of a P_Key may differ; a limited member may not talk to another.
        if run.pkey & 0x7fff != 0x7fff {
            self.refuse(qi, now);
            return;
        }
        // What comes from this engine itself names no address that could be another's.
        if qp.kind != qp_type::UD && !(qp.loopback && from.path == Path::Loopback) {
            let peer = &self.peers[qp.peer as usize];
            if peer.addr.gid != from.gid || !peer.path.answers(from.path, self.mixed_paths) {
                self.refuse(qi, now);
                return;
            }
            if qp.own_port && from.path == Path::Port && !peer.sends_from(from.port) {
                self.refused_port = Some((peer.addr, from.port));
                self.refuse(qi, now);
                return;
            }
        }
        qp.counters.rcvd_pkts += u64::from(run.n);
        self.counters.rcvd_pkts += u64::from(run.n);
        let bytes = run.wire_bytes(run.n, payload.len() as u32);
        qp.counters.rcvd_bytes += bytes;
        self.counters.rcvd_bytes += bytes;
        match class {
            Class::Rc => {
                let stood = (qp.resp.epsn, qp.req.una_psn);
                if is_answer(run) {
                    self.handle_answer(s, qi, now, from.port, run, payload);
                } else {
                    self.handle_request(s, qi, now, run, payload);
                }
                let qp = &mut self.qps[qi];
                if stood != (qp.resp.epsn, qp.req.una_psn) {
                    qp.learn_port(from.port);
                }
            }
            Class::Uc => self.handle_uc(s, qi, now, run, payload),
            _ => {
                let own = self.gid;
                self.handle_ud(s, qi, now, from, &own, run, payload);
            }
        }
    }

    /// A QP that has failed its peer says so again when the peer asks again: the NAK may have been lost. False: it is no
    /// such QP, or nobody that it answers.
    #[cold]
    fn repeat_nak(&mut self, qi: usize, from: &Origin, run: &Run) -> bool {
        let ours = self.is_from_peer(qi, from) && run.pkey & 0x7fff == 0x7fff;
        let qp = &mut self.qps[qi];
        let Some(syndrome) = qp.resp.fatal_nak else { return false };
        if qp.state != qp_state::ERR || run.class != Class::Rc || is_answer(run) || !ours {
            return false;
        }
        let resp = &mut qp.resp;
        resp.nak_owed = Some(syndrome);
        // The answer that failed may have been one that the peer no longer waits for; a NAK behind what it asks for now
        // would mean nothing to it. Everything before the expected PSN was executed.
        if run.psn.diff(resp.fatal_psn) > 0 {
            resp.fatal_psn = if run.psn.diff(resp.epsn) < 0 { run.psn } else { resp.epsn };
        }
        self.ready.set(qi);
        true
    }

    /// Owes the peer a NAK that ends the connection at a PSN.
    #[cold]
    pub(crate) fn owe_fatal_nak(&mut self, qi: usize, code: crate::wire::NakCode, psn: crate::wire::Psn) {
        let syndrome = crate::wire::Syndrome::Nak(code).byte();
        let resp = &mut self.qps[qi].resp;
        resp.nak_owed = Some(syndrome);
        resp.fatal_nak = Some(syndrome);
        resp.fatal_psn = psn;
        self.ready.set(qi);
    }

    #[cold]
    fn refuse(&mut self, qi: usize, now: u64) {
        self.counters.rcvd_refused += 1;
        self.qps[qi].counters.rcvd_refused += 1;
        self.note_odd(qi, now);
    }

    /// Whether a QP's peer is who sent something.
    fn is_from_peer(&self, qi: usize, from: &Origin) -> bool {
        let qp = &self.qps[qi];
        let answers = |p: &Peer| {
            let own = !qp.own_port || from.path != Path::Port || p.sends_from(from.port);
            p.addr.gid == from.gid && p.path.answers(from.path, self.mixed_paths) && own
        };
        self.peers.get(qp.peer as usize).is_some_and(answers)
    }

    /// Notes a cause on a QP and on the device.
    #[cold]
    pub fn note(&mut self, qi: usize, now: u64, code: CauseCode, status: u32, arg0: u64, arg1: u64) {
        let qp = &self.qps[qi];
        let peer = self.peers.get(qp.peer as usize).map_or([0; 16], |p| p.addr.gid);
        let cause = Cause {
            code: code as u32,
            wc_status: status,
            peer,
            qpn: qp.qpn,
            remote_qpn: qp.attr.dest_qp_num,
            psn: qp.req.una_psn.get(),
            counter: counter_of(code),
            arg0,
            arg1,
            time_ns: now,
        };
        self.cause = cause;
        self.qps[qi].cause = cause;
    }

    /// Asks slow memory whether what QPs wait for has come. O(waiting QPs).
    pub fn poll_memory(&mut self, s: &Shared, now: u64) {
        let mut from = 0;
        while let Some(qi) = self.mem_wait.next_from(from) {
            if qi < from {
                break;
            }
            from = qi + 1;
            let mut waiting = false;
            if let Hold::Memory(provider, token) = self.qps[qi].req.hold {
                if matches!(self.providers.poll(u32::from(provider), token), Access::Pending(_)) {
                    waiting = true;
                } else {
                    // Ready; or a fault, which the next fetch will see and report.
                    self.qps[qi].go_on();
                    self.ready.set(qi);
                }
            }
            waiting |= self.pass_fences(s, qi, now);
            waiting |= self.complete(s, qi, now);
            if self.qps[qi].resp.job_len > 0 {
                self.ready.set(qi);
                waiting = true;
            }
            if !waiting {
                self.mem_wait.clear(qi);
            }
        }
    }

    /// Runs the timer of a QP that the wheel gave back.
    pub fn on_timer(&mut self, s: &Shared, qi: usize, now: u64) {
        self.qps[qi].req.armed_at = 0;
        match self.qps[qi].req.hold {
            Hold::Rnr(at) | Hold::Rate(at) if at <= now => {
                self.qps[qi].go_on();
                self.ready.set(qi);
            }
            _ => {}
        }
        if self.qps[qi].resp.job_len > 0 {
            // An answer that waited for its rate.
            self.ready.set(qi);
        }
        let req = &mut self.qps[qi].req;
        if req.probe_at != 0 && req.probe_at <= now {
            req.probe_wait = req.probe_wait.saturating_mul(2);
            req.probe_at = now.saturating_add(req.probe_wait);
            req.probe = true;
            self.ready.set(qi);
        }
        let deadline = self.qps[qi].req.ack_deadline;
        if deadline != 0 && deadline <= now {
            self.on_ack_timeout(s, qi, now);
        }
        self.arm(qi);
        if self.qps[qi].keep.at != 0 {
            if self.qps[qi].keep.at <= now {
                self.keep_alive(s, qi, now);
            }
            let at = self.qps[qi].keep.at;
            self.wake_at(qi, if at == 0 { u64::MAX } else { at });
        }
    }

    /// Makes sure that the wheel wakes the QP for its earliest deadline. An armed timer that is too
    /// early is left alone: it fires, finds nothing due and is armed again.
    #[inline(always)]
    pub(crate) fn arm(&mut self, qi: usize) {
        let at = self.qps[qi].req.next_deadline();
        self.wake_at(qi, at);
    }

    /// The QP's timer runs at this time at the latest; `u64::MAX`: it need not.
    #[inline(always)]
    pub(crate) fn wake_at(&mut self, qi: usize, at: u64) {
        let req = &mut self.qps[qi].req;
        // The wheel's own answer to the same question takes another two cache lines.
        if at != u64::MAX && (req.armed_at == 0 || req.armed_at > at) {
            req.armed_at = at;
            self.wheel.arm(qi, at);
        }
    }

    /// Wakes QPs that waited for a window to open.
    #[inline(always)]
    pub(crate) fn wake_windows(&mut self) {
        if self.win_wait.is_empty() {
            return;
        }
        let mut from = 0;
        while let Some(qi) = self.win_wait.next_from(from) {
            self.win_wait.clear(qi);
            self.ready.set(qi);
            from = qi + 1;
        }
    }

    /// How what a QP sends next will travel.
    #[inline]
    pub(crate) fn next_path(&self, s: &Shared, qi: usize) -> Option<Path> {
        let qp = &self.qps[qi];
        if qp.kind == qp_type::UD {
            return self.next_datagram_path(s, qi);
        }
        self.peers.get(qp.peer as usize).map(|p| p.path)
    }

    /// Marks a QP that waits for slow memory.
    #[cold]
    pub(crate) fn hold_for_memory(&mut self, qi: usize, provider: u32, token: Token) {
        self.qps[qi].req.hold = Hold::Memory(provider as u8, token);
        self.mem_wait.set(qi);
    }
}

#[inline]
fn is_answer(run: &Run) -> bool {
    use crate::wire::Kind;
    matches!(run.kind, Kind::Ack | Kind::ReadResponse | Kind::AtomicAck)
}

/// The counter (by index) that goes with a cause.
fn counter_of(code: CauseCode) -> u32 {
    let name = match code {
        CauseCode::RetryExceeded
        | CauseCode::Deadline
        | CauseCode::PeerUnreachable
        | CauseCode::NotPolled
        | CauseCode::Unanswered => "retry_exceeded_err",
        CauseCode::Keepalive => "keepalives",
        CauseCode::RnrRetryExceeded => "retry_rnr_exceeded_err",
        CauseCode::RemoteAccess | CauseCode::RemoteInvalidRequest | CauseCode::RemoteOperation => "rcvd_nak_err",
        CauseCode::PeerUsedBadKey
        | CauseCode::PeerLeftRange
        | CauseCode::PeerLacksAccess
        | CauseCode::PeerBadRequest
        | CauseCode::MessageTooLong
        | CauseCode::MisalignedAtomic => "send_nak_err",
        CauseCode::Socket | CauseCode::Firewall | CauseCode::NoRoute | CauseCode::MtuExceeded => "send_err",
        _ => return u32::MAX,
    };
    Counters::NAMES.iter().position(|n| *n == name).map_or(u32::MAX, |i| i as u32)
}
