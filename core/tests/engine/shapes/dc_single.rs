//! When a request of DC may leave by the single path: its association allows it as it is.

use gdrcore_core::verbs::types::*;

use super::framed::Out;
use crate::util::*;

/// A DCI that is associated with a DCT behind a link, and nothing under way.
fn associated() -> (Net, End, End) {
    let o = Opts { kind: qp_type::DCI, way: Way::Link, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    net.ok(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0));
    (net, a, b)
}

/// Posts a WRITE to a target, and offers it the single path.
fn leaves(net: &Net, a: &End, b: &End, to: DcWr, now: u64) -> bool {
    net.post(a, Wr::new(wr_opcode::RDMA_WRITE).local(a, 0, 8).remote(b, 0).dc(to));
    let mut out = Out { link: b.host as u16, buf: vec![0; 20_000], sent: 0 };
    net.lock(a).send_single::<true, _>(index(a.qp), &mut out, false, || now)
}

#[test]
fn an_open_association_for_the_same_target_is_used() {
    let (net, a, b) = associated();
    assert!(leaves(&net, &a, &b, net.dc, net.now));
    let g = net.lock(&a);
    assert_eq!(g.transport.qps[index(a.qp)].dci[0].used_at, net.now);
}

#[test]
fn another_target_must_be_opened_first() {
    for other in [
        |to: DcWr| DcWr { dc_key: to.dc_key + 1, ..to },
        |to: DcWr| DcWr { dctn: to.dctn + 1, ..to },
        |to: DcWr| DcWr { ah: to.ah ^ 0x1_0000_0000, ..to },
    ] {
        let (net, a, b) = associated();
        assert!(!leaves(&net, &a, &b, other(net.dc), net.now));
    }
}

#[test]
fn another_handle_of_the_same_address_names_the_same_target() {
    let (net, a, b) = associated();
    let to = net.target(&a, &b);
    assert_ne!(to.ah, net.dc.ah);
    assert!(leaves(&net, &a, &b, to, net.now));
}

#[test]
fn an_address_handle_that_has_ended_names_nobody() {
    let (net, a, b) = associated();
    net.lock(&a).ah_destroy(net.dc.ah).unwrap();
    assert!(!leaves(&net, &a, &b, net.dc, net.now));
}

#[test]
fn an_association_is_used_for_half_its_lease() {
    for (more, used) in [(0, true), (1, false)] {
        let (net, a, b) = associated();
        let a0 = net.lock(&a).transport.qps[index(a.qp)].dci[0];
        let now = a0.used_at + a0.lease_ns / 2 + more;
        assert_eq!(leaves(&net, &a, &b, net.dc, now), used);
    }
}

#[test]
fn what_is_owed_to_the_target_goes_first() {
    for wanted in [false, true] {
        let (net, a, b) = associated();
        let mut g = net.lock(&a);
        let association = &mut g.transport.qps[index(a.qp)].dci[0];
        (association.wanted, association.asks) = (wanted, !wanted);
        // The last ACK lets it go.
        assert_eq!(g.transport.qps[index(a.qp)].takes_singles_of_dc(), !wanted);
        drop(g);
        assert!(!leaves(&net, &a, &b, net.dc, net.now));
    }
}

/// As over any link. It had begun with the port, where an ACK leaves at once.
#[test]
fn the_ack_of_a_context_that_has_got_a_link_waits_for_more_messages() {
    let (net, a, b) = associated();
    let mut g = net.lock(&b);
    let (at, ..) = g.next_unlinked().unwrap();
    g.set_context_link(at, a.host as u16);
    drop(g);
    net.post(&a, Wr::new(wr_opcode::RDMA_WRITE).local(&a, 0, 8).remote(&b, 0).dc(net.dc));
    let mut out = Out { link: b.host as u16, buf: vec![0; 20_000], sent: 0 };
    assert!(net.lock(&a).send_single::<true, _>(index(a.qp), &mut out, false, || net.now));
    let (src, receipts) = (net.hosts[a.host].addr, &net.hosts[b.host].receipts);
    let mut g = net.lock(&b);
    assert_eq!(g.handle_records(net.now, &src, &out.buf[..out.sent], receipts), 1);
    assert!(!g.has_work() && !g.delays_no_ack());
    drop(g);
    // Its receipt ends the request when the process of the target is gone.
    let mut g = net.lock(&a);
    g.take_link_receipts(net.now, b.host as u16, receipts);
    g.link_lost(net.now, b.host as u16);
    drop(g);
    assert_eq!(net.poll(a.host, a.scq).pop().map(|wc| wc.status), Some(wc_status::SUCCESS));
}
