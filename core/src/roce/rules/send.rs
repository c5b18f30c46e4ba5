//! Sending: which request may leave, and how the state changes when it has left.

use crate::ring::{EngineConsumer, SlotRef};
use crate::roce::conn::Conn;
use crate::roce::peer::PROBE_NS;
use crate::roce::run::Run;
use crate::verbs::kind::QpKind;
use crate::verbs::objects::Qp;
use crate::verbs::types::wr_opcode;
use crate::verbs::wqe::SendWqe;
use crate::wire::{Class, Opcode, PacketKind, Psn};

/// Most unacknowledged PSNs: half the PSN space, so that old and new ones can be told apart.
pub(in crate::roce) const PSN_WINDOW: u32 = (1 << 23) - 1;

/// The class of single messages, of DC or else of RC.
#[inline(always)]
pub(in crate::roce) const fn class_of_singles(dc: bool) -> Class {
    if dc {
        Class::Dc
    } else {
        Class::Rc
    }
}

/// The opcode of the one packet of a request of [`wr_opcode`], one up to SEND_WITH_IMM.
#[inline(always)]
fn single_opcode(opcode: u8, is_write: bool) -> Opcode {
    const SEND: u8 = Opcode::RC_SEND_ONLY.0 - wr_opcode::SEND as u8;
    const WRITE: u8 = Opcode::RC_WRITE_ONLY.0 - wr_opcode::RDMA_WRITE as u8;
    // The compiler turns this sum into two instructions.
    Opcode(opcode + SEND + u8::from(is_write) * (WRITE - SEND))
}

/// A single request that may leave: one packet of a SEND or a WRITE, which nothing of its queue
/// pair blocks.
pub(in crate::roce) struct Eligible<'q> {
    pub(in crate::roce) index: u32,
    pub(in crate::roce) slot: SlotRef<'q, SendWqe>,
    pub(in crate::roce) op: Opcode,
    /// Its packet.
    pub(in crate::roce) run: Run,
}

/// A single request that is written, with the ACK that its QP owes. The engine's state does not
/// contain it yet.
#[must_use = "what was handed over must be noted"]
pub(in crate::roce) struct PreparedSend {
    /// Bytes that were written.
    pub(in crate::roce) len: usize,
    pub(in crate::roce) payload: u32,
    /// Bytes of the request's packet, as the counters count them.
    pub(in crate::roce) bytes: u32,
    pub(in crate::roce) acks: bool,
}

/// Packets that have left.
pub(in crate::roce) struct Departed {
    /// PSN of the first packet.
    pub(in crate::roce) psn: Psn,
    /// PSNs that they take. A READ request takes those of its answer.
    pub(in crate::roce) psns: u32,
    pub(in crate::roce) packets: u32,
    /// Bytes from BTH to ICRC.
    pub(in crate::roce) bytes: u64,
    pub(in crate::roce) charge: Charge,
}

/// Window that packets count against.
pub(in crate::roce) enum Charge {
    /// None: no ACK will come (UC), or it is there already (within the engine).
    Free,
    /// Bytes of the window to the peer; `asked`: the last packet asks for an ACK.
    Window { bytes: u32, asked: bool },
    /// Bytes of the window of READ responses.
    ReadWindow(u32),
}

impl Qp {
    /// The only waiting request of the send queue, of the opcodes from `first` to `last`, if
    /// nothing of its queue pair blocks it and its bytes are those of one packet. The caller checks
    /// that the request has not begun ([`Qp::has_begun`], [`Qp::begin_single`]). `DC`: the queue
    /// pair is a DCI, whose association the caller checks, too (`Common::try_association`); else it
    /// is RC.
    #[inline(always)]
    pub(in crate::roce) fn next_alone<'q, const DC: bool>(
        &mut self,
        sq: &'q EngineConsumer<'_, SendWqe>,
        (first, last): (u32, u32),
    ) -> Option<(u32, SlotRef<'q, SendWqe>)> {
        let index = self.conn.req.next;
        let alone = sq.end() == index.wrapping_add(1);
        if !alone || (DC && self.kind != QpKind::Dci) || !self.may_send_new::<DC>() {
            return None;
        }
        let slot = sq.at(index);
        let wqe = slot.header();
        let opcode = u32::from(wqe.opcode);
        if opcode < first || opcode > last {
            return None;
        }
        let outstanding = self.conn.req.next_psn.since(self.conn.req.una_psn);
        let waits = wqe.is_fenced() && self.conn.req.acked != index;
        if wqe.length > u64::from(self.conn.mtu) || waits || outstanding >= PSN_WINDOW {
            return None;
        }
        Some((index, slot))
    }

    /// The only waiting request of the send queue, if it is single. The caller checks the peer's
    /// window. `DC`: see [`Qp::next_alone`].
    #[inline(always)]
    pub(in crate::roce) fn next_single<'q, const DC: bool>(
        &mut self,
        sq: &'q EngineConsumer<'_, SendWqe>,
    ) -> Option<Eligible<'q>> {
        let opcodes = (wr_opcode::RDMA_WRITE, wr_opcode::SEND_WITH_IMM);
        let (index, slot) = self.next_alone::<DC>(sq, opcodes)?;
        let wqe = slot.header();
        let opcode = u32::from(wqe.opcode);
        let is_write = opcode <= wr_opcode::RDMA_WRITE_WITH_IMM;
        let class = class_of_singles(DC);
        let op = single_opcode(wqe.opcode as u8, is_write).rc_to_class(class);
        let run = Run {
            solicited: wqe.is_solicited(),
            ack_req: true,
            has_imm: opcode & 1 != 0,
            va: wqe.remote_addr,
            rkey: wqe.rkey,
            dma_len: wqe.length as u32,
            imm: wqe.imm,
            ..Run::new(
                class,
                if is_write { PacketKind::Write } else { PacketKind::Send },
                self.attr.dest_qp_num,
                self.conn.req.next_psn,
            )
        };
        Some(Eligible { index, slot, op, run })
    }

    /// Whether the request at an index has begun. None of its packets need have left.
    #[inline(always)]
    pub(in crate::roce) fn has_begun(&self, index: u32) -> bool {
        self.wqes[self.wqe_at(index)].started
    }

    /// Begins the single request at an index. False: the request has begun before, and nothing has
    /// changed.
    #[inline(always)]
    pub(in crate::roce) fn begin_single(&mut self, index: u32) -> bool {
        let psn = self.conn.req.next_psn;
        let ws = self.wqe(index);
        if ws.started {
            return false;
        }
        (ws.started, ws.psn, ws.npkts) = (true, psn, 1);
        true
    }

    /// Begins the request at an index, which takes `npkts` PSNs from the next one on.
    #[inline(always)]
    pub(in crate::roce) fn begin_request(&mut self, index: u32, npkts: u32) {
        let psn = self.conn.req.next_psn;
        let ws = self.wqe(index);
        // The other fields are zero, because the request before has cleared them.
        (ws.started, ws.psn, ws.npkts) = (true, psn, npkts);
    }
}

impl Conn<'_> {
    /// Records that packets of the next request have left: PSNs, windows and counters, without
    /// [`Conn::start_timers`]. `SINGLE` compiles out the cases that a single request cannot have.
    #[inline(always)]
    pub(in crate::roce) fn note_sent<const SINGLE: bool>(&mut self, sent: &Departed) {
        let (req, peer) = (&mut self.qp.conn.req, &mut *self.peer);
        let next = sent.psn.add(sent.psns);
        let again = if SINGLE { 0 } else { req.max_psn.diff(sent.psn).max(0) as u32 };
        req.next_psn = next;
        if SINGLE || next.diff(req.max_psn) > 0 {
            req.max_psn = next;
        }
        match sent.charge {
            Charge::Free => {}
            Charge::Window { bytes, asked } => {
                req.inflight = req.inflight.saturating_add(bytes);
                if !SINGLE {
                    req.unasked = if asked { 0 } else { req.unasked.saturating_add(bytes) };
                }
                peer.tx.on_sent(bytes);
            }
            Charge::ReadWindow(bytes) => {
                req.read_inflight = req.read_inflight.saturating_add(bytes);
                peer.rx.on_sent(bytes);
            }
        }
        let c = &mut self.qp.counters;
        c.count_sent(sent.packets, sent.bytes);
        if !SINGLE && again > 0 {
            c.retransmitted_pkts += u64::from(again.min(sent.packets));
        }
    }

    /// Counts packets that left beside [`Conn::note_sent`]: answers, ACKs, datagrams.
    #[inline(always)]
    pub(in crate::roce) fn count_sent(&mut self, packets: u32, bytes: u64) {
        self.qp.counters.count_sent(packets, bytes);
    }

    /// Starts the timers for a request that has left, unless they run for an earlier one.
    #[inline(always)]
    pub(in crate::roce) fn start_timers(&mut self, now: u64) {
        let req = &mut self.qp.conn.req;
        if req.ack_deadline == 0 {
            req.silent_since = now;
            req.ack_deadline = now + self.qp.conn.timeout_ns;
            req.probe_at = self.peer.probe_at(now);
            req.probe_wait = PROBE_NS;
        }
    }
}
