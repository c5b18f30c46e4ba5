//! What faults do in the engine itself: not while it makes a packet, but once that has left or
//! arrived, or when its time has come.

use gdrcore_core::error::Result;
use gdrcore_core::inject::{Faults, When};
use gdrcore_core::refuse;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::wire::Psn;
use std::collections::VecDeque;

/// Places beside one for each queue pair: for the events of all rules, and for the requests of a
/// connection manager that leave in one burst.
const ROOM: usize = 64;

/// A pending action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The request of a queue pair that a PSN is of ends with a status, by a rule.
    Fail { index: usize, psn: Psn, status: u32, rule: u32 },
    /// The peer has rejected a request for a connection: its ids, and the reason.
    Rejected(PeerAddr, (u64, u32), u16),
    /// Nothing can be sent there.
    Unreachable(PeerAddr),
    /// The event of a rule, by the rule's place in the list.
    Event(usize),
}

/// The pending actions, in their order.
pub struct Pending {
    now: VecDeque<Action>,
    /// Events by the clock that are to come: when, and the rule's place. The next one is last.
    timed: Vec<(u64, usize)>,
    /// Rules whose events were raised, a bit each: once for each device.
    raised: u32,
}

impl Pending {
    /// Of a device that is opened now.
    pub fn new(rules: &Faults, now: u64) -> Pending {
        let at = rules.events().filter_map(|(i, event)| match event.when {
            When::At(ns) => Some((now.saturating_add(ns), i)),
            When::After(_) => None,
        });
        let mut timed: Vec<(u64, usize)> = at.collect();
        timed.sort_by_key(|at| core::cmp::Reverse(*at));
        Pending { now: VecDeque::with_capacity(ROOM), timed, raised: 0 }
    }

    /// Makes room for the requests of so many queue pairs.
    ///
    /// # Errors
    /// [`Error::NoMemory`](gdrcore_core::Error::NoMemory).
    pub fn make_room(&mut self, qps: usize) -> Result<()> {
        let full = |_| refuse!(NoMemory, "faults: no memory for the errors of a queue pair");
        self.now.try_reserve((qps + ROOM).saturating_sub(self.now.len())).map_err(full)
    }

    /// Adds an action. False: there is no room, or its event was raised; it is not done.
    pub fn push(&mut self, action: Action) -> bool {
        if let Action::Event(rule) = action {
            let bit = 1 << rule;
            if self.raised & bit != 0 {
                return false;
            }
            self.raised |= bit;
        }
        let fits = self.now.len() < self.now.capacity();
        if fits {
            self.now.push_back(action);
        }
        fits
    }

    /// Whether a request of the queue pair at an index is to end: what it sends does not leave.
    pub fn is_failing(&self, flow: u32) -> bool {
        self.now.iter().any(|action| match action {
            Action::Fail { index, .. } => *index == flow as usize,
            _ => false,
        })
    }

    /// The queue pair at an index has ended, or begins anew.
    pub fn forget(&mut self, qp: usize) {
        self.now.retain(|action| !matches!(action, Action::Fail { index, .. } if *index == qp));
    }

    /// When the next event comes by the clock.
    pub fn next_due(&self) -> Option<u64> {
        self.timed.last().map(|(at, _)| *at)
    }

    /// Takes what is to be done next.
    pub fn take(&mut self, now: u64) -> Option<Action> {
        if self.next_due().is_some_and(|at| at <= now) {
            let (_, rule) = self.timed.pop()?;
            return Some(Action::Event(rule));
        }
        self.now.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending(rules: &str) -> Pending {
        Pending::new(&Faults::parse(rules, |_| Ok(())).unwrap(), 100)
    }

    #[test]
    fn events_come_once_and_by_the_clock_in_their_order() {
        let mut all =
            pending("event QP_FATAL after 1; event PORT_ACTIVE at 9ns; event PORT_ERR at 5ns");
        assert_eq!((all.next_due(), all.take(104)), (Some(105), None));
        assert!(all.push(Action::Event(0)));
        assert!(!all.push(Action::Event(0)), "a connection later");
        assert_eq!(all.take(200), Some(Action::Event(2)));
        assert_eq!((all.next_due(), all.take(200)), (Some(109), Some(Action::Event(1))));
        assert_eq!((all.next_due(), all.take(200)), (None, Some(Action::Event(0))));
        assert_eq!(all.take(200), None);
    }

    #[test]
    fn a_queue_pair_that_begins_anew_has_nothing_to_end() {
        let mut all = pending("loss");
        let fail = |index| Action::Fail { index, psn: Psn::new(3), status: 12, rule: 1 };
        assert!(all.push(fail(4)) && all.push(fail(5)));
        assert!(all.is_failing(4) && all.is_failing(5) && !all.is_failing(3));
        all.forget(4);
        assert_eq!((all.is_failing(4), all.take(0)), (false, Some(fail(5))));
    }

    #[test]
    fn there_is_room_for_each_queue_pair_and_no_more_is_taken() {
        let mut all = pending("loss");
        all.make_room(1000).unwrap();
        let room = (0..).take_while(|i| {
            all.push(Action::Unreachable(PeerAddr { port: *i as u16, ..PeerAddr::default() }))
        });
        assert!(room.count() >= 1000 + ROOM);
    }
}
