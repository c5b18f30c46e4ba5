//! Packets and messages among the devices of one address: opens the shared socket, and passes each
//! received packet to its owner ([`crate::addr_group`]).

use super::layout::Opening;
use super::lock::EngineLock;
use super::witness::refused;
use super::{endpoint, peer_addr, PortState, SoftConfig};
use crate::addr::Endpoint;
use crate::addr_group::{request_renewal, Claim, ForEngine, Member, Owner, Packets};
use crate::clock::{now_ns, wall_ns};
use crate::local::{sweep, SocketDir};
use crate::port::RxPacket;
use crate::reason::say;
use crate::shm::ShmPort;
use crate::udp::{udp_flags, UdpConfig, UdpPort};
use crate::wait::Waiter;
use gdrcore_core::cm::Addressee;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::engine::{Arrival, Guard};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::roce::run::Run;
use gdrcore_core::verbs::types::Handle;
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::{Class, Flow, ICRC_LEN};
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
pub(super) unsafe fn open(
    opening: &Opening<'_>,
    at: &Endpoint,
    config: &SoftConfig<'_>,
    seed: u64,
    out: (&mut Option<UdpPort>, &mut Option<Member>),
) -> Result<()> {
    let (cfg, layout) = (config.udp(), opening.layout);
    let socket = |at: &Endpoint, cfg: &UdpConfig| {
        let (memory, bytes) = opening.range(layout.udp, layout.member);
        // SAFETY: the layout gives `udp..member` to the socket alone, and a port that failed to
        // open no longer uses it.
        unsafe { UdpPort::open(at, cfg, memory, bytes) }
    };
    let (wanted, bounds) = (config.wanted()?, config.claim()?);
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

/// Passes received packets of this device to the engine and forwards the others. `late`: the time
/// of an earlier round. Returns the packets handled.
#[inline]
pub(super) fn receive_shared(
    g: &mut Guard<'_>,
    member: &mut Member,
    late: u64,
    mut now: impl FnMut() -> u64,
    r: &RxPacket<'_>,
) -> usize {
    let seg = usize::from(r.seg).max(1);
    // A member that knows of no other may not have read yet that one has joined. The data packets
    // that it drops are sent again, but a connection request for the other member would be refused.
    let lone = !member.has_others() && member.is_settled();
    if lone && !matches!(member.owner_of(r.data), Owner::Probe | Owner::Block(0))
        || r.data.chunks(seg).all(|p| member.owner_of(p) == Owner::Local)
    {
        member.note_direct(late);
        return g.handle_arrival(&r.arrival(late), now);
    }
    split_by_owner(g, member, now(), r)
}

/// Handles each run of consecutive packets with one owner. Forwarded packets count as handled,
/// because a device that is about to end must not leave them in its socket.
#[cold]
pub(super) fn split_by_owner(
    g: &mut Guard<'_>,
    member: &mut Member,
    now: u64,
    r: &RxPacket<'_>,
) -> usize {
    let seg = usize::from(r.seg).max(1);
    let mut handled = 0;
    let mut at = 0;
    while at < r.data.len() {
        let rest = &r.data[at..];
        let owner = member.owner_of(&rest[..seg.min(rest.len())]);
        let same = rest.chunks(seg).take_while(|p| member.owner_of(p) == owner).count();
        // Each message of the connection manager may have another owner.
        let n = if owner == Owner::Block(0) { 1 } else { same };
        let data = &rest[..(n * seg).min(rest.len())];
        let (src, grh) = (endpoint(&r.src), r.src.grh());
        let p = Packets { src, seg: r.seg, first: (at / seg) as u16, grh, data };
        match owner {
            Owner::Local => handled += to_engine(g, now, &p),
            Owner::Probe => {
                for (i, packet) in data.chunks(seg).enumerate() {
                    if !member.take_probe(packet) {
                        // The packet is no probe: the engine finds its fault and counts it.
                        handled += to_engine(
                            g,
                            now,
                            &Packets { first: p.first + i as u16, data: packet, ..p },
                        );
                    }
                }
            }
            Owner::Block(0) => handled += route_mad(g, member, now, &p),
            Owner::Block(block) => {
                // Without an owner, the engine finds the packet's fault and counts it.
                handled += if member.forward(block, &p) { same } else { to_engine(g, now, &p) };
            }
        }
        at += data.len();
    }
    handled
}

/// The sender of packets, with the fields of their IP header.
fn sender(p: &Packets<'_>) -> PeerAddr {
    let Fields { flow_label, traffic_class, hop_limit } = p.grh;
    PeerAddr { flow_label, traffic_class, hop_limit, ..peer_addr(&p.src) }
}

fn to_engine(g: &mut Guard<'_>, now: u64, p: &Packets<'_>) -> usize {
    let r = RxPacket { src: sender(p), seg: p.seg, data: p.data };
    g.handle_arrival(&Arrival { first: p.first, ..r.arrival(now) }, || now)
}

/// Routes a packet for QP1, which all devices of an address share, by the id or the service that it
/// names. The engine handles a packet that no member takes, as on a device alone.
fn route_mad(g: &mut Guard<'_>, member: &mut Member, now: u64, p: &Packets<'_>) -> usize {
    let to = match p.data.split_last_chunk::<ICRC_LEN>().map(|(body, _)| Run::parse_packet(body)) {
        Some(Ok((run, mad))) if run.dest_qpn == GSI_QPN => Addressee::of(mad),
        _ => Addressee::Anyone,
    };
    let passed = match to {
        _ if g.cm().is_mine(to) => false,
        Addressee::Block(block) => member.forward(block, p),
        Addressee::Service { port_space, port } => {
            // A request for a service that was withdrawn a moment ago is not refused, so that the
            // sender repeats it.
            member.forward_to_service(port_space, port, p) || member.is_former(now, port)
        }
        Addressee::Anyone => false,
    };
    if passed {
        1
    } else {
        to_engine(g, now, p)
    }
}

impl EngineLock<'_> {
    /// Listens at an id's port: one listener for each port among all devices of the address.
    pub(super) fn listen(&mut self, id: Handle, backlog: u32) -> Result<()> {
        let (port_space, port) = self.guard.cm().bound(id)?;
        if let Some(member) = &mut self.port().member {
            member.offer(id, port_space, port)?;
        }
        self.guard.cm_listen(now_ns(), id, backlog)
    }

    /// Takes the name of an id's port before it listens, so that requests for it come to this
    /// device and no other device refuses them.
    pub(super) fn announce(&mut self, id: Handle, soon: bool) -> Result<()> {
        let (port_space, port) = self.guard.cm().bound(id)?;
        if let Some(member) = &mut self.port().member {
            if soon {
                member.offer(id, port_space, port)?;
            } else {
                member.withdraw(id);
            }
        }
        self.guard.cm().announce(id, soon)
    }

    /// Withdraws the service of an id that has ended.
    pub(super) fn withdraw(&mut self, id: Handle) {
        if let Some(member) = &mut self.port().member {
            member.withdraw(id);
        }
    }
}

impl PortState {
    /// Receives messages of the group and maintains the membership. Returns the packets handled.
    pub(super) fn maintain_group(&mut self, g: &mut Guard<'_>, now: u64) -> usize {
        let Some(member) = &mut self.member else { return 0 };
        let waits = member.has_others() && g.next_timeout(now).is_some();
        let local = self.net.as_ref().map(|net| *net.local()).unwrap_or_default();
        let (tap, ports) = (&mut self.tap, &mut self.ports);
        let look_ups = &mut self.refused;
        let handled = member.poll(now, |member, mail| {
            let p = match mail {
                ForEngine::Packets(p) => p,
                ForEngine::Refused(dst, errno) => {
                    refused(g, look_ups, now, dst, *errno);
                    return 0;
                }
            };
            // Packets are forwarded once: if another device owns the block by now, they are
            // dropped.
            let seg = usize::from(p.seg).max(1);
            let ours = p
                .data
                .chunks(seg)
                .all(|packet| matches!(member.owner_of(packet), Owner::Local | Owner::Block(0)));
            if !ours {
                member.count_dropped(p.data.len().div_ceil(seg) as u64);
                return 0;
            }
            if p.data.chunks(seg).any(|packet| member.owner_of(packet) == Owner::Local) {
                member.note_detour(now);
            }
            let mut take = |g: &mut Guard<'_>, p: &Packets<'_>| {
                let n = to_engine(g, now, p);
                member.count_detoured(n as u64);
                if ports.vet_refused(g, &local) {
                    // Handled like packets from the socket.
                    to_engine(g, now, p);
                }
                n
            };
            match tap {
                None => take(g, p),
                Some(tap) => {
                    let r = RxPacket { src: sender(p), seg: p.seg, data: p.data };
                    tap.capture(now, &r, &local, p.first);
                    tap.arrive(g, now, &r, &local, &mut |g, r| {
                        let grh = r.src.grh();
                        take(g, &Packets { grh, data: r.data, seg: r.seg, ..*p })
                    })
                }
            }
        });
        member.maintain(now, waits);
        if member.take_beside() {
            self.follow_interface(g);
        }
        self.answer_status_request(g);
        handled
    }

    /// Takes the device's names again after their directory was removed.
    #[cold]
    pub(super) fn renew_names(&mut self, waiter: &Waiter) {
        let Some(member) = &mut self.member else { return };
        if member.renew().is_ok() {
            if let Some(shm) = &mut self.shm {
                let _ = shm.renew(member.socket_dir(), member.locks().next(), waiter);
            }
        }
    }

    /// The next time at which the group or the links need a round.
    pub(super) fn deadline(&self) -> Option<u64> {
        let member = self.member.as_ref().and_then(Member::deadline);
        let shm = self.shm.as_ref().and_then(ShmPort::deadline);
        let tap = self.tap.as_ref().and_then(|tap| tap.due());
        member.into_iter().chain(shm).chain(self.router.outage.deadline()).chain(tap).min()
    }
}

/// Forwards a datagram of a link to the address, for another device there, as the packet that the
/// network would have carried.
#[cold]
pub(super) fn forward_run(
    member: &mut Option<Member>,
    local: &Endpoint,
    from: &Endpoint,
    run: &Run,
    payload: &[u8],
) {
    let Some(member) = member else { return };
    let opcode = run.opcode(true, true);
    let (head, pad) = (opcode.header_len(), payload.len().wrapping_neg() & 3);
    let len = head + payload.len() + pad + ICRC_LEN;
    let mut packet = [0u8; 4096 + 128];
    if run.class != Class::Ud || run.n != 1 || len > packet.len() {
        return member.count_dropped(1);
    }
    let packet = &mut packet[..len];
    run.emit_headers(opcode, run.psn, false, pad as u8, &mut packet[..head]);
    // The writer may change the payload at any time, so it is copied like program memory.
    if host::fetch(payload.as_ptr() as u64, &mut packet[head..head + payload.len()]).is_err() {
        return member.count_dropped(1);
    }
    Flow::from_gids(&from.ip, &local.ip, from.port, local.port).append_icrc(0, packet);
    let p = Packets { src: *from, seg: len as u16, first: 0, grh: run.grh, data: packet };
    let block = (run.dest_qpn / gdrcore_core::config::QPN_UNIT) as u16;
    if !member.forward(block, &p) {
        member.count_dropped(1);
    }
}
