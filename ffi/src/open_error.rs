//! The reasons of failed opens, with advice. They are stored in the record of all reasons
//! (`gdrcore_net::reason`).

use gdrcore_core::Error;
use gdrcore_net::addr::DeviceName;
use gdrcore_net::reason;
use gdrcore_net::sock_diag::port_owner;

/// Sets the reason of a failed open. If the refusal has named the argument already, only the
/// device's name is put before it.
pub(crate) fn explain(device: &str, stage: Stage, e: Error) {
    macro_rules! say {
        ($($words:tt)+) => { reason::set(e, format_args!($($words)+)) };
    }
    match (stage, e) {
        // Its reason is the router's, or names the router that was meant.
        (Stage::Size | Stage::Device, e) if device.starts_with("router:") => {
            reason::prefix(e, format_args!("'{device}': "))
        }
        (_, Error::AddressNotLocal) => {
            say!(
                "'{device}': no interface of this machine has this address; `ip address` lists them"
            )
        }
        (_, Error::AddressInUse) => in_use(device, e),
        (Stage::Config, Error::TooBig) => say!(
            "'{device}': gdrc_config is from a newer header and \
             sets a field that this library ({}) does not know",
            env!("CARGO_PKG_VERSION")
        ),
        (Stage::Memory { need, have }, Error::NoMemory) => say!(
            "bytes {have}: '{device}' needs {need} for this \
             gdrc_config; ask gdrc_context_size, or lower the bounds"
        ),
        (Stage::Memory { need, have }, _) => say!(
            "memory for '{device}' must not be NULL and must be \
             aligned to {} bytes ({have} bytes given, {need} needed)",
            crate::c_consts::GDRC_CONTEXT_ALIGN
        ),
        (Stage::Map { need }, e) => {
            say!(
                "cannot map {need} bytes for '{device}': {e}; lower \
                 the bounds of gdrc_config or raise `ulimit -v` or `-d`"
            )
        }
        (Stage::Slots, _) => say!(
            "'{device}': this process has {} contexts open; close some",
            crate::context_slots::SLOTS
        ),
        (Stage::Device, Error::Os(libc::EMFILE)) => say!(
            "'{device}': this process has no descriptor left: it needs some twenty more \
             (`ulimit -n`)"
        ),
        (Stage::Device, Error::Os(n)) => say!(
            "'{device}': the system refused: {} (errno {n})",
            crate::string_calls::describe(n).to_str().unwrap_or("error")
        ),
        (Stage::Device, Error::NoMemory) if !reason::has_reason(e) => say!(
            "'{device}': memory or a resource limit is exhausted \
             (`ulimit -n` bounds sockets, `ulimit -l` locked memory)"
        ),
        (Stage::Config | Stage::Size | Stage::Device, e) => {
            reason::prefix(e, format_args!("'{device}': "))
        }
    }
}

/// The error of an open, explained.
pub(crate) fn refused(device: &str, stage: Stage, e: Error) -> Error {
    explain(device, stage, e);
    e
}

/// An address and port that are taken. The advice depends on the user that has them.
fn in_use(device: &str, e: Error) {
    let at = match DeviceName::parse(device) {
        Ok(DeviceName::Soft(at)) => Some(at),
        _ => None,
    };
    let advice = "or give another port, \"soft:<address>:<port>\" \
                  (peers learn it from the endpoint descriptor)";
    // SAFETY: no precondition.
    let own = unsafe { libc::geteuid() };
    match at.as_ref().and_then(port_owner) {
        Some(user) if user != own => reason::set(
            e,
            format_args!(
            "'{device}': a process of user {user} has the UDP port (`ss -ulnp` as root names it), \
             and only processes of one user share one; stop it, {advice}"
        ),
        ),
        Some(_) => reason::set(
            e,
            format_args!(
            "'{device}': a process of this user has the UDP port: a program that is not of this \
             library, one whose /dev/shm is another (containers share one with --ipc=host), or \
             one that owns the QPN block of gdrc_config; stop it, {advice}"
        ),
        ),
        None => reason::set(
            e,
            format_args!(
                "'{device}': the QPN block of gdrc_config is taken (give another, or 0 for any), \
                 or a connected socket has the UDP port ({advice})"
            ),
        ),
    }
}

/// The step at which an open failed.
#[derive(Clone, Copy)]
pub(crate) enum Stage {
    Config,
    Size,
    /// In the caller's memory.
    Memory {
        need: usize,
        have: usize,
    },
    /// When the system mapped memory.
    Map {
        need: usize,
    },
    Slots,
    Device,
}
