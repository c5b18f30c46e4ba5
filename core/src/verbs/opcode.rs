//! Send opcodes: a table with a row for each, and all that follows from the opcode alone.

use crate::verbs::types::{wc_opcode, wr_opcode};
use crate::wire::PacketKind;

/// What a send opcode means.
#[derive(Clone, Copy)]
pub struct SendOp {
    /// Its completion's opcode: one of [`wc_opcode`].
    pub completion: u32,
    /// The operation of its packets; [`PacketKind::Unknown`]: it has none, and the engine executes
    /// it.
    pub kind: PacketKind,
    /// Bits of what follows.
    flags: u8,
}

/// RC takes it, and so do XRC and DC, which have RC's requester.
const RC: u8 = 1;
/// UC takes it.
const UC: u8 = 2;
/// UD takes it.
const UD: u8 = 4;
/// It has data of the program's. Without this flag the list of pieces is not looked at.
const DATA: u8 = 8;

const fn op(completion: u32, kind: PacketKind, flags: u8) -> SendOp {
    SendOp { completion, kind, flags }
}

const TABLE: [SendOp; 16] = {
    use wc_opcode as wc;
    use wr_opcode as wr;
    let mut all = [op(wc::SEND, PacketKind::Unknown, 0); 16];
    all[wr::RDMA_WRITE as usize] = op(wc::RDMA_WRITE, PacketKind::Write, RC | UC | DATA);
    all[wr::RDMA_WRITE_WITH_IMM as usize] = op(wc::RDMA_WRITE, PacketKind::Write, RC | UC | DATA);
    all[wr::SEND as usize] = op(wc::SEND, PacketKind::Send, RC | UC | UD | DATA);
    all[wr::SEND_WITH_IMM as usize] = op(wc::SEND, PacketKind::Send, RC | UC | UD | DATA);
    all[wr::RDMA_READ as usize] = op(wc::RDMA_READ, PacketKind::ReadRequest, RC | DATA);
    all[wr::ATOMIC_CMP_AND_SWP as usize] = op(wc::COMP_SWAP, PacketKind::CmpSwap, RC | DATA);
    all[wr::ATOMIC_FETCH_AND_ADD as usize] = op(wc::FETCH_ADD, PacketKind::FetchAdd, RC | DATA);
    all[wr::LOCAL_INV as usize] = op(wc::LOCAL_INV, PacketKind::Unknown, RC | UC);
    all[wr::BIND_MW as usize] = op(wc::BIND_MW, PacketKind::Unknown, RC | UC);
    all[wr::SEND_WITH_INV as usize] = op(wc::SEND, PacketKind::Send, RC | DATA);
    all[wr::FLUSH as usize] = op(wc::FLUSH, PacketKind::Flush, RC);
    all[wr::ATOMIC_WRITE as usize] = op(wc::ATOMIC_WRITE, PacketKind::AtomicWrite, RC | DATA);
    all
};

/// The row of an opcode that a queue pair has taken.
#[inline(always)]
pub const fn row(opcode: u16) -> &'static SendOp {
    &TABLE[opcode as usize & 15]
}

/// The opcodes with any of `flags`, as bits.
const fn opcodes_with(flags: u8) -> u32 {
    let (mut bits, mut i) = (0, 0);
    while i < 16 {
        if TABLE[i].flags & flags != 0 {
            bits |= 1 << i;
        }
        i += 1;
    }
    bits
}

/// The opcodes that RC, XRC and DC take, as bits.
pub const TAKEN_BY_RC: u32 = opcodes_with(RC);
/// Those of UC.
pub const TAKEN_BY_UC: u32 = opcodes_with(UC);
/// Those of UD.
pub const TAKEN_BY_UD: u32 = opcodes_with(UD);
const HAVE_DATA: u32 = opcodes_with(DATA);

/// Whether the pieces of a request are part of it.
#[inline(always)]
pub const fn has_data(opcode: u32) -> bool {
    HAVE_DATA >> (opcode & 31) & 1 != 0
}

/// The opcodes of requests that an answer of their own ends, not an ACK, as bits.
const ANSWERED: u32 = {
    let (mut bits, mut i) = (0, 0);
    while i < 16 {
        if TABLE[i].kind.answer().is_some() {
            bits |= 1 << i;
        }
        i += 1;
    }
    bits
};

/// Whether an answer of its own ends a request, not an ACK.
#[inline(always)]
pub const fn is_answered(opcode: u16) -> bool {
    ANSWERED >> (opcode & 31) & 1 != 0
}
