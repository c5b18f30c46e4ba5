//! The calls of etcd's API that the adapter needs, over the JSON gateway of each member (HTTP/1.1,
//! keys and values in base64, 64-bit numbers as texts). If one member does not answer, the call
//! goes to the next one.

use base64::prelude::{Engine, BASE64_STANDARD};
use serde_json::{json, Value};
use std::fmt;
use std::io::{BufRead, BufReader};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use ureq::Agent;

/// Time limit of a member's answer.
const ANSWER: Duration = Duration::from_secs(2);
/// A watch is repeated after this time, because a member that hangs sends no error.
const WATCH: Duration = Duration::from_secs(5);
/// Longest answer. A page of a range is far shorter.
const ANSWER_MAX: u64 = 64 << 20;
/// Keys of one page of a range.
const PAGE: usize = 2000;

/// A call has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// No member answers, or none that has a leader.
    Down(String),
    /// The store refuses the call.
    Refused(String),
    /// The revision was compacted, so the changes since then are lost.
    Compacted,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Down(why) => write!(f, "etcd does not answer: {why}"),
            Error::Refused(why) => write!(f, "etcd refuses: {why}"),
            Error::Compacted => f.write_str("etcd has compacted the revision"),
        }
    }
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    pub key: String,
    pub value: Vec<u8>,
    /// The revision of its last change.
    pub revision: i64,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Put(Pair),
    Delete(String),
}

/// The condition of a put or a delete.
#[derive(Clone, Copy, Debug)]
pub enum If<'v> {
    /// The key does not exist.
    Absent,
    /// The key was last changed in this revision.
    Revision(i64),
    /// The key has this value.
    Value(&'v [u8]),
}

/// A cluster.
pub struct Etcd {
    /// `http://host:port` of each member.
    members: Vec<String>,
    /// The member that answered last.
    at: AtomicUsize,
    agent: Agent,
}

fn text(bytes: impl AsRef<[u8]>) -> String {
    BASE64_STANDARD.encode(bytes)
}

fn bytes(v: &Value) -> Vec<u8> {
    v.as_str().and_then(|t| BASE64_STANDARD.decode(t).ok()).unwrap_or_default()
}

/// A number, which the gateway writes as a text; 0 is left out.
fn number(v: &Value) -> i64 {
    v.as_str().and_then(|t| t.parse().ok()).or(v.as_i64()).unwrap_or(0)
}

/// The first key behind all that begin with a text.
fn prefix_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    // Prefixes are ASCII, and not empty.
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

/// A pair of an answer; `None`: its key is none of ours.
fn pair(kv: &Value) -> Option<Pair> {
    let key = String::from_utf8(bytes(&kv["key"])).ok().filter(|key| !key.is_empty())?;
    Some(Pair { key, value: bytes(&kv["value"]), revision: number(&kv["mod_revision"]) })
}

/// The error in an answer, or within a stream.
fn fault(answer: &Value) -> Error {
    let stream = answer.get("error").filter(|e| e.is_object()).unwrap_or(answer);
    let words = stream["message"].as_str().or(stream["error"].as_str()).unwrap_or("no reason");
    let code = stream["code"].as_i64().or(stream["grpc_code"].as_i64()).unwrap_or(0);
    // DeadlineExceeded and Unavailable: another member may do better.
    let is_down = matches!(code, 4 | 14) || words.contains("no leader");
    match is_down {
        true => Error::Down(words.into()),
        false => Error::Refused(words.into()),
    }
}

impl Etcd {
    /// A cluster with these members.
    pub fn new(members: Vec<String>) -> Etcd {
        let config = Agent::config_builder()
            .timeout_global(Some(ANSWER))
            .http_status_as_error(false)
            .max_redirects(0)
            .build();
        Etcd { members, at: AtomicUsize::new(0), agent: config.into() }
    }

    /// Calls one member after the other, the one that answered last first.
    fn ask_members<T>(&self, mut call: impl FnMut(&str) -> Result<T, Error>) -> Result<T, Error> {
        let first = self.at.load(Ordering::Relaxed);
        let mut last = Error::Down("no member is named".into());
        for k in 0..self.members.len() {
            let n = (first + k) % self.members.len();
            match call(&self.members[n]) {
                Err(Error::Down(why)) => last = Error::Down(format!("{}: {why}", self.members[n])),
                other => {
                    self.at.store(n, Ordering::Relaxed);
                    return other;
                }
            }
        }
        Err(last)
    }

    fn call(&self, path: &str, request: &Value) -> Result<Value, Error> {
        let body = request.to_string();
        let down = |e: &dyn fmt::Display| Error::Down(e.to_string());
        self.ask_members(|member| {
            let mut answer = self
                .agent
                .post(format!("{member}/v3/{path}"))
                .header("content-type", "application/json")
                .send(&body)
                .map_err(|e| down(&e))?;
            let text = answer.body_mut().with_config().limit(ANSWER_MAX).read_to_vec();
            let value: Value = serde_json::from_slice(&text.map_err(|e| down(&e))?)
                .map_err(|e| Error::Down(format!("no answer of etcd: {e}")))?;
            match answer.status().is_success() && value.get("error").is_none() {
                true => Ok(value),
                false => Err(fault(&value)),
            }
        })
    }

    /// Passes all keys that begin with a text to `each`, page by page. Returns the revision of all
    /// pages.
    pub fn range(&self, prefix: &str, mut each: impl FnMut(Pair)) -> Result<i64, Error> {
        let (mut from, end) = (prefix.as_bytes().to_vec(), prefix_end(prefix));
        let mut revision = 0;
        loop {
            let answer = self.call(
                "kv/range",
                &json!({
                    "key": text(&from), "range_end": text(&end),
                    "limit": PAGE.to_string(), "revision": revision.to_string(),
                }),
            );
            let answer = answer.map_err(|e| match e {
                Error::Refused(why) if why.contains("compacted") => Error::Compacted,
                other => other,
            })?;
            if revision == 0 {
                revision = number(&answer["header"]["revision"]);
                if revision <= 0 {
                    return Err(Error::Down("an answer without a revision".into()));
                }
            }
            let none = Vec::new();
            let kvs = answer["kvs"].as_array().unwrap_or(&none);
            kvs.iter().filter_map(pair).for_each(&mut each);
            match kvs.last() {
                Some(last) if answer["more"] == true => {
                    let last = bytes(&last["key"]);
                    if last < from {
                        return Err(Error::Refused("a page of what was told before".into()));
                    }
                    from = last;
                    from.push(0);
                }
                _ => return Ok(revision),
            }
        }
    }

    /// Whether a majority of the cluster answers.
    pub fn probe(&self, key: &str) -> Result<(), Error> {
        self.call("kv/range", &json!({"key": text(key), "count_only": true})).map(drop)
    }

    /// A lease of so many seconds.
    pub fn grant(&self, seconds: u64) -> Result<i64, Error> {
        let answer = self.call("lease/grant", &json!({"TTL": seconds.to_string()}))?;
        match number(&answer["ID"]) {
            0 => Err(Error::Refused("a lease without a number".into())),
            id => Ok(id),
        }
    }

    /// Renews a lease. False: it has ended.
    pub fn keep(&self, lease: i64) -> Result<bool, Error> {
        let answer = self.call("lease/keepalive", &json!({"ID": lease.to_string()}))?;
        Ok(number(&answer["result"]["TTL"]) > 0)
    }

    /// Puts a key under a lease, or deletes it (`None`), if the condition holds. The inner `Err`
    /// means that it did not hold, and has the present key, if there is one.
    pub fn change(
        &self,
        key: &str,
        value: Option<(&[u8], i64)>,
        on: If<'_>,
    ) -> Result<Result<(), Option<Pair>>, Error> {
        let name = text(key);
        let compare = match on {
            If::Absent => json!({"key": name, "target": "CREATE", "create_revision": "0"}),
            If::Revision(r) => json!({"key": name, "target": "MOD", "mod_revision": r.to_string()}),
            If::Value(v) => json!({"key": name, "target": "VALUE", "value": text(v)}),
        };
        let success = match value {
            Some((value, lease)) => json!({"request_put":
                {"key": name, "value": text(value), "lease": lease.to_string()}}),
            None => json!({"request_delete_range": {"key": name}}),
        };
        let answer = self.call(
            "kv/txn",
            &json!({
                "compare": [compare],
                "success": [success],
                "failure": [{"request_range": {"key": name}}],
            }),
        )?;
        if answer["succeeded"] == true {
            return Ok(Ok(()));
        }
        let there = &answer["responses"][0]["response_range"]["kvs"][0];
        Ok(Err(if there.is_null() { None } else { pair(there) }))
    }

    /// Passes the changes of keys that begin with a text, from a revision on, to `each`. Ends if
    /// `each` returns false, the member ends the stream or the time is up. Returns the revision
    /// from which to go on.
    ///
    /// # Errors
    /// Compacted, or no stream. The changes before the error count.
    pub fn watch(
        &self,
        prefix: &str,
        from: i64,
        mut each: impl FnMut(Change) -> bool,
    ) -> Result<i64, Error> {
        let request = json!({"create_request": {
            "key": text(prefix), "range_end": text(prefix_end(prefix)),
            "start_revision": from.to_string(), "progress_notify": true,
        }})
        .to_string();
        let answer = self.ask_members(|member| {
            self.agent
                .post(format!("{member}/v3/watch"))
                .header("content-type", "application/json")
                // A member without a leader would send no changes: ask it to end the watch instead.
                .header("grpc-metadata-hasleader", "true")
                .config()
                .timeout_global(Some(WATCH))
                .build()
                .send(&request)
                .map_err(|e| Error::Down(e.to_string()))
        })?;
        let mut next = from;
        let body = answer.into_body().into_with_config().limit(ANSWER_MAX).reader();
        for line in BufReader::new(body).split(b'\n') {
            // The time is up or the member is gone: the caller finds out which.
            let Ok(line) = line else { break };
            let Ok(value) = serde_json::from_slice::<Value>(&line) else { break };
            let Some(result) = value.get("result") else { return Err(fault(&value)) };
            if number(&result["compact_revision"]) > 0 {
                return Err(Error::Compacted);
            }
            if result["canceled"] == true {
                break;
            }
            let none = Vec::new();
            let events = result["events"].as_array().unwrap_or(&none);
            for event in events {
                next = next.max(number(&event["kv"]["mod_revision"]) + 1);
                let Some(pair) = pair(&event["kv"]) else { continue };
                let change = match event["type"] == "DELETE" {
                    true => Change::Delete(pair.key),
                    false => Change::Put(pair),
                };
                if !each(change) {
                    return Ok(next);
                }
            }
            if events.is_empty() && result["created"] != true {
                next = next.max(number(&result["header"]["revision"]) + 1);
            }
        }
        Ok(next)
    }

    /// The next call goes to another member first.
    pub fn turn_away(&self) {
        self.at.fetch_add(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
