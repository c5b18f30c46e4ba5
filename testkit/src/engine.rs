//! An engine in memory of its own, for harnesses that run engines without a device.

use crate::memory::Buffer;
use gdrcore_core::config::Config;
use gdrcore_core::engine::{Engine, EngineGuard};
use gdrcore_core::error::Result;
use gdrcore_core::pool::index_of;
use gdrcore_core::roce::peer::PeerAddr;
use gdrcore_core::verbs::post::{self, Posted};
use gdrcore_core::verbs::types::{Handle, SendWr};

/// The address of the host `n` of a test: 10.0.0.n, or fd00::n.
pub fn address(v6: bool, n: u8) -> PeerAddr {
    let mut gid = [0; 16];
    if v6 {
        gid[..2].copy_from_slice(&[0xfd, 0]);
    } else {
        gid[10..14].copy_from_slice(&[0xff, 0xff, 10, 0]);
    }
    gid[15] = n;
    PeerAddr { gid, port: 4791, ..PeerAddr::default() }
}

/// An engine, its memory and its address. The engine is dropped before the memory.
pub struct OwnedEngine {
    engine: Engine,
    _memory: Buffer,
    /// The address that peers send to.
    pub addr: PeerAddr,
}

impl OwnedEngine {
    /// Makes an engine in zeroed memory.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn new(config: &Config, addr: PeerAddr) -> OwnedEngine {
        OwnedEngine::over(config, addr, |_, _| {})
    }

    /// Makes an engine in memory that has been used: no byte of it is 0.
    ///
    /// # Panics
    /// If the configuration is refused.
    pub fn in_used_memory(config: &Config, addr: PeerAddr) -> OwnedEngine {
        // SAFETY: the memory has that length.
        OwnedEngine::over(config, addr, |at, bytes| unsafe { at.write_bytes(0xaa, bytes) })
    }

    fn over(config: &Config, addr: PeerAddr, prepare: impl FnOnce(*mut u8, usize)) -> OwnedEngine {
        let bytes = Engine::memsize(config).expect("a legal configuration");
        let memory = Buffer::new(bytes);
        prepare(memory.as_ptr(), bytes);
        // SAFETY: fresh memory of that size, kept beside the engine and dropped after it.
        let engine = unsafe { Engine::init(memory.as_ptr(), bytes, config, addr) }.expect("room");
        OwnedEngine { engine, _memory: memory, addr }
    }

    /// Posts a list of send requests, and leaves a mark for the engine's next round.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`], and those of [`post::send`].
    ///
    /// # Safety
    /// As for [`post::send`].
    pub unsafe fn post_send(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<()> {
        // SAFETY: our contract.
        let (posted, outcome) = unsafe { self.post_unmarked(qp, wr, bad)? };
        if posted.count > 0 {
            self.shared().active.set(index_of(qp));
        }
        outcome
    }

    /// As [`OwnedEngine::post_send`], for a caller that tells the engine itself
    /// ([`EngineGuard::wake`]). The errors of the list are beside what was posted.
    ///
    /// # Errors
    /// [`gdrcore_core::Error::StaleHandle`].
    ///
    /// # Safety
    /// As for [`post::send`].
    pub unsafe fn post_unmarked(
        &self,
        qp: Handle,
        wr: *const SendWr,
        bad: &mut *const SendWr,
    ) -> Result<(Posted, Result<()>)> {
        *bad = wr;
        let (_, q) = self.qp(qp)?;
        // SAFETY: our contract.
        Ok(unsafe { post::send(q, wr, bad) })
    }

    /// Its lock.
    ///
    /// # Panics
    /// If another thread holds it.
    pub fn lock(&self) -> EngineGuard<'_> {
        self.engine.try_lock().expect("one thread")
    }
}

impl std::ops::Deref for OwnedEngine {
    type Target = Engine;

    fn deref(&self) -> &Engine {
        &self.engine
    }
}
