//! The timer of a single request that leaves over a link is set when the clock is read next.

use gdrcore_core::verbs::types::*;

use super::framed::Out;
use crate::util::*;

#[test]
fn a_timer_without_a_time_counts_from_the_next_look_at_the_clock() {
    let o = Opts { way: Way::Link, ..Opts::default() };
    let (mut net, a, b) = Net::pair(o);
    let (c, d) = (net.end(a.host, &o), net.end(b.host, &o));
    net.connect(&c, &d, &o);
    let send = |net: &Net, e: &End, wanted, clock: &dyn Fn() -> u64| {
        net.post(e, Wr::new(wr_opcode::SEND).local(e, 0, 8));
        let mut out = Out { link: b.host as u16, buf: vec![0; 20_000], sent: 0 };
        assert!(
            net.lock(e).send_single::<false, _>(index(e.qp), &mut out, wanted, clock)
                && out.sent > 0
        );
    };
    let deadline =
        |net: &Net, e: &End| net.lock(e).transport.qps[index(e.qp)].conn.req.ack_deadline;
    let never = || unreachable!();
    send(&net, &a, false, &never);
    assert_eq!(deadline(&net, &a), 0);
    // A second one of the same queue pair waits with it; that of another queue pair is set at once.
    send(&net, &a, false, &never);
    send(&net, &c, false, &|| 5_000_000);
    assert!(deadline(&net, &a) == 0 && deadline(&net, &c) > 5_000_000);
    // A question for the next timeout sets it.
    let next = net.lock(&a).next_timeout(9_000_000).unwrap();
    assert!(next > 5_000_000 && deadline(&net, &a) > 9_000_000, "{next}");
    let first = deadline(&net, &a);
    net.lock(&a).arm_deferred_timer(10_000_000);
    assert_eq!(deadline(&net, &a), first, "once");
    // A queue pair that has left RTS meanwhile gets none; one that wants it at once has it at once.
    let (mut net, a, b) = Net::pair(o);
    send(&net, &a, false, &never);
    net.to_state(&a, qp_state::ERR).unwrap();
    net.lock(&a).arm_deferred_timer(1_000_000);
    assert_eq!(deadline(&net, &a), 0);
    let c = net.end(a.host, &o);
    let d = net.end(b.host, &o);
    net.connect(&c, &d, &o);
    send(&net, &c, true, &|| 2_000_000);
    assert!(deadline(&net, &c) > 2_000_000);
}
