//! Links: paths to other processes of a host, which may end at any time.

use gdrcore_core::config::config_flags;
use gdrcore_core::device::async_event;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::shared::qp_path;
use gdrcore_core::verbs::types::*;

use crate::util::*;
use std::sync::atomic::Ordering;

fn write(a: &End, b: &End) -> Wr {
    Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 100).remote(b, 0)
}

fn over_link() -> Opts {
    Opts { way: Way::Link, ..Opts::default() }
}

#[test]
fn a_lost_link_ends_its_requests_with_the_cause_and_nobody_elses() {
    let (mut net, a, b) = Net::pair(over_link());
    // A third host, over the wire, from the same engine.
    net.links = false;
    let (host, o) = (Host::new(&over_link().config, false, 3), Opts::default());
    net.add(host);
    let (c, d) = (net.end(0, &o), net.end(2, &o));
    net.connect(&c, &d, &o);
    net.connect(&d, &c, &o);
    for i in 0..5 {
        net.post(&a, write(&a, &b).id(i).flags(0));
    }
    net.recv(&a, 100, &[(0, 10)]);
    let now = net.now;
    net.lock(&a).link_lost(now, 1);
    net.settle();
    let wc = net.poll(a.host, a.scq);
    assert_eq!(wc.iter().map(|w| w.wr_id).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!(wc[0].status, wc_status::RETRY_EXC_ERR);
    assert!(wc[1..].iter().all(|w| w.status == wc_status::WR_FLUSH_ERR));
    assert_eq!(net.poll(a.host, a.rcq)[0].status, wc_status::WR_FLUSH_ERR);
    assert_eq!(net.lock(&a).qp_cause(a.qp).unwrap().code, CauseCode::PathLost as u32);
    assert_eq!(net.state(&a), qp_state::ERR);
    net.ok(&c, write(&c, &d));
    // No host polls for it without pause.
    assert!(!net.lock(&a).has_work());
}

#[test]
fn an_idle_queue_pair_hears_that_its_link_is_gone() {
    let (net, a, _b) = Net::pair(over_link());
    net.recv(&a, 7, &[(0, 10)]);
    let now = net.now;
    net.lock(&a).link_lost(now, 1);
    assert_eq!(net.poll(a.host, a.rcq)[0].status, wc_status::WR_FLUSH_ERR);
    let event = net.lock(&a).take_async_event().unwrap();
    assert_eq!((event.event, event.handle), (async_event::QP_FATAL, a.qp));
}

#[test]
fn posts_to_a_queue_pair_know_its_path() {
    for way in WAYS {
        let (net, a, _b) = Net::pair(Opts { way, ..Opts::default() });
        let known =
            |net: &Net, qp| net.lock(&a).shared().qps[index(qp)].path.load(Ordering::Relaxed);
        let path = match way {
            Way::Link => qp_path::LINK,
            Way::Loopback => qp_path::LOOPBACK,
            _ => qp_path::PORT,
        };
        assert_eq!(known(&net, a.qp), path);
        if way == Way::Link {
            net.lock(&a).link_ended(1);
            assert_eq!(known(&net, a.qp), qp_path::PORT);
        }
        // The next one in its place does not inherit that.
        let init = net.lock(&a).qp_query(a.qp).unwrap().1;
        net.lock(&a).qp_destroy(net.now, a.qp).unwrap();
        loop {
            let (next, ..) = net.lock(&a).qp_create(net.now, &init).unwrap();
            if index(next) == index(a.qp) {
                break assert_eq!(known(&net, next), qp_path::UNKNOWN);
            }
            net.lock(&a).qp_destroy(net.now, next).unwrap();
        }
    }
}

fn silent() -> Opts {
    let mut o = over_link();
    o.config.flags |= config_flags::SILENT_LOSS;
    o
}

#[test]
fn a_silent_loss_is_heard_by_who_sends_when_its_timers_end() {
    let (mut net, a, b) = Net::pair(silent());
    // The peer is not on the wire either.
    net.tap = Some(Box::new(|_, _| Fate::Drop));
    net.recv(&a, 7, &[(0, 10)]);
    net.post(&b, write(&b, &a).id(1));
    let now = net.now;
    net.lock(&a).link_lost(now, 1);
    net.lock(&b).link_lost(now, 0);
    net.settle();
    // A program that has what it wants may close its end while the other has requests under way:
    // not an error yet.
    assert!(net.poll(b.host, b.scq).is_empty());
    assert_eq!(net.wait(b.host, b.scq, 1)[0].status, wc_status::RETRY_EXC_ERR);
    assert!(net.now - now >= 4096 << silent().timeout);
    assert_eq!((net.state(&a), net.state(&b)), (qp_state::RTS, qp_state::ERR));
    assert!(net.poll(a.host, a.rcq).is_empty() && net.lock(&a).take_async_event().is_none());
    assert!(!net.lock(&a).has_work());
    net.post(&a, write(&a, &b).id(2));
    let wc = net.wait(a.host, a.scq, 1);
    assert_eq!((wc[0].wr_id, wc[0].status), (2, wc_status::RETRY_EXC_ERR));
    assert_eq!(net.poll(a.host, a.rcq)[0].status, wc_status::WR_FLUSH_ERR);
    assert_eq!(net.lock(&a).qp_cause(a.qp).unwrap().code, CauseCode::RetryExceeded as u32);
    assert_eq!(net.state(&a), qp_state::ERR);
}

#[test]
fn behind_a_silent_loss_the_wire_carries_what_the_link_did_not() {
    let (mut net, a, b) = Net::pair(silent());
    net.post(&b, write(&b, &a).id(1));
    let now = net.now;
    net.lock(&a).link_lost(now, 1);
    net.lock(&b).link_lost(now, 0);
    assert_eq!(net.wait(b.host, b.scq, 1)[0].status, wc_status::SUCCESS);
    net.ok(&a, write(&a, &b));
}

#[test]
fn a_link_of_the_same_number_is_another_link() {
    let (mut net, a, b) = Net::pair(over_link());
    let now = net.now;
    net.lock(&a).link_lost(now, 1);
    net.lock(&b).link_lost(now, 0);
    let o = over_link();
    let (c, d) = (net.end(0, &o), net.end(1, &o));
    net.connect(&c, &d, &o);
    net.connect(&d, &c, &o);
    net.ok(&c, write(&c, &d));
    net.ok(&d, write(&d, &c));
    assert_eq!(net.state(&a), qp_state::ERR);
}

#[test]
fn datagrams_to_a_lost_link_are_lost_and_the_queue_pair_lives() {
    let o = Opts { kind: qp_type::UD, ..over_link() };
    let (mut net, a, b) = Net::pair(o);
    let ah = net.ah(&a, &b);
    let datagram = |id| Wr::new(wr_opcode::SEND).local(&a, 0, 8).id(id).ud(ah, b.qpn, 0x1111);
    net.recv(&b, 1, &[(0, 100)]);
    net.ok(&a, datagram(1));
    assert_eq!(net.wait(b.host, b.rcq, 1)[0].byte_len, 48);
    let now = net.now;
    net.lock(&a).link_lost(now, 1);
    net.ok(&a, datagram(2));
    assert_eq!(net.state(&a), qp_state::RTS);
    assert!(!net.lock(&a).has_work());
}

// IBTA A17.4.4.2
#[test]
fn what_comes_over_a_link_counts_only_for_queue_pairs_of_that_path() {
    // Connected over the wire; the same packets, brought by a link, are refused.
    let (mut net, a, b) = Net::pair(Opts::default());
    net.links = true;
    let o = over_link();
    let (c, d) = (net.end(0, &o), net.end(1, &o));
    // c thinks that it talks to b's QP, over the link.
    let impostor = End { qpn: b.qpn, ..d };
    net.connect(&c, &impostor, &o);
    net.post(&c, write(&c, &b));
    net.settle();
    assert_eq!(net.poll(b.host, b.rcq).len(), 0);
    let refused = net.hosts[1].lock().qp_counters(b.qp).unwrap().rcvd_pkts;
    assert_eq!(refused, 0);
    net.ok(&a, write(&a, &b));
}

#[test]
fn records_of_any_bytes_do_no_harm() {
    let (mut net, a, b) = Net::pair(over_link());
    let src = net.hosts[a.host].addr;
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut bytes = vec![0u8; 400];
    for i in 0..20_000 {
        for c in bytes.iter_mut() {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            *c = seed as u8;
        }
        if i % 2 == 0 {
            // Close to what is right: a known opcode, the QPN, little payload.
            bytes[..4].copy_from_slice(&(seed as u32 % 300).to_le_bytes());
            bytes[4] = (seed >> 32) as u8 % 24;
            bytes[12..16].copy_from_slice(&b.qpn.to_le_bytes());
            bytes[16..20].copy_from_slice(&PSN.to_le_bytes());
            bytes[20..24].copy_from_slice(&(seed as u32 % 5).to_le_bytes());
        }
        let len = seed as usize % bytes.len();
        let now = net.now;
        net.lock(&b).handle_records(now, &src, &bytes[..len], &Default::default());
        if net.state(&b) == qp_state::ERR {
            net.to_state(&b, qp_state::RESET).unwrap();
            net.to_state(&a, qp_state::RESET).unwrap();
            net.connect(&a, &b, &over_link());
            net.connect(&b, &a, &over_link());
        }
    }
}

#[test]
fn a_peer_that_does_not_come_to_read_its_link_is_sent_nothing_twice() {
    // Code 18 is a second.
    let (mut net, a, b) = Net::pair(Opts { timeout: 18, ..over_link() });
    let sent = |net: &Net| net.lock(&a).counters().sent_pkts;
    let mut frames = Vec::new();
    // What host 0 has for its link, which nobody reads meanwhile.
    let write_out = |net: &mut Net, frames: &mut Vec<Vec<u8>>| {
        let mut buf = vec![0; 20_000];
        loop {
            let len = net.lock(&a).poll_transmit_link(net.now, 1, &mut buf, &mut ());
            if len == 0 {
                return;
            }
            frames.push(buf[..len].to_vec());
        }
    };
    for (k, request) in [
        write(&a, &b),
        Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 30_000).remote(&b, 0),
        Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 30_000).remote(&b, 0),
        Wr::new(wr_opcode::ATOMIC_FETCH_AND_ADD).local(&a, 0, 8).atomic(&b, 0, 1, 0),
    ]
    .into_iter()
    .enumerate()
    {
        net.post(&a, request.id(k as u64));
        write_out(&mut net, &mut frames);
        let before = sent(&net);
        for _ in 0..500 {
            net.now += 1_000_000;
            let now = net.now;
            net.lock(&a).handle_timeout(now);
            write_out(&mut net, &mut frames);
        }
        assert_eq!(sent(&net), before, "request {k}: half a second without an answer is no loss");
        let src = net.hosts[a.host].addr;
        let to = &net.hosts[b.host];
        frames
            .drain(..)
            .for_each(|f| _ = net.lock(&b).handle_records(net.now, &src, &f, &to.receipts));
        assert_eq!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
    }
    let (x, y) = (net.lock(&a).counters(), net.lock(&b).counters());
    assert_eq!((x.retransmitted_pkts, x.retry_timeouts, y.duplicate_request), (0, 0, 0));
}

#[test]
fn the_ack_timer_stays_where_nothing_is_probed_for() {
    let (mut net, a, b) = Net::pair(Opts { timeout: 10, retry: 2, ..over_link() });
    net.post(&a, write(&a, &b));
    let mut buf = vec![0; 20_000];
    let began = net.now;
    loop {
        // All records that are written are thrown away.
        while net.lock(&a).poll_transmit_link(net.now, 1, &mut buf, &mut ()) > 0 {}
        if let Some(wc) = net.poll(a.host, a.scq).first() {
            assert_eq!(wc.status, wc_status::RETRY_EXC_ERR);
            break;
        }
        let next = net.lock(&a).next_timeout(net.now).expect("a timer runs");
        net.now = next.max(net.now + 1);
        let now = net.now;
        net.lock(&a).handle_timeout(now);
    }
    assert!(net.now - began >= 3 * (4096 << 10));
    // Two retries, and no probe.
    assert_eq!(net.lock(&a).counters().retransmitted_pkts, 2);
}

#[test]
fn an_address_handle_that_ends_gives_back_all_its_peer_records() {
    let (net, a, _) = Net::pair(Opts::default());
    let mut g = net.lock(&a);
    let used = |g: &gdrcore_core::engine::EngineGuard| {
        (0..g.transport.peers.len()).filter(|&i| g.transport.peers[i].refs > 0).count()
    };
    let before = used(&g);
    // One to the own address has a record for this engine and one for others there.
    g.set_address_shared(true);
    let own = AhAttr { dgid: net.hosts[0].addr.gid, ..AhAttr::default() };
    let ah = g.ah_create(a.pd, &own).unwrap();
    assert_eq!(used(&g), before + 2);
    g.ah_destroy(ah).unwrap();
    assert_eq!(used(&g), before);
}

/// Lets host 1 take what host 0 has written into its link, and answer nothing.
fn take_in_silence(net: &mut Net) {
    let mut buf = vec![0; 20_000];
    loop {
        let len = net.hosts[0].lock().poll_transmit_link(net.now, 1, &mut buf, &mut ());
        if len == 0 {
            return;
        }
        let (src, to) = (net.hosts[0].addr, &net.hosts[1]);
        to.lock().handle_records(net.now, &src, &buf[..len], &to.receipts);
    }
}

/// The process of host 1 is killed.
fn kill(net: &mut Net) {
    let (now, receipts) = (net.now, std::mem::take(&mut net.hosts[1].receipts));
    let mut g = net.hosts[0].lock();
    g.take_link_receipts(now, 1, &receipts);
    g.link_lost(now, 1);
}

#[test]
fn what_a_killed_peer_had_accepted_ends_with_success() {
    for (kind, len) in [(0, 8), (0, 1000), (0, 30_000), (1, 8), (1, 30_000), (2, 30_000)] {
        let (mut net, a, b) = Net::pair(over_link());
        let request = match kind {
            0 => Wr::new(wr_opcode::SEND).local(&a, 0, len),
            1 => Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, len).remote(&b, 0),
            _ => Wr::new(wr_opcode::RDMA_WRITE_WITH_IMM).local(&a, 0, len).remote(&b, 0),
        };
        net.recv(&b, 0, &[(0, 1 << 16)]);
        net.post(&a, request.id(1));
        take_in_silence(&mut net);
        // The next one is never read.
        net.post(&a, write(&a, &b).id(2));
        kill(&mut net);
        let wcs = net.wait(a.host, a.scq, 2);
        let ends = wcs.iter().map(|wc| (wc.wr_id, wc.status)).collect::<Vec<_>>();
        assert_eq!(ends[0], (1, wc_status::SUCCESS), "{kind} of {len} bytes");
        assert_ne!(ends[1].1, wc_status::SUCCESS);
    }
}

#[test]
fn what_a_killed_peer_had_refused_does_not_end_with_success() {
    let (mut net, a, b) = Net::pair(over_link());
    let requests = [
        // No receive request is posted there.
        Wr::new(wr_opcode::SEND).local(&a, 0, 8),
        Wr::new(wr_opcode::RDMA_READ).local(&a, 0, 8).remote(&b, 0),
    ];
    for request in requests {
        let (mut net, a, _b) = Net::pair(over_link());
        net.post(&a, request.id(1));
        take_in_silence(&mut net);
        kill(&mut net);
        assert_ne!(net.wait(a.host, a.scq, 1)[0].status, wc_status::SUCCESS);
    }
    // The receipt of a connection says nothing about the next one, which has the same PSNs.
    net.post(&a, write(&a, &b));
    take_in_silence(&mut net);
    let psn = net.hosts[1].receipts.find(b.qpn).expect("a receipt");
    assert!(net.lock(&b).is_receipt(b.qpn, psn));
    let begun = net.lock(&b).connections_begun();
    net.to_state(&b, qp_state::RESET).unwrap();
    net.connect(&b, &a, &over_link());
    assert!(net.lock(&b).connections_begun() != begun && !net.lock(&b).is_receipt(b.qpn, psn));
}
