//! Two soft devices of this process on one address, with a queue pair each: bytes go from one to
//! the other, and are compared.

use gdrcore_core::config::Config;
use gdrcore_core::device::{Device, MrReg};
use gdrcore_core::verbs::kind::QpKind;
use gdrcore_core::verbs::transition::lookup;
use gdrcore_core::verbs::types::{
    access, qp_attr_mask as mask, qp_state, qp_type, send_flags, wc_status, wr_opcode, AhAttr,
    Handle, QpAttr, QpCap, QpInit, RdmaWr, SendWr, Sge, Wc, WrOp,
};
use gdrcore_core::Error;
use gdrcore_net::map::Map;
use gdrcore_net::reason;
use gdrcore_net::soft::{PathChoice, SoftConfig, SoftDevice};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Bytes that are carried: several packets.
const BYTES: usize = 20_000;
/// ACK timeout code and retries: 2 s altogether.
const TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;
/// No completion comes later.
const PATIENCE: Duration = Duration::from_secs(20);

/// A soft device; closed before its memory goes.
struct Soft {
    dev: &'static SoftDevice,
    _memory: Map,
}

impl Soft {
    fn open(name: &str, path: PathChoice) -> Result<Soft, String> {
        let core = Config { max_qp: 4, ..Config::default() };
        let config = SoftConfig { core, path, ..SoftConfig::default() };
        let bytes = SoftDevice::memsize(name, &config).map_err(words)?;
        let memory = Map::new(bytes).map_err(words)?;
        // SAFETY: fresh, page-aligned, and it lives in `_memory` until after `close`.
        let dev =
            unsafe { SoftDevice::init(memory.as_ptr(), bytes, name, &config) }.map_err(words)?;
        Ok(Soft { dev, _memory: memory })
    }
}

impl Drop for Soft {
    fn drop(&mut self) {
        // SAFETY: the references to it that `carries` made have ended.
        unsafe { self.dev.close() };
    }
}

/// An error with its reason.
pub fn words(e: Error) -> String {
    reason::note_returned(e);
    reason::with_text(|words| words.to_string())
}

/// A queue pair in RESET, and what its peer needs to know.
struct End {
    cq: Handle,
    qp: Handle,
    qpn: u32,
    lkey: u32,
    rkey: u32,
    ah: AhAttr,
}

impl End {
    fn new(dev: &SoftDevice, buffer: &Map) -> gdrcore_core::Result<End> {
        let pd = dev.pd_alloc()?;
        let (cq, _) = dev.cq_create(8)?;
        let cap = QpCap {
            max_send_wr: 4,
            max_recv_wr: 4,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (qp, qpn, _) = dev.qp_create(&QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            qp_type: qp_type::RC,
            sq_sig_all: 1,
            cap,
            xrcd: 0,
            dc_key: 0,
            srq: 0,
        })?;
        let addr = buffer.as_ptr() as u64;
        let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
        let reg =
            MrReg { pd, addr, length: BYTES as u64, iova: addr, access, provider: 0, cookie: 0 };
        let (_, attr) = dev.mr_reg(&reg)?;
        Ok(End { cq, qp, qpn, lkey: attr.lkey, rkey: attr.rkey, ah: dev.query()?.ah() })
    }

    fn connect(&self, dev: &SoftDevice, to: &End, path_mtu: u32) -> gdrcore_core::Result<()> {
        let attr = QpAttr {
            port_num: 1,
            qp_access_flags: access::REMOTE_WRITE,
            path_mtu,
            dest_qp_num: to.qpn,
            ah: to.ah,
            min_rnr_timer: 12,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: RETRIES,
            peer_is_soft: 1,
            ..QpAttr::default()
        };
        let states = [qp_state::RESET, qp_state::INIT, qp_state::RTR, qp_state::RTS];
        states.windows(2).try_for_each(|of| {
            let needed = lookup(QpKind::Rc, of[0], of[1]).map_or(0, |need| need.required);
            dev.qp_modify(self.qp, &QpAttr { qp_state: of[1], ..attr }, needed | mask::STATE)
        })
    }
}

/// Writes bytes from one device to the other on this address over this path, and compares them.
/// Returns the largest path MTU that the link carries, in bytes.
///
/// # Errors
/// What does not work, in words.
pub fn carries(at: IpAddr, path: PathChoice) -> Result<u32, String> {
    let bracketed = if at.is_ipv6() { format!("[{at}]") } else { at.to_string() };
    // Declared before the devices, so that the devices end before it.
    let buffers = [Map::new(BYTES).map_err(words)?, Map::new(BYTES).map_err(words)?];
    // One at RoCE's own port, which firewalls know, the other at any.
    let near = Soft::open(&format!("soft:{bracketed}"), path)?;
    let far = Soft::open(&format!("soft:{bracketed}:0"), path)?;
    let mtu = near.dev.query().map_err(words)?.active_mtu;
    let from = End::new(near.dev, &buffers[0]).map_err(words)?;
    let to = End::new(far.dev, &buffers[1]).map_err(words)?;
    from.connect(near.dev, &to, mtu).map_err(words)?;
    to.connect(far.dev, &from, mtu).map_err(words)?;
    for i in 0..BYTES {
        // SAFETY: inside the buffer, which nobody else uses yet.
        unsafe { buffers[0].as_ptr().add(i).write((i * 7 + 1) as u8) };
    }
    let sge = Sge { addr: buffers[0].as_ptr() as u64, length: BYTES as u32, lkey: from.lkey };
    let wr = SendWr {
        wr_id: 1,
        next: core::ptr::null(),
        sg_list: &sge,
        num_sge: 1,
        opcode: wr_opcode::RDMA_WRITE,
        send_flags: send_flags::SIGNALED,
        imm_data: 0,
        wr: WrOp { rdma: RdmaWr { remote_addr: buffers[1].as_ptr() as u64, rkey: to.rkey } },
        remote_srqn: 0,
        ext: Default::default(),
    };
    // SAFETY: one request with one piece, both on the stack during the call.
    unsafe { near.dev.post_send(from.qp, &wr, &mut core::ptr::null()) }.map_err(words)?;
    let status = completion(&near, &from, &far, &to)?;
    if status != wc_status::SUCCESS {
        let cause = near.dev.qp_cause(from.qp).map_err(words)?;
        return Err(cause.to_string());
    }
    // SAFETY: inside the buffer; the WRITE has completed, so nobody writes there any more.
    let arrived = |i: usize| unsafe { buffers[1].as_ptr().add(i).read() };
    match (0..BYTES).find(|&i| arrived(i) != (i * 7 + 1) as u8) {
        Some(i) => Err(format!("byte {i} arrived as {}", arrived(i))),
        None => Ok(128 << mtu),
    }
}

/// Runs both devices until the request has completed.
fn completion(near: &Soft, from: &End, far: &Soft, to: &End) -> Result<u32, String> {
    let end = Instant::now() + PATIENCE;
    let mut wc = [Wc::default()];
    while Instant::now() < end {
        far.dev.poll_cq(to.cq, &mut [Wc::default()]).map_err(words)?;
        if near.dev.poll_cq(from.cq, &mut wc).map_err(words)? > 0 {
            return Ok(wc[0].status);
        }
    }
    Err("no completion came".into())
}
