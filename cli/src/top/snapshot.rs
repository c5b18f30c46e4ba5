//! What devices said at one time, and what has changed since.

use super::process::Process;
use gdrcore_net::status::{pid_namespace, Status};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::SystemTime;

/// Counters by name, or their changes a second.
pub type Counts<N> = BTreeMap<String, N>;

/// Words whose value is the rest of the line.
const LAST: [&str; 2] = ["program", "cause"];
/// Numbers of a line that are no counters.
const FACTS: [&str; 8] = ["qp", "cq", "srq", "mr", "mw", "pid", "qpn", "peer_qpn"];

/// A line: what it is of, and its words.
struct Line<'t> {
    of: &'t str,
    words: BTreeMap<&'t str, &'t str>,
}

impl<'t> Line<'t> {
    fn parse(text: &'t str) -> Line<'t> {
        let (of, mut rest) = text.split_once(' ').unwrap_or((text, ""));
        let mut words = BTreeMap::new();
        while let Some((name, value)) = rest.split_once('=') {
            let (value, behind) = match value.split_once(' ') {
                Some(parts) if !LAST.contains(&name) => parts,
                _ => (value, ""),
            };
            words.insert(name, value);
            rest = behind;
        }
        Line { of, words }
    }

    fn word(&self, name: &str) -> &'t str {
        self.words.get(name).copied().unwrap_or_default()
    }

    /// A word for a terminal, which no control character reaches.
    fn text(&self, name: &str) -> String {
        self.word(name).replace(char::is_control, "?")
    }

    fn number(&self, name: &str) -> u64 {
        self.words.get(name).and_then(|w| w.parse().ok()).unwrap_or(0)
    }

    /// A word such as `3/16`.
    fn fill(&self, name: &str) -> Fill {
        let parts = self.words.get(name).and_then(|w| w.split_once('/'));
        let number = |w: &str| w.parse().unwrap_or(0);
        parts.map_or(Fill(0, 0), |(used, size)| Fill(number(used), number(size)))
    }

    fn counters(&self) -> Counts<u64> {
        let is_name = |k: &str| k.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'));
        let named = self.words.iter().filter(|(k, _)| is_name(k) && !FACTS.contains(k));
        named.filter_map(|(k, v)| Some((k.to_string(), v.parse().ok()?))).collect()
    }
}

/// How full a queue is: entries, and its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fill(pub u64, pub u64);

/// A queue pair.
#[derive(Clone, Debug)]
pub struct Qp {
    pub qpn: u64,
    pub kind: String,
    pub state: String,
    /// Address and QPN; empty: none.
    pub peer: (String, u64),
    pub path: String,
    pub sq: Fill,
    pub rq: Fill,
    pub counters: Counts<u64>,
    /// Why it failed; empty: it has not.
    pub cause: String,
}

/// A device of a process.
#[derive(Clone, Debug)]
pub struct Device {
    pub place: PathBuf,
    /// Its first block of QPNs, which tells devices of one address apart.
    pub block: String,
    pub pid: u64,
    pub program: String,
    /// Empty: the device has never answered.
    pub address: String,
    pub is_answer: bool,
    /// When it last said anything.
    pub written: SystemTime,
    pub process: Option<Process>,
    /// How many objects of each kind it has.
    pub objects: Counts<u64>,
    pub counters: Counts<u64>,
    pub qps: Vec<Qp>,
    pub cqs: Vec<Fill>,
}

impl Device {
    /// Reads what a device said.
    pub fn from_status(status: &Status) -> Device {
        let block = status.place.file_name().unwrap_or_default().to_string_lossy();
        let mut device = Device {
            place: status.place.clone(),
            block: block.replace(char::is_control, "?"),
            pid: 0,
            program: String::new(),
            address: String::new(),
            is_answer: status.is_answer,
            written: status.written,
            process: None,
            objects: Counts::new(),
            counters: Counts::new(),
            qps: Vec::new(),
            cqs: Vec::new(),
        };
        for line in status.text.lines().map(Line::parse) {
            match line.of {
                "process" => {
                    (device.pid, device.program) = (line.number("pid"), line.text("program"));
                    if line.number("pid_ns") == pid_namespace() {
                        device.process = Process::find(device.pid, line.word("program"));
                    }
                }
                "device" => {
                    device.address = line.text("address");
                    device.counters = line.counters();
                    device.objects = ["qp", "cq", "srq", "mr", "mw"]
                        .map(|name| (name.to_string(), line.number(name)))
                        .into();
                }
                "qp" => device.qps.push(Qp {
                    qpn: line.number("qpn"),
                    kind: line.text("type"),
                    state: line.text("state"),
                    peer: (line.text("peer"), line.number("peer_qpn")),
                    path: line.text("path"),
                    sq: line.fill("sq"),
                    rq: line.fill("rq"),
                    counters: line.counters(),
                    cause: line.text("cause"),
                }),
                "cq" => device.cqs.push(line.fill("entries")),
                _ => {}
            }
        }
        device
    }

    /// How long ago it last said anything.
    pub fn age_s(&self) -> f64 {
        self.written.elapsed().map_or(0.0, |age| age.as_secs_f64())
    }
}

/// Changes a second between two looks: of a device, and of each queue pair, in the device's order.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    pub counters: Counts<f64>,
    pub qps: Vec<Counts<f64>>,
    /// Share of a core that the process has used, and each of its helper threads.
    pub cpu: Option<f64>,
    pub helpers: Vec<(String, f64)>,
}

/// The changes of each device since an earlier look; none of one that is new or did not answer.
pub fn changes(before: &[Device], now: &[Device]) -> Vec<Changes> {
    now.iter()
        .map(|d| {
            let old = before.iter().find(|b| b.place == d.place && b.pid == d.pid);
            old.map(|old| changes_of(old, d)).unwrap_or_default()
        })
        .collect()
}

/// The changes a second of counters that have grown.
pub fn rates(old: &Counts<u64>, new: &Counts<u64>, seconds: f64) -> Counts<f64> {
    let old = |name: &str| old.get(name).copied().unwrap_or(0);
    // What is smaller is of another device of the process, at the same place.
    let all = new.iter().filter_map(|(name, n)| Some((name, n.checked_sub(old(name))?)));
    all.filter(|(_, n)| *n > 0).map(|(name, n)| (name.clone(), n as f64 / seconds)).collect()
}

fn changes_of(before: &Device, now: &Device) -> Changes {
    let mut changes = Changes::default();
    if let (Some(old), Some(new)) = (&before.process, &now.process) {
        (changes.cpu, changes.helpers) = new.usage_since(old);
    }
    let seconds = now.written.duration_since(before.written).map_or(0.0, |d| d.as_secs_f64());
    // What it said before it was asked has no counters.
    if seconds <= 0.0 || before.address.is_empty() {
        return changes;
    }
    changes.counters = rates(&before.counters, &now.counters, seconds);
    changes.qps = now
        .qps
        .iter()
        .map(|qp| {
            let old = before.qps.iter().find(|old| old.qpn == qp.qpn);
            rates(old.map_or(&Counts::new(), |old| &old.counters), &qp.counters, seconds)
        })
        .collect();
    changes
}
