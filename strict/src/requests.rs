//! A request that is outstanding.

use crate::memory::{MrRanges, Piece, Tail};
use crate::sites::Site;
use crate::Id;
use gdrcore_core::verbs::types::{qp_type, send_flags, wr_opcode, RecvWr, SendWr};

/// What a request does to the memory of its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceUse {
    /// SEND, WRITE: reads it.
    Reads,
    /// READ, atomic: writes it when the answer comes, which later requests may overtake.
    Fetches,
    /// Receive request.
    Receives,
    /// Nothing: inline data, keys.
    Nothing,
}

/// Bytes of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    pub rkey: u32,
    pub addr: u64,
    pub len: u64,
    pub is_written: bool,
}

impl Remote {
    /// Whether two requests name a byte in common by the same key.
    pub fn overlaps(&self, other: &Remote) -> bool {
        self.rkey == other.rkey
            && self.len > 0
            && other.len > 0
            && self.addr < other.addr.saturating_add(other.len)
            && other.addr < self.addr.saturating_add(self.len)
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub wr_id: u64,
    pub kind: PieceUse,
    pub is_signaled: bool,
    pub is_fenced: bool,
    pub pieces: Vec<Piece>,
    pub remote: Option<Remote>,
    /// The address handle of a datagram, or of a DC target.
    pub ah: Option<Id>,
    pub tail: Tail,
    pub site: Site,
    /// Its number among all requests.
    pub number: u64,
}

/// The queue pair that posts a send request.
#[derive(Clone, Copy)]
pub struct Sender {
    /// Its device.
    pub device: usize,
    /// The first part of its objects' ids.
    pub ids: usize,
    /// Its type.
    pub kind: u32,
    /// Each of its requests has a completion.
    pub signals_all: bool,
}

impl Request {
    /// A send request.
    pub fn send(
        wr: &SendWr,
        regions: &MrRanges,
        from: Sender,
        (site, number): (Site, u64),
    ) -> Request {
        let is_inline = wr.send_flags & send_flags::INLINE != 0;
        let kind = match wr.opcode {
            wr_opcode::RDMA_READ
            | wr_opcode::ATOMIC_CMP_AND_SWP
            | wr_opcode::ATOMIC_FETCH_AND_ADD => PieceUse::Fetches,
            wr_opcode::SEND
            | wr_opcode::SEND_WITH_IMM
            | wr_opcode::SEND_WITH_INV
            | wr_opcode::RDMA_WRITE
            | wr_opcode::RDMA_WRITE_WITH_IMM
                if !is_inline =>
            {
                PieceUse::Reads
            }
            _ => PieceUse::Nothing,
        };
        let pieces_of =
            |is_read| regions.pieces(from.device, wr.sg_list as usize, wr.num_sge, is_read);
        let pieces = match kind {
            PieceUse::Nothing => Vec::new(),
            _ => pieces_of(kind == PieceUse::Reads),
        };
        let len = |pieces: &[Piece]| pieces.iter().map(|p| p.len).sum();
        // SAFETY: integers; the opcode says which of them count.
        let (rdma, atomic, ud, dc) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud, wr.ext.dc) };
        let at = |len, is_written| {
            Some(Remote { rkey: rdma.rkey, addr: rdma.remote_addr, len, is_written })
        };
        let remote = match wr.opcode {
            wr_opcode::RDMA_READ => at(len(&pieces), false),
            // An inline WRITE's pieces are not kept, but its length counts.
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM if is_inline => {
                at(len(&pieces_of(false)), true)
            }
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => at(len(&pieces), true),
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                let (rkey, addr) = (atomic.rkey, atomic.remote_addr);
                Some(Remote { rkey, addr, len: 8, is_written: false })
            }
            _ => None,
        };
        Request {
            wr_id: wr.wr_id,
            kind,
            is_signaled: from.signals_all || wr.send_flags & send_flags::SIGNALED != 0,
            is_fenced: wr.send_flags & send_flags::FENCE != 0,
            pieces,
            remote,
            ah: match from.kind {
                qp_type::UD => Some((from.ids, ud.ah)),
                qp_type::DCI => Some((from.ids, dc.ah)),
                _ => None,
            },
            tail: Tail::default(),
            site,
            number,
        }
    }

    /// A receive request.
    pub fn recv(
        wr: &RecvWr,
        regions: &MrRanges,
        device: usize,
        (site, number): (Site, u64),
    ) -> Request {
        let pieces = regions.pieces(device, wr.sg_list as usize, wr.num_sge, false);
        Request {
            wr_id: wr.wr_id,
            kind: PieceUse::Receives,
            is_signaled: true,
            is_fenced: false,
            tail: Tail::from_pieces(&pieces),
            pieces,
            remote: None,
            ah: None,
            site,
            number,
        }
    }

    /// Whether the device writes to its pieces.
    pub fn writes(&self) -> bool {
        matches!(self.kind, PieceUse::Fetches | PieceUse::Receives)
    }

    /// The first byte that both requests have in their pieces.
    pub fn overlap(&self, other: &Request) -> Option<u64> {
        self.pieces.iter().find_map(|a| other.pieces.iter().find_map(|b| a.overlap(b)))
    }
}
