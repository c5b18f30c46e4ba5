//! The schedule of rounds: the time that a round uses, the inputs that it reads, and when it is
//! complete.
//!
//! A pure type: times and counts go in, decisions come out. [`super`] runs the rounds.

use crate::soft::rounds::limits::MAINTAIN_MAX_NS;

/// The most rounds in a row that use the time of an earlier one. In a program that polls rarely,
/// timers are late by as many polls.
const STALE_ROUNDS: u8 = 3;
/// The socket counts as hot for this long after a packet.
const HOT_NS: u64 = 50_000;
/// Interval of polls of the socket beside busy links.
const SOCKET_POLL_NS: u64 = 50_000;
/// Granularity of timers in rounds that find nothing.
const IDLE_TICK_NS: u64 = 4096;
/// One in so many rounds in vain reads everything.
const VAIN_ROUNDS: u32 = 64;
/// After this many consecutive rounds that received something, with no thread about to sleep, the
/// port's descriptor leaves the epoll set.
const BUSY_ROUNDS: u32 = 64;
/// Interval of maintenance while a thread polls: it bounds the delay until a new peer, or the end
/// of one, is noticed. Maintenance costs a system call per link, which delays a message that comes
/// meanwhile. So the interval doubles, from the first value to the second, while no peer connects
/// or ends.
const MAINTAIN_NS: (u64, u64) = (100_000, 1_600_000);

/// Decides when the rounds of a device read which inputs.
pub(in crate::soft) struct Schedule {
    /// The time that was read last.
    now: u64,
    /// Rounds since `now` was read.
    stale: u8,
    /// Rounds in vain since something was handled.
    vain: u32,
    /// Rounds that received something since a thread was about to sleep.
    busy: u32,
    /// Coarse tick of the last complete idle round, and whether it polled the socket (timers need
    /// that).
    idle_tick: (u64, bool),
    /// When the socket last received something.
    hot_ns: u64,
    /// When the socket is polled next, whatever the links receive.
    socket_at: u64,
    /// When the links are maintained next.
    maintain_at: u64,
    maintain_every: u64,
    /// Before this time a round may end once it has read the links; 0 while the socket is hot.
    full_at: u64,
}

impl Schedule {
    /// The schedule of a new device: its first round reads everything.
    pub(in crate::soft) const fn new() -> Self {
        Schedule {
            now: 0,
            stale: u8::MAX,
            vain: 0,
            busy: 0,
            idle_tick: (0, false),
            hot_ns: 0,
            socket_at: 0,
            maintain_at: 0,
            maintain_every: 0,
            full_at: 0,
        }
    }

    /// The time of the last round.
    #[inline(always)]
    pub(in crate::soft) fn now(&self) -> u64 {
        self.now
    }

    /// Sets the time, which was just read.
    #[inline(always)]
    pub(in crate::soft) fn set_time(&mut self, now: u64) {
        (self.now, self.stale) = (now, 0);
    }

    /// Whether one more round may use the time of an earlier one.
    #[inline(always)]
    pub(in crate::soft) fn may_keep_time(&self) -> bool {
        self.stale < STALE_ROUNDS
    }

    /// Notes that a round uses the time of an earlier one.
    #[inline(always)]
    pub(in crate::soft) fn keep_time(&mut self) {
        self.stale += 1;
    }

    /// The time of this round, or of `clock` unless the round has read it. Later rounds use it too.
    #[inline(always)]
    pub(in crate::soft) fn refresh(&mut self, now: u64, clock: impl FnOnce() -> u64) -> u64 {
        if self.stale == 0 {
            return self.now.max(now);
        }
        self.set_time(clock());
        self.now
    }

    /// As [`Schedule::refresh`], but later rounds do not use this time.
    #[inline(always)]
    pub(in crate::soft) fn exact(&self, now: u64, clock: impl FnOnce() -> u64) -> u64 {
        match self.stale {
            0 => now,
            _ => clock(),
        }
    }

    /// Whether a round at a time may end once it has read the links.
    #[inline(always)]
    pub(in crate::soft) fn is_short(&self, now: u64) -> bool {
        now < self.full_at
    }

    /// Whether nothing is due before the next tick, for a short round that found nothing.
    #[inline(always)]
    pub(in crate::soft) fn is_done(&self, now: u64) -> bool {
        now < self.maintain_at && now / IDLE_TICK_NS == self.idle_tick.0 && !self.is_last_vain()
    }

    /// Notes whether a round has handled something.
    #[inline(always)]
    pub(in crate::soft) fn note(&mut self, found: bool) {
        self.vain = if found { 0 } else { self.vain.wrapping_add(1) };
    }

    /// Whether this round is the last of [`VAIN_ROUNDS`] in vain.
    #[inline(always)]
    fn is_last_vain(&self) -> bool {
        self.vain % VAIN_ROUNDS == VAIN_ROUNDS - 1
    }

    /// Whether this round drains the errors of the socket: the middle one of [`VAIN_ROUNDS`] in
    /// vain.
    #[inline(always)]
    pub(in crate::soft) fn drains_errors(&self) -> bool {
        self.vain % VAIN_ROUNDS == VAIN_ROUNDS / 2
    }

    /// Whether the socket received something a short while ago.
    #[inline(always)]
    fn received_lately(&self, now: u64) -> bool {
        now.saturating_sub(self.hot_ns) < HOT_NS
    }

    /// Whether this round polls the socket. An empty poll costs more than a message through memory.
    /// So beside links the socket is polled only while it is hot, in every 64th round in vain, and
    /// at intervals, because with busy links no round is in vain.
    #[inline(always)]
    pub(in crate::soft) fn polls_socket(&self, now: u64, has_links: bool) -> bool {
        !has_links || self.is_last_vain() || now >= self.socket_at || self.received_lately(now)
    }

    #[inline(always)]
    pub(in crate::soft) fn note_poll(&mut self, now: u64) {
        self.socket_at = now + SOCKET_POLL_NS;
    }

    /// Notes that the socket, or a router's ring, has received something.
    #[inline(always)]
    pub(in crate::soft) fn note_received(&mut self, now: u64) {
        self.hot_ns = now;
    }

    /// Notes that the socket has received something. Returns whether its descriptor must leave the
    /// epoll set.
    #[inline(always)]
    pub(in crate::soft) fn note_busy(&mut self, now: u64) -> bool {
        self.note_received(now);
        self.busy = self.busy.saturating_add(1);
        self.is_busy()
    }

    /// Whether so many rounds received something that no thread seems to sleep.
    #[inline(always)]
    pub(in crate::soft) fn is_busy(&self) -> bool {
        self.busy >= BUSY_ROUNDS
    }

    /// Notes that a thread is about to sleep on the socket.
    pub(in crate::soft) fn forget_busy(&mut self) {
        self.busy = 0;
    }

    /// Plans the next round that does more than read the links. `each`: all rounds do.
    #[inline(always)]
    pub(in crate::soft) fn plan_full(&mut self, now: u64, each: bool) {
        let at_once = self.received_lately(now) || each;
        self.full_at =
            if at_once { 0 } else { self.socket_at.min(self.maintain_at + MAINTAIN_MAX_NS) };
    }

    /// Whether the timers and due ACKs of a round in vain were checked in this tick. Otherwise this
    /// round checks them.
    #[inline(always)]
    pub(in crate::soft) fn note_tick(&mut self, now: u64, polled: bool) -> bool {
        let tick = (now / IDLE_TICK_NS, polled);
        let ticked = tick == self.idle_tick || tick == (self.idle_tick.0, false);
        if !ticked {
            self.idle_tick = tick;
        }
        ticked
    }

    /// Whether the links must be maintained. `handled`: frames that this round has read from them.
    #[inline(always)]
    pub(in crate::soft) fn is_maintenance_due(&self, now: u64, handled: usize) -> bool {
        now >= self.maintain_at && (handled == 0 || now - self.maintain_at >= MAINTAIN_MAX_NS)
    }

    /// Plans the next maintenance. `changed`: a peer has connected or ended.
    pub(in crate::soft) fn plan_maintenance(&mut self, now: u64, changed: bool) {
        let twice = (2 * self.maintain_every).clamp(MAINTAIN_NS.0, MAINTAIN_NS.1);
        self.maintain_every = if changed { MAINTAIN_NS.0 } else { twice };
        self.maintain_at = now + self.maintain_every;
    }

    /// Plans the next maintenance of a device without links: as rarely as with links at rest. With
    /// a router's ring, which alone tells of news, in each round.
    pub(in crate::soft) fn plan_maintenance_alone(&mut self, now: u64, has_relay: bool) {
        self.maintain_at = if has_relay { 0 } else { now + MAINTAIN_NS.1 };
    }

    /// Makes the next round maintain the links.
    pub(in crate::soft) fn look_at_links(&mut self) {
        (self.maintain_at, self.full_at) = (0, 0);
    }

    /// Makes the next round poll the socket.
    pub(in crate::soft) fn look_at_socket(&mut self) {
        (self.socket_at, self.full_at) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A schedule whose next events are as far as they can be.
    fn at_rest(now: u64) -> Schedule {
        let mut s = Schedule::new();
        s.set_time(now);
        s.note_poll(now);
        for _ in 0..8 {
            s.plan_maintenance(now, false);
        }
        s.plan_full(now, false);
        s
    }

    const NOW: u64 = 1_000_000_000;

    #[test]
    fn a_new_device_looks_at_everything() {
        let mut s = Schedule::new();
        assert!(!s.may_keep_time(), "it has read no time");
        assert!(!s.is_short(NOW) && s.polls_socket(NOW, true) && s.is_maintenance_due(NOW, 0));
        assert!(!s.note_tick(NOW, true));
    }

    #[test]
    fn few_rounds_in_a_row_use_one_time() {
        let mut s = Schedule::new();
        s.set_time(NOW);
        assert_eq!(s.refresh(NOW - 5, || panic!("it was read in this round")), NOW);
        for _ in 0..STALE_ROUNDS {
            assert!(s.may_keep_time());
            s.keep_time();
        }
        assert_eq!(s.exact(NOW, || NOW + 1), NOW + 1);
        assert!(!s.may_keep_time(), "an exact time is for one reader");
        assert_eq!(s.refresh(NOW, || NOW + 2), NOW + 2);
        assert_eq!(s.exact(NOW + 2, || panic!("it is known")), NOW + 2);
        assert!(s.may_keep_time() && s.now() == NOW + 2);
    }

    #[test]
    fn beside_links_the_socket_is_polled_while_hot_at_intervals_and_in_one_of_64_rounds_in_vain() {
        let mut s = at_rest(NOW);
        assert!(s.polls_socket(NOW, false) && !s.polls_socket(NOW, true));
        assert!(s.polls_socket(NOW + SOCKET_POLL_NS, true));
        let polls = (0..VAIN_ROUNDS).filter(|_| {
            let polls = s.polls_socket(NOW, true);
            s.note(false);
            polls
        });
        assert_eq!(polls.count(), 1);
        s.note_received(NOW);
        assert!(s.polls_socket(NOW + HOT_NS - 1, true));
        s.note_poll(NOW + HOT_NS);
        assert!(!s.polls_socket(NOW + HOT_NS, true));
        s.look_at_socket();
        assert!(s.polls_socket(NOW + HOT_NS, true));
    }

    #[test]
    fn rounds_are_short_until_the_socket_or_the_links_are_due() {
        let mut s = at_rest(NOW);
        assert!(s.is_short(NOW) && !s.is_short(NOW + SOCKET_POLL_NS));
        s.plan_full(NOW, true);
        assert!(!s.is_short(NOW), "a device without links has no short rounds");
        s.note_received(NOW);
        s.plan_full(NOW, false);
        assert!(!s.is_short(NOW), "a hot socket leaves none");
        // Busy links: the socket was polled, and maintenance is overdue.
        let mut s = at_rest(NOW);
        let late = NOW + MAINTAIN_NS.1 + MAINTAIN_MAX_NS;
        s.note_poll(late);
        s.plan_full(late - 1, false);
        assert!(s.is_short(late - 1) && !s.is_short(late));
        for look in [Schedule::look_at_links, Schedule::look_at_socket] {
            let mut s = at_rest(NOW);
            look(&mut s);
            assert!(!s.is_short(NOW));
        }
    }

    #[test]
    fn a_round_in_vain_is_done_until_the_next_tick() {
        let mut s = at_rest(NOW);
        assert!(!s.is_done(NOW) && !s.note_tick(NOW, false));
        assert!(s.is_done(NOW) && s.note_tick(NOW, false));
        assert!(!s.note_tick(NOW, true), "timers need a poll of the socket");
        assert!(s.note_tick(NOW, false) && s.note_tick(NOW, true));
        assert!(!s.is_done(NOW + IDLE_TICK_NS) && !s.note_tick(NOW + IDLE_TICK_NS, false));
        s.look_at_links();
        assert!(!s.is_done(NOW + IDLE_TICK_NS), "maintenance is due");
        let mut s = at_rest(NOW);
        s.note_tick(NOW, false);
        (1..VAIN_ROUNDS).for_each(|_| s.note(false));
        assert!(!s.is_done(NOW), "it looks at everything");
        s.note(true);
        assert!(s.is_done(NOW));
    }

    #[test]
    fn maintenance_becomes_rare_while_nobody_comes_or_goes() {
        let mut s = Schedule::new();
        let mut intervals = Vec::new();
        for changed in [true, false, false, false, false, false, false, true, false] {
            s.plan_maintenance(NOW, changed);
            intervals.push(s.maintain_at - NOW);
        }
        let us = |n: u64| n * 100_000;
        assert_eq!(intervals, [1, 2, 4, 8, 16, 16, 16, 1, 2].map(us));
        let due = s.maintain_at;
        assert!(!s.is_maintenance_due(due - 1, 0) && s.is_maintenance_due(due, 0));
        // While frames come it waits, but not for ever.
        assert!(!s.is_maintenance_due(due, 1));
        assert!(s.is_maintenance_due(due + MAINTAIN_MAX_NS, 1));
        s.look_at_links();
        assert!(s.is_maintenance_due(NOW, 0));
        s.plan_maintenance_alone(NOW, false);
        assert!(!s.is_maintenance_due(NOW, 0) && s.is_maintenance_due(NOW + MAINTAIN_NS.1, 0));
        s.plan_maintenance_alone(NOW, true);
        assert!(s.is_maintenance_due(NOW, 0));
    }

    #[test]
    fn a_descriptor_leaves_the_epoll_set_of_a_program_that_polls() {
        let mut s = Schedule::new();
        assert_eq!((1..=2 * BUSY_ROUNDS).find(|_| s.note_busy(NOW)), Some(BUSY_ROUNDS));
        s.forget_busy();
        assert!(!s.note_busy(NOW), "a thread was about to sleep");
    }

    #[test]
    fn errors_are_drained_between_two_looks_at_everything() {
        let mut s = Schedule::new();
        let rounds: Vec<u32> = (0..2 * VAIN_ROUNDS)
            .filter(|_| {
                let drains = s.drains_errors();
                s.note(false);
                drains
            })
            .collect();
        assert_eq!(rounds, [VAIN_ROUNDS / 2, VAIN_ROUNDS + VAIN_ROUNDS / 2]);
    }
}
