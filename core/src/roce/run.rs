//! A run: n packets of one message with consecutive PSNs, the engine's unit of work on every path.
//!
//! On the wire a run is n packets ([`Run::parse_packet`] gives n = 1). Between two processes of one
//! host it travels whole, as a record: a head, and the payload behind it. The head is short, so
//! that a SEND of 8 bytes and the ACK that goes with it are one cache line together with the frame
//! around them:
//!
//! ```text
//!  0  payload bytes      4  opcode (that of ONLY), flags, AETH syndrome, zero
//!  8  destination QPN   12  PSN
//! 16  packets           20  immediate data, key to invalidate or FETH; with an AETH its MSN
//! 24  address, 8 bytes; key; length of the whole        requests that name memory
//! ..  operands of an atomic or its result, 16 bytes     atomics and their answers
//! ..  Q_Key, source QPN                                 UD
//! ..  zero, SRQ number                                  requests of XRC
//! ```
//!
//! Numbers are little-endian, but for the immediate data, which is as on the wire. The P_Key is the
//! default one. A record of UD, which has no syndrome, has traffic class, hop limit and flow label
//! in bytes that are zero else.

use crate::wire::grh::{Fields, FLOW_LABEL};
use crate::wire::opcode::KINDS;
use crate::wire::{
    pad_len, Aeth, AtomicAckEth, AtomicEth, Bth, Class, Deth, Feth, Ieth, ImmDt, Malformed, Opcode,
    PacketKind, Psn, Qpn, Reth, XrcEth, ICRC_LEN,
};

/// Bytes of the shortest head of a record.
pub const HEAD_MIN: usize = 24;
/// Room for the longest head of a record. Readers take this many bytes, padded with zeroes.
pub const HEAD_MAX: usize = 64;
/// Heads and payloads begin at multiples of this from the beginning of a burst.
pub const RECORD_ALIGN: usize = 8;

/// Bytes of a datagram's head that hold fields of its packet's IP header: traffic class, hop limit,
/// flow label. They are zero in other heads, and readers of earlier versions ignore them.
const GRH_AT: [usize; 5] = [6, 7, 11, 15, 31];

/// The header fields of n consecutive packets of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Transport.
    pub class: Class,
    /// Operation.
    pub kind: PacketKind,
    /// Its first packet is the first of the message.
    pub first: bool,
    /// Its last packet is the last of the message.
    pub last: bool,
    /// Solicited event.
    pub solicited: bool,
    /// The last packet asks for an ACK.
    pub ack_req: bool,
    /// Immediate data comes with the last packet.
    pub has_imm: bool,
    /// A key to invalidate comes with the last packet.
    pub has_inv: bool,
    /// Backward congestion notification (CNP).
    pub becn: bool,
    /// AETH syndrome.
    pub syndrome: u8,
    /// P_Key.
    pub pkey: u16,
    /// Destination QPN.
    pub dest_qpn: u32,
    /// PSN of the first packet.
    pub psn: Psn,
    /// Packets.
    pub n: u32,
    /// Remote address.
    pub va: u64,
    /// Remote key.
    pub rkey: u32,
    /// Length of the whole WRITE or READ.
    pub dma_len: u32,
    /// Atomics: compare, or add. Atomic ACK: the original value.
    pub a: u64,
    /// Atomics: swap.
    pub b: u64,
    /// Immediate data in network order, the key to invalidate, or the word of a FETH
    /// ([`Feth::word`]).
    pub imm: u32,
    /// AETH MSN.
    pub msn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Source QPN (UD), or the number of the SRQ that a request is for (XRC, [`Run::srqn`]).
    pub src_qpn: u32,
    /// Of a datagram, what its packet's IP header has.
    pub grh: Fields,
}

/// How many classes there are.
const CLASSES: usize = Class::Other as usize + 1;

/// Bytes of a packet without payload, pad, immediate data and key to invalidate: BTH, extended
/// headers and ICRC. By [`Class`], [`PacketKind`] and place in the message: a middle packet, the
/// first (1), the last (2), the only one (3).
const HEADERS: [[[u8; 4]; KINDS]; CLASSES] = {
    let mut all = [[[0; 4]; KINDS]; CLASSES];
    let mut i = 0;
    while i < 256 {
        let op = Opcode(i as u8);
        let plain = !op.has_imm() && !op.has_ieth() && !op.has_deth() && !op.has_xrceth();
        if op.is_known() && plain {
            let place = op.is_first() as usize | (op.is_last() as usize) << 1;
            let bytes = (op.header_len() + ICRC_LEN) as u8;
            let mut class = 0;
            while class < CLASSES {
                all[class][op.kind() as usize][place] = bytes;
                class += 1;
            }
            all[Class::Ud as usize][op.kind() as usize][place] += Deth::LEN as u8;
            if !op.kind().is_answer() {
                all[Class::Xrc as usize][op.kind() as usize][place] += XrcEth::LEN as u8;
            }
        }
        i += 1;
    }
    all
};

impl Run {
    /// An empty run of one packet. The caller fills the fields that its kind needs.
    #[inline(always)]
    pub const fn new(class: Class, kind: PacketKind, dest_qpn: u32, psn: Psn) -> Self {
        Run {
            class,
            kind,
            first: true,
            last: true,
            solicited: false,
            ack_req: false,
            has_imm: false,
            has_inv: false,
            becn: false,
            syndrome: 0,
            pkey: 0xffff,
            dest_qpn,
            psn,
            n: 1,
            va: 0,
            rkey: 0,
            dma_len: 0,
            a: 0,
            b: 0,
            imm: 0,
            msn: 0,
            qkey: 0,
            src_qpn: 0,
            grh: Fields { flow_label: 0, traffic_class: 0, hop_limit: 0 },
        }
    }

    /// The number of the SRQ that a request of XRC is for.
    #[inline(always)]
    pub const fn srqn(&self) -> u32 {
        self.src_qpn
    }

    /// Cuts the run to its first `n` packets, fewer than it has. Fields of the last packet of a
    /// message travel only with that packet.
    pub fn end_before(&mut self, n: u32) {
        self.n = n;
        self.last = false;
        self.solicited = false;
    }

    /// The opcode of a packet of this run at the given place in its message.
    pub fn opcode(&self, first: bool, last: bool) -> Opcode {
        // rxe rxe_req.c next_opcode_rc: A message is FIRST, MIDDLE and LAST packets, or one ONLY;
        // immediate data and keys to invalidate come with its last packet.
        let op = match (self.class, self.kind) {
            (Class::Uc, PacketKind::Send) => Opcode::uc_send(first, last, self.has_imm && last),
            (Class::Uc, _) => Opcode::uc_write(first, last, self.has_imm && last),
            (Class::Ud, _) => Opcode::ud_send(self.has_imm),
            (_, PacketKind::Send) => {
                Opcode::rc_send(first, last, self.has_imm && last, self.has_inv && last)
            }
            (_, PacketKind::Write) => Opcode::rc_write(first, last, self.has_imm && last),
            (_, PacketKind::ReadResponse) => Opcode::read_response(first, last),
            (_, kind) => Opcode::whole(kind),
        };
        op.rc_to_class(self.class)
    }

    /// Bytes from BTH to ICRC of the run's first `packets` packets, which carry `payload` bytes
    /// together. They are bytes on the wire, even if a link carries the run.
    pub fn wire_bytes(&self, packets: u32, payload: u32) -> u64 {
        let ends = self.last && packets == self.n;
        let headers = &HEADERS[self.class as usize][self.kind as usize];
        let place = usize::from(self.first) | usize::from(ends) << 1;
        let headers = if packets == 1 {
            headers[place].into()
        } else {
            let [each, first, last, _] = headers.map(u32::from);
            let begin = (first - each) * u32::from(self.first);
            packets * each + begin + (last - each) * u32::from(ends)
        };
        let tail = usize::from(ends & (self.has_imm | self.has_inv)) * ImmDt::LEN;
        // All packets but the last carry whole words.
        let body = payload as usize + pad_len(payload as usize);
        (headers as usize + tail + body) as u64
    }

    /// Writes BTH and the extended headers of one packet. `dst` is exactly `opcode.header_len()`
    /// bytes.
    #[inline(always)]
    pub fn emit_headers(&self, opcode: Opcode, psn: Psn, ack_req: bool, pad: u8, dst: &mut [u8]) {
        let mut bth = Bth::new(opcode, Qpn::new(self.dest_qpn), psn);
        bth.solicited = self.solicited && opcode.is_last();
        bth.pad = pad;
        bth.pkey = self.pkey;
        bth.becn = self.becn;
        bth.ack_req = ack_req;
        let Some((head, mut rest)) = dst.split_first_chunk_mut::<{ Bth::LEN }>() else { return };
        bth.emit(head);
        macro_rules! ext {
            ($has:expr, $header:expr) => {
                if $has {
                    let Some((h, r)) = rest.split_first_chunk_mut() else { return };
                    $header.emit(h);
                    rest = r;
                }
            };
        }
        // CMP_SWAP: swap, then compare. FETCH_ADD: the addend stands in the swap field.
        let (swap_add, compare) =
            if self.kind == PacketKind::CmpSwap { (self.b, self.a) } else { (self.a, 0) };
        let (va, rkey, imm) = (self.va, self.rkey, self.imm);
        ext!(opcode.has_xrceth(), XrcEth { srqn: Qpn::new(self.src_qpn) });
        ext!(opcode.has_deth(), Deth { qkey: self.qkey, src_qp: Qpn::new(self.src_qpn) });
        ext!(opcode.has_feth(), Feth::of_word(imm));
        ext!(opcode.has_reth(), Reth { va, rkey, len: self.dma_len });
        ext!(opcode.has_atomic_eth(), AtomicEth { va, rkey, swap_add, compare });
        ext!(opcode.has_aeth(), Aeth { syndrome: self.syndrome, msn: self.msn & 0xff_ffff });
        ext!(opcode.has_atomic_ack(), AtomicAckEth { orig: self.a });
        ext!(opcode.has_imm(), ImmDt { imm });
        ext!(opcode.has_ieth(), Ieth { rkey: imm });
        let _ = rest;
    }

    /// Reads one packet without its ICRC: the run of one and its payload.
    pub fn parse_packet(p: &[u8]) -> Result<(Run, &[u8]), Malformed> {
        let (head, rest) = p.split_first_chunk::<{ Bth::LEN }>().ok_or(Malformed::Length)?;
        Run::parse_behind(&Bth::parse(head), rest)
    }

    /// As [`Run::parse_packet`], of the bytes behind a BTH.
    #[inline(always)]
    pub(super) fn parse_behind<'p>(
        bth: &Bth,
        mut rest: &'p [u8],
    ) -> Result<(Run, &'p [u8]), Malformed> {
        let op = bth.opcode;
        if !op.is_known() {
            return Err(Malformed::UnknownOpcode(op));
        }
        let mut run = Run {
            first: op.is_first(),
            last: op.is_last(),
            solicited: bth.solicited,
            ack_req: bth.ack_req,
            has_imm: op.has_imm(),
            has_inv: op.has_ieth(),
            // IBTA CA17-29: FECN and BECN of a data packet have no effect.
            becn: bth.becn,
            pkey: bth.pkey,
            ..Run::new(op.class(), op.kind(), bth.dest_qp.get(), bth.psn)
        };
        // rxe rxe_recv.c hdr_check: A packet of another transport version than 0 is dropped.
        if bth.tver != 0 {
            return Err(Malformed::Version);
        }
        macro_rules! ext {
            ($t:ident) => {{
                let (h, r) = rest.split_first_chunk::<{ $t::LEN }>().ok_or(Malformed::Length)?;
                rest = r;
                $t::parse(h)
            }};
        }
        if op.has_xrceth() {
            run.src_qpn = ext!(XrcEth).srqn.get();
        }
        if op.has_deth() {
            let d = ext!(Deth);
            (run.qkey, run.src_qpn) = (d.qkey, d.src_qp.get());
        }
        if op.has_feth() {
            // Reserved bits are kept, because the responder refuses them.
            run.imm = ext!(Feth).word();
        }
        if op.has_reth() {
            Reth { va: run.va, rkey: run.rkey, len: run.dma_len } = ext!(Reth);
        }
        if op.has_atomic_eth() {
            let x = ext!(AtomicEth);
            (run.va, run.rkey) = (x.va, x.rkey);
            (run.a, run.b) = if run.kind == PacketKind::CmpSwap {
                (x.compare, x.swap_add)
            } else {
                (x.swap_add, 0)
            };
        }
        if op.has_aeth() {
            Aeth { syndrome: run.syndrome, msn: run.msn } = ext!(Aeth);
        }
        if op.has_atomic_ack() {
            run.a = ext!(AtomicAckEth).orig;
        }
        if op.has_imm() {
            run.imm = ext!(ImmDt).imm;
        }
        if op.has_ieth() {
            run.imm = ext!(Ieth).rkey;
        }
        // rxe rxe_recv.c rxe_rcv: A packet that is shorter than its headers and padding is dropped.
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(Malformed::Length)?;
        Ok((run, &rest[..len]))
    }

    /// Bytes of the head of the run's record.
    pub fn head_len(&self) -> usize {
        head_len(self.opcode(true, true))
    }

    /// Writes the head of the run's record into the first [`Run::head_len`] bytes of `dst`. False:
    /// `dst` is shorter.
    pub fn emit_head(&self, dst: &mut [u8], payload: u32) -> bool {
        let op = self.opcode(true, true);
        let Some(head) = dst.get_mut(..head_len(op)) else { return false };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let base = RecordBase {
            payload,
            op,
            flags: flag(self.first, head_flags::FIRST)
                | flag(self.last, head_flags::LAST)
                | flag(self.solicited, head_flags::SOLICITED)
                | flag(self.ack_req, head_flags::ACK_REQ)
                | flag(self.becn, head_flags::BECN),
            syndrome: self.syndrome,
            dest_qpn: self.dest_qpn,
            psn: self.psn,
            n: self.n,
            extra: if op.has_aeth() { self.msn } else { self.imm },
        };
        let (first, mut rest) = head.split_at_mut(HEAD_MIN);
        first.copy_from_slice(base.bytes().as_flattened());
        let mut put = |pair: [[u8; 8]; 2]| {
            let (to, behind) = core::mem::take(&mut rest).split_at_mut(16);
            to.copy_from_slice(pair.as_flattened());
            rest = behind;
        };
        if names_memory(op) {
            put(memory_of_head(self.va, self.rkey, self.dma_len));
        }
        if has_words(op) {
            put([self.a, self.b].map(u64::to_le_bytes));
        }
        if has_pair(op) {
            let pair = [self.qkey, self.src_qpn].map(u32::to_le_bytes);
            rest.copy_from_slice(pair.as_flattened());
        }
        if op.has_deth() {
            let [a, b, c, _] = (self.grh.flow_label & FLOW_LABEL).to_le_bytes();
            let bytes = [self.grh.traffic_class, self.grh.hop_limit, a, b, c];
            GRH_AT.into_iter().zip(bytes).for_each(|(at, byte)| head[at] = byte);
        }
        true
    }

    /// Reads a record: the run, its payload, and what follows. Trusts nothing in it.
    ///
    /// # Errors
    /// As [`Run::parse_head`]; a length that leaves `b`.
    pub fn parse_record(b: &[u8]) -> Result<(Run, &[u8], &[u8]), Malformed> {
        let (run, payload, head) = Run::parse_head(&head_words(b))?;
        let body = b.get(head..).ok_or(Malformed::Length)?;
        let padded = payload.checked_next_multiple_of(RECORD_ALIGN).ok_or(Malformed::Length)?;
        let (body, next) = body.split_at_checked(padded).ok_or(Malformed::Length)?;
        Ok((run, &body[..payload], next))
    }

    /// Reads the head of a record, given as little-endian words; those behind its end are ignored.
    /// Returns the run, the bytes of its payload, which takes a multiple of [`RECORD_ALIGN`], and
    /// the bytes of the head. Trusts nothing in it; the caller checks that so many bytes are there.
    ///
    /// # Errors
    /// An unknown opcode, or a number of packets that no run has.
    pub fn parse_head(w: &[u64; HEAD_MAX / 8]) -> Result<(Run, usize, usize), Malformed> {
        let head = RecordBase::from_words(w);
        let RecordBase { op, n, extra, .. } = head;
        if !op.is_known() {
            return Err(Malformed::UnknownOpcode(op));
        }
        let has = |flag: u8| head.flags & flag != 0;
        let mut run = Run {
            first: has(head_flags::FIRST),
            last: has(head_flags::LAST),
            solicited: has(head_flags::SOLICITED),
            ack_req: has(head_flags::ACK_REQ),
            becn: has(head_flags::BECN),
            has_imm: op.has_imm(),
            has_inv: op.has_ieth(),
            syndrome: head.syndrome,
            n,
            ..Run::new(op.class(), op.kind(), head.dest_qpn, head.psn)
        };
        *if op.has_aeth() { &mut run.msn } else { &mut run.imm } = extra;
        let mut at = HEAD_MIN / 8;
        if names_memory(op) {
            (run.va, run.rkey, run.dma_len) = RecordBase::memory(w);
            at += 2;
        }
        if has_words(op) {
            (run.a, run.b) = (w[at], w[at + 1]);
            at += 2;
        }
        if has_pair(op) {
            (run.qkey, run.src_qpn) = (w[at] as u32, (w[at] >> 32) as u32 & 0xff_ffff);
            at += 1;
        }
        if op.has_deth() {
            let [traffic_class, hop_limit, a, b, c] =
                GRH_AT.map(|at| (w[at / 8] >> (8 * (at % 8))) as u8);
            let flow_label = u32::from_le_bytes([a, b, c, 0]) & FLOW_LABEL;
            (run.grh, run.syndrome) = (Fields { flow_label, traffic_class, hop_limit }, 0);
        }
        if n == 0 || n > 1 << 16 {
            return Err(Malformed::Length);
        }
        Ok((run, head.payload as usize, at * 8))
    }
}

/// The base of a head, which every record has.
#[derive(Clone, Copy)]
pub(super) struct RecordBase {
    /// Bytes of the payload.
    pub(super) payload: u32,
    pub(super) op: Opcode,
    /// Bits of [`head_flags`].
    pub(super) flags: u8,
    pub(super) syndrome: u8,
    pub(super) dest_qpn: u32,
    pub(super) psn: Psn,
    /// Packets.
    pub(super) n: u32,
    /// Immediate data, a key to invalidate, or an MSN.
    pub(super) extra: u32,
}

impl RecordBase {
    /// Reads the base from the words of a head. Trusts nothing in them.
    #[inline(always)]
    pub(super) fn from_words(&[a, b, c, ..]: &[u64; HEAD_MAX / 8]) -> RecordBase {
        RecordBase::from_base([a, b, c])
    }

    /// Reads the base from its own words.
    #[inline(always)]
    pub(super) fn from_base([a, b, c]: [u64; HEAD_MIN / 8]) -> RecordBase {
        let [op, flags, syndrome, _] = ((a >> 32) as u32).to_le_bytes();
        RecordBase {
            payload: a as u32,
            op: Opcode(op),
            flags,
            syndrome,
            dest_qpn: b as u32 & 0xff_ffff,
            psn: Psn::new((b >> 32) as u32),
            n: c as u32,
            extra: (c >> 32) as u32,
        }
    }

    /// The bytes of the base.
    #[inline(always)]
    pub(super) fn bytes(self) -> [[u8; 4]; HEAD_MIN / 4] {
        [
            self.payload.to_le_bytes(),
            [self.op.0, self.flags, self.syndrome, 0],
            self.dest_qpn.to_le_bytes(),
            self.psn.get().to_le_bytes(),
            self.n.to_le_bytes(),
            self.extra.to_ne_bytes(),
        ]
    }

    /// Address, key and length of the whole, of an opcode that names memory.
    #[inline(always)]
    pub(super) fn memory(w: impl Words) -> (u64, u32, u32) {
        let (va, rest) = (w.word(3), w.word(4));
        (va, rest as u32, (rest >> 32) as u32)
    }
}

/// The first words of a record, as little-endian numbers. The writer of a link may change them at
/// any time. So a reader uses only values that it has read once and then checked. It checks a word
/// that it reads again anew.
pub trait Words: Copy {
    /// The word of a number below [`HEAD_MAX`] / 8.
    fn word(self, at: usize) -> u64;
}

/// Words that were copied out.
impl Words for &[u64; HEAD_MAX / 8] {
    #[inline(always)]
    fn word(self, at: usize) -> u64 {
        self[at]
    }
}

/// The words of the head with which `b` begins; zeroes behind the end.
pub fn head_words(b: &[u8]) -> [u64; HEAD_MAX / 8] {
    let mut words = [0; HEAD_MAX / 8];
    for (w, bytes) in words.iter_mut().zip(b.chunks_exact(8)) {
        if let Ok(bytes) = bytes.try_into() {
            *w = u64::from_le_bytes(bytes);
        }
    }
    words
}

/// Flags of a head.
pub(super) mod head_flags {
    /// The first packet of the message.
    pub const FIRST: u8 = 1;
    /// The last packet of the message.
    pub const LAST: u8 = 2;
    /// Solicited event.
    pub const SOLICITED: u8 = 4;
    /// The last packet asks for an ACK.
    pub const ACK_REQ: u8 = 8;
    /// Backward congestion notification.
    pub const BECN: u8 = 16;
}

/// The part of a head that names memory, behind its base.
#[inline(always)]
pub(super) fn memory_of_head(va: u64, rkey: u32, len: u32) -> [[u8; 8]; 2] {
    [va, u64::from(len) << 32 | u64::from(rkey)].map(u64::to_le_bytes)
}

/// Whether address, key and length stand behind the base of a head.
fn names_memory(op: Opcode) -> bool {
    op.has_reth() || op.has_atomic_eth()
}

/// Whether the operands of an atomic, or its result, stand in a head.
fn has_words(op: Opcode) -> bool {
    op.has_atomic_eth() || op.has_atomic_ack()
}

/// Whether a Q_Key and a source QPN, or an SRQ number, stand in a head.
fn has_pair(op: Opcode) -> bool {
    op.has_deth() || op.has_xrceth()
}

/// Bytes of the head of a record.
fn head_len(op: Opcode) -> usize {
    HEAD_MIN
        + 16 * usize::from(names_memory(op))
        + 16 * usize::from(has_words(op))
        + 8 * usize::from(has_pair(op))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::packet_bytes;
    use std::vec;
    use std::vec::Vec;

    fn runs() -> Vec<Run> {
        let mut out = Vec::new();
        for byte in 0..=255u8 {
            let op = Opcode(byte);
            if !op.is_known() {
                continue;
            }
            let mut run = Run::new(op.class(), op.kind(), 0x12_3456, Psn::new(0xab_cdef));
            (run.first, run.last) = (op.is_first(), op.is_last());
            (run.has_imm, run.has_inv) = (op.has_imm() && run.last, op.has_ieth() && run.last);
            // An opcode of a part of a message is that of the whole in a record, which is not what
            // it began as.
            let whole = run.opcode(true, true);
            if whole.kind() != op.kind() {
                // Known, and never sent.
                continue;
            }
            (run.solicited, run.ack_req, run.becn, run.n) =
                (byte & 1 != 0, byte & 2 != 0, byte & 4 != 0, 7);
            if whole.has_aeth() {
                (run.syndrome, run.msn) = (0x1f, 0x65_4321);
            } else if run.has_imm || run.has_inv || whole.has_feth() {
                run.imm = 0x1122_3344;
            }
            if names_memory(whole) {
                (run.va, run.rkey, run.dma_len) = (0x0123_4567_89ab_cdef, 0xdead_beef, 0x7654_3210);
            }
            if has_words(whole) {
                (run.a, run.b) = (u64::MAX - 1, 3);
            }
            if whole.has_deth() {
                run.qkey = 0x8001_0000;
                run.grh = Fields { flow_label: 0xf_edcb, traffic_class: 0xb9, hop_limit: 0x81 };
            }
            if has_pair(whole) {
                run.src_qpn = 0x98_7654;
            }
            (run.has_imm, run.has_inv) = (whole.has_imm(), whole.has_ieth());
            out.push(run);
        }
        out
    }

    #[test]
    fn records_say_all_that_their_opcode_has() {
        let all = runs();
        assert!(all.len() > 32, "{}", all.len());
        for run in all {
            let payload = [1, 2, 3, 4, 5];
            let mut record = vec![0xee; run.head_len() + 8 + HEAD_MAX];
            assert!(run.emit_head(&mut record, 5));
            record[run.head_len()..][..5].copy_from_slice(&payload);
            let (back, body, rest) = Run::parse_record(&record).expect("whole");
            assert_eq!((back, body, rest.len()), (run, &payload[..], HEAD_MAX));
            // Cut anywhere, it is none.
            for n in 0..run.head_len() + 8 {
                assert!(Run::parse_record(&record[..n]).is_err(), "{n} bytes of {run:?}");
            }
        }
    }

    #[test]
    fn a_run_is_as_long_on_the_wire_as_its_packets() {
        let mtu = 256;
        for run in runs().into_iter().map(|run| Run { n: 1, ..run }) {
            let parts =
                matches!(run.kind, PacketKind::Send | PacketKind::Write | PacketKind::ReadResponse)
                    && run.class != Class::Ud;
            for n in 1..if parts { 5 } else { 2 } {
                for last_len in [1, 2, 4, 255, 256] {
                    let run = Run { n, ..run };
                    for sent in 1..=n {
                        let whole = (n - 1) * mtu + last_len;
                        let payload = if sent == n { whole } else { sent * mtu };
                        let packets = (0..sent).map(|k| {
                            let len = (payload - k * mtu).min(mtu) as usize;
                            packet_bytes(
                                run.opcode(run.first && k == 0, run.last && k + 1 == n),
                                len,
                            ) as u64
                        });
                        assert_eq!(
                            run.wire_bytes(sent, payload),
                            packets.sum::<u64>(),
                            "{sent} of {run:?}"
                        );
                    }
                }
            }
        }
    }

    // rxe rxe_opcode.c rxe_opcode
    #[test]
    fn a_flush_is_feth_and_reth_and_an_atomic_write_is_reth_and_eight_bytes() {
        let bth = |op| vec![op, 0, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
        let reth = |len| [0, 0, 0x7f, 1, 2, 3, 4, 8, 0xde, 0xad, 0xbe, 0xef, 0, 0, 1, len];
        let base = Run {
            ack_req: true,
            va: 0x7f01_0203_0408,
            rkey: 0xdead_beef,
            ..Run::new(Class::Rc, PacketKind::Flush, 0x12_3456, Psn::new(0xab_cdef))
        };
        // Level 1, both types; and bits that are reserved, which are the responder's to refuse.
        for word in [[0, 0, 0, 0x13], [0x80, 1, 0, 0xff]] {
            let bytes = [bth(0x1c), word.to_vec(), reth(2).to_vec()].concat();
            let run = Run { imm: u32::from_be_bytes(word), dma_len: 0x102, ..base };
            assert_eq!(Run::parse_packet(&bytes), Ok((run, &[][..])));
            let mut back = vec![0; bytes.len()];
            run.emit_headers(Opcode::RC_FLUSH, run.psn, true, 0, &mut back);
            assert_eq!(back, bytes);
            for n in 12..bytes.len() {
                assert!(Run::parse_packet(&bytes[..n]).is_err(), "{n} bytes");
            }
        }
        let data = [1, 2, 3, 4, 5, 6, 7, 8];
        let bytes = [bth(0x1d), reth(8).to_vec(), data.to_vec()].concat();
        let run = Run { kind: PacketKind::AtomicWrite, dma_len: 0x108, ..base };
        assert_eq!(Run::parse_packet(&bytes), Ok((run, &data[..])));
        let mut back = vec![0; 28];
        run.emit_headers(Opcode::RC_ATOMIC_WRITE, run.psn, true, 0, &mut back);
        assert_eq!(back, bytes[..28]);
    }

    #[test]
    fn a_small_send_and_an_ack_fit_one_cache_line_with_their_frame() {
        let send = Run::new(Class::Rc, PacketKind::Send, 1, Psn::new(1));
        let ack = Run::new(Class::Rc, PacketKind::Ack, 1, Psn::new(1));
        assert_eq!(8 + send.head_len() + 8 + ack.head_len(), 64);
        assert!((0..=255).all(|op| head_len(Opcode(op)) <= HEAD_MAX));
    }
}
