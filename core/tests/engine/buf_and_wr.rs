//! What tests are made of: memory, patterns, work requests.

use std::alloc::{alloc_zeroed, dealloc, Layout};

use gdrcore_core::verbs::types::*;

use crate::util::End;

/// Zeroed memory at a fixed address, which an engine may change while nobody holds a reference.
pub struct Buf {
    ptr: *mut u8,
    len: usize,
}

impl Buf {
    pub fn new(len: usize) -> Buf {
        // SAFETY: the layout is not empty.
        let ptr = unsafe { alloc_zeroed(Buf::layout(len)) };
        assert!(!ptr.is_null());
        Buf { ptr, len }
    }
    fn layout(len: usize) -> Layout {
        Layout::from_size_align(len.max(1), 4096).unwrap()
    }
    pub fn addr(&self) -> u64 {
        self.ptr as u64
    }
    pub fn len(&self) -> usize {
        self.len
    }
    pub fn ptr(&self) -> *mut u8 {
        self.ptr
    }
    /// A copy of a piece.
    pub fn get(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: inside the allocation; no engine runs meanwhile.
        unsafe { std::slice::from_raw_parts(self.ptr.add(at), len) }.to_vec()
    }
    pub fn put(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside the allocation; no engine runs meanwhile.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.ptr.add(at), bytes.len()) }
    }
    pub fn put_u64(&self, at: usize, v: u64) {
        self.put(at, &v.to_ne_bytes());
    }
    pub fn get_u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.get(at, 8).try_into().unwrap())
    }
}

impl Drop for Buf {
    fn drop(&mut self) {
        // SAFETY: allocated so in `new`.
        unsafe { dealloc(self.ptr, Buf::layout(self.len)) }
    }
}

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
        Wr {
            raw: SendWr {
                wr_id: 1,
                next: std::ptr::null(),
                sg_list: std::ptr::null(),
                num_sge: 0,
                opcode,
                send_flags: send_flags::SIGNALED,
                imm_data: 0,
                wr: WrOp { rdma: RdmaWr { remote_addr: 0, rkey: 0 } },
                remote_srqn: 0,
                ext: WrExt::default(),
            },
            sges: Vec::new(),
        }
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
