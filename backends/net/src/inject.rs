//! Injected faults of a device's packets: counts each packet of a queue pair, asks the rules
//! ([`gdrcore_core::inject`]) what happens to it, and keeps packets that leave or arrive later.
//!
//! A device with faults has one engine, and sends everything through its port, packet by packet,
//! even to other processes of this host, to its own queue pairs, and to memory that is shared. So a
//! fault is one on the wire, and the transport repairs it or reports it as any other.
//!
//! Memory is allocated when the device is opened and when a queue pair is made.

mod calls;
mod due;
mod fault_log;
mod held;
mod keys;
mod weak;

pub use calls::{calls_that_may_fail, FaultyDevice};
pub use fault_log::{
    check_log, count_one, is_privileged, note_repeat, process_seed, report, tell_of_call,
};
pub use keys::{device_keys, note_program, program_keys};

use crate::clock::now_ns;
use crate::port::RxPacket;
use due::{Action, Pending};
use fault_log::FaultLog;
use gdrcore_core::cm::mad;
use gdrcore_core::device::async_event;
use gdrcore_core::engine::injected::PacketQp;
use gdrcore_core::engine::EngineGuard;
use gdrcore_core::error::Result;
use gdrcore_core::inject::{Calls, Direction, Faults, Packet, Passage, QpCounts, Raised, Verdict};
use gdrcore_core::mem::weak::delay_ns;
use gdrcore_core::mem::{Memory, TransferId};
use gdrcore_core::refuse;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::{self, Bth, Class, Deth, PacketKind, Qpn, Reth, ICRC_LEN};
use held::Held;
pub use held::Waiting;
use weak::OwnMemory;

/// Faults of a device.
#[derive(Clone, Copy, Debug)]
pub struct FaultSpec<'a> {
    /// The rules (docs/using/TESTING.md).
    pub rules: &'a str,
    /// The seed of the decisions; 0: a random one.
    pub seed: u64,
    /// The calls that can fail, of a program that the launcher starts, with the rules in the
    /// environment. `None`: the program uses the C API, whose calls are those of gdrcore.h.
    pub launched: Option<Calls>,
}

impl FaultSpec<'_> {
    /// The rules.
    ///
    /// # Errors
    /// [`Error::Invalid`](gdrcore_core::Error::Invalid): a word is wrong.
    pub fn read(&self) -> Result<Faults> {
        let faults = Faults::parse(self.rules, self.launched.unwrap_or(calls::may_fail));
        faults.map_err(|e| refuse!(Invalid, "faults: {e}"))
    }

    /// The seed, or the random one of the process.
    ///
    /// # Errors
    /// As [`process_seed`].
    pub fn drawn_seed(&self) -> Result<u64> {
        match self.seed {
            0 => process_seed(),
            seed => Ok(seed),
        }
    }
}

/// No queue pair of the device.
const NO_FLOW: u32 = u32::MAX;
/// The flow of QP1.
const GSI_FLOW: u32 = u32::MAX - 1;
/// Longest wait of a packet for the packets that overtake it.
const OVERTAKING_NS: u64 = 10_000_000;
/// Places for guesses which queue pair sends to a number.
const GUESSES: usize = 256;
/// Bits that are tried to damage a packet so that the ICRC shows it. Another identification of the
/// IPv4 header, which receivers do not see, explains one damage of 2^15.
const DAMAGES: u64 = 64;

/// The faults of a device, and the packets that wait.
pub struct Injector {
    rules: Faults,
    seed: u64,
    fault_log: FaultLog,
    /// By index of the queue pair.
    flows: Vec<QpCounts>,
    gsi: QpCounts,
    /// Queue pairs that the program has made.
    made: u32,
    guesses: [u32; GUESSES],
    held: Held,
    /// The memory in place of host memory, if rules are about its bytes.
    memory: Option<OwnMemory>,
    /// Actions in the engine.
    pending: Pending,
    /// The port is down by an event: nothing passes.
    is_down: bool,
    /// The device is removed by an event: no further event comes.
    is_removed: bool,
    /// When the next packet of a slow path may pass: out, in.
    free_at: [u64; 2],
}

/// A packet whose fate is decided.
struct Decided {
    verdict: Verdict,
    /// Its queue pair.
    flow: u32,
}

impl Injector {
    /// Opens the faults of a device.
    ///
    /// # Errors
    /// As [`FaultSpec::read`]; those of open(2) for the log.
    pub fn open(spec: &FaultSpec<'_>) -> Result<Injector> {
        let rules = spec.read()?;
        let seed = spec.drawn_seed()?;
        let memory = rules.weakens_memory().then(OwnMemory::take);
        let pending = Pending::new(&rules, now_ns());
        Ok(Injector {
            rules,
            seed,
            pending,
            is_down: false,
            is_removed: false,
            fault_log: FaultLog::open(spec, seed)?,
            flows: Vec::new(),
            gsi: QpCounts::new(0),
            made: 0,
            guesses: [0; GUESSES],
            held: Held::new(),
            memory,
            free_at: [0; 2],
        })
    }

    /// The memory that stands in place of host memory.
    pub fn memory(&self) -> Option<&'static dyn Memory> {
        self.memory.as_ref().map(|own| own.memory() as &'static dyn Memory)
    }

    /// Notes that the program has made the queue pair at an index.
    ///
    /// # Errors
    /// [`Error::NoMemory`](gdrcore_core::Error::NoMemory).
    pub fn note_made(&mut self, index: usize) -> Result<()> {
        if index >= self.flows.len() {
            let more = index + 1 - self.flows.len();
            let full = |_| refuse!(NoMemory, "faults: no memory for the counts of a queue pair");
            self.flows.try_reserve(more).map_err(full)?;
            self.flows.resize(index + 1, QpCounts::new(0));
        }
        self.pending.make_room(self.flows.len())?;
        self.made += 1;
        self.flows[index] = QpCounts::new(self.made);
        Ok(())
    }

    /// Notes that the queue pair at an index is about to have another connection.
    pub fn note_connection(&mut self, index: usize) {
        if let Some(flow) = self.flows.get_mut(index) {
            flow.begin();
        }
        self.pending.forget(index);
    }

    /// Notes that the queue pair at an index has ended.
    pub fn note_ended(&mut self, index: usize) {
        if let Some(flow) = self.flows.get_mut(index) {
            *flow = QpCounts::new(0);
        }
        self.pending.forget(index);
    }

    /// When the next packet or event is due.
    pub fn due(&self) -> Option<u64> {
        [self.held.due(), self.pending.next_due()].into_iter().flatten().min()
    }

    /// Whether the port is down, by an event.
    pub fn is_down(&self) -> bool {
        self.is_down
    }

    /// Whether so many packets wait that no further one may leave.
    pub fn is_full_outbound(&self) -> bool {
        self.held.is_full_outbound()
    }

    /// Makes the waiting packets of a queue pair, or of all, due at once.
    pub fn release_held(&mut self, index: Option<usize>) {
        self.held.release_held(index.map(|i| i as u32));
    }

    /// The next packet that is due, if it goes in a direction for which `may` is true.
    pub fn take_due(&mut self, now: u64, may: [bool; 2]) -> Option<Waiting<'_>> {
        let waiting = self.held.take_due(now, may)?;
        let (flow, bytes) = (waiting.flow, waiting.bytes);
        if let (Some(memory), Direction::In) = (&self.memory, waiting.direction) {
            // The bytes are placed in order, because the decision about them was not kept.
            begin_placing(memory, number_of(&self.flows, flow), bytes, &Verdict::default(), now);
        }
        Some(waiting)
    }

    /// The connected queue pair that sends a packet.
    fn sender(&mut self, g: &EngineGuard<'_>, to: &PeerAddr, qpn: u32) -> Option<PacketQp> {
        let guess = &mut self.guesses[qpn as usize % GUESSES];
        let found = g.sender_to(to, qpn, *guess as usize)?;
        *guess = found.index as u32;
        Some(found)
    }

    /// The queue pair of this device to which a packet belongs.
    fn place(
        &mut self,
        g: &EngineGuard<'_>,
        direction: Direction,
        other: &PeerAddr,
        bth: &Bth,
        behind: &[u8],
    ) -> Option<PacketQp> {
        match direction {
            Direction::In => {
                let place = g.packet_qp(bth.dest_qp.get())?;
                place.peer.is_none_or(|peer| peer == other.gid).then_some(place)
            }
            Direction::Out if bth.opcode.has_deth() => {
                g.packet_qp(Deth::parse(behind.first_chunk()?).src_qp.get())
            }
            Direction::Out => self.sender(g, other, bth.dest_qp.get()),
        }
    }

    /// Counts a packet, and decides what happens to it. `other`: the end that it comes from or goes
    /// to.
    fn decide(
        &mut self,
        g: &EngineGuard<'_>,
        direction: Direction,
        other: &PeerAddr,
        bytes: &[u8],
    ) -> Decided {
        let none = Decided { verdict: Verdict::default(), flow: NO_FLOW };
        let Some((head, behind)) = bytes.split_first_chunk() else { return none };
        let bth = Bth::parse(head);
        let is_mad = bth.dest_qp == Qpn::GSI && bth.opcode.class() == Class::Ud;
        let place = if is_mad { None } else { self.place(g, direction, other, &bth, behind) };
        let (flow, index) = match place {
            _ if is_mad => (&mut self.gsi, GSI_FLOW),
            Some(PacketQp { index, .. }) => match self.flows.get_mut(index) {
                Some(flow) if flow.number != 0 => (flow, index as u32),
                _ => return none,
            },
            None => return none,
        };
        let (passage, takes_receive) = match &place {
            Some(place) => passage(flow, place, direction, &bth, behind),
            None => (Passage::Control, false),
        };
        let (peer, opcode) = (other.gid, bth.opcode);
        let has_srq = place.is_some_and(|place| place.has_srq);
        let cm = if is_mad { mad::attribute_of(behind.get(Deth::LEN..)) } else { None };
        let packet =
            Packet { direction, peer, opcode, is_mad, cm, passage, takes_receive, has_srq };
        let fault_log = &mut self.fault_log;
        let verdict = self.rules.decide(self.seed, &packet, flow, |hit| fault_log.log_fault(hit));
        let pending = &mut self.pending;
        self.rules.count_for_events(&packet, flow, |rule| _ = pending.push(Action::Event(rule)));
        Decided { verdict, flow: index }
    }

    /// When a packet passes.
    fn due_of(&mut self, now: u64, direction: Direction, decided: &Decided) -> u64 {
        let verdict = &decided.verdict;
        let mut due = now + verdict.delay;
        if verdict.slow > 0 {
            let free_at = &mut self.free_at[direction as usize];
            due = due.max(*free_at);
            *free_at = due + verdict.slow;
        }
        due
    }

    /// Passes a packet on by `pass`, or keeps it. A packet waits, too, behind packets of its flow
    /// that it must not overtake. A packet that finds no room among the waiting ones is lost, as in
    /// the queue of a switch.
    fn pass(
        &mut self,
        now: u64,
        direction: Direction,
        other: &PeerAddr,
        decided: &Decided,
        bytes: &[u8],
        mut pass: impl FnMut(&[u8]) -> bool,
    ) {
        let Decided { verdict, flow } = decided;
        let due = self.due_of(now, direction, decided);
        let behind = self.held.last_due(direction, *flow);
        let due = due.max(behind.unwrap_or(0));
        let overtakers_left = verdict.reorder.unwrap_or(0);
        let (other, flow, latest) = (*other, *flow, due.max(now + OVERTAKING_NS));
        let waiting = Waiting { due, latest, direction, other, flow, overtakers_left, bytes };
        let waits = due > now || behind.is_some() || overtakers_left > 0;
        for _ in 0..1 + u32::from(verdict.duplicate) {
            if (waits || !pass(bytes)) && !self.held.keep(&waiting) {
                let qp = number_of(&self.flows, flow);
                self.fault_log.overflow(direction, qp);
            }
        }
        if overtakers_left == 0 {
            self.held.count_overtaker(direction, flow, due);
        }
    }

    /// Whether the request of a packet fails, so that the packet does not leave.
    fn fails(&mut self, to: &PeerAddr, decided: &Decided, bytes: &[u8]) -> bool {
        let Decided { verdict, flow } = decided;
        let action = match (verdict.completion, verdict.reject) {
            (Some((status, rule)), _) => {
                let Some(head) = bytes.first_chunk() else { return false };
                Action::Fail { index: *flow as usize, psn: Bth::parse(head).psn, status, rule }
            }
            (None, Some(reason)) => {
                let request = bytes.get(Bth::LEN + Deth::LEN..bytes.len() - ICRC_LEN);
                let Some(ids) = request.and_then(mad::request_of) else { return false };
                Action::Rejected(*to, ids, reason)
            }
            (None, None) if verdict.unreachable => Action::Unreachable(*to),
            (None, None) => return false,
        };
        self.pending.push(action)
    }

    /// Executes the actions in the engine that packets and the time have made due.
    pub fn act(&mut self, g: &mut EngineGuard<'_>, now: u64) {
        while let Some(action) = self.pending.take(now) {
            match action {
                Action::Fail { index, psn, status, rule } => {
                    g.fail_request(now, index, psn, status, rule)
                }
                Action::Rejected(from, ids, reason) => {
                    g.cm_take_mad(now, &from, &mad::rejection(ids, reason))
                }
                Action::Unreachable(to) => g.cm_refused(&to, libc::EHOSTUNREACH, true),
                Action::Event(rule) => self.raise(g, now, rule),
            }
        }
    }

    /// Raises the event of a rule, of the object that it names.
    fn raise(&mut self, g: &mut EngineGuard<'_>, now: u64, rule: usize) {
        let Some(hit) = self.rules.event(rule).filter(|_| !self.is_removed) else { return };
        let index = self.flows.iter().position(|flow| flow.number == hit.event.qp);
        let rule = hit.rule;
        match (hit.event.what, index) {
            (Raised::Port(event), _) => {
                match event {
                    async_event::PORT_ERR => self.take_port_down(),
                    async_event::PORT_ACTIVE => self.is_down = false,
                    _ => {}
                }
                g.raise_port(event);
            }
            (Raised::Device, _) => {
                self.take_port_down();
                self.is_removed = true;
                g.remove_device(now, rule);
            }
            // The queue pair does not exist, or has ended.
            (_, None) => return,
            (Raised::Qp(event), Some(index)) => g.raise_on_qp(now, index, event, rule),
            (Raised::Cq, Some(index)) => g.fail_cq_of(now, index, rule),
            (Raised::Srq(event), Some(index)) => g.raise_on_srq(now, index, event, rule),
            (Raised::Connection, Some(index)) => g.disconnect(now, index),
        }
        self.fault_log.log_fault(&hit);
    }

    /// Takes the port down: no packet passes any more, and waiting ones are lost.
    fn take_port_down(&mut self) {
        self.is_down = true;
        self.held.clear();
    }

    /// Decides about a packet that is about to leave, with the ICRC of the flow `sign`. `send`
    /// sends it; false: there is no room now, and the packet is kept.
    pub fn leave(
        &mut self,
        g: &EngineGuard<'_>,
        now: u64,
        to: &PeerAddr,
        sign: &wire::IcrcFlow,
        bytes: &mut [u8],
        send: impl FnMut(&[u8]) -> bool,
    ) {
        let decided = self.decide(g, Direction::Out, to, bytes);
        if self.is_down || decided.verdict.loss || self.pending.is_failing(decided.flow) {
            return;
        }
        if self.fails(to, &decided, bytes) {
            return;
        }
        if let Some(len) = decided.verdict.cut {
            if cut(bytes, len) {
                sign.append_icrc(0, bytes);
            }
        }
        if let Some(draw) = decided.verdict.corrupt {
            corrupt(sign, draw, bytes);
        }
        self.pass(now, Direction::Out, to, &decided, bytes, send);
    }

    /// Decides about a packet that has arrived, for the flow `sign`. `take` takes it, with its mark
    /// if it has one, and returns how many packets were handled, as this function does.
    pub fn arrive(
        &mut self,
        g: &mut EngineGuard<'_>,
        now: u64,
        sign: &wire::IcrcFlow,
        packet: &RxPacket<'_>,
        mut take: impl FnMut(&mut EngineGuard<'_>, &RxPacket<'_>) -> usize,
    ) -> usize {
        let (mut src, data) = (packet.src, packet.data);
        if sign.check(0, data).is_err() {
            // The bytes are no packet of a peer. The engine counts them.
            return take(g, packet);
        }
        let decided = self.decide(g, Direction::In, &src, data);
        let Decided { verdict, flow } = &decided;
        if self.is_down || verdict.loss {
            return 1;
        }
        if let Some((status, rule)) = verdict.completion {
            if g.fail_arrival(now, *flow as usize, status, rule) {
                return 1;
            }
        }
        if verdict.rnr {
            g.refuse_unready(*flow as usize);
            return 1;
        }
        if verdict.ecn {
            src.traffic_class |= 3;
        }
        if let Some(draw) = verdict.swap {
            g.swap_receive(*flow as usize, draw);
        }
        if let Some(memory) = &self.memory {
            begin_placing(memory, number_of(&self.flows, *flow), data, verdict, now);
        }
        let mut damaged = [0; held::MAX_LEN];
        let data = match (verdict.corrupt, damaged.get_mut(..data.len())) {
            (Some(draw), Some(copy)) => {
                copy.copy_from_slice(data);
                corrupt(sign, draw, copy);
                &*copy
            }
            _ => data,
        };
        let mut handled = 0;
        self.pass(now, Direction::In, &src, &decided, data, |data| {
            handled += take(g, &RxPacket { src, seg: data.len() as u16, data });
            true
        });
        handled.max(1)
    }
}

/// The number of the queue pair of a flow; 0: there is none.
fn number_of(flows: &[QpCounts], index: u32) -> u32 {
    flows.get(index as usize).map_or(0, |flow| flow.number)
}

/// Tells the memory in which order the bytes of an arriving packet are placed, and how long a READ
/// waits. `qp`: the number of the packet's queue pair.
fn begin_placing(memory: &OwnMemory, qp: u32, bytes: &[u8], verdict: &Verdict, now: u64) {
    let Some(head) = bytes.first_chunk() else { return };
    let (bth, mut state) = (Bth::parse(head), memory.state());
    state.begin(qp, bth.opcode, verdict.scatter);
    if let Some(draw) = verdict.lag {
        let id = TransferId::answer(bth.dest_qp.get(), bth.psn.get(), 0).id;
        state.delay_read(id, now + delay_ns(draw));
    }
}

/// The kind of a packet in its flow, and whether it arrives in order for the first time and takes a
/// receive request.
fn passage(
    flow: &mut QpCounts,
    place: &PacketQp,
    direction: Direction,
    bth: &Bth,
    behind: &[u8],
) -> (Passage, bool) {
    let kind = bth.opcode.kind();
    if matches!(
        kind,
        PacketKind::Ack | PacketKind::Cnp | PacketKind::DcControl | PacketKind::Unknown
    ) {
        return (Passage::Control, false);
    }
    if !place.is_reliable {
        return (Passage::First, false);
    }
    let base = place.first.map(|(sent, expected)| {
        if kind.is_answer() == (direction == Direction::In) {
            sent
        } else {
            expected
        }
    });
    let span = match kind {
        PacketKind::ReadRequest if place.mtu > 0 => {
            let reth = behind.get(bth.opcode.header_len() - Bth::LEN - Reth::LEN..);
            let len = reth.and_then(<[u8]>::first_chunk).map_or(0, |b| Reth::parse(b).len);
            len.div_ceil(place.mtu).max(1)
        }
        _ => 1,
    };
    let passage = match flow.note_first(direction, kind.is_answer(), bth.psn, base, span) {
        true => Passage::First,
        false => Passage::Again,
    };
    let takes = match kind {
        PacketKind::Send => bth.opcode.is_first(),
        PacketKind::Write => bth.opcode.is_last() && bth.opcode.has_imm(),
        _ => false,
    };
    let arrives = direction == Direction::In && takes;
    (passage, arrives && flow.note_first_in_order(bth.psn, place.expected))
}

/// Makes private data end behind so many bytes, by zeroes. False: the packet is no message with
/// longer private data.
fn cut(packet: &mut [u8], len: u32) -> bool {
    let end = packet.len().saturating_sub(ICRC_LEN);
    let mad = packet.get_mut(Bth::LEN + Deth::LEN..end);
    let Some(data) = mad.and_then(|mad| mad::private_data(mad)) else { return false };
    let Some(rest) = data.get_mut(len as usize..) else { return false };
    rest.fill(0);
    true
}

/// Inverts a bit behind the BTH, so that the ICRC is wrong whatever the IP header contains.
fn corrupt(sign: &wire::IcrcFlow, draw: u64, bytes: &mut [u8]) {
    let bits = 8 * bytes.len().saturating_sub(Bth::LEN) as u64;
    if bits == 0 || bytes.len() < Bth::LEN + ICRC_LEN {
        return;
    }
    for k in 0..DAMAGES.min(bits) {
        let at = (draw.wrapping_add(k) % bits) as usize;
        let (byte, bit) = (Bth::LEN + at / 8, 1 << (at % 8));
        bytes[byte] ^= bit;
        if sign.check(0, bytes).is_err() {
            return;
        }
        bytes[byte] ^= bit;
    }
}

#[cfg(test)]
mod tests;
