//! Limits of tenants, and whom they may reach. Bytes and rounds are counted, no time.

use super::*;
use crate::policy::{Allow, Cidr, Limits};
use crate::remote::shares::WINDOW;
use gdrcore_core::cm::types::{cm_event, port_space, ConnParam};
use gdrcore_core::verbs::types::AhAttr;

fn tenant(name: &str, limits: Limits) -> Tenant {
    Tenant { name: name.into(), limits, ..tenant_of_uid(0) }
}

fn allowing(name: &str, allow: &[&str]) -> Tenant {
    let one = |text: &&str| {
        Cidr::parse(text).map_or_else(|| Allow::Tenant(text.to_string()), Allow::Range)
    };
    let allow = Some(allow.iter().map(one).collect());
    Tenant { allow, ..tenant(name, Limits::NONE) }
}

/// A weight alone: nothing waits for a rate.
const WEIGHTED: Limits = Limits { weight: 2, ..Limits::NONE };
/// In a test it brings nothing beside its burst.
const SLOW: u64 = 1_000;

impl Running {
    fn tenant_as(&self, number: u32, tenant: &Tenant) -> (RemoteDevice, Arc<Counts>) {
        let (ends, counts) = self.join_as(number, tenant);
        (RemoteDevice::over(ends, None).unwrap(), counts)
    }

    /// So many rounds while no other thread serves.
    fn rounds(&self, n: usize) {
        let mut server = self.server();
        (0..n).for_each(|_| _ = server.round());
    }
}

fn charged(counts: &Counts) -> u64 {
    counts.charged.load(Ordering::Relaxed)
}

fn posted(counts: &Counts) -> u64 {
    counts.posted.load(Ordering::Relaxed)
}

/// Posts requests while the server stands still, and then serves so many rounds.
fn flood(running: &Running, rounds: usize, ends: &mut [(&mut End<'_>, u64, u32)]) {
    let mut server = running.server();
    for (end, n, bytes) in ends {
        (0..*n).for_each(|wr_id| end.post(wr_id, Op::Write(0, None), 0, *bytes).unwrap());
    }
    (0..rounds).for_each(|_| _ = server.round());
}

/// Waits for the completions of all its requests.
fn finish(end: &mut End<'_>, n: usize) {
    wait_for(60, "requests stay", || {
        let _ = end.poll();
        end.done.len() >= n
    });
}

const HALF: u32 = 1 << 19;

#[test]
fn a_tenant_has_so_many_bytes_under_way_and_a_ping_goes_in_its_round() {
    let running = Running::start();
    let (x, of_x) = running.tenant_as(1, &tenant("flood", WEIGHTED));
    let (y, of_y) = running.tenant_as(2, &tenant("ping", Limits::NONE));
    let (mut a, mut b) = connected(&x, &x, Shape::default()).unwrap();
    let (mut c, mut d) = connected(&y, &y, Shape::default()).unwrap();
    let before = posted(&of_y);
    flood(&running, 1, &mut [(&mut a, 32, HALF), (&mut c, 1, 64)]);
    assert!(charged(&of_x) >= 2 * u64::from(HALF));
    assert_eq!(posted(&of_y) - before, 1, "the ping waits for no byte of the flood");
    finish(&mut a, 32);
    finish(&mut c, 1);
    assert_eq!(charged(&of_x), 32 * u64::from(HALF));
    for end in [&mut a, &mut b, &mut c, &mut d] {
        let _ = end.poll();
    }
    // Nothing is left under way, so all of it may be so again.
    assert!(running.server().sessions.iter().all(|s| s.under_way() == 0));
    [a, b, c, d].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn what_is_under_way_stays_within_the_window_and_one_request() {
    let running = Running::start();
    let (x, of_x) = running.tenant_as(1, &tenant("flood", WEIGHTED));
    let (mut a, b) = connected(&x, &x, Shape::default()).unwrap();
    // Its peer has no receive for them, so none completes.
    for wr_id in 0..32 {
        a.post(wr_id, Op::Send(None), 0, HALF).unwrap();
    }
    wait_for(60, "nothing is posted", || charged(&of_x) >= WINDOW);
    running.rounds(100);
    assert_eq!(charged(&of_x), WINDOW);
    // A failed queue pair has nothing under way, and its requests cost nothing.
    let to_error = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
    x.qp_modify(a.qp, &to_error, qp_attr_mask::STATE).unwrap();
    finish(&mut a, 32);
    assert_eq!(charged(&of_x), WINDOW);
    [a, b].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn what_completes_while_there_is_no_limit_is_not_under_way_later() {
    let running = Running::start();
    let (x, of_x) = running.tenant_as(1, &tenant("flood", WEIGHTED));
    let (mut a, b) = connected(&x, &x, Shape::default()).unwrap();
    for wr_id in 0..2 {
        a.post(wr_id, Op::Send(None), 0, HALF).unwrap();
    }
    wait_for(60, "nothing is posted", || charged(&of_x) >= WINDOW);
    running.server().review(&tenant("flood", Limits::NONE));
    (0..2).for_each(|wr_id| b.post_recv(wr_id, 0, HALF).unwrap());
    finish(&mut a, 2);
    running.server().review(&tenant("flood", WEIGHTED));
    (2..4).for_each(|wr_id| a.post(wr_id, Op::Write(0, None), 0, HALF).unwrap());
    finish(&mut a, 4);
    [a, b].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn a_tenant_has_its_rate_and_nobody_waits_with_it() {
    let running = Running::start();
    let limits = Limits { tx_rate: Some(SLOW), burst: Some(64 << 10), ..Limits::NONE };
    let (x, of_x) = running.tenant_as(1, &tenant("limited", limits));
    let (y, of_y) = running.tenant_as(2, &tenant("free", Limits::NONE));
    let (mut a, b) = connected(&x, &x, Shape::default()).unwrap();
    let (mut c, d) = connected(&y, &y, Shape::default()).unwrap();
    flood(&running, 3, &mut [(&mut a, 60, 8 << 10), (&mut c, 60, 8 << 10)]);
    finish(&mut c, 60);
    assert_eq!(charged(&of_y), 60 * (8 << 10));
    // Its burst, and one request.
    let most = (64 << 10) + (8 << 10);
    assert!((64 << 10..=most).contains(&charged(&of_x)), "{}", charged(&of_x));
    // Another session of the tenant brings no other bucket.
    let (z, of_z) = running.tenant_as(3, &tenant("limited", limits));
    let (mut e, f) = connected(&z, &z, Shape::default()).unwrap();
    flood(&running, 100, &mut [(&mut e, 10, 8 << 10)]);
    assert!(charged(&of_x) + charged(&of_z) <= most);
    // Without a limit all of it goes.
    running.server().review(&tenant("limited", Limits::NONE));
    finish(&mut a, 60);
    finish(&mut e, 10);
    [a, b, c, d, e, f].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn requests_of_a_failed_queue_pair_wait_for_no_credit() {
    let running = Running::start();
    let limits = Limits { tx_rate: Some(SLOW), burst: Some(4 << 10), ..Limits::NONE };
    let (x, of_x) = running.tenant_as(1, &tenant("limited", limits));
    let (mut a, b) = connected(&x, &x, Shape::default()).unwrap();
    // A debt for minutes, and nothing under way whose completion would tell of the state.
    flood(&running, 1, &mut [(&mut a, 1, HALF)]);
    finish(&mut a, 1);
    flood(&running, 100, &mut [(&mut a, 10, 64)]);
    assert_eq!(charged(&of_x), u64::from(HALF), "they wait");
    let to_error = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
    x.qp_modify(a.qp, &to_error, qp_attr_mask::STATE).unwrap();
    finish(&mut a, 11);
    assert_eq!(charged(&of_x), u64::from(HALF));
    [a, b].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn weights_share_the_rate_of_the_device() {
    let running = Running::start();
    running.server().limit_line(SLOW);
    let heavy = Limits { weight: 3, ..Limits::NONE };
    let (x, of_x) = running.tenant_as(1, &tenant("heavy", heavy));
    let (y, of_y) = running.tenant_as(2, &tenant("light", Limits::NONE));
    let (mut a, b) = connected(&x, &x, Shape::default()).unwrap();
    let (mut c, d) = connected(&y, &y, Shape::default()).unwrap();
    flood(&running, 100, &mut [(&mut a, 64, 8 << 10), (&mut c, 64, 8 << 10)]);
    let [heavy, light] = [charged(&of_x), charged(&of_y)];
    // The burst of the device's bucket, in turns of 12 and of 4 KiB.
    assert!((256 << 10..=272 << 10).contains(&(heavy + light)), "{heavy} {light}");
    assert!((5 * light..=7 * light).contains(&(2 * heavy)), "{heavy} {light}");
    running.server().limit_line(0);
    finish(&mut a, 64);
    finish(&mut c, 64);
    [a, b, c, d].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn unsignalled_requests_count_when_a_signalled_one_ends_them() {
    let running = Running::start();
    let (x, of_x) = running.tenant_as(1, &tenant("flood", WEIGHTED));
    let (mut a, b) = connected(&x, &x, Shape::default()).unwrap();
    for wr_id in 0..40 {
        let pieces = [a.piece(0, HALF)];
        let mut wr = a.request(wr_id, Op::Write(0, None), &pieces);
        if wr_id % 4 != 3 {
            wr.send_flags &= !send_flags::SIGNALED;
        }
        a.post_wr(&wr).unwrap();
    }
    finish(&mut a, 10);
    assert_eq!(charged(&of_x), 40 * u64::from(HALF));
    wait_for(60, "bytes stay under way", || {
        running.server().sessions.iter().all(|s| s.under_way() == 0)
    });
    [a, b].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn tenants_that_do_not_allow_each_other_are_not_connected() {
    let running = Running::start();
    let join = |number, tenant: &Tenant| running.tenant_as(number, tenant).0;
    let (a, b) = (join(1, &allowing("a", &["b"])), join(2, &allowing("b", &["a", "192.0.2.0/24"])));
    let c = join(3, &tenant("c", Limits::NONE));
    let ends = connected(&a, &b, Shape::default()).unwrap();
    for (one, other) in [(&a, &c), (&c, &a), (&c, &b)] {
        let refused = connected(one, other, Shape::default()).map(drop);
        assert_eq!(refused, Err(Error::Access));
    }
    // A tenant reaches itself, and the addresses of its ranges.
    let own = connected(&a, &a, Shape::default()).unwrap();
    let to = |dgid: [u8; 16]| AhAttr { dgid, ..AhAttr::default() };
    let v4 = |last| to([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 192, 0, 2, last]);
    let pd = a.pd_alloc().unwrap();
    assert_eq!(a.ah_create(pd, &v4(1)), Err(Error::Access));
    a.pd_dealloc(pd).unwrap();
    let pd = b.pd_alloc().unwrap();
    let ah = b.ah_create(pd, &v4(1)).unwrap();
    b.ah_destroy(ah).unwrap();
    b.pd_dealloc(pd).unwrap();
    // A policy that allows it no more ends what is there.
    running.server().review(&allowing("b", &[]));
    let (mut x, mut y) = ends;
    x.post(1, Op::Write(0, None), 0, 8).unwrap();
    let wc = gdrcore_testkit::ends::complete(&mut x, &mut y, 1, std::time::Duration::from_secs(60));
    assert_eq!(wc.status, wc_status::WR_FLUSH_ERR);
    [x, y, own.0, own.1].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn no_tenant_has_a_controlled_q_key() {
    let running = Running::start();
    let x = running.tenant(1);
    let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
    let end = End::new(&x, shape).unwrap();
    let init = |qkey| {
        let attr = QpAttr { qp_state: qp_state::INIT, port_num: 1, qkey, ..QpAttr::default() };
        let mask = qp_attr_mask::STATE
            | qp_attr_mask::PKEY_INDEX
            | qp_attr_mask::PORT
            | qp_attr_mask::QKEY;
        x.qp_modify(end.qp, &attr, mask)
    };
    assert_eq!(init(0x8001_0000), Err(Error::Access));
    assert_eq!(init(0x7fff_ffff), Ok(()));
    end.destroy().unwrap();
}

#[test]
fn datagrams_reach_those_who_are_allowed() {
    let running = Running::start();
    let shape = Shape { qp_type: qp_type::UD, ..Shape::default() };
    let join = |number, tenant: &Tenant| running.tenant_as(number, tenant).0;
    let (a, b) = (join(1, &allowing("a", &["b"])), join(2, &allowing("b", &["a"])));
    let c = join(3, &tenant("c", Limits::NONE));
    let (mut x, mut y) = connected(&a, &b, shape).unwrap();
    y.post_recv(7, 0, 256).unwrap();
    x.post(1, Op::Send(None), 0, 64).unwrap();
    succeed(&mut x, &mut y, 1);
    succeed(&mut y, &mut x, 7);
    let (mut z, mut w) = connected(&c, &b, shape).unwrap();
    z.post(1, Op::Send(None), 0, 64).unwrap();
    let wc = gdrcore_testkit::ends::complete(&mut z, &mut w, 1, std::time::Duration::from_secs(60));
    assert_eq!(wc.status, wc_status::LOC_QP_OP_ERR);
    [x, y, z, w].into_iter().for_each(|end| end.destroy().unwrap());
}

#[test]
fn a_request_of_a_tenant_that_is_not_allowed_is_rejected() {
    let running = Running::start();
    let join = |number, tenant: &Tenant| running.tenant_as(number, tenant).0;
    let (a, b) = (join(1, &allowing("a", &["b"])), join(2, &tenant("b", Limits::NONE)));
    let c = join(3, &tenant("c", Limits::NONE));
    let of = |device: &RemoteDevice| {
        let id = device.cm().unwrap().create(port_space::TCP, 0).unwrap();
        (id, device.cm().unwrap().bind(id, 0).unwrap())
    };
    let (listener, port) = of(&a);
    a.cm().unwrap().listen(listener, 8).unwrap();
    for (device, is_let_in) in [(&c, false), (&b, true)] {
        let end = End::new(device, Shape::default()).unwrap();
        let cm = device.cm().unwrap();
        let id = cm.create(port_space::TCP, 0).unwrap();
        let to = device.query().unwrap().ah();
        cm.connect(id, &to, port, end.qp, &ConnParam::default()).unwrap();
        let mut found = None;
        let asked = if is_let_in { &a } else { device };
        wait_for(60, "no event", || {
            found = asked.cm().unwrap().event().unwrap();
            found.is_some()
        });
        let expected = if is_let_in { cm_event::CONNECT_REQUEST } else { cm_event::REJECTED };
        assert_eq!(found.map(|e| e.event), Some(expected));
        cm.destroy(id).unwrap();
        end.destroy().unwrap();
    }
}
