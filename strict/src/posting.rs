//! What a post changes: requests are kept before the call is made, since another thread may poll
//! their completions before it returns.

use crate::peek::whole_list;
use crate::queues::{QpKey, QueueKey};
use crate::report::Report;
use crate::requests::{Request, Sender};
use crate::rules::Rule;
use crate::sites::Site;
use crate::state::State;
use crate::Id;
use gdrcore_core::verbs::types::{wr_opcode, RecvWr, SendWr};

/// Requests of a call.
pub struct Posting {
    place: QueueKey,
    from: u64,
    to: u64,
    /// The addresses of the list's requests. None: the call posts all or nothing.
    list: Vec<usize>,
    /// Copies of the list's beginning, which are posted because the rest has no slots. The list
    /// itself stays as it is: other threads may post it, too.
    beginning: Vec<SendWr>,
}

impl Posting {
    /// The address of a request that is posted.
    fn address(&self, i: usize) -> usize {
        match self.beginning.get(i) {
            Some(copy) => copy as *const SendWr as usize,
            None => self.list[i],
        }
    }

    /// The list that is posted in place of the program's; `None`: that.
    pub fn list(&self) -> Option<*const SendWr> {
        self.beginning.first().map(|first| first as *const SendWr)
    }

    /// Whether some requests of the program's list are not posted, for want of slots.
    pub fn is_cut(&self) -> bool {
        !self.beginning.is_empty()
    }
}

/// What becomes of a post.
pub enum Posts {
    /// Its queue is not watched.
    Unwatched,
    /// There is no slot for any of its requests.
    Full,
    /// The call is made; [`State::posted`] follows.
    Kept(Posting),
}

/// Copies of requests, of which each leads to the next one, and the last to none.
fn linked(all: &[(usize, SendWr)]) -> Vec<SendWr> {
    let mut copies: Vec<SendWr> = all.iter().map(|(_, wr)| *wr).collect();
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
    /// Keeps send requests, up to the first that has no slot, whose index is returned.
    fn keep_sends<'a>(
        &mut self,
        key: QpKey,
        all: impl IntoIterator<Item = &'a SendWr>,
    ) -> Option<usize> {
        let frees_unsignaled = self.nic.is_some_and(|nic| nic.frees_unsignaled);
        let here = self.sites.here();
        for (i, wr) in all.into_iter().enumerate() {
            if frees_unsignaled {
                self.outstanding.free_unsignaled(key);
            }
            let queues = &self.outstanding.pairs[&key];
            if queues.sends.len() >= queues.slots && !queues.is_over {
                let (n, slots) = (key.1, queues.slots);
                let (rule, what) = match queues.sends.iter().any(|r| r.is_signaled) {
                    true if queues.may_fill => return Some(i),
                    true => (Rule::SendQueueFull, "until a completion is polled"),
                    false => (Rule::NeverSignaled, "by unsignaled requests, for ever"),
                };
                let words =
                    format!("QP {n:#x}: all {slots} slots of its send queue are taken {what}");
                self.add(Report { rule, words, site: here, noticed: None });
                return Some(i);
            }
            let ids = queues.send_cq.0;
            let (kind, signals_all) = (queues.kind, queues.signals_all);
            let from = Sender { device: key.0, ids, kind, signals_all };
            let request = Request::send(wr, &self.regions, from, (here, self.next));
            self.next += 1;
            self.judge_key(key, &request);
            self.note_keys(key, ids, wr, here);
            if let Some(report) = self.outstanding.post(QueueKey::Send(key), request) {
                self.add(report);
            }
        }
        self.room_of_cq(self.outstanding.pairs[&key].send_cq, here);
        None
    }

    /// Whether the peer of a queue pair is of this process, on the same device.
    fn is_peer_own(&self, key: QpKey) -> bool {
        let pairs = &self.outstanding.pairs;
        let peer = pairs.get(&key).filter(|q| q.peer == Some(q.own));
        peer.is_some_and(|q| pairs.contains_key(&(key.0, q.peer_qpn)))
    }

    /// Whether the remote key of a request has ended.
    fn judge_key(&mut self, key: QpKey, request: &Request) {
        let Some(remote) = request.remote.filter(|remote| remote.len > 0) else { return };
        let ended = self.keys.ended(key, self.is_peer_own(key), remote.rkey);
        if let Some(noticed) = ended {
            let (n, rkey) = (key.1, remote.rkey);
            let words = format!("QP {n:#x}: a request names rkey {rkey:#x}, which has ended");
            let (rule, site) = (Rule::RkeyEnded, request.site);
            self.add(Report { rule, words, site, noticed: Some(noticed) });
        }
    }

    /// A request may begin or end keys.
    fn note_keys(&mut self, key: QpKey, ids: usize, wr: &SendWr, here: Site) {
        if wr.opcode == wr_opcode::BIND_MW {
            // SAFETY: of this opcode this part of the union counts.
            let bind = unsafe { wr.ext.bind_mw };
            if let Some((_, rkey)) = self.objects.bound((ids, bind.mw), bind.rkey) {
                self.keys.begin(key.0, rkey);
            }
        }
        self.keys.posted(key, self.is_peer_own(key), wr, here);
    }

    fn room_of_cq(&mut self, cq: Id, here: Site) {
        let Some(room) = self.cqs.get(&cq).map(|cq| cq.room) else { return };
        let expected = self.outstanding.expected(cq);
        if expected > room {
            let words = format!(
                "CQ of {room} entries: {expected} requests will have a completion there, and none \
                 of them is polled"
            );
            self.add(Report { rule: Rule::CqOverrun, words, site: here, noticed: None });
            self.overrun.insert(cq);
        }
    }

    /// Before a list of send requests is posted.
    pub fn sends(&mut self, key: QpKey, list: usize) -> Posts {
        if !self.outstanding.is_watched(key) {
            return Posts::Unwatched;
        }
        let place = QueueKey::Send(key);
        let Some(all) = whole_list::<SendWr>(list) else {
            self.outstanding.stop_watching(place);
            return Posts::Unwatched;
        };
        let from = self.next;
        let full = self.keep_sends(key, all.iter().map(|(_, wr)| wr));
        if full == Some(0) {
            return Posts::Full;
        }
        let list = all.iter().map(|(at, _)| *at).collect();
        let beginning = full.map_or_else(Vec::new, |n| linked(&all[..n]));
        Posts::Kept(Posting { place, from, to: self.next, list, beginning })
    }

    /// Before send requests are posted of which the call posts all or none. Those that it cannot
    /// post are kept nevertheless, until [`State::posted`]. The second value: it must fail.
    pub fn sends_whole<'a>(
        &mut self,
        key: QpKey,
        all: impl IntoIterator<Item = &'a SendWr>,
    ) -> (Posts, bool) {
        if !self.outstanding.is_watched(key) {
            return (Posts::Unwatched, false);
        }
        let from = self.next;
        let is_full = self.keep_sends(key, all).is_some();
        let (place, to, list, beginning) = (QueueKey::Send(key), self.next, Vec::new(), Vec::new());
        (Posts::Kept(Posting { place, from, to, list, beginning }), is_full)
    }

    /// Before a list of receive requests is posted.
    pub fn recvs(&mut self, place: QueueKey, device: usize, list: usize) -> Posts {
        let Some(all) = whole_list::<RecvWr>(list) else {
            self.outstanding.stop_watching(place);
            return Posts::Unwatched;
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
        Posts::Kept(Posting { place, from, to: self.next, list, beginning: Vec::new() })
    }

    /// After a post: takes back what it has not posted. `bad`: the request at which it failed.
    /// Returns the first request of the program's list that was not posted, if that was cut.
    pub fn posted(&mut self, posting: &Posting, bad: Option<usize>) -> Option<usize> {
        let mut first_left = posting.beginning.len();
        if let Some(bad) = bad {
            let n = (posting.to - posting.from) as usize;
            let at = |i: &usize| posting.list.get(*i).is_some() && posting.address(*i) == bad;
            first_left = (0..n).find(at).unwrap_or(0);
            let from = posting.from + first_left as u64;
            self.outstanding.take_back(posting.place, from, posting.to);
        }
        // The program knows its own requests, not the copies.
        posting.is_cut().then(|| posting.list[first_left])
    }
}
