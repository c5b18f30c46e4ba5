//! What others of the same address are owed, and what they bring: see [`crate::share`].

use super::lock::Held;
use super::{peer_addr, Layout, Port, SoftConfig};
use crate::addr::Endpoint;
use crate::clock::now_ns;
use crate::local::{sweep, Home};
use crate::share::{ask_to_renew, Claim, ForEngine, Member, Owner, Packets};
use crate::shm::ShmPort;
use crate::udp::{udp_flags, RxPacket, UdpConfig, UdpPort};
use crate::wait::Waiter;
use gdrcore_core::cm::Addressee;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::engine::Guard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::roce::run::Run;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::wire::{Class, Flow, ICRC_LEN};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A socket that is there without an owner belongs to a process that is about to end, or to a
/// stranger: this many looks, 5 ms apart, tell.
const LOOKS: u32 = 40;

/// The socket of an address, and the device's place among those that share it.
pub(super) struct Opened {
    pub(super) udp: UdpPort,
    /// `None`: processes cannot find each other here, so the device has the address for itself.
    pub(super) share: Option<Member>,
}

/// Opens the socket of an address, and takes a place among those that have it too.
///
/// # Errors
/// As [`UdpPort::open`]; [`Error::AddressInUse`]: a stranger has the port, or the QPN blocks have
/// owners.
///
/// # Safety
/// The memory of the layout is the device's alone.
pub(super) unsafe fn open(
    memory: *mut u8,
    layout: &Layout,
    at: &Endpoint,
    config: &SoftConfig<'_>,
    seed: u64,
) -> Result<Opened> {
    let cfg = config.udp();
    let socket = |at: &Endpoint, cfg: &UdpConfig| {
        // SAFETY: the walk gave `udp..share` to the socket alone, and a port that failed to open
        // uses it no more.
        unsafe { UdpPort::open(at, cfg, memory.add(layout.udp), layout.share - layout.udp) }
    };
    let wanted = config.wanted()?;
    let claim = |home: &Home, at: &Endpoint| {
        // SAFETY: the walk gave `share..shm` to the claim alone; one that was dropped uses it no
        // more.
        unsafe {
            Claim::take(
                home,
                at,
                &wanted,
                seed,
                memory.add(layout.share),
                layout.shm - layout.share,
            )
        }
    };
    let range = |claim: &Claim| {
        let c = config.core.resolve().unwrap_or_default();
        (if config.core.qpn_base == 0 { claim.qpn_base() } else { c.qpn_base }, c.qpn_count)
    };
    let now = crate::clock::now_ns();
    let mut home = match Home::open() {
        Ok(home) => home,
        Err(e) => {
            say_alone(e);
            return Ok(Opened { udp: socket(at, &cfg)?, share: None });
        }
    };
    sweep(&home);
    if at.port == 0 {
        // Nobody else can have a port that is still to be chosen.
        let udp = socket(at, &cfg)?;
        let claim = claim(&home, udp.local())?;
        udp.share()?;
        let qpns = range(&claim);
        let share = claim.join(udp.fd(), qpns, true, now)?;
        return Ok(Opened { udp, share: Some(share) });
    }
    let mut place = claim(&home, at)?;
    for look in 1..=LOOKS {
        let qpns = range(&place);
        match socket(at, &cfg) {
            Ok(udp) => {
                udp.share()?;
                let share = place.join(udp.fd(), qpns, true, now)?;
                return Ok(Opened { udp, share: Some(share) });
            }
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
        place.look();
        if place.has_company() {
            match socket(at, &UdpConfig { flags: cfg.flags | udp_flags::REUSE_PORT, ..cfg }) {
                Ok(udp) => {
                    let share = place.join(udp.fd(), qpns, false, now)?;
                    return Ok(Opened { udp, share: Some(share) });
                }
                // The first one has bound its socket, and does not share it yet.
                Err(Error::AddressInUse) => {}
                Err(e) => return Err(e),
            }
        } else {
            // Those who have the socket may have another directory of this user, or have lost
            // theirs.
            ask_to_renew(at);
            let other = Home::nth(look as usize)?;
            if other != home {
                home = other;
                place = claim(&home, at)?;
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(Error::AddressInUse)
}

/// Says once that processes cannot find each other here.
fn say_alone(e: Error) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        eprintln!(
            "gdrcore: no directory for this user's sockets below /dev/shm or /tmp ({e}): each \
             process needs an address and port for itself, and reaches others through the network"
        );
    }
}

/// Takes what one receive brought: what is for this device to the engine, the rest to its owners.
/// `late`: the time as of a moment ago. Returns the packets handled.
#[inline]
pub(super) fn take(
    g: &mut Guard<'_>,
    share: &mut Member,
    late: u64,
    mut now: impl FnMut() -> u64,
    r: &RxPacket<'_>,
) -> usize {
    let seg = usize::from(r.seg).max(1);
    // Who knows of no company has perhaps not read yet that somebody has come. What is lost with
    // that is sent again, but a connection request that the newcomer waits for would be refused.
    let lone = !share.has_company() && share.is_quiet();
    if lone && !matches!(share.owner_of(r.data), Owner::Own | Owner::Block(0))
        || r.data.chunks(seg).all(|p| share.owner_of(p) == Owner::Here)
    {
        share.reached(late);
        return g.handle_packets_of_late(late, now, &peer_addr(&r.src), seg, r.data, r.ecn == 3);
    }
    sort(g, share, now(), r)
}

/// Each piece of consecutive packets with one owner by itself. Who passes packets on has handled
/// them: a device that is about to end must not leave others' in its socket.
#[cold]
fn sort(g: &mut Guard<'_>, share: &mut Member, now: u64, r: &RxPacket<'_>) -> usize {
    let seg = usize::from(r.seg).max(1);
    let mut handled = 0;
    let mut at = 0;
    while at < r.data.len() {
        let rest = &r.data[at..];
        let owner = share.owner_of(&rest[..seg.min(rest.len())]);
        let same = rest.chunks(seg).take_while(|p| share.owner_of(p) == owner).count();
        // Messages of the connection manager have an owner each.
        let n = if owner == Owner::Block(0) { 1 } else { same };
        let data = &rest[..(n * seg).min(rest.len())];
        let p = Packets { src: r.src, seg: r.seg, first: (at / seg) as u16, ecn: r.ecn, data };
        match owner {
            Owner::Here => handled += accept(g, now, &p),
            Owner::Own => {
                for (i, packet) in data.chunks(seg).enumerate() {
                    if !share.take_own(packet) {
                        // Nobody's: the engine counts it by what is wrong with it.
                        handled += accept(
                            g,
                            now,
                            &Packets { first: p.first + i as u16, data: packet, ..p },
                        );
                    }
                }
            }
            Owner::Block(0) => handled += route_mad(g, share, now, &p),
            Owner::Block(block) => {
                // Nobody's: the engine counts it by what is wrong with it.
                handled += if share.pass(block, &p) { same } else { accept(g, now, &p) };
            }
        }
        at += data.len();
    }
    handled
}

/// Gives packets to the engine.
fn accept(g: &mut Guard<'_>, now: u64, p: &Packets<'_>) -> usize {
    g.handle_segments(now, &peer_addr(&p.src), p.first, usize::from(p.seg), p.data, p.ecn == 3)
}

/// A packet for QP1, which all devices of an address share: whose id it names, or who listens, gets
/// it. The engine answers what nobody wants, as it does for a device alone.
fn route_mad(g: &mut Guard<'_>, share: &mut Member, now: u64, p: &Packets<'_>) -> usize {
    let to = match p.data.split_last_chunk::<ICRC_LEN>().map(|(body, _)| Run::parse_packet(body)) {
        Some(Ok((run, mad))) if run.dest_qpn == GSI_QPN => Addressee::of(mad),
        _ => Addressee::Anyone,
    };
    let passed = match to {
        _ if g.cm().is_mine(to) => false,
        Addressee::Block(block) => share.pass(block, p),
        Addressee::Service { port_space, port } => {
            // As with the engine of who listened there a moment ago: not refused, so that its
            // sender asks again.
            share.pass_to_service(port_space, port, p) || share.is_former(now, port)
        }
        Addressee::Anyone => false,
    };
    if passed {
        1
    } else {
        accept(g, now, p)
    }
}

impl Held<'_> {
    /// Listens at an id's port: one listener a port among all devices of the address.
    pub(super) fn listen(&mut self, id: Handle, backlog: u32) -> Result<()> {
        let (port_space, port) = self.guard.cm().bound(id)?;
        if let Some(share) = &mut self.port().share {
            share.offer(id, port_space, port)?;
        }
        self.guard.cm_listen(now_ns(), id, backlog)
    }

    /// Takes the name of an id's port already, so that requests for it come here and to nobody who
    /// would refuse them.
    pub(super) fn announce(&mut self, id: Handle, soon: bool) -> Result<()> {
        let (port_space, port) = self.guard.cm().bound(id)?;
        if let Some(share) = &mut self.port().share {
            if soon {
                share.offer(id, port_space, port)?;
            } else {
                share.withdraw(id);
            }
        }
        self.guard.cm().announce(id, soon)
    }

    /// An id is gone, and with it what it offered.
    pub(super) fn withdraw(&mut self, id: Handle) {
        if let Some(share) = &mut self.port().share {
            share.withdraw(id);
        }
    }
}

impl Port {
    /// Takes mail, and does what the membership calls for. Returns the packets handled.
    pub(super) fn tend_share(&mut self, g: &mut Guard<'_>, now: u64) -> usize {
        let Some(share) = &mut self.share else { return 0 };
        let waits = share.has_company() && g.next_timeout(now).is_some();
        share.tend(now, waits);
        let local = self.udp.as_ref().map(|u| *u.local()).unwrap_or_default();
        let pcap = &mut self.pcap;
        share.poll(now, |share, mail| {
            let p = match mail {
                ForEngine::Packets(p) => p,
                ForEngine::Refused(dst, errno) => {
                    g.peer_unreachable(now, &peer_addr(dst), *errno);
                    return 0;
                }
            };
            // What is passed on is passed on once: a block that is not ours any more is nobody's.
            let seg = usize::from(p.seg).max(1);
            let ours = p
                .data
                .chunks(seg)
                .all(|packet| matches!(share.owner_of(packet), Owner::Here | Owner::Block(0)));
            if !ours {
                share.count_dropped(p.data.len().div_ceil(seg) as u64);
                return 0;
            }
            if p.data.chunks(seg).any(|packet| share.owner_of(packet) == Owner::Here) {
                share.hint(now);
            }
            if let Some(tee) = pcap {
                tee.burst(now, &p.src, &local, p.first, p.seg, p.data);
            }
            let n = accept(g, now, p);
            share.count_by_mail(n as u64);
            n
        })
    }

    /// Takes the names by which others find the device anew, after their directory was removed.
    #[cold]
    pub(super) fn renew_names(&mut self, waiter: &Waiter) {
        let Some(share) = &mut self.share else { return };
        if share.renew().is_ok() {
            if let Some(shm) = &mut self.shm {
                let _ = shm.renew(share.home(), share.locks(), waiter);
            }
        }
    }

    /// When the device is wanted next, besides what the engine says.
    pub(super) fn deadline(&self) -> Option<u64> {
        let share = self.share.as_ref().and_then(Member::deadline);
        let shm = self.shm.as_ref().and_then(ShmPort::deadline);
        share.into_iter().chain(shm).min()
    }
}

/// A datagram that came over a link to the address, for another device there: passed on as the
/// packet that it would have been.
#[cold]
pub(super) fn pass_run(
    share: &mut Option<Member>,
    local: &Endpoint,
    from: &Endpoint,
    run: &Run,
    payload: &[u8],
) {
    let Some(share) = share else { return };
    let opcode = run.opcode(true, true);
    let (head, pad) = (opcode.header_len(), payload.len().wrapping_neg() & 3);
    let len = head + payload.len() + pad + ICRC_LEN;
    let mut packet = [0u8; 4096 + 128];
    if run.class != Class::Ud || run.n != 1 || len > packet.len() {
        return share.count_dropped(1);
    }
    let packet = &mut packet[..len];
    run.emit_headers(opcode, run.psn, false, pad as u8, &mut packet[..head]);
    // The writer may change the payload at any time: it is copied as program memory is.
    if host::fetch(payload.as_ptr() as u64, &mut packet[head..head + payload.len()]).is_err() {
        return share.count_dropped(1);
    }
    Flow::from_gids(&from.ip, &local.ip, from.port, local.port).append_icrc(0, packet);
    let p = Packets { src: *from, seg: len as u16, first: 0, ecn: 0, data: packet };
    let block = (run.dest_qpn / gdrcore_core::config::QPN_UNIT) as u16;
    if !share.pass(block, &p) {
        share.count_dropped(1);
    }
}
