//! Slow memory, as on a GPU: accesses are staged, complete later and in order, and sometimes find
//! no room.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::Mutex;

use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId};

use gdrcore_testkit::rng::Rng;

/// Most accesses under way.
const PLACES: usize = 32;
/// Largest placement: one packet's, or one loopback run's.
const STAGE: usize = 72 << 10;

#[derive(Clone, Copy, PartialEq)]
enum Op {
    /// A placement of so many bytes.
    Place(usize),
    /// A fetch of so many bytes.
    Fetch(usize),
    Atomic(AtomicOp),
}

struct Job {
    token: u64,
    addr: u64,
    op: Op,
    ready_ns: u64,
    /// An atomic's result, when it was executed.
    result: Option<u64>,
}

struct State {
    rng: Rng,
    /// Accesses under way, in order.
    jobs: Vec<Job>,
    /// Data of placements, `STAGE` bytes each. Empty until memory is registered here.
    stage: Vec<u8>,
    head: usize,
    len: usize,
    next_token: u64,
    /// All accesses before this token have completed.
    done: u64,
    delay_ns: u64,
    busy: u32,
    /// Fetches and atomics that have completed: the next equal call gets the result.
    granted: Vec<(u64, Op, u64)>,
}

/// One slow memory. Its bytes are in ordinary memory at the given addresses.
pub struct Slow {
    state: Mutex<State>,
    now: AtomicU64,
}

impl Slow {
    /// Accesses take up to `delay_ns`; `busy` in a million find no room.
    pub fn new(seed: u64, delay_ns: u64, busy: u32) -> Slow {
        let job = || Job { token: 0, addr: 0, op: Op::Fetch(0), ready_ns: 0, result: None };
        let state = State {
            rng: Rng::new(seed),
            jobs: (0..PLACES).map(|_| job()).collect(),
            stage: Vec::new(),
            head: 0,
            len: 0,
            next_token: 1,
            done: 1,
            delay_ns,
            busy,
            granted: Vec::with_capacity(4 * PLACES),
        };
        Slow { state: Mutex::new(state), now: AtomicU64::new(0) }
    }

    /// Allocates the staging memory, before the first registration.
    pub fn prepare(&self) {
        self.with(|s, _| s.stage.resize(PLACES * STAGE, 0));
    }

    /// The longest time of an access.
    pub fn delay_ns(&self) -> u64 {
        self.with(|s, _| s.delay_ns)
    }

    /// Sets the time.
    pub fn set_now(&self, now: u64) {
        self.now.store(now, Ordering::Relaxed);
    }

    /// Forgets results for this range: its QP is gone, and does not call again.
    pub fn forget(&self, addr: u64, len: usize) {
        self.with(|s, _| s.granted.retain(|g| g.0 < addr || g.0 >= addr + len as u64));
    }

    /// Completes all accesses at once.
    pub fn flush(&self) {
        self.with(|s, _| s.run(u64::MAX));
    }

    fn with<T>(&self, f: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = self.state.lock().expect("one thread");
        f(&mut state, self.now.load(Ordering::Relaxed))
    }
}

impl State {
    fn push(&mut self, now: u64, addr: u64, op: Op, src: &[u8]) -> Access {
        if self.len == PLACES
            || src.len() > STAGE
            || self.stage.is_empty()
            || self.rng.chance(self.busy)
        {
            return Access::Busy;
        }
        let last =
            if self.len == 0 { 0 } else { self.jobs[(self.head + self.len - 1) % PLACES].ready_ns };
        let delay = self.rng.below(self.delay_ns);
        let at = (self.head + self.len) % PLACES;
        let job = &mut self.jobs[at];
        job.token = self.next_token;
        job.addr = addr;
        job.op = op;
        job.ready_ns = (now + delay).max(last);
        job.result = None;
        self.stage[at * STAGE..][..src.len()].copy_from_slice(src);
        self.next_token += 1;
        self.len += 1;
        Access::Pending(Token(self.next_token - 1))
    }

    /// Completes the accesses that are due.
    fn run(&mut self, now: u64) {
        while self.len > 0 && self.jobs[self.head].ready_ns <= now {
            let job = &mut self.jobs[self.head];
            match job.op {
                // SAFETY: the engine checked the range against the registered memory, which
                // outlives the world.
                Op::Place(len) => unsafe {
                    let from = &self.stage[self.head * STAGE..][..len];
                    std::ptr::copy_nonoverlapping(from.as_ptr(), job.addr as *mut u8, len);
                },
                Op::Fetch(_) => {}
                Op::Atomic(op) => {
                    let p = job.addr as *mut u64;
                    // SAFETY: as above, and aligned.
                    let old = unsafe { p.read() };
                    let new = match op {
                        AtomicOp::CmpSwap { compare, swap } if old == compare => swap,
                        AtomicOp::CmpSwap { .. } => old,
                        AtomicOp::FetchAdd(add) => old.wrapping_add(add),
                        AtomicOp::Store(value) => value,
                    };
                    // SAFETY: as above.
                    unsafe { p.write(new) };
                    job.result = Some(old);
                }
            }
            let (addr, op, result) = (job.addr, job.op, job.result.unwrap_or(0));
            if !matches!(op, Op::Place(_)) {
                if self.granted.len() == self.granted.capacity() {
                    // The oldest fetch was not collected, so its bytes are read anew. An atomic's
                    // result is kept.
                    let Some(i) = self.granted.iter().position(|g| matches!(g.1, Op::Fetch(_)))
                    else {
                        return;
                    };
                    self.granted.remove(i);
                }
                self.granted.push((addr, op, result));
            }
            self.done = job.token + 1;
            self.head = (self.head + 1) % PLACES;
            self.len -= 1;
        }
    }

    /// The result of a call that has completed, or one that is still under way.
    fn earlier(&mut self, addr: u64, op: Op) -> Option<Result<u64, Access>> {
        if let Some(i) = self.granted.iter().position(|g| (g.0, g.1) == (addr, op)) {
            return Some(Ok(self.granted.remove(i).2));
        }
        (0..self.len)
            .map(|k| &self.jobs[(self.head + k) % PLACES])
            .find(|j| j.addr == addr && j.op == op)
            .map(|j| Err(Access::Pending(Token(j.token))))
    }
}

impl Memory for Slow {
    fn fetch(&self, _cookie: u64, addr: u64, dst: &mut [u8], _: TransferId) -> Access {
        self.with(|s, now| {
            s.run(now);
            let op = Op::Fetch(dst.len());
            match s.earlier(addr, op) {
                Some(Ok(_)) => {}
                Some(Err(pending)) => return pending,
                // Sometimes a fetch completes at once, if no access under way could change its
                // bytes.
                None if s.len == 0 && s.rng.coin() => {}
                None => return s.push(now, addr, op, &[]),
            }
            // SAFETY: the engine checked the range against the registered memory.
            unsafe {
                std::ptr::copy_nonoverlapping(addr as *const u8, dst.as_mut_ptr(), dst.len())
            };
            Access::Ready
        })
    }

    fn place(&self, _cookie: u64, addr: u64, src: &[u8]) -> Access {
        self.with(|s, now| {
            s.run(now);
            if s.len == 0 && s.rng.below(4) == 0 {
                // SAFETY: as in `fetch`.
                unsafe { std::ptr::copy_nonoverlapping(src.as_ptr(), addr as *mut u8, src.len()) };
                return Access::Ready;
            }
            s.push(now, addr, Op::Place(src.len()), src)
        })
    }

    fn poll(&self, token: Token) -> Access {
        self.with(|s, now| {
            s.run(now);
            if token.0 < s.done {
                Access::Ready
            } else {
                Access::Pending(token)
            }
        })
    }

    fn atomic(&self, _cookie: u64, addr: u64, op: AtomicOp, _: TransferId) -> Result<u64, Access> {
        self.with(|s, now| {
            s.run(now);
            match s.earlier(addr, Op::Atomic(op)) {
                Some(answer) => answer,
                None => Err(s.push(now, addr, Op::Atomic(op), &[])),
            }
        })
    }
}
