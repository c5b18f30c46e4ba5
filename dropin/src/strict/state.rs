//! What is known of the program, and what each call changes in it.

use super::attributes::{self, Ways};
use super::garbage;
use super::like::Nic;
use super::memory::{MrKey, Region, Regions};
use super::objects::{is_end, made_by, Object, Objects};
use super::queues::{Outstanding, Place, QpKey, Queues};
use super::report::{Mode, Report, Reports};
use super::requests::Request;
use super::rules::Rule;
use super::sites::{Site, Sites};
use crate::abi::*;
use crate::buf_verbs::iova_of;
use crate::cq_verbs::Cq;
use crate::hca::{EventTarget, Hca};
use crate::mr_verbs::CHANGE_TRANSLATION;
use crate::open_context::Context;
use crate::peek::{peek, whole_list};
use crate::qp_verbs::Qp;
use crate::srq_verbs::{is_of_xrc, Srq};
use core::ffi::c_int;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use gdrcore_calls::{Args, Call};
use gdrcore_core::mem::host;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{access, qp_attr_mask, qp_type, wr_opcode};
use std::collections::{HashMap, VecDeque};

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

/// All that is known.
pub struct State {
    sites: Sites,
    reports: Reports,
    nic: Option<&'static Nic>,
    regions: Regions,
    outstanding: Outstanding,
    objects: Objects,
    /// CQs that were armed while sends were outstanding, and not polled since, with the place.
    armed: HashMap<usize, Armed>,
    /// The last thread that polled a CQ.
    polled_by: HashMap<usize, Thread>,
    ways: Ways,
    /// The program has called `ibv_fork_init`, or asked whether it must.
    is_fork_ready: bool,
    /// The number of the next request.
    next: u64,
    seed: u64,
}

// SAFETY: its pointers lead to a static table; all others are kept as numbers.
unsafe impl Send for State {}

/// Requests of a call.
pub struct Posting {
    place: Place,
    from: u64,
    to: u64,
    /// The addresses of the list's requests, and where the call says which of it was not posted.
    /// None: it posts all or nothing.
    list: Vec<usize>,
    bad: usize,
    /// Copies of the list's beginning, which are posted because the rest has no slots. The list
    /// itself stays as it is: other threads may post it, too.
    beginning: Vec<ibv_send_wr>,
}

impl Posting {
    /// Requests that are posted all or not at all.
    fn whole(place: Place, from: u64, to: u64) -> Posting {
        Posting { place, from, to, list: Vec::new(), bad: 0, beginning: Vec::new() }
    }

    /// The address of a request that is posted.
    fn address(&self, i: usize) -> usize {
        match self.beginning.get(i) {
            Some(copy) => copy as *const ibv_send_wr as usize,
            None => self.list[i],
        }
    }
}

/// What a call destroys.
pub struct Ending {
    object: Option<Object>,
    region: Option<(MrKey, Region)>,
}

/// What was seen before a call, for after it.
pub enum Seen {
    Nothing,
    /// The call is not made, and returns this.
    Refused(c_int),
    Posting(Posting),
    /// The call destroys an object.
    Ending(Ending),
}

impl Seen {
    /// The arguments with which the call is made, by those of the program.
    pub fn args(&self, args: &Args) -> Args {
        let mut args = *args;
        if let Seen::Posting(Posting { beginning, .. }) = self {
            if let Some(first) = beginning.first() {
                args[1] = first as *const ibv_send_wr as usize;
            }
        }
        args
    }
}

/// The device of an object of ours.
fn device_of(hca: &'static Hca) -> usize {
    hca as *const Hca as usize
}

/// The device of a context.
fn device_of_context(context: *mut ibv_context) -> Option<usize> {
    // SAFETY: the program's context, whose object the call has used.
    unsafe { Context::of(context) }.ok().map(|c| device_of(c.hca))
}

/// The queue pair of a pointer of the program, and its key.
fn qp_of<'a>(at: usize) -> Option<(&'a Qp, QpKey)> {
    // SAFETY: null, or the program's queue pair, which lives during the call.
    let q = unsafe { Qp::of(at as *const ibv_qp) }.ok()?;
    Some((q, (device_of(q.hca), q.number)))
}

/// The key of a region's memory, and the region as the program sees it.
fn mr_of(at: usize) -> Option<(MrKey, ibv_mr)> {
    // SAFETY: null, or the program's region, which lives during the call.
    let mr = unsafe { (at as *const ibv_mr).as_ref() }?;
    Some(((device_of_context(mr.context)?, mr.lkey), *mr))
}

/// The events of an object that a call is about to end which were taken and are not acknowledged.
pub fn missing_acks(call: &Call, at: usize) -> Option<(&'static str, u32)> {
    // SAFETY: null, or the program's objects, which live until the call.
    let (what, n) = unsafe {
        match call.name {
            "ibv_destroy_cq" => {
                let cq = Cq::of(at as *const ibv_cq).ok()?;
                // One in use is not destroyed.
                let is_free = cq.users.load(Ordering::Relaxed) == 0;
                ("CQ", if is_free { cq.unacknowledged() } else { 0 })
            }
            "ibv_destroy_qp" => {
                let q = Qp::of(at as *const ibv_qp).ok()?;
                ("QP", q.acks().missing(0, q.async_taken().load(Ordering::Relaxed)))
            }
            "ibv_destroy_srq" => {
                let srq = Srq::of(at as *const ibv_srq).ok()?;
                ("SRQ", srq.acks().missing(0, srq.async_taken().load(Ordering::Relaxed)))
            }
            _ => return None,
        }
    };
    (n > 0).then_some((what, n))
}

/// Copies of requests, of which each leads to the next one, and the last to none.
fn linked(all: &[(usize, ibv_send_wr)]) -> Vec<ibv_send_wr> {
    let mut copies: Vec<ibv_send_wr> = all.iter().map(|(_, wr)| *wr).collect();
    let first = copies.as_mut_ptr();
    for (i, copy) in copies.iter_mut().enumerate() {
        copy.next = match i + 1 < all.len() {
            true => first.wrapping_add(i + 1),
            false => core::ptr::null_mut(),
        };
    }
    copies
}

impl State {
    pub fn new(reports: Reports, nic: Option<&'static Nic>, seed: u64) -> State {
        let is_fork_ready = ["RDMAV_FORK_SAFE", "IBV_FORK_SAFE"]
            .iter()
            .any(|name| std::env::var_os(name).is_some());
        State {
            sites: Sites::default(),
            reports,
            nic,
            regions: Regions::default(),
            outstanding: Outstanding::default(),
            objects: Objects::default(),
            armed: HashMap::new(),
            polled_by: HashMap::new(),
            ways: Ways::default(),
            is_fork_ready,
            next: 0,
            seed,
        }
    }

    /// Reports something of the call that this thread is in.
    fn report(&mut self, rule: Rule, words: String) {
        self.report_beside(rule, words, None);
    }

    /// The same, with another place that belongs to it.
    fn report_beside(&mut self, rule: Rule, words: String, noticed: Option<Site>) {
        let site = self.sites.here();
        self.add(Report { rule, words, site, noticed });
    }

    fn add(&mut self, report: Report) {
        self.reports.add(&self.sites, &report);
    }

    /// In a child of fork: its parent's objects are none of it.
    pub fn forget(&mut self) {
        self.regions = Regions::default();
        self.outstanding = Outstanding::default();
        self.objects.clear();
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
    pub fn ending(&mut self) -> Option<c_int> {
        for report in self.objects.left(&self.sites) {
            self.add(report);
        }
        match self.reports.mode {
            Mode::Exit(code) if self.reports.count() > 0 => Some(code),
            _ => None,
        }
    }

    /// Before a call.
    pub fn before(&mut self, call: &Call, args: &Args) -> Seen {
        let at = args[0];
        match call.name {
            "ibv_post_send" => return self.sends(at, args[1], args[2]),
            "ibv_wr_complete" => return self.built(at),
            "ibv_bind_mw" => return self.bind(at, args[2]),
            "ibv_post_recv" => {
                if let Some((q, key)) = qp_of(at) {
                    let device = device_of(q.hca);
                    return self.recvs(Place::Recv(key), device, (args[1], args[2]));
                }
            }
            "ibv_post_srq_recv" => {
                let context = peek::<usize>(at + offset_of!(ibv_srq, context));
                let device = context.and_then(|c| device_of_context(c as *mut ibv_context));
                let list = (args[1], args[2]);
                return self.recvs(Place::Shared(at), device.unwrap_or(0), list);
            }
            "ibv_create_qp" => self.queue_sizes(peek::<ibv_qp_init_attr>(args[1])),
            "ibv_create_qp_ex" => {
                self.queue_sizes(peek::<ibv_qp_init_attr_ex>(args[1]).map(|i| i.plain()));
            }
            "ibv_dereg_mr" | "ibv_rereg_mr" => self.region_ending(at, call.name == "ibv_dereg_mr"),
            "ibv_destroy_ah" => {
                if let Some((words, site)) = self.outstanding.with_ah(at) {
                    let words = format!("AH: destroyed with a request on it, {words}");
                    self.report_beside(Rule::AhInUse, words, Some(site));
                }
            }
            "ibv_get_cq_event" => self.waiting(at),
            "ibv_fork_init" | "ibv_is_fork_initialized" => self.is_fork_ready = true,
            "_ibv_query_gid_ex" | "_ibv_query_gid_table" => self.ways.knows_gid_types = true,
            "rdma_init_qp_attr" => {
                self.ways = Ways { knows_gid_types: true, takes_from_kernel: true };
            }
            _ => {}
        }
        if !is_end(call) {
            return Seen::Nothing;
        }
        let region = match call.name {
            "ibv_dereg_mr" => {
                mr_of(at).and_then(|(key, _)| Some((key, self.regions.0.remove(&key)?)))
            }
            _ => None,
        };
        // Before number or address can be another's. One whose destruction fails is not watched.
        match call.name {
            "ibv_destroy_qp" => {
                if let Some((_, key)) = qp_of(at) {
                    self.outstanding.end(key);
                    self.armed.retain(|cq, _| self.outstanding.expected(*cq) > 0);
                }
            }
            "ibv_destroy_srq" => self.outstanding.forget_shared(at),
            "ibv_destroy_cq" => {
                self.armed.remove(&at);
                self.polled_by.remove(&at);
            }
            _ => {}
        }
        Seen::Ending(Ending { object: self.objects.take(at), region })
    }

    /// After a call. Returns an errno in place of its result, if the list that it posted was cut.
    pub fn after(
        &mut self,
        call: &Call,
        args: &Args,
        seen: Seen,
        (result, errno): (usize, c_int),
    ) -> Option<c_int> {
        let error = call.outcome.error(result, errno);
        match seen {
            Seen::Posting(posting) => return self.posted(&posting, error.is_some()),
            Seen::Ending(ending) => {
                if error.is_some() {
                    self.put_back(args[0], ending);
                }
                return None;
            }
            Seen::Nothing | Seen::Refused(_) => {}
        }
        match call.name {
            "ibv_poll_cq" => {
                let n = usize::try_from(result as i32).unwrap_or(0);
                self.polled(args[0]);
                for i in 0..n {
                    // SAFETY: the program's array, to which the call has stored completions.
                    let wc = unsafe { &mut *(args[2] as *mut ibv_wc).add(i) };
                    self.completion(args[0], wc);
                }
            }
            "ibv_start_poll" | "ibv_next_poll" => {
                self.polled(args[0]);
                if error.is_none() {
                    // SAFETY: the program's CQ, of which this thread has taken a completion.
                    let wc = unsafe { &mut (*(args[0] as *mut Cq)).current };
                    self.completion(args[0], wc);
                }
            }
            _ if error.is_some() => return None,
            "ibv_req_notify_cq" => {
                // Sends raise no solicited event.
                let is_for_sends = args[1] as c_int == 0;
                if is_for_sends && self.outstanding.expected(args[0]) > 0 {
                    let site = self.sites.here();
                    self.armed.insert(args[0], Armed { site, thread: this_thread() });
                } else {
                    self.armed.remove(&args[0]);
                }
            }
            "ibv_modify_qp" => self.modified(args),
            "ibv_rereg_mr" => {
                let (key, mr) = mr_of(args[0])?;
                if args[1] as c_int & CHANGE_TRANSLATION != 0 {
                    self.regions.0.insert(key, Region::of(&mr, mr.addr as u64));
                }
            }
            _ => self.made(call, args, result),
        }
        None
    }

    /// The queue sizes of a QP that is to be made.
    fn queue_sizes(&mut self, init: Option<ibv_qp_init_attr>) {
        let (Some(nic), Some(init)) = (self.nic, init) else { return };
        if let Some(words) = nic.lacks(init.qp_type, &init.cap) {
            self.report(Rule::LimitOfNic, format!("a new QP: {words}"));
        }
    }

    /// A call has made an object.
    fn made(&mut self, call: &Call, args: &Args, result: usize) {
        let Some(kind) = made_by(call) else { return };
        let here = self.sites.here();
        self.objects.made(kind, result, here);
        if call.name.starts_with("ibv_create_qp") {
            if let Some((q, key)) = qp_of(result) {
                let base = &q.ex.qp_base;
                let [send_cq, recv_cq] = [base.send_cq, base.recv_cq].map(|cq| cq as usize);
                let slots = q.cap.max_send_wr as usize;
                let queues = Queues::new(send_cq, recv_cq, base.srq as usize, slots);
                self.outstanding.end(key);
                self.outstanding.pairs.insert(key, queues);
            }
        }
        // A completion does not tell the SRQ of a request of XRC: these have no end.
        let is_xrc = call.name == "ibv_create_srq_ex"
            && peek::<ibv_srq_init_attr_ex>(args[1]).is_some_and(|init| is_of_xrc(&init));
        if call.name.starts_with("ibv_create_srq") && !is_xrc {
            self.outstanding.forget_shared(result);
            self.outstanding.shared.insert(result, VecDeque::new());
        }
        let iova = match call.name {
            "ibv_reg_mr" if args[3] as u32 & access::ZERO_BASED != 0 => 0,
            "ibv_reg_mr" => args[1] as u64,
            "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" => args[3] as u64,
            "ibv_reg_mr_ex" => match iova_of(args[1]) {
                Some(iova) => iova,
                None => return,
            },
            _ => return,
        };
        if let Some((key, mr)) = mr_of(result) {
            self.regions.0.insert(key, Region::of(&mr, iova));
        }
    }

    /// A region is about to end or to be another.
    fn region_ending(&mut self, at: usize, is_dereg: bool) {
        let Some(((device, lkey), mr)) = mr_of(at) else { return };
        let what = format!("MR of {} bytes at {:#x}", mr.length, mr.addr as usize);
        if let Some((words, site)) = self.outstanding.with_key(device, lkey) {
            let verb = if is_dereg { "deregistered" } else { "registered anew" };
            let words = format!("{what}: {verb} with a request on it, {words}");
            self.report_beside(Rule::RegionInUse, words, Some(site));
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

    /// The program is about to wait for an event of a channel.
    fn waiting(&mut self, channel: usize) {
        let of_channel = |cq: &usize| {
            channel != 0 && peek::<usize>(cq + offset_of!(ibv_cq, channel)) == Some(channel)
        };
        // Another thread may poll meanwhile.
        let me = this_thread();
        let is_mine = |cq: &usize, armed: &Armed| {
            armed.thread == me && self.polled_by.get(cq).is_none_or(|by| *by == me)
        };
        let mut all = self.armed.iter().filter(|(cq, armed)| is_mine(cq, armed));
        let found = all.find(|(cq, _)| of_channel(cq)).map(|(_, armed)| armed.site);
        if let Some(site) = found {
            let words =
                "CQ: armed with requests outstanding, and not polled before the wait".into();
            self.report_beside(Rule::EventMissed, words, Some(site));
        }
    }

    /// A QP has other attributes.
    fn modified(&mut self, args: &Args) {
        let Some((_, key)) = qp_of(args[0]) else { return };
        let (Some(a), m) = (peek::<ibv_qp_attr>(args[1]), args[2] as u32) else { return };
        for (rule, words) in attributes::judge(&a, m, self.ways, self.nic) {
            self.report(rule, format!("QP {:#x}: {words}", key.1));
        }
        if m & qp_attr_mask::STATE != 0 {
            self.outstanding.enter(key, a.qp_state);
        }
        let Some(queues) = self.outstanding.pairs.get_mut(&key) else { return };
        if m & qp_attr_mask::AV != 0 {
            queues.peer = a.ah_attr.grh.dgid.raw;
        }
    }

    /// A destruction has failed.
    fn put_back(&mut self, at: usize, Ending { object, region }: Ending) {
        if let Some(object) = object {
            self.objects.put_back(at, object);
        }
        if let Some((key, region)) = region {
            self.regions.0.insert(key, region);
        }
    }

    /// A thread has polled a CQ.
    fn polled(&mut self, cq: usize) {
        self.armed.remove(&cq);
        self.polled_by.insert(cq, this_thread());
    }

    /// The program takes a completion.
    fn completion(&mut self, cq: usize, wc: &mut ibv_wc) {
        // SAFETY: the program's CQ, which it has just polled.
        let Ok(c) = (unsafe { Cq::of(cq as *const ibv_cq) }) else { return };
        let here = self.sites.here();
        for report in self.outstanding.complete(device_of(c.hca), cq, wc, here) {
            self.add(report);
        }
        garbage::fill(wc, &mut self.seed);
    }

    /// Keeps send requests, up to the first that has no slot, whose index is returned.
    fn keep_sends<'a>(
        &mut self,
        q: &Qp,
        key: QpKey,
        all: impl IntoIterator<Item = &'a ibv_send_wr>,
    ) -> Option<usize> {
        let frees_unsignaled = self.nic.is_some_and(|nic| nic.frees_unsignaled);
        let of = (key.0, q.kind == qp_type::UD, q.snapshot().sq_sig_all);
        let here = self.sites.here();
        for (i, wr) in all.into_iter().enumerate() {
            if frees_unsignaled {
                self.outstanding.free_unsignaled(key);
            }
            let queues = &self.outstanding.pairs[&key];
            if queues.sends.len() >= queues.slots && !queues.is_over {
                let (n, slots) = (key.1, queues.slots);
                let (rule, what) = match queues.sends.iter().any(|r| r.is_signaled) {
                    true => (Rule::SendQueueFull, "until a completion is polled"),
                    false => (Rule::NeverSignaled, "by unsignaled requests, for ever"),
                };
                let words =
                    format!("QP {n:#x}: all {slots} slots of its send queue are taken {what}");
                self.add(Report { rule, words, site: here, noticed: None });
                return Some(i);
            }
            let request = Request::send(wr, &self.regions, of, (here, self.next));
            self.next += 1;
            if let Some(report) = self.outstanding.post(Place::Send(key), request) {
                self.add(report);
            }
        }
        self.room_of_cq(q.ex.qp_base.send_cq as usize, here);
        None
    }

    fn room_of_cq(&mut self, cq: usize, here: Site) {
        let room = peek::<i32>(cq.wrapping_add(offset_of!(ibv_cq, cqe))).unwrap_or(0);
        let expected = self.outstanding.expected(cq);
        if cq != 0 && expected > usize::try_from(room).unwrap_or(0) {
            let words = format!(
                "CQ of {room} entries: {expected} requests will have a completion \
                                 there, and none of them is polled"
            );
            self.add(Report { rule: Rule::CqOverrun, words, site: here, noticed: None });
        }
    }

    /// `ibv_post_send`.
    fn sends(&mut self, qp: usize, list: usize, bad: usize) -> Seen {
        let Some((q, key)) = qp_of(qp) else { return Seen::Nothing };
        if !self.outstanding.is_watched(key) {
            return Seen::Nothing;
        }
        let place = Place::Send(key);
        let Some(all) = whole_list::<ibv_send_wr>(list) else {
            self.outstanding.stop_watching(place);
            return Seen::Nothing;
        };
        let from = self.next;
        let full = self.keep_sends(q, key, all.iter().map(|(_, wr)| wr));
        if full == Some(0) {
            let _ = host::place(bad as u64, &list.to_ne_bytes());
            return Seen::Refused(libc::ENOMEM);
        }
        let list = all.iter().map(|(at, _)| *at).collect();
        let beginning = full.map_or_else(Vec::new, |n| linked(&all[..n]));
        Seen::Posting(Posting { place, from, to: self.next, list, bad, beginning })
    }

    /// `ibv_wr_complete`: all or nothing.
    fn built(&mut self, qp: usize) -> Seen {
        let Some((q, key)) = qp_of(qp) else { return Seen::Nothing };
        if !self.outstanding.is_watched(key) {
            return Seen::Nothing;
        }
        // SAFETY: the program's QP, which this thread completes.
        let all = unsafe { Qp::built(qp as *mut Qp) }.to_vec();
        let from = self.next;
        if self.keep_sends(q, key, &all).is_some() {
            // SAFETY: as above.
            if let Some(batch) = unsafe { Qp::batch_of(qp as *mut Qp) } {
                batch.fail(refuse!(NoMemory, "max_send_wr: no slot is free until a poll"));
            }
        }
        Seen::Posting(Posting::whole(Place::Send(key), from, self.next))
    }

    /// `ibv_bind_mw`: a request of the send queue.
    fn bind(&mut self, qp: usize, bind: usize) -> Seen {
        let (Some((q, key)), Some(b)) = (qp_of(qp), peek::<ibv_mw_bind>(bind)) else {
            return Seen::Nothing;
        };
        if !self.outstanding.is_watched(key) {
            return Seen::Nothing;
        }
        // SAFETY: zeroes are a value of each field.
        let mut wr: ibv_send_wr = unsafe { core::mem::zeroed() };
        (wr.wr_id, wr.opcode, wr.send_flags) = (b.wr_id, wr_opcode::BIND_MW, b.send_flags);
        let from = self.next;
        match self.keep_sends(q, key, &[wr]) {
            Some(_) => Seen::Refused(libc::ENOMEM),
            None => Seen::Posting(Posting::whole(Place::Send(key), from, self.next)),
        }
    }

    /// Keeps receive requests.
    fn recvs(&mut self, place: Place, device: usize, (list, bad): (usize, usize)) -> Seen {
        let Some(all) = whole_list::<ibv_recv_wr>(list) else {
            self.outstanding.stop_watching(place);
            return Seen::Nothing;
        };
        let here = self.sites.here();
        let from = self.next;
        for (_, wr) in &all {
            let request = Request::recv(wr, &self.regions, device, (here, self.next));
            self.next += 1;
            if let Some(report) = self.outstanding.post(place, request) {
                self.add(report);
            }
        }
        let list = all.iter().map(|(at, _)| *at).collect();
        Seen::Posting(Posting { place, from, to: self.next, list, bad, beginning: Vec::new() })
    }

    /// Takes back what a call has not posted.
    fn posted(&mut self, posting: &Posting, has_failed: bool) -> Option<c_int> {
        let posted = posting.beginning.len();
        let first_left = match has_failed {
            true => {
                let bad = peek::<usize>(posting.bad).unwrap_or(0);
                let n = (posting.to - posting.from) as usize;
                let at = |i: &usize| posting.list.get(*i).is_some() && posting.address(*i) == bad;
                let done = (0..n).find(at).unwrap_or(0);
                let from = posting.from + done as u64;
                self.outstanding.take_back(posting.place, from, posting.to);
                done
            }
            false => posted,
        };
        if posted == 0 {
            return None;
        }
        // The program knows its own requests, not the copies.
        let _ = host::place(posting.bad as u64, &posting.list[first_left].to_ne_bytes());
        (!has_failed).then_some(libc::ENOMEM)
    }
}
