//! What tests are made of: memory, patterns, work requests.

use gdrcore_core::verbs::types::*;
use gdrcore_testkit::requests::send_wr;

use crate::util::End;

/// Bytes that differ from place to place and from seed to seed.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64)
        .map(|i| {
            (i.wrapping_mul(31).wrapping_add(i >> 8).wrapping_add(seed.wrapping_mul(97)) & 0xff)
                as u8
        })
        .collect()
}

/// A send request under construction.
#[derive(Clone)]
pub struct Wr {
    pub raw: SendWr,
    pub sges: Vec<Sge>,
}

impl Wr {
    pub fn new(opcode: u32) -> Wr {
        Wr { raw: send_wr(1, opcode, &[], RdmaWr { remote_addr: 0, rkey: 0 }), sges: Vec::new() }
    }
    pub fn id(mut self, id: u64) -> Wr {
        self.raw.wr_id = id;
        self
    }
    pub fn flags(mut self, flags: u32) -> Wr {
        self.raw.send_flags = flags;
        self
    }
    pub fn add_flags(mut self, flags: u32) -> Wr {
        self.raw.send_flags |= flags;
        self
    }
    pub fn imm(mut self, imm: u32) -> Wr {
        self.raw.imm_data = imm;
        self
    }
    /// A piece of the end's own buffer.
    pub fn local(mut self, e: &End, at: usize, len: usize) -> Wr {
        self.sges.push(Sge { addr: e.mr.iova + at as u64, length: len as u32, lkey: e.mr.lkey });
        self
    }
    pub fn sge(mut self, sge: Sge) -> Wr {
        self.sges.push(sge);
        self
    }
    /// WRITE, READ: a place in the peer's buffer.
    pub fn remote(self, e: &End, at: usize) -> Wr {
        self.key(e.mr.iova + at as u64, e.mr.rkey)
    }
    pub fn key(mut self, remote_addr: u64, rkey: u32) -> Wr {
        self.raw.wr = WrOp { rdma: RdmaWr { remote_addr, rkey } };
        self
    }
    pub fn atomic(mut self, e: &End, at: usize, compare_add: u64, swap: u64) -> Wr {
        let a = AtomicWr { remote_addr: e.mr.iova + at as u64, compare_add, swap, rkey: e.mr.rkey };
        self.raw.wr = WrOp { atomic: a };
        self
    }
    /// XRC: the number of the peer's SRQ.
    pub fn srqn(mut self, number: u32) -> Wr {
        self.raw.remote_srqn = number;
        self
    }
    /// DC: the target.
    pub fn dc(mut self, to: DcWr) -> Wr {
        self.raw.ext.dc = to;
        self
    }
    pub fn ud(mut self, ah: Handle, remote_qpn: u32, remote_qkey: u32) -> Wr {
        self.raw.wr = WrOp { ud: UdWr { ah, remote_qpn, remote_qkey } };
        self
    }
    pub fn bind(mut self, mw: Handle, rkey: u32, bind_info: MwBindInfo) -> Wr {
        self.raw.ext.bind_mw = BindMwWr { mw, rkey, bind_info };
        self
    }
}
