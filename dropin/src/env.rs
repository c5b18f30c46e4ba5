//! Values of the drop-in's settings ([`gdrcore_calls::options`]), from environment variables.
//!
//! A wrong value is reported once on standard error and counts as not set.

use gdrcore_calls::may_fail;
use gdrcore_calls::options::{
    Setting, ADDRESS, ENGINES, FAULTS, IDENTITY, KEEPALIVE, PATH, PCAP, QPS, SEED, TRACE,
};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::Error;
use gdrcore_net::addr::{Endpoint, ROCE_PORT};
use gdrcore_net::inject::{is_privileged, FaultSpec};
use gdrcore_net::reason;
use gdrcore_net::soft::{soft_flags, PathChoice, MAX_ENGINES};
use gdrcore_net::threads::with_stack;
use gdrcore_net::via::find::{from_environment, Found, SocketPath};
use gdrcore_net::via::session::Session;
use std::ffi::{CString, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Once, OnceLock};

/// Says something the first time only: each place in the sources once.
macro_rules! once {
    ($what:expr) => {{
        static SAID: Once = Once::new();
        SAID.call_once(|| $what);
    }};
}

/// The value of a setting. The value `0` turns a setting off that is a switch.
pub fn value(setting: &'static Setting) -> Option<OsString> {
    setting.value(say)
}

/// The value of a setting that is a text.
pub fn text(setting: &'static Setting) -> Option<String> {
    value(setting)?.into_string().ok()
}

/// The value of a setting that is a number.
fn number<T: FromStr>(setting: &'static Setting) -> Option<T> {
    text(setting)?.parse().ok()
}

/// The value of a setting that writes files or injects faults. Ignored in a program with the rights
/// of another user.
pub fn unprivileged(setting: &'static Setting) -> Option<OsString> {
    value(setting).filter(|_| !is_privileged())
}

/// Whether a setting is on.
pub fn is_on(setting: &'static Setting) -> bool {
    value(setting).is_some()
}

/// The address of the one device that the process sees.
pub fn address() -> Option<Endpoint> {
    let value = text(&ADDRESS)?;
    let wrong = |_: &Error| ADDRESS.report(value.as_ref(), "not an address of this machine", say);
    Endpoint::parse(&value).inspect_err(wrong).ok()
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
        Found::Mounted(at) if value(&ADDRESS).is_none() => at,
        Found::Off | Found::Nothing | Found::Mounted(_) => return Ok(None),
    };
    // Holds no lock while it waits for the router, because another thread may fork.
    if let Some(known) = KNOWN.get().filter(|(path, _)| *path == at) {
        return Ok(Some(*known));
    }
    // The session has no queue pair numbers, and the router ends it at once.
    let fresh = with_stack("gdrc-router", || {
        reason::install();
        let opened = match Session::open(&at, 0).map(|(session, _)| session) {
            Err(Error::Os(libc::EREMOTE)) => Session::open_remote(&at).map(|(session, _)| session),
            opened => opened,
        };
        let session = opened.inspect_err(|_| complain_of_router())?;
        Ok((at, Endpoint::new(session.gid(), 0, ROCE_PORT)))
    })?;
    let _ = KNOWN.set(fresh);
    Ok(Some(fresh))
}

fn complain_of_router() {
    once!(reason::with_text(|words| say(&format!("no device: {words}"))));
}

/// The rules of faults. Text that is not UTF-8 is kept as a wrong word, which the device refuses.
pub fn faults() -> Option<String> {
    Some(unprivileged(&FAULTS)?.to_string_lossy().into_owned())
}

/// Rules of this program, with its seed.
pub fn fault_spec(rules: &str) -> FaultSpec<'_> {
    FaultSpec { rules, seed: seed(), launched: Some(may_fail) }
}

/// The seed of faults; 0: not set.
pub fn seed() -> u64 {
    number(&SEED).unwrap_or(0)
}

/// The path of devices whose packets have injected faults.
pub fn path_of_faults() -> (PathChoice, u32) {
    if value(&PATH).is_some_and(|path| path != "udp") {
        once!(say("GDRC_FAULTS: peers on this host are reached by packets, whatever GDRC_PATH is"));
    }
    (PathChoice::Udp, 0)
}

/// The path to peers of this host, and the device flags that it implies. Shared memory carries no
/// packets to capture, so a capture without `GDRC_PATH` selects UDP.
pub fn path(captured: bool) -> (PathChoice, u32) {
    let named = text(&PATH);
    let (route, cma) = match named.as_deref() {
        Some(path) => path.split_once(',').unwrap_or((path, "")),
        None if captured => {
            once!(say(
                "GDRC_PCAP: peers on this host are reached by packets, not through shared memory",
            ));
            ("udp", "")
        }
        None => ("auto", ""),
    };
    if captured && route != "udp" {
        once!(say(&format!(
            "GDRC_PCAP: GDRC_PATH={route}: what travels through shared memory is not captured"
        )));
    }
    let choice = match route {
        "udp" => PathChoice::Udp,
        "shm" => PathChoice::Shm,
        _ => PathChoice::Auto,
    };
    (choice, if cma.is_empty() { 0 } else { soft_flags::CMA })
}

/// Most engines of each device.
pub fn engines() -> Option<u32> {
    const { assert!(MAX_ENGINES == 64, "the limit of the setting") };
    number(&ENGINES)
}

/// Limit of engines without the setting; further threads share them.
const DEFAULT_ENGINES: usize = 16;

/// One for each CPU that the process may use.
pub fn engines_by_default() -> u32 {
    std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(DEFAULT_ENGINES) as u32)
}

/// Queue pair numbers of each engine: a power of two, and at least one unit of the address's
/// numbers; 0: not set.
pub fn qpn_count() -> u32 {
    number::<u32>(&QPS).map_or(0, |n| n.next_power_of_two().max(QPN_UNIT))
}

/// The interval of keepalive probes, in nanoseconds; 0: none.
pub fn keepalive_ns() -> u64 {
    number::<f64>(&KEEPALIVE).map_or(0, |seconds| (seconds * 1e9) as u64)
}

/// The capture file.
pub fn pcap() -> Option<CString> {
    CString::new(unprivileged(&PCAP)?.into_vec()).ok()
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

/// The target of a trace.
pub fn trace() -> Option<Traced> {
    let value = value(&TRACE)?;
    let chrome = value.as_bytes().strip_prefix(b"chrome:");
    Some(match chrome {
        Some(path) => Traced::Chrome(OsStr::from_bytes(path).into()),
        None if value == "1" => Traced::Error,
        None => Traced::Text(value.into()),
    })
}

/// The NIC whose vendor and part the device reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identity {
    /// No vendor's NIC.
    Own,
    /// A ConnectX-5.
    Mlx5,
}

/// The NIC that the device reports.
pub fn identity() -> Identity {
    match value(&IDENTITY) {
        Some(name) if name == "mlx5" => Identity::Mlx5,
        _ => Identity::Own,
    }
}

/// Prints a line to standard error.
pub fn say(line: &str) {
    gdrcore_net::reason::say(format_args!("{line}"));
}
