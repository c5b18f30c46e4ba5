//! The router's end of a session's memory: pages of the tenant's file, mapped side by side.

use crate::map::page_size;
use crate::memfd::{file_system, of_dma_buf, sealed_len};
use crate::rights::Foreign;
use crate::sys::last_error;
use gdrcore_core::error::Result;
use gdrcore_core::refuse;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Most pieces of a region.
pub const PIECES_MAX: usize = 128;
/// Most pieces of all regions of this process: half of the mappings that a process may have
/// (`vm.max_map_count`).
const MAPPINGS_MAX: usize = 1 << 15;

/// Pieces that are mapped.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// A tenant's file: memory that cannot shrink. Its pages may be missing all the same, so it is
/// accessed by copies alone that survive that, as all memory of regions.
#[derive(Debug)]
pub struct File {
    fd: Foreign,
    len: u64,
    /// Its pages are the driver's, which made them with it.
    is_dma_buf: bool,
}

impl File {
    /// Takes a descriptor that a tenant sent. The last page may be a part of one.
    ///
    /// # Errors
    /// `Access`: it is no memory, or it may shrink. A file of a FUSE server could make the router
    /// wait. Huge pages of hugetlbfs are refused: mmap(2) rounds the length of a piece up to them,
    /// beyond the range that is reserved for it.
    pub fn new(fd: Foreign) -> Result<File> {
        let len = sealed_len(fd.raw(), libc::F_SEAL_SHRINK);
        let len =
            len.ok_or_else(|| refuse!(Access, "the file of the session's memory may shrink"))?;
        if file_system(fd.raw())? != libc::TMPFS_MAGIC as u32 {
            return Err(refuse!(Access, "the file of the session's memory has no plain pages"));
        }
        Ok(File { fd, len, is_dma_buf: false })
    }

    /// The same, and a dma-buf, whose size is fixed.
    ///
    /// # Errors
    /// As [`File::new`].
    pub fn of_buffer(fd: Foreign) -> Result<File> {
        if !of_dma_buf(fd.raw()) {
            return File::new(fd);
        }
        // SAFETY: no pointers. Nobody uses the position of the descriptor.
        let len = unsafe { libc::lseek(fd.raw(), 0, libc::SEEK_END) };
        let len = u64::try_from(len).map_err(|_| last_error())?;
        Ok(File { fd, len, is_dma_buf: true })
    }

    /// Whether all pages of a range are there. The first access makes a missing page, and the
    /// kernel charges it to who makes it: that would be the router.
    fn is_whole(&self, offset: u64, end: u64) -> bool {
        if self.is_dma_buf {
            return true;
        }
        // SAFETY: no pointers. Nobody uses the position of the descriptor.
        let hole = unsafe { libc::lseek(self.fd.raw(), offset as libc::off_t, libc::SEEK_HOLE) };
        u64::try_from(hole).is_ok_and(|hole| hole >= end.min(self.len))
    }
}

/// A region's pages in this process. Unmapped when dropped.
#[derive(Debug)]
pub struct Pages {
    base: NonNull<u8>,
    len: usize,
    /// Bytes before the first piece.
    skipped: usize,
    pieces: usize,
}

// SAFETY: a mapping belongs to the process, and only its address is given out.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// Maps the pieces of a file, each an offset and bytes, one behind the other. One system call
    /// for each, and one more. A dma-buf is mapped from its beginning on, as by
    /// [`crate::map::Map::of_buffer`].
    ///
    /// # Errors
    /// `Invalid`: no piece or too many, or one that is no whole pages within the file, or whose
    /// pages are not all there; more than one of a dma-buf. `NoMemory`: there are too many pieces
    /// in all. `NoMemory`, `Os`: as mmap(2).
    pub fn map(file: &File, pieces: &[(u64, u64)], writable: bool) -> Result<Pages> {
        let page = page_size() as u64;
        let most = file.len.next_multiple_of(page);
        let mut len = check(pieces, most, page)?;
        let (from_start, mut pieces, mut skipped) = ([(0, pieces[0].0 + pieces[0].1)], pieces, 0);
        if file.is_dma_buf {
            if pieces.len() > 1 {
                return Err(refuse!(Invalid, "a dma-buf in {} pieces", pieces.len()));
            }
            (skipped, len) = (pieces[0].0 as usize, check(&from_start, most, page)?);
            pieces = &from_start;
        }
        if let Some((at, _)) = pieces.iter().find(|(at, n)| !file.is_whole(*at, at + n)) {
            return Err(refuse!(Invalid, "at {at:#x} of the session's file there is a hole"));
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let nothing = core::ptr::null_mut();
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let p = unsafe { libc::mmap(nothing, len, libc::PROT_NONE, flags, -1, 0) };
        if p == libc::MAP_FAILED {
            return Err(last_error());
        }
        let base = NonNull::new(p.cast::<u8>()).ok_or_else(last_error)?;
        // From here on a drop unmaps the whole range.
        let mut whole = Pages { base, len, skipped, pieces: 0 };
        take_mappings(&MAPPINGS, pieces.len())?;
        whole.pieces = pieces.len();
        let mut at = 0;
        let prot = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        for &(offset, bytes) in pieces {
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            // SAFETY: within the reservation above, which no other code knows: the pieces have
            // `len` bytes together.
            let p = unsafe {
                let to = base.as_ptr().add(at).cast();
                let fd = file.fd.raw();
                libc::mmap(to, bytes as usize, prot, flags, fd, offset as libc::off_t)
            };
            if p == libc::MAP_FAILED {
                return Err(last_error());
            }
            at += bytes as usize;
        }
        Ok(whole)
    }

    /// Address of the first byte.
    pub fn addr(&self) -> u64 {
        (self.base.as_ptr().addr() + self.skipped) as u64
    }

    /// Bytes from there on.
    pub fn bytes(&self) -> u64 {
        (self.len - self.skipped) as u64
    }

    /// Pieces mapped.
    pub fn pieces(&self) -> usize {
        self.pieces
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: exactly what `map` reserved.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
        MAPPINGS.fetch_sub(self.pieces, Ordering::Relaxed);
    }
}

/// Counts new pieces.
fn take_mappings(all: &AtomicUsize, pieces: usize) -> Result<()> {
    let more = |n: usize| n.checked_add(pieces).filter(|&n| n <= MAPPINGS_MAX);
    all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).map(drop).map_err(|n| {
        refuse!(NoMemory, "the router has {n} pieces of regions, and {MAPPINGS_MAX} at most")
    })
}

/// The bytes of all pieces, each of which must be whole pages within a file of `len` bytes.
fn check(pieces: &[(u64, u64)], len: u64, page: u64) -> Result<usize> {
    if pieces.is_empty() || pieces.len() > PIECES_MAX {
        return Err(refuse!(Invalid, "a region of {} pieces: 1 to {PIECES_MAX}", pieces.len()));
    }
    let mut all = 0u64;
    for &(offset, bytes) in pieces {
        let end = offset.checked_add(bytes);
        if bytes == 0 || offset % page != 0 || bytes % page != 0 || end.is_none_or(|end| end > len)
        {
            return Err(refuse!(
                Invalid,
                "{bytes:#x} bytes at {offset:#x} of the session's file: no whole pages within it"
            ));
        }
        all = all.saturating_add(bytes);
    }
    usize::try_from(all)
        .ok()
        .filter(|&n| n <= isize::MAX as usize)
        .ok_or_else(|| refuse!(NoMemory, "a region of {all} bytes: more than there can be"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::sys::Fd;
    use gdrcore_core::Error;

    #[test]
    fn pieces_lie_side_by_side() {
        let page = page_size() as u64;
        let (map, fd) = Map::with_file(c"gdrcore-test", 5 * page as usize).unwrap();
        for n in 0..4u8 {
            // SAFETY: inside the map.
            unsafe { map.as_ptr().add(n as usize * page as usize).write_volatile(n) };
        }
        let file = File::new(fd.into()).unwrap();
        let pages = Pages::map(&file, &[(2 * page, 2 * page), (0, page)], true).unwrap();
        let first = |k: u64| {
            let mut byte = [0];
            gdrcore_core::mem::host::fetch(pages.addr() + k * page, &mut byte).unwrap();
            byte[0]
        };
        assert_eq!([first(0), first(1), first(2), pages.bytes() as u8], [2, 3, 0, 0]);
        assert_eq!(pages.pieces(), 2);
        let hole = Pages::map(&file, &[(3 * page, 2 * page)], true).err();
        assert_eq!(hole, Some(Error::Invalid), "nobody has written to the last page");
    }

    #[test]
    fn a_dma_buf_is_mapped_from_its_beginning() {
        let page = page_size() as u64;
        let (map, fd) = Map::with_file(c"gdrcore-test", 4 * page as usize).unwrap();
        // SAFETY: inside the map.
        unsafe { map.as_ptr().add(2 * page as usize).write_volatile(2) };
        // Memory, in place of one.
        let file = File { is_dma_buf: true, ..File::new(fd.into()).unwrap() };
        let pages = Pages::map(&file, &[(2 * page, page)], true).unwrap();
        let mut byte = [0];
        gdrcore_core::mem::host::fetch(pages.addr(), &mut byte).unwrap();
        assert_eq!((byte, pages.bytes(), pages.pieces()), ([2], page, 1));
        assert_eq!(pages.base.as_ptr().addr() as u64 + 2 * page, pages.addr());
        let two = Pages::map(&file, &[(0, page), (2 * page, page)], true).err();
        assert_eq!(two, Some(Error::Invalid));
    }

    #[test]
    fn all_pieces_together_are_bounded() {
        let all = AtomicUsize::new(MAPPINGS_MAX - 3);
        assert_eq!(take_mappings(&all, 4), Err(Error::NoMemory));
        assert_eq!(
            (take_mappings(&all, 3), take_mappings(&all, 1)),
            (Ok(()), Err(Error::NoMemory))
        );
    }

    #[test]
    fn pieces_outside_of_the_file_and_files_that_may_shrink_are_refused() {
        let bad = [
            (0, 0),
            (1, 4096),
            (0, 4095),
            (4096, 4096),
            (0, 8192),
            (u64::MAX - 4095, 8192),
            (1 << 63, 1 << 63),
        ];
        for piece in bad {
            assert_eq!(check(&[piece], 4096, 4096), Err(Error::Invalid), "{piece:?}");
        }
        assert_eq!(check(&[(0, 4096); PIECES_MAX], 4096, 4096), Ok(4096 * PIECES_MAX));
        assert_eq!(check(&[(0, 4096); PIECES_MAX + 1], 4096, 4096), Err(Error::Invalid));
        assert_eq!(check(&[], 4096, 4096), Err(Error::Invalid));
        // SAFETY: the name is a C string.
        let plain = unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING) };
        let plain = Fd::from_call(plain).unwrap();
        assert_eq!(File::new(std::os::fd::OwnedFd::from(plain).into()).err(), Some(Error::Access));
        // Not every kernel has it. It is of no pages yet, and could grow.
        // SAFETY: the name is a C string.
        let huge = unsafe {
            let flags = libc::MFD_ALLOW_SEALING | libc::MFD_HUGETLB;
            let fd = libc::memfd_create(c"x".as_ptr(), flags);
            libc::fcntl(fd, libc::F_ADD_SEALS, libc::F_SEAL_SHRINK);
            Fd::from_call(fd)
        };
        if let Ok(huge) = huge {
            let refused = File::new(std::os::fd::OwnedFd::from(huge).into()).err();
            assert_eq!(refused, Some(Error::Access), "huge pages");
        }
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(File::new(std::os::fd::OwnedFd::from(null).into()).err(), Some(Error::Access));
    }
}
