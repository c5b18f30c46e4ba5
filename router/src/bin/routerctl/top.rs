//! The rates of each tenant, from two reads of the router's counters.

use super::{ask, print};
use serde_json::{json, Value};
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;
use std::time::{Duration, Instant};

/// The pause between two reads.
const PAUSE: Duration = Duration::from_secs(1);

/// The form of the output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Form {
    /// A JSON object a line.
    pub(super) json: bool,
    /// Print once.
    pub(super) once: bool,
}

/// Prints the rates once, or every second until a signal ends the program.
pub(super) fn run(socket: &Path, form: Form) -> Result<(), String> {
    let read = || {
        let mut tenants = Vec::new();
        ask(socket, &json!({"do": "tenants"}), |tenant| {
            tenants.push(tenant);
            Ok(())
        })?;
        Ok::<_, String>((Instant::now(), tenants))
    };
    let mut before = read()?;
    loop {
        std::thread::sleep(PAUSE);
        let after = read()?;
        let seconds = (after.0 - before.0).as_secs_f64();
        let rows: Vec<Value> = after
            .1
            .iter()
            .map(|tenant| {
                let earlier = before.1.iter().find(|t| t["tenant"] == tenant["tenant"]);
                row(earlier.unwrap_or(&Value::Null), tenant, seconds)
            })
            .collect();
        print(&if form.json { lines(&rows) } else { table(&rows) })?;
        if form.once {
            return Ok(());
        }
        before = after;
    }
}

/// One tenant.
fn row(before: &Value, after: &Value, seconds: f64) -> Value {
    let sum = |of: &Value, keys: &[&str]| -> u64 {
        keys.iter()
            .map(|key| match &of["relay"][key] {
                Value::Object(all) => all.values().filter_map(Value::as_u64).sum(),
                n => n.as_u64().unwrap_or(0),
            })
            .sum()
    };
    // After a restart of the router the counters begin at 0.
    let rate = |keys: &[&str]| {
        let n = sum(after, keys).saturating_sub(sum(before, keys));
        (n as f64 / seconds).round() as u64
    };
    json!({
        "tenant": after["tenant"],
        "sessions": after["sessions"],
        "tx_bytes_per_s": rate(&["tx_bytes"]),
        "rx_bytes_per_s": rate(&["rx_bytes"]),
        "tx_packets_per_s": rate(&["tx_packets"]),
        "rx_packets_per_s": rate(&["rx_packets"]),
        "dropped_per_s": rate(&["full", "over_rate", "unpaid", "refused"]),
        "tx_rate": after["tx_rate"],
        "rx_rate": after["rx_rate"],
        "weight": after["weight"],
    })
}

fn lines(rows: &[Value]) -> String {
    rows.iter().map(|row| format!("{row}\n")).collect()
}

/// A table. On a terminal it replaces the previous one.
fn table(rows: &[Value]) -> String {
    let mut out = String::new();
    if std::io::stdout().is_terminal() {
        out.push_str("\x1b[H\x1b[J");
    }
    let _ = writeln!(
        out,
        "{:<24} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>10} {:>10} {:>6}",
        "TENANT",
        "SESSIONS",
        "TX/s",
        "RX/s",
        "TX pkt/s",
        "RX pkt/s",
        "DROPS/s",
        "TX LIMIT",
        "RX LIMIT",
        "WEIGHT"
    );
    for row in rows {
        let n = |key: &str| row[key].as_u64().unwrap_or(0);
        let limit = |key: &str| row[key].as_u64().map_or("-".into(), short);
        let _ = writeln!(
            out,
            "{:<24} {:>8} {:>10} {:>10} {:>9} {:>9} {:>9} {:>10} {:>10} {:>6}",
            row["tenant"].as_str().unwrap_or("?"),
            n("sessions"),
            short(n("tx_bytes_per_s")),
            short(n("rx_bytes_per_s")),
            n("tx_packets_per_s"),
            n("rx_packets_per_s"),
            n("dropped_per_s"),
            limit("tx_rate"),
            limit("rx_rate"),
            n("weight"),
        );
    }
    out
}

/// Bytes with a unit.
fn short(bytes: u64) -> String {
    let (mut n, mut unit) = (bytes as f64, "B");
    for next in ["kB", "MB", "GB", "TB"] {
        if n < 1000.0 {
            break;
        }
        (n, unit) = (n / 1000.0, next);
    }
    if unit == "B" {
        format!("{bytes}B")
    } else {
        format!("{n:.1}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_differences_by_time() {
        let tenant = |bytes: u64, full: u64, policy: u64| {
            json!({
                "tenant": "blue", "sessions": 2, "tx_rate": 1_000_000, "rx_rate": null, "weight": 3,
                "relay": {
                    "tx_bytes": bytes, "tx_packets": bytes / 1000, "rx_bytes": 0, "full": full,
                    "over_rate": 1, "refused": {"policy": policy, "rate": 1},
                },
            })
        };
        let r = row(&tenant(5000, 1, 0), &tenant(1_005_000, 3, 4), 0.5);
        assert_eq!(r["tx_bytes_per_s"], 2_000_000);
        assert_eq!((&r["dropped_per_s"], &r["sessions"]), (&json!(12), &json!(2)));
        let text = table(std::slice::from_ref(&r));
        for word in ["blue", "2.0MB", "2000", "1.0MB", "-"] {
            assert!(text.split_whitespace().any(|w| w == word), "{word} {text}");
        }
        assert_eq!(lines(&[r.clone(), r]).lines().count(), 2);
        // A tenant that had no session before, and counters that a restart has set to 0.
        let none = json!({"tenant": "blue", "sessions": 0, "relay": null});
        assert_eq!(row(&Value::Null, &none, 1.0)["tx_bytes_per_s"], 0);
        assert_eq!(row(&tenant(5000, 0, 0), &tenant(0, 0, 0), 1.0)["tx_bytes_per_s"], 0);
    }

    #[test]
    fn bytes_are_short() {
        let texts = [0, 999, 1000, 1_550_000, 2_000_000_000].map(short);
        assert_eq!(texts, ["0B", "999B", "1.0kB", "1.6MB", "2.0GB"]);
    }
}
