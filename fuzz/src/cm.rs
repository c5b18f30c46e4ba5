//! Fuzzes the connection managers of two engines. The string selects the calls of both programs,
//! the faults of the network, and the messages of a stranger that has read all others.
//!
//! Conditions: no panic; at most one message is sent for one received; an id is destroyed by its
//! program or ends by itself, so that at the end, with all ids destroyed and enough time gone,
//! every id can be made again.

use crate::bytes::Bytes;
use crate::coverage::counts;
use crate::host::Host;
use gdrcore_core::cm::mad::{attribute, MAD_LEN, REMOTE_ID_AT, REQUEST_ID_AT, SERVICE_AT};
use gdrcore_core::cm::{cm_event, port_space, CmEvent, ConnParam};
use gdrcore_core::config::Config;
use gdrcore_core::engine::{cm_qps, EngineGuard};
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, qp_type, AhAttr, Handle, QpAttr};
use gdrcore_core::wire::{IcrcFlow, ICRC_LEN, QP1_QKEY};
use gdrcore_testkit::engine_qps::EngineQps;

/// BTH and DETH.
const HEADERS: usize = 20;
const PACKET: usize = HEADERS + MAD_LEN + ICRC_LEN;
/// Most messages under way, and most that the stranger remembers.
const WIRE: usize = 64;
/// Most ids that one program keeps; then it destroys the oldest.
const IDS: usize = 24;
const ATTRIBUTES: [u16; 10] = [
    attribute::REQ,
    attribute::MRA,
    attribute::REJ,
    attribute::REP,
    attribute::RTU,
    attribute::DREQ,
    attribute::DREP,
    attribute::SIDR_REQ,
    attribute::SIDR_REP,
    0x19,
];

/// The engine's own QPs, whose peers are all reached by the port.
fn own<'g, 'h>(
    guard: &'g mut EngineGuard<'h>,
) -> EngineQps<'g, 'h, impl FnMut(&mut EngineGuard<'_>)> {
    EngineQps { guard, path: |_: &mut EngineGuard<'_>| {} }
}

/// A message under way: its receiver's side, and its bytes.
type Sent = (usize, Vec<u8>);

/// QPs of each side.
const KINDS: [u32; 5] = [qp_type::RC, qp_type::RC, qp_type::RC, qp_type::UC, qp_type::UD];

counts! {
    Managed {
        /// Events, by number.
        events: [u64; 16],
        /// Calls that succeeded, and calls that refused.
        calls: [u64; 2],
        /// Messages that differed from the sent ones, and those of them that were not dropped.
        forged: [u64; 2],
        /// Messages that were repeated.
        retries: u64,
    }
}

/// One engine and the program above it.
struct Side {
    host: Host,
    peer: PeerAddr,
    qps: Vec<(Handle, u32)>,
    ids: Vec<Handle>,
    /// Requests that the program has not answered, each with the type of its QP.
    asked: Vec<(Handle, u32)>,
    next_qp: usize,
}

impl Side {
    fn new(n: u8) -> Side {
        let mut host = Host::new(n);
        let qps = KINDS.iter().map(|&k| host.qp(k, qp_state::RESET)).collect();
        Side { host, peer: Host::peer_addr(n), qps, ids: Vec::new(), asked: Vec::new(), next_qp: 0 }
    }

    fn keep(&mut self, now: u64, id: Handle) {
        self.ids.push(id);
        if self.ids.len() > IDS {
            let oldest = self.ids.remove(0);
            let _ = self.host.guard().cm().destroy(now, oldest);
        }
    }

    /// The next QP, mostly of this type, moved to RESET whatever its state; or none, when the
    /// program moves its QPs itself.
    fn qp(&mut self, kind: u32, arg: u8) -> Handle {
        let of = |k: u32| KINDS.iter().position(|&x| x == k).unwrap_or(0);
        self.next_qp += 1;
        let i = if arg & 0x60 == 0x60 || kind == qp_type::RC { self.next_qp } else { of(kind) };
        let (qp, _) =
            self.qps[i % if kind == qp_type::RC && arg & 0x60 != 0x60 { 3 } else { KINDS.len() }];
        if arg & 0x10 != 0 {
            return 0;
        }
        let reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
        let _ = self.host.guard().qp_modify(0, qp, &reset, qp_attr_mask::STATE);
        qp
    }

    /// One call of the program; true if it succeeded.
    fn call(&mut self, now: u64, op: u8, arg: u8, seen: &mut Managed) -> bool {
        let ps = [port_space::TCP, port_space::UDP, port_space::IB][usize::from(arg >> 2 & 3) % 3];
        let port = 1000 + u16::from(arg & 3);
        let private = [arg; 56];
        let kind = if ps == port_space::UDP { qp_type::UD } else { qp_type::RC };
        let param = ConnParam {
            qpn: 0x77,
            qp_type: kind,
            responder_resources: arg,
            initiator_depth: 4,
            retry_count: arg & 7,
            rnr_retry: 7,
            ack_timeout: 14,
            response_timeout: arg >> 3 & 0x0f,
            private_data: &private[..usize::from(arg) % 57],
            ..ConnParam::default()
        };
        let id = self
            .ids
            .get(usize::from(arg) % self.ids.len().max(1))
            .copied()
            .unwrap_or(u64::from(arg));
        match op {
            0 => {
                let mut g = self.host.guard();
                let made = g.cm().create(ps, 1);
                let Ok(id) = made else { return false };
                let mut done = g.cm().bind(id, port).map(|_| ());
                if arg & 1 != 0 {
                    done = done.and_then(|()| g.cm().announce(id, true));
                }
                if arg & 3 != 3 {
                    done = done.and_then(|()| g.cm_listen(now, id, u32::from(arg >> 5)));
                }
                drop(g);
                self.keep(now, id);
                done.is_ok()
            }
            1 => {
                let qp = self.qp(kind, arg);
                // Sometimes an unknown address.
                let gid = if arg & 0xe0 == 0xe0 { [0x20; 16] } else { self.peer.gid };
                let to = AhAttr { dgid: gid, udp_port: 4791, ..AhAttr::default() };
                let mut g = self.host.guard();
                let made = g.cm().create(ps, 2);
                let Ok(id) = made else { return false };
                let done = cm_qps::connect(&mut own(&mut g), now, id, &to, port, qp, &param);
                drop(g);
                self.keep(now, id);
                done.is_ok()
            }
            2 => {
                let (id, kind) = self.asked.pop().unwrap_or((id, kind));
                let qp = self.qp(kind, arg);
                let param = ConnParam { qp_type: kind, ..param };
                cm_qps::accept(&mut own(&mut self.host.guard()), now, id, qp, &param).is_ok()
            }
            3 => self.host.guard().cm().reject(now, id, &private[..usize::from(arg & 31)]).is_ok(),
            4 => cm_qps::disconnect(&mut own(&mut self.host.guard()), now, id).is_ok(),
            5 => {
                self.ids.retain(|&i| i != id);
                self.host.guard().cm().destroy(now, id).is_ok()
            }
            6 => self.host.guard().cm().establish(id).is_ok(),
            _ => match self.event(now) {
                Some(e) => {
                    seen.events[e.event as usize & 15] += 1;
                    true
                }
                None => false,
            },
        }
    }

    fn event(&mut self, now: u64) -> Option<CmEvent> {
        let e = cm_qps::take_event(&mut own(&mut self.host.guard()), now)?;
        assert!(e.private_data().len() == usize::from(e.data_len) && e.event < 16, "{e:?}");
        if e.event == cm_event::CONNECT_REQUEST {
            assert!(e.id != 0 && !self.ids.contains(&e.id), "{e:?}");
            self.keep(now, e.id);
            self.asked.push((e.id, e.qp_type));
            self.asked.drain(..self.asked.len().saturating_sub(8));
        }
        Some(e)
    }

    fn dropped(&self) -> u64 {
        self.host.guard().cm().counters().dropped
    }
}

/// A message with its headers, from QP1 to QP1.
fn packet(mad: &[u8; MAD_LEN]) -> Vec<u8> {
    let mut p = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
    p.extend_from_slice(&QP1_QKEY.to_be_bytes());
    p.extend_from_slice(&[0, 0, 0, 1]);
    p.extend_from_slice(mad);
    p.extend_from_slice(&[0; ICRC_LEN]);
    p
}

/// A forged message: a recorded one, or one from the string, with ids of other messages.
fn made_up(input: &mut Bytes, seen: &[Vec<u8>], ids: &[u32]) -> Vec<u8> {
    let (plan, arg) = (input.u8(), usize::from(input.u8()));
    let mut mad = [0; MAD_LEN];
    if let Some(model) = seen.get(arg % seen.len().max(1)).filter(|_| plan & 1 == 0) {
        mad.copy_from_slice(&model[HEADERS..HEADERS + MAD_LEN]);
    } else {
        let some = input.take(64);
        mad[24..24 + some.len()].copy_from_slice(some);
        mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    }
    if plan & 2 == 0 {
        mad[16..18]
            .copy_from_slice(&ATTRIBUTES[usize::from(input.u8()) % ATTRIBUTES.len()].to_be_bytes());
    }
    if plan & 4 == 0 {
        let mut place = |at: u32, k: u8| {
            if let Some(id) = ids.get(usize::from(k) % ids.len().max(1)) {
                mad[at as usize..at as usize + 4].copy_from_slice(&id.to_be_bytes());
            }
        };
        place(REMOTE_ID_AT, input.u8());
        place(REQUEST_ID_AT, input.u8());
    }
    if plan & 8 == 0 {
        let service = (u64::from(port_space::TCP) << 16 | 1000) + u64::from(input.u8() & 3);
        mad[SERVICE_AT as usize..SERVICE_AT as usize + 8].copy_from_slice(&service.to_be_bytes());
    }
    for _ in 0..plan >> 5 {
        mad[usize::from(input.u8())] ^= input.u8();
    }
    packet(&mad)
}

/// Fuzzes two connection managers.
pub fn cm(data: &[u8]) -> Managed {
    let mut input = Bytes::new(data);
    let mut sides = [Side::new(1), Side::new(2)];
    let mut counts = Managed::default();
    let (mut wire, mut seen): (Vec<Sent>, Vec<Vec<u8>>) = Default::default();
    let mut ids: Vec<u32> = Vec::new();
    let mut now = 1_000_000u64;
    // Some ports have listeners and some requests are under way, so that short strings reach more.
    for arg in 0..input.u8() & 7 {
        sides[1].call(now, 0, arg, &mut counts);
        sides[0].call(now, 1, arg, &mut counts);
    }
    for _ in 0..256 {
        if input.is_empty() {
            break;
        }
        let (step, arg) = (input.u8(), input.u8());
        let at = usize::from(step & 0x80 != 0);
        let mut incoming = None;
        match step & 0x1f {
            // Half of all steps deliver messages under way: an exchange takes four.
            0..=11 if !wire.is_empty() => incoming = Some((wire.remove(0), false)),
            12 if !wire.is_empty() => {
                incoming = Some((wire[usize::from(arg) % wire.len()].clone(), false))
            }
            13 if !wire.is_empty() => drop(wire.swap_remove(usize::from(arg) % wire.len())),
            14 | 15 => incoming = Some(((at, made_up(&mut input, &seen, &ids)), true)),
            16 => now += u64::from(arg) * 50_000_000,
            op => counts.calls[usize::from(!sides[at].call(now, op & 7, arg, &mut counts))] += 1,
        }
        // Programs take their events sooner or later.
        if arg & 3 == 0 {
            sides[at].call(now, 7, arg, &mut counts);
        }
        if let Some(((to, mut bytes), forged)) = incoming {
            let (from, side) = (sides[1 - to].host.addr, &mut sides[to]);
            if forged {
                IcrcFlow::from_gids(&from.gid, &side.host.addr.gid, from.port, side.host.addr.port)
                    .append_icrc(0, &mut bytes);
            }
            let before = side.dropped();
            note(side.host.sent_now(now), 1 - to, &mut wire, &mut seen, &mut ids);
            side.host.receive(now, &from, &bytes);
            // Nothing else was to be sent and the time stands still, so only this message can have
            // caused one.
            let out = side.host.sent_now(now);
            assert!(out.len() <= 1, "{} messages for one", out.len());
            note(out, 1 - to, &mut wire, &mut seen, &mut ids);
            counts.forged[0] += u64::from(forged);
            counts.forged[1] += u64::from(forged && side.dropped() == before);
        }
        now += 10_000;
        for (i, side) in sides.iter_mut().enumerate() {
            let out = side.host.round(now);
            note(out, 1 - i, &mut wire, &mut seen, &mut ids);
            side.host.check();
        }
    }
    for side in &mut sides {
        finish(side, now);
        counts.retries += side.host.guard().cm().counters().retries;
    }
    counts
}

/// Messages leave for the other side; the stranger records them.
fn note(
    out: Vec<Vec<u8>>,
    to: usize,
    wire: &mut Vec<Sent>,
    seen: &mut Vec<Vec<u8>>,
    ids: &mut Vec<u32>,
) {
    for p in out.into_iter().filter(|p| p.len() == PACKET) {
        let id = HEADERS + REQUEST_ID_AT as usize;
        ids.push(u32::from_be_bytes([p[id], p[id + 1], p[id + 2], p[id + 3]]));
        seen.push(p.clone());
        wire.push((to, p));
    }
    wire.truncate(WIRE);
    seen.drain(..seen.len().saturating_sub(WIRE));
    ids.drain(..ids.len().saturating_sub(WIRE));
}

/// The program destroys everything, and no answer comes any more: nothing may be left.
fn finish(side: &mut Side, mut now: u64) {
    while side.event(now).is_some() {}
    for id in std::mem::take(&mut side.ids) {
        let _ = side.host.guard().cm().destroy(now, id);
    }
    assert_eq!(side.host.guard().cm().live(), 0, "ids that nobody holds");
    for _ in 0..400 {
        now += 5_000_000_000;
        side.host.round(now);
    }
    let mut g = side.host.guard();
    assert_eq!(g.cm().next_timeout(), None, "something waits for ever");
    assert!(!g.has_cm_events());
    for n in 0..Config::default().max_cm_ids {
        assert!(g.cm().create(port_space::TCP, 0).is_ok(), "{n} of all ids are left");
    }
}
