//! What is known of the program, and what each call changes in it.

use crate::attributes::{self, Ways};
use crate::garbage;
use crate::keys::Keys;
use crate::like::Nic;
use crate::memory::{MrKey, MrRange, MrRanges};
use crate::objects::{Object, Objects, Rkey};
use crate::queues::{Outstanding, QpKey, Queues};
use crate::report::{Report, Reports};
use crate::rules::Rule;
use crate::sites::{Site, Sites};
use crate::Id;
use core::ffi::c_int;
use gdrcore_calls::options::Mode;
use gdrcore_core::random::Random;
use gdrcore_core::verbs::types::{qp_attr_mask, QpAttr, QpCap, Wc};
use std::collections::{HashMap, HashSet, VecDeque};

/// A thread that lives.
type Thread = libc::pthread_t;

fn this_thread() -> Thread {
    // SAFETY: takes nothing, never fails.
    unsafe { libc::pthread_self() }
}

/// Where and by whom a CQ was armed.
struct Armed {
    site: Site,
    thread: Thread,
}

/// A CQ.
pub(crate) struct CqFacts {
    /// Its entries.
    pub(crate) room: usize,
    /// Where its events go.
    channel: Id,
}

/// All that is known.
pub struct State {
    pub(crate) sites: Sites,
    pub(crate) reports: Reports,
    pub(crate) nic: Option<&'static Nic>,
    pub(crate) regions: MrRanges,
    pub(crate) keys: Keys,
    pub(crate) outstanding: Outstanding,
    pub(crate) objects: Objects,
    pub(crate) cqs: HashMap<Id, CqFacts>,
    /// The numbers of queue pairs, of an interface whose calls name queue pairs by handles.
    pub(crate) qp_numbers: HashMap<Id, u32>,
    /// CQs that are reported to have too few entries.
    pub(crate) overrun: HashSet<Id>,
    /// CQs that were armed while sends were outstanding, and not polled since, with the place.
    armed: HashMap<Id, Armed>,
    /// The last thread that polled a CQ.
    polled_by: HashMap<Id, Thread>,
    /// What is known of the program's ways.
    pub ways: Ways,
    /// The program is ready for fork: it has called `ibv_fork_init`, or `ibv_is_fork_initialized`,
    /// or its environment has RDMAV_FORK_SAFE, or its interface needs no preparation.
    pub is_fork_ready: bool,
    /// The number of the next request.
    pub(crate) next: u64,
    /// The numbers of undefined fields.
    garbage: Random,
}

// SAFETY: a thread's number, which is a pointer with some libraries, is only compared.
unsafe impl Send for State {}

/// What a call destroys.
pub struct Destruction {
    object: Option<Object>,
    region: Option<(MrKey, MrRange)>,
    /// A remote key that ends with it, and its device.
    rkey: Option<Rkey>,
}

/// The kind of an object that a call destroys.
pub enum ObjectKind {
    /// A queue pair.
    Qp(QpKey),
    /// An SRQ.
    Srq,
    /// A CQ.
    Cq,
    /// A region, by its local key.
    Mr(MrKey),
    /// An address handle.
    Ah,
    /// Another one.
    Other,
}

impl State {
    /// Nothing is known yet. `seed`: of the garbage in undefined fields.
    pub(crate) fn new(reports: Reports, nic: Option<&'static Nic>, seed: u64) -> State {
        State {
            sites: Sites::default(),
            reports,
            nic,
            regions: MrRanges::default(),
            keys: Keys::default(),
            outstanding: Outstanding::default(),
            objects: Objects::default(),
            cqs: HashMap::new(),
            qp_numbers: HashMap::new(),
            overrun: HashSet::new(),
            armed: HashMap::new(),
            polled_by: HashMap::new(),
            ways: Ways::default(),
            is_fork_ready: true,
            next: 0,
            garbage: Random::new(seed, 0),
        }
    }

    /// Reports something of the call that this thread is in.
    pub(crate) fn report(&mut self, rule: Rule, words: String) {
        self.report_beside(rule, words, None);
    }

    /// The same, with another place that belongs to it.
    fn report_beside(&mut self, rule: Rule, words: String, noticed: Option<Site>) {
        let site = self.sites.here();
        self.add(Report { rule, words, site, noticed });
    }

    pub(crate) fn add(&mut self, report: Report) {
        self.reports.add(&self.sites, &report);
    }

    /// In a child of fork: its parent's objects are none of it.
    pub fn forget(&mut self) {
        self.regions = MrRanges::default();
        self.keys = Keys::default();
        self.outstanding = Outstanding::default();
        self.objects = Objects::default();
        self.cqs.clear();
        self.qp_numbers.clear();
        self.overrun.clear();
        self.armed.clear();
        self.polled_by.clear();
        self.reports.clear();
    }

    /// Before fork.
    pub fn forking(&mut self) {
        if !self.is_fork_ready && !self.regions.0.is_empty() {
            let n = self.regions.0.len();
            self.report(Rule::ForkUnprepared, format!("fork with {n} regions registered"));
        }
    }

    /// At the end of the process; its exit status, if that is to be another.
    pub fn ending_process(&mut self) -> Option<c_int> {
        for report in self.objects.left(&self.sites, |_| true, "at the end of the process") {
            self.add(report);
        }
        match self.reports.mode {
            Mode::Exit(code) if self.reports.count() > 0 => Some(code),
            _ => None,
        }
    }

    /// A device is closed. What it has ends with it.
    pub fn device_closed(&mut self, device: usize) {
        let of_it = |id: &Id| id.0 == device;
        for report in self.objects.left(&self.sites, of_it, "when its context is closed") {
            self.add(report);
        }
        self.objects.forget(device);
        self.outstanding.end_device(device);
        self.regions.0.retain(|key, _| key.0 != device);
        self.keys.forget_device(device);
        self.cqs.retain(|cq, _| cq.0 != device);
        self.qp_numbers.retain(|qp, _| qp.0 != device);
        self.overrun.retain(|cq| cq.0 != device);
        self.armed.retain(|cq, _| cq.0 != device);
        self.polled_by.retain(|cq, _| cq.0 != device);
    }

    /// The queue sizes of a QP that is to be made.
    pub fn queue_sizes(&mut self, kind: u32, cap: &QpCap) {
        let Some(nic) = self.nic else { return };
        if let Some(words) = nic.lacks(kind, cap) {
            self.report(Rule::LimitOfNic, format!("a new QP: {words}"));
        }
    }

    /// A call has made an object. `rkey`: of a region or window.
    pub fn made(&mut self, id: Id, words: String, rkey: Option<Rkey>) {
        let here = self.sites.here();
        self.objects.made(id, words, rkey, here);
        if let Some((device, rkey)) = rkey {
            self.keys.begin(device, rkey);
        }
    }

    /// The object is a CQ of so many entries, whose events go to a channel.
    pub fn made_cq(&mut self, cq: Id, room: usize, channel: Id) {
        self.cqs.insert(cq, CqFacts { room, channel });
    }

    /// A CQ has another size.
    pub fn resized_cq(&mut self, cq: Id, room: usize) {
        if let Some(cq) = self.cqs.get_mut(&cq) {
            cq.room = room;
        }
    }

    /// The object is a queue pair.
    pub fn made_qp(&mut self, key: QpKey, queues: Queues) {
        self.outstanding.end(key);
        self.outstanding.pairs.insert(key, queues);
    }

    /// The object is an SRQ whose requests are followed to their completions. SRQs of XRC are not:
    /// a completion does not say from which of them its request came.
    pub fn made_srq(&mut self, srq: Id) {
        self.outstanding.forget_shared(srq);
        self.outstanding.shared.insert(srq, VecDeque::new());
    }

    /// The object is a region of the program's memory, or is that now. `None`: of other memory,
    /// whose bytes are not in the program's address space.
    pub fn made_region(&mut self, key: MrKey, region: Option<MrRange>) {
        match region {
            Some(region) => _ = self.regions.0.insert(key, region),
            None => _ = self.regions.0.remove(&key),
        }
    }

    /// A key leads to memory from now on.
    pub fn key_begins(&mut self, (device, rkey): Rkey) {
        self.keys.begin(device, rkey);
    }

    /// A region is about to be deregistered or registered anew. `verb`: which of the two, in words.
    pub fn region_ending(&mut self, key: MrKey, verb: &str) {
        if let Some((words, site)) = self.outstanding.with_key(key.0, key.1) {
            let what = self.regions.0.get(&key).map_or_else(|| "MR".into(), MrRange::words);
            let words = format!("{what}: {verb} with a request on it, {words}");
            self.report_beside(Rule::RegionInUse, words, Some(site));
        }
    }

    fn ah_ending(&mut self, ah: Id) {
        if let Some((words, site)) = self.outstanding.with_ah(ah) {
            let words = format!("AH: destroyed with a request on it, {words}");
            self.report_beside(Rule::AhInUse, words, Some(site));
        }
    }

    /// An object is about to be destroyed. Called before the destruction, after which a new object
    /// may get its number or address. An object whose destruction fails is not watched any more.
    /// `rkey`: its key now; else the one that it was made or bound with.
    pub fn ending(&mut self, id: Id, what: &ObjectKind, rkey: Option<Rkey>) -> Destruction {
        let mut region = None;
        match *what {
            ObjectKind::Mr(key) => {
                self.region_ending(key, "deregistered");
                region = self.regions.0.remove(&key).map(|region| (key, region));
            }
            ObjectKind::Ah => self.ah_ending(id),
            ObjectKind::Qp(key) => {
                self.outstanding.end(key);
                self.keys.forget(key);
                self.armed.retain(|cq, _| self.outstanding.expected(*cq) > 0);
            }
            ObjectKind::Srq => self.outstanding.forget_shared(id),
            ObjectKind::Cq => {
                self.armed.remove(&id);
                self.polled_by.remove(&id);
                self.overrun.remove(&id);
            }
            ObjectKind::Other => {}
        }
        let object = self.objects.take(id);
        let rkey = rkey.or_else(|| object.as_ref()?.rkey);
        Destruction { object, region, rkey }
    }

    /// After its destruction, which may have failed.
    pub fn ended(&mut self, id: Id, ending: Destruction, has_failed: bool) {
        let Destruction { object, region, rkey } = ending;
        if !has_failed {
            self.cqs.remove(&id);
            self.qp_numbers.remove(&id);
            if let Some((device, rkey)) = rkey {
                let here = self.sites.here();
                self.keys.end(device, rkey, here);
            }
            return;
        }
        if let Some(object) = object {
            self.objects.put_back(id, object);
        }
        if let Some((key, region)) = region {
            self.regions.0.insert(key, region);
        }
    }

    /// The events of an object that is about to end have not been acknowledged for long.
    pub fn unacknowledged(&mut self, (what, n): (&str, u32)) {
        let words = format!(
            "{what}: destroyed with {n} events that were taken and not acknowledged; the call \
             waits for that"
        );
        self.report(Rule::EventsUnacknowledged, words);
    }

    /// A CQ is armed.
    pub fn armed(&mut self, cq: Id, solicited_only: bool) {
        // Sends raise no solicited event.
        if !solicited_only && self.outstanding.expected(cq) > 0 {
            let site = self.sites.here();
            self.armed.insert(cq, Armed { site, thread: this_thread() });
        } else {
            self.armed.remove(&cq);
        }
    }

    /// The program is about to wait for an event of a channel, without limit.
    pub fn waiting(&mut self, channel: Id) {
        // Another thread may poll meanwhile.
        let me = this_thread();
        let is_mine = |cq: &Id, armed: &Armed| {
            armed.thread == me && self.polled_by.get(cq).is_none_or(|by| *by == me)
        };
        let of_channel = |cq: &Id| self.cqs.get(cq).is_some_and(|cq| cq.channel == channel);
        let mut all = self.armed.iter().filter(|(cq, armed)| is_mine(cq, armed));
        let found = all.find(|(cq, _)| of_channel(cq)).map(|(_, armed)| armed.site);
        if let Some(site) = found {
            let words =
                "CQ: armed with requests outstanding, and not polled before the wait".into();
            self.report_beside(Rule::EventMissed, words, Some(site));
        }
    }

    /// A QP has other attributes. `gid_index`: that of the address vector, where GIDs have one.
    pub fn modified(&mut self, key: QpKey, a: &QpAttr, gid_index: Option<u8>, m: u32) {
        self.judge(key.1, (a, gid_index), m);
        self.enters(key, a, m);
    }

    /// Judges attributes that the program has set of the QP with this number.
    pub(crate) fn judge(&mut self, qpn: u32, attributes: (&QpAttr, Option<u8>), m: u32) {
        for (rule, words) in attributes::judge(attributes, m, self.ways, self.nic) {
            self.report(rule, format!("QP {qpn:#x}: {words}"));
        }
    }

    /// A QP has another state, peer or both.
    pub(crate) fn enters(&mut self, key: QpKey, a: &QpAttr, m: u32) {
        if m & qp_attr_mask::STATE != 0 {
            self.outstanding.enter(key, a.qp_state);
        }
        let Some(queues) = self.outstanding.pairs.get_mut(&key) else { return };
        if m & qp_attr_mask::AV != 0 {
            queues.peer = Some(a.ah.dgid);
        }
        if m & qp_attr_mask::DEST_QPN != 0 {
            queues.peer_qpn = a.dest_qp_num;
            self.keys.forget(key);
        }
    }

    /// A CQ has failed because a completion found it full.
    pub fn cq_failed(&mut self, cq: Id) {
        // Reported already, with the place of the post that was too much.
        if self.overrun.contains(&cq) {
            return;
        }
        if let Some((words, site)) = self.objects.find(cq) {
            let words = format!("{words}: full when a completion came");
            self.add(Report { rule: Rule::CqFailed, words, site, noticed: None });
        }
    }

    /// A thread has polled a CQ.
    pub fn polled(&mut self, cq: Id) {
        self.armed.remove(&cq);
        self.polled_by.insert(cq, this_thread());
    }

    /// The program takes a completion, of a CQ of a device.
    pub fn completion(&mut self, device: usize, cq: Id, wc: &mut Wc) {
        let here = self.sites.here();
        for report in self.outstanding.complete(device, cq, wc, here) {
            self.add(report);
        }
        garbage::fill(wc, &mut self.garbage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::posting::Posts;
    use gdrcore_core::verbs::types::qp_type;

    #[test]
    fn what_a_closed_device_had_is_named_once_and_forgotten() {
        let mut state = State::new(Reports::new(Mode::Report), None, 1);
        state.made((1, 5), "CQ of 16 entries".into(), None);
        state.made_cq((1, 5), 16, (1, 0));
        state.made((2, 5), "CQ of 16 entries".into(), None);
        state.made((1, 6), "QP 0x11".into(), None);
        state.made_qp((1, 0x11), Queues::new(qp_type::RC, [(1, 5); 2], 4));
        state.made((1, 7), "MR".into(), Some((1, 0x700)));
        state.made_region((1, 0x700), Some(MrRange::new(0, 1, 0)));
        state.made_srq((1, 8));
        state.device_closed(1);
        assert_eq!(state.reports.count(), 3);
        assert!(matches!(state.sends((1, 0x11), 0), Posts::Unwatched));
        let left = (state.regions.0.len(), state.cqs.len(), state.outstanding.shared.len());
        assert_eq!(left, (0, 0, 0));
        state.device_closed(1);
        assert_eq!((state.reports.count(), state.objects.find((1, 6)).is_none()), (3, true));
        assert_eq!(state.ending_process(), None);
        assert_eq!(state.reports.count(), 4, "that of the other device");
    }
}
