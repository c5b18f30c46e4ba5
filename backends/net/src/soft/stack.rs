//! Threads with a stack that is large enough to open a device.

use super::HelperSignals;
use gdrcore_core::error::{Error, Result};

/// Bytes of stack of [`with_stack`].
const STACK: usize = 512 << 10;

/// Runs `work` on a thread with a large stack, since threads of programs may have small ones: those
/// of dapltest have 64 KB. Signals of the program are not delivered to it.
///
/// # Errors
/// Those of `work`; the system's: no thread.
pub fn with_stack<T: Send>(name: &str, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    let masked = HelperSignals::take();
    std::thread::scope(|s| {
        let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
        let started = thread.spawn_scoped(s, work);
        drop(masked);
        let started =
            started.map_err(|e| Error::from_errno(e.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        started.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
