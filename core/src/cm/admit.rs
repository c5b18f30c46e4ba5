//! Bounds on what strangers may occupy.
//!
//! A REQ shows nothing of its sender: its source address may be forged. Only a message that names
//! our communication id (RTU, MRA, REJ, DREQ), or a packet in order on the QP that our REP named,
//! shows that the peer receives. Until then an id is a *guest*. Guests have slots of their own
//! ([`Bounds`]), so the program's `max_cm_ids` are for itself and for peers that have shown that
//! they receive.
//!
//! Of the guests, requests and unconfirmed connections are *half-open*, like connections in the SYN
//! queue of TCP. They are bounded for each listener, and for each source. When a bound is reached,
//! a new request replaces a half-open one, by rules that favour a flood least:
//!
//! - A source beyond its own bound, half of a listener's, replaces its own only.
//! - Among requests whose events the program has not taken, the source with most of them loses one
//!   to a source with fewer.
//! - An accepted connection is left alone for [`FAIR_NS`], in which an honest peer confirms it;
//!   then the oldest goes.
//! - A *known* source, which has confirmed a connection lately, replaces one that is not known, at
//!   once.
//!
//! A datagram request (SIDR) that was accepted stays for its repetitions, and no message confirms
//! it. It counts as the program's, and the oldest one goes when the table is full
//! ([`Cm::take_answered`]).
//!
//! So a flood from forged addresses, each new, keeps no known peer out and only delays others; one
//! from a real address keeps to its share. If no place is found, the request is dropped, and its
//! sender repeats it.

use super::conn::{Id, State};
use super::types::cm_event;
use super::Cm;
use crate::arena::CHUNK;
use crate::config::Config;
use crate::roce::peer::PeerAddr;
use crate::verbs::NONE;

/// Time in which an accepted connection is not replaced.
pub const FAIR_NS: u64 = 100_000_000;
/// How long an address is known.
const KNOWN_NS: u64 = 600_000_000_000;
/// Addresses that are known at a time.
pub(super) const KNOWN: usize = 256;
/// Counts of half-open ids, each for the sources with one hash. They share a bound.
pub(super) const LOADS: usize = 1024;
/// See [`LOADS`].
pub(super) type Load = u16;

/// Fewest and most half-open ids that a listener may have.
const HALF_OPEN: core::ops::RangeInclusive<u32> = 16..=2048;

/// Numbers of ids, by kind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Of the program, and of peers that have shown that they receive.
    pub(super) own: u32,
    /// Guests: twice the half-open ones, because a program destroys an id only some time after it
    /// was given up for another.
    pub(super) guests: u32,
    /// Half-open ids of one listener. It follows from `max_qp` too, because each of them may have a
    /// QP.
    pub(super) half_open: u32,
}

impl Bounds {
    pub(super) fn from_config(config: &Config) -> Bounds {
        let own = config.max_cm_ids.next_multiple_of(CHUNK as u32);
        let half_open = (config.max_qp / 2).min(own).clamp(*HALF_OPEN.start(), *HALF_OPEN.end());
        Bounds { own, guests: (2 * half_open).next_multiple_of(CHUNK as u32), half_open }
    }

    /// All ids.
    pub(super) fn slots(&self) -> usize {
        (self.own + self.guests) as usize
    }

    /// Half-open ids of one source.
    pub(super) fn half_open_of_source(&self) -> u32 {
        self.half_open / 2
    }

    /// The largest backlog: beside requests that wait there must be room for accepted ones.
    pub(super) fn backlog(&self) -> u32 {
        self.half_open / 2
    }
}

/// An address that has shown that it receives.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    gid: [u8; 16],
    until: u64,
}

/// Why a request gets no id, and is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The ids of the program and of peers that receive are all in use.
    Full,
    /// A bound for strangers is reached, and nobody may go for this one.
    Crowded,
}

/// Whether an id in a state is half-open.
fn is_half_open(state: State) -> bool {
    matches!(state, State::ReqRcvd | State::SidrRcvd | State::RepSent)
}

impl Cm {
    /// A keyed hash of an address: an attacker cannot choose another address with the same one.
    fn source_of(&self, gid: &[u8; 16]) -> u64 {
        let half = |b: &[u8]| b.iter().fold(0u64, |w, &x| w << 8 | u64::from(x));
        let (high, low) = gid.split_at(8);
        self.random.hash(&[half(high), half(low)])
    }

    pub(super) fn load_of(&self, gid: &[u8; 16]) -> u32 {
        self.load[self.source_of(gid) as usize % LOADS].into()
    }

    /// Whether an address has shown lately that it receives.
    pub(super) fn is_known(&self, now: u64, gid: &[u8; 16]) -> bool {
        let known = &self.known[self.source_of(gid) as usize % KNOWN];
        known.gid == *gid && now < known.until
    }

    /// Puts an id into a state, and updates the counts of half-open and waiting ids.
    pub(super) fn move_to(&mut self, i: usize, state: State) {
        let id = &mut self.ids[i];
        let (was, waited) = (id.state, id.is_waiting());
        let had_peer = id.has_peer_qp();
        id.state = state;
        if id.has_peer_qp() {
            self.unwatched.set(i);
        } else {
            self.unwatched.clear(i);
            self.has_ended |= had_peer;
        }
        let waits = id.is_waiting();
        let (before, after) = (is_half_open(was), is_half_open(state) && id.passive);
        let (listener, gid) = (id.listener, id.peer.gid);
        if waited && !waits {
            if let Some(l) = self.ids.get_mut(listener as usize) {
                l.pending = l.pending.saturating_sub(1);
            }
        }
        if before && !after && self.half_open.get(i) {
            if let Some(l) = self.ids.get_mut(listener as usize) {
                l.half_open = l.half_open.saturating_sub(1);
            }
            self.ids[i].listener = NONE;
            self.half_open.clear(i);
            let at = self.source_of(&gid) as usize % LOADS;
            self.load[at] = self.load[at].saturating_sub(1);
        }
    }

    /// An id is no guest any more.
    pub(super) fn release_guest(&mut self, i: usize) {
        if core::mem::take(&mut self.ids[i].guest) {
            self.guests -= 1;
        }
    }

    /// Notes that the peer receives: a message from its address has named this id.
    pub(super) fn note_receives(&mut self, now: u64, i: usize) {
        self.release_guest(i);
        let gid = self.ids[i].peer.gid;
        let at = self.source_of(&gid) as usize % KNOWN;
        self.known[at] = Known { gid, until: now.saturating_add(KNOWN_NS) };
    }

    /// Makes room for one more id of the program: frees an orphan if there is none, or else the
    /// oldest datagram request that was accepted. False: there is no room.
    pub(super) fn make_room(&mut self) -> bool {
        let own = |cm: &Cm| cm.pool.live() as u32 - cm.guests;
        if own(self) >= self.bounds.own {
            self.take_orphan(false);
        }
        if own(self) >= self.bounds.own {
            self.take_answered();
        }
        own(self) < self.bounds.own
    }

    /// Frees the oldest id of a datagram request whose answer has left. Only a repeated request
    /// still needs such an id. No message confirms it, so forged requests would fill the table of a
    /// program that keeps them.
    fn take_answered(&mut self) {
        let is_spare = |&i: &usize| {
            let id = &self.ids[i];
            id.state == State::SidrDone && id.owes == 0 && !self.events.has_any(i)
        };
        let oldest = self.pool.iter_live().filter(is_spare).min_by_key(|&i| self.ids[i].since);
        if let Some(i) = oldest {
            self.counters.evicted += 1;
            self.free(i);
        }
    }

    /// Frees an orphan that has nothing to send. `guest`: of the guests, or of the others.
    fn take_orphan(&mut self, guest: bool) {
        let spare =
            |&i: &usize| self.ids[i].orphan && self.ids[i].owes == 0 && self.ids[i].guest == guest;
        let found = self.pool.iter_live().find(spare);
        if let Some(i) = found {
            self.free(i);
        }
    }

    /// The half-open id with the least key; those without a key do not count.
    fn first_by<K: Ord>(&self, key: impl Fn(usize, &Id) -> Option<K>) -> Option<usize> {
        let all = self.half_open.iter().filter_map(|i| Some((key(i, &self.ids[i])?, i)));
        all.min_by(|(a, _), (b, _)| a.cmp(b)).map(|(_, i)| i)
    }

    /// Chooses the half-open id that a new request of a source replaces. `None`: no bound is
    /// reached, and none has to go.
    fn choose_victim(&self, now: u64, l: usize, from: &[u8; 16]) -> Result<Option<usize>, NoPlace> {
        let listener = &self.ids[l];
        let mine = self.load_of(from);
        let may_go = |i: usize, id: &Id| {
            self.is_unheard(i)
                || id.state == State::RepSent && id.since.saturating_add(FAIR_NS) <= now
        };
        if mine >= self.bounds.half_open_of_source() {
            let own =
                |i: usize, id: &Id| (id.peer.gid == *from && may_go(i, id)).then_some(id.since);
            return self.first_by(own).map(Some).ok_or(NoPlace::Crowded);
        }
        let known = self.is_known(now, from);
        if listener.pending >= listener.backlog {
            let better = |i: usize, id: &Id| {
                let more = self.load_of(&id.peer.gid);
                let gives = known && !self.is_known(now, &id.peer.gid) || more > mine + 1;
                (self.is_unheard(i) && id.listener == l as u32 && gives)
                    .then_some((u32::MAX - more, id.since))
            };
            return self.first_by(better).map(Some).ok_or(NoPlace::Crowded);
        }
        if listener.half_open >= self.bounds.half_open {
            let oldest = |i: usize, id: &Id| {
                let stays = self.is_known(now, &id.peer.gid);
                let gives = may_go(i, id) || known && !stays;
                (id.state == State::RepSent && id.listener == l as u32 && gives)
                    .then_some((stays, id.since))
            };
            return self.first_by(oldest).map(Some).ok_or(NoPlace::Crowded);
        }
        Ok(None)
    }

    /// Gives a request an id.
    pub(super) fn admit(
        &mut self,
        now: u64,
        l: usize,
        from: &PeerAddr,
        fresh: Id,
    ) -> Result<(), NoPlace> {
        if !self.make_room() {
            return Err(NoPlace::Full);
        }
        let victim = self.choose_victim(now, l, &from.gid)?;
        // Only a request whose event was not taken leaves its slot at once.
        let leaves = victim.is_some_and(|i| self.is_unheard(i));
        if self.guests >= self.bounds.guests && !leaves {
            self.take_orphan(true);
            if self.guests >= self.bounds.guests {
                return Err(NoPlace::Crowded);
            }
        }
        if let Some(i) = victim {
            self.evict(i);
        }
        let (_, i) = self.pool.alloc().map_err(|_| NoPlace::Crowded)?;
        self.ids[i] = Id {
            guest: true,
            since: now,
            listener: l as u32,
            former_id: self.ids[i].former_id,
            rq_psn: self.first_psn(),
            ..fresh
        };
        self.guests += 1;
        self.half_open.set(i);
        let at = self.source_of(&from.gid) as usize % LOADS;
        self.load[at] = self.load[at].saturating_add(1);
        self.ids[l].pending += 1;
        self.ids[l].half_open += 1;
        self.ids[i].local_id = self.fresh_comm_id(i);
        self.store_peer_hashes(i);
        self.raise(i, cm_event::CONNECT_REQUEST);
        Ok(())
    }

    /// Gives a half-open id up for another. If the program has taken the request's event, it is
    /// told.
    fn evict(&mut self, i: usize) {
        self.counters.evicted += 1;
        if self.is_unheard(i) {
            return self.free(i);
        }
        self.fail_exchange(i);
    }

    /// Ends an exchange that got no answer: tells the program and the peer.
    pub(super) fn fail_exchange(&mut self, i: usize) {
        self.ids[i].status = self.ids[i].silence_status();
        self.raise(i, cm_event::UNREACHABLE);
        self.reject_by_timeout(i);
    }

    /// Whether [`Cm::confirm`] is due, because a listener is full. True at most once in a tenth of
    /// [`FAIR_NS`].
    pub fn take_confirm_due(&mut self, now: u64) -> bool {
        let full = |l: usize| self.ids[l].half_open >= self.bounds.half_open;
        let due = now >= self.confirm_at && self.listening.iter().any(full);
        if due {
            self.confirm_at = now.saturating_add(FAIR_NS / 10);
        }
        due
    }

    /// Confirms accepted connections without an RTU, which may be lost, if their peers have sent in
    /// order on the QPs. `sends`: whether the peer of a QPN of this device has.
    pub fn confirm(&mut self, now: u64, sends: impl Fn(u32) -> bool) {
        let mut at = 0;
        while let Some(i) = self.half_open.at_or_after(at) {
            at = i + 1;
            // Linux cm.c cm_establish: Data in order on the queue pair establishes the connection
            // as an RTU does.
            if self.ids[i].state == State::RepSent && sends(self.ids[i].local_qpn) {
                self.establish_passive(now, i);
            }
        }
    }

    /// The peer has our REP: the passive side is connected.
    pub(super) fn establish_passive(&mut self, now: u64, i: usize) {
        self.note_receives(now, i);
        self.drop_owed(i);
        self.enter(i, State::Established);
        self.ids[i].since = 0;
        self.raise(i, cm_event::ESTABLISHED);
    }

    fn peer_hash(&self, gid: &[u8; 16], number: u32) -> u32 {
        // 0 stands for a free slot.
        self.random.hash(&[self.source_of(gid), number.into()]) as u32 | 1
    }

    /// Stores the hashes of the peer's communication id and QPN, once they are known, for
    /// [`Cm::find`].
    pub(super) fn store_peer_hashes(&mut self, i: usize) {
        let id = &self.ids[i];
        self.peer_hashes[i] = [
            self.peer_hash(&id.peer.gid, id.remote_id),
            self.peer_hash(&id.peer.gid, id.remote_qpn),
        ];
    }

    /// The id whose peer, at this address, has this communication id or QPN, and for which `is`
    /// holds. Compares hashes, because otherwise each request of a flood would walk through a whole
    /// large table.
    pub(super) fn find(
        &self,
        from: &PeerAddr,
        key: PeerKey,
        is: impl Fn(&Id) -> bool,
    ) -> Option<usize> {
        let (k, hash) = match key {
            PeerKey::RemoteId(id) => (0, self.peer_hash(&from.gid, id)),
            PeerKey::RemoteQpn(qpn) => (1, self.peer_hash(&from.gid, qpn)),
        };
        let matches = |&(i, f): &(usize, &[u32; 2])| {
            f[k] == hash && self.ids[i].peer.gid == from.gid && is(&self.ids[i])
        };
        self.peer_hashes.iter().enumerate().find(matches).map(|(i, _)| i)
    }
}

/// By what a message names its sender.
#[derive(Clone, Copy)]
pub(super) enum PeerKey {
    /// Its communication id.
    RemoteId(u32),
    /// Its QPN.
    RemoteQpn(u32),
}
