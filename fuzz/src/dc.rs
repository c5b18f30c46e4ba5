//! DC: packets of any content into targets and initiators in every state.

use gdrcore_core::counters::Counters;
use gdrcore_core::verbs::types::{qp_state, qp_type};
use gdrcore_core::wire::dceth::{DcEth, DcMessage};
use gdrcore_core::wire::{IcrcFlow, Opcode, ICRC_LEN};

use crate::bytes::Bytes;
use crate::host::{Host, DC_KEY};
use crate::name_memory;

/// Most packets of data; the rest have any opcode of RC.
const DATA: [Opcode; 6] = [
    Opcode::RC_SEND_ONLY,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_ACK,
    Opcode::RC_READ_RESPONSE_ONLY,
];
const MESSAGES: [DcMessage; 6] = [
    DcMessage::Open,
    DcMessage::Accept,
    DcMessage::Refuse,
    DcMessage::Close,
    DcMessage::Reclaim,
    DcMessage::Gone,
];

/// An engine with targets and initiators, and a peer that sends control and data packets of DC.
///
/// Most control packets have an id, a key and a QPN that are right, or were right a moment ago:
/// without that, nearly all would end at the first check. Returns the engine's counters.
pub fn dc(data: &[u8]) -> Counters {
    let mut input = Bytes::new(data);
    let mut host = Host::new(1);
    let mut targets = vec![host.dc_target(qp_state::RTR)];
    targets.push(host.dc_target(qp_state::INIT));
    let states = [qp_state::RESET, qp_state::RTR, qp_state::RTS, qp_state::SQD, qp_state::ERR];
    let initiators: Vec<_> = states.iter().map(|&s| host.qp(qp_type::DCI, s)).collect();
    host.aim(0x77);
    for &(qp, _) in &initiators {
        host.post_some(qp);
    }
    let (local, peer) = (host.addr, Host::peer_addr(1));
    let flow = IcrcFlow::from_gids(&peer.gid, &local.gid, peer.port, local.port);
    let mut now = 1_000_000u64;
    for _ in 0..96 {
        if input.is_empty() {
            break;
        }
        let plan = input.u8();
        let contexts = host.contexts();
        let chosen = usize::from(input.u8());
        let target = targets[usize::from(chosen % 8 == 7)];
        let initiator = initiators[if chosen < 200 { 2 } else { chosen % initiators.len() }];
        let context = contexts.get(chosen % contexts.len().max(1)).copied().unwrap_or((0x99, 0));
        let mut packet = vec![0u8; 12];
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        let (to, psn) = if plan & 3 == 0 {
            // Data, mostly to a context.
            let op = DATA[usize::from(input.u8()) % DATA.len()];
            let known = if plan & 0x20 == 0 { op } else { Opcode(input.u8() & 0x1f) };
            packet[0] = 0xc0 | known.0;
            packet[1] = 0x80 & input.u8();
            let headers = known.header_len().max(12);
            packet.extend_from_slice(input.take(headers - 12));
            packet.resize(headers, 0);
            if known.has_payload() {
                packet.resize(packet.len() + (usize::from(input.u8()) & !3), 0x5a);
            }
            let form = input.u8();
            name_memory(&mut packet, (known, 12), (plan & 0x40, form), &mut input, &host);
            let far = i32::from(input.u8() as i8) * i32::from(plan & 0x10 != 0);
            match known == Opcode::RC_ACK || known == Opcode::RC_READ_RESPONSE_ONLY {
                true => (initiator.1, host.expected_psn(initiator.0, true)),
                false => (context.0, context.1.wrapping_add_signed(far) & 0xff_ffff),
            }
        } else {
            let mut eth = DcEth::new(MESSAGES[usize::from(input.u8()) % 6], 0x55, 0);
            eth.flags = input.u8() & if plan & 0x20 == 0 { 3 } else { 0xff };
            (eth.mtu, eth.depth) = (input.u8() & 7, input.u8());
            eth.time = u32::from(input.u16()) << (plan & 0xf);
            eth.incarnation = u64::from(input.u8());
            eth.version = if plan & 0x40 == 0 { 1 } else { input.u8() };
            let asks = eth.message == DcMessage::Open || eth.message == DcMessage::Close;
            if asks {
                // Few peers with few lives, so that they meet their own contexts.
                (eth.qpn, eth.id) = (u32::from(input.u8() & 3), u64::from(input.u8() & 3));
                eth.word = if plan & 0x80 == 0 { DC_KEY } else { u64::from(input.u8()) };
            } else {
                let behind = if plan & 0x80 == 0 { 0 } else { u64::from(input.u8() & 3) };
                (eth.qpn, eth.id) = (0x99, host.association(initiator.0).wrapping_sub(behind));
            }
            packet[0] = Opcode::DC_CONTROL.0;
            packet.extend_from_slice(&eth.bytes());
            match eth.message {
                DcMessage::Open => (target.1, u32::from(input.u8())),
                DcMessage::Close => (context.0, 0),
                _ => (initiator.1, u32::from(input.u8())),
            }
        };
        packet[5..8].copy_from_slice(&to.to_be_bytes()[1..]);
        packet[8] |= 0x80;
        packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        while packet.len() % 4 != 0 {
            packet.push(0);
        }
        packet.extend_from_slice(&[0; ICRC_LEN]);
        flow.append_icrc(0, &mut packet);
        host.receive(now, &peer, &packet);
        let step = input.u8();
        match step {
            0..=3 => host.modify_any(target.0, step),
            4..=7 => host.modify_any(initiator.0, step),
            8..=11 => host.post_some(initiator.0),
            _ => {}
        }
        // Sometimes beyond a lease.
        now += u64::from(step) * if step > 250 { 50_000_000 } else { 20_000 };
        host.round(now);
        host.check();
    }
    host.finish(now)
}
