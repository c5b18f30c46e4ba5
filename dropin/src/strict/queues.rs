//! The queues of queue pairs and SRQs: what is outstanding on them, as far as completions that the
//! program has polled tell.

use super::memory::Gone;
use super::report::Report;
use super::requests::{Kind, Request};
use super::rules::Rule;
use super::sites::Site;
use crate::abi::ibv_wc;
use gdrcore_core::verbs::types::{qp_state, wc_opcode, wc_status};
use std::collections::{HashMap, VecDeque};

/// Most requests that are kept; the queues of further ones are not watched any more.
const REQUESTS_MAX: usize = 1 << 16;
/// Most requests that a new one is compared with.
const COMPARED_MAX: usize = 4096;

/// A queue pair, by its device and number.
pub type QpKey = (usize, u32);

/// The queues of a queue pair.
pub struct Queues {
    pub sends: VecDeque<Request>,
    pub recvs: VecDeque<Request>,
    pub send_cq: usize,
    pub recv_cq: usize,
    pub srq: usize,
    /// Slots of the send queue.
    pub slots: usize,
    pub state: u32,
    /// The peer's address.
    pub peer: [u8; 16],
    /// Nothing is outstanding any more, or too much to be watched.
    pub is_over: bool,
}

/// All queues.
#[derive(Default)]
pub struct Outstanding {
    pub pairs: HashMap<QpKey, Queues>,
    pub shared: HashMap<usize, VecDeque<Request>>,
    count: usize,
}

/// Where a request is posted.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Place {
    Send(QpKey),
    Recv(QpKey),
    Shared(usize),
}

impl Place {
    fn words(self, wr_id: u64) -> String {
        match self {
            Place::Send((_, n)) => format!("QP {n:#x}, send request with wr_id {wr_id:#x}"),
            Place::Recv((_, n)) => format!("QP {n:#x}, receive request with wr_id {wr_id:#x}"),
            Place::Shared(_) => format!("SRQ, receive request with wr_id {wr_id:#x}"),
        }
    }
}

impl Outstanding {
    fn queue(&mut self, place: Place) -> Option<&mut VecDeque<Request>> {
        match place {
            Place::Send(qp) => self.pairs.get_mut(&qp).map(|q| &mut q.sends),
            Place::Recv(qp) => self.pairs.get_mut(&qp).map(|q| &mut q.recvs),
            Place::Shared(srq) => self.shared.get_mut(&srq),
        }
    }

    /// All requests that the device may still carry out.
    fn live(&self) -> impl Iterator<Item = (Place, &Request)> {
        let pairs = self.pairs.iter().filter(|(_, q)| !q.is_over).flat_map(|(key, q)| {
            let sends = q.sends.iter().map(|r| (Place::Send(*key), r));
            sends.chain(q.recvs.iter().map(|r| (Place::Recv(*key), r)))
        });
        let is_used = |srq: &usize| self.pairs.values().any(|q| q.srq == *srq && !q.is_over);
        let shared = self.shared.iter().filter(move |(srq, _)| is_used(srq));
        pairs.chain(shared.flat_map(|(srq, all)| all.iter().map(|r| (Place::Shared(*srq), r))))
    }

    /// Keeps a request, after its comparison with those that are outstanding.
    pub fn post(&mut self, place: Place, request: Request) -> Option<Report> {
        let found = self.conflict(place, &request);
        if self.count == REQUESTS_MAX {
            match place {
                Place::Send(qp) | Place::Recv(qp) => self.stop_watching(qp),
                Place::Shared(srq) => self.forget_shared(srq),
            }
            return found;
        }
        if let Some(queue) = self.queue(place) {
            queue.push_back(request);
            self.count += 1;
        }
        found
    }

    fn stop_watching(&mut self, qp: QpKey) {
        self.forget(qp);
        if let Some(q) = self.pairs.get_mut(&qp) {
            (q.is_over, q.slots) = (true, usize::MAX);
        }
    }

    /// What a new request has in common with one that is outstanding.
    fn conflict(&self, place: Place, new: &Request) -> Option<Report> {
        let peer = |place: Place| match place {
            Place::Send(qp) => self.pairs.get(&qp).map(|q| q.peer),
            _ => None,
        };
        for (of, old) in self.live().take(COMPARED_MAX) {
            // Answers of READs and atomics come in order: these do not overtake each other.
            let overtakes = of == place
                && old.kind == Kind::Fetches
                && new.kind != Kind::Fetches
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
                    if of != place || old.kind != Kind::Fetches {
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
            if of != place && b.is_written && peer(of) == peer(place) {
                return Some(report(Rule::RemoteOverlap, words()));
            }
        }
        None
    }

    /// Removes requests that were not posted: those of a queue with these numbers or later ones.
    pub fn take_back(&mut self, place: Place, from: u64, to: u64) {
        if let Some(queue) = self.queue(place) {
            let before = queue.len();
            queue.retain(|r| r.number < from || r.number >= to);
            let removed = before - queue.len();
            self.count -= removed;
        }
    }

    /// Forgets what is outstanding on a queue pair.
    pub fn forget(&mut self, qp: QpKey) {
        if let Some(q) = self.pairs.get_mut(&qp) {
            self.count -= q.sends.len() + q.recvs.len();
            q.sends.clear();
            q.recvs.clear();
        }
    }

    /// A queue pair has ended.
    pub fn end(&mut self, qp: QpKey) {
        self.forget(qp);
        self.pairs.remove(&qp);
    }

    /// An SRQ has ended.
    pub fn forget_shared(&mut self, srq: usize) {
        if let Some(all) = self.shared.remove(&srq) {
            self.count -= all.len();
        }
    }

    /// Sends without a polled completion that will have one, by their CQ.
    pub fn expected(&self, cq: usize) -> usize {
        let of_cq = self.pairs.values().filter(|q| q.send_cq == cq && !q.is_over);
        of_cq.map(|q| q.sends.iter().filter(|r| r.is_signaled).count()).sum()
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
        let of_device = |place: &Place| match place {
            Place::Send(qp) | Place::Recv(qp) => qp.0 == device,
            Place::Shared(_) => true,
        };
        let mut all = self.live().filter(|(place, _)| of_device(place));
        let (place, r) = all.find(|(_, r)| r.pieces.iter().any(|p| p.lkey == lkey))?;
        Some((place.words(r.wr_id), r.site))
    }

    /// A request that names an address handle.
    pub fn with_ah(&self, ah: usize) -> Option<(String, Site)> {
        let (place, r) = self.live().find(|(_, r)| r.ah == ah && ah != 0)?;
        Some((place.words(r.wr_id), r.site))
    }

    /// Ends the requests that a completion of the CQ tells of, and compares their buffers.
    pub fn complete(&mut self, device: usize, cq: usize, wc: &ibv_wc, here: Site) -> Vec<Report> {
        let key = (device, wc.qp_num);
        let Some(q) = self.pairs.get_mut(&key) else { return Vec::new() };
        let is_error = wc.status != wc_status::SUCCESS;
        q.is_over |= is_error;
        let is_recv = match q.send_cq == q.recv_cq {
            true => wc.opcode & wc_opcode::RECV != 0,
            false => cq == q.recv_cq,
        };
        let place = match is_recv {
            false => Place::Send(key),
            true if q.srq != 0 => Place::Shared(q.srq),
            true => Place::Recv(key),
        };
        let Some(queue) = self.queue(place) else { return Vec::new() };
        let is_it = |r: &Request| r.wr_id == wc.wr_id && (r.is_signaled || is_error);
        let Some(at) = queue.iter().position(is_it) else { return Vec::new() };
        // Requests of a send queue end in their order, of others those that have a completion.
        let ended: Vec<Request> = match place {
            Place::Send(_) => queue.drain(..=at).collect(),
            _ => queue.remove(at).into_iter().collect(),
        };
        self.count -= ended.len();
        if is_error {
            return Vec::new();
        }
        ended.iter().filter_map(|r| judge(place, r, wc, here)).collect()
    }
}

/// What was done to the buffer of a request that has ended.
fn judge(place: Place, r: &Request, wc: &ibv_wc, here: Site) -> Option<Report> {
    let report = |rule, what: &str| Report {
        rule,
        words: format!("{}: {what}", place.words(r.wr_id)),
        site: r.site,
        noticed: Some(here),
    };
    let gone = || report(Rule::MemoryUnmapped, "its memory was unmapped before its completion");
    if r.kind == Kind::Receives {
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
    /// Takes over a new state.
    pub fn enter(&mut self, state: u32) {
        self.state = state;
        match state {
            qp_state::ERR => self.is_over = true,
            qp_state::RESET => self.is_over = false,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Regions, Tail};
    use super::super::requests::Remote;
    use super::*;

    const QP: QpKey = (1, 0x11);

    fn outstanding(slots: usize) -> Outstanding {
        let queues = |send_cq| Queues {
            sends: VecDeque::new(),
            recvs: VecDeque::new(),
            send_cq,
            recv_cq: 6,
            srq: 0,
            slots,
            state: qp_state::RTS,
            peer: [1; 16],
            is_over: false,
        };
        let mut all = Outstanding::default();
        all.pairs.insert(QP, queues(5));
        all.pairs.insert((1, 0x12), queues(5));
        all
    }

    fn request(number: u64, is_signaled: bool) -> Request {
        Request {
            wr_id: number,
            kind: Kind::Nothing,
            is_signaled,
            is_fenced: false,
            pieces: Regions::default().pieces(0, 0, 0, false),
            remote: None,
            ah: 0,
            tail: Tail::default(),
            site: number as usize,
            number,
        }
    }

    fn wc(wr_id: u64, status: u32) -> ibv_wc {
        ibv_wc { wr_id, status, qp_num: 0x11, ..ibv_wc::default() }
    }

    #[test]
    fn a_completion_frees_its_slot_and_those_before_it() {
        let mut all = outstanding(8);
        for n in 0..6 {
            assert!(all.post(Place::Send(QP), request(n, n % 3 == 2)).is_none());
        }
        assert_eq!((all.expected(5), all.count), (2, 6));
        all.complete(1, 5, &wc(2, wc_status::SUCCESS), 0);
        assert_eq!((all.pairs[&QP].sends.len(), all.count), (3, 3));
        // One that the program was told of already, or of another queue pair's, frees nothing.
        all.complete(1, 5, &wc(2, wc_status::SUCCESS), 0);
        all.complete(2, 5, &wc(5, wc_status::SUCCESS), 0);
        assert_eq!(all.count, 3);
        // A failed one may be unsignaled; then nothing is live.
        all.complete(1, 5, &wc(3, wc_status::WR_FLUSH_ERR), 0);
        assert_eq!((all.count, all.live().count()), (2, 0));
        all.end(QP);
        assert_eq!(all.count, 0);
    }

    #[test]
    fn what_was_not_posted_is_taken_back() {
        let mut all = outstanding(8);
        for n in 0..4 {
            all.post(Place::Send(QP), request(n, true));
        }
        all.take_back(Place::Send(QP), 1, 3);
        let left: Vec<u64> = all.pairs[&QP].sends.iter().map(|r| r.number).collect();
        assert_eq!((left, all.count), (vec![0, 3], 2));
    }

    #[test]
    fn a_nic_like_rxe_frees_unsignaled_requests_up_to_a_signaled_one() {
        let mut all = outstanding(3);
        for n in 0..3 {
            all.post(Place::Send(QP), request(n, n == 1));
        }
        all.free_unsignaled(QP);
        assert_eq!((all.pairs[&QP].sends.len(), all.count), (2, 2));
        all.post(Place::Send(QP), request(3, false));
        all.free_unsignaled(QP);
        assert_eq!(all.pairs[&QP].sends.len(), 3);
    }

    #[test]
    fn writes_of_two_queue_pairs_and_writes_behind_a_read_are_conflicts() {
        let remote = |is_written| Some(Remote { rkey: 7, addr: 100, len: 10, is_written });
        let write = |number| Request { remote: remote(true), ..request(number, true) };
        let mut all = outstanding(8);
        assert!(all.post(Place::Send(QP), write(1)).is_none());
        assert!(all.post(Place::Send(QP), write(2)).is_none(), "in order on one queue pair");
        let found = all.post(Place::Send((1, 0x12)), write(3)).unwrap();
        assert_eq!((found.rule, found.site), (Rule::RemoteOverlap, 3));
        let mut all = outstanding(8);
        let read = Request { kind: Kind::Fetches, remote: remote(false), ..request(1, true) };
        all.post(Place::Send(QP), read);
        let fenced = Request { is_fenced: true, ..write(2) };
        assert!(all.post(Place::Send(QP), fenced).is_none());
        let found = all.post(Place::Send(QP), write(3)).unwrap();
        assert_eq!((found.rule, found.noticed), (Rule::MissingFence, Some(1)));
        // Another peer's memory is another place.
        let mut all = outstanding(8);
        all.pairs.get_mut(&QP).unwrap().peer = [2; 16];
        all.post(Place::Send(QP), write(1));
        assert!(all.post(Place::Send((1, 0x12)), write(2)).is_none());
    }
}
