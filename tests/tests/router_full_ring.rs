//! A queue pair that ends while its device's ring to the router is full.

use gdrcore_tests::ends::{connected_pair, succeed, End, Op};
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::router::{number, Router};

/// Two tenants whose queue pairs go by the relay. What `a` sends has a rate, so its ring to the
/// router stays full while a WRITE of [`MUCH`] waits.
const POLICY: &str = r#"
[tenant.a]
listen = "DIR/a"
metered = true
tx_rate = 4_000_000
burst = 8192
[tenant.b]
listen = "DIR/b"
metered = true
"#;

/// More than the ring to the router holds, by far.
const MUCH: u32 = 1 << 20;

/// Packets that the router has put into the ring to tenant `a`.
fn packets_for_a(router: &Router) -> u64 {
    let done = router.ask("tenants");
    assert!(done.ok(), "{done}");
    let line = done.output.lines().find(|l| l.contains("\"tenant\":\"a\"")).expect("its line");
    number(line, "rx_packets").expect("a number")
}

/// Ends `a`'s queue pair by `end` when a request of `b` has reached its ring, while another queue
/// pair of `a` keeps the ring to the router full.
fn is_answered(request: Op, end: impl Fn(End<'_>)) {
    let router = Router::start(POLICY);
    let (da, db) = (router.open("a"), router.open("b"));
    let (mut filler, mut to) = connected_pair(da.dev(), db.dev());
    for id in 0..5 {
        let (a, mut b) = connected_pair(da.dev(), db.dev());
        a.post_recv(1, 0, 64).expect("post_recv");
        filler.post(id, Op::Write(0, None), 0, MUCH).expect("post_send");
        let before = packets_for_a(&router);
        b.post(2, request, 0, 64).expect("post_send");
        wait_for(60, "the request does not arrive", || packets_for_a(&router) > before);
        end(a);
        succeed(&mut b, &mut to, 2);
        succeed(&mut filler, &mut to, id);
        b.destroy().expect("destroy");
    }
}

#[test]
fn what_a_queue_pair_has_received_is_acknowledged_before_it_is_destroyed() {
    is_answered(Op::Send(None), |a| a.destroy().expect("destroy"));
}

#[test]
fn what_a_queue_pair_has_received_is_acknowledged_before_it_is_reset() {
    is_answered(Op::Send(None), |a| {
        a.dev.qp_reset(a.qp).expect("reset");
        a.destroy().expect("destroy");
    });
}

#[test]
fn a_read_is_answered_before_its_queue_pair_is_destroyed() {
    is_answered(Op::Read(0), |a| a.destroy().expect("destroy"));
}

#[test]
fn what_finds_no_room_leaves_first_when_there_is_some() {
    let router = Router::start(POLICY);
    let (da, db) = (router.open("a"), router.open("b"));
    let (mut a, mut b) = connected_pair(da.dev(), db.dev());
    for id in 0..4 {
        a.post(id, Op::Write(0, None), 0, MUCH).expect("post_send");
        succeed(&mut a, &mut b, id);
    }
    let gaps = b.dev.qp_counters(b.qp).expect("counters").out_of_seq_request;
    assert_eq!(gaps, 0, "a ring loses nothing");
}
