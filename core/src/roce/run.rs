//! A run: n packets of one message with consecutive PSNs. What the engine thinks in, whatever
//! carries it.
//!
//! On the wire a run is n packets ([`Run::parse_packet`] gives n = 1). Between two processes of one
//! host it travels whole, as a record: a head, and the payload behind it. The head is short, so
//! that a SEND of 8 bytes and the ACK that goes with it are one cache line together with the frame
//! around them:
//!
//! ```text
//!  0  payload bytes      4  opcode (that of ONLY), flags, AETH syndrome, zero
//!  8  destination QPN   12  PSN
//! 16  packets           20  immediate data or key to invalidate; with an AETH its MSN
//! 24  address, 8 bytes; key; length of the whole        requests that name memory
//! ..  operands of an atomic or its result, 16 bytes     atomics and their answers
//! ..  Q_Key, source QPN                                 UD
//! ```
//!
//! Numbers are little-endian, but for the immediate data, which is as on the wire. The P_Key is the
//! default one.

use crate::wire::{
    pad_len, Aeth, AtomicAckEth, AtomicEth, Bth, Class, Deth, Ieth, ImmDt, Kind, Malformed, Opcode,
    Psn, Qpn, Reth, ICRC_LEN,
};

/// Bytes of the shortest head of a record.
pub const HEAD_MIN: usize = 24;
/// Bytes of the longest head of a record, and some: a reader may take so many in any case.
pub const HEAD_MAX: usize = 64;
/// Heads and payloads begin at multiples of this from the beginning of a burst.
pub const RECORD_ALIGN: usize = 8;

/// The header fields of n consecutive packets of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Transport.
    pub class: Class,
    /// Operation.
    pub kind: Kind,
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
    /// Immediate data in network order, or the key to invalidate.
    pub imm: u32,
    /// AETH MSN.
    pub msn: u32,
    /// Q_Key.
    pub qkey: u32,
    /// Source QPN (UD).
    pub src_qpn: u32,
}

/// Bytes of the extended headers of a message's only, first and last packet, by [`Kind`], but for
/// immediate data, a key to invalidate, and the DETH.
const EXTENDED: [[u8; 3]; Kind::Cnp as usize + 1] = {
    let mut all = [[0; 3]; Kind::Cnp as usize + 1];
    let mut i = 0;
    while i < 256 {
        let op = Opcode(i as u8);
        let plain = !op.has_imm() && !op.has_ieth() && !op.has_deth();
        if op.is_known() && plain {
            let bytes = (op.header_len() - Bth::LEN) as u8;
            match (op.is_first(), op.is_last()) {
                (true, true) => all[op.kind() as usize][0] = bytes,
                (true, false) => all[op.kind() as usize][1] = bytes,
                (false, true) => all[op.kind() as usize][2] = bytes,
                (false, false) => {}
            }
        }
        i += 1;
    }
    all
};

impl Run {
    /// An empty run of one packet; the caller fills what its kind needs.
    #[inline]
    pub const fn new(class: Class, kind: Kind, dest_qpn: u32, psn: Psn) -> Self {
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
        }
    }

    /// Makes it end before its `n`-th packet, of which there are more: what belongs to the last
    /// packet of a message travels only with that.
    #[inline]
    pub fn end_before(&mut self, n: u32) {
        self.n = n;
        self.last = false;
        self.solicited = false;
    }

    /// The opcode of a packet of this run at the given place in its message.
    #[inline]
    pub fn opcode(&self, first: bool, last: bool) -> Opcode {
        // rxe rxe_req.c next_opcode_rc: A message is FIRST, MIDDLE and LAST packets, or one ONLY;
        // immediate data and keys to invalidate come with its last packet.
        match (self.class, self.kind) {
            (Class::Uc, Kind::Send) => Opcode::uc_send(first, last, self.has_imm && last),
            (Class::Uc, _) => Opcode::uc_write(first, last, self.has_imm && last),
            (Class::Ud, _) => Opcode::ud_send(self.has_imm),
            (_, Kind::Send) => {
                Opcode::rc_send(first, last, self.has_imm && last, self.has_inv && last)
            }
            (_, Kind::Write) => Opcode::rc_write(first, last, self.has_imm && last),
            (_, Kind::ReadRequest) => Opcode::RC_READ_REQUEST,
            (_, Kind::ReadResponse) => Opcode::read_response(first, last),
            (_, Kind::Ack) => Opcode::RC_ACK,
            (_, Kind::AtomicAck) => Opcode::RC_ATOMIC_ACK,
            (_, Kind::CmpSwap) => Opcode::RC_CMP_SWAP,
            (_, Kind::FetchAdd) => Opcode::RC_FETCH_ADD,
            (_, _) => Opcode::CNP,
        }
    }

    /// Bytes from BTH to ICRC of its first `packets` packets, which carry `payload` bytes together:
    /// what they are on the wire, whatever carries the run.
    #[inline]
    pub fn wire_bytes(&self, packets: u32, payload: u32) -> u64 {
        let ends = self.last && packets == self.n;
        let [only, first, last] = EXTENDED[self.kind as usize];
        let at_ends = match (self.first, ends) {
            (true, true) if packets == 1 => only,
            (begins, ends) => first * u8::from(begins) + last * u8::from(ends),
        };
        let tail = if ends && (self.has_imm || self.has_inv) { ImmDt::LEN } else { 0 };
        let each = if self.class == Class::Ud { Deth::LEN } else { 0 } + Bth::LEN + ICRC_LEN;
        // All packets but the last carry whole words.
        let body = payload as usize + pad_len(payload as usize);
        (usize::from(at_ends) + tail + packets as usize * each + body) as u64
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
            ($t:ident, $v:expr) => {
                if let Some((h, r)) =
                    core::mem::take(&mut rest).split_first_chunk_mut::<{ $t::LEN }>()
                {
                    $v.emit(h);
                    rest = r;
                }
            };
        }
        if opcode.has_deth() {
            ext!(Deth, Deth { qkey: self.qkey, src_qp: Qpn::new(self.src_qpn) });
        }
        if opcode.has_reth() {
            ext!(Reth, Reth { va: self.va, rkey: self.rkey, len: self.dma_len });
        }
        if opcode.has_atomic_eth() {
            // CMP_SWAP: swap, then compare. FETCH_ADD: the addend stands in the swap field.
            let (swap, compare) =
                if self.kind == Kind::CmpSwap { (self.b, self.a) } else { (self.a, 0) };
            ext!(AtomicEth, AtomicEth { va: self.va, rkey: self.rkey, swap_add: swap, compare });
        }
        if opcode.has_aeth() {
            ext!(Aeth, Aeth { syndrome: self.syndrome, msn: self.msn & 0xff_ffff });
        }
        if opcode.has_atomic_ack() {
            ext!(AtomicAckEth, AtomicAckEth { orig: self.a });
        }
        if opcode.has_imm() {
            ext!(ImmDt, ImmDt { imm: self.imm });
        }
        if opcode.has_ieth() {
            ext!(Ieth, Ieth { rkey: self.imm });
        }
        let _ = rest;
    }

    /// Reads one packet without its ICRC: the run of one and its payload.
    #[inline]
    pub fn parse_packet(p: &[u8]) -> Result<(Run, &[u8]), Malformed> {
        let (head, rest) = p.split_first_chunk::<{ Bth::LEN }>().ok_or(Malformed::Length)?;
        Run::parse_behind(&Bth::parse(head), rest)
    }

    /// [`Run::parse_packet`] of what follows a BTH.
    #[inline(always)]
    pub(super) fn parse_behind<'p>(
        bth: &Bth,
        mut rest: &'p [u8],
    ) -> Result<(Run, &'p [u8]), Malformed> {
        let op = bth.opcode;
        if !op.is_known() {
            return Err(Malformed::UnknownOpcode(op));
        }
        let mut run = Run::new(op.class(), op.kind(), bth.dest_qp.get(), bth.psn);
        run.first = op.is_first();
        run.last = op.is_last();
        run.solicited = bth.solicited;
        run.ack_req = bth.ack_req;
        run.pkey = bth.pkey;
        // IBTA CA17-29: FECN and BECN of a data packet have no effect.
        run.becn = bth.becn;
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
        if op.has_deth() {
            let d = ext!(Deth);
            run.qkey = d.qkey;
            run.src_qpn = d.src_qp.get();
        }
        if op.has_feth() {
            // FLUSH: recognised, not offered; the responder refuses it.
            rest = rest.get(4..).ok_or(Malformed::Length)?;
        }
        if op.has_reth() {
            let r = ext!(Reth);
            run.va = r.va;
            run.rkey = r.rkey;
            run.dma_len = r.len;
        }
        if op.has_atomic_eth() {
            let x = ext!(AtomicEth);
            run.va = x.va;
            run.rkey = x.rkey;
            (run.a, run.b) =
                if run.kind == Kind::CmpSwap { (x.compare, x.swap_add) } else { (x.swap_add, 0) };
        }
        if op.has_aeth() {
            let x = ext!(Aeth);
            run.syndrome = x.syndrome;
            run.msn = x.msn;
        }
        if op.has_atomic_ack() {
            run.a = ext!(AtomicAckEth).orig;
        }
        if op.has_imm() {
            run.imm = ext!(ImmDt).imm;
            run.has_imm = true;
        }
        if op.has_ieth() {
            run.imm = ext!(Ieth).rkey;
            run.has_inv = true;
        }
        // rxe rxe_recv.c rxe_rcv: A packet that is shorter than its headers and padding is dropped.
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(Malformed::Length)?;
        Ok((run, &rest[..len]))
    }

    /// Bytes of the head of its record.
    #[inline]
    pub fn head_len(&self) -> usize {
        Shape::of(self.opcode(true, true)).len()
    }

    /// Writes the head of its record into the first [`Run::head_len`] bytes of `dst`. False: there
    /// are not so many.
    #[inline]
    pub fn emit_head(&self, dst: &mut [u8], payload: u32) -> bool {
        let op = self.opcode(true, true);
        let shape = Shape::of(op);
        let Some(head) = dst.get_mut(..shape.len()) else { return false };
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        let flags = flag(self.first, head_flags::FIRST)
            | flag(self.last, head_flags::LAST)
            | flag(self.solicited, head_flags::SOLICITED)
            | flag(self.ack_req, head_flags::ACK_REQ)
            | flag(self.becn, head_flags::BECN);
        let Some((base, mut rest)) = head.split_first_chunk_mut::<HEAD_MIN>() else { return false };
        let extra = if shape.has(Shape::MSN) { self.msn } else { self.imm };
        *base =
            base_of_head(payload, op, flags, self.syndrome, self.dest_qpn, self.psn, self.n, extra);
        macro_rules! part {
            ($has:expr, $n:literal, $($v:expr),*) => {
                if $has {
                    if let Some((p, r)) = core::mem::take(&mut rest).split_first_chunk_mut::<$n>() {
                        let mut at = 0;
                        $(
                            let bytes = $v.to_le_bytes();
                            p[at..at + bytes.len()].copy_from_slice(&bytes);
                            at += bytes.len();
                        )*
                        debug_assert!(at == $n);
                        rest = r;
                    }
                }
            };
        }
        if shape.has(Shape::MEMORY) {
            if let Some((p, r)) = core::mem::take(&mut rest).split_first_chunk_mut::<16>() {
                *p = memory_of_head(self.va, self.rkey, self.dma_len);
                rest = r;
            }
        }
        part!(shape.has(Shape::WORDS), 16, self.a, self.b);
        part!(shape.has(Shape::DATAGRAM), 8, self.qkey, self.src_qpn);
        debug_assert!(rest.is_empty());
        true
    }

    /// Reads a record: the run, its payload, and what follows. Trusts nothing in it.
    ///
    /// # Errors
    /// As [`Run::parse_head`]; a length that leaves `b`.
    #[inline]
    pub fn parse_record(b: &[u8]) -> Result<(Run, &[u8], &[u8]), Malformed> {
        let (run, payload, head) = Run::parse_head(&head_words(b))?;
        let body = b.get(head..).ok_or(Malformed::Length)?;
        let padded = payload.checked_next_multiple_of(RECORD_ALIGN).ok_or(Malformed::Length)?;
        let (body, next) = body.split_at_checked(padded).ok_or(Malformed::Length)?;
        Ok((run, &body[..payload], next))
    }

    /// Reads the head of a record, given as little-endian words (those behind its end are not
    /// looked at): the run, the bytes of its payload, which takes a multiple of [`RECORD_ALIGN`],
    /// and the bytes of the head before it. Trusts nothing in it; whether so many bytes are there
    /// is the caller's to see.
    ///
    /// # Errors
    /// An opcode that nobody knows, or a number of packets that no run has.
    #[inline]
    pub fn parse_head(w: &[u64; HEAD_MAX / 8]) -> Result<(Run, usize, usize), Malformed> {
        let head = Head(w);
        let op = head.opcode();
        let shape = Shape::of(op);
        if !shape.has(Shape::KNOWN) {
            return Err(Malformed::UnknownOpcode(op));
        }
        let mut run = Run::new(op.class(), op.kind(), head.dest_qpn(), head.psn());
        let flags = head.flags();
        run.first = flags & head_flags::FIRST != 0;
        run.last = flags & head_flags::LAST != 0;
        run.solicited = flags & head_flags::SOLICITED != 0;
        run.ack_req = flags & head_flags::ACK_REQ != 0;
        run.becn = flags & head_flags::BECN != 0;
        run.has_imm = shape.has(Shape::IMM);
        run.has_inv = shape.has(Shape::INV);
        run.syndrome = head.syndrome();
        run.n = head.packets();
        if shape.has(Shape::MSN) {
            run.msn = head.extra();
        } else {
            run.imm = head.extra();
        }
        let mut at = HEAD_MIN / 8;
        if shape.has(Shape::MEMORY) {
            (run.va, run.rkey, run.dma_len) = head.memory();
            at += 2;
        }
        if shape.has(Shape::WORDS) {
            (run.a, run.b) = (w[at], w[at + 1]);
            at += 2;
        }
        if shape.has(Shape::DATAGRAM) {
            (run.qkey, run.src_qpn) = (w[at] as u32, (w[at] >> 32) as u32 & 0xff_ffff);
            at += 1;
        }
        if run.n == 0 || run.n > 1 << 16 {
            return Err(Malformed::Length);
        }
        Ok((run, head.payload(), at * 8))
    }
}

/// The words of a record's head, field by field. Trusts nothing in it.
#[derive(Clone, Copy)]
pub(super) struct Head<'w>(pub(super) &'w [u64; HEAD_MAX / 8]);

impl Head<'_> {
    #[inline(always)]
    fn low(self, i: usize) -> u32 {
        self.0[i] as u32
    }

    #[inline(always)]
    fn high(self, i: usize) -> u32 {
        (self.0[i] >> 32) as u32
    }

    /// Bytes of the payload.
    #[inline(always)]
    pub(super) fn payload(self) -> usize {
        self.low(0) as usize
    }

    #[inline(always)]
    pub(super) fn opcode(self) -> Opcode {
        Opcode(self.high(0).to_le_bytes()[0])
    }

    /// Bits of [`head_flags`].
    #[inline(always)]
    pub(super) fn flags(self) -> u8 {
        self.high(0).to_le_bytes()[1]
    }

    #[inline(always)]
    pub(super) fn syndrome(self) -> u8 {
        self.high(0).to_le_bytes()[2]
    }

    #[inline(always)]
    pub(super) fn dest_qpn(self) -> u32 {
        self.low(1) & 0xff_ffff
    }

    #[inline(always)]
    pub(super) fn psn(self) -> Psn {
        Psn::new(self.high(1))
    }

    #[inline(always)]
    pub(super) fn packets(self) -> u32 {
        self.low(2)
    }

    /// Immediate data, a key to invalidate, or an MSN.
    #[inline(always)]
    pub(super) fn extra(self) -> u32 {
        self.high(2)
    }

    /// Address, key and length of the whole, of an opcode that names memory.
    #[inline(always)]
    pub(super) fn memory(self) -> (u64, u32, u32) {
        (self.0[3], self.low(4), self.high(4))
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

/// The base of a head, which every record has. `extra`: immediate data, a key to invalidate or an
/// MSN.
#[allow(clippy::too_many_arguments)] // one for each part
#[inline(always)]
pub(super) fn base_of_head(
    payload: u32,
    op: Opcode,
    flags: u8,
    syndrome: u8,
    dest_qpn: u32,
    psn: Psn,
    n: u32,
    extra: u32,
) -> [u8; HEAD_MIN] {
    let mut base = [0; HEAD_MIN];
    base[0..4].copy_from_slice(&payload.to_le_bytes());
    base[4..8].copy_from_slice(&[op.0, flags, syndrome, 0]);
    base[8..12].copy_from_slice(&dest_qpn.to_le_bytes());
    base[12..16].copy_from_slice(&psn.get().to_le_bytes());
    base[16..20].copy_from_slice(&n.to_le_bytes());
    base[20..24].copy_from_slice(&extra.to_ne_bytes());
    base
}

/// What a head has behind its base where it names memory.
#[inline(always)]
pub(super) fn memory_of_head(va: u64, rkey: u32, len: u32) -> [u8; 16] {
    let mut memory = [0; 16];
    memory[0..8].copy_from_slice(&va.to_le_bytes());
    memory[8..12].copy_from_slice(&rkey.to_le_bytes());
    memory[12..16].copy_from_slice(&len.to_le_bytes());
    memory
}

/// What the head of a record has beside its base.
#[derive(Clone, Copy)]
struct Shape(u8);

impl Shape {
    const KNOWN: u8 = 1;
    const MEMORY: u8 = 2;
    const WORDS: u8 = 4;
    const DATAGRAM: u8 = 8;
    const MSN: u8 = 16;
    const IMM: u8 = 32;
    const INV: u8 = 64;

    /// That of every opcode, so that a small message looks its own up once.
    const ALL: [Shape; 256] = {
        let mut all = [Shape(0); 256];
        let mut i = 0;
        while i < 256 {
            let op = Opcode(i as u8);
            if op.is_known() {
                all[i].0 = Shape::KNOWN
                    | if op.has_reth() || op.has_atomic_eth() { Shape::MEMORY } else { 0 }
                    | if op.has_atomic_eth() || op.has_atomic_ack() { Shape::WORDS } else { 0 }
                    | if op.has_deth() { Shape::DATAGRAM } else { 0 }
                    | if op.has_aeth() { Shape::MSN } else { 0 }
                    | if op.has_imm() { Shape::IMM } else { 0 }
                    | if op.has_ieth() { Shape::INV } else { 0 };
            }
            i += 1;
        }
        all
    };

    #[inline(always)]
    fn of(op: Opcode) -> Shape {
        Shape::ALL[usize::from(op.0)]
    }

    #[inline(always)]
    fn has(self, part: u8) -> bool {
        self.0 & part != 0
    }

    /// Bytes of the head.
    #[inline(always)]
    fn len(self) -> usize {
        // Most heads are the base alone.
        if !self.has(Shape::MEMORY | Shape::WORDS | Shape::DATAGRAM) {
            return HEAD_MIN;
        }
        HEAD_MIN
            + 16 * usize::from(self.has(Shape::MEMORY))
            + 16 * usize::from(self.has(Shape::WORDS))
            + 8 * usize::from(self.has(Shape::DATAGRAM))
    }
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
            if !op.is_known() || op.has_feth() {
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
            } else if run.has_imm || run.has_inv {
                run.imm = 0x1122_3344;
            }
            let shape = Shape::of(whole);
            if shape.has(Shape::MEMORY) {
                (run.va, run.rkey, run.dma_len) = (0x0123_4567_89ab_cdef, 0xdead_beef, 0x7654_3210);
            }
            if shape.has(Shape::WORDS) {
                (run.a, run.b) = (u64::MAX - 1, 3);
            }
            if whole.has_deth() {
                (run.qkey, run.src_qpn) = (0x8001_0000, 0x98_7654);
            }
            (run.has_imm, run.has_inv) = (whole.has_imm(), whole.has_ieth());
            out.push(run);
        }
        out
    }

    #[test]
    fn records_say_all_that_their_opcode_has() {
        let all = runs();
        assert!(all.len() > 30, "{}", all.len());
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
            let parts = matches!(run.kind, Kind::Send | Kind::Write | Kind::ReadResponse)
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

    #[test]
    fn a_small_send_and_an_ack_fit_one_cache_line_with_their_frame() {
        let send = Run::new(Class::Rc, Kind::Send, 1, Psn::new(1));
        let ack = Run::new(Class::Rc, Kind::Ack, 1, Psn::new(1));
        assert_eq!(8 + send.head_len() + 8 + ack.head_len(), 64);
        assert!(Shape::ALL.iter().all(|shape| shape.len() <= HEAD_MAX));
    }
}
