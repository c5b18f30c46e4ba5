//! What the environment asks for.
//!
//! | variable | meaning |
//! |---|---|
//! | `GDRC_ADDRESS` | the one address of this machine that the process sees as a device, with an optional port: `10.0.0.1`, `[::1]:4800` |
//! | `GDRC_DEVICE` | the one device of the list that the process sees: `gdrc1` |
//! | `GDRC_PATH` | how peers of this host are reached: `auto` (the default), `udp`, `shm`; `auto,cma` and `shm,cma` let the kernel copy long WRITEs |
//! | `GDRC_PCAP` | write everything sent and received into this capture file |
//! | `GDRC_STATS` | `1`: print the counters at exit |
//!
//! What cannot be understood is said once on standard error, and then counts as not set.

use gdrcore_net::addr::Endpoint;
use gdrcore_net::soft::{soft_flags, PathChoice};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;

/// A variable that is set and not empty.
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// The address that `GDRC_ADDRESS` names.
pub fn address() -> Option<Endpoint> {
    let value = text("GDRC_ADDRESS")?;
    Endpoint::parse(&value).inspect_err(|_| complain("GDRC_ADDRESS", &value, "an address of this machine")).ok()
}

/// The device that `GDRC_DEVICE` names.
pub fn device() -> Option<String> {
    text("GDRC_DEVICE")
}

/// The path that `GDRC_PATH` names, and the flags of the device that go with it.
pub fn path() -> (PathChoice, u32) {
    match text("GDRC_PATH").as_deref() {
        None | Some("auto") => (PathChoice::Auto, 0),
        Some("auto,cma") => (PathChoice::Auto, soft_flags::CMA),
        Some("udp") => (PathChoice::Udp, 0),
        Some("shm") => (PathChoice::Shm, 0),
        Some("shm,cma") => (PathChoice::Shm, soft_flags::CMA),
        Some(other) => {
            complain("GDRC_PATH", other, "auto, udp, shm, auto,cma or shm,cma");
            (PathChoice::Auto, 0)
        }
    }
}

/// The capture file that `GDRC_PCAP` names.
pub fn pcap() -> Option<CString> {
    let value = std::env::var_os("GDRC_PCAP").filter(|v| !v.is_empty())?;
    CString::new(value.as_bytes()).ok()
}

/// Whether `GDRC_STATS` asks for the counters.
pub fn stats() -> bool {
    text("GDRC_STATS").is_some_and(|v| v != "0")
}

fn complain(name: &str, value: &str, wanted: &str) {
    static SAID: std::sync::Once = std::sync::Once::new();
    SAID.call_once(|| say(&format!("{name}={value} is not {wanted}; it is not heeded")));
}

/// A line on standard error.
pub fn say(line: &str) {
    use std::io::Write;
    // A program may have closed it.
    let _ = writeln!(std::io::stderr(), "gdrcore: {line}");
}
