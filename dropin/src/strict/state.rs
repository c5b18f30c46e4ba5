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
use super::sites::{is_of_librdmacm, Site, Sites};
use crate::abi::*;
use crate::cq_verbs::Cq;
use crate::hca::{EventTarget, Hca};
use crate::open_context::Context;
use crate::peek::{peek, recv_list, send_list};
use crate::qp_verbs::Qp;
use crate::srq_verbs::Srq;
use core::ffi::c_int;
use core::mem::offset_of;
use core::sync::atomic::Ordering;
use gdrcore_calls::{Args, Call};
use gdrcore_core::mem::host;
use gdrcore_core::refuse;
use gdrcore_core::verbs::types::{access, qp_attr_mask, qp_state, qp_type, wr_opcode};
use std::collections::{HashMap, VecDeque};

/// All that is known.
pub struct State {
    sites: Sites,
    reports: Reports,
    nic: Option<&'static Nic>,
    regions: Regions,
    outstanding: Outstanding,
    objects: Objects,
    /// CQs that were armed while sends were outstanding, and not polled since, with the place.
    armed: HashMap<usize, Site>,
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
    /// The list, and where the call says which of it was not posted; 0: it posts all or nothing.
    list: usize,
    bad: usize,
    /// Where the list was cut because the rest has no slots: the place of the last request's
    /// pointer, and the first one that has none.
    cut: Option<(usize, usize)>,
}

impl Posting {
    /// Requests that are posted all or not at all.
    fn whole(place: Place, from: u64, to: u64) -> Posting {
        Posting { place, from, to, list: 0, bad: 0, cut: None }
    }
}

/// Where a request has the pointer to the next one.
const NEXT: usize = offset_of!(ibv_send_wr, next);
const _: () = assert!(NEXT == offset_of!(ibv_recv_wr, next));

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
            ways: Ways::default(),
            is_fork_ready,
            next: 0,
            seed,
        }
    }

    /// Reports something of the call that this thread is in.
    fn report(&mut self, rule: Rule, words: String) {
        let site = self.sites.here();
        self.add(Report { rule, words, site, noticed: None });
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
                    let here = self.sites.here();
                    self.add(Report {
                        rule: Rule::AhInUse,
                        words,
                        site: here,
                        noticed: Some(site),
                    });
                }
            }
            "ibv_destroy_cq" | "ibv_destroy_qp" | "ibv_destroy_srq" => self.events(call.name, at),
            "ibv_get_cq_event" => self.waiting(at),
            "ibv_fork_init" | "ibv_is_fork_initialized" => self.is_fork_ready = true,
            "_ibv_query_gid_ex" | "_ibv_query_gid_table" | "rdma_init_qp_attr" => {
                self.ways.knows_gid_types = true;
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
        if let ("ibv_destroy_qp", Some((_, key))) = (call.name, qp_of(at)) {
            // Before its number can be another's. One whose destruction fails is not watched.
            self.outstanding.end(key);
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
                self.ended(call.name, args[0], error.is_some(), ending);
                return None;
            }
            Seen::Nothing | Seen::Refused(_) => {}
        }
        match call.name {
            "ibv_poll_cq" => {
                let n = usize::try_from(result as i32).unwrap_or(0);
                self.armed.remove(&args[0]);
                for i in 0..n {
                    // SAFETY: the program's array, to which the call has stored completions.
                    let wc = unsafe { &mut *(args[2] as *mut ibv_wc).add(i) };
                    self.completion(args[0], wc);
                }
            }
            "ibv_start_poll" | "ibv_next_poll" => {
                self.armed.remove(&args[0]);
                if error.is_none() {
                    // SAFETY: the program's CQ, of which this thread has taken a completion.
                    let wc = unsafe { &mut (*(args[0] as *mut Cq)).current };
                    self.completion(args[0], wc);
                }
            }
            _ if error.is_some() => return None,
            "ibv_req_notify_cq" => {
                if self.outstanding.expected(args[0]) > 0 {
                    let here = self.sites.here();
                    self.armed.insert(args[0], here);
                }
            }
            "ibv_modify_qp" => self.modified(args),
            "ibv_rereg_mr" => {
                if let Some((key, mr)) = mr_of(args[0]) {
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
                let queues = Queues {
                    sends: VecDeque::new(),
                    recvs: VecDeque::new(),
                    send_cq: base.send_cq as usize,
                    recv_cq: base.recv_cq as usize,
                    srq: base.srq as usize,
                    slots: q.cap.max_send_wr as usize,
                    state: qp_state::RESET,
                    peer: [0; 16],
                    is_over: false,
                };
                self.outstanding.end(key);
                self.outstanding.pairs.insert(key, queues);
            }
        }
        if call.name.starts_with("ibv_create_srq") {
            self.outstanding.shared.insert(result, VecDeque::new());
        }
        let iova = match call.name {
            "ibv_reg_mr" if args[3] as u32 & access::ZERO_BASED != 0 => 0,
            "ibv_reg_mr" => args[1] as u64,
            "ibv_reg_mr_iova" | "ibv_reg_mr_iova2" => args[3] as u64,
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
            let here = self.sites.here();
            self.add(Report { rule: Rule::RegionInUse, words, site: here, noticed: Some(site) });
        }
    }

    /// The events of an object that is about to end.
    fn events(&mut self, name: &str, at: usize) {
        // SAFETY: null, or the program's objects, which live until the call.
        let (what, n) = unsafe {
            match name {
                "ibv_destroy_cq" => match Cq::of(at as *const ibv_cq) {
                    Ok(cq) => ("CQ", cq.unacknowledged()),
                    Err(_) => return,
                },
                "ibv_destroy_qp" => match Qp::of(at as *const ibv_qp) {
                    Ok(q) => ("QP", q.acks().missing(0, q.async_taken().load(Ordering::Relaxed))),
                    Err(_) => return,
                },
                _ => match Srq::of(at as *const ibv_srq) {
                    Ok(srq) => {
                        ("SRQ", srq.acks().missing(0, srq.async_taken().load(Ordering::Relaxed)))
                    }
                    Err(_) => return,
                },
            }
        };
        if n > 0 {
            let words = format!(
                "{what}: destroyed with {n} events that were taken and not \
                                 acknowledged; the call waits for that"
            );
            self.report(Rule::EventsUnacknowledged, words);
        }
    }

    /// The program is about to wait for an event of a channel.
    fn waiting(&mut self, channel: usize) {
        let of_channel = |cq: &usize| {
            channel != 0 && peek::<usize>(cq + offset_of!(ibv_cq, channel)) == Some(channel)
        };
        let found = self.armed.iter().find(|(cq, _)| of_channel(cq)).map(|(_, site)| *site);
        if let Some(site) = found {
            let words =
                "CQ: armed with requests outstanding, and not polled before the wait".into();
            let here = self.sites.here();
            self.add(Report { rule: Rule::EventMissed, words, site: here, noticed: Some(site) });
        }
    }

    /// A QP has other attributes.
    fn modified(&mut self, args: &Args) {
        let Some((_, key)) = qp_of(args[0]) else { return };
        let (Some(a), m) = (peek::<ibv_qp_attr>(args[1]), args[2] as u32) else { return };
        for (rule, words) in attributes::judge(&a, m, self.ways, self.nic) {
            let site = self.sites.here();
            // librdmacm sets what the kernel says, which the program does not choose.
            if rule != Rule::RnrTimerLongest || !is_of_librdmacm(&self.sites.frames(site)) {
                let words = format!("QP {:#x}: {words}", key.1);
                self.add(Report { rule, words, site, noticed: None });
            }
        }
        if m & qp_attr_mask::STATE != 0 && a.qp_state == qp_state::RESET {
            self.outstanding.forget(key);
        }
        let Some(queues) = self.outstanding.pairs.get_mut(&key) else { return };
        if m & qp_attr_mask::STATE != 0 {
            queues.enter(a.qp_state);
        }
        if m & qp_attr_mask::AV != 0 {
            queues.peer = a.ah_attr.grh.dgid.raw;
        }
    }

    /// A destruction has been made or has failed.
    fn ended(
        &mut self,
        name: &str,
        at: usize,
        has_failed: bool,
        Ending { object, region }: Ending,
    ) {
        if has_failed {
            if let Some(object) = object {
                self.objects.put_back(at, object);
            }
            if let Some((key, region)) = region {
                self.regions.0.insert(key, region);
            }
        } else if name == "ibv_destroy_srq" {
            self.outstanding.forget_shared(at);
        }
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
    fn keep_sends(&mut self, q: &Qp, key: QpKey, all: &[ibv_send_wr]) -> Option<usize> {
        let frees_unsignaled = self.nic.is_some_and(|nic| nic.frees_unsignaled);
        let of = (key.0, q.kind == qp_type::UD, q.snapshot().sq_sig_all);
        let here = self.sites.here();
        for (i, wr) in all.iter().enumerate() {
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
        if !self.outstanding.pairs.contains_key(&key) {
            return Seen::Nothing;
        }
        let all: Vec<ibv_send_wr> = send_list(list).collect();
        let from = self.next;
        let full = self.keep_sends(q, key, &all);
        let mut posting =
            Posting { place: Place::Send(key), from, to: self.next, list, bad, cut: None };
        let Some(n) = full else { return Seen::Posting(posting) };
        // The requests before it are posted: the list ends there for the time of the call.
        let places: Vec<usize> =
            core::iter::once(list).chain(all.iter().map(|w| w.next as usize)).collect();
        if n > 0 {
            let end = places[n - 1] + NEXT;
            if host::place(end as u64, &0usize.to_ne_bytes()).is_ok() {
                posting.cut = Some((end, places[n]));
                return Seen::Posting(posting);
            }
            self.outstanding.take_back(posting.place, from, posting.to);
        }
        let first = if n > 0 { list } else { places[n] };
        let _ = host::place(bad as u64, &first.to_ne_bytes());
        Seen::Refused(libc::ENOMEM)
    }

    /// `ibv_wr_complete`: all or nothing.
    fn built(&mut self, qp: usize) -> Seen {
        let Some((q, key)) = qp_of(qp) else { return Seen::Nothing };
        if !self.outstanding.pairs.contains_key(&key) {
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
        if !self.outstanding.pairs.contains_key(&key) {
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
        let here = self.sites.here();
        let from = self.next;
        for wr in recv_list(list) {
            let request = Request::recv(&wr, &self.regions, device, (here, self.next));
            self.next += 1;
            if let Some(report) = self.outstanding.post(place, request) {
                self.add(report);
            }
        }
        Seen::Posting(Posting { place, from, to: self.next, list, bad, cut: None })
    }

    /// Takes back what a call has not posted.
    fn posted(&mut self, posting: &Posting, has_failed: bool) -> Option<c_int> {
        if let Some((end, next)) = posting.cut {
            // What was readable and writable a moment ago.
            let _ = host::place(end as u64, &next.to_ne_bytes());
        }
        if has_failed {
            let bad = peek::<usize>(posting.bad).unwrap_or(posting.list);
            let next = |at: &usize| peek::<usize>(at.wrapping_add(NEXT));
            let most = (posting.to - posting.from) as usize;
            let mut list = core::iter::successors(Some(posting.list), next).take(most);
            let done = list.position(|at| at == bad).unwrap_or(0) as u64;
            let from = posting.from + done;
            self.outstanding.take_back(posting.place, from, posting.to);
            return None;
        }
        let (_, next) = posting.cut?;
        let _ = host::place(posting.bad as u64, &next.to_ne_bytes());
        Some(libc::ENOMEM)
    }
}
