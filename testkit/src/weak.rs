//! Host memory whose bytes are placed in any order, for engines under a virtual clock.

use gdrcore_core::mem::weak::{delay_ns, Weak};
use gdrcore_core::mem::{Access, AtomicOp, Memory, Token, TransferId};
use gdrcore_core::random::Random;
use gdrcore_core::wire::{Bth, PacketKind};
use std::sync::{Mutex, MutexGuard};

/// Stands in place of an engine's host memory (`EngineGuard::set_host_memory`).
pub struct WeakMemory(Mutex<State>);

struct State {
    weak: Box<Weak>,
    seed: u64,
    now: u64,
}

impl WeakMemory {
    /// Orders follow from `seed`.
    pub fn new(seed: u64) -> WeakMemory {
        WeakMemory(Mutex::new(State { weak: Box::default(), seed, now: 0 }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("one thread")
    }

    /// Another seed from here on.
    pub fn set_seed(&self, seed: u64) {
        self.state().seed = seed;
    }

    /// The time that counts from here on.
    pub fn set_now(&self, now: u64) {
        self.state().now = now;
    }

    /// A packet is about to be handled; to be called for each one by itself.
    pub fn see(&self, packet: &[u8]) {
        let State { weak, seed, now } = &mut *self.state();
        let Some(head) = packet.first_chunk() else { return };
        let bth = Bth::parse(head);
        let (qpn, psn, kind) = (bth.dest_qp.get(), bth.psn.get(), bth.opcode.kind());
        let draw = Random::new(*seed, 0).hash(&[qpn.into(), psn.into()]);
        weak.begin(qpn, bth.opcode, Some(draw));
        if kind == PacketKind::ReadRequest {
            weak.delay_read(TransferId::answer(qpn, psn, 0).id, *now + delay_ns(draw));
        }
    }
}

impl Memory for WeakMemory {
    fn fetch(&self, _: u64, addr: u64, dst: &mut [u8], of: TransferId) -> Access {
        let State { weak, now, .. } = &mut *self.state();
        weak.fetch(*now, addr, dst, of)
    }
    fn place(&self, is_relaxed: u64, addr: u64, src: &[u8]) -> Access {
        let State { weak, now, .. } = &mut *self.state();
        weak.place(*now, is_relaxed != 0, addr, src)
    }
    fn poll(&self, token: Token) -> Access {
        let State { weak, now, .. } = &mut *self.state();
        weak.poll(*now, token)
    }
    fn atomic(&self, _: u64, addr: u64, op: AtomicOp, _: TransferId) -> Result<u64, Access> {
        self.state().weak.atomic(addr, op)
    }
    fn finish(&self) {
        self.state().weak.finish();
    }
}
