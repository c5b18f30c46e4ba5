//! `GDRC_TRACE`: prints every call of the program as strace prints system calls, or writes it as an
//! event of Chrome's format; `GDRC_TRACE_COUNT`: counts them. The layer calls [`TracedCall`] around
//! each call.
//!
//! Low to high: `words`: the line of one call, in fixed memory. `names`: flags, enumerations,
//! objects. `requests`, `commands`, `values`: requests, completions, librdmacm's commands,
//! arguments, results. `sink`: the file. `chrome`: events and arrows. `counts`.
//!
//! # Thread rule
//! Any thread. A call's line is in the memory of its thread and is one write, so that whole lines
//! are in the file whatever ends the process. The lines of text take no lock but while the file is
//! opened; Chrome's take one for the time of a write. Empty polls are counted for each thread,
//! of up to four CQs in turn, and printed with its next line, at least once a second.

mod chrome;
mod commands;
mod counts;
mod names;
mod requests;
mod sink;
mod values;
mod words;

use crate::env;
use crate::peek;
use chrome::{Chrome, Completion, Request, Slice};
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, Ordering};
use gdrcore_calls::{options, Arg, Args, Call, Filter, Object, Outcome, Row, CALLS};
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state};
use gdrcore_net::clock::now_ns;
use gdrcore_net::fork::around_forks_and_in_child;
use gdrcore_net::inject::is_privileged;
use gdrcore_net::{fault, reason};
use gdrcore_strict::inside::{is_inside, Inside};
use gdrcore_strict::own_thread;
use std::sync::OnceLock;
use words::{put, Put, Taken, Words};

pub use commands::row as command_row;
pub use counts::table as counts;
use sink::Sink;
pub use words::Line;

/// Nanoseconds after which a thread that only polls in vain is heard of.
const FOLD_NS: u64 = 1_000_000_000;

/// Where the calls are written.
enum Output {
    Text(Sink),
    Chrome(Chrome),
}

/// What the environment requests.
pub struct Trace {
    output: Option<Output>,
    counting: bool,
    filter: Filter,
    /// The time of the first line.
    start_ns: u64,
}

static TRACE: OnceLock<Trace> = OnceLock::new();

/// The number of forks of this process and its parents. A thread that finds another number here
/// asks for its own id again.
static FORKS: AtomicU32 = AtomicU32::new(1);

/// Empty polls that were not printed.
#[derive(Clone, Copy)]
struct Polls {
    count: u64,
    cq: u32,
    first: u64,
    last: u64,
}

/// CQs of a thread whose empty polls are counted at the same time. A slot without polls is free,
/// and so are those behind it.
const POLLED: usize = 4;
const NO_POLLS: [Polls; POLLED] = [Polls { count: 0, cq: 0, first: 0, last: 0 }; POLLED];

thread_local! {
    // Const and without drop: no allocation, no destructor to register.
    /// [`FORKS`] and the thread's number then.
    static THREAD: Cell<(u32, u32)> = const { Cell::new((0, 0)) };
    static POLLS: Cell<[Polls; POLLED]> = const { Cell::new(NO_POLLS) };
    /// The thread forks, and holds the locks.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// [`FORKS`], by which a file is known to be the parent's.
fn forks() -> u32 {
    FORKS.load(Ordering::Relaxed)
}

/// [`own_thread`], which is asked once in each thread of each process.
fn thread() -> u32 {
    let forks = forks();
    let (known, mut number) = THREAD.get();
    if known != forks {
        number = own_thread();
        THREAD.set((forks, number));
        POLLS.set(NO_POLLS);
    }
    number
}

/// Reads the environment; whether it requests that calls are seen. Once, when the library is
/// loaded. Not for a program with the rights of another user, who would write files by them.
pub fn install() -> bool {
    let (target, counting) = (env::trace(), env::is_on(&options::TRACE_COUNT));
    if (target.is_none() && !counting) || is_privileged() {
        return false;
    }
    let filter = env::text(&options::TRACE_FILTER).and_then(|f| Filter::parse(&f).ok());
    let filter = filter.unwrap_or_default();
    reason::install();
    if let Err(e) = fault::install() {
        // Otherwise a bad pointer of the program would end the program here instead of in the call.
        env::say(&format!("GDRC_TRACE: {e}; nothing is traced"));
        return false;
    }
    let output = target.map(|t| match t {
        env::Traced::Error => Output::Text(Sink::new(None, 0)),
        env::Traced::Text(path) => Output::Text(Sink::new(Some(path), libc::O_APPEND)),
        env::Traced::Chrome(path) => Output::Chrome(Chrome::new(Sink::new(Some(path), 0))),
    });
    let _ = TRACE.set(Trace { output, counting, filter, start_ns: now_ns() });
    around_forks_and_in_child(hold, release, in_child);
    // SAFETY: a function of this library, which the program keeps loaded.
    unsafe { libc::atexit(at_exit) };
    true
}

/// Whether calls are counted, for a table at the end.
pub fn is_counting() -> bool {
    TRACE.get().is_some_and(|t| t.counting)
}

extern "C" fn hold() {
    if is_inside() {
        return;
    }
    HOLDS.set(true);
    match TRACE.get().and_then(|t| t.output.as_ref()) {
        Some(Output::Text(sink)) => sink.hold(),
        Some(Output::Chrome(chrome)) => chrome.hold(),
        None => {}
    }
}

fn released(is_child: bool) {
    if !HOLDS.replace(false) {
        return;
    }
    match TRACE.get().and_then(|t| t.output.as_ref()) {
        Some(Output::Text(sink)) => sink.release(is_child),
        Some(Output::Chrome(chrome)) => chrome.release(is_child),
        None => {}
    }
}

extern "C" fn release() {
    released(false);
}

extern "C" fn in_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    counts::clear();
    if is_inside() {
        match TRACE.get().and_then(|t| t.output.as_ref()) {
            Some(Output::Text(sink)) => sink.leave(),
            Some(Output::Chrome(chrome)) => chrome.leave(),
            None => {}
        }
    }
    released(true);
}

/// The empty polls of the thread that ends the program.
extern "C" fn at_exit() {
    if let (Some(trace), Some(_inside)) = (TRACE.get(), Inside::enter()) {
        trace.fold(thread());
    }
}

impl Trace {
    /// The file or standard error, if the format is text.
    fn text(&self) -> Option<&Sink> {
        match &self.output {
            Some(Output::Text(sink)) => Some(sink),
            _ => None,
        }
    }

    fn chrome(&self) -> Option<&Chrome> {
        match &self.output {
            Some(Output::Chrome(chrome)) => Some(chrome),
            _ => None,
        }
    }

    /// Writes the empty polls of a thread.
    fn fold(&self, thread: u32) {
        POLLS.replace(NO_POLLS).iter().take_while(|p| p.count > 0).for_each(|polls| {
            self.write_polls(polls, thread);
        });
    }

    fn write_polls(&self, polls: &Polls, thread: u32) {
        let (begun, ended) = (polls.first, polls.last);
        let mut line = Line::new();
        if self.text().is_some() {
            words::head(&mut line, self, (begun, thread));
        }
        put!(line, "... ", polls.count, " empty polls of cq#", polls.cq);
        match &self.output {
            Some(Output::Text(sink)) => {
                line.end(&Taken(ended - begun));
                sink.write(line.as_str());
            }
            Some(Output::Chrome(chrome)) => {
                let words = line.as_str();
                let slice = Slice { name: "empty polls", thread, begun, ended, words };
                chrome.write(&slice, core::iter::empty());
            }
            None => {}
        }
    }
}

/// A call that is being made, and its line so far.
pub struct TracedCall<'a> {
    row: usize,
    call: &'static Call,
    args: &'a Args,
    thread: u32,
    begun: u64,
    words: Words<'a>,
    /// The arguments that were printed.
    printed: usize,
    /// The QP of the call, for arrows, and what was posted before.
    qp: u32,
    posted_before: Option<u64>,
    /// [`reason::change_count`] before the call.
    reasons: u64,
}

impl<'a> TracedCall<'a> {
    /// Before the call: prints its arguments up to the first that the call writes. `None`: the
    /// filter does not want it.
    pub fn begin(row: usize, args: &'a Args, line: &'a mut Line) -> Option<TracedCall<'a>> {
        let trace = TRACE.get()?;
        let _inside = Inside::enter()?;
        let thread = thread();
        let open = trace.filter.open(row, thread)?;
        let call = &CALLS[row];
        let (begun, printed, qp) = (now_ns(), 0, 0);
        let words = Words::new(trace, line, (begun, thread), open);
        let mut seen = TracedCall {
            row,
            call,
            args,
            thread,
            begun,
            words,
            printed,
            qp,
            posted_before: None,
            reasons: 0,
        };
        let has_words = trace.output.is_some() || open != 0;
        // Most polls are empty, and no poll ends its CQ.
        if has_words && !seen.is_poll() {
            seen.head();
            seen.arguments(None);
            seen.built();
        }
        // What the printing has refused is not the call's reason.
        seen.reasons = reason::change_count();
        seen.begun = now_ns();
        // A post names its objects by its arguments; one without a slice has no arrow.
        if let Some(chrome) = trace.chrome().filter(|_| seen.words.is_wanted()) {
            seen.posting(chrome);
        }
        Some(seen)
    }

    fn is_poll(&self) -> bool {
        self.row == Row::ibv_poll_cq as usize || self.row == Row::ibv_start_poll as usize
    }

    /// The beginning of the line.
    fn head(&mut self) {
        let trace = self.words.trace;
        if trace.text().is_some() {
            let begins = self.words.begins;
            words::head(self.words.line, trace, begins);
            put!(self.words, self.call.name);
        }
        put!(self.words, "(");
    }

    /// The arguments up to the first that the call has not written yet.
    fn arguments(&mut self, result: Option<usize>) {
        for (i, (name, kind)) in self.call.args.iter().enumerate().skip(self.printed) {
            if result.is_none() && values::is_written(*kind) {
                return;
            }
            self.printed = i + 1;
            let w = &mut self.words;
            // The fields of a command have names.
            if *kind != Arg::Command {
                put!(w, if i > 0 { ", " } else { "" }, name, "=");
            }
            values::argument(w, *kind, (self.args, i), result);
        }
    }

    /// The requests that `ibv_wr_complete` posts, which are none of its arguments.
    fn built(&mut self) {
        if self.row != Row::ibv_wr_complete as usize {
            return;
        }
        let (qp, w) = (self.args[0], &mut self.words);
        put!(w, ", wr=");
        // SAFETY: the program's QP, which this thread completes.
        let list = unsafe { requests::batch_list(qp) };
        requests::send_requests(w, list, requests::is_datagram(qp));
    }

    /// The requests that the call posts.
    fn posting(&mut self, chrome: &Chrome) {
        let at = (self.begun, self.thread);
        let (qp, list) = (self.args[0], self.args[1]);
        if let Some((Object::Qp, n)) = names::number(self.first(), qp) {
            self.qp = n;
        }
        let send = |w: crate::abi::ibv_send_wr| Request { wr_id: w.wr_id, opcode: Some(w.opcode) };
        let before = match CALLS[self.row].name {
            "ibv_post_send" => chrome.posting(self.qp, peek::list(list).map(send), at),
            "ibv_post_recv" => {
                let recv = |w: crate::abi::ibv_recv_wr| Request { wr_id: w.wr_id, opcode: None };
                chrome.posting(self.qp, peek::list(list).map(recv), at)
            }
            // SAFETY: the program's QP, which this thread completes.
            "ibv_wr_complete" => unsafe {
                chrome.posting(self.qp, requests::batch_list(qp).map(send), at)
            },
            _ => return,
        };
        self.posted_before = Some(before);
    }

    fn first(&self) -> Arg {
        self.call.args.first().map_or(Arg::Int, |(_, kind)| *kind)
    }

    /// After the call: prints what it has written and its result.
    pub fn end(mut self, result: usize, errno: i32) {
        let ended = now_ns();
        let Some(_inside) = Inside::enter() else { return };
        let trace = self.words.trace;
        let error = self.call.outcome.error(result, errno);
        let is_empty = self.is_poll()
            && match self.call.outcome {
                Outcome::Count => result as i32 == 0,
                _ => error == Some(libc::ENOENT),
            };
        if is_empty {
            let cq = requests::cq_number(self.args[0]);
            self.words.names(Object::Cq, cq);
            if self.words.is_wanted() {
                self.count(false, ended);
                self.fold_in(cq, ended);
            }
            return;
        }
        if let Some(chrome) = trace.chrome() {
            self.note_connection(chrome, error);
        }
        if trace.output.is_some() || !self.words.is_wanted() {
            self.finish(result, error, errno);
        }
        if !self.words.is_wanted() {
            return;
        }
        self.count(error.is_some(), ended);
        trace.fold(self.thread);
        match &trace.output {
            Some(Output::Text(sink)) => {
                self.words.line.end(&Taken(ended.saturating_sub(self.begun)));
                sink.write(self.words.line.as_str());
            }
            Some(Output::Chrome(chrome)) => self.write_event(chrome, result, ended),
            None => {}
        }
    }

    fn count(&self, failed: bool, ended: u64) {
        if self.words.trace.counting {
            counts::count(self.row, failed, ended.saturating_sub(self.begun));
        }
    }

    /// The rest of the line: arguments that were written, result, completions.
    fn finish(&mut self, result: usize, error: Option<i32>, errno: i32) {
        if self.is_poll() {
            self.head();
        }
        let outcome = self.call.outcome;
        match error {
            None => self.arguments(Some(result)),
            // What a call that failed has not written is not printed.
            Some(_) if self.is_poll() => self.arguments(None),
            Some(_) => {}
        }
        let w = &mut self.words;
        put!(w, ")");
        w.line.results();
        let has_reason = reason::change_count() != self.reasons;
        values::result(w, outcome, result, (errno, has_reason));
        if error.is_some() {
            return;
        }
        if outcome == Outcome::Polled {
            let cq = self.args[0];
            // SAFETY: the program's CQ, of which this thread has just taken a completion.
            let wc = unsafe { requests::current(cq) };
            put!(w, " ");
            requests::completion(w, cq, &wc);
        }
        if self.call.args.get(1).is_some_and(|(_, kind)| *kind == Arg::Command) {
            commands::answer(w, self.args[1], self.args[2]);
        }
    }

    /// Counts an empty poll.
    fn fold_in(&self, cq: u32, now: u64) {
        let mut all = POLLS.get();
        let is_free = |p: &Polls| p.count == 0;
        let mut place = all.iter().position(|p| is_free(p) || p.cq == cq);
        let is_late = !is_free(&all[0]) && now - all[0].first > FOLD_NS;
        if place.is_none() || is_late {
            self.words.trace.fold(self.thread);
            (all, place) = (NO_POLLS, Some(0));
        }
        let polls = &mut all[place.unwrap_or(0)];
        let first = if is_free(polls) { self.begun } else { polls.first };
        *polls = Polls { count: polls.count + 1, cq, first, last: now };
        POLLS.set(all);
    }

    /// Keeps what the arrows need of a QP's connection up to date.
    fn note_connection(&self, chrome: &Chrome, error: Option<i32>) {
        if error.is_some() {
            if let Some(before) = self.posted_before {
                chrome.failed(self.qp, before);
            }
            return;
        }
        match self.call.name {
            "ibv_destroy_qp" => chrome.connected(self.qp, None),
            "ibv_modify_qp" => {
                let named = self.args[2] as u32;
                let Some(a) = peek::peek::<crate::abi::ibv_qp_attr>(self.args[1]) else { return };
                if named & qp_attr_mask::STATE != 0 && a.qp_state == qp_state::RESET {
                    chrome.connected(self.qp, None);
                }
                if named & qp_attr_mask::DEST_QPN != 0 {
                    chrome.connected(self.qp, Some(a.dest_qp_num));
                }
            }
            _ => {}
        }
    }

    /// Writes the call as an event.
    fn write_event(&self, chrome: &Chrome, result: usize, ended: u64) {
        let slice = Slice {
            name: self.call.name,
            thread: self.thread,
            begun: self.begun,
            ended,
            words: self.words.line.as_str(),
        };
        let completion = |wc: crate::abi::ibv_wc| Completion {
            qp: wc.qp_num,
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
        };
        match self.call.outcome {
            Outcome::Count if self.is_poll() => {
                let size = size_of::<crate::abi::ibv_wc>();
                let n = usize::try_from(result as i32).unwrap_or(0);
                let all = (0..n).filter_map(|i| peek::peek(self.args[2].wrapping_add(i * size)));
                chrome.write(&slice, all.map(completion));
            }
            Outcome::Polled if result as i32 == 0 => {
                // SAFETY: the program's CQ, of which this thread has just taken a completion.
                let wc = unsafe { requests::current(self.args[0]) };
                chrome.write(&slice, core::iter::once(completion(wc)));
            }
            _ => chrome.write(&slice, core::iter::empty()),
        }
    }
}
