//! Fuzzes the router's relay: sessions join, listen, send packets of any content, and leave. No
//! packet may reach a receiver that its sender may not reach, or by another address than it named,
//! or with a source number that is not its sender's.

use crate::bytes::Bytes;
use crate::coverage::counts;
use gdrcore_core::cm::mad::{Ids, Mad, Message, Req, MAD_LEN};
use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::engine::cm::GSI_QPN;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, PacketKind, Psn, ICRC_LEN};
use gdrcore_net::addr::Endpoint;
use gdrcore_net::via::proto::Service;
use gdrcore_router::relay::{Destination, Far, FarPeer, Refused, SessionAddress, Slots, Switch};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

counts! {
    Relayed {
        /// Packets that were passed on.
        passed: u64,
        /// Messages of connection managers among them.
        managed: u64,
        /// Packets that were passed on to other hosts.
        abroad: u64,
        /// Packets of other hosts that were passed on here.
        arrived: u64,
        /// Packets that were refused, by [`Refused`].
        refused: [u64; Refused::ALL.len()],
    }
}

/// Few networks, addresses and blocks, so that sessions share them.
const SESSIONS: u16 = 6;

/// A session: its network, address and blocks.
type Known = (u32, [u8; 16], Range<u32>);

/// Tenants of another host, one in each network, with an address that no session here has.
fn far() -> Far {
    let at = Endpoint::v4([192, 0, 2, 1], 4791);
    let peer = |network: u32, blocks| FarPeer { network, gid: FAR, blocks, at };
    Far::new(vec![peer(0, 1..3), peer(1, 3..5)])
}

const FAR: [u8; 16] = [3; 16];

/// The string selects the sessions with their addresses, the policy, the listeners, and the
/// packets. Each packet that is passed on is compared with the attributes of both ends.
pub fn relay(data: &[u8]) -> Relayed {
    let mut input = Bytes::new(data);
    let mut seen = Relayed::default();
    let slots = Arc::new(Slots::default());
    let mut switch = Switch::new(slots.clone(), 8);
    let far = Arc::new(far());
    drop(switch.set_far(far.clone()));
    let mut here: BTreeMap<u16, Known> = BTreeMap::new();
    let mut now = 0u64;
    while !input.is_empty() {
        let slot = u16::from(input.u8()) % SESSIONS;
        match input.u8() % 16 {
            0..=2 if !here.contains_key(&slot) => {
                // A block has one owner.
                let first = 1 + u32::from(slot) * 2;
                let known = (
                    u32::from(input.u8() % 2),
                    [input.u8() % 3; 16],
                    first..first + 1 + u32::from(slot % 2),
                );
                let (network, gid, blocks) = known.clone();
                switch.join(now, slot, SessionAddress { network, gid, blocks });
                here.insert(slot, known);
            }
            3 => {
                switch.leave(slot);
                slots.forbid_all(slot);
                far.forbid_all(slot);
                here.remove(&slot);
            }
            4 => slots.set_allowed(slot, u16::from(input.u8()) % SESSIONS, input.u8() % 4 > 0),
            5 => far.set_allowed(slot, u32::from(input.u8() % 2), input.u8() % 4 > 0),
            6 => {
                let service = Service { space: 0x106, port: u16::from(input.u8() % 4) };
                switch.listen(slot, service, input.u8() % 4 > 0);
            }
            7 => now += u64::from(input.u16()) << 16,
            8 => {
                let peer = u32::from(input.u8() % 3);
                let known = far.peer(peer).map(|p| (p.network, p.gid, p.blocks.clone()));
                let packet = packet(&mut input, known.as_ref());
                match switch.route_far(peer, &packet) {
                    Ok(reached) => {
                        seen.arrived += 1;
                        assert!(far.is_allowed(reached, peer), "policy");
                        ends(&known.expect("a peer"), &here[&reached], &packet);
                    }
                    Err(why) => seen.refused[why as usize] += 1,
                }
            }
            _ => {
                let to = [input.u8() % 4; 16];
                let packet = packet(&mut input, here.get(&slot));
                match switch.route(now, slot, &to, &packet) {
                    Ok(Destination::Far(peer)) => {
                        seen.abroad += 1;
                        assert!(far.is_allowed(slot, peer) && to == FAR, "policy");
                        let p = far.peer(peer).expect("a peer");
                        ends(&here[&slot], &(p.network, p.gid, p.blocks.clone()), &packet);
                    }
                    Ok(Destination::Slot(reached)) => {
                        seen.passed += 1;
                        seen.managed +=
                            u64::from(check(&here, &slots, (slot, reached), &to, &packet));
                    }
                    Ok(Destination::Outside) => panic!("no tenant may talk to plain endpoints"),
                    Err(why) => seen.refused[why as usize] += 1,
                }
            }
        }
    }
    seen
}

/// Checks that a packet was allowed to its receiver; true if it belongs to the connection manager.
fn check(
    here: &BTreeMap<u16, Known>,
    slots: &Slots,
    (from, to): (u16, u16),
    gid: &[u8; 16],
    packet: &[u8],
) -> bool {
    let (sender, receiver) = (&here[&from], &here[&to]);
    assert!(slots.is_allowed(from, to), "policy");
    assert_eq!(receiver.1, *gid, "another address");
    ends(sender, receiver, packet)
}

/// Checks that a packet is allowed between these; true if it belongs to the connection manager.
fn ends(sender: &Known, receiver: &Known, packet: &[u8]) -> bool {
    assert_eq!(sender.0, receiver.0, "another network");
    let body = &packet[..packet.len() - ICRC_LEN];
    let (run, _) = Run::parse_packet(body).expect("a packet");
    if run.dest_qpn == GSI_QPN {
        assert!(run.class == Class::Ud && run.src_qpn == GSI_QPN);
        return true;
    }
    assert!(receiver.2.contains(&(run.dest_qpn / QPN_UNIT)), "a queue pair of another session");
    assert!(run.class != Class::Ud || sender.2.contains(&(run.src_qpn / QPN_UNIT)), "its source");
    assert!(matches!(run.class, Class::Ud | Class::Rc | Class::Uc | Class::Xrc | Class::Cnp));
    false
}

/// Mostly a valid packet, sometimes with a byte changed or the end missing.
fn packet(input: &mut Bytes<'_>, sender: Option<&Known>) -> Vec<u8> {
    let qpn = |n: u8| u32::from(n % 16) * QPN_UNIT + 3;
    let own = sender.map_or(0, |known| known.2.start * QPN_UNIT + 3);
    let class = [Class::Rc, Class::Uc, Class::Ud, Class::Xrc][usize::from(input.u8() % 4)];
    let mut run = Run::new(class, PacketKind::Send, qpn(input.u8()), Psn::new(1));
    run.src_qpn = if input.u8() < 200 { own } else { qpn(input.u8()) };
    let mut payload = vec![7; usize::from(input.u8())];
    if input.u8() < 60 {
        run =
            Run { src_qpn: GSI_QPN, ..Run::new(Class::Ud, PacketKind::Send, GSI_QPN, Psn::new(1)) };
        let n = u32::from(input.u8());
        let service_id = 0x0106 << 16 | u64::from(n % 4);
        let message = match input.u8() % 3 {
            0 => Message::Rtu(Ids { local_comm_id: 1, remote_comm_id: (n % 16) << 22 }),
            _ => {
                let remote_gid = [n as u8 / 4 % 4; 16];
                Message::Req(Req { service_id, local_comm_id: 1, remote_gid, ..Req::default() })
            }
        };
        let mut mad = [0; MAD_LEN];
        Mad { tid: 1, message }.emit(&mut mad);
        payload = mad.to_vec();
    }
    let opcode = run.opcode(true, true);
    let mut bytes = vec![0; opcode.header_len()];
    run.emit_headers(opcode, run.psn, false, 0, &mut bytes);
    bytes.extend_from_slice(&payload);
    bytes.extend_from_slice(&[0; ICRC_LEN]);
    match input.u8() {
        0..=15 => {
            let at = input.below(bytes.len());
            bytes[at] ^= input.u8();
        }
        16..=23 => bytes.truncate(input.below(bytes.len() + 1)),
        24..=31 => return input.take(60).to_vec(),
        _ => {}
    }
    bytes
}
