//! WRITEs into memory of the peer that this process reaches by itself: what they leave, and what
//! declines them.

use gdrcore_core::config::Config;
use gdrcore_core::device::MrAttr;
use gdrcore_core::mem::host;
use gdrcore_core::roce::peer_memory::{PeerMemory, Piece, COPY_REMOTE_MIN, PIECES};
use gdrcore_core::verbs::post::{self, Single};
use gdrcore_core::verbs::types::*;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;

use crate::flush::flush;
use crate::util::*;

/// Memory that `b` lends to `a`. It lies at its owner's addresses, since both ends are in this
/// process.
struct Lent {
    own: u32,
    qpn: u32,
    region: MrAttr,
    inside: bool,
    /// It is not mapped, but lent by address.
    far: bool,
    /// Visits after which it is taken back.
    visits: Rc<Cell<u32>>,
}

impl Lent {
    fn go_in(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64> {
        assert!(!self.inside, "left before it is entered again");
        let offset = addr.wrapping_sub(self.region.iova);
        let whole = offset <= self.region.length && len <= self.region.length - offset;
        if (from_qpn, qpn, rkey) != (self.own, self.qpn, self.region.rkey)
            || !whole
            || self.visits.get() == 0
        {
            return None;
        }
        self.visits.set(self.visits.get() - 1);
        self.inside = true;
        Some(self.region.addr + offset)
    }
}

impl PeerMemory for Lent {
    fn pin(&mut self, from_qpn: u32, qpn: u32, rkey: u32, addr: u64, len: u64) -> Option<u64> {
        if self.far {
            return None;
        }
        self.go_in(from_qpn, qpn, rkey, addr, len)
    }
    fn unpin(&mut self) {
        assert!(self.inside);
        self.inside = false;
    }
    fn pin_remote(
        &mut self,
        from_qpn: u32,
        qpn: u32,
        rkey: u32,
        addr: u64,
        len: u64,
    ) -> Option<u64> {
        if !self.far {
            return None;
        }
        self.go_in(from_qpn, qpn, rkey, addr, len)
    }
    fn copy_remote(&mut self, pieces: &[Piece], mut to: u64) -> bool {
        assert!(self.inside && self.far && !pieces.is_empty() && pieces.len() <= PIECES);
        assert!(
            pieces.iter().map(|p| p.len).sum::<u64>() <= 256 << 10,
            "so long is a peer waited for"
        );
        for p in pieces {
            if host::transfer(p.addr, to, p.len as usize).is_err() {
                return false;
            }
            to += p.len;
        }
        true
    }
}

fn over_link() -> Opts {
    Opts { way: Way::Link, ..Opts::default() }
}

/// A pair of which `a` has mapped the memory of `b`; how often it may still be entered.
fn pair(o: Opts) -> (Net, End, End, Rc<Cell<u32>>) {
    pair_by(o, false)
}

/// The same, where it is lent by address.
fn far_pair(o: Opts) -> (Net, End, End, Rc<Cell<u32>>) {
    pair_by(o, true)
}

fn pair_by(o: Opts, far: bool) -> (Net, End, End, Rc<Cell<u32>>) {
    let (mut net, a, b) = Net::pair(o);
    let gid = net.hosts[a.host].addr.gid;
    let region = net
        .lock(&b)
        .mappable_region(b.qpn, a.qpn, &gid, b.mr.rkey)
        .expect("all WRITEs of a are allowed");
    assert_eq!((region.addr, region.length, region.rkey), (b.mr.addr, b.mr.length, b.mr.rkey));
    let visits = Rc::new(Cell::new(u32::MAX));
    net.memory = Some(Box::new(Lent {
        own: a.qpn,
        qpn: b.qpn,
        region,
        inside: false,
        far,
        visits: visits.clone(),
    }));
    for (i, e) in [&a, &b].iter().enumerate() {
        e.buf.write(0, &pattern(i as u64, e.buf.len()));
    }
    (net, a, b, visits)
}

/// The doorbell of `a`. Whether that was all.
fn ring(net: &mut Net, a: &End) -> bool {
    let mut memory = net.memory.take();
    let rung = net.lock(a).write_peer(index(a.qp), &mut **memory.as_mut().unwrap());
    net.memory = memory;
    rung
}

/// Offers a request of `a` to be placed without a slot of its send queue. False: it is still to be
/// posted.
fn alone(net: &mut Net, a: &End, wr: Wr) -> bool {
    single(net, a, wr).is_some_and(|write| offer(net, a, &write))
}

/// What the program's side takes a request of `a` for.
fn single(net: &Net, a: &End, mut wr: Wr) -> Option<Single> {
    wr.raw.sg_list = wr.sges.as_ptr();
    wr.raw.num_sge = wr.sges.len() as i32;
    // SAFETY: the request and its list live through the call.
    let single = unsafe { post::single(&net.lock(a).shared().qps[index(a.qp)], &wr.raw) };
    single.filter(|single| single.opcode == wr_opcode::RDMA_WRITE)
}

/// Offers to the engine what the program's side has read.
fn offer(net: &mut Net, a: &End, write: &Single) -> bool {
    let mut memory = net.memory.take();
    let at = &mut **memory.as_mut().unwrap();
    let placed = net.lock(a).write_peer_single(index(a.qp), write, |_| Some(&mut *at));
    net.memory = memory;
    placed
}

/// Whether a single WRITE of `a` would be offered so.
fn is_offered(net: &Net, a: &End) -> bool {
    net.lock(a).shared().qps[index(a.qp)].slotless.load(Relaxed) != 0
}

fn write(a: &End, b: &End, len: usize) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 64, len).remote(b, 128)
}

#[test]
fn a_write_is_placed_and_completed_without_a_packet() {
    for len in [1, 8, 100, 5000, 100_000] {
        let (mut net, a, b, _) = pair(over_link());
        let psn = net.lock(&a).qp_query(a.qp).unwrap().0.sq_psn;
        net.post(&a, write(&a, &b, len).id(7));
        assert!(ring(&mut net, &a));
        assert_eq!(b.buf.read(128, len), a.buf.read(64, len));
        let (before, after) = (pattern(1, b.buf.len()), b.buf.read(0, b.buf.len()));
        assert!(after[..128] == before[..128] && after[128 + len..] == before[128 + len..]);
        let wc = net.poll(a.host, a.scq);
        assert_eq!(wc.len(), 1);
        assert_eq!(
            (wc[0].wr_id, wc[0].status, wc[0].opcode),
            (7, wc_status::SUCCESS, wc_opcode::RDMA_WRITE)
        );
        assert_eq!(net.lock(&a).qp_query(a.qp).unwrap().0.sq_psn, psn);
        let c = net.lock(&a).qp_counters(a.qp).unwrap();
        assert_eq!(
            (c.mapped_writes, c.rdma_writes, c.request_bytes, c.sent_pkts),
            (1, 1, len as u64, 0)
        );
        assert_eq!(net.lock(&b).qp_counters(b.qp).unwrap().rcvd_pkts, 0);
        // Later requests leave as packets, and are taken.
        net.recv(&b, 9, &[(0, 100)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 50));
        assert_eq!(net.poll(b.host, b.rcq)[0].wr_id, 9);
    }
}

#[test]
fn pieces_inline_data_and_unsignalled_requests_as_well() {
    let (mut net, a, b, _) = pair(over_link());
    let both = Wr::new(wr_opcode::RDMA_WRITE)
        .local(&a, 1, 7)
        .local(&a, 1000, 0)
        .local(&a, 300, 90_001)
        .remote(&b, 3);
    net.post(&a, both.flags(0));
    assert!(ring(&mut net, &a));
    assert_eq!(b.buf.read(3, 7), a.buf.read(1, 7));
    assert_eq!(b.buf.read(10, 90_001), a.buf.read(300, 90_001));
    net.post(&a, write(&a, &b, 11).id(2).add_flags(send_flags::INLINE));
    a.buf.write(64, &[0xee; 11]);
    assert!(ring(&mut net, &a));
    assert_eq!(b.buf.read(128, 11), pattern(0, 75)[64..]);
    let wc = net.poll(a.host, a.scq);
    assert_eq!(wc.iter().map(|w| w.wr_id).collect::<Vec<_>>(), [2]);
}

#[test]
fn a_single_one_takes_no_slot() {
    for (len, flags) in [(1, 0), (8, send_flags::INLINE), (8, 0), (100, 0), (64 << 10, 0)] {
        let (mut net, a, b, _) = pair(over_link());
        assert!(!is_offered(&net, &a), "nothing was placed yet");
        for id in 1..=3 {
            a.buf.write(64, &pattern(id, len));
            assert!(alone(&mut net, &a, write(&a, &b, len).id(id).add_flags(flags)), "{len}");
            assert!(b.buf.read(128, len) == pattern(id, len));
        }
        let (before, after) = (pattern(1, b.buf.len()), b.buf.read(0, b.buf.len()));
        assert!(after[..128] == before[..128] && after[128 + len..] == before[128 + len..]);
        assert!(net.lock(&a).shared().qps[index(a.qp)].sq.is_empty());
        let wcs = net.poll(a.host, a.scq);
        let seen: Vec<_> = wcs.iter().map(|w| (w.wr_id, w.status, w.opcode, w.qp_num)).collect();
        let ended = |id| (id, wc_status::SUCCESS, wc_opcode::RDMA_WRITE, a.qpn);
        assert_eq!(seen, [ended(1), ended(2), ended(3)]);
        assert!(alone(&mut net, &a, write(&a, &b, len).flags(flags)), "not signalled");
        assert!(net.poll(a.host, a.scq).is_empty());
        let c = net.lock(&a).qp_counters(a.qp).unwrap();
        assert_eq!(
            (c.mapped_writes, c.rdma_writes, c.request_bytes, c.sent_pkts),
            (4, 4, 4 * len as u64, 0)
        );
        // What is posted afterwards is as after nothing.
        net.recv(&b, 9, &[(0, 100)]);
        net.ok(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 50));
        assert_eq!(net.poll(b.host, b.rcq)[0].wr_id, 9);
        assert!(alone(&mut net, &a, write(&a, &b, len)), "the SEND has been acknowledged");
    }
    let (mut net, a, b, _) = pair(Opts { sig_all: true, ..over_link() });
    assert!(alone(&mut net, &a, write(&a, &b, 8).flags(0)));
    assert_eq!(net.poll(a.host, a.scq).len(), 1, "all requests are signalled");
}

#[test]
fn a_single_one_is_posted_where_anything_is_unusual() {
    let (mut net, a, b, visits) = pair(over_link());
    let before = b.buf.read(0, b.buf.len());
    let declined = |net: &mut Net, what: &str, wr: Wr| {
        assert!(!alone(net, &a, wr), "{what}");
        assert!(b.buf.read(0, b.buf.len()) == before, "{what}");
        assert!(net.poll(a.host, a.scq).is_empty(), "{what}");
    };
    let of = |len| write(&a, &b, len);
    declined(&mut net, "no bytes", of(0));
    declined(&mut net, "more than is copied under one pin", of((64 << 10) + 1));
    declined(&mut net, "two pieces", of(8).local(&a, 0, 8));
    declined(&mut net, "others follow at once", of(8).add_flags(send_flags::MORE));
    declined(&mut net, "inline, and too long", of(5000).add_flags(send_flags::INLINE));
    for opcode in [wr_opcode::RDMA_WRITE_WITH_IMM, wr_opcode::SEND, wr_opcode::RDMA_READ] {
        declined(&mut net, "another opcode", Wr::new(opcode).local(&a, 0, 8).remote(&b, 0));
    }
    declined(&mut net, "another key of the peer", {
        Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).key(b.mr.iova, b.mr.rkey ^ 0x55)
    });
    let mut wrong = of(8);
    wrong.sges[0].lkey ^= 0x55;
    declined(&mut net, "a local key of nothing", wrong);
    // Another thread posts between the two steps.
    let write = single(&net, &a, of(8)).expect("nothing is posted");
    net.post(&a, of(8));
    assert!(!offer(&mut net, &a, &write) && !alone(&mut net, &a, of(8)), "one is before it");
    assert!(ring(&mut net, &a) && net.poll(a.host, a.scq).len() == 1);
    net.recv(&b, 1, &[(0, 100)]);
    net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100));
    assert!(!alone(&mut net, &a, of(8)), "another is not acknowledged");
    net.settle();
    net.poll(a.host, a.scq);
    assert!(alone(&mut net, &a, of(8)), "nothing is unusual");
    visits.set(0);
    assert!(!alone(&mut net, &a, of(8)), "the memory was taken back");
    visits.set(u32::MAX);
    let limit = QpAttr { rate_limit_bytes_per_s: 1 << 40, ..QpAttr::default() };
    net.modify(&a, &limit, qp_attr_mask::RATE_LIMIT).unwrap();
    assert!(!alone(&mut net, &a, of(8)), "its rate is limited");
    net.to_state(&a, qp_state::ERR).unwrap();
    assert!(!alone(&mut net, &a, of(8)), "its queue pair has failed");
}

#[test]
fn a_single_one_without_room_for_its_completion_is_posted() {
    let (mut net, a, b, _) = pair(Opts { cqe: 4, sq: 64, ..over_link() });
    let placed = (0..20).filter(|&id| alone(&mut net, &a, write(&a, &b, 8).id(id))).count();
    assert!((1..20).contains(&placed), "{placed} found room");
    assert!(alone(&mut net, &a, write(&a, &b, 8).flags(0)), "it needs none");
    net.post(&a, write(&a, &b, 8).id(20));
    let mut seen = Vec::new();
    while seen.len() <= placed {
        net.settle();
        seen.extend(net.poll(a.host, a.scq).iter().map(|w| w.wr_id));
    }
    assert_eq!(seen, (0..placed as u64).chain([20]).collect::<Vec<_>>());
}

/// The program's side asks one word before it offers a WRITE, and guesses where it goes.
#[test]
fn single_ones_are_offered_after_one_was_placed() {
    let (mut net, a, b, visits) = pair(over_link());
    net.post(&a, write(&a, &b, 8));
    assert!(ring(&mut net, &a) && is_offered(&net, &a));
    assert!(alone(&mut net, &a, write(&a, &b, 8)));
    let guess = net.lock(&a).shared().qps[index(a.qp)].peer_offset.load(Relaxed);
    assert_eq!(guess, b.mr.addr.wrapping_sub(b.mr.iova));
    visits.set(0);
    assert!(!alone(&mut net, &a, write(&a, &b, 8)) && !is_offered(&net, &a));
    visits.set(u32::MAX);
    net.post(&a, write(&a, &b, 8));
    assert!(ring(&mut net, &a) && is_offered(&net, &a), "mapped again");
    // The next queue pair at this place begins anew.
    let qi = index(a.qp);
    net.lock(&a).qp_destroy(0, a.qp).unwrap();
    let (send_cq, recv_cq, qp_type) = (a.scq, a.rcq, qp_type::RC);
    let init = QpInit { pd: a.pd, send_cq, recv_cq, qp_type, ..QpInit::default() };
    while index(net.lock(&a).qp_create(0, &init).unwrap().0) != qi {}
    assert!(!is_offered(&net, &a));
    // Memory that is lent by address is not written so.
    let (mut net, a, b, _) = far_pair(over_link());
    net.post(&a, write(&a, &b, COPY_REMOTE_MIN as usize));
    assert!(ring(&mut net, &a) && !is_offered(&net, &a));
}

#[test]
fn a_long_one_takes_several_turns_of_the_engine() {
    let (mut net, a, b, _) = pair(over_link());
    let len = (2 << 20) + 777;
    net.post(&a, write(&a, &b, len));
    assert!(!ring(&mut net, &a), "more is left");
    assert!(net.poll(a.host, a.scq).is_empty());
    net.settle();
    assert_eq!(net.poll(a.host, a.scq).len(), 1);
    assert_eq!(b.buf.read(128, len), a.buf.read(64, len));
    let c = net.lock(&a).qp_counters(a.qp).unwrap();
    assert_eq!((c.mapped_writes, c.sent_pkts), (1, 0));
}

/// Long WRITEs from `a` to `b`, whose memory is taken back after so many visits, arrive whole.
fn long_writes_that_stop(
    net: &mut Net,
    (a, b): (&End, &End),
    visits: &Cell<u32>,
    allowed: [u32; 3],
) {
    for allowed in allowed {
        let len = 2 << 20;
        a.buf.write(64, &pattern(allowed.into(), len));
        visits.set(allowed);
        net.post(a, write(a, b, len));
        ring(net, a);
        net.settle();
        let wc = net.poll(a.host, a.scq);
        assert_eq!(wc.iter().map(|w| w.status).collect::<Vec<_>>(), [wc_status::SUCCESS]);
        assert!(b.buf.read(128, len) == a.buf.read(64, len));
    }
}

#[test]
fn memory_that_is_taken_back_half_way_is_written_by_packets() {
    let (mut net, a, b, visits) = pair(over_link());
    long_writes_that_stop(&mut net, (&a, &b), &visits, [1, 5, 17]);
    assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().mapped_writes, 0);
}

#[test]
fn long_writes_are_carried_to_memory_that_is_lent_by_address() {
    let least = COPY_REMOTE_MIN as usize;
    for len in [least, least + 1, 100_000, (256 << 10) + 3, 1 << 20] {
        let (mut net, a, b, _) = far_pair(over_link());
        net.post(&a, write(&a, &b, len).id(7));
        assert!(ring(&mut net, &a), "{len}");
        assert!(b.buf.read(128, len) == a.buf.read(64, len));
        let (before, after) = (pattern(1, b.buf.len()), b.buf.read(0, b.buf.len()));
        assert!(after[..128] == before[..128] && after[128 + len..] == before[128 + len..]);
        assert_eq!(
            net.poll(a.host, a.scq).iter().map(|w| (w.wr_id, w.status)).collect::<Vec<_>>(),
            [(7, 0)]
        );
        let c = net.lock(&a).qp_counters(a.qp).unwrap();
        assert_eq!((c.carried_writes, c.mapped_writes, c.rdma_writes, c.sent_pkts), (1, 0, 1, 0));
        assert_eq!(net.lock(&a).counters().carried_writes, 1);
    }
    // A WRITE of one byte less goes by packets, and so does any other request.
    let (mut net, a, b, _) = far_pair(over_link());
    net.post(&a, write(&a, &b, least - 1));
    assert!(!ring(&mut net, &a));
    net.settle();
    assert_eq!(net.poll(a.host, a.scq).len(), 1);
    net.ok(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, least).remote(&b, 0));
    assert_eq!(net.lock(&a).counters().carried_writes, 0);
    assert!(b.buf.read(128, least - 1) == pattern(0, a.buf.len())[64..64 + least - 1]);
}

#[test]
fn many_pieces_take_many_calls() {
    let (mut net, a, b, visits) = far_pair(Opts {
        sge: 20,
        config: Config { max_sge: 20, ..Config::default() },
        ..over_link()
    });
    let mut wr = Wr::new(wr_opcode::RDMA_WRITE).remote(&b, 5);
    let mut all = Vec::new();
    let whole = pattern(0, a.buf.len());
    for i in 0..20 {
        let (at, len) = (
            i * 50_001,
            match i {
                3 | 10 | 17 => 0,
                19 => 100_000,
                _ => i * 101 + 1,
            },
        );
        wr = wr.local(&a, at, len);
        all.extend_from_slice(&whole[at..at + len]);
    }
    visits.set(u32::MAX);
    net.post(&a, wr);
    assert!(ring(&mut net, &a));
    assert!(b.buf.read(5, all.len()) == all);
    assert_eq!(net.lock(&a).counters().carried_writes, 1);
    // 17 pieces that are not empty.
    assert_eq!(u32::MAX - visits.get(), 2, "{} bytes", all.len());
}

#[test]
fn what_is_taken_back_between_two_calls_is_written_by_packets() {
    let (mut net, a, b, visits) = far_pair(over_link());
    long_writes_that_stop(&mut net, (&a, &b), &visits, [1, 2, 5]);
    // The general path refuses keys, on either side.
    visits.set(u32::MAX);
    let before = b.buf.read(0, b.buf.len());
    let mut wr =
        Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 70_000).local(&a, 0, 70_000).remote(&b, 128);
    wr.sges[1].lkey ^= 0x55;
    let entered = visits.get();
    net.post(&a, wr);
    assert!(!ring(&mut net, &a));
    assert!(visits.get() == entered && b.buf.read(0, b.buf.len()) == before);
    net.settle();
    assert_eq!(net.poll(a.host, a.scq)[0].status, wc_status::LOC_PROT_ERR);
    assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().carried_writes, 0);
}

#[test]
fn what_is_refused_is_refused_by_the_usual_way() {
    let beyond = 3 << 20;
    for (what, status) in [
        ("a key of nothing", wc_status::REM_ACCESS_ERR),
        ("a range that leaves the region", wc_status::REM_ACCESS_ERR),
        ("a local key of nothing", wc_status::LOC_PROT_ERR),
    ] {
        let (mut net, a, b, _) = pair(over_link());
        let mut wr = match what {
            "a key of nothing" => {
                Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 10).key(b.mr.iova, b.mr.rkey ^ 0x55)
            }
            "a range that leaves the region" => {
                Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 10).remote(&b, beyond - 9)
            }
            _ => Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 10).remote(&b, 0),
        };
        if status == wc_status::LOC_PROT_ERR {
            wr.sges[0].lkey ^= 0x55;
        }
        net.post(&a, wr);
        assert!(!ring(&mut net, &a), "{what}");
        net.settle();
        assert_eq!(net.poll(a.host, a.scq)[0].status, status, "{what}");
        assert!(b.buf.read(0, beyond) == pattern(1, beyond), "{what}");
    }
}

#[test]
fn only_writes_without_immediate_data_of_a_connected_reliable_pair() {
    let (mut net, a, b, _) = pair(over_link());
    net.recv(&b, 1, &[(0, 10)]);
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, 10).remote(&b, 0));
    net.post(&a, Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 10).remote(&b, 0));
    net.post(&a, Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 8).atomic(&b, 0, 1, 0));
    net.post(&a, Wr::new(wr_opcode::ATOMIC_WRITE).local(&a, 0, 8).remote(&b, 0));
    net.post(&a, flush(&b, 0, 8));
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).remote(&b, 0));
    assert!(!ring(&mut net, &a));
    net.settle();
    assert_eq!(net.poll(a.host, a.scq).len(), 6);
    assert_eq!(net.lock(&a).counters().mapped_writes, 0);
    // This way knows no limit of the rate, so with a limit it is not taken.
    let limit = QpAttr { rate_limit_bytes_per_s: 1 << 40, ..QpAttr::default() };
    net.modify(&a, &limit, qp_attr_mask::RATE_LIMIT).unwrap();
    net.post(&a, write(&a, &b, 10));
    assert!(!ring(&mut net, &a));
}

#[test]
fn nothing_overtakes_what_was_posted_before() {
    for (far, first, long) in [(false, 8, 40_000), (true, 70_000, 70_000)] {
        let (mut net, a, b, _) = pair_by(over_link(), far);
        let placed = |net: &mut Net| {
            let c = net.lock(&a).counters();
            [c.mapped_writes, c.carried_writes]
        };
        net.recv(&b, 1, &[(0, 100)]);
        // The SEND is not acknowledged: a WRITE behind it alone goes the same way.
        net.post(&a, Wr::new(wr_opcode::SEND).local(&a, 0, 100));
        net.post(&a, write(&a, &b, first));
        assert!(!ring(&mut net, &a));
        net.settle();
        assert_eq!(placed(&mut net), [0, 0]);
        net.poll(a.host, a.scq);
        // With many under way, a long one waits until they have been acknowledged, and then is
        // placed.
        for i in 0..6 {
            net.recv(&b, i, &[(0, 100)]);
            net.post(&a, Wr::new(wr_opcode::SEND).id(i).local(&a, 0, 100));
        }
        net.post(&a, write(&a, &b, long).id(6));
        assert!(!ring(&mut net, &a));
        net.settle();
        assert_eq!(
            net.poll(a.host, a.scq).iter().map(|w| w.wr_id).collect::<Vec<_>>(),
            [0, 1, 2, 3, 4, 5, 6]
        );
        assert_eq!(placed(&mut net), if far { [0, 1] } else { [1, 0] });
        assert_eq!(b.buf.read(128, long), a.buf.read(64, long));
    }
}

/// Otherwise a stream in which each WRITE finds another under way would go by packets for ever.
#[test]
fn a_stream_of_long_writes_leaves_the_packets() {
    for far in [false, true] {
        for (len, waits) in [(256 << 10, 1), ((256 << 10) - 1, 0)] {
            let (mut net, a, b, _) = pair_by(over_link(), far);
            net.recv(&b, 1, &[(0, 10)]);
            net.post(
                &a,
                Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, len).remote(&b, 1 << 20),
            );
            net.post(&a, write(&a, &b, len));
            net.settle();
            assert_eq!(net.poll(a.host, a.scq).len(), 2);
            let c = net.lock(&a).counters();
            assert_eq!(
                (c.mapped_writes, c.carried_writes),
                if far { (0, waits) } else { (waits, 0) },
                "{len}"
            );
            assert!(b.buf.read(128, len) == a.buf.read(64, len));
        }
    }
}

#[test]
fn completions_wait_for_room_and_keep_their_order() {
    let (mut net, a, b, _) = pair(Opts { cqe: 4, sq: 64, ..over_link() });
    let mut posted = 0;
    let mut seen = Vec::new();
    while seen.len() < 200 {
        if posted < 200 && net.try_post(&a, write(&a, &b, 8).id(posted)).is_ok() {
            posted += 1;
            ring(&mut net, &a);
            continue;
        }
        net.settle();
        seen.extend(net.poll(a.host, a.scq).iter().map(|w| w.wr_id));
    }
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
}

#[test]
fn a_region_is_lent_only_where_every_write_would_be_allowed() {
    let (net, a, b, _) = pair(over_link());
    let gid = net.hosts[a.host].addr.gid;
    let other = Buffer::new(4096);
    let (_, readable) = net.reg(&b, &other, access::LOCAL_WRITE | access::REMOTE_READ);
    let asks = |net: &Net, qpn, from, gid: &[u8; 16], rkey| {
        net.lock(&b).mappable_region(qpn, from, gid, rkey).is_some()
    };
    assert!(asks(&net, b.qpn, a.qpn, &gid, b.mr.rkey));
    assert!(!asks(&net, b.qpn, a.qpn ^ 1, &gid, b.mr.rkey), "another QP of the peer");
    assert!(!asks(&net, b.qpn ^ 1, a.qpn, &gid, b.mr.rkey), "a QP that is not there");
    assert!(!asks(&net, b.qpn, a.qpn, &[9; 16], b.mr.rkey), "another peer");
    assert!(!asks(&net, b.qpn, a.qpn, &gid, b.mr.rkey ^ 0x55), "no key");
    assert!(!asks(&net, b.qpn, a.qpn, &gid, readable.rkey), "a region that peers may only read");
    let (_, window) = net.lock(&b).mw_alloc(b.pd, 2).unwrap();
    assert!(!asks(&net, b.qpn, a.qpn, &gid, window), "a window");
    // Each change of the answer is announced.
    let moved = |net: &Net, before: u32| net.lock(&b).changes() != before;
    let attr = QpAttr { qp_access_flags: access::REMOTE_READ, ..QpAttr::default() };
    let before = net.lock(&b).changes();
    net.modify(&b, &attr, qp_attr_mask::ACCESS_FLAGS).unwrap();
    assert!(moved(&net, before) && !asks(&net, b.qpn, a.qpn, &gid, b.mr.rkey));
    net.modify(&b, &QpAttr { qp_access_flags: ALL, ..attr }, qp_attr_mask::ACCESS_FLAGS).unwrap();
    assert!(asks(&net, b.qpn, a.qpn, &gid, b.mr.rkey));
    let before = net.lock(&b).changes();
    net.lock(&b).mr_dereg(b.mr_handle).unwrap();
    assert!(moved(&net, before) && !asks(&net, b.qpn, a.qpn, &gid, b.mr.rkey));
    let (_, again) = net.reg(&b, &b.buf, ALL);
    assert!(asks(&net, b.qpn, a.qpn, &gid, again.rkey));
    let before = net.lock(&b).changes();
    net.to_state(&b, qp_state::ERR).unwrap();
    assert!(moved(&net, before) && !asks(&net, b.qpn, a.qpn, &gid, again.rkey));
    // Over the wire no memory can be mapped.
    let (net, a, b) = Net::pair(Opts::default());
    let gid = net.hosts[a.host].addr.gid;
    assert!(net.lock(&b).mappable_region(b.qpn, a.qpn, &gid, b.mr.rkey).is_none());
}

/// Places to which READs write, and from which they read.
const READ: (usize, usize) = ((2 << 20) + 50_000, (2 << 20) + 100_000);

/// Random requests in two worlds, one with memory that is mapped, or lent by address: the same
/// bytes and the same completions in the same order.
#[test]
fn thorough_both_ways_leave_the_same() {
    let mut rng = Rng(0x9e37_79b9_7f4a_7c15);
    let mut below = |n| rng.below(n);
    let (mut mapped, mut carried, mut single) = (0, 0, 0);
    for world in 0..60 {
        let o = Opts { cqe: 16, ..over_link() };
        let far = world % 3 == 2;
        let (mut with, a, b, visits) = pair_by(o, far);
        let (mut without, c, d, _) = pair(o);
        without.memory = None;
        for step in 0..60 {
            let (len, from, to) =
                (1 + below(40_000) as usize, below(1 << 20) as usize, below(1 << 20) as usize);
            let (kind, flags) = (below(10), if below(3) == 0 { 0 } else { send_flags::SIGNALED });
            if below(8) == 0 {
                visits.set(below(4) as u32);
            } else {
                visits.set(u32::MAX);
            }
            let long = if far { len * 4 } else { len };
            let wr = |x: &End, y: &End| match kind {
                0..=5 => Wr::new(wr_opcode::RDMA_WRITE)
                    .local(x, from, long)
                    .remote(y, to)
                    .id(step)
                    .flags(flags),
                6 | 7 => Wr::new(wr_opcode::SEND).local(x, from, len).id(step).flags(flags),
                // In places that no WRITE touches: the order of READs and WRITEs is not tested
                // here.
                8 => Wr::new(wr_opcode::RDMA_READ)
                    .local(x, READ.0, len)
                    .remote(y, READ.1)
                    .id(step)
                    .flags(flags),
                _ => Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM)
                    .local(x, from, len)
                    .remote(y, to)
                    .id(step)
                    .flags(flags),
            };
            if matches!(kind, 6 | 7 | 9) {
                for (net, y) in [(&with, &b), (&without, &d)] {
                    net.recv(y, step, &[(2 << 20, 40_000)]);
                }
            }
            without.post(&c, wr(&c, &d));
            if below(2) == 0 && alone(&mut with, &a, wr(&a, &b)) {
                single += 1;
            } else {
                with.post(&a, wr(&a, &b));
                if below(2) == 0 {
                    ring(&mut with, &a);
                }
            }
            if below(4) == 0 {
                with.settle();
                without.settle();
                let seen = |net: &Net, e: &End, cq| {
                    net.poll(e.host, cq)
                        .iter()
                        .map(|w| (w.wr_id, w.status, w.opcode, w.byte_len))
                        .collect::<Vec<_>>()
                };
                loop {
                    let (x, y) = (seen(&with, &a, a.scq), seen(&without, &c, c.scq));
                    assert_eq!(x, y);
                    assert_eq!(seen(&with, &b, b.rcq), seen(&without, &d, d.rcq));
                    with.settle();
                    without.settle();
                    if x.is_empty() {
                        break;
                    }
                }
                assert!(b.buf.read(0, b.buf.len()) == d.buf.read(0, d.buf.len()));
                assert!(a.buf.read(0, a.buf.len()) == c.buf.read(0, c.buf.len()));
            }
        }
        let counters = with.lock(&a).counters();
        (mapped, carried) = (mapped + counters.mapped_writes, carried + counters.carried_writes);
        let counters = without.lock(&c).counters();
        assert_eq!((counters.mapped_writes, counters.carried_writes), (0, 0));
    }
    assert!(mapped > 300 && single > 100, "{mapped} of some 1400 WRITEs, {single} alone");
    assert!(carried > 80, "{carried} of some 400 that are long enough");
}
