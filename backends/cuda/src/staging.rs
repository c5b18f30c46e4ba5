//! GPU memory for the soft device: copies in chunks through pinned host memory, in parallel with
//! the transfer.
//!
//! Two pools of pinned chunks and, for each GPU, two own streams:
//!
//! * **out** (`fetch`): the first packet of a message starts the copies of its chunk and of some
//!   behind it. While one chunk is sent, the next are copied. A chunk belongs to one message
//!   ([`TransferId::id`]) and is read ahead only to the end of that message. So bytes that the
//!   program changes before its next request are read again.
//! * **in** (`place`): adjacent packets gather in a chunk; the copy starts when the chunk is full,
//!   when another packet comes, or when the engine polls whether the bytes have landed. The engine
//!   does so before it acknowledges them.
//!
//! A fetch waits, on the GPU, for the placements before it. Placements land in the order of the
//! calls; if a message crosses GPUs, `poll` keeps that order. Within one chunk the copy engine
//! chooses the order of bytes. So a GPU program must not poll the last byte of a WRITE, but a flag
//! that a later message writes.
//!
//! 8-byte atomics are atomic among the operations of this device only, because the copy engine has
//! none.
//!
//! Before each copy the allocation's id is compared with that of the registration: memory that was
//! freed, or freed and allocated again, is a fault of that operation. A lost context (an error that
//! CUDA calls sticky) is a fault of every operation on that GPU, for good.

mod atomics;
mod outward;
mod streams;

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::device::Device;
use crate::failure::Failure;
use crate::span::{buffer_id, Span};
use crate::view::View;
use atomics::Atomic;
use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId};
use outward::Outward;
use streams::{Asked, Streams};

/// Bytes of a chunk: some 10 µs of a PCIe link, many packets.
pub const CHUNK: usize = 128 << 10;
/// Chunks in each direction.
pub const CHUNKS: usize = 32;
/// Most atomics in progress.
const ATOMICS: usize = 16;
/// Distance of two atomics in bytes, so that they share no cache line.
const ATOMIC_STRIDE: usize = 64;
/// With a mapped view, accesses up to this size use it.
const SMALL: usize = 4096;
/// Failed placements that may still be polled.
const FAILURES: usize = 64;

/// Pinned bytes of one [`Staging`].
pub const PINNED: usize = 2 * CHUNKS * CHUNK + ATOMICS * ATOMIC_STRIDE;

/// Kinds of tokens, in the top bits.
const OUT: u64 = 1 << 62;
const ATOMIC: u64 = 2 << 62;
const KIND: u64 = 3 << 62;

/// A registration.
struct Registration {
    generation: u32,
    /// The GPU whose streams copy the region, in `gpus`; `None`: free.
    gpu: Option<u8>,
    /// The region's memory is gone.
    dead: bool,
    at: u64,
    length: u64,
    base: u64,
    buffer_id: u64,
    view: Option<View>,
}

/// A region found, for one access.
#[derive(Clone, Copy)]
struct Whose {
    region: usize,
    gpu: u8,
    cookie: u64,
}

/// A chunk that is copied into a GPU.
#[derive(Clone, Copy)]
struct Inward {
    cookie: u64,
    gpu: u8,
    addr: u64,
    len: usize,
    state: Placing,
}

#[derive(Clone, Copy, PartialEq)]
enum Placing {
    /// Takes further adjacent bytes; only the newest chunk can be open.
    Open,
    Issued,
    Failed,
}

struct State {
    /// Pinned memory: chunks out, chunks in, atomics.
    pinned: *mut u8,
    owner: &'static Device,
    gpus: Vec<Streams>,
    regions: Vec<Registration>,
    out: Outward,
    inward: [Inward; CHUNKS],
    /// Placements by number: all before `head` have ended, all before `next` have begun. A
    /// placement's chunk is its number modulo the number of chunks.
    head: u64,
    next: u64,
    failed: [u64; FAILURES],
    failures: u64,
    atomics: [Atomic; ATOMICS],
}

// SAFETY: the pinned memory and the streams belong to the state, and any thread may use the
// driver's objects.
unsafe impl Send for State {}

/// The memory of a soft device's GPU regions. One for each device.
///
/// # Thread-safety
/// Any thread. The calls of a device's engines run one at a time. A registration and these calls
/// wait for each other.
///
/// # Cost
/// [`PINNED`] bytes of pinned memory; 80 events and two streams for each GPU that is used. A call
/// of the engine allocates nothing and never waits for the GPU.
pub struct Staging {
    state: Mutex<State>,
}

impl Staging {
    /// Pins the chunks.
    ///
    /// # Errors
    /// No memory; the context cannot be used.
    pub fn new(device: &'static Device) -> Result<Staging, Failure> {
        let pinned = streams::pin(device, PINNED)?;
        let idle = Inward { cookie: 0, gpu: 0, addr: 0, len: 0, state: Placing::Failed };
        let state = State {
            pinned,
            owner: device,
            gpus: Vec::new(),
            regions: Vec::new(),
            out: Outward::new(),
            inward: [idle; CHUNKS],
            head: 1,
            next: 1,
            failed: [0; FAILURES],
            failures: 0,
            atomics: [Atomic::NONE; ATOMICS],
        };
        Ok(Staging { state: Mutex::new(state) })
    }

    /// Adds a range of GPU memory. Returns the cookie for the engine's registration, whose
    /// addresses are the GPU's.
    ///
    /// # Errors
    /// The first region of a GPU: no streams or events.
    pub fn register(&self, span: &Span) -> Result<u64, Failure> {
        let view = View::map(span);
        let mut s = self.lock();
        let gpu = s.streams_of(span.device)?;
        let i = match s.regions.iter().position(|r| r.gpu.is_none()) {
            Some(i) => i,
            None => {
                s.regions.push(Registration {
                    generation: 0,
                    gpu: None,
                    dead: false,
                    at: 0,
                    length: 0,
                    base: 0,
                    buffer_id: 0,
                    view: None,
                });
                s.regions.len() - 1
            }
        };
        let generation = s.regions[i].generation.wrapping_add(1);
        s.regions[i] = Registration {
            generation,
            gpu: Some(gpu as u8),
            dead: false,
            at: span.at,
            length: span.length,
            base: span.base,
            buffer_id: span.buffer_id,
            view,
        };
        Ok(u64::from(generation) << 32 | i as u64)
    }

    /// Makes the streams and events of a GPU, before its first region.
    ///
    /// # Errors
    /// There are none.
    pub fn prepare(&self, device: &'static Device) -> Result<(), Failure> {
        self.lock().streams_of(device).map(drop)
    }

    /// Removes a range, after the engine has. Waits for copies in progress. A stale cookie is
    /// ignored.
    pub fn release(&self, cookie: u64) {
        let mut s = self.lock();
        let Some((i, gpu)) = s.region(cookie).and_then(|i| Some((i, s.regions[i].gpu?))) else {
            return;
        };
        s.flush();
        s.gpus[gpu as usize].settle();
        s.reap();
        s.out.forget(cookie);
        s.forget_atomics(cookie);
        s.regions[i].gpu = None;
        s.regions[i].view = None;
    }

    /// Whether small accesses to a range use a mapped view.
    pub fn has_view(&self, cookie: u64) -> bool {
        let s = self.lock();
        s.region(cookie).is_some_and(|i| s.regions[i].view.is_some())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        let s = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        for gpu in &s.gpus {
            gpu.settle();
        }
        s.gpus.clear();
        streams::unpin(s.owner, s.pinned);
    }
}

impl Memory for Staging {
    fn fetch(&self, cookie: u64, addr: u64, dst: &mut [u8], of: TransferId) -> Access {
        let mut s = self.lock();
        let Some(whose) = s.usable(cookie, addr, dst.len()) else { return Access::Fault };
        if dst.len() <= SMALL {
            if let Some(done) = s.through_view(&whose, addr, |v, at| v.fetch(at, dst)) {
                return done;
            }
        }
        s.fetch(&whose, addr, dst, TransferId { id: of.id, left: of.left.max(dst.len() as u32) })
    }

    fn ahead(&self, cookie: u64, addr: u64, of: TransferId) {
        let mut s = self.lock();
        if let Some(whose) = s.usable(cookie, addr, 1) {
            s.ahead(&whose, addr, of);
        }
    }

    fn place(&self, cookie: u64, addr: u64, src: &[u8]) -> Access {
        let mut s = self.lock();
        let Some(whose) = s.usable(cookie, addr, src.len()) else { return Access::Fault };
        if src.len() <= SMALL {
            if let Some(done) = s.through_view(&whose, addr, |v, at| v.place(at, src)) {
                return done;
            }
        }
        s.place(&whose, addr, src)
    }

    fn poll(&self, token: Token) -> Access {
        self.lock().poll(token)
    }

    fn atomic(&self, cookie: u64, addr: u64, op: AtomicOp, of: TransferId) -> Result<u64, Access> {
        let mut s = self.lock();
        let whose = s.usable(cookie, addr, 8).ok_or(Access::Fault)?;
        s.atomic(&whose, addr, op, of.id)
    }
}

impl State {
    /// The number of a GPU in `gpus`.
    fn streams_of(&mut self, device: &'static Device) -> Result<usize, Failure> {
        if let Some(i) = self.gpus.iter().position(|l| l.device.ordinal == device.ordinal) {
            return Ok(i);
        }
        self.gpus.push(Streams::new(device)?);
        Ok(self.gpus.len() - 1)
    }

    fn region(&self, cookie: u64) -> Option<usize> {
        let i = cookie as u32 as usize;
        self.regions
            .get(i)
            .filter(|r| r.gpu.is_some() && r.generation == (cookie >> 32) as u32)
            .map(|_| i)
    }

    /// A region in which this range can be accessed.
    fn usable(&self, cookie: u64, addr: u64, len: usize) -> Option<Whose> {
        let region = self.region(cookie)?;
        let r = &self.regions[region];
        let gpu = r.gpu?;
        let off = addr.checked_sub(r.at)?;
        let inside = off <= r.length && len as u64 <= r.length - off;
        (inside && !r.dead && !self.gpus[gpu as usize].lost).then_some(Whose {
            region,
            gpu,
            cookie,
        })
    }

    /// Whether a region's memory is still the registered allocation; if not, the region is dead
    /// from here on.
    fn check_alive(&mut self, i: usize) -> bool {
        let r = &mut self.regions[i];
        let Some(gpu) = r.gpu else { return false };
        let same = buffer_id(self.gpus[gpu as usize].device, r.base) == Some(r.buffer_id);
        r.dead |= !same;
        same
    }

    /// An access by the CPU, if there is a view and no copy into a GPU is in progress.
    fn through_view(
        &mut self,
        whose: &Whose,
        addr: u64,
        access: impl FnOnce(&View, u64) -> Result<(), gdrcore_core::mem::host::Fault>,
    ) -> Option<Access> {
        self.regions[whose.region].view.as_ref()?;
        self.reap();
        if self.head != self.next {
            return None;
        }
        if !self.check_alive(whose.region) {
            return Some(Access::Fault);
        }
        let r = &self.regions[whose.region];
        let view = r.view.as_ref()?;
        Some(match access(view, addr - r.at) {
            Ok(()) => Access::Ready,
            Err(_) => Access::Fault,
        })
    }

    fn inward_at(&self, seq: u64) -> usize {
        (seq % CHUNKS as u64) as usize
    }

    /// The pinned bytes of a chunk that is copied in.
    fn inward_bytes(&self, seq: u64) -> *mut u8 {
        // SAFETY: within the pinned memory: the chunks in follow the chunks out.
        unsafe { self.pinned.add((CHUNKS + self.inward_at(seq)) * CHUNK) }
    }

    /// Copies bytes into chunks for the GPU.
    fn place(&mut self, whose: &Whose, addr: u64, src: &[u8]) -> Access {
        let &Whose { gpu, cookie, .. } = whose;
        if src.len() > self.room(cookie, addr) {
            self.flush();
            self.reap();
            if src.len() > self.room(cookie, addr) {
                return Access::Busy;
            }
        }
        let mut done = 0;
        while done < src.len() {
            let at = addr + done as u64;
            let seq = match self.open() {
                Some(seq) if self.continues(seq, cookie, at) => seq,
                _ => {
                    self.flush();
                    let seq = self.next;
                    self.next += 1;
                    let i = self.inward_at(seq);
                    self.inward[i] = Inward { cookie, gpu, addr: at, len: 0, state: Placing::Open };
                    seq
                }
            };
            let i = self.inward_at(seq);
            let n = (CHUNK - self.inward[i].len).min(src.len() - done);
            // SAFETY: `len + n` stays within the chunk.
            let to = unsafe { self.inward_bytes(seq).add(self.inward[i].len) };
            // SAFETY: the chunk is ours (open, not passed to the GPU), and no caller's slice lies
            // in it.
            unsafe { core::ptr::copy_nonoverlapping(src[done..].as_ptr(), to, n) };
            self.inward[i].len += n;
            done += n;
            if self.inward[i].len == CHUNK {
                self.flush();
            }
        }
        Access::Pending(Token(self.next - 1))
    }

    /// Bytes that can be placed from `addr` on. Placements that have ended free their room at the
    /// next [`State::reap`].
    fn room(&self, cookie: u64, addr: u64) -> usize {
        let free = CHUNKS - (self.next - self.head) as usize;
        let open = self.open().map(|seq| self.inward[self.inward_at(seq)]);
        let appends =
            open.filter(|c| c.cookie == cookie && c.addr.wrapping_add(c.len as u64) == addr);
        appends.map_or(0, |c| CHUNK - c.len) + free * CHUNK
    }

    /// The newest placement, if it still takes bytes.
    fn open(&self) -> Option<u64> {
        (self.next > self.head)
            .then(|| self.next - 1)
            .filter(|&seq| self.inward[self.inward_at(seq)].state == Placing::Open)
    }

    fn continues(&self, seq: u64, cookie: u64, addr: u64) -> bool {
        let c = &self.inward[self.inward_at(seq)];
        c.cookie == cookie && c.addr.wrapping_add(c.len as u64) == addr && c.len < CHUNK
    }

    /// Hands the open chunk to the GPU.
    fn flush(&mut self) {
        let Some(seq) = self.open() else { return };
        let i = self.inward_at(seq);
        let c = self.inward[i];
        let alive = self.region(c.cookie).is_some_and(|r| self.check_alive(r));
        let from = self.inward_bytes(seq);
        let gpu = &mut self.gpus[c.gpu as usize];
        let issued = alive && gpu.copy_in(i, seq, c.addr, from, c.len).is_ok();
        self.inward[i].state = if issued { Placing::Issued } else { Placing::Failed };
    }

    /// Ends placements whose copies have ended, in order. It costs a call of the driver. So only a
    /// poll does it, and a placement that finds no room, but not every packet.
    fn reap(&mut self) {
        while self.head < self.next {
            let i = self.inward_at(self.head);
            let c = self.inward[i];
            let failed = match c.state {
                Placing::Open => return,
                Placing::Failed => true,
                Placing::Issued => match self.gpus[c.gpu as usize].asked_in(i, self.head) {
                    Asked::NotYet => return,
                    Asked::Done => false,
                    Asked::Lost => true,
                },
            };
            if failed {
                if let Some(r) = self.region(c.cookie) {
                    self.regions[r].dead = true;
                }
                self.failed[(self.failures % FAILURES as u64) as usize] = self.head;
                self.failures += 1;
            }
            self.head += 1;
        }
    }

    fn has_failed(&self, seq: u64) -> bool {
        let kept = self.failures.min(FAILURES as u64) as usize;
        // There were more failures than are kept, so a placement older than all of them may have
        // failed.
        let forgotten = self.failures > FAILURES as u64 && self.failed.iter().all(|&f| f > seq);
        forgotten || self.failed[..kept].contains(&seq)
    }

    fn poll(&mut self, token: Token) -> Access {
        let (serial, i) = ((token.0 >> 8) as u32, (token.0 & 0xff) as usize);
        match token.0 & KIND {
            OUT => self.poll_out(serial, i, token),
            ATOMIC => self.poll_atomic(serial, i, token),
            _ => self.poll_in(token.0, token),
        }
    }

    fn poll_in(&mut self, seq: u64, token: Token) -> Access {
        if self.open() == Some(seq) {
            self.flush();
        }
        self.reap();
        if seq >= self.head {
            Access::Pending(token)
        } else if self.has_failed(seq) {
            Access::Fault
        } else {
            Access::Ready
        }
    }
}
