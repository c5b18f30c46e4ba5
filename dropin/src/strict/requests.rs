//! A request that is outstanding.

use super::memory::{Piece, Regions, Tail};
use super::sites::Site;
use crate::abi::{ibv_recv_wr, ibv_send_wr};
use gdrcore_core::verbs::types::{send_flags, wr_opcode};

/// What a request does to the memory of its pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
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
    pub kind: Kind,
    pub is_signaled: bool,
    pub is_fenced: bool,
    pub pieces: Vec<Piece>,
    pub remote: Option<Remote>,
    /// The address handle of a datagram.
    pub ah: usize,
    pub tail: Tail,
    pub site: Site,
    /// Its number among all requests.
    pub number: u64,
}

impl Request {
    /// A send request. `signals_all`: each has a completion.
    pub fn send(
        wr: &ibv_send_wr,
        regions: &Regions,
        (device, is_datagram, signals_all): (usize, bool, bool),
        (site, number): (Site, u64),
    ) -> Request {
        let is_inline = wr.send_flags & send_flags::INLINE != 0;
        let kind = match wr.opcode {
            wr_opcode::RDMA_READ
            | wr_opcode::ATOMIC_CMP_AND_SWP
            | wr_opcode::ATOMIC_FETCH_AND_ADD => Kind::Fetches,
            wr_opcode::SEND
            | wr_opcode::SEND_WITH_IMM
            | wr_opcode::SEND_WITH_INV
            | wr_opcode::RDMA_WRITE
            | wr_opcode::RDMA_WRITE_WITH_IMM
                if !is_inline =>
            {
                Kind::Reads
            }
            _ => Kind::Nothing,
        };
        let pieces = match kind {
            Kind::Nothing => Vec::new(),
            _ => {
                let list = wr.sg_list as usize;
                regions.pieces(device, list, wr.num_sge, kind == Kind::Reads)
            }
        };
        let len = || pieces.iter().map(|p| p.len).sum();
        // SAFETY: integers; the opcode says which of them count.
        let (rdma, atomic, ud) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.wr.ud) };
        let remote = match wr.opcode {
            wr_opcode::RDMA_READ => Some((rdma.rkey, rdma.remote_addr, len(), false)),
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM if !is_inline => {
                Some((rdma.rkey, rdma.remote_addr, len(), true))
            }
            // An inline WRITE's pieces are not kept, but its length counts.
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => {
                let all = regions.pieces(device, wr.sg_list as usize, wr.num_sge, false);
                let len = all.iter().map(|p| p.len).sum();
                Some((rdma.rkey, rdma.remote_addr, len, true))
            }
            wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD => {
                Some((atomic.rkey, atomic.remote_addr, 8, false))
            }
            _ => None,
        };
        Request {
            wr_id: wr.wr_id,
            kind,
            is_signaled: signals_all || wr.send_flags & send_flags::SIGNALED != 0,
            is_fenced: wr.send_flags & send_flags::FENCE != 0,
            pieces,
            remote: remote.map(|(rkey, addr, len, is_written)| Remote {
                rkey,
                addr,
                len,
                is_written,
            }),
            ah: if is_datagram { ud.ah as usize } else { 0 },
            tail: Tail::default(),
            site,
            number,
        }
    }

    /// A receive request.
    pub fn recv(
        wr: &ibv_recv_wr,
        regions: &Regions,
        device: usize,
        (site, number): (Site, u64),
    ) -> Request {
        let pieces = regions.pieces(device, wr.sg_list as usize, wr.num_sge, false);
        Request {
            wr_id: wr.wr_id,
            kind: Kind::Receives,
            is_signaled: true,
            is_fenced: false,
            tail: Tail::of(&pieces),
            pieces,
            remote: None,
            ah: 0,
            site,
            number,
        }
    }

    /// Whether the device writes to its pieces.
    pub fn writes(&self) -> bool {
        matches!(self.kind, Kind::Fetches | Kind::Receives)
    }

    /// The first byte that both requests have in their pieces.
    pub fn overlap(&self, other: &Request) -> Option<u64> {
        self.pieces.iter().find_map(|a| other.pieces.iter().find_map(|b| a.overlap(b)))
    }
}
