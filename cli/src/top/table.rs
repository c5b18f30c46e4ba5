//! The ways to show devices: a table, JSON, and the text of Prometheus.

use super::snapshot::{Changes, Counts, Device, Fill, Qp};
use serde_json::{json, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// Counters of which a message has one: those of the requester, and `rdma_recvs` of the responder.
const MESSAGES: [&str; 5] =
    ["rdma_sends", "rdma_recvs", "rdma_writes", "rdma_reads", "rdma_atomics"];
/// The columns of troubles: their names, and the counters that they add up.
const TROUBLES: [(&str, &[&str]); 4] = [
    ("RETR", &["retransmitted_pkts"]),
    ("TMO", &["retry_timeouts"]),
    ("RNR", &["rcvd_rnr_err", "send_rnr_err"]),
    ("WIN", &["window_closed"]),
];

fn sum<N: Copy + std::iter::Sum<N>>(counts: &Counts<N>, names: &[&str]) -> N {
    names.iter().filter_map(|name| counts.get(*name).copied()).sum()
}

/// What a table says of a device's process.
fn header(d: &Device, changes: &Changes) -> String {
    let mut line = format!("{} {}", d.pid, d.program);
    if !d.address.is_empty() {
        let _ = write!(line, "  soft:{}", d.address);
    }
    if let Some(process) = &d.process {
        let _ = write!(line, "  {}", process.state_word());
    }
    if let Some(cpu) = changes.cpu {
        let _ = write!(line, ", CPU {:.0} %", cpu * 100.0);
    }
    for (name, share) in changes.helpers.iter().filter(|(_, share)| *share > 0.0) {
        let _ = write!(line, ", {name} {:.0} %", share * 100.0);
    }
    let counted = d.objects.iter().filter(|(_, n)| **n > 0);
    let _ = write!(line, "  {}", counted.fold(String::new(), |s, (k, n)| s + &format!("{n} {k} ")));
    if !d.is_answer {
        let _ = write!(line, "  (does not poll: last heard {:.1} s ago)", d.age_s());
    }
    line.trim_end().to_string()
}

fn fill(f: Fill) -> String {
    if f.1 == 0 {
        return "-".into();
    }
    format!("{}/{}", f.0, f.1)
}

fn row(qp: &Qp, rates: &Counts<f64>) -> String {
    let peer = match qp.peer.0.is_empty() {
        true => "-".into(),
        false => format!("{}/{}", qp.peer.0, qp.peer.1),
    };
    let rate = |names: &[&str]| sum(rates, names);
    let mut line = format!(
        "  {:<9} {:<11} {:<5} {:<22} {:<8} {:>9.1} {:>9.1} {:>9.0}",
        qp.qpn,
        qp.kind,
        qp.state,
        peer,
        if qp.path.is_empty() { "-" } else { &qp.path },
        rate(&["sent_bytes"]) / 1e6,
        rate(&["rcvd_bytes"]) / 1e6,
        rate(&MESSAGES),
    );
    for (_, counters) in TROUBLES {
        let _ = write!(line, " {:>6}", sum(&qp.counters, counters));
    }
    let _ = write!(line, " {:>9} {:>9}", fill(qp.sq), fill(qp.rq));
    if !qp.cause.is_empty() {
        let _ = write!(line, "\n            {}", qp.cause);
    }
    line
}

/// A table. `clears`: it replaces the one on the screen.
pub fn text(devices: &[Device], changes: &[Changes], clears: bool) -> String {
    let mut text = String::from(if clears { "\x1b[H\x1b[J" } else { "" });
    if devices.is_empty() {
        text += "no soft device of this user\n";
    }
    for (d, c) in devices.iter().zip(changes) {
        let _ = writeln!(text, "{}", header(d, c));
        if !d.qps.is_empty() {
            let _ = write!(
                text,
                "  {:<9} {:<11} {:<5} {:<22} {:<8} {:>9} {:>9} {:>9}",
                "QPN", "TYPE", "STATE", "PEER/QPN", "PATH", "TX MB/s", "RX MB/s", "MSG/s"
            );
            for (name, _) in TROUBLES {
                let _ = write!(text, " {name:>6}");
            }
            let _ = writeln!(text, " {:>9} {:>9}", "SQ", "RQ");
        }
        let none = Counts::new();
        for (i, qp) in d.qps.iter().enumerate() {
            let _ = writeln!(text, "{}", row(qp, c.qps.get(i).unwrap_or(&none)));
        }
        // An empty CQ says nothing.
        let full = d.cqs.iter().filter(|cq| cq.0 > 0).map(|&cq| fill(cq)).collect::<Vec<_>>();
        if !full.is_empty() {
            let _ = writeln!(text, "  completions that wait: {}", full.join(" "));
        }
    }
    text
}

fn queue(f: Fill) -> Value {
    json!({ "used": f.0, "size": f.1 })
}

/// One JSON object.
pub fn json(devices: &[Device], changes: &[Changes]) -> Value {
    let of_qp = |qp: &Qp, rates: Option<&Counts<f64>>| {
        json!({
            "qpn": qp.qpn, "type": qp.kind, "state": qp.state, "peer": qp.peer.0,
            "peer_qpn": qp.peer.1, "path": qp.path, "sq": queue(qp.sq), "rq": queue(qp.rq),
            "counters": qp.counters, "rates": rates, "cause": qp.cause,
        })
    };
    let of_device = |d: &Device, c: &Changes| {
        let qps = d.qps.iter().enumerate().map(|(i, qp)| of_qp(qp, c.qps.get(i)));
        let helpers = c.helpers.iter().map(|(name, cpu)| json!({ "name": name, "cpu": cpu }));
        json!({
            "pid": d.pid, "program": d.program, "address": d.address, "block": d.block,
            "answers": d.is_answer, "age_s": d.age_s(),
            "process": d.process.as_ref().map(|p| p.state_word()),
            "cpu": c.cpu, "helpers": helpers.collect::<Vec<_>>(), "objects": d.objects,
            "counters": d.counters, "rates": c.counters, "qps": qps.collect::<Vec<_>>(),
            "cqs": d.cqs.iter().map(|&cq| queue(cq)).collect::<Vec<_>>(),
        })
    };
    let all = devices.iter().zip(changes).map(|(d, c)| of_device(d, c)).collect::<Vec<_>>();
    json!({ "devices": all })
}

/// What Prometheus is told of one device, router or session.
pub struct Source<'a> {
    /// Names and values, which this writes as labels.
    pub labels: Vec<(&'static str, String)>,
    /// Values by the names of their families.
    pub gauges: Vec<(String, u64)>,
    /// What the names of its counters begin with, and their values; `None`: it has told none.
    pub counters: Option<(&'static str, &'a Counts<u64>)>,
}

/// A device as a source: a gauge for each kind of its objects, and its counters.
pub fn source(d: &Device) -> Source<'_> {
    let labels = [
        ("pid", d.pid.to_string()),
        ("program", d.program.clone()),
        ("device", format!("soft:{}", d.address)),
        ("block", d.block.clone()),
    ];
    let waiting = d.cqs.iter().map(|cq| cq.0).sum();
    let mut gauges = vec![
        ("device_answers".into(), u64::from(d.is_answer)),
        ("device_completions_waiting".into(), waiting),
    ];
    gauges.extend(d.objects.iter().map(|(object, n)| (format!("device_{object}s"), *n)));
    let counters = (!d.address.is_empty()).then_some(("", &d.counters));
    Source { labels: labels.into(), gauges, counters }
}

/// The text of Prometheus, version 0.0.4: a family for each gauge and each counter. A counter that
/// one of several sources has not named is 0.
pub fn prometheus(sources: &[Source<'_>]) -> String {
    let mut families: BTreeMap<(String, &str), Vec<(&Source<'_>, u64)>> = BTreeMap::new();
    let counters = || sources.iter().filter_map(|s| Some((s, s.counters?)));
    for source in sources {
        for (name, value) in &source.gauges {
            families.entry((name.clone(), "gauge")).or_default().push((source, *value));
        }
    }
    let names: BTreeSet<_> =
        counters().flat_map(|(_, (of, all))| all.keys().map(move |k| (of, k))).collect();
    for (of, name) in names {
        let series = counters().filter(|(_, (other, _))| *other == of);
        let series = series.map(|(s, (_, all))| (s, all.get(name).copied().unwrap_or(0)));
        families.insert((format!("{of}{name}_total"), "counter"), series.collect());
    }
    let mut text = String::new();
    for ((name, kind), series) in families {
        let _ = writeln!(text, "# TYPE gdrcore_{name} {kind}");
        for (source, value) in series {
            let quoted = |(name, value): &(&str, String)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"");
                format!("{name}=\"{}\"", value.replace(char::is_control, "?"))
            };
            let labels: Vec<_> = source.labels.iter().map(quoted).collect();
            let _ = writeln!(text, "gdrcore_{name}{{{}}} {value}", labels.join(","));
        }
    }
    text
}
