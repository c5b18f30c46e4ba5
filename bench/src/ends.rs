//! Two soft devices on loopback addresses, each driven by its own thread, for the end-to-end
//! benches.

use gdrcore_core::config::Config;
use gdrcore_core::device::{Device, MrAttr, MrReg};
use gdrcore_core::verbs::types::*;
use gdrcore_net::map::Map;
use gdrcore_net::soft::{SoftConfig, SoftDevice};
use gdrcore_testkit::connection::Connection;
use std::sync::atomic::{AtomicU32, Ordering};

/// A device with one PD, one CQ, one buffer and any number of RC QPs.
pub struct End {
    /// The device.
    pub dev: &'static SoftDevice,
    /// Its CQ.
    pub cq: Handle,
    /// Its QPs and their numbers.
    pub qps: Vec<(Handle, u32)>,
    /// Its buffer, registered.
    pub mr: MrAttr,
    /// The buffer's memory.
    pub buf: Map,
    sends: AtomicU32,
    _mem: Map,
}

/// Entries of its CQ.
const CQE: u32 = 4096;

/// The wr_id of receives.
const RECV: u64 = u64::MAX;

/// All access rights.
const ALL: u32 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: nothing uses the device any more; its memory is freed behind this.
        unsafe { self.dev.close() };
    }
}

impl End {
    /// Opens a device with `n` QPs and a buffer of `bytes`.
    pub fn open(name: &str, n: usize, bytes: usize, depth: u32) -> End {
        // Memory for these rings, at up to 512 bytes for each request and its place in the tables
        // (each ring a whole page), and for the CQ.
        let ring_bytes = n as u64 * (u64::from(depth) * 512 + 8192)
            + u64::from(CQE) * 128
            + Config::default().ring_bytes;
        let max_qp = (n as u32).max(Config::default().max_qp);
        let cfg = SoftConfig {
            core: Config { max_qp, ring_bytes, ..Config::default() },
            ..SoftConfig::default()
        };
        let mem = Map::new(SoftDevice::memsize(name, &cfg).expect("device name")).expect("memory");
        // SAFETY: a fresh mapping, kept beside the device.
        let dev = unsafe { SoftDevice::init(mem.as_ptr(), mem.len(), name, &cfg).expect("device") };
        let pd = dev.pd_alloc().expect("pd");
        let (cq, _) = dev.cq_create(CQE).expect("cq");
        let cap = QpCap {
            max_send_wr: depth,
            max_recv_wr: depth,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let init = QpInit {
            pd,
            send_cq: cq,
            recv_cq: cq,
            qp_type: qp_type::RC,
            cap,
            ..Default::default()
        };
        let qps =
            (0..n).map(|_| dev.qp_create(&init).map(|(h, qpn, _)| (h, qpn)).expect("qp")).collect();
        let buf = Map::new(bytes).expect("buffer");
        let addr = buf.as_ptr() as u64;
        let reg = MrReg {
            pd,
            addr,
            length: bytes as u64,
            iova: addr,
            access: ALL,
            provider: 0,
            cookie: 0,
        };
        let (_, mr) = dev.mr_reg(&reg).expect("mr");
        End { dev, cq, qps, mr, buf, sends: AtomicU32::new(0), _mem: mem }
    }

    /// Opens a device with two QPs that are connected to each other.
    pub fn open_pair(name: &str, bytes: usize, depth: u32) -> End {
        let end = End::open(name, 2, bytes, depth);
        End::link(&end, &end, &[(0, 1), (1, 0)]);
        end
    }

    /// As [`End::open_pair`], with small queues, beside `idle` QPs that are connected to each other
    /// as well.
    pub fn open_pair_beside(name: &str, idle: usize) -> End {
        let end = End::open(name, 2 + idle, 4096, 8);
        let pairs: Vec<(usize, usize)> = (0..2 + idle).map(|i| (i, i ^ 1)).collect();
        End::link(&end, &end, &pairs);
        end
    }

    /// Connects the QPs of two ends pairwise.
    pub fn connect(a: &End, b: &End) {
        let same: Vec<(usize, usize)> = (0..a.qps.len()).map(|i| (i, i)).collect();
        End::link(a, b, &same);
        End::link(b, a, &same);
    }

    /// Takes QPs of `x` to RTS, each connected to one of `y`.
    fn link(x: &End, y: &End, pairs: &[(usize, usize)]) {
        let peer = y.dev.query().expect("query");
        let ah = peer.ah();
        for (mine, theirs) in pairs.iter().map(|&(i, j)| (x.qps[i], y.qps[j])) {
            let connection = Connection {
                access: ALL,
                mtu: peer.active_mtu,
                ah,
                dest_qpn: theirs.1,
                rd_atomic: 16,
                min_rnr_timer: 1,
                ..Connection::default()
            };
            for (attr, mask) in connection.steps() {
                x.dev.qp_modify(mine.0, &attr, mask).expect("modify");
            }
        }
    }

    /// Posts one signalled WRITE or READ of `len` bytes at `offset` of both buffers.
    pub fn post(&self, qp: usize, peer: &MrAttr, opcode: u32, offset: u64, len: u32) {
        self.post_with(qp, peer, opcode, offset, len, send_flags::SIGNALED);
    }

    /// As [`End::post`], with flags; also for a SEND or an atomic.
    #[inline]
    pub fn post_with(
        &self,
        qp: usize,
        peer: &MrAttr,
        opcode: u32,
        offset: u64,
        len: u32,
        flags: u32,
    ) {
        let sge = Sge { addr: self.mr.addr + offset, length: len, lkey: self.mr.lkey };
        let wr = SendWr {
            wr_id: qp as u64,
            next: core::ptr::null(),
            sg_list: &sge,
            num_sge: 1,
            opcode,
            send_flags: flags,
            imm_data: 0,
            wr: if matches!(opcode, wr_opcode::ATOMIC_CMP_AND_SWP | wr_opcode::ATOMIC_FETCH_AND_ADD)
            {
                WrOp {
                    atomic: AtomicWr {
                        remote_addr: peer.addr + offset,
                        compare_add: 1,
                        swap: 0,
                        rkey: peer.rkey,
                    },
                }
            } else {
                WrOp { rdma: RdmaWr { remote_addr: peer.addr + offset, rkey: peer.rkey } }
            },
            remote_srqn: 0,
            ext: WrExt::default(),
        };
        let mut bad = core::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { self.dev.post_send(self.qps[qp].0, &wr, &mut bad).expect("post") };
    }

    /// Posts an inline SEND from the start of the buffer; every 16th is signalled, and
    /// [`End::try_wait`] polls its completion without counting it.
    #[inline]
    pub fn post_unsignalled(&self, qp: usize, len: u32) {
        let none = MrAttr::default();
        let n = self.sends.fetch_add(1, Ordering::Relaxed);
        let flags = send_flags::INLINE | if n % 16 == 15 { send_flags::SIGNALED } else { 0 };
        self.post_with(qp, &none, wr_opcode::SEND, 0, len, flags);
    }

    /// Posts a receive of `len` bytes into the second half of the buffer.
    #[inline]
    pub fn post_recv(&self, qp: usize, len: u32) {
        let sge = Sge { addr: self.mr.addr + self.mr.length / 2, length: len, lkey: self.mr.lkey };
        let wr = RecvWr { wr_id: RECV, next: core::ptr::null(), sg_list: &sge, num_sge: 1 };
        let mut bad = core::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { self.dev.post_recv(self.qps[qp].0, &wr, &mut bad).expect("post") };
    }

    /// Polls once; true if a receive has completed.
    #[inline]
    pub fn try_wait(&self) -> bool {
        let mut wc = [Wc::default()];
        if self.dev.poll_cq(self.cq, &mut wc).expect("poll") == 0 {
            return false;
        }
        assert_eq!(wc[0].status, 0, "{}", self.dev.last_cause().expect("cause"));
        wc[0].wr_id == RECV
    }

    /// Waits until a receive has completed.
    #[inline]
    pub fn wait_recv(&self) {
        while !self.try_wait() {
            core::hint::spin_loop();
        }
    }

    /// Waits for one successful completion; returns its wr_id.
    pub fn wait(&self) -> u64 {
        let mut wc = [Wc::default()];
        while self.dev.poll_cq(self.cq, &mut wc).expect("poll") == 0 {
            core::hint::spin_loop();
        }
        assert_eq!(wc[0].status, 0, "{}", self.dev.last_cause().expect("cause"));
        wc[0].wr_id
    }
}
