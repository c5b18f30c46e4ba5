//! The admin socket: one JSON object a line, for root and the router's own user.
//!
//! | request | answer |
//! |---|---|
//! | `{"do":"status"}` | the router: version, process, policy file, how many sessions |
//! | `{"do":"sessions"}` | a line for each session |
//! | `{"do":"tenants"}` | a line for each tenant |
//! | `{"do":"reload"}` | nothing, or what is wrong with the file |
//! | `{"do":"set","tenant":"blue","limits":{"tx_rate":"1Gbit"}}` | nothing, or what is wrong |
//! | `{"do":"drop","session":7}` | nothing, or that there is none |
//! | `{"do":"drain","for_ms":60000}` | nothing |
//!
//! Each answer ends with a line `{"done":true}` or `{"error":"..."}`.

use super::sys::{self, Epoll};
use crate::broker::SessionId;
use gdrcore_net::rights::Foreign;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;

/// Longest request.
const LINE_MAX: usize = 4096;

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The state of the router.
    Status,
    /// Its sessions.
    Sessions,
    /// Its tenants.
    Tenants,
    /// The other hosts.
    Hosts,
    /// Read the policy again.
    Reload,
    /// Change the limits of a tenant: its name, keys and values.
    Set(String, Vec<(String, String)>),
    /// End a session.
    Drop(SessionId),
    /// Refuse new sessions and routes, and end after so many milliseconds or with the last session.
    Drain(u32),
}

/// Parses a line, which may have any bytes.
///
/// # Errors
/// The words.
pub fn parse(line: &[u8]) -> Result<Request, String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Line {
        #[serde(rename = "do")]
        what: String,
        tenant: Option<String>,
        limits: Option<BTreeMap<String, String>>,
        session: Option<SessionId>,
        for_ms: Option<u32>,
    }
    let line: Line = serde_json::from_slice(line).map_err(|e| format!("no request: {e}"))?;
    if let ("drain", None, None, None, Some(ms)) =
        (line.what.as_str(), &line.tenant, &line.limits, line.session, line.for_ms)
    {
        return Ok(Request::Drain(ms));
    }
    if line.for_ms.is_some() {
        return Err(format!("no such request: {}, with these members", line.what));
    }
    match (line.what.as_str(), line.tenant, line.limits, line.session) {
        ("status", None, None, None) => Ok(Request::Status),
        ("sessions", None, None, None) => Ok(Request::Sessions),
        ("tenants", None, None, None) => Ok(Request::Tenants),
        ("hosts", None, None, None) => Ok(Request::Hosts),
        ("reload", None, None, None) => Ok(Request::Reload),
        ("set", Some(tenant), Some(limits), None) => {
            Ok(Request::Set(tenant, limits.into_iter().collect()))
        }
        ("drop", None, None, Some(session)) => Ok(Request::Drop(session)),
        (what, ..) => Err(format!("no such request: {what}, with these members")),
    }
}

/// The last line of an answer.
pub(super) fn last(outcome: Result<(), String>) -> String {
    match outcome {
        Ok(()) => serde_json::json!({"done": true}).to_string(),
        Err(what) => serde_json::json!({"error": what}).to_string(),
    }
}

/// A connection at the admin socket.
pub(super) struct Admin {
    fd: Foreign,
    token: u64,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Admin {
    /// `None`: this user is not allowed.
    pub(super) fn new(fd: Foreign, token: u64, epoll: &Epoll) -> io::Result<Option<Admin>> {
        let uid = sys::credentials(fd.as_fd())?.uid;
        if uid != 0 && uid != sys::own_uid() {
            return Ok(None);
        }
        epoll.add(fd.as_fd(), token)?;
        Ok(Some(Admin { fd, token, input: Vec::new(), output: Vec::new() }))
    }

    /// Reads once. Returns the requests of the complete lines, and whether there may be more to
    /// read.
    pub(super) fn take(&mut self) -> (Vec<Result<Request, String>>, bool) {
        let mut bytes = [0; LINE_MAX];
        match sys::read(&self.fd, &mut bytes) {
            Ok(n @ 1..) => self.input.extend_from_slice(&bytes[..n]),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            _ => return (Vec::new(), false),
        }
        let mut requests = Vec::new();
        while let Some(end) = self.input.iter().position(|&b| b == b'\n') {
            let line: Vec<u8> = self.input.drain(..=end).collect();
            requests.push(parse(&line[..end]));
        }
        (requests, self.input.len() < LINE_MAX)
    }

    /// The buffer for answers.
    pub(super) fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// See [`sys::flush`].
    pub(super) fn flush(&mut self, epoll: &Epoll) -> bool {
        sys::flush(&self.fd, self.token, &mut self.output, epoll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_and_all_else_is_refused_in_words() {
        assert_eq!(parse(b"{\"do\":\"status\"}"), Ok(Request::Status));
        assert_eq!(parse(b" {\"do\": \"reload\"} "), Ok(Request::Reload));
        let set = b"{\"do\":\"set\",\"tenant\":\"a\",\"limits\":{\"weight\":\"3\"}}";
        let change = ("weight".to_string(), "3".to_string());
        assert_eq!(parse(set), Ok(Request::Set("a".into(), vec![change])));
        assert_eq!(parse(b"{\"do\":\"drop\",\"session\":7}"), Ok(Request::Drop(7)));
        assert_eq!(parse(b"{\"do\":\"drain\",\"for_ms\":5}"), Ok(Request::Drain(5)));
        for bad in [
            &b""[..],
            b"{",
            b"[]",
            b"{\"do\":1}",
            b"{\"do\":\"fly\"}",
            b"{\"do\":\"status\",\"x\":1}",
            b"{\"do\":\"status\",\"session\":1}",
            b"{\"do\":\"set\",\"tenant\":\"a\"}",
            b"{\"do\":\"set\",\"tenant\":\"a\",\"limits\":{\"weight\":3}}",
            b"{\"do\":\"drain\"}",
            b"{\"do\":\"drain\",\"for_ms\":-1}",
            b"{\"do\":\"drain\",\"for_ms\":1,\"session\":1}",
            b"{\"do\":\"status\",\"for_ms\":1}",
            b"{\"do\":\"drop\"}",
            b"{\"do\":\"drop\",\"session\":-1}",
            b"{\"do\":\"drop\",\"session\":4294967296}",
            b"\xff",
        ] {
            assert!(!parse(bad).unwrap_err().is_empty());
        }
        assert_eq!(last(Err("a \"b\"".into())), "{\"error\":\"a \\\"b\\\"\"}");
    }
}
