//! Memory that answers Pending: nothing is acknowledged, completed or served before it has landed.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Mutex;

use gdrcore_core::device::{MrAttr, MrReg, SrqAttr};
use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId};
use gdrcore_core::verbs::post;
use gdrcore_core::verbs::shared::slotless;
use gdrcore_core::verbs::types::*;
use gdrcore_core::Error;

use crate::flush::flush;
use crate::util::*;

/// Memory whose placements land when the test says so.
#[derive(Default)]
pub struct Manual {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The last token given, and the last that has landed.
    given: u64,
    landed: u64,
    /// Token, address, bytes.
    waiting: Vec<(u64, u64, Vec<u8>)>,
}

impl Manual {
    /// Lets `n` placements land.
    pub fn land(&self, n: usize) {
        let mut s = self.state.lock().unwrap();
        for _ in 0..n.min(s.waiting.len()) {
            let (token, addr, bytes) = s.waiting.remove(0);
            // SAFETY: the engine checked the range; the test's buffer outlives the engine.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
            s.landed = token;
        }
    }
    pub fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting.len()
    }
}

impl Memory for Manual {
    fn fetch(&self, _: u64, addr: u64, dst: &mut [u8], _: TransferId) -> Access {
        // SAFETY: as in `land`.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, dst.as_mut_ptr(), dst.len()) };
        Access::Ready
    }
    fn place(&self, _: u64, addr: u64, src: &[u8]) -> Access {
        let mut s = self.state.lock().unwrap();
        s.given += 1;
        let token = s.given;
        s.waiting.push((token, addr, src.to_vec()));
        Access::Pending(Token(token))
    }
    fn poll(&self, token: Token) -> Access {
        if token.0 <= self.state.lock().unwrap().landed {
            Access::Ready
        } else {
            Access::Pending(token)
        }
    }
    fn atomic(&self, _: u64, _: u64, _: AtomicOp, _: TransferId) -> Result<u64, Access> {
        Err(Access::Fault)
    }
}

/// Memory that vanishes under what it has taken, and says so once.
#[derive(Default)]
struct Gone(AtomicBool);

impl Memory for Gone {
    fn fetch(&self, _: u64, _: u64, _: &mut [u8], _: TransferId) -> Access {
        Access::Fault
    }
    fn place(&self, _: u64, _: u64, _: &[u8]) -> Access {
        Access::Pending(Token(1))
    }
    fn poll(&self, _: Token) -> Access {
        match self.0.swap(true, Relaxed) {
            true => Access::Ready,
            false => Access::Fault,
        }
    }
    fn atomic(&self, _: u64, _: u64, _: AtomicOp, _: TransferId) -> Result<u64, Access> {
        Err(Access::Fault)
    }
}

/// Makes `memory` that of an end's buffer, in a region that it returns.
fn slow(net: &Net, e: &End, memory: &'static dyn Memory) -> (MrReg, MrAttr) {
    let reg = MrReg { provider: 1, ..region(e.pd, e.buf.addr(), e.buf.len() as u64, ALL) };
    let mut g = net.lock(e);
    g.register_memory(1, memory).unwrap();
    (reg, g.mr_reg(&reg).unwrap().1)
}

#[test]
fn a_message_that_has_lost_bytes_fails_at_its_end() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 14, ..Opts::default() });
    let memory: &'static Gone = Box::leak(Box::default());
    let (_, MrAttr { addr, rkey, .. }) = slow(&net, &b, memory);
    let mut first = true;
    net.tap =
        Some(Box::new(move |from, _| Fate::drop_if(from == 0 && !std::mem::take(&mut first))));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 3000).key(addr, rkey));
    net.exchange();
    net.lock(&b).poll_memory(net.now);
    assert!(memory.0.load(Relaxed), "it was asked inside the message");
    net.tap = None;
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::REM_OP_ERR);
}

/// A pair whose second end has a slow region over its buffer.
fn pair() -> (Net, End, End, MrReg, &'static Manual, (u64, u32)) {
    pair_of(qp_type::RC)
}

fn pair_of(kind: u32) -> (Net, End, End, MrReg, &'static Manual, (u64, u32)) {
    let (net, a, b) = Net::pair(Opts { timeout: 14, kind, ..Opts::default() });
    let memory: &'static Manual = Box::leak(Box::default());
    let (reg, mr) = slow(&net, &b, memory);
    (net, a, b, reg, memory, (mr.addr, mr.rkey))
}

/// A provider keeps what it fetches under the number of a request's slot.
#[test]
fn requests_without_a_slot_are_of_host_memory_and_of_one_packet() {
    let (net, a, b) = Net::pair(Opts { way: Way::Loopback, ..Opts::default() });
    let memory: &'static Manual = Box::leak(Box::default());
    let (_, MrAttr { addr, lkey, .. }) = slow(&net, &a, memory);
    let slow = Sge { addr, length: 8, lkey };
    let offer = |sge: Sge| {
        let mut wr = Wr::new(wr_opcode::RDMA_WRITE).sge(sge).remote(&b, 0);
        (wr.raw.sg_list, wr.raw.num_sge) = (wr.sges.as_ptr(), 1);
        let q = &net.hosts[0].engine.shared().qps[index(a.qp)];
        q.slotless.store(slotless::WITHIN, Relaxed);
        // SAFETY: the request and its list live through the call.
        let single = unsafe { post::single(q, &wr.raw) }.unwrap();
        (net.lock(&a).pass_single(index(a.qp), &single), q.slotless.load(Relaxed))
    };
    let host = Sge { addr: a.mr.iova, length: 8, lkey: a.mr.lkey };
    assert_eq!(offer(host), (true, slotless::WITHIN));
    // Where it was declined, the next one is not offered.
    assert_eq!(offer(slow), (false, slotless::NO));
    assert_eq!(offer(Sge { length: 5000, ..host }), (false, slotless::NO));
}

#[test]
fn a_write_is_acknowledged_only_when_it_has_landed() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    a.buf.write(0, &pattern(1, 3000));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 3000).key(addr, key));
    net.run(1_000_000);
    assert!(net.poll(0, a.scq).is_empty() && memory.waiting() == 3);
    memory.land(2);
    net.run(1_000_000);
    assert!(net.poll(0, a.scq).is_empty());
    memory.land(1);
    net.run(1_000_000);
    assert_eq!(net.poll(0, a.scq).len(), 1);
    assert!(b.buf.read(0, 3000) == pattern(1, 3000));
}

#[test]
fn receives_and_reads_behind_it_keep_their_order() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    b.buf.write(0, &[0; 5000]);
    a.buf.write(0, &pattern(2, 1000));
    net.recv(&b, 7, &[(100_000, 100)]);
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 1000).key(addr, key));
    // Ordinary memory, but behind the WRITE.
    net.post(&a, Wr::new(wr_opcode::SEND).id(2).local(&a, 0, 100));
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).id(3).local(&a, 10_000, 1000).remote(&b, 0));
    net.run(5_000_000);
    assert!(net.poll(0, a.scq).is_empty() && net.poll(1, b.rcq).is_empty());
    memory.land(9);
    net.run(5_000_000);
    let ids: Vec<u64> = net.poll(0, a.scq).iter().map(|w| w.wr_id).collect();
    assert_eq!(ids, [1, 2, 3]);
    assert_eq!(net.poll(1, b.rcq)[0].wr_id, 7);
    assert!(a.buf.read(10_000, 1000) == pattern(2, 1000), "a READ sees the WRITE before it");
}

// rxe rxe_resp.c atomic_write_reply
#[test]
fn an_atomic_write_is_not_seen_before_what_came_before_it() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    a.buf.write(0, &pattern(2, 1000));
    a.buf.write_u64(2000, 77);
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 1000).key(addr, key));
    // Ordinary memory, which could be written at once.
    net.post(&a, Wr::new(wr_opcode::ATOMIC_WRITE).id(2).local(&a, 2000, 8).remote(&b, 100_000));
    net.run(5_000_000);
    assert!(net.poll(0, a.scq).is_empty());
    assert_eq!((memory.waiting(), b.buf.read_u64(100_000)), (1, 0), "the word is behind the bytes");
    memory.land(1);
    net.run(5_000_000);
    let ids: Vec<u64> = net.poll(0, a.scq).iter().map(|w| w.wr_id).collect();
    assert_eq!((ids, b.buf.read_u64(100_000)), (vec![1, 2], 77));
    assert!(b.buf.read(0, 1000) == pattern(2, 1000));
}

// rxe rxe_resp.c process_flush
#[test]
fn a_flush_is_behind_all_that_lands() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    a.buf.write(0, &pattern(2, 1000));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 1000).key(addr, key));
    // A FLUSH of ordinary memory waits too: it is about the queue pair's requests.
    net.post(&a, flush(&b, 200_000, 8).id(2));
    // What follows it is placed when it has been executed.
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(3).local(&a, 0, 8).remote(&b, 100_000));
    net.run(5_000_000);
    assert!(net.poll(0, a.scq).is_empty());
    assert_eq!((memory.waiting(), b.buf.read(100_000, 8)), (1, vec![0; 8]));
    memory.land(1);
    net.run(5_000_000);
    let ids: Vec<u64> = net.poll(0, a.scq).iter().map(|w| w.wr_id).collect();
    assert_eq!((ids, b.buf.read(100_000, 8)), (vec![1, 2, 3], pattern(2, 8)));
    assert!(b.buf.read(0, 1000) == pattern(2, 1000));
    // The end of a message that waits behind others, and its receive.
    net.recv(&b, 7, &[(300_000, 100)]);
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(4).local(&a, 0, 3000).key(addr, key));
    net.post(&a, Wr::new(wr_opcode::SEND).id(5).local(&a, 0, 100));
    net.post(&a, flush(&b, 0, 3000).id(6));
    for landed in 0..3 {
        net.run(5_000_000);
        assert!(net.poll(0, a.scq).is_empty(), "{landed} of 3 have landed");
        memory.land(1);
    }
    net.run(5_000_000);
    let ids: Vec<u64> = net.poll(0, a.scq).iter().map(|w| w.wr_id).collect();
    assert_eq!(ids, [4, 5, 6]);
    assert_eq!(net.poll(1, b.rcq).len(), 1);
}

#[test]
fn receives_of_two_xrc_srqs_behind_it_complete_each_in_its_own_cq() {
    let (mut net, a, b, _, memory, (addr, key)) = pair_of(qp_type::XRC_SEND);
    let (cq, srq, number) = {
        let mut g = net.lock(&b);
        let cq = g.cq_create(2).unwrap().0;
        let attr = SrqAttr { max_wr: 1, max_sge: 1, srq_limit: 0 };
        let srq = g.srq_create_xrc(net.now, [b.pd, b.xrcd, cq], &attr).unwrap().0;
        (cq, srq, g.srq_number(srq).unwrap())
    };
    net.recv(&b, 7, &[(100_000, 100)]);
    net.try_recv_of(&b, srq, 8, (200_000, 100)).unwrap();
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).id(1).local(&a, 0, 1000).key(addr, key));
    net.post(&a, Wr::new(wr_opcode::SEND).id(2).srqn(number).local(&a, 0, 100));
    net.post(&a, Wr::new(wr_opcode::SEND).id(3).local(&a, 0, 100));
    net.run(5_000_000);
    assert!(net.poll(0, a.scq).is_empty() && net.poll(1, b.rcq).is_empty());
    assert!(net.poll(1, cq).is_empty());
    assert_eq!(net.lock(&b).srq_destroy(0, srq), Err(Error::Busy), "a receive of it waits");
    memory.land(9);
    net.run(5_000_000);
    assert_eq!(net.poll(0, a.scq).len(), 3);
    let ended = |cq| {
        let wc = net.poll(1, cq);
        wc.iter().map(|w| (w.wr_id, w.status, w.qp_num)).collect::<Vec<_>>()
    };
    assert_eq!(ended(cq), [(8, 0, b.qpn)]);
    assert_eq!(ended(b.rcq), [(7, 0, b.qpn)]);
    // Nothing stays promised in either.
    let mut g = net.lock(&b);
    assert_eq!(g.cq_resize(b.rcq, 1), Ok(2));
    g.srq_destroy(0, srq).unwrap();
    g.cq_destroy(cq).unwrap();
}

#[test]
fn a_receive_that_fails_ends_behind_those_that_wait_for_memory() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    net.recv(&b, 7, &[(100_000, 100)]);
    net.try_recv_sges(&b, 8, &[Sge { addr: b.buf.addr(), length: 100, lkey: b.mr.lkey ^ 0x5500 }])
        .unwrap();
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 1000).key(addr, key));
    // The first receive is ordinary memory, but behind the WRITE; the second is no memory at all.
    for id in [2, 3] {
        net.post(&a, Wr::new(wr_opcode::SEND).id(id).local(&a, 0, 100));
    }
    net.run(5_000_000);
    assert_eq!(memory.waiting(), 1);
    let ends: Vec<_> = net.poll(1, b.rcq).iter().map(|w| (w.wr_id, w.status)).collect();
    assert_eq!(ends, [(7, wc_status::WR_FLUSH_ERR), (8, wc_status::LOC_PROT_ERR)]);
}

#[test]
fn a_message_larger_than_the_window_goes_on_while_memory_lands() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    a.buf.write(0, &pattern(3, 2 << 20));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 2 << 20).key(addr, key));
    let mut wc = Vec::new();
    for _ in 0..2000 {
        net.run(50_000);
        memory.land(16);
        wc.extend(net.poll(0, a.scq));
    }
    assert_eq!((wc.len(), wc[0].status), (1, 0));
    assert!(b.buf.read(0, 2 << 20) == pattern(3, 2 << 20));
    let c = net.lock(&a).counters();
    assert_eq!(c.retry_timeouts, 0, "{c:?}");
}

#[test]
fn many_small_messages_wait_in_line_without_rnr() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    for i in 0..40u64 {
        a.buf.write(i as usize * 64, &pattern(i, 64));
        let w = Wr::new(wr_opcode::RDMA_WRITE).id(i).local(&a, i as usize * 64, 64);
        net.post(&a, w.key(addr + i * 64, key));
    }
    let mut wc = Vec::new();
    for _ in 0..400 {
        net.run(30_000);
        memory.land(1);
        wc.extend(net.poll(0, a.scq));
    }
    assert!(
        wc.len() == 40 && wc.iter().enumerate().all(|(i, w)| (w.wr_id, w.status) == (i as u64, 0)),
        "{wc:?}"
    );
    assert!((0..40).all(|i| b.buf.read(i * 64, 64) == pattern(i as u64, 64)));
    assert_eq!(net.lock(&b).counters().send_rnr_err, 0);
}

#[test]
fn what_found_no_place_is_asked_for_again_as_soon_as_there_is_one() {
    let (mut net, a, b, _, memory, (addr, key)) = pair();
    let n = 30;
    for i in 0..n {
        a.buf.write(i as usize * 64, &pattern(i, 64));
        net.post(
            &a,
            Wr::new(wr_opcode::RDMA_WRITE)
                .id(i)
                .local(&a, i as usize * 64, 64)
                .key(addr + i * 64, key),
        );
    }
    net.settle();
    let places = memory.waiting();
    assert!(
        places < n as usize && net.lock(&b).counters().send_nak_err == 0,
        "{places} messages wait for memory"
    );
    let (start, mut rounds, mut done) = (net.now, 0, Vec::new());
    while done.len() < n as usize {
        memory.land(usize::MAX);
        net.settle();
        done.extend(net.poll(0, a.scq));
        rounds += 1;
        assert!(
            rounds < 2 * n && net.lock(&b).counters().send_nak_err >= u64::from(rounds > 1),
            "{rounds}: {done:?}"
        );
    }
    assert_eq!(net.now, start, "no timer has run: the peer was told each time");
    assert!(done.iter().enumerate().all(|(i, w)| (w.wr_id, w.status) == (i as u64, 0)), "{done:?}");
    assert!((0..n).all(|i| b.buf.read(i as usize * 64, 64) == pattern(i, 64)));
}

/// Memory whose first fetch of a message is not ready, and that notes what it is told of those to
/// come.
#[derive(Default)]
struct Foretold {
    /// Messages that have waited.
    asked: Mutex<Vec<u64>>,
    /// Address and bytes of those to come.
    told: Mutex<Vec<(u64, u32)>>,
}

impl Memory for Foretold {
    fn fetch(&self, _: u64, addr: u64, dst: &mut [u8], of: TransferId) -> Access {
        let mut asked = self.asked.lock().unwrap();
        if !asked.contains(&of.id) {
            asked.push(of.id);
            return Access::Pending(Token(of.id));
        }
        assert!(of.left as usize >= dst.len(), "{of:?} for {} bytes", dst.len());
        // SAFETY: as in `Manual`.
        unsafe { std::ptr::copy_nonoverlapping(addr as *const u8, dst.as_mut_ptr(), dst.len()) };
        Access::Ready
    }
    fn ahead(&self, _: u64, addr: u64, of: TransferId) {
        self.told.lock().unwrap().push((addr, of.left));
    }
    fn place(&self, _: u64, _: u64, _: &[u8]) -> Access {
        Access::Fault
    }
    fn poll(&self, _: Token) -> Access {
        Access::Ready
    }
    fn atomic(&self, _: u64, _: u64, _: AtomicOp, _: TransferId) -> Result<u64, Access> {
        Err(Access::Fault)
    }
}

#[test]
fn what_waits_behind_slow_memory_sets_out_but_nothing_behind_a_fence() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 14, ..Opts::default() });
    let memory: &'static Foretold = Box::leak(Box::default());
    let (_, MrAttr { addr, lkey: key, .. }) = slow(&net, &a, memory);
    for i in 0..5u64 {
        a.buf.write(i as usize * 4096, &pattern(i, 3000));
        let sge = Sge { addr: addr + i * 4096, length: 3000, lkey: key };
        let mut w = Wr::new(wr_opcode::RDMA_WRITE).id(i).sge(sge).remote(&b, i as usize * 4096);
        if i == 3 {
            w = w.add_flags(send_flags::FENCE);
        }
        net.post(&a, w);
    }
    let mut wc = Vec::new();
    for _ in 0..100 {
        net.run(50_000);
        wc.extend(net.poll(0, a.scq));
    }
    assert!(wc.len() == 5 && wc.iter().all(|w| w.status == 0), "{wc:?}");
    assert!((0..5).all(|i: usize| b.buf.read(i * 4096, 3000) == pattern(i as u64, 3000)));
    // Told while the first waited, the second, and so on: never of the fenced one, nor, before it
    // had left, of what follows it.
    let told = memory.told.lock().unwrap().clone();
    let first: Vec<_> = told.iter().take(2).copied().collect();
    assert_eq!(first, [(addr + 4096, 3000), (addr + 8192, 3000)]);
    assert!(told.iter().all(|t| t.0 != addr + 3 * 4096), "{told:x?}");
    assert_eq!(told.iter().filter(|t| t.0 == addr + 4 * 4096).count(), 1, "{told:x?}");
}
