//! Opens the socket of an address, and joins the group of the devices that share it
//! ([`crate::addr_group`]).

use crate::addr::Endpoint;
use crate::addr_group::{request_renewal, Claim, Member};
use crate::clock::wall_ns;
use crate::local::{sweep, SocketDir};
use crate::reason::say;
use crate::soft::layout::Opening;
use crate::soft::SoftConfig;
use crate::udp::{udp_flags, UdpConfig, UdpPort};
use gdrcore_core::error::{Error, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Attempts, 5 ms apart, to join an address whose socket has no known owner: the owner is about to
/// end, or is no gdrcore process.
const ATTEMPTS: u32 = 40;

/// Opens the socket of an address and joins the group of the address, and writes both into `out`.
/// Without a member, processes cannot find each other here, so the device has the address alone.
///
/// # Errors
/// As [`UdpPort::open`]; [`Error::AddressInUse`]: another program has the port, or the QPN blocks
/// have owners.
///
/// # Safety
/// The memory of the layout is used by the device alone.
#[inline(never)]
pub(in crate::soft) unsafe fn open(
    opening: &Opening<'_>,
    at: &Endpoint,
    config: &SoftConfig<'_>,
    seed: u64,
    out: (&mut Option<UdpPort>, &mut Option<Member>),
) -> Result<()> {
    let (cfg, layout) = (config.udp_config(), opening.layout);
    let socket = |at: &Endpoint, cfg: &UdpConfig| {
        let (memory, bytes) = opening.range(layout.udp, layout.member);
        // SAFETY: the layout gives `udp..member` to the socket alone, and a port that failed to
        // open no longer uses it.
        unsafe { UdpPort::open(at, cfg, memory, bytes) }
    };
    let (wanted, bounds) = (config.wanted_blocks()?, config.claim_bounds()?);
    let claim = |socket_dir: &SocketDir, at: &Endpoint| {
        let (memory, bytes) = opening.range(layout.member, layout.shm);
        // SAFETY: the layout gives `member..shm` to the claim alone; a dropped claim no longer uses
        // it.
        unsafe { Claim::take(socket_dir, at, (&wanted, &bounds), seed, memory, bytes) }
    };
    let range = |claim: &Claim| {
        let c = config.core.resolve().unwrap_or_default();
        (if config.core.qpn_base == 0 { claim.qpn_base() } else { c.qpn_base }, c.qpn_count)
    };
    let now = crate::clock::now_ns();
    let mut socket_dir = match SocketDir::open() {
        Ok(socket_dir) => socket_dir,
        Err(e) => {
            warn_alone(e);
            *out.0 = Some(socket(at, &cfg)?);
            return Ok(());
        }
    };
    sweep(&socket_dir, wall_ns());
    if at.port == 0 {
        // A port that the kernel chooses has no other users.
        let udp = out.0.insert(socket(at, &cfg)?);
        let claim = claim(&socket_dir, udp.local())?;
        udp.allow_reuse_port()?;
        let qpns = range(&claim);
        return claim.join(udp.fd(), qpns, true, now, out.1);
    }
    let mut place = claim(&socket_dir, at)?;
    for look in 1..=ATTEMPTS {
        let qpns = range(&place);
        match socket(at, &cfg) {
            Ok(udp) => {
                udp.allow_reuse_port()?;
                let udp = out.0.insert(udp);
                return place.join(udp.fd(), qpns, true, now, out.1);
            }
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
        place.find_owners();
        if place.has_others() {
            match socket(at, &UdpConfig { flags: cfg.flags | udp_flags::REUSE_PORT, ..cfg }) {
                Ok(udp) => {
                    let udp = out.0.insert(udp);
                    return place.join(udp.fd(), qpns, false, now, out.1);
                }
                // The first member has bound its socket and does not share it yet.
                Err(Error::AddressInUse) => {}
                Err(e) => return Err(e),
            }
        } else {
            // The members may have another directory of this user, or have lost theirs.
            request_renewal(at);
            let other = SocketDir::nth(look as usize)?;
            if other != socket_dir {
                socket_dir = other;
                place = claim(&socket_dir, at)?;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::AddressInUse)
}

/// Prints one warning that processes cannot find each other here.
fn warn_alone(e: Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say(format_args!(
            "no directory for this user's sockets below /dev/shm, /tmp or /run/user \
             ({e}): each process needs an address and port for itself, and reaches others through \
             the network"
        ));
    }
}
