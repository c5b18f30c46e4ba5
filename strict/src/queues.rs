//! The queues of queue pairs and SRQs: what is outstanding on them, as far as completions that the
//! program has polled tell.

use crate::memory::{Gone, Tail};
use crate::report::Report;
use crate::requests::{PieceUse, Request};
use crate::rules::Rule;
use crate::sites::Site;
use crate::Id;
use gdrcore_core::verbs::types::{qp_state, wc_opcode, wc_status, Wc};
use std::collections::{HashMap, VecDeque};

/// Most requests that are kept; the queues of further ones are not watched any more.
const REQUESTS_MAX: usize = 1 << 16;
/// Most requests that a new one is compared with.
const COMPARED_MAX: usize = 4096;

/// A queue pair, by its device and number.
pub type QpKey = (usize, u32);

/// The queues of a queue pair.
pub struct Queues {
    pub(crate) sends: VecDeque<Request>,
    recvs: VecDeque<Request>,
    pub(crate) send_cq: Id,
    recv_cq: Id,
    /// The SRQ that it receives from.
    pub srq: Option<Id>,
    /// Its type.
    pub kind: u32,
    /// Each send request has a completion.
    pub signals_all: bool,
    /// Slots of the send queue.
    pub slots: usize,
    /// A program may post until a post is refused: then a poll makes room.
    pub may_fill: bool,
    /// Its device's address.
    pub own: [u8; 16],
    /// The peer's address; `None`: not known.
    pub peer: Option<[u8; 16]>,
    /// The peer's number.
    pub peer_qpn: u32,
    /// A request has failed, so that nothing is live any more.
    pub is_over: bool,
    /// It has been in RTS again since, so that completions of requests from before may come.
    is_back: bool,
    /// Too much was outstanding; until the next reset nothing of it is kept.
    is_unwatched: bool,
}

/// All queues.
#[derive(Default)]
pub(crate) struct Outstanding {
    pub pairs: HashMap<QpKey, Queues>,
    pub shared: HashMap<Id, VecDeque<Request>>,
    /// Sends that will have a completion, by their CQ.
    expected: HashMap<Id, usize>,
    count: usize,
}

/// The queue to which a request is posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum QueueKey {
    /// A send queue.
    Send(QpKey),
    /// A receive queue.
    Recv(QpKey),
    /// An SRQ.
    Shared(Id),
}

impl QueueKey {
    fn words(self, wr_id: u64) -> String {
        match self {
            QueueKey::Send((_, n)) => format!("QP {n:#x}, send request with wr_id {wr_id:#x}"),
            QueueKey::Recv((_, n)) => format!("QP {n:#x}, receive request with wr_id {wr_id:#x}"),
            QueueKey::Shared(_) => format!("SRQ, receive request with wr_id {wr_id:#x}"),
        }
    }
}

impl Outstanding {
    fn queue(&mut self, place: QueueKey) -> Option<&mut VecDeque<Request>> {
        match place {
            QueueKey::Send(qp) => self.pairs.get_mut(&qp).map(|q| &mut q.sends),
            QueueKey::Recv(qp) => self.pairs.get_mut(&qp).map(|q| &mut q.recvs),
            QueueKey::Shared(srq) => self.shared.get_mut(&srq),
        }
    }

    /// All requests that the device may still carry out.
    fn live(&self) -> impl Iterator<Item = (QueueKey, &Request)> {
        let pairs = self.pairs.iter().filter(|(_, q)| q.is_live()).flat_map(|(key, q)| {
            let sends = q.sends.iter().map(|r| (QueueKey::Send(*key), r));
            sends.chain(q.recvs.iter().map(|r| (QueueKey::Recv(*key), r)))
        });
        let is_used = |srq: &Id| self.pairs.values().any(|q| q.srq == Some(*srq) && q.is_live());
        let shared = self.shared.iter().filter(move |(srq, _)| is_used(srq));
        pairs.chain(shared.flat_map(|(srq, all)| all.iter().map(|r| (QueueKey::Shared(*srq), r))))
    }

    /// Keeps a request, after its comparison with those that are outstanding.
    pub fn post(&mut self, place: QueueKey, request: Request) -> Option<Report> {
        if matches!(place, QueueKey::Send(qp) | QueueKey::Recv(qp) if !self.is_watched(qp)) {
            return None;
        }
        let found = self.conflict(place, &request);
        if self.count == REQUESTS_MAX {
            self.stop_watching(place);
            return found;
        }
        let is_expected = request.is_signaled;
        if let Some(queue) = self.queue(place) {
            queue.push_back(request);
            self.count += 1;
            if let (Some(cq), true) = (self.send_cq(place), is_expected) {
                *self.expected.entry(cq).or_default() += 1;
            }
        }
        found
    }

    /// The CQ of sends that are posted at a place.
    fn send_cq(&self, place: QueueKey) -> Option<Id> {
        match place {
            QueueKey::Send(qp) => self.pairs.get(&qp).map(|q| q.send_cq),
            _ => None,
        }
    }

    /// Counts requests that have left their queue.
    fn settle<'a>(&mut self, place: QueueKey, gone: impl IntoIterator<Item = &'a Request>) {
        let cq = self.send_cq(place);
        for request in gone {
            self.count -= 1;
            if let (Some(cq), true) = (cq, request.is_signaled) {
                let expected = self.expected.get_mut(&cq).map_or(0, |n| {
                    *n -= 1;
                    *n
                });
                if expected == 0 {
                    self.expected.remove(&cq);
                }
            }
        }
    }

    /// Whether what is posted to a queue pair is kept.
    pub fn is_watched(&self, qp: QpKey) -> bool {
        self.pairs.get(&qp).is_some_and(|q| !q.is_unwatched)
    }

    /// Forgets the requests of a place, and keeps no further ones.
    pub fn stop_watching(&mut self, place: QueueKey) {
        match place {
            QueueKey::Shared(srq) => self.forget_shared(srq),
            QueueKey::Send(qp) | QueueKey::Recv(qp) => {
                self.forget(qp);
                if let Some(q) = self.pairs.get_mut(&qp) {
                    q.is_unwatched = true;
                }
            }
        }
    }

    /// What a new request has in common with one that is outstanding.
    fn conflict(&self, place: QueueKey, new: &Request) -> Option<Report> {
        let peer = |place: QueueKey| match place {
            QueueKey::Send(qp) => self.pairs.get(&qp).and_then(|q| q.peer),
            _ => None,
        };
        for (of, old) in self.live().take(COMPARED_MAX) {
            // Answers of READs and atomics come in order: these do not overtake each other.
            let overtakes = of == place
                && old.kind == PieceUse::Fetches
                && new.kind != PieceUse::Fetches
                && !new.is_fenced;
            let report =
                |rule, words| Report { rule, words, site: new.site, noticed: Some(old.site) };
            if new.writes() || old.writes() {
                if let Some(at) = new.overlap(old) {
                    let other = of.words(old.wr_id);
                    let words = format!(
                        "{}: has the byte at {at:#x} in common with ",
                        place.words(new.wr_id)
                    );
                    if overtakes {
                        return Some(report(
                            Rule::MissingFence,
                            words + &other + ", which may still write it",
                        ));
                    }
                    // A READ's answer comes after what a request before it has read: in order.
                    let is_after = of == place
                        && (old.kind == PieceUse::Fetches
                            || (old.kind == PieceUse::Reads && new.kind == PieceUse::Fetches));
                    if !is_after {
                        return Some(report(Rule::BuffersOverlap, words + &other));
                    }
                }
            }
            let (Some(a), Some(b)) = (new.remote, old.remote) else { continue };
            if !a.is_written || !a.overlaps(&b) {
                continue;
            }
            let words = || {
                let (key, at) = (a.rkey, a.addr);
                let other = of.words(old.wr_id);
                format!(
                    "{}: WRITE to {at:#x} by rkey {key:#x}, as the {other}",
                    place.words(new.wr_id)
                )
            };
            if overtakes {
                return Some(report(Rule::MissingFence, words() + ", which may still read it"));
            }
            if of != place && b.is_written && peer(of).is_some() && peer(of) == peer(place) {
                return Some(report(Rule::RemoteOverlap, words()));
            }
        }
        None
    }

    /// Removes requests that were not posted: those of a queue with these numbers or later ones.
    pub fn take_back(&mut self, place: QueueKey, from: u64, to: u64) {
        if let Some(queue) = self.queue(place) {
            let all = core::mem::take(queue).into_iter();
            let (kept, gone): (VecDeque<_>, VecDeque<_>) =
                all.partition(|r| r.number < from || r.number >= to);
            *queue = kept;
            self.settle(place, &gone);
        }
    }

    /// Forgets what is outstanding on a queue pair.
    pub fn forget(&mut self, qp: QpKey) {
        self.clear(QueueKey::Send(qp));
        self.clear(QueueKey::Recv(qp));
    }

    fn clear(&mut self, place: QueueKey) {
        if let Some(queue) = self.queue(place) {
            let gone = core::mem::take(queue);
            self.settle(place, &gone);
        }
    }

    /// A queue pair has another state.
    pub fn enter(&mut self, qp: QpKey, state: u32) {
        match state {
            qp_state::RESET => self.forget(qp),
            // From SQE, in which all sends have failed.
            qp_state::RTS if self.pairs.get(&qp).is_some_and(|q| q.is_over) => {
                self.clear(QueueKey::Send(qp));
            }
            _ => {}
        }
        if let Some(q) = self.pairs.get_mut(&qp) {
            match state {
                qp_state::ERR => q.is_over = true,
                qp_state::RTS => (q.is_back, q.is_over) = (q.is_back || q.is_over, false),
                qp_state::RESET => {
                    (q.is_over, q.is_back, q.is_unwatched) = (false, false, false);
                    q.peer = None;
                }
                _ => {}
            }
        }
    }

    /// A queue pair has ended.
    pub fn end(&mut self, qp: QpKey) {
        self.forget(qp);
        self.pairs.remove(&qp);
    }

    /// An SRQ has ended.
    pub fn forget_shared(&mut self, srq: Id) {
        self.clear(QueueKey::Shared(srq));
        self.shared.remove(&srq);
    }

    /// All of a device has ended.
    pub fn end_device(&mut self, device: usize) {
        let pairs: Vec<QpKey> = self.pairs.keys().copied().filter(|qp| qp.0 == device).collect();
        pairs.into_iter().for_each(|qp| self.end(qp));
        let shared: Vec<Id> = self.shared.keys().copied().filter(|srq| srq.0 == device).collect();
        shared.into_iter().for_each(|srq| self.forget_shared(srq));
    }

    /// Sends without a polled completion that will have one, by their CQ.
    pub fn expected(&self, cq: Id) -> usize {
        self.expected.get(&cq).copied().unwrap_or(0)
    }

    /// Frees slots of unsignaled requests at the front of a queue, as a NIC that does that by
    /// itself.
    pub fn free_unsignaled(&mut self, qp: QpKey) {
        if let Some(q) = self.pairs.get_mut(&qp) {
            while q.sends.len() >= q.slots && q.sends.front().is_some_and(|r| !r.is_signaled) {
                q.sends.pop_front();
                self.count -= 1;
            }
        }
    }

    /// The requests that name a local key.
    pub fn with_key(&self, device: usize, lkey: u32) -> Option<(String, Site)> {
        let of_device = |place: &QueueKey| match place {
            QueueKey::Send(qp) | QueueKey::Recv(qp) => qp.0 == device,
            QueueKey::Shared(_) => true,
        };
        let mut all = self.live().filter(|(place, _)| of_device(place));
        let (place, r) = all.find(|(_, r)| r.pieces.iter().any(|p| p.lkey == lkey))?;
        Some((place.words(r.wr_id), r.site))
    }

    /// A request that names an address handle.
    pub fn with_ah(&self, ah: Id) -> Option<(String, Site)> {
        let (place, r) = self.live().find(|(_, r)| r.ah == Some(ah))?;
        Some((place.words(r.wr_id), r.site))
    }

    /// Ends the requests that a completion of the CQ tells of, and compares their buffers.
    pub fn complete(&mut self, device: usize, cq: Id, wc: &Wc, here: Site) -> Vec<Report> {
        let key = (device, wc.qp_num);
        let Some(q) = self.pairs.get_mut(&key) else { return Vec::new() };
        let is_error = wc.status != wc_status::SUCCESS;
        q.is_over |= is_error && !q.is_back;
        let is_recv = match q.send_cq == q.recv_cq {
            true => wc.opcode & wc_opcode::RECV != 0,
            false => cq == q.recv_cq,
        };
        let place = match is_recv {
            false => QueueKey::Send(key),
            true => q.srq.map_or(QueueKey::Recv(key), QueueKey::Shared),
        };
        let Some(queue) = self.queue(place) else { return Vec::new() };
        let is_it = |r: &Request| r.wr_id == wc.wr_id && (r.is_signaled || is_error);
        let Some(at) = queue.iter().position(is_it) else { return Vec::new() };
        // Requests of a send queue end in their order, of others those that have a completion.
        let ended: Vec<Request> = match place {
            QueueKey::Send(_) => queue.drain(..=at).collect(),
            _ => {
                forget_tails_of_equals(queue, wc.wr_id);
                queue.remove(at).into_iter().collect()
            }
        };
        self.settle(place, &ended);
        if is_error {
            if let Some(q) = self.pairs.get_mut(&key) {
                q.is_over = true;
            }
            return Vec::new();
        }
        ended.iter().filter_map(|r| judge(place, r, wc, here)).collect()
    }
}

/// With two threads that poll, or on an SRQ, it is not known which of the requests with one `wr_id`
/// a completion tells of.
fn forget_tails_of_equals(queue: &mut VecDeque<Request>, wr_id: u64) {
    if queue.iter().filter(|r| r.wr_id == wr_id).count() > 1 {
        queue.iter_mut().filter(|r| r.wr_id == wr_id).for_each(|r| r.tail = Tail::default());
    }
}

/// What was done to the buffer of a request that has ended.
fn judge(place: QueueKey, r: &Request, wc: &Wc, here: Site) -> Option<Report> {
    let report = |rule, what: &str| Report {
        rule,
        words: format!("{}: {what}", place.words(r.wr_id)),
        site: r.site,
        noticed: Some(here),
    };
    let gone = || report(Rule::MemoryUnmapped, "its memory was unmapped before its completion");
    if r.kind == PieceUse::Receives {
        // What a WRITE with immediate data uses up is not written.
        let message = match wc.opcode {
            wc_opcode::RECV => u64::from(wc.byte_len),
            _ => return None,
        };
        return match r.tail.changed(message) {
            Ok(None) => None,
            Err(Gone) => Some(gone()),
            Ok(Some(at)) => Some(report(
                Rule::RecvChanged,
                &format!(
                    "its byte {at}, behind a message of {message}, has changed since the post"
                ),
            )),
        };
    }
    r.pieces.iter().find_map(|piece| match piece.has_changed() {
        Ok(false) => None,
        Err(Gone) => Some(gone()),
        Ok(true) => Some(report(
            Rule::SendChanged,
            &format!(
                "its buffer of {} bytes at {:#x} has changed since the post",
                piece.len,
                piece.addr.unwrap_or(0)
            ),
        )),
    })
}

impl Queues {
    /// Of a new queue pair of a type, with these CQs and so many slots of its send queue.
    pub fn new(kind: u32, [send_cq, recv_cq]: [Id; 2], slots: usize) -> Queues {
        Queues {
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            send_cq,
            recv_cq,
            srq: None,
            kind,
            signals_all: false,
            slots,
            may_fill: false,
            own: [0; 16],
            peer: None,
            peer_qpn: 0,
            is_over: false,
            is_back: false,
            is_unwatched: false,
        }
    }

    /// Whether the device may still carry out its requests.
    fn is_live(&self) -> bool {
        !self.is_over && !self.is_unwatched
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MrRange, MrRanges, Piece};
    use crate::requests::Remote;
    use gdrcore_core::verbs::types::{qp_type, Sge};

    const QP: QpKey = (1, 0x11);
    const SCQ: Id = (1, 5);
    const RCQ: Id = (1, 6);

    fn outstanding(slots: usize) -> Outstanding {
        let queues =
            || Queues { peer: Some([1; 16]), ..Queues::new(qp_type::RC, [SCQ, RCQ], slots) };
        let mut all = Outstanding::default();
        all.pairs.insert(QP, queues());
        all.pairs.insert((1, 0x12), queues());
        all
    }

    fn request(number: u64, is_signaled: bool) -> Request {
        Request {
            wr_id: number,
            kind: PieceUse::Nothing,
            is_signaled,
            is_fenced: false,
            pieces: MrRanges::default().pieces(0, 0, 0, false),
            remote: None,
            ah: None,
            tail: Tail::default(),
            site: number as usize,
            number,
        }
    }

    fn wc(wr_id: u64, status: u32) -> Wc {
        Wc { wr_id, status, qp_num: 0x11, ..Wc::default() }
    }

    #[test]
    fn a_completion_frees_its_slot_and_those_before_it() {
        let mut all = outstanding(8);
        for n in 0..6 {
            assert!(all.post(QueueKey::Send(QP), request(n, n % 3 == 2)).is_none());
        }
        assert_eq!((all.expected(SCQ), all.count), (2, 6));
        all.complete(1, SCQ, &wc(2, wc_status::SUCCESS), 0);
        assert_eq!((all.pairs[&QP].sends.len(), all.count), (3, 3));
        // One that the program was told of already, or of another queue pair's, frees nothing.
        all.complete(1, SCQ, &wc(2, wc_status::SUCCESS), 0);
        all.complete(2, SCQ, &wc(5, wc_status::SUCCESS), 0);
        assert_eq!(all.count, 3);
        // A failed one may be unsignaled; then nothing is live.
        all.complete(1, SCQ, &wc(3, wc_status::WR_FLUSH_ERR), 0);
        assert_eq!((all.count, all.live().count()), (2, 0));
        all.end(QP);
        assert_eq!((all.count, all.expected(SCQ)), (0, 0));
    }

    #[test]
    fn a_queue_pair_is_watched_again_behind_an_error_of_its_send_queue() {
        let mut all = outstanding(8);
        for n in 0..2 {
            all.post(QueueKey::Send(QP), request(n, true));
        }
        all.complete(1, SCQ, &wc(0, wc_status::REM_OP_ERR), 0);
        assert_eq!(all.live().count(), 0);
        all.enter(QP, qp_state::RTS);
        all.post(QueueKey::Send(QP), request(7, true));
        // The program polls only now what the error flushed.
        all.complete(1, SCQ, &wc(1, wc_status::WR_FLUSH_ERR), 0);
        assert_eq!((all.live().count(), all.expected(SCQ)), (1, 1));
        all.complete(1, SCQ, &wc(7, wc_status::WR_FLUSH_ERR), 0);
        assert_eq!((all.pairs[&QP].is_over, all.count), (true, 0));
    }

    #[test]
    fn a_queue_pair_that_is_not_watched_keeps_nothing_until_its_reset() {
        let mut all = outstanding(8);
        all.post(QueueKey::Send(QP), request(1, true));
        all.stop_watching(QueueKey::Send(QP));
        all.post(QueueKey::Send(QP), request(2, true));
        all.enter(QP, qp_state::RTS);
        all.post(QueueKey::Send(QP), request(3, true));
        assert_eq!((all.count, all.expected(SCQ), all.is_watched(QP)), (0, 0, false));
        all.enter(QP, qp_state::RESET);
        all.post(QueueKey::Send(QP), request(4, true));
        assert_eq!((all.count, all.expected(SCQ), all.pairs[&QP].slots), (1, 1, 8));
        // An SRQ that is not kept, as those of XRC.
        all.post(QueueKey::Shared((1, 9)), request(5, true));
        assert_eq!(all.count, 1);
    }

    /// Its tail is wrong whatever the message.
    fn receive(regions: &MrRanges, memory: &mut [u8], number: u64, wr_id: u64) -> Request {
        let at = memory.as_ptr() as u64;
        let sge = Sge { addr: at, length: memory.len() as u32, lkey: 9 };
        let pieces = regions.pieces(1, &raw const sge as usize, 1, false);
        let tail = Tail::from_pieces(&pieces);
        memory[memory.len() - 1] ^= 1;
        Request { wr_id, kind: PieceUse::Receives, tail, ..request(number, true) }
    }

    #[test]
    fn of_receives_with_one_number_no_tail_is_judged() {
        let mut memory = [0u8; 64];
        let at = memory.as_ptr() as u64;
        let mut regions = MrRanges::default();
        regions.0.insert((1, 9), MrRange::new(at, memory.len() as u64, at));
        let mut all = outstanding(8);
        for (number, wr_id) in [(1, 7), (2, 7), (3, 8)] {
            let post = receive(&regions, &mut memory, number, wr_id);
            all.post(QueueKey::Recv(QP), post);
        }
        core::hint::black_box(&mut memory)[63] = 9;
        let received =
            |wr_id| Wc { opcode: wc_opcode::RECV, byte_len: 8, ..wc(wr_id, wc_status::SUCCESS) };
        assert_eq!(all.complete(1, RCQ, &received(7), 0).len(), 0);
        assert_eq!(all.complete(1, RCQ, &received(7), 0).len(), 0, "which of the two is left?");
        assert_eq!(all.complete(1, RCQ, &received(8), 0).len(), 1);
    }

    #[test]
    fn what_was_not_posted_is_taken_back() {
        let mut all = outstanding(8);
        for n in 0..4 {
            all.post(QueueKey::Send(QP), request(n, true));
        }
        all.take_back(QueueKey::Send(QP), 1, 3);
        let left: Vec<u64> = all.pairs[&QP].sends.iter().map(|r| r.number).collect();
        assert_eq!((left, all.count), (vec![0, 3], 2));
    }

    #[test]
    fn a_nic_like_rxe_frees_unsignaled_requests_up_to_a_signaled_one() {
        let mut all = outstanding(3);
        for n in 0..3 {
            all.post(QueueKey::Send(QP), request(n, n == 1));
        }
        all.free_unsignaled(QP);
        assert_eq!((all.pairs[&QP].sends.len(), all.count), (2, 2));
        all.post(QueueKey::Send(QP), request(3, false));
        all.free_unsignaled(QP);
        assert_eq!(all.pairs[&QP].sends.len(), 3);
    }

    #[test]
    fn writes_of_two_queue_pairs_and_writes_behind_a_read_are_conflicts() {
        let remote = |is_written| Some(Remote { rkey: 7, addr: 100, len: 10, is_written });
        let write = |number| Request { remote: remote(true), ..request(number, true) };
        let mut all = outstanding(8);
        assert!(all.post(QueueKey::Send(QP), write(1)).is_none());
        assert!(all.post(QueueKey::Send(QP), write(2)).is_none(), "in order on one queue pair");
        let found = all.post(QueueKey::Send((1, 0x12)), write(3)).unwrap();
        assert_eq!((found.rule, found.site), (Rule::RemoteOverlap, 3));
        let mut all = outstanding(8);
        let read = Request { kind: PieceUse::Fetches, remote: remote(false), ..request(1, true) };
        all.post(QueueKey::Send(QP), read);
        let fenced = Request { is_fenced: true, ..write(2) };
        assert!(all.post(QueueKey::Send(QP), fenced).is_none());
        let found = all.post(QueueKey::Send(QP), write(3)).unwrap();
        assert_eq!((found.rule, found.noticed), (Rule::MissingFence, Some(1)));
        // A READ into what a WRITE of the same queue pair sends comes behind it.
        let mut all = outstanding(8);
        let piece = |kind| Request { kind, pieces: vec![Piece::at(64, 8)], ..request(1, true) };
        all.post(QueueKey::Send(QP), piece(PieceUse::Reads));
        assert!(all.post(QueueKey::Send(QP), piece(PieceUse::Fetches)).is_none());
        let found = all.post(QueueKey::Send((1, 0x12)), piece(PieceUse::Fetches)).unwrap();
        assert_eq!(found.rule, Rule::BuffersOverlap);
        // Another peer's memory is another place.
        let mut all = outstanding(8);
        all.pairs.get_mut(&QP).unwrap().peer = Some([2; 16]);
        all.post(QueueKey::Send(QP), write(1));
        assert!(all.post(QueueKey::Send((1, 0x12)), write(2)).is_none());
    }
}
