//! A connection between the stacks: one QP of ours and one of the far end's.

use super::guest::{give_way, Link};
use super::side::Side;
use super::Outcome;
use crate::ends::{Address, Buffer, End, Op, Shape, QKEY};
use crate::patience::deadline;
use gdrcore_core::device::{MrAttr, MrReg};
use gdrcore_core::verbs::types::{
    access, qp_attr_mask, qp_type, send_flags, wc_status, wr_opcode, Handle, MwBindInfo, QpAttr,
    Wc, ACCESS_FLUSH,
};
use std::time::Instant;

/// The far end's half.
pub struct Far {
    /// Its number in the far end's program.
    pub id: i128,
    /// Its address, as our half takes it.
    pub own: Address,
    /// Completions that were polled while another one was awaited.
    done: Vec<Wc>,
}

/// A QP at either end, connected.
pub struct Pair<'d, 'l> {
    /// The link that connects them.
    pub link: &'l Link<'d>,
    /// Our half.
    pub our: End<'d>,
    /// The far half.
    pub far: Far,
    window: Option<Handle>,
    region: Option<Handle>,
    next: u64,
}

/// This bit is set in the numbers of receives.
pub const RECV_ID: u64 = 1 << 40;

fn text<E: std::fmt::Debug>(what: &str) -> impl Fn(E) -> String + '_ {
    move |e| format!("{what}: {e:?}")
}

/// Bytes that follow from a seed, the same as the pattern of `peer.c`.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

impl<'d, 'l> Pair<'d, 'l> {
    /// Leaves our half to the device, as [`End::leave`].
    pub fn leave(self) -> Buffer {
        self.our.leave()
    }

    /// Makes and connects a pair.
    pub fn new(link: &'l Link<'d>, shape: Shape) -> Outcome<Pair<'d, 'l>> {
        Pair::with_srq(link, shape, 0)
    }

    /// As [`Pair::new`]; the far half receives from an SRQ of that depth, or from that of another
    /// pair's far half, given as `-(id + 1)`.
    pub fn with_srq(link: &'l Link<'d>, shape: Shape, srq: i128) -> Outcome<Pair<'d, 'l>> {
        let our = End::new(link.dev, shape).map_err(text("our end"))?;
        Pair::around(link, our, srq)
    }

    /// As [`Pair::new`], with another ACK timeout code for the far half.
    pub fn with_timeouts(link: &'l Link<'d>, shape: Shape, far: u8) -> Outcome<Pair<'d, 'l>> {
        let our = End::new(link.dev, shape).map_err(text("our end"))?;
        Pair::join(link, our, 0, far)
    }

    /// Connects an end of ours, which is in RESET, to a new far end.
    pub fn around(link: &'l Link<'d>, our: End<'d>, srq: i128) -> Outcome<Pair<'d, 'l>> {
        let timeout = our.shape.timeout;
        Pair::join(link, our, srq, timeout)
    }

    fn join(
        link: &'l Link<'d>,
        mut our: End<'d>,
        srq: i128,
        far_timeout: u8,
    ) -> Outcome<Pair<'d, 'l>> {
        let shape = our.shape;
        let Shape { qp_type, buffer, depth, cqe, sge, .. } = shape;
        let made =
            link.numbers(&format!("new {qp_type} {buffer} {depth} {depth} {cqe} {sge} {srq}"))?;
        let [id, qpn, addr, rkey] = made[..] else { return Err(format!("new: {made:?}")) };
        let qpn = qpn as u32;
        let psn = qpn.wrapping_mul(0x00C0_FFEE) ^ 0xFF_FFF0;
        let own = Address {
            ah: link.far,
            qpn,
            psn: psn & 0xFF_FFFF,
            addr: addr as u64,
            rkey: rkey as u32,
        };
        let remote = shape.access
            & (access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC | ACCESS_FLUSH);
        link.request(&format!("init {id} {remote} {QKEY}"))?;
        let (mtu, index, near, rnr) = (shape.mtu, link.index, &link.near, shape.min_rnr_timer);
        // Both ends send by the class that ours has for the far one.
        let class = link.far.traffic_class;
        link.request(&format!(
            "rtr {id} {mtu} {index} {near} {} {} 8 {rnr} {class}",
            our.own.qpn, our.own.psn
        ))?;
        our.connect(own).map_err(text("our end to RTS"))?;
        let Shape { retry_cnt, rnr_retry, .. } = shape;
        link.request(&format!("rts {id} {} {far_timeout} {retry_cnt} {rnr_retry} 8", own.psn))?;
        Ok(Pair {
            link,
            our,
            far: Far { id, own, done: Vec::new() },
            window: None,
            region: None,
            next: 1,
        })
    }

    /// A request number that was not used yet.
    pub fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Fills a range with the bytes of `seed`.
    pub fn fill(&mut self, side: Side, offset: usize, len: usize, seed: u64) -> Outcome<()> {
        match side {
            Side::Ours => self.our.buffer.write(offset, &pattern(seed, len)),
            Side::Rxe => {
                drop(self.link.request(&format!("fill {} {offset} {len} {seed}", self.far.id))?)
            }
        }
        Ok(())
    }

    /// Sets every byte of a range to one value.
    pub fn set(&mut self, side: Side, offset: usize, len: usize, byte: u8) -> Outcome<()> {
        match side {
            Side::Ours => self.our.buffer.write(offset, &vec![byte; len]),
            Side::Rxe => {
                drop(self.link.request(&format!("set {} {offset} {len} {byte}", self.far.id))?)
            }
        }
        Ok(())
    }

    /// Checks that a range holds the bytes of `seed`.
    pub fn check(&mut self, side: Side, offset: usize, len: usize, seed: u64) -> Outcome<()> {
        let at = match side {
            Side::Ours => {
                let (got, want) = (self.our.buffer.read(offset, len), pattern(seed, len));
                if got == want {
                    return Ok(());
                }
                got.iter().zip(&want).position(|(g, w)| g != w).map_or(-1, |at| at as i128)
            }
            Side::Rxe => {
                self.link.numbers(&format!("check {} {offset} {len} {seed}", self.far.id))?[0]
            }
        };
        if at < 0 {
            return Ok(());
        }
        Err(format!("{side:?}: byte {at} of {len} at {offset} is wrong"))
    }

    /// Checks that a range still holds one value only.
    pub fn untouched(&mut self, side: Side, offset: usize, len: usize, byte: u8) -> Outcome<()> {
        let clean = match side {
            Side::Ours => self.our.buffer.read(offset, len).iter().all(|&b| b == byte),
            Side::Rxe => {
                self.link.numbers(&format!("all {} {offset} {len} {byte}", self.far.id))?[0] < 0
            }
        };
        if clean {
            return Ok(());
        }
        Err(format!("{side:?}: the {len} bytes at {offset} were changed"))
    }

    /// The word at an offset, after a value was written to it, if one is given.
    pub fn word(&mut self, side: Side, offset: usize, value: Option<u64>) -> Outcome<u64> {
        match side {
            Side::Ours => {
                if let Some(v) = value {
                    self.our.buffer.write(offset, &v.to_le_bytes());
                }
                let bytes = self.our.buffer.read(offset, 8);
                Ok(u64::from_le_bytes(bytes.try_into().map_err(|_| "eight bytes".to_string())?))
            }
            Side::Rxe => {
                let value = value.map(|v| format!(" {v}")).unwrap_or_default();
                Ok(self.link.numbers(&format!("word {} {offset}{value}", self.far.id))?[0] as u64)
            }
        }
    }

    /// Posts a receive; returns its number.
    pub fn recv(&mut self, side: Side, offset: usize, len: usize) -> Outcome<u64> {
        let id = self.id() | RECV_ID;
        match side {
            Side::Ours => {
                self.our.post_recv(id, offset as u64, len as u32).map_err(text("post_recv"))?
            }
            Side::Rxe => {
                drop(self.link.request(&format!("recv {} 1 {id} {offset} {len} 0", self.far.id))?)
            }
        }
        Ok(id)
    }

    /// Posts a signalled request towards the other side's buffer; returns its number.
    pub fn post(&mut self, side: Side, op: Op, offset: usize, len: usize) -> Outcome<u64> {
        self.post_as(side, op, offset, len, send_flags::SIGNALED, None)
    }

    /// As [`Pair::post`], with flags, and with another remote key if one is given.
    pub fn post_as(
        &mut self,
        side: Side,
        op: Op,
        offset: usize,
        len: usize,
        flags: u32,
        key: Option<u32>,
    ) -> Outcome<u64> {
        let id = self.id();
        if side == Side::Ours {
            let pieces = [self.our.piece(offset as u64, len as u32)];
            let mut peer = self.our.peer;
            std::mem::swap(&mut peer, &mut self.our.peer);
            self.our.peer = Address { rkey: key.unwrap_or(peer.rkey), ..peer };
            let mut wr = self.our.request(id, op, if len == 0 { &[] } else { &pieces });
            self.our.peer = peer;
            wr.send_flags = flags;
            self.our.post_wr(&wr).map_err(text("post_send"))?;
            return Ok(id);
        }
        let ud = self.our.shape.qp_type == qp_type::UD;
        let line = self.far_request(op, key, ud);
        self.link.request(&format!(
            "send {} 1 {id} {} {flags} {offset} {len} 0 {}",
            self.far.id, line.0, line.1
        ))?;
        Ok(id)
    }

    /// The far end's opcode number, and "REMOTE STRIDE KEY IMM A B".
    fn far_request(&self, op: Op, key: Option<u32>, ud: bool) -> (u32, String) {
        let own = self.our.own;
        let key = key.unwrap_or(own.rkey);
        let at = |offset: u64| own.addr.wrapping_add(offset);
        let imm = |i: Option<u32>| i.unwrap_or(0);
        let with = |i: Option<u32>, plain, other| if i.is_some() { other } else { plain };
        match op {
            Op::Send(i) => {
                let (remote, key) = if ud { (u64::from(own.qpn), QKEY) } else { (0, 0) };
                (
                    with(i, wr_opcode::SEND, wr_opcode::SEND_WITH_IMM),
                    format!("{remote} 0 {key} {} 0 0", imm(i)),
                )
            }
            Op::SendInv(k) => (wr_opcode::SEND_WITH_INV, format!("0 0 0 {k} 0 0")),
            Op::Write(to, i) => (
                with(i, wr_opcode::RDMA_WRITE, wr_opcode::RDMA_WRITE_WITH_IMM),
                format!("{} 0 {key} {} 0 0", at(to), imm(i)),
            ),
            Op::Read(from) => (wr_opcode::RDMA_READ, format!("{} 0 {key} 0 0 0", at(from))),
            Op::AtomicWrite(to) => (wr_opcode::ATOMIC_WRITE, format!("{} 0 {key} 0 0 0", at(to))),
            Op::Flush(to, length, placement, level) => (
                wr_opcode::FLUSH,
                format!("{} 0 {key} 0 {length} {}", at(to), placement | level << 8),
            ),
            Op::CmpSwap(a, c, s) => {
                (wr_opcode::ATOMIC_CMP_AND_SWP, format!("{} 0 {key} 0 {c} {s}", at(a)))
            }
            Op::FetchAdd(a, n) => {
                (wr_opcode::ATOMIC_FETCH_AND_ADD, format!("{} 0 {key} 0 {n} 0", at(a)))
            }
        }
    }

    /// Polls the far end; waits there for at most `ms`.
    fn poll_far(&mut self, ms: u32) -> Outcome<()> {
        let n = self.link.numbers(&format!("poll {} {ms}", self.far.id))?;
        if let [1, wr_id, status, opcode, byte_len, imm, qp_num, src_qp, flags] = n[..] {
            self.far.done.push(Wc {
                wr_id: wr_id as u64,
                status: status as u32,
                opcode: opcode as u32,
                byte_len: byte_len as u32,
                imm_data: imm as u32,
                qp_num: qp_num as u32,
                src_qp: src_qp as u32,
                wc_flags: flags as u32,
                ..Wc::default()
            });
        }
        Ok(())
    }

    /// Waits for the completion of `id`, whatever its status.
    pub fn wait(&mut self, side: Side, id: u64) -> Outcome<Wc> {
        let end = deadline(60);
        let mut idle = 0;
        loop {
            let got = match side {
                Side::Ours => {
                    idle = if self.our.poll() > 0 { 0 } else { idle + 1 };
                    self.our.take(id)
                }
                Side::Rxe => {
                    let at = self.far.done.iter().position(|wc| wc.wr_id == id);
                    at.map(|at| self.far.done.remove(at))
                }
            };
            if let Some(wc) = got {
                return Ok(wc);
            }
            if Instant::now() > end {
                let cause = self.our.dev.qp_cause(self.our.qp);
                let counters = self.our.dev.qp_counters(self.our.qp);
                return Err(format!("{side:?}: no completion of {id:#x}; {cause:?} {counters:?}"));
            }
            match side {
                Side::Ours => give_way(idle),
                Side::Rxe => self.poll_far(20)?,
            }
        }
    }

    /// Waits for the completion of `id`; an error if it is not a success.
    pub fn succeed(&mut self, side: Side, id: u64) -> Outcome<Wc> {
        let wc = self.wait(side, id)?;
        if wc.status == wc_status::SUCCESS {
            return Ok(wc);
        }
        Err(format!("{side:?}: {wc:?}; our cause {:?}", self.our.dev.qp_cause(self.our.qp)))
    }

    /// Waits for the completion of `id`; an error if it has another status.
    pub fn ends_with(&mut self, side: Side, id: u64, status: u32) -> Outcome<Wc> {
        let wc = self.wait(side, id)?;
        if wc.status == status {
            return Ok(wc);
        }
        let cause = self.our.dev.qp_cause(self.our.qp);
        Err(format!(
            "{side:?}: status {} instead of {status}: {wc:?}; our cause {cause:?}",
            wc.status
        ))
    }

    /// Gives the other side other rights on `side`'s QP.
    pub fn allow(&mut self, side: Side, rights: u32) -> Outcome<()> {
        if side == Side::Rxe {
            return self.link.request(&format!("allow {} {rights}", self.far.id)).map(drop);
        }
        let attr = QpAttr { qp_access_flags: rights, ..QpAttr::default() };
        let set = qp_attr_mask::ACCESS_FLAGS;
        self.our.dev.qp_modify(self.our.qp, &attr, set).map_err(text("ACCESS_FLAGS"))
    }

    /// Registers `side`'s buffer once more, with these rights; returns the key.
    pub fn region(&mut self, side: Side, rights: u32) -> Outcome<u32> {
        if side == Side::Rxe {
            return Ok(self.link.numbers(&format!("region {} {rights}", self.far.id))?[0] as u32);
        }
        let MrAttr { iova, length, .. } = self.our.attr;
        let (pd, addr) = (self.our.pd, self.our.buffer.addr());
        let reg = MrReg { pd, addr, length, iova, access: rights, provider: 0, cookie: 0 };
        let (mr, attr) = self.our.dev.mr_reg(&reg).map_err(text("mr_reg"))?;
        self.region = Some(mr);
        Ok(attr.rkey)
    }

    /// Binds a type 2 window of `side` to the first `len` bytes of its buffer; returns its key.
    pub fn window(&mut self, side: Side, len: u64) -> Outcome<u32> {
        let rights = access::REMOTE_WRITE | access::REMOTE_READ;
        if side == Side::Rxe {
            return Ok(
                self.link.numbers(&format!("mw {} 0 {len} {rights}", self.far.id))?[0] as u32
            );
        }
        let (mw, key) = self.our.dev.mw_alloc(self.our.pd, 2).map_err(text("mw_alloc"))?;
        let id = self.id();
        let key = (key & !0xFF) | (key.wrapping_add(1) & 0xFF);
        let mut wr = self.our.request(id, Op::Send(None), &[]);
        wr.opcode = wr_opcode::BIND_MW;
        wr.ext.bind_mw.mw = mw;
        wr.ext.bind_mw.rkey = key;
        wr.ext.bind_mw.bind_info = MwBindInfo {
            mr: self.our.mr,
            addr: self.our.attr.iova,
            length: len,
            mw_access_flags: rights,
        };
        self.our.post_wr(&wr).map_err(text("BIND_MW"))?;
        self.window = Some(mw);
        self.succeed(Side::Ours, id)?;
        Ok(key)
    }

    /// Destroys both halves.
    pub fn end(self) -> Outcome<()> {
        self.link.request(&format!("del {}", self.far.id))?;
        if let Some(mw) = self.window {
            self.our.dev.mw_dealloc(mw).map_err(text("mw_dealloc"))?;
        }
        if let Some(mr) = self.region {
            self.our.dev.mr_dereg(mr).map_err(text("mr_dereg"))?;
        }
        self.our.destroy().map_err(text("destroy"))
    }
}
