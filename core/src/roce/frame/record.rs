//! Single requests and messages as records of a link, and the ACK beside them.
//!
//! A single message is written, published and recorded in one step, and accepted in one step. The
//! general path takes everything else. State, counters and bytes are as the general path leaves
//! them: `core/tests/engine/shapes/single.rs` runs both over the same requests and compares them.

use core::sync::atomic::Ordering;

use crate::mem::{RegisteredMemory, TransferId};
use crate::receipt::Receipts;
use crate::ring::SlotRef;
use crate::roce::answers::ACK_UNLIMITED;
use crate::roce::conn::Conn;
use crate::roce::peer::Path;
use crate::roce::rules::send::{class_of_singles, Eligible, PreparedSend};
use crate::roce::run::{head_flags, memory_of_head, RecordBase, Run, Words};
use crate::roce::run::{HEAD_MAX, HEAD_MIN, RECORD_ALIGN};
use crate::roce::Transport;
use crate::verbs::shared::Shared;
use crate::verbs::wqe::{DcAddr, SendWqe};
use crate::verbs::NONE;
use crate::wire::{packet_bytes, Class, Opcode, PacketKind, Psn, Syndrome};

/// Bytes of the head of a record that names memory.
const HEAD_MEMORY: usize = HEAD_MIN + 16;
/// Opcode bit that a WRITE of one packet has, and a SEND of one packet has not.
const WRITES: u8 = Opcode::RC_WRITE_ONLY.0 & !Opcode::RC_SEND_ONLY.0 & 8;
const _: () = assert!(WRITES == 8);

/// The shape that the first record of a frame seems to have. The compiler makes a function of each
/// shape, which checks that the record has it.
pub mod shape {
    /// A SEND, and maybe an ACK beside it.
    pub const SEND: u8 = 0;
    /// A WRITE, and maybe an ACK beside it.
    pub const WRITE: u8 = 1;
    /// An ACK.
    pub const ACK: u8 = 2;
}
/// Flags of the record of a single message, besides SOLICITED and ACK_REQ.
const WHOLE: u8 = head_flags::FIRST | head_flags::LAST;

/// Result of [`Transport::take_record`]: it took the ACK beside a message, and left the message.
pub const ACK_BESIDE: usize = usize::MAX;

/// The links of a port, as far as small messages need them.
pub trait Links {
    /// A frame that is being written.
    type Frame<'p>: Frame
    where
        Self: 'p;
    /// Room for a frame to a link, and the frame; `None`: no room now. A frame that is not
    /// committed is discarded.
    fn begin(&mut self, link: u16) -> Option<(&mut [u8], Self::Frame<'_>)>;
}

/// A frame in the room that was given with it.
pub trait Frame {
    /// Publishes its first `len` bytes. Returns the address of the place for the next frame, for
    /// [`crate::mem::host::expect_write`]; 0: not known.
    fn commit(self, len: usize) -> u64;
}

#[inline(always)]
fn padded_len(len: usize) -> usize {
    (len + RECORD_ALIGN - 1) & !(RECORD_ALIGN - 1)
}

impl Transport {
    /// Sends the only waiting request of the QP at an index over its link, and behind it the ACK
    /// that the QP owes, if the request is single. The ACK timer is armed at the next read of the
    /// clock ([`Transport::arm_deferred_timer`]), because mostly the ACK comes before. At most one
    /// QP is deferred: `clock` is read at once if another QP is deferred, or if the timer is
    /// `wanted` now. False: nothing has changed.
    ///
    /// `DC`: the QP is a DCI, for which the clock is always read; else it is RC.
    #[inline(always)]
    pub(crate) fn send_single<const DC: bool, L: Links>(
        &mut self,
        s: &Shared,
        qi: usize,
        links: &mut L,
        wanted: bool,
        clock: impl Fn() -> u64,
    ) -> bool {
        let Some(mut c) = self.connected(s, qi) else { return false };
        let Some((prepared, frame, now)) = c.write_single::<DC, L>(links, &clock) else {
            return false;
        };
        let next = frame.commit(prepared.len);
        c.q.next_frame.store(next, Ordering::Relaxed);
        c.note_single_sent(&prepared);
        if DC {
            c.qp.association().used_at = now;
        }
        let timer_deferred = c.common.timer_deferred;
        if c.qp.conn.req.ack_deadline != 0 {
            // The ACK timer runs already, for an earlier request.
            c.arm_timer();
        } else if !wanted && (timer_deferred == NONE || timer_deferred == qi as u32) {
            c.common.timer_deferred = qi as u32;
        } else {
            c.reborrow().start_timers_now(clock());
        }
        true
    }

    /// Takes the first record of `rest`, which came over a link from `gid`, if it is a single
    /// message in order, or the ACK of single requests; also the ACK beside a message. `w`: the
    /// first words of `rest`. `receipts`: those of the link. Returns the bytes taken; 0: nothing
    /// has changed; [`ACK_BESIDE`]: only the ACK beside the message was taken. `DC`: the record is
    /// of DC. `SHAPE`: its [`shape`].
    #[inline(never)]
    pub(crate) fn take_record<const DC: bool, const SHAPE: u8, W: Words>(
        &mut self,
        s: &Shared,
        now: u64,
        gid: &[u8; 16],
        w: W,
        rest: &[u8],
        receipts: &Receipts,
    ) -> usize {
        let base = [w.word(0), w.word(1), w.word(2)];
        let h = RecordBase::from_base(base);
        let class = class_of_singles(DC);
        let (op, flags, len) = (h.op.class_to_rc(class), h.flags, h.payload as usize);
        let qi = self.common.qp_of(h.dest_qpn);
        let Some(mut c) = qi.and_then(|qi| self.connected(s, qi)) else { return 0 };
        let whole = flags & (WHOLE | head_flags::BECN) == WHOLE && h.n == 1;
        let takes = if DC { c.qp.takes_singles_of_dc() } else { c.qp.is_rc_in_rts() };
        if !takes || !whole || !c.has_address_of_peer(gid, Path::Link(0)) {
            return 0;
        }
        let (is_ack, is_write) = (SHAPE == shape::ACK, SHAPE == shape::WRITE);
        let head = if is_write { HEAD_MEMORY } else { HEAD_MIN };
        let end = head + padded_len(len);
        let message =
            op.0 & !1 == if is_write { Opcode::RC_WRITE_ONLY } else { Opcode::RC_SEND_ONLY }.0;
        if !is_ack && (!message || end > rest.len()) {
            return 0;
        }
        // The ACK beside a message is taken first, because the peer received before it sent. So a
        // program with one CQ for both queues sees its own request complete before the peer's
        // reply, as with a NIC. Beside a short message the ACK lies among the first words.
        let psn = match is_ack {
            true => acked_psn(RecordBase { op, ..h }),
            // No queue pair of DC sends a message and an ACK.
            false if DC => None,
            false => ack_beside(w, base[1] as u32, end, rest.len()),
        };
        // This is no closure, because the compiler may not inline one that is called once in each
        // shape.
        let acked = match psn {
            Some(psn) => c.end_singles_through(now, psn),
            None => false,
        };
        let mut taken = 0;
        if !is_ack {
            if !acked && psn.is_some() && (!is_write || op.0 & 1 != 0) {
                // The general path takes both, the ACK first as well.
                return 0;
            }
            let (va, rkey, dma_len) = if is_write { RecordBase::memory(w) } else { (0, 0, 0) };
            let kind = if is_write { PacketKind::Write } else { PacketKind::Send };
            let run = Run {
                has_imm: op.0 & 1 != 0,
                solicited: flags & head_flags::SOLICITED != 0,
                ack_req: flags & head_flags::ACK_REQ != 0,
                imm: h.extra,
                va,
                rkey,
                dma_len,
                ..Run::new(class, kind, h.dest_qpn, h.psn)
            };
            let bytes = packet_bytes(op, len);
            if c.take_single::<DC>(now, &run, bytes, &rest[head..head + len]) {
                taken = end;
                let former = receipts.leave_word(base[1]);
                if former != 0 {
                    c.common.flush_ack_of(former);
                }
            } else if !acked {
                return 0;
            } else {
                c.note_single_ended();
                return ACK_BESIDE;
            }
        }
        if acked {
            c.note_single_ended();
            taken += HEAD_MIN;
        }
        taken
    }
}

impl Conn<'_> {
    /// Writes the only waiting request, and the owed ACK, into room of its link. If there is a
    /// result the request has begun; nothing else changes. Returns the time as well, for DC only.
    #[inline(always)]
    fn write_single<'p, const DC: bool, L: Links>(
        &mut self,
        links: &'p mut L,
        clock: impl Fn() -> u64,
    ) -> Option<(PreparedSend, L::Frame<'p>, u64)> {
        let qp = &mut *self.qp;
        let sq = self.q.engine_sq(&self.common.key);
        let Eligible { index, slot, op, run } = qp.next_single::<DC>(&sq)?;
        let now = if DC { clock() } else { 0 };
        if DC && !self.common.try_association(qp, &DcAddr::read(slot.tail()), now) {
            return None;
        }
        let wqe = slot.header();
        let is_write = run.kind == PacketKind::Write;
        let head = if is_write { HEAD_MEMORY } else { HEAD_MIN };
        let Path::Link(link) = self.peer.path else { return None };
        if self.peer.tx.available() == 0 {
            return None;
        }
        let payload = wqe.length as u32;
        let len = payload as usize;
        let behind = head + padded_len(len);
        let (room, frame) = links.begin(link)?;
        let record = room.get_mut(..behind + HEAD_MIN)?;
        match record[head..].first_chunk_mut() {
            // Most small messages are 8 inline bytes, which need no call.
            Some(word) if len == 8 && wqe.inline != 0 => *word = *slot.tail().first_chunk::<8>()?,
            _ if len > 0 => {
                let body = &mut record[head..head + len];
                let of = TransferId::request(qp.qpn, index, 0);
                // A copy for this call, which needs its address.
                let apart = slot;
                // A fetch that slow memory begins here continues for the general path.
                gather(&self.common.memory, qp.pd, &apart, body, of)?;
            }
            _ => {}
        }
        if !qp.begin_single(index) {
            return None;
        }
        let flags = WHOLE
            | head_flags::ACK_REQ
            | if wqe.is_solicited() { head_flags::SOLICITED } else { 0 };
        let Run { dest_qpn, psn, .. } = run;
        let h = RecordBase { payload, op, flags, syndrome: 0, dest_qpn, psn, n: 1, extra: wqe.imm };
        record[..HEAD_MIN].copy_from_slice(h.bytes().as_flattened());
        if is_write {
            let memory = memory_of_head(wqe.remote_addr, wqe.rkey, payload);
            record[HEAD_MIN..HEAD_MEMORY].copy_from_slice(memory.as_flattened());
        }
        let acks = !DC && qp.conn.resp.ack_owed;
        if acks {
            let (psn, extra) = (qp.conn.resp.ack_psn, qp.conn.resp.ack_msn);
            let (op, flags, syndrome) = (Opcode::RC_ACK, WHOLE, ACK_UNLIMITED);
            let ack = RecordBase { payload: 0, op, flags, syndrome, dest_qpn, psn, n: 1, extra };
            record[behind..].copy_from_slice(ack.bytes().as_flattened());
        }
        let bytes = packet_bytes(op, len) as u32;
        let len = behind + if acks { HEAD_MIN } else { 0 };
        Some((PreparedSend { len, payload, bytes, acks }, frame, now))
    }
}

/// The bytes of a request that are not 8 inline ones.
#[cold]
#[inline(never)]
fn gather(
    memory: &RegisteredMemory,
    pd: u32,
    slot: &SlotRef<'_, SendWqe>,
    body: &mut [u8],
    of: TransferId,
) -> Option<()> {
    memory.gather(pd, slot, 0, body, of).ok().map(|_| ())
}

/// Offset of the ACK in a frame that holds one single message, which takes a receive request, and
/// that ACK. `w`: the first words of the frame; `len`: its bytes. The reader takes the ACK first,
/// as [`Transport::take_record`] does if the ACK is among the words.
#[inline(always)]
pub fn ack_behind(w: &[u64; HEAD_MAX / 8], len: usize) -> Option<usize> {
    let h = RecordBase::from_words(w);
    let head = match h.op {
        Opcode::RC_SEND_ONLY | Opcode::RC_SEND_ONLY_IMM => HEAD_MIN,
        Opcode::RC_WRITE_ONLY_IMM => HEAD_MEMORY,
        // A WRITE completes nothing at its target, so the order does not matter.
        _ => return None,
    };
    let end = head + padded_len(h.payload as usize);
    (end.checked_add(HEAD_MIN) == Some(len)).then_some(end)
}

/// Whether a record is a plain ACK, by its first words.
#[inline(always)]
pub fn is_ack(w: &[u64; HEAD_MAX / 8]) -> bool {
    acked_psn(RecordBase::from_words(w)).is_some()
}

/// Whether a record seems to be of DC, and the [`shape`] that it seems to have, by the first of its
/// words. They choose the function that reads the record and checks both. `None`: the record has no
/// shape.
#[inline(always)]
pub fn shape_of(w: impl Words) -> Option<(bool, u8)> {
    let op = RecordBase::from_base([w.word(0), 0, 0]).op;
    match op {
        Opcode::RC_SEND_ONLY | Opcode::RC_SEND_ONLY_IMM => Some((false, shape::SEND)),
        Opcode::RC_WRITE_ONLY | Opcode::RC_WRITE_ONLY_IMM => Some((false, shape::WRITE)),
        Opcode::RC_ACK => Some((false, shape::ACK)),
        _ if !op.is_of_dc() => None,
        _ => match op.class_to_rc(Class::Dc) {
            Opcode::RC_ACK => Some((true, shape::ACK)),
            Opcode(op) if op & WRITES != 0 => Some((true, shape::WRITE)),
            _ => Some((true, shape::SEND)),
        },
    }
}

/// The PSN of the plain ACK in the record at `at`, behind a message, for the same queue pair
/// (`qpn`: the word of its QPN). `None`: the record is another one, or lies beyond the words.
#[inline(always)]
fn ack_beside(w: impl Words, qpn: u32, at: usize, len: usize) -> Option<Psn> {
    let end = at + HEAD_MIN;
    if end > HEAD_MAX || end > len {
        return None;
    }
    let base = [w.word(at / 8), w.word(at / 8 + 1), w.word(at / 8 + 2)];
    (base[1] as u32 == qpn).then(|| acked_psn(RecordBase::from_base(base))).flatten()
}

/// The PSN of a plain ACK, by the head of its record. `None`: the record is no plain ACK.
#[inline(always)]
fn acked_psn(h: RecordBase) -> Option<Psn> {
    let plain = h.op == Opcode::RC_ACK && h.flags == WHOLE && h.payload == 0 && h.n == 1;
    // IBTA 9.7.7.2, taken
    (plain && matches!(Syndrome::parse(h.syndrome), Syndrome::Ack { .. })).then_some(h.psn)
}
