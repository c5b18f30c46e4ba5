//! What `gdrcore-routerctl` is told, as JSON objects of one line.

use super::relaying::Relaying;
use crate::broker::{Broker, State};
use crate::policy::{show, Tenant};
use crate::relay::{Counters, Refused};
use gdrcore_core::config::QPN_UNIT;
use serde_json::{json, Map, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The router.
pub(super) fn status(broker: &Broker, file: Option<&Path>) -> String {
    let up = broker.sessions().filter(|(_, s)| matches!(s.state, State::Up(_))).count();
    let policy = broker.policy();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "policy": file.map(|f| f.display().to_string()),
        "tenants": policy.tenants.len(),
        "sessions": up,
        "without_hello": broker.sessions().count() - up,
        "blocks": broker.blocks_given(),
    })
    .to_string()
}

/// The sessions, one after the other.
pub(super) fn sessions<'r>(
    broker: &'r Broker,
    relaying: &'r Relaying,
) -> impl Iterator<Item = String> + 'r {
    broker.sessions().map(|(id, s)| {
        let seen = &s.seen;
        match &s.state {
            State::New(_) => {
                json!({"session": id, "state": "new", "pid": seen.pid, "uid": seen.uid}).to_string()
            }
            State::Up(up) => json!({
                "session": id,
                "state": "up",
                "tenant": up.tenant.name,
                "network": up.tenant.network,
                "address": show(&up.gid),
                "program": up.program,
                "pid": seen.pid,
                "uid": seen.uid,
                "socket": seen.socket.display().to_string(),
                "qpn_first": up.blocks.start * QPN_UNIT,
                "qpn_count": up.blocks.len() as u32 * QPN_UNIT,
                "linked_by": up.linked_by,
                "routes": up.routes.len(),
                "listens": up.listens.len(),
                "relay": relaying.counters(id).map(relay),
            })
            .to_string(),
        }
    })
}

/// The tenants of the policy, and those that have sessions and are none of its: with how many
/// sessions.
pub(super) fn known(broker: &Broker) -> Vec<(Tenant, usize)> {
    let mut here: BTreeMap<&str, (&Tenant, usize)> = BTreeMap::new();
    for (_, s) in broker.sessions() {
        if let State::Up(up) = &s.state {
            here.entry(&up.tenant.name).or_insert((&up.tenant, 0)).1 += 1;
        }
    }
    let named = broker
        .policy()
        .tenants
        .iter()
        .map(|t| (t.clone(), here.remove(t.name.as_str()).map_or(0, |(_, n)| n)));
    let mut all: Vec<_> = named.collect();
    all.extend(here.into_values().map(|(t, n)| (t.clone(), n)));
    all
}

/// The tenants, one after the other.
pub(super) fn tenants<'r>(
    broker: &Broker,
    relaying: &'r Relaying,
) -> impl Iterator<Item = String> + 'r {
    known(broker).into_iter().map(|(t, sessions)| {
        let l = &t.limits;
        json!({
            "tenant": t.name,
            "network": t.network,
            "sessions": sessions,
            "tx_rate": l.tx_rate,
            "rx_rate": l.rx_rate,
            "tx_pps": l.tx_pps,
            "burst": l.burst,
            "weight": l.weight,
            "metered": l.metered,
            "relay": relaying.tenant(&t.name).map(relay),
        })
        .to_string()
    })
}

/// What the relay has counted of a session or a tenant.
fn relay(c: &Counters) -> Value {
    let count = |n: &AtomicU64| Value::from(n.load(Ordering::Relaxed));
    let refused: Map<String, Value> = Refused::ALL
        .iter()
        .map(|&why| (why.name().to_string(), count(&c.refused[why as usize])))
        .collect();
    json!({
        "tx_packets": count(&c.tx.0),
        "tx_bytes": count(&c.tx.1),
        "rx_packets": count(&c.rx.0),
        "rx_bytes": count(&c.rx.1),
        "full": count(&c.full),
        "over_rate": count(&c.over_rate),
        "marked": count(&c.marked),
        "unpaid": count(&c.unpaid),
        "refused": refused,
    })
}
