//! Fuzz targets: functions of a byte string that must return, whatever the string is.
//!
//! * [`packets`]: packets of any content into an engine with QPs of every type and state.
//! * [`pair`]: two engines; the string selects the requests and the network's faults.
//! * [`mod@dc`]: control and data packets of DC into targets and initiators in every state.
//! * [`wire`]: the packet parsers.
//! * [`mod@mail`]: messages between the processes of one address.
//! * [`mod@router`]: the router's broker, with messages of any processes.
//! * [`mod@policy`]: what a router reads of its operator: policies, maps of hosts, requests.
//! * [`mod@feed`]: the map of hosts as an adapter brings it, with any events.
//! * [`mod@remote`]: verbs that a router executes: any calls, queues and doorbells of its tenants.
//! * [`mod@relay`]: the router's relay, with frames of any content.
//! * [`mod@cm`]: two connection managers, their programs, the network between them and a stranger.
//! * [`mod@capi`]: the C calls in any order, with arguments that no correct program passes.
//!
//! The same functions run under libFuzzer (`targets/`, nightly) and, with a bounded number of
//! random strings, in `tests/bounded.rs` on stable.

mod bytes;
mod capi;
mod cm;
mod coverage;
mod dc;
mod feed;
mod host;
mod mail;
mod policy;
mod relay;
mod remote;
mod router;

use bytes::Bytes;
use gdrcore_core::counters::Counters;
use gdrcore_core::roce::run::Run;
use gdrcore_core::verbs::types::{qp_state, qp_type, wr_opcode};
use gdrcore_core::wire::dceth::DcEth;
use gdrcore_core::wire::{Class, Feth, IcrcFlow, Opcode, PacketKind, ICRC_LEN};
use gdrcore_testkit::packet::{Packet, View};
use host::Host;

pub use capi::{capi, Reached};
pub use cm::{cm, Managed};
pub use coverage::{Counts, Coverage};
pub use dc::dc;
pub use feed::{feed, Fed};
pub use mail::{mail, Mailed};
pub use policy::{policy, Ruled};
pub use relay::{relay, Relayed};
pub use remote::{remote, Served};
pub use router::{router, Routed};

/// Opcodes of most packets; the rest have any opcode.
const COMMON: [Opcode; 8] = [
    Opcode::RC_ACK,
    Opcode::RC_SEND_ONLY,
    Opcode::RC_WRITE_ONLY,
    Opcode::RC_READ_REQUEST,
    Opcode::RC_READ_RESPONSE_ONLY,
    Opcode::RC_FETCH_ADD,
    Opcode::RC_ATOMIC_WRITE,
    Opcode::RC_FLUSH,
];

/// Valid syndromes of an AETH: ACK, RNR NAK, and the four NAKs of RC.
const SYNDROMES: [u8; 6] = [0x1f, 0x2c, 0x60, 0x61, 0x62, 0x63];

/// Placement types and levels of a FETH, the last two of which do not exist.
const FETHS: [u8; 8] = [0x01, 0x11, 0x02, 0x12, 0x03, 0x13, 0x00, 0x21];

/// Index of the RC queue pair that sends, among those of [`packets`].
const RTS: usize = 3;

/// Packets into an engine with QPs in every state.
///
/// Each packet of the string begins with a plan: the QP, the distance from the expected PSN,
/// whether the ICRC is valid. Without that, nearly every string would end at the ICRC check.
/// Returns the engine's counters.
pub fn packets(data: &[u8]) -> Counters {
    let mut input = Bytes::new(data);
    let mut host = Host::new(1);
    let mut qps = Vec::new();
    for state in [
        qp_state::RESET,
        qp_state::INIT,
        qp_state::RTR,
        qp_state::RTS,
        qp_state::SQD,
        qp_state::ERR,
    ] {
        qps.push(host.qp(qp_type::RC, state));
    }
    for state in [qp_state::RTR, qp_state::RTS, qp_state::ERR] {
        qps.push(host.qp(qp_type::UC, state));
        qps.push(host.qp(qp_type::UD, state));
    }
    for &(qp, _) in &qps {
        host.post_some(qp);
    }
    let (target, srqn) = host.xrc_target(qp_state::RTR);
    qps.push(target);
    let (local, peer) = (host.addr, Host::peer_addr(1));
    let flow = IcrcFlow::from_gids(&peer.gid, &local.gid, peer.port, local.port);
    let mut now = 1_000_000u64;
    for _ in 0..64 {
        if input.is_empty() {
            break;
        }
        let plan = input.u8();
        let mut chosen = usize::from(input.u8()) % qps.len();
        let far = i32::from(input.u8() as i8);
        let psn_delta = if plan & 0x80 == 0 { far % 3 } else { far };
        let opcode = input.u8();
        let known = match usize::from(opcode) {
            n @ 128.. => COMMON[n % COMMON.len()],
            n => Opcode::ALL[n % Opcode::ALL.len()],
        };
        // To the XRC target mostly its own packets.
        let of_xrc = chosen == qps.len() - 1 && known.class() == Class::Rc;
        let known = if of_xrc { known.of_xrc() } else { known };
        let mut packet = vec![0u8; 12];
        packet[0] = if plan & 0x10 == 0 { known.0 } else { opcode };
        packet[1] = input.u8() & if plan & 0x20 == 0 { 0x80 } else { 0xf0 };
        packet[2..4].copy_from_slice(&[0xff, 0xff]);
        let at_memory = if known.has_xrceth() { 16 } else { 12 };
        // The extended headers come from the string; the payload mostly has a legal length.
        let headers = known.header_len() - 12;
        let form = input.u8();
        let more = usize::from(form & 7);
        // Only one queue pair has outstanding requests that answers may match.
        let answers = form & 0x40 == 0 && known.has_aeth() && !of_xrc;
        if answers {
            chosen = RTS;
        }
        let (qp, qpn) = qps[chosen];
        packet.extend_from_slice(input.take(headers + more));
        if known.has_payload() && plan & 0x40 == 0 {
            let bytes = match known.is_last() {
                // Most ATOMIC WRITEs have the length that they must have.
                true if known == Opcode::RC_ATOMIC_WRITE && form & 0x80 == 0 => 8,
                true => usize::from(input.u8()) & !3,
                false => 1024,
            };
            packet.resize(12 + headers + bytes, 0x5a);
        }
        while packet.len() % 4 != 0 {
            packet.push(0);
        }
        if plan & 1 == 0 {
            packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
            let psn =
                host.expected_psn(qp, answers || plan & 2 != 0).wrapping_add_signed(psn_delta)
                    & 0xff_ffff;
            packet[8] |= 0x80;
            packet[9..12].copy_from_slice(&psn.to_be_bytes()[1..]);
        }
        if form & 8 == 0 && known.has_aeth() && packet.len() > 12 {
            // Most syndromes are reserved, so a valid one is chosen.
            packet[12] = SYNDROMES[usize::from(packet[12]) % SYNDROMES.len()];
        }
        name_srq(&mut packet, known, plan, srqn);
        name_memory(&mut packet, (known, at_memory), (plan, form), &mut input, &host);
        packet.extend_from_slice(&[0; ICRC_LEN]);
        if plan & 8 == 0 {
            flow.append_icrc(0, &mut packet);
        }
        host.receive(now, &peer, &packet);
        if form & 0x30 == 0x30 {
            // A besieged queue pair accepts a fatal NAK only when it is repeated.
            host.receive(now, &peer, &packet);
        }
        now += u64::from(input.u8()) * 100_000;
        host.round(now);
        host.check();
    }
    host.finish(now)
}

/// Gives most requests of XRC the number of an SRQ.
fn name_srq(packet: &mut [u8], known: Opcode, plan: u8, srqn: u32) {
    if let Some(number) = packet.get_mut(12..16).filter(|_| known.has_xrceth() && plan & 6 != 6) {
        number.copy_from_slice(&srqn.to_be_bytes());
    }
}

/// Gives most packets of requests that name memory a valid address and key, so that the later
/// checks are reached.
fn name_memory(
    packet: &mut [u8],
    (known, at): (Opcode, usize),
    (plan, form): (u8, u8),
    input: &mut Bytes<'_>,
    host: &Host,
) {
    let legal = form & 0x80 == 0;
    // A FETH comes before the address.
    let reth = at + if known.has_feth() { Feth::LEN } else { 0 };
    if let Some(feth) = packet.get_mut(at..reth).filter(|feth| legal && !feth.is_empty()) {
        feth.copy_from_slice(&[0, 0, 0, FETHS[usize::from(form & 7)]]);
    }
    let Some(named) = packet.get_mut(reth..reth + 16).filter(|_| plan & 4 == 0) else { return };
    let (va, rkey) = host.target();
    let len = match known.kind() {
        PacketKind::AtomicWrite if legal => 8,
        _ => u32::from(input.u16() & 0x7ff),
    };
    named[..8].copy_from_slice(&(va + u64::from(input.u8())).to_be_bytes());
    named[8..12].copy_from_slice(&rkey.to_be_bytes());
    named[12..].copy_from_slice(&len.to_be_bytes());
}

/// Two engines fed by one byte string. Returns the counters of both.
pub fn pair(data: &[u8]) -> Counters {
    let mut input = Bytes::new(data);
    let kinds = [qp_type::RC, qp_type::UC, qp_type::UD, qp_type::DCI];
    let kind = kinds[usize::from(input.u8() % 4)];
    let (mut a, mut b) = (Host::new(1), Host::new(2));
    let (qa, qb) = if kind == qp_type::DCI {
        let (qa, qb) = (a.qp(kind, qp_state::RTS), b.dc_target(qp_state::RTR));
        a.aim(qb.1);
        (qa, qb)
    } else {
        let (qa, qb) = (a.qp(kind, qp_state::INIT), b.qp(kind, qp_state::INIT));
        a.connect(qa, &b, qb.1);
        b.connect(qb, &a, qa.1);
        (qa, qb)
    };
    let mut now = 1_000_000u64;
    let mut wire: Vec<(bool, Vec<u8>)> = Vec::new();
    for _ in 0..256 {
        if input.is_empty() {
            break;
        }
        let step = input.u8();
        let arg = input.u8();
        let to_b = step & 0x80 == 0;
        match step & 0x0f {
            0..=3 => {
                let ops = [
                    wr_opcode::SEND,
                    wr_opcode::RDMA_WRITE,
                    wr_opcode::RDMA_READ,
                    wr_opcode::ATOMIC_FETCH_AND_ADD,
                ];
                let op = ops[usize::from(step & 3)];
                let len = u32::from(arg) * 37;
                if to_b {
                    a.post_send(qa.0, op, len, &b)
                } else {
                    b.post_send(qb.0, op, len, &a)
                }
            }
            4 | 5 => {
                if to_b {
                    b.post_recv(qb.0, u32::from(arg) * 41)
                } else {
                    a.post_recv(qa.0, u32::from(arg) * 41)
                }
            }
            11 if to_b => a.post_send(qa.0, wr_opcode::ATOMIC_WRITE, 8, &b),
            11 => b.post_send(qb.0, wr_opcode::FLUSH, arg.into(), &a),
            6 => now += u64::from(arg) * 1_000_000,
            7 if !wire.is_empty() => {
                let i = usize::from(arg) % wire.len();
                let copy = wire[i].clone();
                wire.push(copy);
            }
            8 if !wire.is_empty() => {
                let i = usize::from(arg) % wire.len();
                wire.swap_remove(i);
            }
            9 if !wire.is_empty() => {
                let i = usize::from(arg) % wire.len();
                let at = usize::from(input.u16()) % wire[i].1.len();
                wire[i].1[at] ^= input.u8();
            }
            10 if to_b => a.modify_any(qa.0, arg),
            10 => b.modify_any(qb.0, arg),
            _ => {
                for _ in 0..=arg & 7 {
                    let Some((to_b, packet)) = (!wire.is_empty()).then(|| wire.remove(0)) else {
                        break;
                    };
                    if to_b {
                        b.receive(now, &a.addr, &packet)
                    } else {
                        a.receive(now, &b.addr, &packet)
                    }
                }
            }
        }
        now += 10_000;
        wire.extend(a.round(now).into_iter().map(|p| (true, p)));
        wire.extend(b.round(now).into_iter().map(|p| (false, p)));
        wire.truncate(512);
        a.check();
        b.check();
    }
    let mut counts = a.finish(now);
    counts.add(&b.finish(now));
    counts
}

/// The parsers: any bytes must not panic, and a parsed packet emits the same bytes.
pub fn wire(data: &[u8]) {
    if let Some(eth) = DcEth::parse(data) {
        assert_eq!(DcEth::parse(&eth.bytes()), Some(eth), "parse(bytes(x)) == x");
    }
    let _ = Run::parse_packet(data);
    let _ = Run::parse_record(data);
    if let Ok(view) = View::parse(data) {
        let _ =
            (view.bth(), view.reth(), view.aeth(), view.deth(), view.atomic_eth(), view.payload());
        let _ = view.feth().map(|feth| (feth.is_legal(), feth.word()));
        if let Ok(packet) = Packet::try_from(view) {
            let mut out = vec![0u8; packet.emitted_len()];
            let n = packet.emit(&mut out).expect("a legal packet can be written");
            assert_eq!(&out[..n], data, "emit(parse(x)) == x");
        }
    }
    let flow = IcrcFlow::v4([127, 0, 0, 1], [127, 0, 0, 2], 4791, 4791);
    let _ = flow.check(0, data);
    let _ = gdrcore_testkit::icrc::check_exact(data);
}
