//! A view of GPU memory for the CPU, where the driver lets a dma-buf be mapped.
//!
//! NVIDIA's driver does so only on coherent machines; elsewhere `mmap` fails and everything is
//! staged. With a view, small transfers and 8-byte atomics need no copy engine.

use crate::span::Span;
use gdrcore_core::mem::host;

/// `DMA_BUF_IOCTL_SYNC` of `linux/dma-buf.h`: `_IOW('b', 0, struct { __u64 flags; })`.
const SYNC: libc::Ioctl = 0x4008_6200;
const SYNC_READ: u64 = 1;
const SYNC_WRITE: u64 = 2;
const SYNC_END: u64 = 4;

/// A mapping of one registration.
pub(crate) struct View {
    fd: i32,
    map: *mut libc::c_void,
    bytes: usize,
    /// Offset of the registration's first byte in the mapping.
    offset: u64,
    /// The kernel must be notified of accesses: not every exporter supports that.
    syncs: bool,
}

// SAFETY: the mapping belongs to this value and is reached by fault-safe copies only.
unsafe impl Send for View {}

impl View {
    /// Maps the span, if the driver offers it.
    pub(crate) fn map(span: &Span) -> Option<View> {
        let (fd, offset) = span.dma_buf().ok()?;
        // An allocation's size fits the address space.
        let bytes = (offset + span.length) as usize;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let map =
            unsafe { libc::mmap(core::ptr::null_mut(), bytes, both, libc::MAP_SHARED, fd, 0) };
        if map == libc::MAP_FAILED {
            // SAFETY: ours alone.
            unsafe { libc::close(fd) };
            return None;
        }
        let mut view = View { fd, map, bytes, offset, syncs: true };
        view.syncs = view.sync(SYNC_READ) && view.sync(SYNC_READ | SYNC_END);
        Some(view)
    }

    fn sync(&self, flags: u64) -> bool {
        // SAFETY: the ioctl reads 8 bytes.
        unsafe { libc::ioctl(self.fd, SYNC, &raw const flags) == 0 }
    }

    /// Runs `access` between the kernel's two notifications. `at`: bytes from the registration's
    /// start.
    fn access<T>(&self, at: u64, flags: u64, access: impl FnOnce(u64) -> T) -> T {
        let addr = self.map as u64 + self.offset + at;
        if !self.syncs {
            return access(addr);
        }
        self.sync(flags);
        let done = access(addr);
        self.sync(flags | SYNC_END);
        done
    }

    pub(crate) fn fetch(&self, at: u64, dst: &mut [u8]) -> Result<(), host::Fault> {
        self.access(at, SYNC_READ, |addr| host::fetch(addr, dst))
    }

    pub(crate) fn place(&self, at: u64, src: &[u8]) -> Result<(), host::Fault> {
        self.access(at, SYNC_WRITE, |addr| host::place(addr, src))
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: mapped in `map`, and nobody uses it any more.
        unsafe { libc::munmap(self.map, self.bytes) };
        // SAFETY: ours alone.
        unsafe { libc::close(self.fd) };
    }
}
