//! What others of the same address are owed, and what they bring: see [`crate::share`].

use super::lock::Held;
use super::{peer_addr, Layout, Port, SoftConfig};
use crate::addr::Endpoint;
use crate::share::{Claim, ForEngine, Member, Owner, Packets};
use crate::udp::{udp_flags, RxPacket, UdpConfig, UdpPort};
use gdrcore_core::cm::Addressee;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::engine::Guard;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::roce::run::Run;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::wire::{Class, Flow, ICRC_LEN};
use std::time::Duration;

/// A socket that is there without an owner belongs to a process that is about to end, or to a stranger: this many looks, 5 ms
/// apart, tell.
const LOOKS: u32 = 40;

/// How often mail is looked for while somebody polls and none comes.
pub(super) const MAIL_NS: u64 = 100_000;

/// Opens the socket of an address, and takes a place among those who have it too.
///
/// # Errors
/// As [`UdpPort::open`]; [`Error::AddressInUse`]: a stranger has the port, or the QPN blocks have owners.
///
/// # Safety
/// The memory of the layout is the device's alone.
pub(super) unsafe fn open(
    memory: *mut u8,
    layout: &Layout,
    at: &Endpoint,
    config: &SoftConfig<'_>,
    seed: u64,
) -> Result<(UdpPort, Member)> {
    let cfg = config.udp();
    let socket = |at: &Endpoint, cfg: &UdpConfig| {
        // SAFETY: the walk gave `udp..share` to the socket alone, and a port that failed to open uses it no more.
        unsafe { UdpPort::open(at, cfg, memory.add(layout.udp), layout.share - layout.udp) }
    };
    let wanted = config.wanted()?;
    let claim = |at: &Endpoint| {
        // SAFETY: the walk gave `share..shm` to the claim alone.
        unsafe { Claim::take(at, &wanted, seed, memory.add(layout.share), layout.shm - layout.share) }
    };
    let range = |claim: &Claim| {
        let c = config.core.resolve().unwrap_or_default();
        (if config.core.qpn_base == 0 { claim.qpn_base() } else { c.qpn_base }, c.qpn_count)
    };
    let now = crate::clock::now_ns();
    if at.port == 0 {
        // Nobody else can have a port that is still to be chosen.
        let port = socket(at, &cfg)?;
        let claim = claim(port.local())?;
        port.share()?;
        let qpns = range(&claim);
        let member = claim.join(port.fd(), qpns, true, now)?;
        return Ok((port, member));
    }
    let mut claim = claim(at)?;
    let qpns = range(&claim);
    let mut looks = 0;
    loop {
        match socket(at, &cfg) {
            Ok(port) => {
                port.share()?;
                let member = claim.join(port.fd(), qpns, true, now)?;
                return Ok((port, member));
            }
            Err(Error::AddressInUse) => {}
            Err(e) => return Err(e),
        }
        claim.look();
        if claim.has_company() {
            match socket(at, &UdpConfig { flags: cfg.flags | udp_flags::REUSE_PORT, ..cfg }) {
                Ok(port) => {
                    let member = claim.join(port.fd(), qpns, false, now)?;
                    return Ok((port, member));
                }
                // The first one has bound its socket, and does not share it yet.
                Err(Error::AddressInUse) => {}
                Err(e) => return Err(e),
            }
        }
        looks += 1;
        if looks == LOOKS {
            return Err(Error::AddressInUse);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Takes what one receive brought: what is for this device to the engine, the rest to its owners. `late`: the time as of a moment ago.
/// Returns the packets handled.
#[inline]
pub(super) fn take(
    g: &mut Guard<'_>,
    share: &mut Member,
    late: u64,
    mut now: impl FnMut() -> u64,
    r: &RxPacket<'_>,
) -> usize {
    let seg = usize::from(r.seg).max(1);
    if !share.has_company() && share.is_quiet() || r.data.chunks(seg).all(|p| share.owner_of(p) == Owner::Here) {
        share.reached(late);
        return g.handle_packets_of_late(late, now, &peer_addr(&r.src), seg, r.data, r.ecn == 3);
    }
    sort(g, share, now(), r)
}

/// Each piece of consecutive packets with one owner by itself. Who passes packets on has handled them: a device that is about to end
/// must not leave others' in its socket.
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
            Owner::Own => data.chunks(seg).for_each(|packet| share.take_own(packet)),
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

/// A packet for QP1, which all devices of an address share: whose id it names, or who listens, gets it. The engine answers
/// what nobody wants, as it does for a device alone.
fn route_mad(g: &mut Guard<'_>, share: &mut Member, now: u64, p: &Packets<'_>) -> usize {
    let to = match p.data.split_last_chunk::<ICRC_LEN>().map(|(body, _)| Run::parse_packet(body)) {
        Some(Ok((run, mad))) if run.dest_qpn == GSI_QPN => Addressee::of(mad),
        _ => Addressee::Anyone,
    };
    let passed = match to {
        _ if g.cm().is_mine(to) => false,
        Addressee::Block(block) => share.pass(block, p),
        Addressee::Service { port_space, port } => share.pass_to_service(port_space, port, p),
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
        self.guard.cm().listen(id, backlog)
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
            let ours = p.data.chunks(seg).all(|packet| matches!(share.owner_of(packet), Owner::Here | Owner::Block(0)));
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

    /// When the device is wanted next, besides what the engine says.
    pub(super) fn share_deadline(&self) -> Option<u64> {
        self.share.as_ref().and_then(Member::deadline)
    }
}

/// A datagram that came over a link to the address, for another device there: passed on as the packet that it would have been.
#[cold]
pub(super) fn pass_run(share: &mut Option<Member>, local: &Endpoint, from: &Endpoint, run: &Run, payload: &[u8]) {
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
