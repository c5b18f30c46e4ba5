//! Packets of the other devices of one address: each received packet goes to its owner
//! ([`crate::addr_group`]).

use crate::addr::Endpoint;
use crate::addr_group::{ForEngine, Member, Owner, Packets};
use crate::port::RxPacket;
use crate::soft::peers::witness::note_refusal;
use crate::soft::{endpoint, peer_addr, PortState};
use gdrcore_core::cm::Addressee;
use gdrcore_core::config::qpn_block;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::engine::{Arrival, EngineGuard};
use gdrcore_core::mem::host;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::{Class, IcrcFlow, ICRC_LEN};

/// Passes received packets of this device to the engine and forwards the others. `recent`: the time
/// of an earlier round. Returns the packets handled.
#[inline]
pub(in crate::soft) fn receive_shared(
    g: &mut EngineGuard<'_>,
    member: &mut Member,
    recent: u64,
    mut now: impl FnMut() -> u64,
    r: &RxPacket<'_>,
) -> usize {
    let seg = usize::from(r.seg).max(1);
    // A member that knows of no other may not have read yet that one has joined. The data packets
    // that it drops are sent again, but a connection request for the other member would be refused.
    let lone = !member.has_others() && member.is_settled();
    if lone && !matches!(member.owner_of(r.data), Owner::SelfTest | Owner::Block(0))
        || r.data.chunks(seg).all(|p| member.owner_of(p) == Owner::Local)
    {
        member.note_direct(recent);
        return g.handle_arrival(&r.arrival(recent), now);
    }
    split_by_owner(g, member, now(), r)
}

/// Handles each run of consecutive packets with one owner. Forwarded packets count as handled,
/// because a device that is about to end must not leave them in its socket.
#[cold]
pub(in crate::soft) fn split_by_owner(
    g: &mut EngineGuard<'_>,
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
            Owner::SelfTest => {
                for (i, packet) in data.chunks(seg).enumerate() {
                    if !member.take_self_test(packet) {
                        // The packet is no test: the engine finds its fault and counts it.
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

fn to_engine(g: &mut EngineGuard<'_>, now: u64, p: &Packets<'_>) -> usize {
    let r = RxPacket { src: sender(p), seg: p.seg, data: p.data };
    g.handle_arrival(&Arrival { first: p.first, ..r.arrival(now) }, || now)
}

/// Routes a packet for QP1, which all devices of an address share, by the id or the service that it
/// names. The engine handles a packet that no member takes, as on a device alone.
fn route_mad(g: &mut EngineGuard<'_>, member: &mut Member, now: u64, p: &Packets<'_>) -> usize {
    let to = match p.data.split_last_chunk::<ICRC_LEN>().map(|(body, _)| Run::parse_packet(body)) {
        Some(Ok((run, mad))) if run.dest_qpn == GSI_QPN => Addressee::from_mad(mad),
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

impl PortState {
    /// Receives messages of the group and maintains the membership. Returns the packets handled.
    pub(in crate::soft) fn maintain_group(&mut self, g: &mut EngineGuard<'_>, now: u64) -> usize {
        let Some(member) = &mut self.member else { return 0 };
        let waits = member.has_others() && g.next_timeout(now).is_some();
        let local = self.net.as_ref().map(|net| *net.local()).unwrap_or_default();
        let (tap, ports) = (&mut self.tap, &mut self.ports);
        let look_ups = &mut self.refused;
        let handled = member.poll(now, |member, mail| {
            let p = match mail {
                ForEngine::Packets(p) => p,
                ForEngine::Refused(dst, errno) => {
                    note_refusal(g, look_ups, now, dst, *errno);
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
            let mut take = |g: &mut EngineGuard<'_>, p: &Packets<'_>| {
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
        if member.take_interface_change() {
            self.follow_interface(g);
        }
        self.answer_status_request(g);
        handled
    }
}

/// Forwards a datagram of a link to the address, for another device there, as the packet that the
/// network would have carried.
#[cold]
pub(in crate::soft) fn forward_run(
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
    IcrcFlow::from_gids(&from.ip, &local.ip, from.port, local.port).append_icrc(0, packet);
    let p = Packets { src: *from, seg: len as u16, first: 0, grh: run.grh, data: packet };
    let block = qpn_block(run.dest_qpn);
    if !member.forward(block, &p) {
        member.count_dropped(1);
    }
}
