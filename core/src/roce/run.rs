//! A run: n packets of one message with consecutive PSNs. What the engine thinks in, whatever carries it.
//!
//! On the wire a run is n packets ([`Run::parse_packet`] gives n = 1). Between QPs of one engine, and
//! later between two processes over shared memory, it travels whole, as a [`RECORD_LEN`]-byte record
//! and the payload behind it.

use crate::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, Class, Deth, Ieth, ImmDt, Kind, Malformed, Opcode, Psn, Qpn, Reth,
};

/// Bytes of a serialised run header.
pub const RECORD_LEN: usize = 96;
/// Records begin at multiples of this from the first one of a burst.
pub const RECORD_ALIGN: usize = 16;

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

    /// Makes it end before its `n`-th packet, of which there are more: what belongs to the last packet of a message
    /// travels only with that.
    #[inline]
    pub fn end_before(&mut self, n: u32) {
        self.n = n;
        self.last = false;
        self.solicited = false;
    }

    /// The opcode of a packet of this run at the given place in its message.
    #[inline]
    pub fn opcode(&self, first: bool, last: bool) -> Opcode {
        match (self.class, self.kind) {
            (Class::Uc, Kind::Send) => Opcode::uc_send(first, last, self.has_imm && last),
            (Class::Uc, _) => Opcode::uc_write(first, last, self.has_imm && last),
            (Class::Ud, _) => Opcode::ud_send(self.has_imm),
            (_, Kind::Send) => Opcode::rc_send(first, last, self.has_imm && last, self.has_inv && last),
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

    /// Writes BTH and the extended headers of one packet. `dst` is exactly `opcode.header_len()` bytes.
    #[inline]
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
                if let Some((h, r)) = core::mem::take(&mut rest).split_first_chunk_mut::<{ $t::LEN }>() {
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
            let (swap, compare) = if self.kind == Kind::CmpSwap { (self.b, self.a) } else { (self.a, 0) };
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
        let (head, mut rest) = p.split_first_chunk::<{ Bth::LEN }>().ok_or(Malformed::Length)?;
        let bth = Bth::parse(head);
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
        run.becn = bth.becn;
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
            (run.a, run.b) = if run.kind == Kind::CmpSwap { (x.compare, x.swap_add) } else { (x.swap_add, 0) };
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
        let len = rest.len().checked_sub(usize::from(bth.pad)).ok_or(Malformed::Length)?;
        Ok((run, &rest[..len]))
    }

    /// Writes the record form.
    #[inline]
    pub fn emit_record(&self, dst: &mut [u8; RECORD_LEN], payload: u32) {
        let flags = u8::from(self.first)
            | u8::from(self.last) << 1
            | u8::from(self.solicited) << 2
            | u8::from(self.ack_req) << 3
            | u8::from(self.becn) << 4;
        dst[0..4].copy_from_slice(&payload.to_le_bytes());
        dst[4] = self.opcode(true, true).0;
        dst[5] = flags;
        dst[6] = self.syndrome;
        dst[7] = 0;
        dst[8..10].copy_from_slice(&self.pkey.to_le_bytes());
        dst[10..12].fill(0);
        dst[12..16].copy_from_slice(&self.dest_qpn.to_le_bytes());
        dst[16..20].copy_from_slice(&self.psn.get().to_le_bytes());
        dst[20..24].copy_from_slice(&self.n.to_le_bytes());
        dst[24..32].copy_from_slice(&self.va.to_le_bytes());
        dst[32..36].copy_from_slice(&self.rkey.to_le_bytes());
        dst[36..40].copy_from_slice(&self.dma_len.to_le_bytes());
        dst[40..48].copy_from_slice(&self.a.to_le_bytes());
        dst[48..56].copy_from_slice(&self.b.to_le_bytes());
        dst[56..60].copy_from_slice(&self.imm.to_ne_bytes());
        dst[60..64].copy_from_slice(&self.msn.to_le_bytes());
        dst[64..68].copy_from_slice(&self.qkey.to_le_bytes());
        dst[68..72].copy_from_slice(&self.src_qpn.to_le_bytes());
        dst[72..].fill(0);
    }

    /// Reads a record: the run, its payload, and what follows. Trusts nothing in it.
    #[inline]
    pub fn parse_record(b: &[u8]) -> Result<(Run, &[u8], &[u8]), Malformed> {
        let (head, rest) = b.split_first_chunk::<RECORD_LEN>().ok_or(Malformed::Length)?;
        let (run, payload) = Run::parse_head(head)?;
        let padded = payload.checked_add(RECORD_ALIGN - 1).ok_or(Malformed::Length)? & !(RECORD_ALIGN - 1);
        if rest.len() < padded {
            return Err(Malformed::Length);
        }
        let (body, next) = rest.split_at(padded);
        Ok((run, &body[..payload], next))
    }

    /// Reads the head of a record: the run, and the bytes of its payload, which begins [`RECORD_LEN`] bytes after the head and
    /// takes a multiple of [`RECORD_ALIGN`]. Trusts nothing in it; whether so many bytes follow is the caller's to see.
    ///
    /// # Errors
    /// An opcode that nobody knows, or a number of packets that no run has.
    #[inline]
    pub fn parse_head(d: &[u8; RECORD_LEN]) -> Result<(Run, usize), Malformed> {
        let u32_at = |i: usize| u32::from_le_bytes([d[i], d[i + 1], d[i + 2], d[i + 3]]);
        let u64_at = |i: usize| u64::from(u32_at(i)) | u64::from(u32_at(i + 4)) << 32;
        let payload = u32_at(0) as usize;
        let op = Opcode(d[4]);
        if !op.is_known() {
            return Err(Malformed::UnknownOpcode(op));
        }
        let mut run = Run::new(op.class(), op.kind(), u32_at(12) & 0xff_ffff, Psn::new(u32_at(16)));
        run.first = d[5] & 1 != 0;
        run.last = d[5] & 2 != 0;
        run.solicited = d[5] & 4 != 0;
        run.ack_req = d[5] & 8 != 0;
        run.becn = d[5] & 16 != 0;
        run.has_imm = op.has_imm();
        run.has_inv = op.has_ieth();
        run.syndrome = d[6];
        run.pkey = u16::from_le_bytes([d[8], d[9]]);
        run.n = u32_at(20);
        run.va = u64_at(24);
        run.rkey = u32_at(32);
        run.dma_len = u32_at(36);
        run.a = u64_at(40);
        run.b = u64_at(48);
        run.imm = u32::from_ne_bytes([d[56], d[57], d[58], d[59]]);
        run.msn = u32_at(60);
        run.qkey = u32_at(64);
        run.src_qpn = u32_at(68) & 0xff_ffff;
        if run.n == 0 || run.n > 1 << 16 {
            return Err(Malformed::Length);
        }
        Ok((run, payload))
    }
}
