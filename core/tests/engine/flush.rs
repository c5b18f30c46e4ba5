//! FLUSH: answered when all that came before it on its queue pair has been placed.

use gdrcore_core::config::Config;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Feth, Opcode, Reth};
use gdrcore_core::Error;

use crate::hostile::{refused, ACCESS};
use crate::packet_loss::on_bad_wires;
use crate::raw_packet::{answers, Raw};
use crate::util::*;

const ACK: u8 = 0x1f;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;
const ANSWER: (Opcode, u32, Option<u8>) = (Opcode::RC_READ_RESPONSE_ONLY, 0, Some(ACK));

/// One of `length` bytes at `at` of `b`.
pub fn flush(b: &End, at: usize, length: u64) -> Wr {
    of(range(b.mr.iova + at as u64, b.mr.rkey, length))
}

/// What one of a range asks for.
pub fn range(remote_addr: u64, rkey: u32, length: u64) -> FlushWr {
    let (placement, level) = (flush_type::GLOBAL, flush_level::RANGE);
    FlushWr { remote_addr, rkey, placement, length, level }
}

/// One of the region of `b`, with a range that nobody looks at.
fn flush_all(b: &End) -> Wr {
    let (rkey, placement, level) = (b.mr.rkey, flush_type::GLOBAL, flush_level::MR);
    of(FlushWr { remote_addr: u64::MAX, rkey, placement, length: u64::MAX, level })
}

fn of(flush: FlushWr) -> Wr {
    let mut w = Wr::new(wr_opcode::FLUSH);
    w.raw.wr = WrOp { flush };
    w
}

/// The packet of one of eight bytes at the beginning of `b`, with this FETH.
fn packet(b: &End, ahead: u32, feth: u32) -> Raw {
    named(b, ahead, feth, b.mr.iova, b.mr.rkey, 8)
}

fn named(b: &End, ahead: u32, feth: u32, va: u64, key: u32, len: u32) -> Raw {
    let raw = Raw::new(Opcode::RC_FLUSH, b, ahead).asks().bytes(&feth.to_be_bytes());
    raw.reth(va, key, len)
}

// rxe rxe_resp.c process_flush
// rxe rxe_comp.c check_ack, ATOMIC WRITE
#[test]
fn a_range_and_a_region_are_flushed_on_every_way() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        a.buf.write(0, &pattern(3, 4000));
        let last = b.buf.len();
        let some = [flush(&b, 0, 4000), flush_all(&b), flush(&b, 7, 0), flush(&b, last, 0)];
        for (i, w) in some.into_iter().enumerate() {
            for flags in [0, send_flags::FENCE, send_flags::INLINE] {
                net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 4000).remote(&b, 0).id(1));
                // Its list is not looked at.
                let strange = Sge { addr: 1, length: 5, lkey: 0x5555 };
                net.post(&a, w.clone().sge(strange).add_flags(flags).id(2));
                let wc = net.wait(a.host, a.scq, 2);
                let ends: Vec<_> = wc.iter().map(|w| (w.wr_id, w.status)).collect();
                assert_eq!(ends, [(1, 0), (2, 0)], "{way:?}, {i}");
                assert_eq!((wc[1].opcode, wc[1].byte_len), (wc_opcode::FLUSH, 0));
            }
        }
        assert!(b.buf.read(0, 4000) == pattern(3, 4000));
        assert!(net.poll(b.host, b.rcq).is_empty());
        net.assert_faultless();
    }
}

#[test]
fn a_packet_says_type_level_and_range() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let log = net.note(move |from, p| (from == 0).then(|| p.to_vec()));
    net.ok(&a, flush(&b, 64, 0x123));
    net.ok(&a, flush_all(&b));
    let want = |feth: u32, va, len| {
        let mut reth = [0; Reth::LEN];
        Reth { va, rkey: b.mr.rkey, len }.emit(&mut reth);
        [&feth.to_be_bytes()[..], &reth].concat()
    };
    let log = log.borrow();
    let said: Vec<_> = log.iter().map(|p| (Opcode(p[0]), p[12..p.len() - 4].to_vec())).collect();
    let range = (Opcode::RC_FLUSH, want(0x01, b.mr.iova + 64, 0x123));
    assert_eq!(said, [range, (Opcode::RC_FLUSH, want(0x11, 0, 0))]);
}

#[test]
fn it_passes_on_xrc_too() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, kind: qp_type::XRC_SEND, ..Opts::default() });
        net.ok(&a, flush(&b, 0, 100));
        net.ok(&a, flush_all(&b));
        net.assert_faultless();
    }
}

#[test]
fn what_asks_for_nothing_that_there_is_is_refused_at_the_post() {
    let (net, a, b) = Net::pair(Opts::default());
    let good = FlushWr { rkey: b.mr.rkey, placement: flush_type::GLOBAL, ..FlushWr::default() };
    for placement in [0, 4, 5, 1 << 31] {
        assert_eq!(err(net.try_post(&a, of(FlushWr { placement, ..good }))), Error::Invalid);
    }
    for level in [2, 3, u32::MAX] {
        assert_eq!(err(net.try_post(&a, of(FlushWr { level, ..good }))), Error::Invalid);
    }
    for length in [(1 << 31) + 1, 1 << 32, u64::MAX] {
        assert_eq!(err(net.try_post(&a, of(FlushWr { length, ..good }))), Error::MessageSize);
    }
    for kind in [qp_type::UC, qp_type::UD] {
        let (net, a, b) = Net::pair(Opts { kind, ..Opts::default() });
        assert_eq!(err(net.try_post(&a, flush(&b, 0, 8))), Error::Invalid);
    }
}

#[test]
fn no_region_promises_to_survive_a_loss_of_power() {
    let (net, _, b) = Net::pair(Opts::default());
    let (addr, length) = (b.buf.addr(), b.buf.len() as u64);
    for (flags, want) in [
        (access::FLUSH_GLOBAL, Ok(())),
        (access::FLUSH_PERSISTENT, Err(Error::Invalid)),
        (ACCESS_FLUSH | access::LOCAL_WRITE, Err(Error::Invalid)),
    ] {
        let reg = region(b.pd, addr, length, flags);
        assert_eq!(net.lock(&b).mr_reg(&reg).map(|_| ()), want, "{flags:#x}");
        let again = net.lock(&b).mr_rereg(b.mr_handle, &reg).map(|_| ());
        assert_eq!(again, want, "{flags:#x}");
    }
}

// rxe rxe_resp.c check_op_valid
// rxe rxe_resp.c check_rkey, FLUSH
#[test]
fn its_queue_pair_and_its_region_must_allow_each_type() {
    let (o, invalid) = (Opts::default(), wc_status::REM_INV_REQ_ERR);
    let by = |b: &End, rkey, level, placement| {
        of(FlushWr { remote_addr: b.mr.iova, rkey, placement, length: 0, level })
    };
    let typed = |b: &End, level, placement| by(b, b.mr.rkey, level, placement);
    for level in [flush_level::RANGE, flush_level::MR] {
        // The queue pair.
        for (has, placement) in [
            (0, flush_type::GLOBAL),
            (access::FLUSH_PERSISTENT, flush_type::GLOBAL),
            (access::FLUSH_GLOBAL, flush_type::PERSISTENT),
            (access::FLUSH_GLOBAL, flush_type::GLOBAL | flush_type::PERSISTENT),
        ] {
            let o = Opts { access: ALL | has, ..o };
            refused(o, |_, _, b| typed(b, level, placement), invalid, CauseCode::PeerLacksAccess);
        }
        // The region, which is never of the persistent type.
        for placement in [flush_type::PERSISTENT, flush_type::GLOBAL | flush_type::PERSISTENT] {
            let w = |_: &Net, _: &End, b: &End| typed(b, level, placement);
            refused(o, w, ACCESS, CauseCode::PeerLacksAccess);
        }
        let other = |net: &Net, _: &End, b: &End| {
            let (_, mr) = net.reg(b, &b.buf, ALL);
            by(b, mr.rkey, level, flush_type::GLOBAL)
        };
        refused(o, other, ACCESS, CauseCode::PeerLacksAccess);
        // No bytes, and a key that opens nothing.
        let strange = |_: &Net, _: &End, b: &End| by(b, b.mr.rkey ^ 1, level, flush_type::GLOBAL);
        refused(o, strange, ACCESS, CauseCode::PeerUsedBadKey);
    }
    let last = |b: &End| b.buf.len();
    let beyond = CauseCode::PeerLeftRange;
    refused(o, |_, _, b| flush(b, last(b), 1), ACCESS, beyond);
    refused(o, |_, _, b| flush(b, last(b) + 1, 0), ACCESS, beyond);
    refused(o, |_, _, b| flush(b, 1, last(b) as u64), ACCESS, beyond);
    refused(o, |_, _, b| flush(b, 0, 1 << 31), ACCESS, beyond);
}

// A window is no region: whoever binds it can give no right to FLUSH.
#[test]
fn a_window_opens_to_no_flush() {
    for level in [flush_level::RANGE, flush_level::MR] {
        let (mut net, a, b) = Net::pair(Opts::default());
        let rkey = net.window(&b, 4096, access::REMOTE_WRITE);
        let (remote_addr, placement) = (b.mr.iova, flush_type::GLOBAL);
        let w = of(FlushWr { remote_addr, rkey, placement, length: 0, level });
        assert_eq!(net.run_one(&a, w).status, ACCESS);
    }
    for rights in [access::FLUSH_GLOBAL, access::FLUSH_PERSISTENT] {
        let (mut net, _, b) = Net::pair(Opts::default());
        let (mw, key) = net.lock(&b).mw_alloc(b.pd, 2).unwrap();
        let (mr, addr) = (b.mr_handle, b.mr.iova);
        let info = MwBindInfo { mr, addr, length: 4096, mw_access_flags: rights };
        let wc = net.run_one(&b, Wr::new(wr_opcode::BIND_MW).bind(mw, key, info));
        assert_eq!(wc.status, wc_status::MW_BIND_ERR);
    }
}

// rxe rxe_hdr.h feth_init, values
#[test]
fn packets_that_ask_for_what_there_is_not_are_invalid_requests() {
    let global = u32::from(Feth::GLOBAL);
    let wrong = (0..32).map(|bit| global ^ 1 << bit).filter(|feth| {
        // What remains legal: the persistent type beside the global one, and the level MR.
        ![0x3, 0x11].contains(feth)
    });
    for feth in wrong.chain([4, 8, 0x30, 0x20, u32::MAX]) {
        let (mut net, _, b) = Net::pair(Opts::default());
        let said = answers(&mut net, &[packet(&b, 0, feth)]);
        assert_eq!(said, [(Opcode::RC_ACK, 0, Some(NAK_INVALID))], "{feth:#x}");
        assert_eq!(net.state(&b), qp_state::ERR);
    }
    for bytes in [1, 4, 8] {
        let (mut net, _, b) = Net::pair(Opts::default());
        let said = answers(&mut net, &[packet(&b, 0, global).payload(bytes)]);
        assert_eq!(said, [(Opcode::RC_ACK, 0, Some(NAK_INVALID))], "{bytes} bytes of data");
    }
    // The largest range, and one more; of a region neither is looked at.
    let over = (1u32 << 31) + 1;
    let mr = global | u32::from(Feth::MR) << 4;
    for (feth, len, want) in [
        (global, 1 << 31, (Opcode::RC_ACK, 0, Some(NAK_ACCESS))),
        (global, over, (Opcode::RC_ACK, 0, Some(NAK_INVALID))),
        (mr, over, ANSWER),
        (mr, u32::MAX, ANSWER),
    ] {
        let (mut net, _, b) = Net::pair(Opts::default());
        let said = answers(&mut net, &[named(&b, 0, feth, u64::MAX, b.mr.rkey, len)]);
        assert_eq!(said, [want], "{feth:#x} of {len}");
    }
    // Inside a message nothing else may come.
    let (mut net, _, b) = Net::pair(Opts::default());
    let mtu = 1024;
    let first = Raw::new(Opcode::RC_WRITE_FIRST, &b, 0).reth(b.mr.iova, b.mr.rkey, 2 * mtu);
    let said = answers(&mut net, &[first.payload(mtu as usize), packet(&b, 1, global)]);
    assert_eq!(said, [(Opcode::RC_ACK, 1, Some(NAK_INVALID))]);
}

// rxe rxe_resp.c duplicate_request, atomic
#[test]
fn a_duplicate_is_answered_and_its_key_is_of_no_interest() {
    let config = Config { max_rd_atomic: 2, ..Opts::default().config };
    let (mut net, _, b) = Net::pair(Opts { rd_atomic: 2, config, ..Opts::default() });
    let (_, mr) = {
        let (handle, mr) = net.reg(&b, &b.buf, access::FLUSH_GLOBAL);
        assert_eq!(answers(&mut net, &[named(&b, 0, 1, mr.iova, mr.rkey, 8)]), [ANSWER]);
        net.lock(&b).mr_dereg(handle).unwrap();
        (handle, mr)
    };
    let request = |ahead, at| named(&b, ahead, 1, mr.iova + at, mr.rkey, 8);
    // It would be refused, were it executed again.
    assert_eq!(answers(&mut net, &[request(0, 0)]), [ANSWER], "said again");
    assert_eq!(net.state(&b), qp_state::RTS);
    assert_eq!(answers(&mut net, &[request(0, 8)]), [ANSWER], "the PSN tells which it is");
    let read = Raw::new(Opcode::RC_READ_REQUEST, &b, 0).asks().reth(mr.iova, mr.rkey, 0);
    assert_eq!(answers(&mut net, &[read]), [], "a READ in its place");
    let store = Raw::new(Opcode::RC_ATOMIC_WRITE, &b, 0).asks().reth(mr.iova, mr.rkey, 8);
    assert_eq!(answers(&mut net, &[store.payload(8)]), [], "an ATOMIC WRITE in its place");
    // Two more push it out of what is kept.
    assert_eq!(answers(&mut net, &[packet(&b, 1, 1), packet(&b, 2, 1)]).len(), 2);
    assert_eq!(answers(&mut net, &[request(0, 0)]), [], "too old to be known");
    assert_eq!(net.state(&b), qp_state::RTS);
}

/// Some of them among others, whatever happens to packets: each shows what was before it.
fn mixture(tap: Tap) {
    let (mut net, a, b) = Net::pair(Opts { rd_atomic: 3, ..Opts::default() });
    net.tap = Some(tap);
    for i in 0..40u64 {
        let place = 4096 * i as usize;
        a.buf.write(place, &pattern(i, 3000));
        let w = match i % 5 {
            0 | 3 => Wr::new(wr_opcode::RDMA_WRITE).local(&a, place, 3000).remote(&b, place),
            1 => flush(&b, place - 4096, 3000),
            2 => Wr::new(wr_opcode::RDMA_READ).local(&a, 1 << 20, 3000).remote(&b, place),
            _ => flush_all(&b),
        };
        net.post(&a, w.id(i));
    }
    let (mut done, mut ended) = (Vec::new(), 0);
    while done.len() < 40 {
        let wc = net.wait(a.host, a.scq, 1);
        // Whoever has the completion of a FLUSH finds the bytes of the WRITE before it.
        for w in &wc {
            if w.opcode == wc_opcode::FLUSH {
                let before = w.wr_id as usize - 1;
                assert!(b.buf.read(4096 * before, 3000) == pattern(before as u64, 3000));
                ended += 1;
            }
        }
        done.extend(wc);
    }
    let all = done.iter().enumerate().all(|(i, w)| (w.wr_id, w.status) == (i as u64, 0));
    assert!(all && ended == 16, "{done:?}");
}

// rxe rxe_resp.c duplicate_request, atomic
// rxe rxe_comp.c check_psn, READ
#[test]
fn each_ends_once_and_in_order_whatever_is_lost() {
    on_bad_wires(mixture, [Opcode::RC_FLUSH, Opcode::RC_READ_RESPONSE_ONLY]);
}

// rxe rxe_comp.c do_read
// rxe rxe_comp.c check_ack, ATOMIC WRITE
#[test]
fn only_an_empty_answer_of_its_own_ends_it() {
    let (mut net, a, b) = Net::pair(Opts::default());
    let deaf = |from, _: &mut Vec<u8>| Fate::drop_if(from == 1);
    net.tap = Some(Box::new(deaf));
    net.post(&a, flush(&b, 0, 8));
    net.exchange();
    let atomic = Raw::new(Opcode::RC_ATOMIC_ACK, &a, 0).aeth(ACK).bytes(&[1; 8]);
    atomic.inject(&mut net, 1, 0);
    Raw::new(Opcode::RC_ACK, &a, 0).aeth(ACK).inject(&mut net, 1, 0);
    assert!(net.poll(a.host, a.scq).is_empty(), "only its own answer ends it");
    net.tap = None;
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);

    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(deaf));
    net.post(&a, flush(&b, 0, 8));
    net.exchange();
    net.tap = None;
    Raw::new(Opcode::RC_READ_RESPONSE_ONLY, &a, 0).aeth(ACK).payload(8).inject(&mut net, 1, 0);
    assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::BAD_RESP_ERR);
    assert_eq!(a.buf.read_u64(0), 0);
}
