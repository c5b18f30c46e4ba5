//! The trace as events of Chrome's format, which Perfetto shows: a JSON array of slices, one for
//! each call, and of arrows from a post to its completion, and to the peer's receive if the peer is
//! in this process.
//!
//! The file ends with the array's bracket after each event, which the next event replaces: whatever
//! ends the process leaves valid JSON. Both ends of an arrow are written when the second is known,
//! so none is without its other end. Only a limited number of requests is remembered; a request
//! beyond that has no arrow.

use super::sink::Sink;
use core::fmt::Write;
use gdrcore_core::verbs::types::{wc_opcode, wc_status, wr_opcode};
use gdrcore_net::thread_lock::ForkLock;
use gdrcore_strict::json::quoted;
use std::collections::{HashMap, VecDeque};

/// Most requests that are remembered.
const POSTED_MAX: usize = 1 << 16;
/// Most queue pairs whose peers are remembered.
const PEERS_MAX: usize = 1 << 16;
/// Bytes of the events of a call for which memory is kept.
const TEXT_MAX: usize = 1 << 20;
/// The end of the file, which the next event replaces.
const END: &str = "\n]\n";

/// A request that was posted, and its arrow's number, time and thread.
#[derive(Clone, Copy)]
struct Posted {
    wr_id: u64,
    arrow: u64,
    at: u64,
    thread: u32,
}

/// What was posted to one queue, oldest first.
type Queue = VecDeque<Posted>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Side {
    Send,
    Recv,
    /// Sends that use up a receive of the peer, which is in this process.
    Message,
}

#[derive(Default)]
struct Arrows {
    queues: HashMap<(u32, Side), Queue>,
    count: usize,
    next: u64,
    peers: HashMap<u32, u32>,
}

impl Arrows {
    fn post(&mut self, qp: u32, side: Side, wr_id: u64, (at, thread): (u64, u32)) {
        if self.count < POSTED_MAX {
            self.next += 1;
            self.count += 1;
            let posted = Posted { wr_id, arrow: self.next, at, thread };
            self.queues.entry((qp, side)).or_default().push_back(posted);
        }
    }

    /// The peer of a QP, if it is in this process, connected to the QP.
    fn peer(&self, qp: u32) -> Option<u32> {
        self.peers.get(&qp).copied().filter(|peer| self.peers.get(peer) == Some(&qp))
    }

    /// Removes the requests of a queue up to the one that `found` names, and returns that.
    fn take(&mut self, qp: u32, side: Side, found: impl FnMut(&Posted) -> bool) -> Option<Posted> {
        let queue = self.queues.get_mut(&(qp, side))?;
        let n = queue.iter().position(found)? + 1;
        self.count -= n;
        queue.drain(..n).next_back()
    }

    /// Forgets what was posted to a queue pair from a number on.
    fn forget(&mut self, qp: u32, from: u64) {
        for side in [Side::Send, Side::Recv, Side::Message] {
            if let Some(queue) = self.queues.get_mut(&(qp, side)) {
                let before = queue.len();
                queue.retain(|p| p.arrow <= from);
                self.count -= before - queue.len();
                if queue.is_empty() {
                    self.queues.remove(&(qp, side));
                }
            }
        }
    }
}

#[derive(Default)]
struct State {
    /// The process that the state is of.
    pid: u32,
    /// Where the next event goes.
    at: u64,
    arrows: Arrows,
    /// The events that are being written.
    text: String,
}

/// The file and its state.
pub struct Chrome {
    sink: Sink,
    state: ForkLock<State>,
}

/// A slice.
pub struct Slice<'a> {
    pub name: &'a str,
    pub thread: u32,
    /// Nanoseconds.
    pub begun: u64,
    pub ended: u64,
    /// Arguments and result.
    pub words: &'a str,
}

/// A request that is being posted.
pub struct Request {
    pub wr_id: u64,
    /// `None`: a receive.
    pub opcode: Option<u32>,
}

/// A completion.
pub struct Completion {
    pub qp: u32,
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
}

fn uses_a_receive(opcode: u32) -> bool {
    matches!(
        opcode,
        wr_opcode::SEND
            | wr_opcode::SEND_WITH_IMM
            | wr_opcode::SEND_WITH_INV
            | wr_opcode::RDMA_WRITE_WITH_IMM
    )
}

/// Nanoseconds as microseconds.
fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

impl State {
    /// The beginning of an event.
    fn event(&mut self, kind: char, name: &str, (at, thread): (u64, u32)) {
        let pid = self.pid;
        self.text.push_str(if self.at == 0 && self.text.is_empty() { "[\n" } else { ",\n" });
        self.text.push_str("{\"name\":");
        quoted(&mut self.text, name);
        let _ = write!(
            self.text,
            ",\"ph\":\"{kind}\",\"pid\":{pid},\"tid\":{thread},\"ts\":{:.3}",
            us(at)
        );
    }

    fn slice(&mut self, s: &Slice<'_>) {
        self.event('X', s.name, (s.begun, s.thread));
        let _ = write!(self.text, ",\"dur\":{:.3},", us(s.ended - s.begun));
        self.text.push_str("\"args\":{\"call\":");
        quoted(&mut self.text, s.words);
        self.text.push_str("}}");
    }

    fn arrow(&mut self, name: &str, from: Posted, to: (u64, u32)) {
        for (kind, at, more) in [('s', (from.at, from.thread), ""), ('f', to, ",\"bp\":\"e\"")] {
            self.event(kind, name, at);
            let arrow = from.arrow;
            let _ = write!(self.text, ",\"cat\":\"{name}\",\"id\":{arrow}{more}}}");
        }
    }

    /// The arrows that end at a completion.
    fn complete(&mut self, c: &Completion, at: (u64, u32)) {
        if c.status != wc_status::SUCCESS {
            return self.arrows.forget(c.qp, 0);
        }
        let received = c.opcode & wc_opcode::RECV != 0;
        let side = if received { Side::Recv } else { Side::Send };
        if let Some(posted) = self.arrows.take(c.qp, side, |p| p.wr_id == c.wr_id) {
            self.arrow("completion", posted, at);
        }
        if let Some(peer) = self.arrows.peer(c.qp).filter(|_| received) {
            if let Some(posted) = self.arrows.take(peer, Side::Message, |_| true) {
                self.arrow("message", posted, at);
            }
        }
    }
}

impl Chrome {
    /// Nothing is opened yet.
    pub fn new(sink: Sink) -> Chrome {
        let arrows = ForkLock::new(State::default());
        Chrome { sink, state: arrows }
    }

    /// Before fork.
    pub fn hold(&self) {
        self.state.hold();
        self.sink.hold();
    }

    /// After it.
    pub fn release(&self, is_child: bool) {
        self.sink.release(is_child);
        self.state.release();
    }

    /// In a child that a signal handler has forked above this module.
    pub fn leave(&self) {
        self.sink.leave();
    }

    /// Notes requests that are being posted to a QP. Returns what [`Chrome::failed`] needs.
    pub fn posting(&self, qp: u32, requests: impl Iterator<Item = Request>, at: (u64, u32)) -> u64 {
        let mut state = self.state.lock();
        let before = state.arrows.next;
        for r in requests {
            match r.opcode {
                None => state.arrows.post(qp, Side::Recv, r.wr_id, at),
                Some(opcode) => {
                    state.arrows.post(qp, Side::Send, r.wr_id, at);
                    // Receives of other processes are not seen, so the request would stay for ever.
                    if uses_a_receive(opcode) && state.arrows.peer(qp).is_some() {
                        state.arrows.post(qp, Side::Message, r.wr_id, at);
                    }
                }
            }
        }
        before
    }

    /// Forgets the requests of a post that was refused.
    pub fn failed(&self, qp: u32, before: u64) {
        self.state.lock().arrows.forget(qp, before);
    }

    /// Notes the peer of a QP; `None`: it was reset or destroyed.
    pub fn connected(&self, qp: u32, peer: Option<u32>) {
        let arrows = &mut self.state.lock().arrows;
        match peer {
            Some(peer) if arrows.peers.len() < PEERS_MAX => _ = arrows.peers.insert(qp, peer),
            Some(_) => {}
            None => {
                arrows.forget(qp, 0);
                arrows.peers.remove(&qp);
            }
        }
    }

    /// Writes a call, and the arrows that end at its completions.
    pub fn write(&self, slice: &Slice<'_>, completions: impl Iterator<Item = Completion>) {
        let mut held = self.state.lock();
        let state = &mut *held;
        let Some((fd, is_new)) = self.sink.descriptor() else { return };
        if is_new {
            state.at = 0;
            state.pid = std::process::id();
        }
        state.text.clear();
        state.slice(slice);
        let middle = slice.begun + (slice.ended - slice.begun) / 2;
        completions.for_each(|c| state.complete(&c, (middle, slice.thread)));
        let events = state.text.len() as u64;
        state.text.push_str(END);
        // What a full disk leaves must be valid JSON, too.
        let end = if state.at == 0 { "[\n]\n" } else { END };
        self.sink.write_at(fd, &state.text, state.at, end);
        state.at += events;
        if state.text.capacity() > TEXT_MAX {
            state.text = String::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrows(state: &mut State, qp: u32, wr_id: u64, opcode: u32) -> Vec<String> {
        state.text.clear();
        state.complete(&Completion { qp, wr_id, status: 0, opcode }, (9, 9));
        state.text.lines().filter(|l| l.starts_with('{')).map(str::to_string).collect()
    }

    #[test]
    fn an_arrow_goes_from_the_oldest_post_of_its_number_to_its_completion() {
        let mut s = State { at: 1, ..State::default() };
        for (wr_id, at) in [(1, 10), (2, 20), (1, 30)] {
            s.arrows.post(5, Side::Send, wr_id, (at, 7));
        }
        assert_eq!(arrows(&mut s, 6, 1, wc_opcode::SEND), [""; 0], "another queue pair");
        // Request 1 was unsignalled.
        let two = arrows(&mut s, 5, 2, wc_opcode::SEND);
        assert_eq!(two.len(), 2);
        assert!(two[0].contains("\"ph\":\"s\"") && two[0].contains("\"ts\":0.020"), "{two:?}");
        assert!(two[1].contains("\"ph\":\"f\"") && two[1].contains("\"id\":2,"), "{two:?}");
        assert!(arrows(&mut s, 5, 1, wc_opcode::SEND)[0].contains("\"ts\":0.030"));
        assert_eq!(s.arrows.count, 0);
    }

    #[test]
    fn a_message_has_an_arrow_if_both_ends_are_connected_to_each_other() {
        let mut s = State { at: 1, ..State::default() };
        s.arrows.peers.extend([(5, 6), (6, 5), (8, 5)]);
        let recv = wc_opcode::RECV;
        s.arrows.post(5, Side::Message, 1, (10, 7));
        assert_eq!(arrows(&mut s, 8, 1, recv), [""; 0], "its peer is connected to another");
        assert_eq!(arrows(&mut s, 6, 1, recv).len(), 2);
        assert_eq!(arrows(&mut s, 6, 1, recv), [""; 0]);
    }

    #[test]
    fn messages_to_another_process_are_not_remembered() {
        let chrome = Chrome::new(Sink::new(None, 0));
        let send = || core::iter::once(Request { wr_id: 1, opcode: Some(wr_opcode::SEND) });
        chrome.connected(5, Some(6));
        chrome.posting(5, send(), (1, 1));
        assert_eq!(chrome.state.lock().arrows.count, 1, "the send itself");
        chrome.connected(6, Some(5));
        chrome.posting(5, send(), (1, 1));
        assert_eq!(chrome.state.lock().arrows.count, 3);
    }

    #[test]
    fn what_is_remembered_is_limited_and_forgotten() {
        let mut s = State::default();
        for i in 0..POSTED_MAX as u64 + 10 {
            s.arrows.post((i % 2) as u32, Side::Recv, i, (0, 0));
        }
        assert_eq!(s.arrows.count, POSTED_MAX);
        s.arrows.forget(0, POSTED_MAX as u64 - 1);
        assert_eq!(s.arrows.count, POSTED_MAX, "the last one is of the other");
        s.arrows.forget(1, POSTED_MAX as u64 - 1);
        assert_eq!(s.arrows.count, POSTED_MAX - 1);
        s.arrows.forget(0, 0);
        s.arrows.forget(1, 0);
        assert_eq!((s.arrows.count, s.arrows.queues.len()), (0, 0));
    }

    #[test]
    fn text_is_quoted() {
        let mut text = String::new();
        quoted(&mut text, "a\"b\\c\nä");
        assert_eq!(text, "\"a\\\"b\\\\c\\u000aä\"");
    }
}
