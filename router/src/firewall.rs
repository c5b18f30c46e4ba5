//! The firewall's rule that lets only the router send packets as the router.
//!
//! On the wire a tenant is a UDP source port of its host's address, so another process that sends
//! from that address to routers' ports can pose as any tenant of the host. The nftables rule drops
//! packets to these ports, unless the router's user sends them, and all that are forwarded.

use serde_json::Value;
use std::collections::BTreeSet;
use std::process::Command;

/// The rule's table, and its chains with their hooks.
const TABLE: &str = "gdrcore";
const OUTPUT: &str = "output";
const FORWARD: &str = "forward";

/// Handling of the rule at the start of the router.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Firewall {
    /// It does not check.
    Off,
    /// It checks, and logs a fault, or that it may not read the rules.
    #[default]
    Check,
    /// It starts only where the rule is in force.
    Require,
}

impl Firewall {
    /// Parses the word of an option.
    pub fn parse(word: &str) -> Option<Firewall> {
        match word {
            "off" => Some(Firewall::Off),
            "check" => Some(Firewall::Check),
            "require" => Some(Firewall::Require),
            _ => None,
        }
    }
}

/// The rule, as `nft -f` reads it. `ports`: routers' ports; `uid`: this router's user. The rule
/// replaces an earlier one.
pub fn rule(ports: &BTreeSet<u16>, uid: u32) -> String {
    let chain = |name: &str, rules: &dyn Fn(u16) -> String| {
        let rules: String = ports.iter().map(|&port| format!("    {}\n", rules(port))).collect();
        format!("  chain {name} {{\n    type filter hook {name} priority 0\n{rules}  }}\n")
    };
    let output = chain(OUTPUT, &|port| format!("udp dport {port} meta skuid != {uid} drop"));
    let forward = chain(FORWARD, &|port| format!("udp dport {port} drop"));
    // The first line makes the table if there is none, so that the second can delete it.
    let table = format!("table inet {TABLE}");
    format!("{table}\ndelete {table}\n{table} {{\n{output}{forward}}}\n")
}

/// Checks that the rule is in force. `ruleset`: the output of `nft -j list ruleset`. Another rule
/// with the same effect is not recognised.
///
/// # Errors
/// In words: what is missing.
pub fn check_ruleset(ruleset: &str, ports: &BTreeSet<u16>, uid: u32) -> Result<(), String> {
    let all: Value = serde_json::from_str(ruleset).map_err(|e| format!("nft's answer: {e}"))?;
    let of = |kind: &str| -> Vec<Value> {
        let objects = all["nftables"].as_array().into_iter().flatten();
        objects.filter_map(|o| o.get(kind).cloned()).collect()
    };
    let ours = |o: &Value| o["family"] == "inet" && o["table"] == TABLE;
    let (chains, rules) = (of("chain"), of("rule"));
    for name in [OUTPUT, FORWARD] {
        let is = |c: &Value| ours(c) && c["name"] == name && c["hook"] == name;
        if !chains.iter().any(is) {
            return Err(format!("there is no chain {name} in a table inet {TABLE}"));
        }
        let own = |r: &&Value| ours(r) && r["chain"] == name;
        let drops = |r: &Value| r["expr"].as_array().is_some_and(|e| e.last() == Some(&drop_it()));
        if !rules.iter().filter(own).all(drops) {
            return Err(format!(
                "chain {name} of table inet {TABLE} has a rule that does not drop"
            ));
        }
        for &port in ports {
            let wanted = expected(name, port, uid);
            if !rules.iter().filter(own).any(|r| r["expr"] == wanted) {
                return Err(format!("chain {name} of table inet {TABLE} lacks UDP port {port}"));
            }
        }
    }
    Ok(())
}

fn drop_it() -> Value {
    serde_json::json!({ "drop": null })
}

/// The rule of a chain, in nft's JSON.
fn expected(chain: &str, port: u16, uid: u32) -> Value {
    let dport = serde_json::json!({"match": {"op": "==", "left":
        {"payload": {"protocol": "udp", "field": "dport"}}, "right": port}});
    let user = serde_json::json!({"match": {"op": "!=", "left":
        {"meta": {"key": "skuid"}}, "right": uid}});
    match chain {
        OUTPUT => Value::from(vec![dport, user, drop_it()]),
        _ => Value::from(vec![dport, drop_it()]),
    }
}

/// Asks nft whether the rule is in force.
///
/// # Errors
/// In words: what is missing, or that nft lacks CAP_NET_ADMIN.
pub fn check(ports: &BTreeSet<u16>, uid: u32) -> Result<(), String> {
    let asked = Command::new("nft").args(["-j", "list", "ruleset"]).output();
    let asked = asked.map_err(|e| format!("it can't be told: nft: {e}"))?;
    if !asked.status.success() {
        let why = String::from_utf8_lossy(&asked.stderr);
        let why = why.lines().next().unwrap_or("no reason").trim().to_string();
        return Err(format!("it can't be told: nft, which takes CAP_NET_ADMIN: {why}"));
    }
    check_ruleset(&String::from_utf8_lossy(&asked.stdout), ports, uid)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rule for port 4791 and user 1000, as nft 1.0.6 prints it.
    const IN_FORCE: &str = r#"{"nftables": [
        {"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
        {"table": {"family": "inet", "name": "gdrcore", "handle": 1}},
        {"chain": {"family": "inet", "table": "gdrcore", "name": "output", "handle": 1,
            "type": "filter", "hook": "output", "prio": 0, "policy": "accept"}},
        {"chain": {"family": "inet", "table": "gdrcore", "name": "forward", "handle": 2,
            "type": "filter", "hook": "forward", "prio": 0, "policy": "accept"}},
        {"rule": {"family": "inet", "table": "gdrcore", "chain": "output", "handle": 3, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}},
                "right": 4791}},
            {"match": {"op": "!=", "left": {"meta": {"key": "skuid"}}, "right": 1000}},
            {"drop": null}]}},
        {"rule": {"family": "inet", "table": "gdrcore", "chain": "forward", "handle": 4, "expr": [
            {"match": {"op": "==", "left": {"payload": {"protocol": "udp", "field": "dport"}},
                "right": 4791}},
            {"drop": null}]}}]}"#;

    #[test]
    fn the_rule_is_known_and_nothing_less() {
        let check = |text: &str, ports: &[u16], uid| {
            check_ruleset(text, &ports.iter().copied().collect(), uid)
        };
        assert_eq!(check(IN_FORCE, &[4791], 1000), Ok(()));
        assert!(check(IN_FORCE, &[4791], 1001).unwrap_err().contains("output"), "another user's");
        assert!(check(IN_FORCE, &[4791, 4793], 1000).unwrap_err().contains("lacks UDP port 4793"));
        assert!(check("{\"nftables\": []}", &[4791], 1000)
            .unwrap_err()
            .contains("no chain output"));
        assert!(check("nothing", &[4791], 1000).unwrap_err().contains("nft's answer"));
        for (from, to, what) in [
            ("\"hook\": \"output\"", "\"hook\": \"input\"", "no chain output"),
            ("\"hook\": \"forward\"", "\"hook\": \"input\"", "no chain forward"),
            ("\"family\": \"inet\"", "\"family\": \"ip6\"", "no chain output"),
            ("\"drop\": null", "\"accept\": null", "does not drop"),
            ("\"op\": \"!=\"", "\"op\": \"==\"", "chain output of table inet gdrcore lacks"),
            ("\"protocol\": \"udp\"", "\"protocol\": \"tcp\"", "lacks UDP port 4791"),
        ] {
            // Changes the text in every rule.
            let fault = check(&IN_FORCE.replace(from, to), &[4791], 1000).unwrap_err();
            assert!(fault.contains(what), "{from}: {fault}");
        }
    }

    #[test]
    fn the_rule_names_every_port() {
        let text = rule(&[4791, 4793].into(), 7);
        for line in [
            "udp dport 4791 meta skuid != 7 drop",
            "udp dport 4793 meta skuid != 7 drop",
            "    udp dport 4793 drop",
            "type filter hook forward priority 0",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
