//! The answers for `gdrcore-routerctl`, as JSON objects of one line.

use super::feed::Feed;
use super::sys::own_uid;
use super::{wire, Daemon};
use crate::broker::{Broker, SessionState};
use crate::firewall::rule;
use crate::policy::{show, Placed, Tenant};
use crate::relay::{Counters, Refused};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_net::clock::now_ns;
use serde_json::{json, Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

/// The router.
pub(super) fn status(daemon: &Daemon) -> String {
    let broker = &daemon.broker;
    let devices = daemon.remoting.devices();
    let devices = devices.map(|(name, objects)| (name.to_string(), json!({"objects": objects})));
    let up = broker.sessions().filter(|(_, s)| matches!(s.state, SessionState::Up(_))).count();
    let policy = broker.policy();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "pid": std::process::id(),
        "policy": daemon.file.as_ref().map(|f| f.display().to_string()),
        "tenants": policy.tenants.len(),
        "sessions": up,
        "without_hello": broker.sessions().count() - up,
        "blocks": broker.blocks_given(),
        "drains": broker.drains_until().is_some(),
        "confined": daemon.fence.name(),
        "host": policy.host.as_ref().map(|host| &host.id),
        "address": policy.host.as_ref().map(|host| host.at.to_string()),
        "firewall": policy.host.as_ref().map(|_| rule(&ports(broker), own_uid())),
        "wire": daemon.relaying.wire().map(wired),
        "devices": devices.collect::<Map<String, Value>>(),
        "feed": daemon.feed.as_ref().map(|feed| fed(broker, feed)),
    })
    .to_string()
}

/// The state of the feed.
fn fed(broker: &Broker, feed: &Feed) -> Value {
    let (tenants, stale) = broker.far_count();
    let c = feed.counted();
    let networks = broker.far_networks().map(|(name, known)| (name.to_string(), known.into()));
    let denied = broker.denied().map(
        |(network, gid, holder)| json!({"network": network, "address": show(gid), "host": holder}),
    );
    json!({
        "adapter": feed.is_fed(),
        "networks": networks.collect::<Map<String, Value>>(),
        "tenants": tenants,
        "stale": stale,
        "denied": denied.collect::<Vec<_>>(),
        "adapters": c.adapters,
        "faults": c.faults,
        "lines": c.lines,
        "refused": c.refused,
    })
}

/// The UDP ports of all hosts that are known.
fn ports(broker: &Broker) -> BTreeSet<u16> {
    let far = broker.far_tenants().map(|p| p.at.port);
    broker.policy().map.ports().into_iter().chain(far).collect()
}

/// The other hosts, a line each.
pub(super) fn hosts(daemon: &Daemon) -> impl Iterator<Item = String> + '_ {
    let silent = daemon.relaying.silent(now_ns());
    let mut all: BTreeMap<&str, (&Placed, usize)> = BTreeMap::new();
    for placed in daemon.broker.far_tenants() {
        all.entry(&placed.host).or_insert((placed, 0)).1 += 1;
    }
    all.into_iter().map(move |(host, (placed, tenants))| {
        json!({
            "host": host,
            "address": placed.at.to_string(),
            "tenants": tenants,
            "answers": !silent.contains(host),
        })
        .to_string()
    })
}

/// Counters of the traffic with other hosts.
fn wired(c: &wire::Counters) -> Value {
    json!({
        "tx_packets": count(&c.tx.0),
        "tx_bytes": count(&c.tx.1),
        "rx_packets": count(&c.rx.0),
        "rx_bytes": count(&c.rx.1),
        "bad_host": count(&c.bad_host),
        "bad_block": count(&c.bad_block),
        "bad_icrc": count(&c.bad_icrc),
        "refused": refused(&c.refused),
        "over_rate": count(&c.over_rate),
        "full": count(&c.full),
        "not_sent": count(&c.not_sent),
        "unreachable": count(&c.unreachable),
        "too_long": count(&c.too_long),
        "unsteered": count(&c.unsteered),
    })
}

fn count(n: &AtomicU64) -> Value {
    Value::from(n.load(Ordering::Relaxed))
}

/// Refused packets, by reason.
fn refused(all: &[AtomicU64; Refused::ALL.len()]) -> Value {
    let one = |&why: &Refused| (why.name().to_string(), count(&all[why as usize]));
    Refused::ALL.iter().map(one).collect::<Map<String, Value>>().into()
}

/// The sessions, a line each.
pub(super) fn sessions(daemon: &Daemon) -> impl Iterator<Item = String> + '_ {
    daemon.broker.sessions().map(|(id, s)| {
        let seen = &s.seen;
        let unnamed =
            |state| json!({"session": id, "state": state, "pid": seen.pid, "uid": seen.uid});
        let shown = match &s.state {
            SessionState::New(_) => unnamed("new"),
            SessionState::Waits(_) => unnamed("waits"),
            SessionState::Up(up) => json!({
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
                "relay": daemon.relaying.counters(id).map(relay),
                "remote": daemon.remoting.session(id).map(|(device, c)| json!({
                    "device": device,
                    "posted": count(&c.posted),
                    "refused": count(&c.refused),
                    "completed": count(&c.completed),
                    "charged": count(&c.charged),
                })),
            }),
        };
        shown.to_string()
    })
}

/// The policy's tenants, and others that have sessions; each with its number of sessions.
pub(super) fn tenants_and_sessions(broker: &Broker) -> Vec<(Tenant, usize)> {
    let mut here: BTreeMap<&str, (&Tenant, usize)> = BTreeMap::new();
    for (_, s) in broker.sessions() {
        if let SessionState::Up(up) = &s.state {
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

/// The tenants, a line each.
pub(super) fn tenants(daemon: &Daemon) -> impl Iterator<Item = String> + '_ {
    tenants_and_sessions(&daemon.broker).into_iter().map(|(t, sessions)| {
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
            "relay": daemon.relaying.tenant(&t.name).map(relay),
        })
        .to_string()
    })
}

/// The relay's counters of a session or a tenant.
fn relay(c: &Counters) -> Value {
    let named = Counters::NAMED.iter().map(|(name, _, of)| (name.to_string(), count(of(c))));
    let mut all: Map<String, Value> = named.collect();
    all.insert("refused".into(), refused(&c.refused));
    all.into()
}
