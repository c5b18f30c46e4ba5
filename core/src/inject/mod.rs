//! Injected faults that repeat: which packets and calls a list of rules hits.
//!
//! A decision follows from the seed and from the place alone: which queue pair, which direction,
//! and the number of the packet among those that the rule counts. It never follows from a clock or
//! from the order of threads. So packets are counted that repeat from run to run: requests, and
//! answers to READs and atomics, each when it passes for the first time ([`QpCounts::note_first`]).
//! How often a packet comes again, and which ACKs are sent, depends on time; those are hit only by
//! rules that name them, by a partition and by a slow path.
//!
//! [`grammar`] reads the rules; docs/using/TESTING.md describes them. What a hit does to a packet
//! is the caller's.

pub mod events;
pub mod grammar;

pub use events::{Event, EventHit, Raised, When};
pub use grammar::{errno_name, Refused};

use crate::config::LoweredLimits;
use crate::random::Random;
use crate::wire::{Class, Opcode, PacketKind, Psn};
use core::fmt;
use core::net::{IpAddr, Ipv6Addr};

/// Most rules of a list.
pub const RULES_MAX: usize = 32;
/// Longest name of a call, a limit or an event.
pub const NAME_MAX: usize = 47;
/// The rules for which `weak` stands.
pub const WEAK: &str = "scatter rate 50%; lag rate 50%; swap rate 50%; few rate 50%; \
    loss type UD rate 1%; duplicate type UD rate 2%; reorder 2 type UD rate 5%; rnr rate 0.5%; \
    keys";
/// Completions of a poll that rules look at.
const LONGEST_POLL: u64 = 1024;
/// Purpose of the key of decisions.
const PURPOSE: u64 = 0x6661_756c_7473;
/// Rates count in this many parts of one.
const PARTS: u64 = 100_000_000;

/// A name of a call, a limit or an event.
pub type RuleName = heapless::String<NAME_MAX>;

/// Returns why a rule may not name this call.
pub type Calls = fn(&str) -> Result<(), &'static str>;

/// What happens to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// It does not arrive.
    Loss,
    /// It arrives twice.
    Duplicate,
    /// So many later packets of its queue pair overtake it.
    Reorder(u32),
    /// It leaves so many nanoseconds later, and all behind it.
    Delay(u64),
    /// A bit of it is wrong.
    Corrupt,
    /// From here on nothing arrives.
    Partition,
    /// The network marks it.
    Ecn,
    /// Packets follow each other by so many nanoseconds at least.
    Slow(u64),
    /// The receiver is not ready for its message.
    Rnr,
    /// Its bytes are placed in any order.
    Scatter,
    /// It is a READ, whose bytes are taken later.
    Lag,
    /// Its message takes another request of its SRQ than the first.
    Swap,
    /// The request that it begins, or the receive request that it takes, ends with this status
    /// (`wc_status`).
    Completion(u32),
    /// This request for a connection is rejected for this reason ([`crate::cm::types::reject`]).
    Reject(u16),
    /// This request for a connection cannot be sent.
    Unreachable,
    /// Of the private data of this message of a connection manager only so many bytes arrive.
    Cut(u32),
}

/// The direction of a packet, as the device sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// It leaves.
    Out,
    /// It arrives.
    In,
}

/// The service that a packet is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Dynamically connected.
    Dc,
    /// Management datagrams of QP1.
    Gsi,
}

/// Which packets a rule counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Direction.
    pub direction: Direction,
    /// GID of the other end.
    pub peer: Option<[u8; 16]>,
    /// Service.
    pub service: Option<Service>,
    /// Opcode, by the name of RC's: it stands for the same opcode of the other services.
    pub opcode: Option<Opcode>,
    /// The n-th queue pair of the device.
    pub qp: Option<u32>,
    /// Only packets that begin a message.
    pub message: bool,
    /// Only datagrams of a connection manager with this attribute id.
    pub cm: Option<u16>,
}

/// Which of the counted ones a rule hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// All.
    All,
    /// This one; the first is 1.
    Nth(u64),
    /// Each whose number is a multiple.
    Every(u64),
    /// So many of 10^8, by the seed.
    Rate(u64),
}

/// Numbers from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// The first; 1 is the first of all.
    pub from: u64,
    /// The last.
    pub to: u64,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// Something to packets.
    Packet(Action, Filter),
    /// A call of this name fails with this errno.
    Call(RuleName, i32),
    /// A limit of the device is this.
    Limit(RuleName, u64),
    /// An event is raised.
    Event(Event),
    /// A CQ without room for a completion fails.
    CqOverrun,
    /// A poll of a CQ ends with this completion, though there may be more.
    Few,
    /// Keys, handles and QP numbers follow from the seed.
    Keys,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// What it does.
    pub what: What,
    /// Which of those that it counts.
    pub pick: Pick,
    /// Among which numbers.
    pub window: Window,
    /// Where it stands in the text: line and column, from 1 on.
    pub at: (u32, u32),
}

/// What a packet is to its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// A request, or an answer with data, that passes for the first time.
    First,
    /// One that has passed before.
    Again,
    /// An ACK, a notification or a management datagram: how many there are depends on time.
    Control,
}

/// A packet, as rules see it.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    /// Its direction.
    pub direction: Direction,
    /// GID of the other end.
    pub peer: [u8; 16],
    /// Its opcode.
    pub opcode: Opcode,
    /// It is for QP1.
    pub is_mad: bool,
    /// The attribute id of a message of a connection manager.
    pub cm: Option<u16>,
    /// What it is to its flow.
    pub passage: Passage,
    /// It arrives in order for the first time, and takes a receive request.
    pub takes_receive: bool,
    /// Its queue pair has an SRQ.
    pub has_srq: bool,
}

/// What the rules have counted of one queue pair.
#[derive(Clone, Debug)]
pub struct QpCounts {
    /// The queue pair's number among those of the device, from 1 on; 0: QP1.
    pub number: u32,
    /// Its connections before this one.
    life: u32,
    /// One past the last PSN that has passed: of requests and of answers, out and in.
    next: [Option<Psn>; 4],
    /// One past the last PSN that the responder was ready for, or not.
    ready: Option<Psn>,
    /// What each rule has counted: requests and answers.
    counts: [[u64; 2]; RULES_MAX],
    /// Partitions and slow paths that have begun, a bit for each rule.
    begun: u32,
}

/// What is to be done with a packet. Of several rules all count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// It is dropped.
    pub loss: bool,
    /// It is sent or taken twice.
    pub duplicate: bool,
    /// A bit of it is turned over; which one follows from this number.
    pub corrupt: Option<u64>,
    /// It is marked.
    pub ecn: bool,
    /// It is answered by an RNR NAK.
    pub rnr: bool,
    /// Its bytes are placed in an order that follows from this number.
    pub scatter: Option<u64>,
    /// It is a READ, which waits for a time that follows from this number.
    pub lag: Option<u64>,
    /// It takes another request of its SRQ, which follows from this number.
    pub swap: Option<u64>,
    /// What it begins or takes ends with this status, by this rule.
    pub completion: Option<(u32, u32)>,
    /// It is answered by a rejection for this reason.
    pub reject: Option<u16>,
    /// It cannot be sent.
    pub unreachable: bool,
    /// Its private data ends behind so many bytes.
    pub cut: Option<u32>,
    /// So many packets of its flow overtake it.
    pub reorder: Option<u32>,
    /// It waits so many nanoseconds.
    pub delay: u64,
    /// It follows the packet before it by so many nanoseconds at least.
    pub slow: u64,
}

/// A fault that a rule has caused, with its place, in the words of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The rule, from 1 on.
    pub rule: u32,
    /// What it does.
    pub action: Action,
    /// The direction.
    pub direction: Direction,
    /// The queue pair ([`QpCounts::number`]).
    pub qp: u32,
    /// The number of the packet among those that the rule counts.
    pub number: u64,
    /// Its opcode.
    pub opcode: Opcode,
    /// GID of the other end.
    pub peer: [u8; 16],
}

/// A call that a rule makes fail, with its place, in the words of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallHit<'a> {
    /// The rule, from 1 on.
    pub rule: u32,
    /// The call, by its name in the rule.
    pub name: &'a str,
    /// Its number among the calls that the rule counts.
    pub number: u64,
    /// With this errno.
    pub errno: i32,
}

/// A list of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    rules: heapless::Vec<Rule, RULES_MAX>,
}

impl Action {
    /// Its name in the rules.
    pub const fn name(self) -> &'static str {
        match self {
            Action::Loss => "loss",
            Action::Duplicate => "duplicate",
            Action::Reorder(_) => "reorder",
            Action::Delay(_) => "delay",
            Action::Corrupt => "corrupt",
            Action::Partition => "partition",
            Action::Ecn => "ecn",
            Action::Slow(_) => "slow",
            Action::Rnr => "rnr",
            Action::Scatter => "scatter",
            Action::Lag => "lag",
            Action::Swap => "swap",
            Action::Completion(_) => "completion",
            Action::Reject(_) => "reject",
            Action::Unreachable => "unreachable",
            Action::Cut(_) => "cut",
        }
    }

    /// Whether it counts a packet at all, beside its conditions.
    fn is_of(self, packet: &Packet, filter: &Filter) -> bool {
        let kind = packet.opcode.kind();
        match self {
            Action::Rnr => packet.takes_receive,
            Action::Completion(_) => match packet.direction {
                Direction::In => packet.takes_receive,
                Direction::Out => packet.begins_request(),
            },
            Action::Swap => {
                let is_datagram = packet.opcode.class() == Class::Ud && !packet.is_mad;
                let is_first = is_datagram && packet.passage == Passage::First;
                packet.has_srq && (packet.takes_receive || is_first)
            }
            Action::Scatter => {
                use PacketKind::{AtomicAck, ReadResponse, Send, Write};
                let has_data = matches!(kind, Send | Write | ReadResponse | AtomicAck);
                has_data && packet.passage == Passage::First
            }
            Action::Lag => kind == PacketKind::ReadRequest && packet.passage == Passage::First,
            _ => filter.counts(packet.passage),
        }
    }

    /// Whether it is about the path of all packets, not about single ones.
    const fn is_of_path(self) -> bool {
        matches!(self, Action::Partition | Action::Slow(_))
    }
}

impl Direction {
    /// Its name in the rules.
    pub const fn name(self) -> &'static str {
        match self {
            Direction::Out => "out",
            Direction::In => "in",
        }
    }
}

impl Service {
    /// The service of an opcode that is not for QP1.
    const fn from_opcode(opcode: Opcode) -> Option<Service> {
        match opcode.class() {
            Class::Rc => Some(Service::Rc),
            Class::Uc => Some(Service::Uc),
            Class::Ud => Some(Service::Ud),
            Class::Xrc => Some(Service::Xrc),
            Class::Dc => Some(Service::Dc),
            Class::Rd | Class::Cnp | Class::Other => None,
        }
    }
}

/// An opcode with the name of another service's: RC's.
pub(crate) fn as_rc(opcode: Opcode) -> Opcode {
    match opcode.class() {
        Class::Uc | Class::Ud => Opcode(opcode.0 & 0x1f),
        class => opcode.class_to_rc(class),
    }
}

impl Filter {
    fn covers(&self, packet: &Packet, qp: u32) -> bool {
        let service =
            if packet.is_mad { Some(Service::Gsi) } else { Service::from_opcode(packet.opcode) };
        self.direction == packet.direction
            && self.peer.is_none_or(|peer| peer == packet.peer)
            && self.service.is_none_or(|wanted| service == Some(wanted))
            && self.opcode.is_none_or(|wanted| wanted == as_rc(packet.opcode))
            && self.qp.is_none_or(|wanted| wanted == qp)
            && (!self.message || packet.opcode.is_first())
            && self.cm.is_none_or(|wanted| packet.cm == Some(wanted))
    }

    /// Whether a packet that it covers has a number.
    fn counts(&self, passage: Passage) -> bool {
        match passage {
            Passage::First => true,
            Passage::Again => false,
            Passage::Control => self.names_control(),
        }
    }

    /// Whether it names packets whose number depends on time.
    fn names_control(&self) -> bool {
        self.service == Some(Service::Gsi)
            || self.cm.is_some()
            || self.opcode.is_some_and(|o| matches!(o.kind(), PacketKind::Ack | PacketKind::Cnp))
    }
}

impl Pick {
    /// Whether it takes the `number`-th; `draw` gives a number that follows from the seed.
    fn takes(self, number: u64, draw: impl FnOnce() -> u64) -> bool {
        match self {
            Pick::All => true,
            Pick::Nth(n) => number == n,
            Pick::Every(n) => number.is_multiple_of(n),
            Pick::Rate(parts) => draw() % PARTS < parts,
        }
    }
}

impl Window {
    /// Everything.
    pub const ALL: Window = Window { from: 1, to: u64::MAX };

    const fn has(self, number: u64) -> bool {
        self.from <= number && number <= self.to
    }
}

impl Packet {
    /// Whether it is the first one of a request that a completion will tell of.
    fn begins_request(&self) -> bool {
        let is_reliable = matches!(self.opcode.class(), Class::Rc | Class::Xrc | Class::Dc);
        is_reliable && self.opcode.is_first() && self.is_new_request()
    }

    /// Whether it is of a request, and passes for the first time.
    fn is_new_request(&self) -> bool {
        self.passage == Passage::First && !self.opcode.kind().is_answer()
    }
}

impl QpCounts {
    /// Those of the device's `number`-th queue pair, of which nothing was counted.
    pub const fn new(number: u32) -> QpCounts {
        QpCounts {
            number,
            life: 0,
            next: [None; 4],
            ready: None,
            counts: [[0; 2]; RULES_MAX],
            begun: 0,
        }
    }

    /// The queue pair is about to have another connection: it counts anew.
    pub fn begin(&mut self) {
        *self = QpCounts { life: self.life.wrapping_add(1), ..QpCounts::new(self.number) };
    }

    /// Notes that a packet passes. Returns whether it does so for the first time. `base`: the first
    /// PSN of its kind, if that is known. `span`: the PSNs that it takes.
    pub fn note_first(
        &mut self,
        direction: Direction,
        is_answer: bool,
        psn: Psn,
        base: Option<Psn>,
        span: u32,
    ) -> bool {
        let next = &mut self.next[2 * direction as usize + usize::from(is_answer)];
        let is_first = next.or(base).is_none_or(|next| psn.diff(next) >= 0);
        if is_first {
            *next = Some(psn.add(span));
        }
        is_first
    }

    /// Notes that a message arrives. Returns whether it does so in order and for the first time, at
    /// the PSN that the responder expects.
    pub fn note_first_in_order(&mut self, psn: Psn, expected: Psn) -> bool {
        let is_first = psn == expected && self.ready.is_none_or(|ready| psn.diff(ready) >= 0);
        if is_first {
            self.ready = Some(psn.next());
        }
        is_first
    }
}

impl Faults {
    /// Reads a list of rules. `calls` knows the calls that can fail.
    ///
    /// # Errors
    /// The first word that is wrong, where it stands, and why.
    pub fn parse(text: &str, calls: Calls) -> Result<Faults, Refused<'_>> {
        grammar::parse(text, calls).map(|rules| Faults { rules })
    }

    /// The rules in their order.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether packets are hit, or counted for an event.
    pub fn hits_packets(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.what, What::Packet(..) | What::Event(_)))
    }

    /// Whether calls fail.
    pub fn hits_calls(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.what, What::Call(..)))
    }

    /// Whether a call fails: by the first rule that hits it. `is_named`: the call has this name.
    /// `count` counts it for a rule, and returns its number there; the first is 1. `None`: it is
    /// carried out. Any thread. Cost: some 20 ns for each rule of that name.
    pub fn call(
        &self,
        seed: u64,
        is_named: impl Fn(&str) -> bool,
        mut count: impl FnMut(usize) -> u64,
    ) -> Option<CallHit<'_>> {
        let mut first = None;
        for (i, rule) in self.rules.iter().enumerate() {
            let What::Call(name, errno) = &rule.what else { continue };
            if !is_named(name) {
                continue;
            }
            let number = count(i);
            let draw = || Random::new(seed, PURPOSE).hash(&[i as u64, number]);
            if first.is_none() && rule.window.has(number) && rule.pick.takes(number, draw) {
                first = Some(CallHit { rule: i as u32 + 1, name, number, errno: *errno });
            }
        }
        first
    }

    /// Whether bytes of memory are placed, or taken, in another order than they come.
    pub fn weakens_memory(&self) -> bool {
        let is_of_memory = |action| matches!(action, Action::Scatter | Action::Lag);
        self.rules.iter().any(|rule| matches!(rule.what, What::Packet(a, _) if is_of_memory(a)))
    }

    /// Whether polls of CQs give fewer completions than there are.
    pub fn shortens_polls(&self) -> bool {
        self.rules.iter().any(|rule| rule.what == What::Few)
    }

    /// Whether keys, handles and QP numbers follow from the seed.
    pub fn sets_keys(&self) -> bool {
        self.rules.iter().any(|rule| rule.what == What::Keys)
    }

    /// Whether a poll of a CQ ends with a completion. `cq`: the CQ's number. `number`: of those
    /// polled from it, from 1 on. It depends on nothing else. Cost: some 20 ns for each rule.
    pub fn ends_poll(&self, seed: u64, cq: u64, number: u64) -> bool {
        self.rules.iter().enumerate().any(|(i, rule)| {
            let draw = || Random::new(seed, PURPOSE).hash(&[i as u64, cq, number]);
            rule.what == What::Few && rule.window.has(number) && rule.pick.takes(number, draw)
        })
    }

    /// The most completions, of `n` that were asked for, that a poll of a CQ gives
    /// ([`Faults::ends_poll`]). `polled`: those that were polled from it before.
    pub fn few(&self, seed: u64, cq: u64, polled: u64, n: u64) -> u64 {
        let ends = |k: &u64| self.ends_poll(seed, cq, polled.saturating_add(*k));
        (1..n.min(LONGEST_POLL)).find(ends).unwrap_or(n)
    }

    /// The limits of the device.
    pub fn limits(&self) -> LoweredLimits {
        let mut limits = LoweredLimits::NONE;
        for rule in &self.rules {
            match &rule.what {
                What::Limit(name, most) => limits.lower(name, *most),
                What::CqOverrun => limits.cq_overrun = true,
                _ => {}
            }
        }
        limits
    }

    /// What happens to a packet of a flow. `hit` gets each fault that a rule causes; of a partition
    /// or a slow path, its begin.
    pub fn decide(
        &self,
        seed: u64,
        packet: &Packet,
        flow: &mut QpCounts,
        mut hit: impl FnMut(&Hit),
    ) -> Verdict {
        let mut verdict = Verdict::default();
        for (i, rule) in self.rules.iter().enumerate() {
            let What::Packet(action, filter) = &rule.what else { continue };
            if !filter.covers(packet, flow.number) {
                continue;
            }
            let found = match action.is_of_path() {
                true => flow.on_path(i, filter, rule.window, packet),
                false => flow.by_number(i, (*action, filter), rule, packet, seed),
            };
            let Some(Found { number, draw, is_news }) = found else { continue };
            let rule = i as u32 + 1;
            verdict.add(*action, draw, rule);
            if is_news {
                let qp = flow.number;
                let Packet { direction, opcode, peer, .. } = *packet;
                hit(&Hit { rule, action: *action, direction, qp, number, opcode, peer });
            }
        }
        verdict
    }
}

/// A packet that a rule hits.
struct Found {
    /// Its number.
    number: u64,
    /// A number that follows from the seed and the place.
    draw: u64,
    /// It is to be told.
    is_news: bool,
}

impl QpCounts {
    /// For rules about single packets: counts one that the rule covers.
    fn by_number(
        &mut self,
        i: usize,
        (action, filter): (Action, &Filter),
        rule: &Rule,
        packet: &Packet,
        seed: u64,
    ) -> Option<Found> {
        if !action.is_of(packet, filter) {
            return None;
        }
        // What is requested and what is answered come in no fixed order.
        let is_answer = packet.opcode.kind().is_answer();
        let number = &mut self.counts[i][usize::from(is_answer)];
        *number += 1;
        let number = *number;
        let side = 2 * packet.direction as u64 + u64::from(is_answer);
        let place = [i as u64, self.number.into(), self.life.into(), side, number];
        let draw = Random::new(seed, PURPOSE).hash(&place);
        let is_hit = rule.window.has(number) && rule.pick.takes(number, || draw);
        is_hit.then_some(Found { number, draw, is_news: true })
    }

    /// For rules about the path. It begins with the first packet of the window, of those that
    /// repeat from run to run or that the rule names, and ends after as many packets of any kind
    /// as the window is long.
    fn on_path(
        &mut self,
        i: usize,
        filter: &Filter,
        window: Window,
        packet: &Packet,
    ) -> Option<Found> {
        let [counted, passed] = &mut self.counts[i];
        *counted += u64::from(filter.counts(packet.passage));
        let number = (*counted).max(1);
        if number < window.from {
            return None;
        }
        let is_news = self.begun >> i & 1 == 0;
        self.begun |= 1 << i;
        *passed += 1;
        (*passed - 1 <= window.to - window.from).then_some(Found { number, draw: 0, is_news })
    }
}

impl Verdict {
    fn add(&mut self, action: Action, draw: u64, rule: u32) {
        match action {
            Action::Loss | Action::Partition => self.loss = true,
            Action::Duplicate => self.duplicate = true,
            Action::Reorder(by) => self.reorder = Some(by),
            Action::Delay(ns) => self.delay = self.delay.max(ns),
            Action::Corrupt => self.corrupt = Some(draw >> 8),
            Action::Ecn => self.ecn = true,
            Action::Slow(ns) => self.slow = self.slow.max(ns),
            Action::Rnr => self.rnr = true,
            Action::Scatter => self.scatter = Some(draw),
            Action::Lag => self.lag = Some(draw),
            Action::Swap => self.swap = Some(draw),
            Action::Completion(status) => self.completion = Some((status, rule)),
            Action::Reject(reason) => self.reject = Some(reason),
            Action::Unreachable => self.unreachable = true,
            Action::Cut(len) => self.cut = Some(len),
        }
    }
}

impl fmt::Display for Hit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Hit { rule, action, direction, qp, number, opcode, peer } = self;
        let peer = Ipv6Addr::from(*peer);
        let peer = peer.to_ipv4_mapped().map_or(IpAddr::V6(peer), IpAddr::V4);
        let (action, direction) = (action.name(), direction.name());
        write!(f, "{action} {direction} qp {qp} packet {number} {} ", opcode.name())?;
        write!(f, "peer {peer} rule {rule}")
    }
}

impl fmt::Display for CallHit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CallHit { rule, name, number, errno } = self;
        write!(f, "call {name} nth {number} errno ")?;
        match errno_name(*errno) {
            Some(errno) => f.write_str(errno)?,
            None => write!(f, "{errno}")?,
        }
        write!(f, " rule {rule}")
    }
}

#[cfg(test)]
mod tests;
