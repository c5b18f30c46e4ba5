//! 8-byte atomics: copied out, computed here, copied in, one after the other at each address.

use super::streams::Asked;
use super::{State, Whose, ATOMIC, ATOMICS, ATOMIC_STRIDE, CHUNK, CHUNKS};
use gdrcore_core::mem::{Access, AtomicOp, Token};

#[derive(Clone, Copy)]
pub(super) struct Atomic {
    serial: u32,
    of: u64,
    cookie: u64,
    /// The number of the copy out.
    copy: u64,
    addr: u64,
    op: AtomicOp,
    phase: Phase,
    old: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Free,
    Loading,
    Storing(u64),
    Done,
}

impl Atomic {
    pub(super) const NONE: Atomic = Atomic {
        serial: 0,
        of: 0,
        cookie: 0,
        copy: 0,
        addr: 0,
        op: AtomicOp::FetchAdd(0),
        phase: Phase::Free,
        old: 0,
    };
}

impl State {
    /// One step of an atomic: requested, loaded, stored, reported.
    pub(super) fn atomic(
        &mut self,
        whose: &Whose,
        addr: u64,
        op: AtomicOp,
        of: u64,
    ) -> Result<u64, Access> {
        let &Whose { gpu, cookie, .. } = whose;
        let same = |a: &Atomic| {
            a.phase != Phase::Free && (a.of, a.cookie, a.addr, a.op) == (of, cookie, addr, op)
        };
        let i = match self.atomics.iter().position(same) {
            Some(i) => i,
            None => return Err(self.begin_atomic(whose, addr, op, of)),
        };
        let token = Token(ATOMIC | u64::from(self.atomics[i].serial) << 8 | i as u64);
        if self.atomics[i].phase == Phase::Loading {
            let copy = self.atomics[i].copy;
            match self.gpus[gpu as usize].asked_atomic(i, copy) {
                Asked::NotYet => return Err(Access::Pending(token)),
                Asked::Lost => {
                    self.atomics[i].phase = Phase::Free;
                    return Err(Access::Fault);
                }
                Asked::Done => {}
            }
            // SAFETY: within the pinned memory, aligned to 64, and the copy into it has ended.
            let old = unsafe { self.atomic_bytes(i).cast::<u64>().read() };
            let new = match op {
                AtomicOp::CmpSwap { compare, swap } => (old == compare).then_some(swap),
                AtomicOp::FetchAdd(add) => Some(old.wrapping_add(add)),
                AtomicOp::Store(value) => Some(value),
            };
            self.atomics[i].phase = match new {
                None => Phase::Done,
                Some(new) => match self.place(whose, addr, &new.to_ne_bytes()) {
                    Access::Pending(t) => Phase::Storing(t.0),
                    other => return Err(other),
                },
            };
            self.atomics[i].old = old;
        }
        if let Phase::Storing(seq) = self.atomics[i].phase {
            match self.poll_in(seq, token) {
                Access::Ready => {}
                Access::Fault => {
                    self.atomics[i].phase = Phase::Free;
                    return Err(Access::Fault);
                }
                other => return Err(other),
            }
        }
        self.atomics[i].phase = Phase::Free;
        Ok(self.atomics[i].old)
    }

    fn atomic_bytes(&self, i: usize) -> *mut u8 {
        // SAFETY: within the pinned memory: the atomics follow the chunks.
        unsafe { self.pinned.add(2 * CHUNKS * CHUNK + i * ATOMIC_STRIDE) }
    }

    fn begin_atomic(&mut self, whose: &Whose, addr: u64, op: AtomicOp, of: u64) -> Access {
        let &Whose { region, gpu, cookie } = whose;
        // Atomics at one address run one after the other. An atomic whose requester no longer polls
        // belongs to a lost connection; its result is dropped when the entry is needed.
        let busy = |a: &Atomic| {
            matches!(a.phase, Phase::Loading | Phase::Storing(_))
                && (a.cookie, a.addr) == (cookie, addr)
        };
        if let Some(other) = self.atomics.iter().position(busy) {
            return self.finish_atomic(other);
        }
        let free = self.atomics.iter().position(|a| a.phase == Phase::Free);
        let Some(i) = free.or_else(|| self.atomics.iter().position(|a| a.phase == Phase::Done))
        else {
            for i in 0..ATOMICS {
                self.finish_atomic(i);
            }
            return Access::Busy;
        };
        self.flush();
        if !self.check_alive(region) {
            return Access::Fault;
        }
        let to = self.atomic_bytes(i);
        let Ok(copy) = self.gpus[gpu as usize].load_atomic(i, to, addr, self.head) else {
            self.regions[region].dead = true;
            return Access::Fault;
        };
        let serial = self.atomics[i].serial.wrapping_add(1) & 0x3f_ffff;
        let phase = Phase::Loading;
        self.atomics[i] = Atomic { serial, of, cookie, copy, addr, op, phase, old: 0 };
        Access::Pending(Token(ATOMIC | u64::from(serial) << 8 | i as u64))
    }

    /// Advances another atomic, so that an atomic whose requester no longer polls blocks no other.
    fn finish_atomic(&mut self, i: usize) -> Access {
        let a = self.atomics[i];
        if let Some(whose) = self.usable(a.cookie, a.addr, 8) {
            if let Ok(old) = self.atomic(&whose, a.addr, a.op, a.of) {
                // The atomic's requester may still poll for the result.
                self.atomics[i].phase = Phase::Done;
                self.atomics[i].old = old;
            }
        }
        Access::Busy
    }

    pub(super) fn poll_atomic(&mut self, serial: u32, i: usize, token: Token) -> Access {
        let Some(a) = self.atomics.get(i).copied().filter(|a| a.serial == serial) else {
            return Access::Ready;
        };
        let Some(Whose { gpu, .. }) = self.usable(a.cookie, a.addr, 8) else {
            return Access::Fault;
        };
        match a.phase {
            Phase::Free | Phase::Done => Access::Ready,
            Phase::Storing(seq) => self.poll_in(seq, token),
            Phase::Loading => match self.gpus[gpu as usize].asked_atomic(i, a.copy) {
                Asked::NotYet => Access::Pending(token),
                Asked::Done => Access::Ready,
                Asked::Lost => Access::Fault,
            },
        }
    }

    /// Ends the atomics of a region that is gone.
    pub(super) fn forget_atomics(&mut self, cookie: u64) {
        for a in self.atomics.iter_mut().filter(|a| a.cookie == cookie) {
            a.phase = Phase::Free;
        }
    }
}
