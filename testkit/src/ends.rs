//! Two connected QPs over any device, for tests that exchange messages.
//!
//! An [`End`] is one QP with its PD, CQ and one registered buffer. [`Shape`] says how it is made;
//! every field has a default that suits most tests, so a test names only what it is about.

use crate::connection::Connection;
pub use crate::memory::Buffer;
use crate::patience;
use crate::requests::{queue_pair, queues, recv_wr, region};
use crate::rng::Rng;
use gdrcore_core::device::{Device, MrAttr};
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{
    access, mtu, qp_type, send_flags, wc_status, wr_opcode, AhAttr, AtomicWr, FlushWr, Handle,
    RdmaWr, SendWr, Sge, UdWr, Wc, WrOp,
};
use gdrcore_core::Result;
use std::time::Duration;

/// Q_Key of all UD ends.
pub const QKEY: u32 = 0x1122_3344;

/// How an end is made and connected.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// One of `qp_type`.
    pub qp_type: u32,
    /// Bytes of the registered buffer.
    pub buffer: usize,
    /// Access flags of buffer and QP.
    pub access: u32,
    /// Depth of send and receive queue.
    pub depth: u32,
    /// Entries of the CQ.
    pub cqe: u32,
    /// Scatter/gather entries of a request.
    pub sge: u32,
    /// Path MTU code.
    pub mtu: u32,
    /// ACK timeout code.
    pub timeout: u8,
    /// Retries after a timeout.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK.
    pub rnr_retry: u8,
    /// RNR NAK timer code.
    pub min_rnr_timer: u8,
    /// Whether the peer is known to be a soft device, as endpoints of the C API state.
    pub peer_is_soft: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Shape {
            qp_type: qp_type::RC,
            buffer: 1 << 20,
            access: access::LOCAL_WRITE
                | access::REMOTE_WRITE
                | access::REMOTE_READ
                | access::REMOTE_ATOMIC,
            depth: 64,
            cqe: 256,
            sge: 4,
            mtu: mtu::MTU_1024,
            timeout: patience::ack_timeout(14),
            retry_cnt: 7,
            rnr_retry: 7,
            min_rnr_timer: 12,
            peer_is_soft: false,
        }
    }
}

/// The attributes that one end needs of the other.
#[derive(Clone, Copy, Debug, Default)]
pub struct Address {
    /// Where its packets go.
    pub ah: AhAttr,
    /// Its QPN.
    pub qpn: u32,
    /// Its first PSN.
    pub psn: u32,
    /// Its buffer.
    pub addr: u64,
    /// The buffer's remote key.
    pub rkey: u32,
}

/// Operation of a send request; offsets count in the local and the remote buffer.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// SEND, with immediate data or without.
    Send(Option<u32>),
    /// SEND that invalidates a remote key.
    SendInv(u32),
    /// WRITE to a remote offset.
    Write(u64, Option<u32>),
    /// READ from a remote offset.
    Read(u64),
    /// CMP_SWAP at a remote offset: compare, swap.
    CmpSwap(u64, u64, u64),
    /// FETCH_ADD at a remote offset.
    FetchAdd(u64, u64),
    /// ATOMIC WRITE to a remote offset.
    AtomicWrite(u64),
    /// FLUSH at a remote offset: length, placement types, level.
    Flush(u64, u64, u32, u32),
}

/// One QP and what it needs.
pub struct End<'d> {
    /// The device it lives on.
    pub dev: &'d dyn Device,
    /// How it was made.
    pub shape: Shape,
    /// Protection domain.
    pub pd: Handle,
    /// Completion queue of both directions.
    pub cq: Handle,
    /// The QP.
    pub qp: Handle,
    /// Its memory region.
    pub mr: Handle,
    /// Attributes of the memory region.
    pub attr: MrAttr,
    /// Its buffer.
    pub buffer: Buffer,
    /// Its own address.
    pub own: Address,
    /// The peer's, once connected.
    pub peer: Address,
    /// Address handle of the peer (UD).
    pub ah: Handle,
    /// Q_Key of both ends (UD).
    pub qkey: u32,
    /// Completions that were polled while another one was awaited.
    pub done: Vec<Wc>,
}

impl<'d> End<'d> {
    /// Makes PD, CQ, QP and MR; on an error nothing is left. The QP is in RESET.
    pub fn new(dev: &'d dyn Device, shape: Shape) -> Result<End<'d>> {
        End::with_cq(dev, shape, || dev.cq_create(shape.cqe))
    }

    /// The same, with a CQ whose events go to a completion channel.
    pub fn on_channel(dev: &'d dyn Device, shape: Shape, channel: Handle) -> Result<End<'d>> {
        End::with_cq(dev, shape, || dev.cq_create_on(shape.cqe, channel))
    }

    fn with_cq(
        dev: &'d dyn Device,
        shape: Shape,
        cq: impl Fn() -> Result<(Handle, u32)>,
    ) -> Result<End<'d>> {
        let pd = dev.pd_alloc()?;
        let cq = cq().map(|(cq, _)| cq);
        match cq.and_then(|cq| End::on(dev, shape, pd, cq)) {
            Ok(end) => Ok(end),
            Err(e) => {
                if let Ok(cq) = cq {
                    dev.cq_destroy(cq)?;
                }
                dev.pd_dealloc(pd)?;
                Err(e)
            }
        }
    }

    /// The rest of [`End::new`].
    fn on(dev: &'d dyn Device, shape: Shape, pd: Handle, cq: Handle) -> Result<End<'d>> {
        let cap = queues(shape.depth, shape.sge, 64);
        let (qp, qpn, _) = dev.qp_create(&queue_pair(shape.qp_type, pd, [cq; 2], cap))?;
        let buffer = Buffer::new(shape.buffer);
        let reg = region(pd, buffer.addr(), shape.buffer as u64, shape.access);
        let (mr, attr) = match dev.mr_reg(&reg) {
            Ok(made) => made,
            Err(e) => {
                dev.qp_destroy(qp)?;
                return Err(e);
            }
        };
        let ah = dev.query()?.ah();
        let own = Address {
            ah,
            qpn,
            psn: qpn.wrapping_mul(0x9E37) & 0xFF_FFFF,
            addr: attr.iova,
            rkey: attr.rkey,
        };
        let peer = Address::default();
        Ok(End {
            dev,
            shape,
            pd,
            cq,
            qp,
            mr,
            attr,
            buffer,
            own,
            peer,
            ah: 0,
            qkey: QKEY,
            done: Vec::new(),
        })
    }

    /// Takes the QP from RESET to RTS towards `peer`.
    pub fn connect(&mut self, peer: Address) -> Result<()> {
        self.to_init()?;
        self.to_rtr(peer)?;
        self.to_rts()
    }

    /// Its connection to `peer`.
    fn connection(&self) -> Connection {
        let Shape {
            qp_type,
            access,
            mtu,
            timeout,
            retry_cnt,
            rnr_retry,
            min_rnr_timer,
            peer_is_soft,
            ..
        } = self.shape;
        let remote = access::REMOTE_WRITE
            | access::REMOTE_READ
            | access::REMOTE_ATOMIC
            | access::FLUSH_GLOBAL;
        Connection {
            qp_type,
            access: access & remote,
            qkey: self.qkey,
            mtu,
            ah: self.peer.ah,
            dest_qpn: self.peer.qpn,
            psn: (self.own.psn, self.peer.psn),
            rd_atomic: 8,
            min_rnr_timer,
            timeout,
            retry_cnt,
            rnr_retry,
            peer_is_soft,
        }
    }

    /// RESET to INIT.
    pub fn to_init(&mut self) -> Result<()> {
        let (attr, set) = self.connection().to_init();
        self.dev.qp_modify(self.qp, &attr, set)
    }

    /// INIT to RTR towards `peer`.
    pub fn to_rtr(&mut self, peer: Address) -> Result<()> {
        self.peer = peer;
        let (attr, set) = self.connection().to_rtr();
        self.dev.qp_modify(self.qp, &attr, set)?;
        if self.shape.qp_type == qp_type::UD {
            self.ah = self.dev.ah_create(self.pd, &peer.ah)?;
        }
        Ok(())
    }

    /// RTR to RTS.
    pub fn to_rts(&mut self) -> Result<()> {
        let (attr, set) = self.connection().to_rts();
        self.dev.qp_modify(self.qp, &attr, set)
    }

    /// The work request of `op` over `pieces`, which must outlive its posting.
    pub fn request(&self, wr_id: u64, op: Op, pieces: &[Sge]) -> SendWr {
        let rdma = |offset: u64| WrOp {
            rdma: RdmaWr { remote_addr: self.peer.addr.wrapping_add(offset), rkey: self.peer.rkey },
        };
        let atomic = |offset: u64, compare_add, swap| WrOp {
            atomic: AtomicWr {
                remote_addr: self.peer.addr.wrapping_add(offset),
                compare_add,
                swap,
                rkey: self.peer.rkey,
            },
        };
        let with =
            |imm: Option<u32>, plain, imm_opcode| if imm.is_some() { imm_opcode } else { plain };
        let (opcode, imm_data, wr) = match op {
            Op::Send(imm) if self.shape.qp_type == qp_type::UD => {
                let ud = UdWr { ah: self.ah, remote_qpn: self.peer.qpn, remote_qkey: self.qkey };
                (with(imm, wr_opcode::SEND, wr_opcode::SEND_WITH_IMM), imm, WrOp { ud })
            }
            Op::Send(imm) => (with(imm, wr_opcode::SEND, wr_opcode::SEND_WITH_IMM), imm, rdma(0)),
            Op::SendInv(key) => (wr_opcode::SEND_WITH_INV, Some(key), rdma(0)),
            Op::Write(to, imm) => {
                (with(imm, wr_opcode::RDMA_WRITE, wr_opcode::RDMA_WRITE_WITH_IMM), imm, rdma(to))
            }
            Op::Read(from) => (wr_opcode::RDMA_READ, None, rdma(from)),
            Op::CmpSwap(at, compare, swap) => {
                (wr_opcode::ATOMIC_CMP_AND_SWP, None, atomic(at, compare, swap))
            }
            Op::FetchAdd(at, add) => (wr_opcode::ATOMIC_FETCH_AND_ADD, None, atomic(at, add, 0)),
            Op::AtomicWrite(to) => (wr_opcode::ATOMIC_WRITE, None, rdma(to)),
            Op::Flush(at, length, placement, level) => {
                let remote_addr = self.peer.addr.wrapping_add(at);
                let rkey = self.peer.rkey;
                let flush = FlushWr { remote_addr, rkey, placement, length, level };
                (wr_opcode::FLUSH, None, WrOp { flush })
            }
        };
        SendWr {
            wr_id,
            next: std::ptr::null(),
            sg_list: pieces.as_ptr(),
            num_sge: pieces.len() as i32,
            opcode,
            send_flags: send_flags::SIGNALED,
            imm_data: imm_data.unwrap_or(0),
            wr,
            remote_srqn: 0,
            ext: Default::default(),
        }
    }

    /// A scatter/gather entry of the own buffer.
    pub fn piece(&self, offset: u64, length: u32) -> Sge {
        Sge { addr: self.attr.iova.wrapping_add(offset), length, lkey: self.attr.lkey }
    }

    /// Posts `op`, signalled, with one scatter/gather entry of the own buffer (none if `len` is 0).
    pub fn post(&self, wr_id: u64, op: Op, offset: u64, len: u32) -> Result<()> {
        let pieces = [self.piece(offset, len)];
        self.post_wr(&self.request(wr_id, op, if len == 0 { &[] } else { &pieces }))
    }

    /// Posts one request unchanged.
    pub fn post_wr(&self, wr: &SendWr) -> Result<()> {
        let mut bad = std::ptr::null();
        // SAFETY: `wr` is a reference, its list ends with it, and its pieces are the caller's live
        // slice.
        unsafe { self.dev.post_send(self.qp, wr, &mut bad) }
    }

    /// Posts a receive with one scatter/gather entry of the own buffer (none if `len` is 0).
    pub fn post_recv(&self, wr_id: u64, offset: u64, len: u32) -> Result<()> {
        let pieces = [self.piece(offset, len)];
        let wr = recv_wr(wr_id, if len == 0 { &[] } else { &pieces });
        let mut bad = std::ptr::null();
        // SAFETY: request and piece live on this stack frame until the call returns.
        unsafe { self.dev.post_recv(self.qp, &wr, &mut bad) }
    }

    /// Polls completions into `done`; returns their number.
    pub fn poll(&mut self) -> usize {
        let mut wc = [Wc::default(); 16];
        let n = self.dev.poll_cq(self.cq, &mut wc).expect("poll_cq");
        self.done.extend_from_slice(&wc[..n]);
        n
    }

    /// Takes the completion of `wr_id` out of `done`.
    pub fn take(&mut self, wr_id: u64) -> Option<Wc> {
        let at = self.done.iter().position(|wc| wc.wr_id == wr_id)?;
        Some(self.done.remove(at))
    }

    /// Leaves everything to the device, which ends with it; its memory, which outlives the device.
    pub fn leave(mut self) -> Buffer {
        let memory = std::mem::replace(&mut self.buffer, Buffer::new(0));
        std::mem::forget(self);
        memory
    }

    /// Runs this end by itself until a request has completed.
    ///
    /// # Panics
    /// If it does not.
    pub fn alone(&mut self, wr_id: u64) -> Wc {
        let (dev, qp) = (self.dev, self.qp);
        patience::until(
            60,
            || format!("no completion of {wr_id}; cause {:?}", dev.qp_cause(qp)),
            || {
                if self.poll() == 0 {
                    std::thread::yield_now();
                }
                self.take(wr_id)
            },
        )
    }

    /// The state of the queue pair.
    pub fn state(&self) -> u32 {
        self.dev.qp_query(self.qp).expect("qp_query").0.qp_state
    }

    /// Why the queue pair failed.
    pub fn cause(&self) -> CauseCode {
        let code = self.dev.qp_cause(self.qp).expect("qp_cause").code;
        CauseCode::from_u32(code).expect("a known cause")
    }

    /// Destroys everything in order; returns the first error.
    pub fn destroy(self) -> Result<()> {
        self.dev.qp_destroy(self.qp)?;
        if self.ah != 0 {
            self.dev.ah_destroy(self.ah)?;
        }
        self.dev.cq_destroy(self.cq)?;
        self.dev.mr_dereg(self.mr)?;
        self.dev.pd_dealloc(self.pd)
    }
}

/// Takes the region from the device before its memory goes: until the device is closed, it places
/// what a peer still sends.
impl Drop for End<'_> {
    fn drop(&mut self) {
        // A handle of a region that is gone is refused.
        let _ = self.dev.mr_dereg(self.mr);
    }
}

/// Connects two ends to each other.
///
/// # Panics
/// If a device refuses.
pub fn connect_both(a: &mut End, b: &mut End) {
    a.connect(b.own).expect("connect");
    b.connect(a.own).expect("connect");
}

/// Two ends of the usual shape that are connected to each other.
///
/// # Panics
/// If a device refuses.
#[track_caller]
pub fn connected_pair<'d>(a: &'d dyn Device, b: &'d dyn Device) -> (End<'d>, End<'d>) {
    connected(a, b, Shape::default()).expect("connected ends")
}

/// Makes two ends of one shape and connects them.
pub fn connected<'d>(
    a: &'d dyn Device,
    b: &'d dyn Device,
    shape: Shape,
) -> Result<(End<'d>, End<'d>)> {
    let mut a = End::new(a, shape)?;
    let mut b = match End::new(b, shape) {
        Ok(b) => b,
        Err(e) => {
            a.destroy()?;
            return Err(e);
        }
    };
    a.connect(b.own)?;
    b.connect(a.own)?;
    Ok((a, b))
}

/// Runs both ends until `a` has completed `wr_id`. Panics after `limit`, which is for an idle
/// machine (see [`patience`]).
pub fn complete(a: &mut End, b: &mut End, wr_id: u64, limit: Duration) -> Wc {
    let (dev, qp) = (a.dev, a.qp);
    patience::until(
        limit.as_secs(),
        || format!("no completion of {wr_id}; cause {:?}", dev.qp_cause(qp)),
        || {
            a.poll();
            b.poll();
            a.take(wr_id)
        },
    )
}

/// As [`complete`]; panics, with what both devices counted, if the completion is not a success.
pub fn succeed(a: &mut End, b: &mut End, wr_id: u64) -> Wc {
    let wc = complete(a, b, wr_id, Duration::from_secs(60));
    assert_eq!(
        wc.status,
        wc_status::SUCCESS,
        "wr {wr_id}: {wc:?}, cause {:?}, counted {:#?}",
        a.dev.qp_cause(a.qp),
        [&*a, &*b].map(|end| end.dev.counters())
    );
    wc
}

/// Bytes that differ by seed and place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    Rng::new(seed).bytes(len)
}
