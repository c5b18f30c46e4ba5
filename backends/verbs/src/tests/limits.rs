//! Tests of abilities that a NIC, its driver or its libibverbs lacks, and of lists for both kinds
//! of posts.

use core::sync::atomic::Ordering::SeqCst;
use std::sync::Mutex;

use super::fake::{self, Call, ASKED, CAPS, KNOWN, POSTED, RELEASE, ROOM};
use crate::abi::caps;
use crate::device::VerbsDevice;
use crate::objects::lock;
use crate::sys::Fd;
use gdrcore_core::device::{Device, MrReg, SrqAttr};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::reason;
use gdrcore_core::verbs::types::*;

const WORD: u32 = 1 << wr_opcode::ATOMIC_WRITE;
const FLUSH: u32 = 1 << wr_opcode::FLUSH;
const ALL: u32 = caps::ATOMIC_WRITE | caps::FLUSH_GLOBAL;

/// The words of the last refusal.
static WORDS: Mutex<String> = Mutex::new(String::new());

/// A NIC with these capabilities, whose driver knows these opcodes, and an RC queue pair.
struct Nic {
    device: &'static VerbsDevice,
    _fds: [Fd; 2],
    pd: Handle,
    cq: Handle,
    qp: Handle,
}

impl Nic {
    fn new(caps: u32, release: u32, known: u32) -> Nic {
        reason::install(|_, words| *lock(&WORDS) = words.to_string());
        CAPS.store(caps, SeqCst);
        RELEASE.store(release, SeqCst);
        KNOWN.store(known, SeqCst);
        ROOM.store(100, SeqCst);
        let (device, fds) = fake::open();
        let pd = device.pd_alloc().unwrap();
        let cq = device.cq_create(16).unwrap().0;
        let mut nic = Nic { device, _fds: fds, pd, cq, qp: 0 };
        nic.qp = nic.create(qp_type::RC).unwrap();
        nic
    }

    fn create(&self, kind: u32) -> Result<Handle> {
        let cap = QpCap {
            max_send_wr: 64,
            max_recv_wr: 4,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let (pd, cq) = (self.pd, self.cq);
        let init = QpInit { pd, send_cq: cq, recv_cq: cq, qp_type: kind, cap, ..QpInit::default() };
        self.device.qp_create(&init).map(|(qp, ..)| qp)
    }

    /// Posts a list; returns the index of the first request that was not posted.
    fn post(&self, list: &mut [SendWr]) -> (Result<()>, usize) {
        for i in 1..list.len() {
            list[i - 1].next = &raw const list[i];
        }
        let mut bad = core::ptr::null();
        // SAFETY: a list of this array.
        let done = unsafe { self.device.post_send(self.qp, list.as_ptr(), &mut bad) };
        (done, (bad.addr().wrapping_sub(list.as_ptr().addr())) / size_of::<SendWr>())
    }
}

static PIECE: Sge = Sge { addr: 4096, length: 8, lkey: 1 };

fn request(opcode: u32, wr_id: u64) -> SendWr {
    let flush = FlushWr { placement: 1, level: 1, ..FlushWr::default() };
    SendWr { wr_id, opcode, sg_list: &PIECE, num_sge: 1, wr: WrOp { flush }, ..crate::data::EMPTY }
}

fn assert_refused(done: (Result<()>, usize), words: &str) {
    assert_eq!(done, (Err(Error::Unsupported), 0), "{words}");
    let said = lock(&WORDS);
    assert!(said.contains(words), "'{said}' has no '{words}'");
}

#[test]
fn each_lack_has_its_words() {
    let _alone = fake::alone();
    for (caps, release, known, asked, words) in [
        (0, 45, WORD | FLUSH, 0, ["this NIC has not got it"; 2]),
        (ALL, 43, WORD | FLUSH, 0, ["since 44", "since 45"]),
        (ALL, 44, 0, WORD, ["driver offers it on no RC QP", "rdma-core 44; it is there since 45"]),
        (ALL, 45, 0, WORD | FLUSH, ["driver offers it on no RC QP"; 2]),
        (ALL, 0, 0, WORD | FLUSH, ["driver offers it on no RC QP"; 2]),
    ] {
        let nic = Nic::new(caps, release, known);
        assert_eq!(ASKED.load(SeqCst), asked, "of {release}");
        for (opcode, words) in [wr_opcode::ATOMIC_WRITE, wr_opcode::FLUSH].into_iter().zip(words) {
            assert_refused(nic.post(&mut [request(opcode, 1)]), words);
        }
        assert!(lock(&POSTED).is_empty());
    }
    // A driver that knows only one of both.
    let nic = Nic::new(ALL, 45, WORD);
    assert_eq!(nic.post(&mut [request(wr_opcode::ATOMIC_WRITE, 7)]).0, Ok(()));
    assert_refused(nic.post(&mut [request(wr_opcode::FLUSH, 8)]), "driver offers it on no RC QP");
    assert_eq!(*lock(&POSTED), [(Call::Extended, vec![7])]);
}

#[test]
fn rights_to_flush_are_those_of_the_nic() {
    let _alone = fake::alone();
    for (caps, right, takes) in [
        (0, access::FLUSH_GLOBAL, false),
        (caps::FLUSH_GLOBAL, access::FLUSH_GLOBAL, true),
        (caps::FLUSH_GLOBAL, access::FLUSH_PERSISTENT, false),
        (caps::FLUSH_PERSISTENT, access::FLUSH_PERSISTENT, true),
    ] {
        let nic = Nic::new(caps, 45, FLUSH);
        let access = access::LOCAL_WRITE | right;
        let reg =
            MrReg { pd: nic.pd, addr: 4096, length: 8, iova: 4096, access, provider: 0, cookie: 0 };
        let made = nic.device.mr_reg(&reg).map(|_| ());
        assert_eq!(made, if takes { Ok(()) } else { Err(Error::Unsupported) }, "{caps} {right:#x}");
    }
}

#[test]
fn a_nic_without_xrc_and_dc_refuses_both() {
    let _alone = fake::alone();
    let nic = Nic::new(0, 45, 0);
    let lacks = |done: Result<()>, words: &str| assert_refused((done, 0), words);
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    lacks(nic.device.xrcd_alloc().map(|_| ()), "no XRC");
    lacks(nic.device.srq_create_xrc([nic.pd, 0, nic.cq], &attr).map(|_| ()), "no XRC");
    lacks(nic.create(qp_type::XRC_SEND).map(|_| ()), "XRC_SEND: this NIC has no XRC");
    lacks(nic.create(qp_type::XRC_RECV).map(|_| ()), "XRC_RECV: this NIC has no XRC");
    let srq = nic.device.srq_create(nic.pd, &attr).unwrap().0;
    lacks(nic.device.srq_resize(srq, 8, None).map(|_| ()), "this NIC cannot resize SRQs");
    lacks(nic.device.srq_number(srq).map(|_| ()), "driver gives this SRQ no number");
    assert_eq!(nic.create(qp_type::DCT), Err(Error::Invalid), "without an SRQ");
    // The words come from the module.
    lacks(nic.create(qp_type::DCI).map(|_| ()), "DCI: a fake has no DC; use RC");
    let (pd, recv_cq) = (nic.pd, nic.cq);
    let dct = QpInit { pd, recv_cq, srq, qp_type: qp_type::DCT, ..QpInit::default() };
    lacks(nic.device.qp_create(&dct).map(|_| ()), "DCT: a fake has no DC; use RC");
    // A refused call holds no object.
    assert_eq!(nic.device.srq_destroy(srq), Ok(()));
}

#[test]
fn a_nic_that_resizes_srqs_is_asked() {
    let _alone = fake::alone();
    let nic = Nic::new(caps::SRQ_RESIZE, 45, 0);
    let attr = SrqAttr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let srq = nic.device.srq_create(nic.pd, &attr).unwrap().0;
    assert_eq!(nic.device.srq_resize(srq, 0, None), Err(Error::Invalid));
    assert_refused((nic.device.srq_resize(srq, 8, None).map(|_| ()), 0), "its driver refused it");
}

#[test]
fn a_list_goes_by_both_ways_in_its_order() {
    let _alone = fake::alone();
    let nic = Nic::new(ALL, 45, WORD | FLUSH);
    let kinds = [
        wr_opcode::RDMA_WRITE,
        wr_opcode::RDMA_WRITE,
        wr_opcode::ATOMIC_WRITE,
        wr_opcode::FLUSH,
        wr_opcode::SEND,
        wr_opcode::FLUSH,
    ];
    let list = |n: u64| -> Vec<SendWr> {
        (0..n).map(|k| request(kinds[k as usize % kinds.len()], k)).collect()
    };
    assert_eq!(nic.post(&mut list(6)).0, Ok(()));
    let ways = [
        (Call::Unchanged, vec![0, 1]),
        (Call::Extended, vec![2, 3]),
        (Call::Unchanged, vec![4]),
        (Call::Extended, vec![5]),
    ];
    assert_eq!(*lock(&POSTED), ways);

    // More requests of one kind than are copied at a time.
    lock(&POSTED).clear();
    let mut flushes: Vec<SendWr> = (0..20).map(|k| request(wr_opcode::FLUSH, k)).collect();
    assert_eq!(nic.post(&mut flushes).0, Ok(()));
    let ids: Vec<u64> = lock(&POSTED).iter().flat_map(|(_, ids)| ids.clone()).collect();
    assert_eq!(ids, (0..20).collect::<Vec<u64>>());

    // A queue with room for some of them: `bad` is the first that was not posted.
    for room in 0..20 {
        lock(&POSTED).clear();
        ROOM.store(room, SeqCst);
        let done = nic.post(&mut flushes);
        assert_eq!(done, (Err(Error::Again), room as usize));
        let ids: Vec<u64> = lock(&POSTED).iter().flat_map(|(_, ids)| ids.clone()).collect();
        assert_eq!(ids, (0..u64::from(room)).collect::<Vec<u64>>());
    }

    // A bad request after good ones of the other kind.
    lock(&POSTED).clear();
    ROOM.store(100, SeqCst);
    let mut mixed = list(6);
    mixed[5].wr.flush.placement = 0;
    assert_eq!(nic.post(&mut mixed), (Err(Error::Invalid), 5));
    assert_eq!(*lock(&POSTED), ways[..3]);
}

#[test]
fn a_list_without_end_of_flushes_ends_where_the_queue_would_be_full() {
    let _alone = fake::alone();
    let nic = Nic::new(ALL, 45, WORD | FLUSH);
    ROOM.store(u32::MAX, SeqCst);
    let mut wr = request(wr_opcode::FLUSH, 1);
    let own = &raw mut wr;
    // SAFETY: the list is this function's own.
    unsafe { (*own).next = own };
    let mut bad = core::ptr::null();
    // SAFETY: a list of one that leads to itself.
    let done = unsafe { nic.device.post_send(nic.qp, own, &mut bad) };
    assert_eq!((done, bad), (Err(Error::Again), own.cast_const()));
    assert_eq!(lock(&POSTED).iter().map(|(_, ids)| ids.len()).sum::<usize>(), 64);
}
