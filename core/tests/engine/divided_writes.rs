//! Short WRITEs through a port that segments bursts: each of their packets is a WRITE of its own,
//! so that the packets of several WRITEs are of one size and share a burst.

use std::cell::Cell;
use std::rc::Rc;

use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::{Bth, Opcode, Psn, Reth, ICRC_LEN};

use crate::buf_and_wr::pattern;
use crate::packet_loss::mixture;
use crate::util::*;

/// Bytes of a packet's payload.
const MTU: usize = 1024;
/// The longest WRITE that is divided.
const LONGEST: usize = 64 << 10;
const HEADERS: usize = Bth::LEN + Reth::LEN;

/// A pair whose first end divides its WRITEs.
fn pair(o: Opts) -> (Net, End, End) {
    let (net, a, b) = Net::pair(o);
    net.lock(&a).divide_writes(true);
    (net, a, b)
}

fn write(a: &End, b: &End, at: usize, len: usize) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, at, len).remote(b, at)
}

/// The packets of an end's next burst.
fn burst(net: &Net, e: &End) -> Vec<Vec<u8>> {
    let mut buf = vec![0; 65_536];
    let burst = net.lock(e).poll_transmit(net.now, &mut buf).expect("a burst");
    buf[..burst.len].chunks(burst.seg).map(<[u8]>::to_vec).collect()
}

/// The opcodes of the first packet and of the second of what is posted.
fn opcodes(net: &Net, a: &End, wr: Wr) -> [Opcode; 2] {
    net.post(a, wr);
    let packets = burst(net, a);
    [0, 1].map(|k| Bth::parse(packets[k].first_chunk().unwrap()).opcode)
}

#[test]
fn packets_of_several_writes_share_a_burst() {
    let (net, a, b) = pair(Opts::default());
    for k in 0..3 {
        net.post(&a, write(&a, &b, k * 4 * MTU, 4 * MTU));
    }
    net.post(&a, write(&a, &b, 12 * MTU, MTU + 100));
    let packets = burst(&net, &a);
    assert_eq!(packets.len(), 14);
    for (k, packet) in packets.iter().enumerate() {
        let bth = Bth::parse(packet.first_chunk().unwrap());
        let reth = Reth::parse(packet[Bth::LEN..].first_chunk().unwrap());
        let len = if k == 13 { 100 } else { MTU };
        assert_eq!(bth.opcode, Opcode::RC_WRITE_ONLY, "{k}");
        assert_eq!(bth.psn, Psn::new(PSN).add(k as u32), "{k}");
        assert_eq!((reth.va, reth.rkey), (b.mr.iova + (k * MTU) as u64, b.mr.rkey), "{k}");
        assert_eq!((reth.len as usize, packet.len()), (len, HEADERS + len + ICRC_LEN), "{k}");
        // The last of a message asks, and the first of all, since the window is small yet.
        assert_eq!(bth.ack_req, k % 4 == 3 || k == 13 || k == 0, "{k}");
    }
}

#[test]
fn what_would_not_be_of_one_size_and_what_is_long_is_not_divided() {
    let first_and_middle = [Opcode::RC_WRITE_FIRST, Opcode::RC_WRITE_MIDDLE];
    let only = [Opcode::RC_WRITE_ONLY; 2];
    let (net, a, b) = pair(Opts::default());
    assert_eq!(opcodes(&net, &a, write(&a, &b, 0, LONGEST)), only);
    let (net, a, b) = pair(Opts::default());
    assert_eq!(opcodes(&net, &a, write(&a, &b, 0, LONGEST + 1)), first_and_middle);
    // Immediate data makes the last packet longer.
    let (net, a, b) = pair(Opts::default());
    let with_imm =
        Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, 3 * MTU).remote(&b, 0).imm(7);
    assert_eq!(opcodes(&net, &a, with_imm), first_and_middle);
    let (net, a, b) = pair(Opts { kind: qp_type::UC, ..Opts::default() });
    assert_eq!(
        opcodes(&net, &a, write(&a, &b, 0, 3 * MTU)),
        [Opcode::UC_WRITE_FIRST, Opcode::UC_WRITE_MIDDLE]
    );
    let (net, a, b) = Net::pair(Opts::default());
    assert_eq!(opcodes(&net, &a, write(&a, &b, 0, 3 * MTU)), first_and_middle);
}

#[test]
fn every_byte_arrives_whatever_is_lost() {
    for seed in 1..200 {
        let (mut net, a, b) = pair(Opts { timeout: 12, ..Opts::default() });
        let mut rng = Rng(seed);
        let bytes = pattern(seed, 1 << 20);
        a.buf.write(0, &bytes);
        let mut lots = Rng(seed ^ 0xfa7e);
        net.tap = Some(Box::new(move |_, _| match lots.below(20) {
            0 => Fate::Drop,
            1 => Fate::Twice,
            2 => Fate::Later,
            _ => Fate::Deliver,
        }));
        let mut at = 0;
        let mut posted = 0;
        while at + LONGEST + 4 * MTU < bytes.len() && posted < 60 {
            // About the borders of what is divided, beside what is not.
            let len = match rng.below(4) {
                0 => 1 + rng.below(MTU as u64) as usize,
                1 => LONGEST - MTU + rng.below(3 * MTU as u64) as usize,
                _ => 1 + rng.below(8 * MTU as u64) as usize,
            };
            net.post(&a, write(&a, &b, at, len).id(posted as u64));
            (at, posted) = (at + len, posted + 1);
        }
        let done = net.wait(0, a.scq, posted);
        assert!(done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{seed}: {done:?}");
        assert!(b.buf.read(0, at) == bytes[..at], "{seed}");
    }
}

/// A responder looks at a packet's own range: what is before a refused packet is there.
#[test]
fn a_refusal_in_the_middle_fails_the_whole_write() {
    let (mut net, a, b) = pair(Opts::default());
    let end = b.buf.len();
    a.buf.write(0, &pattern(5, 4 * MTU));
    let out = Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 4 * MTU).remote(&b, end - 2 * MTU);
    let wc = net.run_one(&a, out.id(9));
    assert_eq!((wc.wr_id, wc.status), (9, wc_status::REM_ACCESS_ERR));
    assert_eq!(net.poll(0, a.scq).len(), 0, "one completion");
    assert!(b.buf.read(end - 2 * MTU, 2 * MTU) == pattern(5, 4 * MTU)[..2 * MTU]);
}

/// Both ends count what was on the wire.
#[test]
fn packets_and_bytes_are_those_of_the_wire() {
    let (mut net, a, b) = pair(Opts::default());
    let wire = Rc::new(Cell::new((0, 0)));
    let count = wire.clone();
    net.tap = Some(Box::new(move |from, p| {
        if from == 0 {
            let (packets, bytes) = count.get();
            count.set((packets + 1, bytes + p.len() as u64));
        }
        Fate::Deliver
    }));
    for len in [1, MTU, MTU + 1, 7 * MTU, LONGEST, LONGEST + 1] {
        net.ok(&a, write(&a, &b, 0, len));
    }
    let (sent, received) = (net.lock(&a).counters(), net.lock(&b).counters());
    assert_eq!((sent.sent_pkts, sent.sent_bytes), wire.get());
    assert_eq!((received.rcvd_pkts, received.rcvd_bytes), wire.get());
    assert_eq!(sent.rdma_writes, 6, "requests, not packets");
}

/// Everything else goes on beside them, over a bad wire.
#[test]
fn a_mixture_of_requests_survives_losses() {
    for seed in 1..50 {
        let (mut net, a, b) = pair(Opts { timeout: 12, ..Opts::default() });
        net.lock(&b).divide_writes(true);
        let mut rng = Rng(seed);
        net.tap = Some(Box::new(move |_, _| match rng.below(25) {
            0 => Fate::Drop,
            1 => Fate::Twice,
            _ => Fate::Deliver,
        }));
        mixture(&mut net, &a, &b);
    }
}
