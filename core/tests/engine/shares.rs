//! One peer cannot starve the others: the addresses of peers take turns, and a request that is
//! repeated many times is answered once more at most.

use gdrcore_core::config::Config;
use gdrcore_core::verbs::types::wr_opcode;
use gdrcore_core::wire::{Bth, Opcode, Psn};

use crate::raw_packet::Raw;
use crate::util::*;

/// Bytes of a READ.
const LEN: usize = 2 << 20;
const MTU: usize = 1024;

fn opts() -> Opts {
    let config = Config { max_cq: 64, max_pd: 64, ..Opts::default().config };
    Opts { bytes: LEN, config, ..Opts::default() }
}

/// Ends of host 0 that are connected to ends of another host, of which nothing is needed but the
/// address.
fn ends(net: &mut Net, n: usize, to: usize, o: &Opts) -> Vec<End> {
    (0..n)
        .map(|_| {
            let (here, there) = (net.end(0, o), net.end(to, &Opts { bytes: 4096, ..*o }));
            net.connect(&here, &there, o);
            here
        })
        .collect()
}

fn read_of(e: &End, from: u32, len: usize) -> Raw {
    let at = u64::from(from) * MTU as u64;
    Raw::new(Opcode::RC_READ_REQUEST, e, from).reth(e.mr.iova + at, e.mr.rkey, len as u32)
}

/// Takes up to `most` bursts of host 0. Of each: the host that it is for, the queue pair number in
/// its first packet, its bytes.
fn bursts(net: &Net, most: usize) -> Vec<(usize, u32, usize)> {
    let mut buf = vec![0; 65_536];
    let mut out = Vec::new();
    while out.len() < most {
        let Some(burst) = net.hosts[0].lock().poll_transmit(net.now, &mut buf) else { break };
        let to = net.hosts.iter().position(|h| h.addr.gid == burst.dst.gid).unwrap();
        out.push((to, Bth::parse(buf.first_chunk().unwrap()).dest_qp.get(), burst.len));
    }
    out
}

fn share_of(bursts: &[(usize, u32, usize)], host: usize) -> usize {
    let of = |to: Option<usize>| -> usize {
        bursts.iter().filter(|b| to.is_none_or(|to| b.0 == to)).map(|b| b.2).sum()
    };
    100 * of(Some(host)) / of(None)
}

#[test]
fn answers_take_turns_by_address() {
    let o = opts();
    for order in [[1, 2], [2, 1]] {
        let mut net = Net::new(3, &o);
        let mut all = Vec::new();
        for to in order {
            all.extend(
                ends(&mut net, if to == 1 { 16 } else { 1 }, to, &o).into_iter().map(|e| (to, e)),
            );
        }
        for (to, e) in &all {
            read_of(e, 0, LEN).inject(&mut net, *to, 0);
        }
        // FIRST packets leave alone, and the one queue pair's bytes take some 33 bursts.
        let sent = bursts(&net, 60);
        let share = share_of(&sent[40..], 2);
        assert!((45..=55).contains(&share), "{order:?}: {share}");
        // Queue pairs of one address take turns as well.
        let rest = bursts(&net, usize::MAX);
        let greedy: Vec<u32> =
            sent.iter().chain(&rest).filter(|b| b.0 == 1).map(|b| b.1).take(16).collect();
        let distinct: std::collections::BTreeSet<_> = greedy.iter().collect();
        assert_eq!(distinct.len(), 16, "{greedy:?}");
        let whole: usize = sent.iter().chain(&rest).map(|b| b.2).sum();
        assert!(whole > 17 * LEN, "all is answered: {whole}");
    }
}

#[test]
fn three_addresses_have_a_third_each() {
    let o = opts();
    let mut net = Net::new(4, &o);
    let mut all = Vec::new();
    // Their queue pairs lie between each other.
    for round in 0..6 {
        for (to, most) in [(1, 6), (2, 3), (3, 1)] {
            if round < most {
                all.extend(ends(&mut net, 1, to, &o).into_iter().map(|e| (to, e)));
            }
        }
    }
    for (to, e) in &all {
        read_of(e, 0, LEN).inject(&mut net, *to, 0);
    }
    let sent = bursts(&net, 75);
    for host in 1..=3 {
        let share = share_of(&sent[30..], host);
        assert!((30..=37).contains(&share), "{host}: {share}");
    }
    // And so have requests: those of the program to one address, and answers to another.
    let mut net = Net::new(3, &o);
    let (one, many) = (ends(&mut net, 1, 1, &o), ends(&mut net, 8, 2, &o));
    for e in &many {
        read_of(e, 0, LEN).inject(&mut net, 2, 0);
    }
    net.post(
        &one[0],
        Wr::new(wr_opcode::RDMA_WRITE).local(&one[0], 0, 128 << 10).remote(&one[0], 0),
    );
    let sent = bursts(&net, 6);
    assert!(share_of(&sent, 1) >= 30, "{sent:?}");
}

/// The PSNs of the packets of the next bursts of host 1, counted from [`PSN`].
fn answered(net: &Net, most: usize) -> Vec<u32> {
    let mut buf = vec![0; 65_536];
    let mut out = Vec::new();
    for _ in 0..most {
        let Some(burst) = net.hosts[1].lock().poll_transmit(net.now, &mut buf) else { break };
        for packet in buf[..burst.len].chunks(burst.seg) {
            out.push(Bth::parse(packet.first_chunk().unwrap()).psn.diff(Psn::new(PSN)) as u32);
        }
    }
    out
}

#[test]
fn a_read_that_comes_again_and_again_is_answered_once_more() {
    let (mut net, _, b) = Net::pair(Opts { bytes: LEN, ..Opts::default() });
    let packets = (LEN / MTU) as u32;
    let ask = |net: &mut Net, before: u32, from: u32| {
        let va = b.mr.iova + u64::from(from) * MTU as u64;
        Raw::new(Opcode::RC_READ_REQUEST, &b, before + from)
            .reth(va, b.mr.rkey, (LEN - from as usize * MTU) as u32)
            .inject(net, 0, 1);
    };
    ask(&mut net, 0, 0);
    let mut psns = answered(&net, 2);
    assert!((11..packets as usize / 2).contains(&psns.len()), "{psns:?}");
    // The whole, parts that have left, and parts that have not.
    for from in [0, 3, 0, packets - 1, 7, 0, packets / 2, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10] {
        ask(&mut net, 0, from);
    }
    psns.extend(answered(&net, usize::MAX));
    assert!(psns == (0..packets).chain(0..packets).collect::<Vec<_>>(), "{psns:?}");
    // What has not left does not leave twice; what has does, from the earliest on.
    ask(&mut net, packets, 0);
    ask(&mut net, packets, packets / 2);
    let mut psns = answered(&net, 2);
    for from in [psns.len() as u32, 9, 5, 8] {
        ask(&mut net, packets, from);
    }
    psns.extend(answered(&net, usize::MAX));
    let wanted: Vec<u32> = (0..packets).chain(5..packets).map(|ahead| packets + ahead).collect();
    assert!(psns == wanted, "{psns:?}");
    assert_eq!(net.state(&b), gdrcore_core::verbs::types::qp_state::RTS);
}
