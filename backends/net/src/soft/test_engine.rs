//! An open engine for the tests of this folder.

use super::{SoftConfig, SoftEngine};
use crate::addr::DeviceName;
use core::ops::Deref;
use gdrcore_core::verbs::types::Handle;
use gdrcore_testkit::memory::Buffer;

/// An engine, which ends with this. Nothing of it may be used later.
pub(super) struct TestEngine {
    open: &'static SoftEngine,
    _memory: Buffer,
}

impl TestEngine {
    /// Opens one by this name, with the defaults.
    pub(super) fn open(name: &DeviceName) -> TestEngine {
        let config = SoftConfig::default();
        let bytes = SoftEngine::memsize(name, &config, None).unwrap();
        let memory = Buffer::new(bytes);
        // SAFETY: fresh memory, page-aligned, which stays until the engine is closed.
        let engine = unsafe { SoftEngine::init(memory.as_ptr(), bytes, name, &config, None) };
        TestEngine { open: engine.unwrap(), _memory: memory }
    }

    /// A new CQ, which is empty.
    pub(super) fn cq(&self) -> Handle {
        self.lock_control().cq_create(16).unwrap().0
    }
}

impl Deref for TestEngine {
    type Target = SoftEngine;
    fn deref(&self) -> &SoftEngine {
        self.open
    }
}

impl Drop for TestEngine {
    fn drop(&mut self) {
        // SAFETY: nobody uses the engine any more.
        unsafe { self.open.close() };
    }
}
