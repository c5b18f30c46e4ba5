//! Chunks that are copied out of a GPU: the bytes that messages send next.

use super::streams::Asked;
use super::{State, Whose, CHUNK, CHUNKS, OUT};
use gdrcore_core::mem::{Access, Token, TransferId};

/// Most bytes that are read ahead at a time: more would delay copies that a packet waits for.
const READ_AHEAD: usize = 4 * CHUNK;
/// A chunk that no packet used is reused after this time, because its queue pair waits for a
/// window, or has ended.
const IDLE_NS: u64 = 10_000_000;
/// Age up to which a copy is sent: a message's id may be used again later.
const STALE_NS: u64 = 500_000_000;

#[derive(Clone, Copy, PartialEq)]
enum Holds {
    Nothing,
    Loading,
    Loaded,
    /// The whole chunk was sent. It stays for a retransmission until the entry is needed.
    Sent,
}

#[derive(Clone, Copy)]
struct Chunk {
    holds: Holds,
    serial: u32,
    of: u64,
    cookie: u64,
    gpu: u8,
    /// The copy's number on the GPU.
    copy: u64,
    addr: u64,
    len: usize,
    /// Start of the copy, and last use by a packet.
    since_ns: u64,
    used_ns: u64,
}

impl Chunk {
    fn end(&self) -> u64 {
        self.addr.wrapping_add(self.len as u64)
    }
}

pub(super) struct Outward {
    chunks: [Chunk; CHUNKS],
    /// Where the last search ended: the next packet is most often found there.
    hint: usize,
}

fn now_ns() -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a writable place.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

impl Outward {
    pub(super) fn new() -> Outward {
        let nothing = Chunk {
            holds: Holds::Nothing,
            serial: 0,
            of: 0,
            cookie: 0,
            gpu: 0,
            copy: 0,
            addr: 0,
            len: 0,
            since_ns: 0,
            used_ns: 0,
        };
        Outward { chunks: [nothing; CHUNKS], hint: 0 }
    }

    /// Drops all copies of a region. Copies in progress end unused.
    pub(super) fn forget(&mut self, cookie: u64) {
        for c in self.chunks.iter_mut().filter(|c| c.cookie == cookie) {
            // An entry whose copy is in progress may not be reused before its end.
            if c.holds != Holds::Loading {
                c.holds = Holds::Nothing;
            }
            c.of = u64::MAX;
        }
    }

    /// Bytes in progress.
    fn loading(&self) -> usize {
        self.chunks.iter().filter(|c| c.holds == Holds::Loading).map(|c| c.len).sum()
    }

    fn find(&mut self, of: u64, cookie: u64, at: u64, now: u64) -> Option<usize> {
        let fits = |c: &Chunk| {
            c.holds != Holds::Nothing
                && (c.of, c.cookie) == (of, cookie)
                && at >= c.addr
                && at < c.end()
                && now.saturating_sub(c.since_ns) < STALE_NS
        };
        if fits(&self.chunks[self.hint]) {
            return Some(self.hint);
        }
        self.hint = self.chunks.iter().position(fits)?;
        Some(self.hint)
    }

    /// An entry for another chunk; `urgent`: a packet waits for the chunk; otherwise it is read
    /// ahead.
    fn place_for(&self, now: u64, urgent: bool) -> Option<usize> {
        let oldest = |holds: Holds| {
            (0..CHUNKS)
                .filter(|&i| self.chunks[i].holds == holds)
                .min_by_key(|&i| self.chunks[i].used_ns)
        };
        let given_up = |i: &usize| urgent && now.saturating_sub(self.chunks[*i].used_ns) > IDLE_NS;
        oldest(Holds::Nothing)
            .or_else(|| oldest(Holds::Sent))
            .or_else(|| oldest(Holds::Loaded).filter(given_up))
    }
}

impl State {
    fn outward_bytes(&self, i: usize) -> *mut u8 {
        // SAFETY: within the pinned memory, which begins with the chunks out.
        unsafe { self.pinned.add(i * CHUNK) }
    }

    /// Checks whether a chunk's copy has ended.
    fn settle_out(&mut self, i: usize) -> Asked {
        let c = self.out.chunks[i];
        if c.holds != Holds::Loading {
            return Asked::Done;
        }
        let asked = self.gpus[c.gpu as usize].asked_out(i, c.copy);
        if asked != Asked::NotYet {
            let kept = asked == Asked::Done && c.of != u64::MAX;
            self.out.chunks[i].holds = if kept { Holds::Loaded } else { Holds::Nothing };
        }
        asked
    }

    fn settle_all_out(&mut self) {
        for i in 0..CHUNKS {
            self.settle_out(i);
        }
    }

    /// Starts the copy of up to a chunk of a message's bytes from `at` on.
    fn load(
        &mut self,
        whose: &Whose,
        at: u64,
        of: TransferId,
        now: u64,
        urgent: bool,
    ) -> Result<usize, Access> {
        let &Whose { region, gpu, cookie } = whose;
        let r = &self.regions[region];
        let left = (r.at + r.length - at).min(u64::from(of.left)).min(CHUNK as u64) as usize;
        let Some(i) = self.out.place_for(now, urgent) else {
            // Notes the end of copies that no packet waits for any more.
            self.settle_all_out();
            return Err(Access::Busy);
        };
        // The copy must see the bytes of earlier placements. The GPU need not wait for placements
        // that have ended.
        self.flush();
        self.reap();
        if !self.check_alive(region) {
            return Err(Access::Fault);
        }
        let to = self.outward_bytes(i);
        let Ok(copy) = self.gpus[gpu as usize].load(i, to, at, left, self.head) else {
            self.regions[region].dead = true;
            return Err(Access::Fault);
        };
        let serial = self.out.chunks[i].serial.wrapping_add(1) & 0x3f_ffff;
        self.out.chunks[i] = Chunk {
            holds: Holds::Loading,
            serial,
            of: of.id,
            cookie,
            gpu,
            copy,
            addr: at,
            len: left,
            since_ns: now,
            used_ns: now,
        };
        Ok(i)
    }

    /// Copies the bytes that are here into `dst`, or starts the copy of those that are missing.
    pub(super) fn fetch(
        &mut self,
        whose: &Whose,
        addr: u64,
        dst: &mut [u8],
        of: TransferId,
    ) -> Access {
        let cookie = whose.cookie;
        let now = now_ns();
        let (mut done, mut wait, mut last, mut begins) = (0, None, addr, false);
        while done < dst.len() {
            let at = addr + done as u64;
            let rest = TransferId { id: of.id, left: of.left.saturating_sub(done as u32) };
            let i = match self.out.find(of.id, cookie, at, now) {
                Some(i) => i,
                None => match self.load(whose, at, rest, now, true) {
                    Ok(i) => i,
                    // The copies in progress make room once their chunks are sent.
                    Err(Access::Busy) if wait.is_some() => break,
                    Err(other) => return other,
                },
            };
            match self.settle_out(i) {
                Asked::NotYet => wait = Some(i),
                Asked::Lost => return Access::Fault,
                Asked::Done => {}
            }
            let c = &mut self.out.chunks[i];
            c.used_ns = now;
            let into = (at - c.addr) as usize;
            begins |= into == 0;
            let n = (c.len - into).min(dst.len() - done);
            if wait.is_none() {
                if into + n == c.len {
                    c.holds = Holds::Sent;
                }
                // SAFETY: within the chunk, whose copy has ended.
                let from = unsafe { self.outward_bytes(i).add(into) };
                // SAFETY: the chunk holds what follows, and is nobody's slice.
                unsafe { core::ptr::copy_nonoverlapping(from, dst[done..].as_mut_ptr(), n) };
            }
            done += n;
            last = self.out.chunks[i].end();
        }
        // The first packet of each chunk starts the copies of the chunks behind it.
        if begins {
            self.read_ahead(
                whose,
                last,
                TransferId { id: of.id, left: of.left.saturating_sub((last - addr) as u32) },
                now,
            );
        }
        match wait {
            Some(i) => {
                Access::Pending(Token(OUT | u64::from(self.out.chunks[i].serial) << 8 | i as u64))
            }
            None => Access::Ready,
        }
    }

    /// Starts the next chunks of a message, as many as may be in progress.
    fn read_ahead(&mut self, whose: &Whose, mut at: u64, mut of: TransferId, now: u64) {
        // Asks the driver which copies have ended only if those in progress leave no room.
        let mut asked = false;
        while of.left > 0 {
            let end = match self.out.find(of.id, whose.cookie, at, now) {
                Some(i) => self.out.chunks[i].end(),
                // An error here appears again when a packet waits for these bytes.
                None if self.usable(whose.cookie, at, 1).is_none() => return,
                None if self.out.loading() >= READ_AHEAD => {
                    if core::mem::replace(&mut asked, true) {
                        return;
                    }
                    self.settle_all_out();
                    continue;
                }
                None => match self.load(whose, at, of, now, false) {
                    Ok(i) => self.out.chunks[i].end(),
                    Err(_) => return,
                },
            };
            of.left = of.left.saturating_sub((end - at) as u32);
            at = end;
        }
    }

    /// Starts the copies that will be needed soon.
    pub(super) fn ahead(&mut self, whose: &Whose, addr: u64, of: TransferId) {
        self.read_ahead(whose, addr, of, now_ns());
    }

    pub(super) fn poll_out(&mut self, serial: u32, i: usize, token: Token) -> Access {
        if self.out.chunks.get(i).is_none_or(|c| c.serial != serial) {
            // The entry was reused: the next fetch starts again.
            return Access::Ready;
        }
        match self.settle_out(i) {
            Asked::NotYet => Access::Pending(token),
            Asked::Done => Access::Ready,
            Asked::Lost => Access::Fault,
        }
    }
}
