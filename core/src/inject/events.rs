//! Events that rules raise: asynchronous ones, and the end of a connection. Which one, and when;
//! what else changes in the device then is the caller's.

use super::{Direction, Faults, Packet, QpCounts, What};
use crate::device::async_event;
use core::fmt;

/// What an event is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Raised {
    /// The port: this event of [`async_event`].
    Port(u32),
    /// The device, which is removed.
    Device,
    /// A queue pair.
    Qp(u32),
    /// The send CQ of a queue pair.
    Cq,
    /// The SRQ of a queue pair.
    Srq(u32),
    /// The connection of a queue pair, by the connection manager: DISCONNECTED.
    Connection,
}

/// When an event is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// When so many messages of the queue pair have passed.
    After(u64),
    /// So many nanoseconds after the device was opened.
    At(u64),
}

/// The event of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Its name in the rules.
    pub name: &'static str,
    /// What it is of.
    pub what: Raised,
    /// The queue pair that counts, and that it is of or belongs to: the n-th of the device.
    pub qp: u32,
    /// The direction of the messages that count.
    pub direction: Direction,
    /// When.
    pub when: When,
}

/// An event that a rule has raised, in the words of the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventHit {
    /// The rule, from 1 on.
    pub rule: u32,
    /// The event.
    pub event: Event,
}

/// The names of events: those of libibverbs without IBV_EVENT_, and that of librdmacm without
/// RDMA_CM_EVENT_.
pub(super) const EVENTS: &[(&str, Raised)] = &[
    ("CQ_ERR", Raised::Cq),
    ("QP_FATAL", Raised::Qp(async_event::QP_FATAL)),
    ("QP_REQ_ERR", Raised::Qp(async_event::QP_REQ_ERR)),
    ("QP_ACCESS_ERR", Raised::Qp(async_event::QP_ACCESS_ERR)),
    ("COMM_EST", Raised::Qp(async_event::COMM_EST)),
    ("SQ_DRAINED", Raised::Qp(async_event::SQ_DRAINED)),
    ("PATH_MIG", Raised::Qp(async_event::PATH_MIG)),
    ("PATH_MIG_ERR", Raised::Qp(async_event::PATH_MIG_ERR)),
    ("QP_LAST_WQE_REACHED", Raised::Qp(async_event::QP_LAST_WQE_REACHED)),
    ("DEVICE_FATAL", Raised::Device),
    ("PORT_ACTIVE", Raised::Port(async_event::PORT_ACTIVE)),
    ("PORT_ERR", Raised::Port(async_event::PORT_ERR)),
    ("LID_CHANGE", Raised::Port(async_event::LID_CHANGE)),
    ("PKEY_CHANGE", Raised::Port(async_event::PKEY_CHANGE)),
    ("SM_CHANGE", Raised::Port(async_event::SM_CHANGE)),
    ("CLIENT_REREGISTER", Raised::Port(async_event::CLIENT_REREGISTER)),
    ("GID_CHANGE", Raised::Port(async_event::GID_CHANGE)),
    ("SRQ_ERR", Raised::Srq(async_event::SRQ_ERR)),
    ("SRQ_LIMIT_REACHED", Raised::Srq(async_event::SRQ_LIMIT_REACHED)),
    ("DISCONNECTED", Raised::Connection),
];

/// The names of all events of the rules.
pub fn names() -> impl Iterator<Item = &'static str> {
    EVENTS.iter().map(|(name, _)| *name)
}

impl Faults {
    /// The events of the rules, each with the place of its rule in the list.
    pub fn events(&self) -> impl Iterator<Item = (usize, &Event)> {
        self.rules.iter().enumerate().filter_map(|(i, rule)| match &rule.what {
            What::Event(event) => Some((i, event)),
            _ => None,
        })
    }

    /// Counts a packet for the events. `raised` gets the place of each rule whose event is due
    /// behind it.
    pub fn count_for_events(
        &self,
        packet: &Packet,
        flow: &mut QpCounts,
        mut raised: impl FnMut(usize),
    ) {
        if !(packet.opcode.is_last() && packet.is_new_request()) {
            return;
        }
        for (i, event) in self.events() {
            let When::After(after) = event.when else { continue };
            if event.qp == flow.number && event.direction == packet.direction {
                flow.counts[i][0] += 1;
                if flow.counts[i][0] == after {
                    raised(i);
                }
            }
        }
    }

    /// The event of a rule, by the rule's place in the list.
    pub fn event(&self, i: usize) -> Option<EventHit> {
        match self.rules.get(i)?.what {
            What::Event(event) => Some(EventHit { rule: i as u32 + 1, event }),
            _ => None,
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            When::After(n) => write!(f, "after {n}"),
            When::At(ns) => {
                let units = [(1_000_000_000, "s"), (1_000_000, "ms"), (1_000, "us"), (1, "ns")];
                let fits = units.iter().find(|(unit, _)| ns.is_multiple_of(*unit));
                let (unit, name) = fits.unwrap_or(&(1, "ns"));
                write!(f, "at {}{name}", ns / unit)
            }
        }
    }
}

impl fmt::Display for EventHit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EventHit { rule, event: Event { name, qp, direction, when, .. } } = self;
        write!(f, "event {name} {} qp {qp} {when} rule {rule}", direction.name())
    }
}
