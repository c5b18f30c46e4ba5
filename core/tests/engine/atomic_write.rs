//! ATOMIC WRITE: 8 bytes that the peer stores in one piece, once, behind all that came before.

use gdrcore_core::config::Config;
use gdrcore_core::device::MrReg;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::Opcode;
use gdrcore_core::Error;

use crate::hostile::{refused, ACCESS};
use crate::packet_loss::on_bad_wires;
use crate::raw_packet::{answers, Raw};
use crate::util::*;

const ACK: u8 = 0x1f;
const NAK_INVALID: u8 = 0x61;
const NAK_ACCESS: u8 = 0x62;

/// The word at `from` of `a`, for the place `at` of `b`.
fn store(a: &End, from: usize, b: &End, at: usize) -> Wr {
    Wr::new(wr_opcode::ATOMIC_WRITE).local(a, from, 8).remote(b, at)
}

/// The packet of one, with so many bytes behind a RETH that says another length or the same.
fn packet(b: &End, ahead: u32, va: u64, said: u32, len: usize) -> Raw {
    Raw::new(Opcode::RC_ATOMIC_WRITE, b, ahead).asks().reth(va, b.mr.rkey, said).payload(len)
}

// rxe rxe_resp.c atomic_write_reply
// rxe rxe_comp.c check_ack, ATOMIC WRITE
#[test]
fn the_word_is_taken_at_the_post_and_stored_on_every_way() {
    for way in WAYS {
        let (mut net, a, b) = Net::pair(Opts { way, ..Opts::default() });
        b.buf.write(0, &[0xaa; 128]);
        for (i, flags) in [0, send_flags::INLINE, send_flags::FENCE].into_iter().enumerate() {
            a.buf.write_u64(8, 0x0102_0304_0506_0700 + i as u64);
            net.post(&a, store(&a, 8, &b, 64).add_flags(flags));
            // The program's again, and its key was of no interest.
            a.buf.write_u64(8, 0);
            let wc = net.wait(a.host, a.scq, 1)[0];
            let want = (wc_status::SUCCESS, wc_opcode::ATOMIC_WRITE, 0);
            assert_eq!((wc.status, wc.opcode, wc.byte_len), want, "{way:?}");
            assert_eq!(b.buf.read_u64(64), 0x0102_0304_0506_0700 + i as u64, "{way:?}");
        }
        let around = [b.buf.read(0, 64), b.buf.read(72, 56)].concat();
        assert!(around.iter().all(|&x| x == 0xaa), "{way:?}: bytes beside it were written");
        assert_eq!(a.buf.read_u64(8), 0, "the answer brings nothing");
        assert_eq!(net.lock(&a).qp_counters(a.qp).unwrap().rdma_atomics, 3);
        assert!(net.poll(b.host, b.rcq).is_empty());
        net.assert_faultless();
    }
}

#[test]
fn the_word_may_lie_in_several_pieces_of_memory_without_a_key() {
    let (mut net, a, b) = Net::pair(Opts { inline: 0, sge: 2, ..Opts::default() });
    a.buf.write(0, &[1, 2, 3, 9, 9, 4, 5, 6, 7, 8]);
    let sge = |at, length| Sge { addr: a.buf.addr() + at, length, lkey: 0x5555 };
    let w = Wr::new(wr_opcode::ATOMIC_WRITE).sge(sge(0, 3)).sge(sge(5, 5)).remote(&b, 8);
    net.ok(&a, w);
    assert_eq!(b.buf.read(8, 8), [1, 2, 3, 4, 5, 6, 7, 8]);
}

#[test]
fn what_is_no_word_is_refused_at_the_post() {
    let (net, a, b) = Net::pair(Opts::default());
    for len in [0, 4, 7] {
        let w = Wr::new(wr_opcode::ATOMIC_WRITE).local(&a, 0, len).remote(&b, 0);
        assert_eq!(err(net.try_post(&a, w)), Error::Invalid, "{len} bytes");
    }
    assert_eq!(err(net.try_post(&a, Wr::new(wr_opcode::ATOMIC_WRITE).remote(&b, 0))), {
        Error::Invalid
    });
    for pieces in [[9, 0], [8, 1], [4, 8]] {
        let w = Wr::new(wr_opcode::ATOMIC_WRITE).remote(&b, 0);
        let w = w.local(&a, 0, pieces[0]).local(&a, 64, pieces[1]);
        assert_eq!(err(net.try_post(&a, w)), Error::MessageSize, "{pieces:?}");
    }
    for kind in [qp_type::UC, qp_type::UD] {
        let (net, a, b) = Net::pair(Opts { kind, ..Opts::default() });
        assert_eq!(err(net.try_post(&a, store(&a, 0, &b, 0))), Error::Invalid);
    }
}

// IBTA A19.4.2, alignment
// rxe rxe_resp.c check_op_valid
// rxe rxe_resp.c check_rkey, key
#[test]
fn it_must_be_aligned_and_allowed() {
    let (o, invalid) = (Opts::default(), wc_status::REM_INV_REQ_ERR);
    for at in [1, 4] {
        refused(o, |_, a, b| store(a, 0, b, at), invalid, CauseCode::MisalignedAtomic);
    }
    // Where a region has addresses of its own, both must be aligned.
    for at in [0, 4] {
        let shifted = |net: &Net, a: &End, b: &End| {
            let (addr, length) = (b.buf.addr(), b.buf.len() as u64);
            let iova = addr + 4;
            let (pd, access) = (b.pd, ALL);
            let reg = MrReg { iova, ..region(pd, addr, length, access) };
            let (_, mr) = net.lock(b).mr_reg(&reg).unwrap();
            Wr::new(wr_opcode::ATOMIC_WRITE).local(a, 0, 8).key(mr.iova + at, mr.rkey)
        };
        refused(o, shifted, invalid, CauseCode::MisalignedAtomic);
    }
    let no = Opts { access: ALL & !access::REMOTE_WRITE, ..o };
    refused(no, |_, a, b| store(a, 0, b, 0), invalid, CauseCode::PeerLacksAccess);
    refused(o, |_, a, b| store(a, 0, b, b.buf.len()), ACCESS, CauseCode::PeerLeftRange);
    let strange = |_: &Net, a: &End, b: &End| store(a, 0, b, 0).key(b.mr.iova, b.mr.rkey ^ 1);
    refused(o, strange, ACCESS, CauseCode::PeerUsedBadKey);
    let atomics_alone = |net: &Net, a: &End, b: &End| {
        let (_, mr) = net.reg(b, &b.buf, ALL & !access::REMOTE_WRITE);
        store(a, 0, b, 0).key(mr.iova, mr.rkey)
    };
    refused(o, atomics_alone, ACCESS, CauseCode::PeerLacksAccess);
}

// The right of a WRITE is what it needs.
#[test]
fn it_needs_no_right_of_atomics() {
    let (mut net, a, b) = Net::pair(Opts { access: access::REMOTE_WRITE, ..Opts::default() });
    let (_, mr) = net.reg(&b, &b.buf, access::LOCAL_WRITE | access::REMOTE_WRITE);
    a.buf.write_u64(0, 77);
    net.ok(&a, store(&a, 0, &b, 0).key(mr.iova, mr.rkey));
    assert_eq!(b.buf.read_u64(0), 77);
}

// IBTA A19.4.2, length
// rxe rxe_resp.c atomic_write_reply
#[test]
fn a_packet_of_another_length_is_an_invalid_request() {
    let (mut net, _, b) = Net::pair(Opts::default());
    let said = answers(&mut net, &[packet(&b, 0, b.mr.iova, 8, 8)]);
    assert_eq!(said, [(Opcode::RC_READ_RESPONSE_ONLY, 0, Some(ACK))]);
    assert_eq!(b.buf.read(0, 16), [[0x5a; 8], [0; 8]].concat());
    let last = b.mr.iova + b.buf.len() as u64;
    for (va, length, len, nak) in [
        (b.mr.iova, 8, 4, NAK_INVALID),
        (b.mr.iova, 8, 0, NAK_INVALID),
        (b.mr.iova, 8, 16, NAK_INVALID),
        (b.mr.iova, 4, 8, NAK_INVALID),
        (b.mr.iova, 0, 8, NAK_INVALID),
        (b.mr.iova, 0, 0, NAK_INVALID),
        (b.mr.iova, 16, 16, NAK_INVALID),
        (b.mr.iova + 4, 8, 8, NAK_INVALID),
        (last, 8, 8, NAK_ACCESS),
    ] {
        let (mut net, _, other) = Net::pair(Opts::default());
        let va = va - b.mr.iova + other.mr.iova;
        let said = answers(&mut net, &[packet(&other, 0, va, length, len)]);
        assert_eq!(said, [(Opcode::RC_ACK, 0, Some(nak))], "{length} said, {len} came");
        assert!(other.buf.read(0, 64).iter().all(|&x| x == 0), "something was written");
    }
}

// rxe rxe_resp.c duplicate_request, atomic
#[test]
fn a_duplicate_is_answered_and_stores_nothing() {
    let config = Config { max_rd_atomic: 2, ..Opts::default().config };
    let (mut net, _, b) = Net::pair(Opts { rd_atomic: 2, config, ..Opts::default() });
    let ours = (Opcode::RC_READ_RESPONSE_ONLY, 0, Some(ACK));
    let request = |ahead, at| packet(&b, ahead, b.mr.iova + at, 8, 8);
    assert_eq!(answers(&mut net, &[request(0, 0)]), [ours]);
    // The program has seen the word and set it to something else.
    b.buf.write_u64(0, 5);
    assert_eq!(answers(&mut net, &[request(0, 0)]), [ours], "said again");
    assert_eq!(answers(&mut net, &[request(0, 8)]), [ours], "the PSN tells which it is");
    let read = Raw::new(Opcode::RC_READ_REQUEST, &b, 0).asks().reth(b.mr.iova, b.mr.rkey, 0);
    assert_eq!(answers(&mut net, &[read]), [], "a READ in its place");
    // Two more push it out of what is kept.
    assert_eq!(answers(&mut net, &[request(1, 64), request(2, 64)]).len(), 2);
    assert_eq!(answers(&mut net, &[request(0, 0)]), [], "too old to be known");
    assert_eq!((b.buf.read_u64(0), b.buf.read_u64(8)), (5, 0), "it was stored again");
    assert_eq!(net.state(&b), qp_state::RTS);
}

/// Some of them among SENDs, WRITEs and READs, whatever happens to packets.
fn mixture(tap: Tap) {
    let (mut net, a, b) = Net::pair(Opts { rd_atomic: 3, ..Opts::default() });
    net.tap = Some(tap);
    for i in 0..40u64 {
        let w = match i % 5 {
            // What the word was before is what the one before it has stored.
            1 => Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD)
                .local(&a, 8 * i as usize, 8)
                .atomic(&b, 0, 1, 0),
            3 => Wr::new(wr_opcode::RDMA_READ).local(&a, 1 << 20, 3000).remote(&b, 4096),
            4 => Wr::new(wr_opcode::RDMA_WRITE).local(&a, 1 << 20, 3000).remote(&b, 4096),
            _ => {
                a.buf.write_u64(4096, 1000 * i);
                store(&a, 4096, &b, 0)
            }
        };
        net.post(&a, w.id(i));
    }
    let wc = net.wait(a.host, a.scq, 40);
    let ends: Vec<_> = wc.iter().map(|w| w.status).collect();
    assert_eq!(ends, [wc_status::SUCCESS; 40], "{:?}", net.lock(&a).counters());
    assert!(wc.iter().enumerate().all(|(i, w)| w.wr_id == i as u64), "{wc:?}");
    for i in (1..40).step_by(5) {
        assert_eq!(a.buf.read_u64(8 * i), 1000 * (i as u64 - 1), "before the atomic {i}");
    }
    assert_eq!(b.buf.read_u64(0), 37_000);
}

// rxe rxe_resp.c duplicate_request, atomic
// rxe rxe_comp.c check_psn, READ
#[test]
fn each_is_stored_once_and_in_order_whatever_is_lost() {
    on_bad_wires(mixture, [Opcode::RC_ATOMIC_WRITE, Opcode::RC_READ_RESPONSE_ONLY]);
}

// rxe rxe_comp.c do_read
#[test]
fn an_answer_that_brings_bytes_is_a_bad_response() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 1)));
    net.post(&a, store(&a, 0, &b, 0));
    net.exchange();
    net.tap = None;
    Raw::new(Opcode::RC_READ_RESPONSE_ONLY, &a, 0).aeth(ACK).payload(8).inject(&mut net, 1, 0);
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!(wc.status, wc_status::BAD_RESP_ERR);
    assert_eq!(a.buf.read_u64(0), 0);
}

// rxe rxe_comp.c check_ack, ATOMIC WRITE
#[test]
fn an_answer_of_another_kind_ends_nothing() {
    let (mut net, a, b) = Net::pair(Opts::default());
    net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 1)));
    net.post(&a, store(&a, 0, &b, 0));
    net.exchange();
    let atomic = Raw::new(Opcode::RC_ATOMIC_ACK, &a, 0).aeth(ACK).bytes(&[1; 8]);
    atomic.inject(&mut net, 1, 0);
    Raw::new(Opcode::RC_ACK, &a, 0).aeth(ACK).inject(&mut net, 1, 0);
    assert!(net.poll(a.host, a.scq).is_empty(), "only its own answer ends it");
    net.tap = None;
    let wc = net.wait(a.host, a.scq, 1)[0];
    assert_eq!((wc.status, wc.opcode), (wc_status::SUCCESS, wc_opcode::ATOMIC_WRITE));
    assert_eq!(a.buf.read_u64(0), 0);
}
