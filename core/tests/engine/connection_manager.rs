//! The connection manager inside engines: queue pairs that it brings up, and what becomes of them
//! where a peer does not confirm.

use gdrcore_core::cm::mad::{attribute, MAD_LEN};
use gdrcore_core::cm::{cm_event, port_space, CmEvent, ConnParam};
use gdrcore_core::engine::{cm_qps, EngineGuard};
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::types::*;
use gdrcore_core::wire::IcrcFlow;
use gdrcore_testkit::engine_qps::EngineQps;

use crate::util::*;

const PORT: u16 = 1000;
/// BTH and DETH.
const HEADERS: usize = 20;

fn offer() -> ConnParam<'static> {
    ConnParam {
        responder_resources: 16,
        initiator_depth: 16,
        retry_count: 7,
        rnr_retry: 7,
        ack_timeout: 14,
        ..ConnParam::default()
    }
}

fn event(net: &Net, host: usize) -> Option<CmEvent> {
    let links = net.links;
    let path = |g: &mut EngineGuard<'_>| g.set_link(links.then_some(1 - host as u16));
    cm_qps::take_event(&mut EngineQps { guard: &mut net.hosts[host].lock(), path }, net.now)
}

/// Two ends whose connection the passive side does not know to stand: its peer's RTUs are lost.
fn unconfirmed() -> (Net, End, End, Handle) {
    unconfirmed_by(false)
}

fn unconfirmed_by(links: bool) -> (Net, End, End, Handle) {
    let o = Opts::default();
    let mut net = Net::new(2, &o);
    net.links = links;
    net.hosts.iter().for_each(|h| h.lock().check_ports(true));
    let (a, b) = (net.end(0, &o), net.end(1, &o));
    net.tap = Some(Box::new(|from, p| {
        let rtu = p.len() > HEADERS + MAD_LEN
            && p[5..8] == [0, 0, 1]
            && p[HEADERS + 16..HEADERS + 18] == attribute::RTU.to_be_bytes();
        Fate::drop_if(from == 0 && rtu)
    }));
    let to = AhAttr { dgid: net.hosts[1].addr.gid, ..AhAttr::default() };
    {
        let mut g = net.lock(&b);
        let listener = g.cm().create(port_space::TCP, 0).unwrap();
        g.cm().bind(listener, PORT).unwrap();
        g.cm_listen(net.now, listener, 0).unwrap();
    }
    {
        let mut g = net.lock(&a);
        let id = g.cm().create(port_space::TCP, 0).unwrap();
        let own = &mut EngineQps { guard: &mut g, path: |_: &mut EngineGuard<'_>| {} };
        cm_qps::connect(own, net.now, id, &to, PORT, a.qp, &offer()).unwrap();
    }
    net.settle();
    let asked = event(&net, 1).unwrap();
    assert_eq!(asked.event, cm_event::CONNECT_REQUEST);
    let path = |g: &mut EngineGuard<'_>| g.set_link(links.then_some(0));
    {
        let own = &mut EngineQps { guard: &mut net.lock(&b), path };
        cm_qps::accept(own, net.now, asked.id, b.qp, &offer()).unwrap();
    }
    net.settle();
    assert_eq!(event(&net, 0).unwrap().event, cm_event::ESTABLISHED);
    net.settle();
    assert!(event(&net, 1).is_none());
    (net, a, b, asked.id)
}

// Linux cm.c cm_establish
#[test]
fn data_in_order_is_as_good_as_the_rtu() {
    let (mut net, a, b, id) = unconfirmed();
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
    // When the REP would be sent again.
    net.run(1_000_000_000);
    let e = event(&net, 1).unwrap();
    assert_eq!((e.event, e.id), (cm_event::ESTABLISHED, id));
    assert_eq!((net.state(&a), net.state(&b)), (qp_state::RTS, qp_state::RTS));
    net.run(60_000_000_000);
    assert!(event(&net, 1).is_none(), "and it stays so");
}

#[test]
fn a_queue_pair_whose_peer_never_confirms_ends() {
    let (mut net, _a, b, id) = unconfirmed();
    // Packets from its address with other PSNs are not the peer's data.
    for psn in 0..50u32 {
        let mut packet = vec![0x04, 0, 0xff, 0xff];
        packet.extend_from_slice(&b.qpn.to_be_bytes());
        packet.extend_from_slice(&(psn * 335_544).to_be_bytes());
        packet.extend_from_slice(&[0; 8]);
        sign(&net, 0, 1, &mut packet);
        net.inject(0, 1, &packet);
    }
    net.run(20_000_000_000);
    let e = event(&net, 1).unwrap();
    assert_eq!((e.event, e.id), (cm_event::UNREACHABLE, id));
    assert_eq!(net.state(&b), qp_state::ERR);
    net.lock(&b).cm().destroy(net.now, id).unwrap();
    net.run(10_000_000_000);
    assert_eq!(net.lock(&b).cm().live(), 1, "the listener");
}

#[test]
fn both_sides_know_that_the_other_is_of_their_kind() {
    let (mut net, a, b, _) = unconfirmed();
    for (from, to) in [(&a, &b), (&b, &a)] {
        let src = PeerAddr { port: 50_000, ..net.hosts[from.host].addr };
        let refused = |net: &Net| net.lock(to).qp_counters(to.qp).unwrap().rcvd_refused;
        // Packets from another port of its address, by both ways into the engine.
        for psn in [0, 1 << 23] {
            let mut packet = vec![0x04, 0, 0xff, 0xff];
            packet.extend_from_slice(&to.qpn.to_be_bytes());
            packet.extend_from_slice(&u32::to_be_bytes(psn));
            packet.extend_from_slice(&[0; 4]);
            let dst = net.hosts[to.host].addr;
            IcrcFlow::from_gids(&src.gid, &dst.gid, src.port, dst.port).append_icrc(0, &mut packet);
            let before = refused(&net);
            net.lock(to).handle_packets(net.now, &src, packet.len(), &packet, false);
            assert_eq!(refused(&net), before + 1);
        }
        assert_eq!(net.lock(to).take_refused_port(), Some((net.hosts[from.host].addr, 50_000)));
    }
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
    net.ok(&b, Wr::new(wr_opcode::RDMA_WRITE).local(&b, 0, 100).remote(&a, 0));
    // Without a word of the connection manager a QP takes them from any port, as NICs send them.
    let (net, a, b) = Net::pair(Opts::default());
    net.lock(&b).check_ports(true);
    assert!(
        !net.lock(&b).transport.qps[index(b.qp)].conn.own_port
            && !net.lock(&a).transport.qps[index(a.qp)].conn.own_port
    );
}

/// A connection, whose ends watch each other by the connection manager's rules.
fn connected() -> (Net, [End; 2]) {
    connected_by(false)
}

fn connected_by(links: bool) -> (Net, [End; 2]) {
    let (mut net, a, b, _) = unconfirmed_by(links);
    net.tap = None;
    net.run(2_000_000_000);
    assert_eq!(event(&net, 1).unwrap().event, cm_event::ESTABLISHED);
    for (host, end) in [&a, &b].into_iter().enumerate() {
        let mut unwatched = Vec::new();
        while let Some(peer) = net.lock(end).cm().next_unwatched() {
            unwatched.push(peer);
        }
        let other = [&b, &a][host];
        assert_eq!(unwatched, [(net.hosts[other.host].addr, other.qpn, end.qpn)]);
        net.lock(end).cm_begin_keepalive(net.now, end.qpn);
        net.recv(end, 99, &[(0, 64)]);
    }
    (net, [a, b])
}

const SECOND: u64 = 1_000_000_000;

fn questions(net: &Net, e: &End) -> u64 {
    net.lock(e).qp_counters(e.qp).unwrap().keepalives
}

#[test]
fn an_idle_connection_is_asked_about_ever_more_rarely() {
    let (mut net, [a, b]) = connected();
    net.run(10 * 60 * SECOND);
    let asked = questions(&net, &a) + questions(&net, &b);
    // After 1, 2, 4, 8 seconds, then every 15; who is asked need not ask.
    assert!((40..=90).contains(&asked), "{asked} questions in ten minutes");
    assert!(event(&net, 0).is_none() && event(&net, 1).is_none());
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
    // Traffic makes it busy: the next question comes after a second again.
    let before = questions(&net, &a) + questions(&net, &b);
    net.run(20 * SECOND);
    let asked = questions(&net, &a) + questions(&net, &b) - before;
    assert!((3..=8).contains(&asked), "{asked} questions in twenty seconds");
}

#[test]
fn a_peer_that_is_gone_is_disconnected_within_its_own_timeouts() {
    for refused in [false, true] {
        let (mut net, [a, b]) = connected();
        let end = net.now;
        net.tap = Some(Box::new(|from, _| Fate::drop_if(from == 1)));
        let dst = net.hosts[1].addr;
        let e = loop {
            net.run(SECOND / 2);
            if refused {
                net.lock(&a).peer_unreachable(net.now, &dst, 111);
            }
            if let Some(e) = event(&net, 0) {
                break e;
            }
            assert!(net.now - end < 60 * SECOND);
        };
        assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, -110));
        let took = (net.now - end) / SECOND;
        let within = if refused { 2..=5 } else { 9..=12 };
        assert!(within.contains(&took), "refused {refused}: {took} s");
        assert_eq!(net.state(&a), qp_state::ERR);
        assert_eq!(net.wait(0, a.rcq, 1)[0].status, wc_status::WR_FLUSH_ERR);
        let _ = b;
    }
}

#[test]
fn a_connection_whose_requests_meet_silence_ends_too() {
    for lives in [false, true] {
        let (mut net, [a, b]) = connected();
        // The peer's queue pair is gone; its connection manager lives, or does not.
        net.lock(&b).qp_destroy(net.now, b.qp).unwrap();
        if !lives {
            net.tap = Some(Box::new(|_, _| Fate::Drop));
        }
        net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 100).remote(&b, 0));
        assert_eq!(net.wait(0, a.scq, 1)[0].status, wc_status::RETRY_EXC_ERR);
        net.run(20 * SECOND);
        let e = event(&net, 0).expect("its end");
        let status = if lives { 0 } else { -110 };
        assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, status));
        assert_eq!(event(&net, 1).map(|e| e.event), lives.then_some(cm_event::DISCONNECTED));
    }
}

#[test]
fn a_connection_ends_with_its_link() {
    let (mut net, [a, b]) = connected_by(true);
    let now = net.now;
    net.lock(&a).cm_link_lost(now, 1);
    let e = event(&net, 0).expect("its end");
    assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, -110));
    net.lock(&b).cm_link_lost(now, 5);
    net.settle();
    assert!(event(&net, 1).is_none(), "another link");
}
