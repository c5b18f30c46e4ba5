//! Options of the drop-in in environment variables.
//!
//! * `GDRC_ADDRESS`: the one address of this machine that the process sees as a device, with an
//!   optional port: `10.0.0.1`, `[::1]:4800`.
//! * `GDRC_ROUTER`: the router through which peers are reached, by its socket's path or name;
//!   `off`: none, even if one is mounted ([`gdrcore_net::via::find`]).
//! * `GDRC_DEVICE`: the one device of the list that the process sees: `gdrc1`.
//! * `GDRC_PATH`: the path to peers of this host: `auto` (the default), `udp`, `shm`; with
//!   `auto,cma` and `shm,cma` the kernel copies long WRITEs.
//! * `GDRC_ENGINES`: most engines of each device, at most 64; without it one for each CPU that the
//!   process may use, at most 16. A thread gets an engine with its first CQ, so that threads with
//!   queue pairs and CQs of their own do not wait for each other. A device behind a router has one
//!   unless this says otherwise.
//! * `GDRC_QPS`: most queue pairs of each engine, where 16,384 are not enough. The engine takes as
//!   many queue pair numbers. All processes on an address share 2^24 of them.
//! * `GDRC_KEEPALIVE`: an RC queue pair probes its peer after so many seconds without a packet;
//!   0 or without it, never.
//! * `GDRC_PCAP`: append all packets to this capture file; without `GDRC_PATH`, peers of this host
//!   are then reached by packets, too.
//! * `GDRC_FAULTS`: rules of faults that packets and calls have, and `GDRC_SEED`, from which their
//!   places follow (docs/using/TESTING.md). If packets have any, peers of this host are reached by
//!   packets, too, and a device has one engine. A device does not open if a rule is wrong.
//! * `GDRC_CALL_COUNTS`: a file of `gdrcore-run --search-faults`, in which calls are counted.
//! * `GDRC_STATS`: `1`: print the counters of the process, and why its requests failed, when it
//!   ends.
//! * `GDRC_VERBOSE`: `1`: print to standard error why a verb or a connection is refused.
//! * `GDRC_TRACE`: where each call of the program is printed: a file, `chrome:` and a file for
//!   events of Chrome's format, or `1` for standard error. `GDRC_TRACE_FILTER`: which calls
//!   ([`gdrcore_calls::Filter::parse`]). `GDRC_TRACE_COUNT`: `1`: print a table of the calls when
//!   the process ends.
//! * `GDRC_STRICT`: what the program does against the specification is reported: `report`, `abort`
//!   or `exit=N` (docs/using/STRICT.md). `GDRC_LIKE`: the NIC whose limits count: `mlx5`, `rxe`,
//!   `efa` or `hns`. `GDRC_STRICT_JSON`: a file to which each report is appended.
//!   `GDRC_STRICT_SUPPRESSIONS`: a file that says which are left out.
//! * `GDRC_IDENTITY`: `mlx5`: vendor and part of the device are those of a ConnectX-5, for programs
//!   that use DC only there; default `gdrcore`.
//! * `GDRC_LID`: `1`: ports have a LID, and an address vector may name its peer by that alone.
//!
//! A value that cannot be parsed is reported once on standard error and counts as not set. If a
//! router cannot be reached the process has no device at all.

use gdrcore_calls::may_fail;
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::Error;
use gdrcore_net::addr::{Endpoint, ROCE_PORT};
use gdrcore_net::inject::{is_privileged, FaultSpec};
use gdrcore_net::reason;
use gdrcore_net::soft::{soft_flags, PathChoice, MAX_ENGINES};
use gdrcore_net::via::find::{from_environment, Found, SocketPath};
use gdrcore_net::via::session::Session;
use std::ffi::{CString, OsStr};
use std::num::NonZeroU64;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};

/// Says something the first time only: each place in the sources once.
macro_rules! once {
    ($what:expr) => {{
        static SAID: Once = Once::new();
        SAID.call_once(|| $what);
    }};
}

/// A variable that is set and not empty.
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The address in `GDRC_ADDRESS`.
pub fn address() -> Option<Endpoint> {
    let value = text("GDRC_ADDRESS")?;
    Endpoint::parse(&value)
        .inspect_err(|_| once!(complain("GDRC_ADDRESS", &value, "an address of this machine")))
        .ok()
}

/// The router through which peers are reached, if there is one, and the address that it assigns to
/// this process. Asks the router only once.
///
/// # Errors
/// The router cannot be reached, or refuses; the reason was printed to standard error.
pub fn router() -> Result<Option<(SocketPath, Endpoint)>, Error> {
    static KNOWN: OnceLock<(SocketPath, Endpoint)> = OnceLock::new();
    reason::install();
    let found = from_environment().inspect_err(|_| complain_of_router())?;
    let at = match found {
        Found::Named(at) => at,
        // An explicit address selects the network.
        Found::Mounted(at) if text("GDRC_ADDRESS").is_none() => at,
        Found::Off | Found::Nothing | Found::Mounted(_) => return Ok(None),
    };
    // Holds no lock while it waits for the router, because another thread may fork.
    if let Some(known) = KNOWN.get().filter(|(path, _)| *path == at) {
        return Ok(Some(*known));
    }
    // The session has no queue pair numbers, and the router ends it at once.
    let (session, _) = Session::open(&at, 0).inspect_err(|_| complain_of_router())?;
    let fresh = (at, Endpoint::new(session.gid(), 0, ROCE_PORT));
    let _ = KNOWN.set(fresh);
    Ok(Some(fresh))
}

fn complain_of_router() {
    once!(reason::with_text(|words| say(&format!("no device: {words}"))));
}

/// The device in `GDRC_DEVICE`.
pub fn device() -> Option<String> {
    text("GDRC_DEVICE")
}

/// The rules in `GDRC_FAULTS`. Not for a program with the rights of another user. What is not UTF-8
/// is no word of a rule, so that the device refuses it.
pub fn faults() -> Option<String> {
    let value = std::env::var_os("GDRC_FAULTS").filter(|v| !v.is_empty() && !is_privileged())?;
    Some(value.to_string_lossy().into_owned())
}

/// Rules of this program, with its seed.
pub fn fault_spec(rules: &str) -> FaultSpec<'_> {
    FaultSpec { rules, seed: seed(), launched: Some(may_fail) }
}

/// The number in `GDRC_SEED`; 0: not set.
pub fn seed() -> u64 {
    let Some(value) = text("GDRC_SEED") else { return 0 };
    value.parse::<NonZeroU64>().map_or_else(
        |_| {
            once!(complain("GDRC_SEED", &value, "a number from 1 to 2^64 - 1"));
            0
        },
        NonZeroU64::get,
    )
}

/// The file in `GDRC_CALL_COUNTS`. Not for a program with the rights of another user.
pub fn call_counts() -> Option<PathBuf> {
    let value = std::env::var_os("GDRC_CALL_COUNTS").filter(|v| !v.is_empty());
    value.filter(|_| !is_privileged()).map(PathBuf::from)
}

/// The path of devices whose packets have injected faults.
pub fn path_of_faults() -> (PathChoice, u32) {
    if text("GDRC_PATH").is_some_and(|path| path != "udp") {
        once!(say("GDRC_FAULTS: peers on this host are reached by packets, whatever GDRC_PATH is"));
    }
    (PathChoice::Udp, 0)
}

/// The path in `GDRC_PATH`, and the device flags that it implies. Shared memory carries no packets
/// to capture, so a capture without `GDRC_PATH` selects UDP.
pub fn path(captured: bool) -> (PathChoice, u32) {
    let named = text("GDRC_PATH");
    if captured {
        match named.as_deref() {
            None => once!(say(
                "GDRC_PCAP: peers on this host are reached by packets, not through shared memory",
            )),
            Some("udp") => {}
            Some(path) => once!(say(&format!(
                "GDRC_PCAP: GDRC_PATH={path}: what travels through shared memory is not captured"
            ))),
        }
    }
    match named.as_deref() {
        None if captured => (PathChoice::Udp, 0),
        None | Some("auto") => (PathChoice::Auto, 0),
        Some("auto,cma") => (PathChoice::Auto, soft_flags::CMA),
        Some("udp") => (PathChoice::Udp, 0),
        Some("shm") => (PathChoice::Shm, 0),
        Some("shm,cma") => (PathChoice::Shm, soft_flags::CMA),
        Some(other) => {
            once!(complain("GDRC_PATH", other, "auto, udp, shm, auto,cma or shm,cma"));
            (PathChoice::Auto, 0)
        }
    }
}

/// The engines in `GDRC_ENGINES`.
pub fn engines() -> Option<u32> {
    let value = text("GDRC_ENGINES")?;
    match value.parse::<u32>() {
        Ok(engines) if (1..=MAX_ENGINES as u32).contains(&engines) => Some(engines),
        _ => {
            once!(complain("GDRC_ENGINES", &value, "a number from 1 to 64"));
            None
        }
    }
}

/// Limit of engines without `GDRC_ENGINES`; further threads share them.
const DEFAULT_ENGINES: usize = 16;

/// One for each CPU that the process may use.
pub fn engines_by_default() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(DEFAULT_ENGINES) as u32)
}

/// Limit of `GDRC_QPS`: indexes of queue pairs have 16 bits.
const QPS_MAX: u32 = 1 << 16;

/// Queue pair numbers of each engine: the number in `GDRC_QPS`, rounded up to a power of two and at
/// least one unit of the address's numbers; 0: not set.
pub fn qpn_count() -> u32 {
    let Some(value) = text("GDRC_QPS") else { return 0 };
    match value.parse::<u32>() {
        Ok(n) if (1..=QPS_MAX).contains(&n) => n.next_power_of_two().max(QPN_UNIT),
        _ => {
            once!(complain("GDRC_QPS", &value, "a number from 1 to 65536"));
            0
        }
    }
}

/// The interval in `GDRC_KEEPALIVE`, in nanoseconds; 0: none.
pub fn keepalive_ns() -> u64 {
    let Some(value) = text("GDRC_KEEPALIVE") else { return 0 };
    match value.parse::<f64>() {
        Ok(seconds) if (0.001..=86_400.0).contains(&seconds) || seconds == 0.0 => {
            (seconds * 1e9) as u64
        }
        _ => {
            once!(complain(
                "GDRC_KEEPALIVE",
                &value,
                "a number of seconds from 0.001 to 86400, or 0"
            ));
            0
        }
    }
}

/// The capture file in `GDRC_PCAP`. Not for a program with the rights of another user.
pub fn pcap() -> Option<CString> {
    let value = std::env::var_os("GDRC_PCAP").filter(|v| !v.is_empty() && !is_privileged())?;
    CString::new(value.as_bytes()).ok()
}

/// Whether `GDRC_STATS` requests the counters.
pub fn stats() -> bool {
    is_on("GDRC_STATS")
}

/// Where the calls of the program are written.
#[derive(Debug, PartialEq, Eq)]
pub enum Traced {
    /// To standard error.
    Error,
    /// To a file, as lines.
    Text(PathBuf),
    /// To a file, as events of Chrome's format.
    Chrome(PathBuf),
}

/// The target in `GDRC_TRACE`.
pub fn trace() -> Option<Traced> {
    let value = std::env::var_os("GDRC_TRACE").filter(|v| !v.is_empty() && v != "0")?;
    let chrome = value.as_bytes().strip_prefix(b"chrome:");
    Some(match chrome {
        Some(path) => Traced::Chrome(OsStr::from_bytes(path).into()),
        None if value == "1" => Traced::Error,
        None => Traced::Text(value.into()),
    })
}

/// The filter in `GDRC_TRACE_FILTER`.
pub fn trace_filter() -> Option<String> {
    let value = std::env::var_os("GDRC_TRACE_FILTER").filter(|v| !v.is_empty())?;
    Some(value.to_string_lossy().into_owned())
}

/// Whether `GDRC_TRACE_COUNT` requests a table of the calls.
pub fn trace_count() -> bool {
    is_on("GDRC_TRACE_COUNT")
}

/// What `GDRC_STRICT` requests.
pub fn strict() -> Option<String> {
    text("GDRC_STRICT").filter(|v| v != "0")
}

/// The NIC in `GDRC_LIKE`.
pub fn like() -> Option<String> {
    text("GDRC_LIKE")
}

/// The file in `GDRC_STRICT_JSON`.
pub fn strict_json() -> Option<PathBuf> {
    std::env::var_os("GDRC_STRICT_JSON").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// The file in `GDRC_STRICT_SUPPRESSIONS`.
pub fn strict_suppressions() -> Option<PathBuf> {
    std::env::var_os("GDRC_STRICT_SUPPRESSIONS").filter(|v| !v.is_empty()).map(PathBuf::from)
}

/// Whether `GDRC_LID` requests LIDs.
pub fn lid() -> bool {
    is_on("GDRC_LID")
}

/// The NIC whose vendor and part the device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// No vendor's NIC.
    Own,
    /// A ConnectX-5.
    Mlx5,
}

/// The identity in `GDRC_IDENTITY`.
pub fn identity() -> Identity {
    match text("GDRC_IDENTITY").as_deref() {
        None | Some("gdrcore") => Identity::Own,
        Some("mlx5") => Identity::Mlx5,
        Some(other) => {
            once!(complain("GDRC_IDENTITY", other, "gdrcore or mlx5"));
            Identity::Own
        }
    }
}

fn is_on(name: &str) -> bool {
    text(name).is_some_and(|v| v != "0")
}

fn complain(name: &str, value: &str, wanted: &str) {
    say(&format!("{name}={value} is not {wanted}; it is ignored"));
}

/// Prints a line to standard error.
pub fn say(line: &str) {
    gdrcore_net::reason::say(format_args!("{line}"));
}
