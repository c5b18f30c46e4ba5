//! A queue pair that ends while its device's ring to the router is full.

use gdrcore_core::verbs::types::wc_status;
use gdrcore_tests::ends::{connected, End, Op, Shape};
use gdrcore_tests::patience::{until, wait_for};
use gdrcore_tests::router::{number, Router};
use gdrcore_tests::soft::Soft;

/// Two tenants whose queue pairs go by the relay.
const POLICY: &str = r#"
[tenant.a]
listen = "DIR/a"
metered = true
[tenant.b]
listen = "DIR/b"
metered = true
"#;

/// More than the ring to the router holds.
const MUCH: u32 = 150_000;

/// Packets that the router has put into the ring to tenant `a`.
fn packets_for_a(router: &Router) -> u64 {
    let done = router.ask("tenants");
    assert!(done.ok(), "{}", done.output);
    let line = done.output.lines().find(|l| l.contains("\"tenant\":\"a\"")).expect("its line");
    number(line, "rx_packets").expect("a number")
}

/// Ends `a`'s queue pair by `end` when a message of `b` has reached its ring, and what it has to
/// send itself fills the ring to the router.
fn is_acknowledged(end: impl Fn(End<'_>)) {
    let mut router = Router::start(POLICY);
    let (da, db) = (Soft::new(&router.device("a")), Soft::new(&router.device("b")));
    for _ in 0..5 {
        let (a, mut b) = connected(da.dev(), db.dev(), Shape::default()).expect("connected ends");
        a.post_recv(1, 0, 64).expect("post_recv");
        let before = packets_for_a(&router);
        b.post(2, Op::Send(None), 0, 64).expect("post_send");
        wait_for(60, "the message does not arrive", || packets_for_a(&router) > before);
        router.running().signal(libc::SIGSTOP);
        a.post(3, Op::Write(0, None), 0, MUCH).expect("post_send");
        router.running().signal(libc::SIGCONT);
        end(a);
        let missing = || "the message is not acknowledged".to_string();
        let wc = until(60, missing, || {
            b.poll();
            b.take(2)
        });
        assert_eq!(wc.status, wc_status::SUCCESS, "{:?}", b.dev.qp_cause(b.qp));
        b.destroy().expect("destroy");
    }
}

#[test]
fn what_a_queue_pair_has_received_is_acknowledged_before_it_is_destroyed() {
    is_acknowledged(|a| a.destroy().expect("destroy"));
}

#[test]
fn what_a_queue_pair_has_received_is_acknowledged_before_it_is_reset() {
    is_acknowledged(|a| {
        a.dev.qp_reset(a.qp).expect("reset");
        a.destroy().expect("destroy");
    });
}
