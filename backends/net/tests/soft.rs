//! Tests of two soft devices in one process, over real sockets and over loopback.

use gdrcore_core::device::{Device, MrReg};
use gdrcore_core::verbs::types::*;
use gdrcore_net::map::Map;
use gdrcore_net::soft::{SoftConfig, SoftDevice};
use gdrcore_testkit::patience::deadline;
use gdrcore_testkit::place;
use std::time::Instant;

struct Side {
    dev: &'static SoftDevice,
    _map: Map,
    pd: Handle,
    cq: Handle,
    qp: Handle,
    qpn: u32,
    buf: Vec<u8>,
    mr: gdrcore_core::device::MrAttr,
}

fn open(name: &str, bytes: usize) -> Side {
    let cfg = SoftConfig::default();
    let map = Map::new(SoftDevice::memsize(name, &cfg).unwrap()).unwrap();
    // SAFETY: a fresh mapping, kept beside the device.
    let dev = unsafe { SoftDevice::init(map.as_ptr(), map.len(), name, &cfg).unwrap() };
    side(dev, map, bytes)
}

/// A device name that no other test uses.
fn name(last: u8) -> String {
    let [a, b, c, d] = place::loopback(0, last);
    format!("soft:{a}.{b}.{c}.{d}")
}

fn side(dev: &'static SoftDevice, map: Map, bytes: usize) -> Side {
    let pd = dev.pd_alloc().unwrap();
    let (cq, _) = dev.cq_create(256).unwrap();
    let cap = QpCap {
        max_send_wr: 64,
        max_recv_wr: 64,
        max_send_sge: 2,
        max_recv_sge: 2,
        max_inline_data: 64,
    };
    let init =
        QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: qp_type::RC, cap, ..Default::default() };
    let (qp, qpn, _) = dev.qp_create(&init).unwrap();
    let buf = vec![0u8; bytes];
    let all =
        access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let reg = MrReg {
        pd,
        addr: buf.as_ptr() as u64,
        length: bytes as u64,
        iova: buf.as_ptr() as u64,
        access: all,
        provider: 0,
        cookie: 0,
    };
    let (_, mr) = dev.mr_reg(&reg).unwrap();
    Side { dev, _map: map, pd, cq, qp, qpn, buf, mr }
}

fn connect(a: &Side, b: &Side) {
    use qp_attr_mask as m;
    for (x, y) in [(a, b), (b, a)] {
        let peer = y.dev.query().unwrap();
        let mut attr = QpAttr {
            qp_state: qp_state::INIT,
            port_num: 1,
            qp_access_flags: access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC,
            ..Default::default()
        };
        x.dev.qp_modify(x.qp, &attr, m::STATE | m::PKEY_INDEX | m::PORT | m::ACCESS_FLAGS).unwrap();
        attr.qp_state = qp_state::RTR;
        attr.path_mtu = peer.active_mtu;
        attr.dest_qp_num = y.qpn;
        attr.rq_psn = 100;
        attr.max_dest_rd_atomic = 16;
        attr.min_rnr_timer = 12;
        attr.ah.dgid = peer.gid;
        attr.ah.udp_port = peer.udp_port as u16;
        let rtr = m::STATE
            | m::AV
            | m::PATH_MTU
            | m::DEST_QPN
            | m::RQ_PSN
            | m::MAX_DEST_RD_ATOMIC
            | m::MIN_RNR_TIMER;
        x.dev.qp_modify(x.qp, &attr, rtr).unwrap();
        attr.qp_state = qp_state::RTS;
        attr.sq_psn = 100;
        attr.timeout = 14;
        attr.retry_cnt = 7;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = 16;
        let rts =
            m::STATE | m::SQ_PSN | m::TIMEOUT | m::RETRY_CNT | m::RNR_RETRY | m::MAX_QP_RD_ATOMIC;
        x.dev.qp_modify(x.qp, &attr, rts).unwrap();
    }
}

fn wr(opcode: u32, sge: &Sge, remote: u64, rkey: u32) -> SendWr {
    SendWr {
        wr_id: 7,
        next: std::ptr::null(),
        sg_list: sge,
        num_sge: 1,
        opcode,
        send_flags: send_flags::SIGNALED,
        imm_data: 0,
        wr: WrOp { rdma: RdmaWr { remote_addr: remote, rkey } },
        remote_srqn: 0,
        bind_mw: BindMwWr::default(),
    }
}

fn run(a: &Side, b: &Side, w: &SendWr) -> Wc {
    let mut bad = std::ptr::null();
    // SAFETY: the request and its list live through the call.
    unsafe { a.dev.post_send(a.qp, w, &mut bad).unwrap() };
    let mut wc = [Wc::default()];
    let end = deadline(60);
    loop {
        if a.dev.poll_cq(a.cq, &mut wc).unwrap() == 1 {
            return wc[0];
        }
        b.dev.progress().unwrap();
        assert!(Instant::now() < end, "stuck: {:?} {:?}", a.dev.qp_cause(a.qp), a.dev.counters());
    }
}

fn traffic(a: &mut Side, b: &mut Side) {
    let n = a.buf.len();
    for len in [1usize, 8, 64, 1000, 4096, 4097, 65_536, 1 << 20] {
        if len > n {
            continue;
        }
        let fill = |buf: &mut [u8], k: usize| {
            buf.iter_mut().enumerate().for_each(|(i, x)| *x = (i * 7 + k) as u8)
        };
        fill(&mut a.buf, len);
        b.buf.fill(0);
        let sge = Sge { addr: a.mr.addr, length: len as u32, lkey: a.mr.lkey };
        let wc = run(a, b, &wr(wr_opcode::RDMA_WRITE, &sge, b.mr.addr, b.mr.rkey));
        assert_eq!(wc.status, 0, "WRITE of {len}");
        assert!(
            a.buf[..len] == b.buf[..len] && b.buf[len..].iter().all(|&x| x == 0),
            "WRITE of {len}"
        );

        fill(&mut b.buf, len + 3);
        let wc = run(a, b, &wr(wr_opcode::RDMA_READ, &sge, b.mr.addr, b.mr.rkey));
        assert_eq!(wc.status, 0, "READ of {len}");
        assert!(a.buf[..len] == b.buf[..len], "READ of {len}");

        fill(&mut a.buf, len + 5);
        let rsge = Sge { addr: b.mr.addr, length: len as u32, lkey: b.mr.lkey };
        let recv = RecvWr { wr_id: 9, next: std::ptr::null(), sg_list: &rsge, num_sge: 1 };
        let mut bad = std::ptr::null();
        // SAFETY: the request and its list live through the call.
        unsafe { b.dev.post_recv(b.qp, &recv, &mut bad).unwrap() };
        let wc = run(a, b, &wr(wr_opcode::SEND, &sge, 0, 0));
        assert_eq!(wc.status, 0, "SEND of {len}");
        let mut wc = [Wc::default()];
        assert_eq!(b.dev.poll_cq(b.cq, &mut wc).unwrap(), 1);
        assert_eq!((wc[0].wr_id, wc[0].byte_len as usize, wc[0].status), (9, len, 0));
        assert!(a.buf[..len] == b.buf[..len], "SEND of {len}");
    }
}

#[test]
fn write_read_send_over_udp() {
    let mut a = open(&name(1), 1 << 20);
    let mut b = open(&name(2), 1 << 20);
    connect(&a, &b);
    traffic(&mut a, &mut b);
    let c = a.dev.counters().unwrap();
    assert_eq!(c.rcvd_icrc_err + c.rcvd_malformed + c.rcvd_no_qp, 0, "{c:?}");
    let _ = (a.pd, b.pd);
}

#[test]
fn write_read_send_over_udp_ipv6() {
    // Loopback has a single IPv6 address, so the process's number tells the ports apart.
    let port = 5000 + 2 * u16::from(place::number());
    let mut a = open(&format!("soft:[::1]:{port}"), 1 << 20);
    let mut b = open(&format!("soft:[::1]:{}", port + 1), 1 << 20);
    connect(&a, &b);
    traffic(&mut a, &mut b);
}

/// A receiver that takes a message and leaves at once, by any call, has acknowledged it.
#[test]
fn the_last_message_is_acknowledged_before_its_receiver_leaves() {
    let leave: [fn(&Side); 4] = [
        |b| {
            b.dev
                .qp_modify(
                    b.qp,
                    &QpAttr { qp_state: qp_state::ERR, ..Default::default() },
                    qp_attr_mask::STATE,
                )
                .unwrap()
        },
        |b| {
            b.dev
                .qp_modify(
                    b.qp,
                    &QpAttr { qp_state: qp_state::RESET, ..Default::default() },
                    qp_attr_mask::STATE,
                )
                .unwrap()
        },
        |b| b.dev.qp_reset(b.qp).unwrap(),
        |b| b.dev.qp_destroy(b.qp).unwrap(),
    ];
    for (i, leave) in leave.iter().enumerate() {
        let a = open(&name(3), 4096);
        let b = open(&name(4), 4096);
        connect(&a, &b);
        let (sge, rsge) = (
            Sge { addr: a.mr.addr, length: 64, lkey: a.mr.lkey },
            Sge { addr: b.mr.addr, length: 64, lkey: b.mr.lkey },
        );
        let recv = RecvWr { wr_id: 9, next: std::ptr::null(), sg_list: &rsge, num_sge: 1 };
        let send = wr(wr_opcode::SEND, &sge, 0, 0);
        let (mut bad_recv, mut bad_send) = (std::ptr::null(), std::ptr::null());
        // SAFETY: the requests and their lists live through the calls.
        unsafe {
            b.dev.post_recv(b.qp, &recv, &mut bad_recv).unwrap();
            a.dev.post_send(a.qp, &send, &mut bad_send).unwrap();
        }
        let mut wc = [Wc::default()];
        let end = deadline(60);
        while b.dev.poll_cq(b.cq, &mut wc).unwrap() == 0 {
            assert!(Instant::now() < end, "the message did not come");
        }
        leave(&b);
        while a.dev.poll_cq(a.cq, &mut wc).unwrap() == 0 {
            assert!(Instant::now() < end, "neither success nor failure");
        }
        assert_eq!(wc[0].status, wc_status::SUCCESS, "way {i} to leave");
        // SAFETY: nobody uses the devices any more.
        unsafe {
            a.dev.close();
            b.dev.close();
        }
    }
}

#[test]
fn a_doorbell_that_meets_a_control_call_is_rung_by_it() {
    let a = open("loopback", 4096);
    let b = side(a.dev, Map::new(4096).unwrap(), 4096);
    connect(&a, &b);
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                // A large ring is cleared under the lock, which takes some microseconds.
                let (cq, _) = a.dev.cq_create(4096).unwrap();
                a.dev.cq_destroy(cq).unwrap();
            }
        });
        let word = b.buf.as_ptr().cast::<u64>();
        for k in 1..=20_000u64 {
            let sge = Sge { addr: &raw const k as u64, length: 8, lkey: 0 };
            let wr = SendWr {
                wr_id: k,
                next: core::ptr::null(),
                sg_list: &sge,
                num_sge: 1,
                opcode: wr_opcode::RDMA_WRITE,
                send_flags: send_flags::INLINE,
                imm_data: 0,
                wr: WrOp { rdma: RdmaWr { remote_addr: b.mr.addr, rkey: b.mr.rkey } },
                remote_srqn: 0,
                bind_mw: BindMwWr::default(),
            };
            let mut bad = core::ptr::null();
            // SAFETY: the request and its piece live through the call.
            unsafe { a.dev.post_send(a.qp, &wr, &mut bad) }.unwrap();
            let end = deadline(60);
            // No thread polls: only the doorbell moves it. SAFETY: the buffer lives, is aligned to
            // 8 as all buffers of its kind are, and is written by atomic stores.
            while unsafe { word.read_volatile() } != k {
                if Instant::now() > end {
                    stop.store(true, std::sync::atomic::Ordering::Relaxed);
                    panic!("the doorbell of WRITE {k} was lost");
                }
                std::thread::yield_now();
            }
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}
