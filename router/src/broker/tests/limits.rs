//! The pairs that a limit moves to the relay, and the end of their links.

use super::*;
use crate::policy::Limits;

/// Limits, as `gdrcore-routerctl set` gives them.
fn set(b: &mut Bench, tenant: &str, key: &str, value: &str) -> Result<Vec<Action>, String> {
    b.broker.set(tenant, &[(key.into(), value.into())]).map(|()| b.broker.take_actions())
}

/// The sessions that are told of ended links, and the reasons.
fn revoked(actions: &[Action]) -> Vec<(SessionId, SessionId, String)> {
    let told = |action: &Action| match action {
        Action::Send(to, Envelope { message: Message::RouteEvent(e), .. }) => {
            assert_eq!(e.event, route_event::REVOKED);
            (*to, e.peer, e.cause.as_str().to_string())
        }
        other => panic!("{other:?}"),
    };
    actions.iter().map(told).collect()
}

#[test]
fn whoever_has_a_limit_has_no_links() {
    for key in ["tx_rate = 5000", "rx_rate = 5000", "tx_pps = 5", "metered = true"] {
        let mut b = Bench::new(&POLICY.replace("sessions = 3", &format!("sessions = 3\n{key}")));
        let ((blue, w), (red, v)) = (b.with_rings(1), b.with_rings(2));
        let (second, _) = b.with_rings(1);
        assert!(b.reaches_by_relay(blue, &v) && b.reaches_by_relay(red, &w), "{key}");
        assert!(!b.reaches_by_relay(second, &w), "neither has one");
        let (other, _) = b.with_rings(2);
        assert!(b.reaches_by_relay(other, &v), "nor is there one within the tenant");
    }
    for (local, relayed) in [("direct", false), ("relay", true)] {
        let policy = POLICY.replace("[router]", &format!("[router]\nlocal = \"{local}\""));
        let mut b = Bench::new(&policy.replace("sessions = 3", "sessions = 3\ntx_rate = 5000"));
        let ((blue, w), (red, v)) = (b.with_rings(1), b.with_rings(2));
        let (second, _) = b.with_rings(1);
        assert_eq!(
            [
                b.reaches_by_relay(blue, &v),
                b.reaches_by_relay(red, &w),
                b.reaches_by_relay(second, &w)
            ],
            [relayed; 3]
        );
    }
    // Weights and bursts alone have no effect outside the relay.
    let mut b =
        Bench::new(&POLICY.replace("sessions = 3", "sessions = 3\nweight = 7\nburst = 9000"));
    let ((blue, _), (_, v)) = (b.with_rings(1), b.with_rings(2));
    assert!(!b.reaches_by_relay(blue, &v));
}

#[test]
fn a_limit_that_comes_ends_links() {
    let mut b = Bench::new(POLICY);
    let ((blue, w), (red, v)) = (b.with_rings(1), b.with_rings(2));
    let (second, _) = b.with_rings(1);
    assert!(!b.reaches_by_relay(blue, &v) && !b.reaches_by_relay(second, &w));
    // A limit that counts only in the relay ends no link.
    assert_eq!(set(&mut b, "red", "weight", "5"), Ok(vec![]));
    let ends = revoked(&set(&mut b, "red", "tx_rate", "1Mbit").unwrap());
    assert_eq!(ends.len(), 2);
    assert!(ends.iter().all(|(_, _, why)| why.contains("policy has a limit")), "{ends:?}");
    assert_eq!((ends[0].0.max(ends[0].1), ends[0].0.min(ends[0].1)), (red, blue));
    assert!(b.reaches_by_relay(blue, &v) && !b.reaches_by_relay(second, &w));
    // A second limit, and the end of both.
    assert_eq!(set(&mut b, "red", "tx_rate", "2Mbit"), Ok(vec![]));
    assert_eq!(set(&mut b, "red", "tx_rate", "off"), Ok(vec![]));
    assert!(!b.reaches_by_relay(blue, &v));
    // A reload has the same effect, and ends the limits that were set.
    let limited = POLICY.replace("sessions = 3", "sessions = 3\nrx_rate = 5000");
    b.broker.reload(0, Policy::parse(&limited).unwrap());
    let out = b.broker.take_actions();
    assert_eq!(revoked(&out).len(), 2);
    set(&mut b, "blue", "metered", "true").unwrap();
    b.broker.reload(0, Policy::parse(POLICY).unwrap());
    let out = b.broker.take_actions();
    assert!(out.is_empty() && !b.reaches_by_relay(blue, &v) && !b.reaches_by_relay(second, &w));
}

#[test]
fn what_cannot_be_set_changes_nothing() {
    let mut b = Bench::new(POLICY);
    let ((blue, _), (_, v)) = (b.with_rings(1), b.with_rings(2));
    assert!(set(&mut b, "nobody", "weight", "5").unwrap_err().contains("tenant nobody"));
    assert!(set(&mut b, "red", "colour", "5").unwrap_err().contains("no such limit"));
    let both = [("tx_rate", "1Mbit"), ("weight", "0")].map(|(k, v)| (k.to_string(), v.to_string()));
    assert!(b.broker.set("red", &both).unwrap_err().contains("weight '0'"));
    assert!(b.broker.take_actions().is_empty());
    assert!(!b.reaches_by_relay(blue, &v), "all or nothing");
    assert_eq!(b.broker.policy().tenant("red").unwrap().limits, Limits::NONE);
}
