//! What a forked child has of adopted memory: private pages at the same addresses, in place of
//! those of the file, which the fork leaves out.
//!
//! Pages beside registered memory, and those of regions that have ended, may hold any data of the
//! program: the child gets them as they were before the fork. Pages inside registered regions are
//! mapped anew, and show what the parent and the NIC write there until the child writes to them.

use crate::map::Map;
use core::ops::Range;
use gdrcore_core::error::Result;
use gdrcore_core::mem::host;
use std::os::fd::RawFd;

/// Most bytes that are copied for a fork. The rest is mapped anew.
const COPIED: u64 = 64 << 20;

/// Adopted pages of the program that follow each other in the file.
#[derive(Clone, Copy)]
pub(super) struct Mapped {
    pub(super) at: u64,
    pub(super) len: u64,
    pub(super) offset: u64,
    /// As of mmap(2).
    pub(super) prot: i32,
}

/// The pages of a child to come. In a mapping of its own: the heap may be among the pages that the
/// child does not have yet.
pub(super) struct Inheritance {
    file: RawFd,
    map: Map,
    /// Records at its beginning: first pages of the file, then copies, whose bytes are at `offset`
    /// of the map.
    mapped: usize,
    copied: usize,
}

impl Inheritance {
    /// Copies ranges of the pages. The caller keeps others from moving pages.
    ///
    /// # Errors
    /// As mmap(2).
    pub(super) fn prepare(
        file: RawFd,
        mapped: &[Mapped],
        ranges: &[Range<u64>],
    ) -> Result<Inheritance> {
        let first = (mapped.len() + ranges.len()) * size_of::<Mapped>();
        let (mut all, mut end) = (mapped.to_vec(), first as u64);
        for range in ranges {
            let len = (range.end - range.start).min(first as u64 + COPIED - end);
            all.push(Mapped { at: range.start, len, offset: end, prot: 0 });
            end += len;
        }
        let map = Map::new(end.max(1) as usize)?;
        for copy in &mut all[mapped.len()..] {
            // Pages that the program may not read have nothing to be copied.
            if host::transfer(copy.at, map.as_ptr().addr() as u64 + copy.offset, copy.len as usize)
                .is_err()
            {
                copy.len = 0;
            }
        }
        // SAFETY: the records end before the first copy; the map is aligned to a page.
        unsafe { map.as_ptr().cast::<Mapped>().copy_from_nonoverlapping(all.as_ptr(), all.len()) };
        Ok(Inheritance { file, map, mapped: mapped.len(), copied: ranges.len() })
    }

    /// Gives the child its pages. Makes system calls alone, and touches no heap. A page that cannot
    /// be mapped stays missing.
    pub(super) fn claim(&self) {
        let first = self.map.as_ptr().cast::<Mapped>();
        // SAFETY: `prepare` has written so many, and nobody changes them.
        let all = unsafe { core::slice::from_raw_parts(first, self.mapped + self.copied) };
        let (mapped, copied) = all.split_at(self.mapped);
        let pages = |m: &Mapped| {
            (core::ptr::without_provenance_mut::<libc::c_void>(m.at as usize), m.len as usize)
        };
        let (prot, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_FIXED);
        for m in mapped {
            let (at, len) = pages(m);
            // SAFETY: the fork has left these pages out (MADV_DONTFORK), and the child has one
            // thread, which has mapped nothing since.
            unsafe { libc::mmap(at, len, prot, flags, self.file, m.offset as i64) };
        }
        for copy in copied {
            let from = self.map.as_ptr().addr() as u64 + copy.offset;
            let _ = host::transfer(from, copy.at, copy.len as usize);
        }
        for m in mapped.iter().filter(|m| m.prot != prot) {
            let (at, len) = pages(m);
            // SAFETY: as above: the protection that the parent's pages have.
            unsafe { libc::mprotect(at, len, m.prot) };
        }
    }
}
