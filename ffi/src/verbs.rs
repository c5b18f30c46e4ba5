//! The verbs device as a context owns it.

use crate::context::Owned;
use crate::open_error::{self, Stage};
use crate::ptr::refuse;
use gdrcore_core::device::Leaks;
use gdrcore_core::{Config, Result};
use gdrcore_net::reason;

pub(crate) use gdrcore_verbs::pinned::{is_usual_list, PinnedCq, PinnedQp};
pub(crate) use gdrcore_verbs::{all_succeeded, refused, Empty, Polled, Posted, VerbsDevice};

impl Owned for VerbsDevice {
    unsafe fn close(&self) -> Leaks {
        // SAFETY: the trait's contract is that of VerbsDevice's own close.
        unsafe { VerbsDevice::close(self) }
    }
}

/// Whether a device's name is one of this kind.
pub(crate) fn is_named(name: &str) -> bool {
    name.starts_with(gdrcore_verbs::name::PREFIX)
}

/// Opens a NIC and explains why not.
///
/// # Safety
/// That of [`VerbsDevice::init`].
pub(crate) unsafe fn open(memory: *mut u8, bytes: usize, name: &str, config: &Config) -> Result<&'static VerbsDevice> {
    let mut why = gdrcore_verbs::Text::new();
    // SAFETY: our contract.
    unsafe { VerbsDevice::init(memory, bytes, name, config, &mut why) }.inspect_err(|&e| match (why.as_str(), e) {
        ("", e) => open_error::explain(name, Stage::Device, e),
        (words, e) => reason::set(e, format_args!("'{name}': {words}")),
    })
}

/// A NIC's packets do not pass here: there is nothing to write into a capture, and nothing asks a peer by itself.
pub(crate) fn check(name: &str, config: &crate::soft::SoftConfig<'_>) -> Result<()> {
    let instead = match () {
        _ if config.pcap.is_some() => "pcap_path is for the soft device; capture a NIC's packets with tcpdump",
        _ if config.core.keepalive_ns != 0 => "keepalive_ms is for the soft device; WRITE 0 bytes now and then",
        _ => return Ok(()),
    };
    Err(refuse!(Unsupported, "'{name}': {instead}"))
}
