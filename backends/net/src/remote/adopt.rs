//! Moves private memory of the program into a file that the router maps: **adoption**. The pages
//! keep their addresses, contents and protection, and are shared from then on.
//!
//! `/proc/self/maps` says what is where; nothing is remembered of memory that the program may have
//! unmapped since. While pages are copied they are read-only; a thread that writes to them gets a
//! fault, which [`moving`] recognises, and repeats the write.
//!
//! What a program may notice: its neighbours on the same pages move along; a system call that
//! writes there meanwhile fails with EFAULT. A fork leaves these pages out (`MADV_DONTFORK`), so
//! that neither process writes into the other's memory; the child gets its own ([`Inheritance`]).
//!
//! Stacks, huge pages of hugetlbfs and memory that is shared otherwise are refused: a thread that
//! writes to its stack meanwhile has no place for its handler. The kernel names the main thread's
//! stack alone (since Linux 4.5); [`control_blocks`] shows where those of others end.

use super::inherit::{Inheritance, Mapped};
use super::moving;
use super::pages::PIECES_MAX;
use crate::fork::{around_forks_and_in_child, ForkGuard};
use crate::map::page_size;
use crate::memfd::sealed_memfd;
use crate::sys::{check, last_error, stat, Fd};
use crate::thread_lock::ForkLock;
use core::ops::Range;
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::refuse;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of the file. Only pages in use take memory.
const FILE: u64 = 1 << 60;
/// A part of the file has at least so many unused bytes behind it, and twice its own: mremap(2), by
/// way of realloc(3), may lengthen a mapping of it, and must not reach another part.
const GAP: u64 = 1 << 40;
/// One thread at a time moves pages, or forks: else a child would have pages whose move has begun,
/// and nobody to end it.
static MOVING: ForkLock<Moving> = ForkLock::new(Moving { number: 0, of_child: None });
/// Whether fork() knows the handlers.
static FORKS_WAIT: AtomicBool = AtomicBool::new(false);

struct Moving {
    /// Of the latest move.
    number: usize,
    /// What the child of the present fork will have.
    of_child: Option<Inheritance>,
}

extern "C" fn before_fork() {
    let (mut moving, own) = (MOVING.lock(), OWN.lock());
    let adopter = own.as_ref().filter(|adopter| adopter.fork.is_owner());
    moving.of_child = adopter.and_then(|adopter| adopter.of_child().ok());
    // Both stay locked until the fork is over.
    core::mem::forget((moving, own));
}

extern "C" fn after_fork() {
    drop(release());
}

extern "C" fn after_fork_in_child() {
    release().iter().for_each(Inheritance::claim);
}

/// The fork is over. What was kept while the lock is free is of a fork that is over, too.
fn release() -> Option<Inheritance> {
    OWN.release();
    MOVING.release();
    MOVING.lock().of_child.take()
}

/// Memory of the program that is in one mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    begin: u64,
    end: u64,
    /// Where it is in the file, if it was adopted before.
    offset: Option<u64>,
    writable: bool,
}

/// A line of proc_pid_maps(5).
struct Line<'t> {
    begin: u64,
    end: u64,
    rights: &'t str,
    offset: u64,
    inode: u64,
    name: &'t str,
}

fn lines(maps: &str) -> impl Iterator<Item = Line<'_>> {
    maps.lines().filter_map(|line| {
        let mut words = line.splitn(6, ' ');
        let (begin, end) = words.next()?.split_once('-')?;
        let hex = |text| u64::from_str_radix(text, 16).ok();
        let rights = words.next()?;
        let offset = hex(words.next()?)?;
        let inode = words.nth(1)?.parse().ok()?;
        let name = words.next().unwrap_or("").trim();
        Some(Line { begin: hex(begin)?, end: hex(end)?, rights, offset, inode, name })
    })
}

impl Line<'_> {
    /// Whether it maps the session's file, of this inode.
    fn is_of(&self, inode: u64) -> bool {
        self.inode == inode && self.name.starts_with("/memfd:gdrcore-session")
    }

    /// As of mmap(2).
    fn prot(&self) -> i32 {
        let all = [('r', libc::PROT_READ), ('w', libc::PROT_WRITE), ('x', libc::PROT_EXEC)];
        all.iter().filter(|(letter, _)| self.rights.contains(*letter)).fold(0, |prot, p| prot | p.1)
    }
}

/// proc_pid_maps(5) of this process. Names of files may be any bytes.
fn own_maps() -> Result<String> {
    let maps = std::fs::read("/proc/self/maps").map_err(|_| Error::Access)?;
    Ok(String::from_utf8_lossy(&maps).into_owned())
}

/// The most of a thread's stack that is known by its end alone, where other memory lies below it in
/// the same mapping: libc's default is not more.
const STACK: u64 = 8 << 20;

/// The control blocks of all threads but the main one, each at the upper end of its thread's stack:
/// libc has the list of the thread's robust mutexes in it, which the kernel knows
/// (set_robust_list(2)). A thread that libc has not made has none.
fn control_blocks() -> Vec<u64> {
    let main = std::process::id();
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let numbers = threads.filter_map(|t| t.file_name().to_str()?.parse::<u32>().ok());
    let of = |thread: u32| {
        let (mut head, mut len) = (0usize, 0usize);
        // SAFETY: places for an address and a length, as get_robust_list(2) wants them.
        let rc = unsafe {
            libc::syscall(libc::SYS_get_robust_list, thread, &raw mut head, &raw mut len)
        };
        (rc == 0 && head != 0).then_some(head as u64)
    };
    numbers.filter(|&n| n != main).filter_map(of).collect()
}

/// The parts of a range of whole pages. `own`: the inode of the session's file. `blocks`: as
/// [`control_blocks`] says.
fn parts(maps: &str, begin: u64, end: u64, own: u64, blocks: &[u64]) -> Result<Vec<Part>> {
    let mut all = Vec::new();
    let mut at = begin;
    for line in lines(maps).filter(|l| l.begin < end && l.end > begin) {
        if line.begin > at {
            break;
        }
        let ours = line.is_of(own);
        let prot = line.prot();
        if prot & libc::PROT_READ == 0 {
            break;
        }
        let part_end = line.end.min(end);
        if !ours {
            may_move(&line, at..part_end, blocks)?;
        }
        let offset = ours.then(|| line.offset + (at - line.begin));
        let writable = prot & libc::PROT_WRITE != 0;
        all.push(Part { begin: at, end: part_end, offset, writable });
        at = part_end;
    }
    if at < end {
        return Err(refuse!(Fault, "addr {at:#x}: no readable memory of the program is there"));
    }
    Ok(all)
}

fn may_move(line: &Line<'_>, part: Range<u64>, blocks: &[u64]) -> Result<()> {
    let here = 0u8;
    let stack = (&raw const here).addr() as u64;
    let is_stack = |&top: &u64| {
        let whole = line.begin.max(top.saturating_sub(STACK))..=top;
        (line.begin..line.end).contains(&top) && part.start <= top && part.end > *whole.start()
    };
    let why = match line.name {
        _ if line.rights.ends_with('s') => {
            "it is shared otherwise: allocate it with gdrc, or plainly"
        }
        _ if line.name.starts_with("/anon_hugepage") => "it has huge pages: use plain ones",
        "[stack]" => "it is the stack: use the heap",
        _ if (line.begin..line.end).contains(&stack) => "it is a stack: use the heap",
        _ if blocks.iter().any(is_stack) => "it is another thread's stack: use the heap",
        name if name.starts_with("[v") => "it is the kernel's",
        _ if line.prot() & libc::PROT_EXEC != 0 => "it holds code: use the heap",
        _ => return Ok(()),
    };
    let at = part.start;
    Err(refuse!(Unsupported, "addr {at:#x}: a router's device cannot reach this memory: {why}"))
}

/// A free range of the file. `used`: ranges that are in use, which are sorted.
fn free_range(used: &mut [(u64, u64)], len: u64, file: u64) -> Result<u64> {
    used.sort_unstable();
    let mut at = 0u64;
    for &mut (begin, end) in used {
        if begin.saturating_sub(at) >= len.saturating_add(gap(len)) {
            break;
        }
        at = at.max(end.saturating_add(gap(end - begin)));
    }
    match at.checked_add(len) {
        Some(end) if end <= file => Ok(at),
        _ => Err(refuse!(NoMemory, "the file of the session's memory is full")),
    }
}

/// What of a range is in no hole. `holes`: sorted by their starts.
fn outside(range: Range<u64>, holes: &[Range<u64>]) -> impl Iterator<Item = Range<u64>> + '_ {
    let (mut at, end) = (range.start, range.end);
    let last = core::iter::once(end..end);
    holes.iter().cloned().chain(last).filter_map(move |hole| {
        let free = at..hole.start.min(end);
        at = at.max(hole.end);
        (!free.is_empty()).then_some(free)
    })
}

/// Bytes that stay unused behind a part of this length.
fn gap(len: u64) -> u64 {
    len.saturating_mul(2).saturating_add(GAP)
}

/// The file that the memory of a process's sessions moves into: memory that one of them has
/// registered may be another's next.
#[derive(Debug)]
pub struct Adopter {
    fork: ForkGuard,
    fd: Fd,
    inode: u64,
    /// Pieces of registered regions: the program may have unmapped them.
    held: Mutex<Vec<(u64, u64)>>,
}

/// That of this process.
static OWN: ForkLock<Option<Arc<Adopter>>> = ForkLock::new(None);

impl Adopter {
    /// That of this process. A forked child has a file of its own.
    ///
    /// # Errors
    /// As [`Adopter::new`].
    pub fn of_process() -> Result<Arc<Adopter>> {
        let mut own = OWN.lock();
        match &*own {
            Some(adopter) if adopter.fork.is_owner() => Ok(adopter.clone()),
            _ => Ok(own.insert(Arc::new(Adopter::new()?)).clone()),
        }
    }

    /// Makes the file.
    ///
    /// # Errors
    /// As memfd_create(2) and ftruncate(2).
    fn new() -> Result<Adopter> {
        if !FORKS_WAIT.swap(true, Ordering::Relaxed) {
            around_forks_and_in_child(before_fork, after_fork, after_fork_in_child);
        }
        let fd = sealed_memfd(c"gdrcore-session", FILE as usize, page_size())?;
        let inode = stat(fd.raw())?.st_ino;
        Ok(Adopter { fork: ForkGuard::new(), fd, inode, held: Mutex::default() })
    }

    /// For the router.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Adopts what of a range is not yet, and returns its pieces in the file, which stay in use
    /// until [`Adopter::release`].
    ///
    /// # Errors
    /// [`Error::Fault`]: memory is missing, or is read-only and `writable` is wanted.
    /// [`Error::Unsupported`]: memory that cannot move. [`Error::NoMemory`], [`Error::Os`]: the
    /// system's. [`Error::Unsupported`]: without handlers of faults no memory can move.
    pub fn adopt(&self, addr: u64, length: u64, writable: bool) -> Result<Vec<(u64, u64)>> {
        let page = page_size() as u64;
        let begin = addr & !(page - 1);
        let end = addr.checked_add(length).and_then(|end| end.checked_next_multiple_of(page));
        let end = end.filter(|&end| end > begin && end < 1 << 62).ok_or_else(|| {
            refuse!(Invalid, "addr {addr:#x}, length {length:#x}: no range of memory")
        })?;
        if !host::HAS_LANDINGS {
            return Err(refuse!(Unsupported, "on this architecture a router reaches no memory"));
        }
        // The program may have installed a handler since.
        crate::fault::install()?;
        let mut moving = MOVING.lock();
        let maps = own_maps()?;
        let all = parts(&maps, begin, end, self.inode, &control_blocks())?;
        if let Some(part) = all.iter().find(|part| writable && !part.writable) {
            return Err(refuse!(Fault, "addr {:#x}: the memory there is read-only", part.begin));
        }
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let of_file = lines(&maps).filter(|l| l.is_of(self.inode));
        let mut used: Vec<(u64, u64)> =
            of_file.map(|l| (l.offset, l.offset + (l.end - l.begin))).collect();
        used.extend(held.iter().map(|(offset, len)| (*offset, offset + len)));
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        for part in all {
            let len = part.end - part.begin;
            let offset = match part.offset {
                Some(offset) => {
                    // The router takes no pages that are not there yet, as behind an mremap(2).
                    crate::fault::probe(part.begin, len, part.writable)?;
                    offset
                }
                None => {
                    let offset = free_range(&mut used, len, FILE)?;
                    used.push((offset, offset + len));
                    moving.number += 1;
                    self.move_part(&part, offset, moving.number)?;
                    offset
                }
            };
            match pieces.last_mut() {
                Some((last, n)) if *last + *n == offset => *n += len,
                _ => pieces.push((offset, len)),
            }
        }
        if pieces.len() > PIECES_MAX {
            let n = pieces.len();
            return Err(refuse!(Unsupported, "the region is in {n} pieces: {PIECES_MAX} at most"));
        }
        held.extend(&pieces);
        Ok(pieces)
    }

    /// The pieces of a region that has ended.
    pub fn release(&self, pieces: &[(u64, u64)]) {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for piece in pieces {
            if let Some(at) = held.iter().position(|h| h == piece) {
                held.swap_remove(at);
            }
        }
    }

    /// What a child to come will have. The caller holds [`MOVING`].
    fn of_child(&self) -> Result<Inheritance> {
        let maps = own_maps()?;
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let page = page_size() as u64;
        // The first and the last page of a piece may hold other data, too.
        let inner = held.iter().map(|&(offset, len)| offset + page..offset + len - page);
        let mut inner: Vec<_> = inner.filter(|pages| !pages.is_empty()).collect();
        inner.sort_unstable_by_key(|pages| pages.start);
        let (mut mapped, mut copies) = (Vec::new(), Vec::new());
        for line in lines(&maps).filter(|l| l.is_of(self.inode)) {
            let (offset, len) = (line.offset, line.end - line.begin);
            mapped.push(Mapped { at: line.begin, len, offset, prot: line.prot() });
            copies.extend(outside(offset..offset + len, &inner).map(|pages| {
                line.begin + (pages.start - offset)..line.begin + (pages.end - offset)
            }));
        }
        Inheritance::prepare(self.fd.raw(), &mapped, &copies)
    }

    /// Moves a part. While the pages are read-only this thread runs no program code, so it cannot
    /// fault on them.
    fn move_part(&self, part: &Part, offset: u64, number: usize) -> Result<()> {
        let len = (part.end - part.begin) as usize;
        let copy = crate::map::Map::shared(self.fd.raw(), offset, len, true)?;
        // It may wait, so signals are blocked afterwards.
        let moves = moving::begin(number, part.begin..part.end);
        // SAFETY: zeroes are a valid set; all three live through the calls.
        let before = unsafe {
            let (mut all, mut before) = (core::mem::zeroed(), core::mem::zeroed());
            libc::sigfillset(&mut all);
            // The fault of a copy must reach its handler.
            [libc::SIGSEGV, libc::SIGBUS].iter().for_each(|&s| {
                libc::sigdelset(&mut all, s);
            });
            libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
            before
        };
        let moved = self.swap(part, offset, copy.as_ptr().addr() as u64, len);
        moves.end();
        // SAFETY: the mask that the thread had.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, core::ptr::null_mut()) };
        moved
    }

    fn swap(&self, part: &Part, offset: u64, copy: u64, len: usize) -> Result<()> {
        let at = core::ptr::without_provenance_mut::<libc::c_void>(part.begin as usize);
        let prot = libc::PROT_READ | if part.writable { libc::PROT_WRITE } else { 0 };
        // SAFETY: of the program's own pages, which it has asked to register; they stay readable,
        // and who writes meanwhile repeats that (`moving`).
        check(unsafe { libc::mprotect(at, len, libc::PROT_READ) })?;
        let copied = host::transfer(part.begin, copy, len)
            .map_err(|_| refuse!(Fault, "addr {:#x}: its memory is gone", part.begin));
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let placed = copied.and_then(|()| {
            // SAFETY: the same bytes come to the same addresses: nobody could write since the copy.
            let p = unsafe { libc::mmap(at, len, prot, flags, self.fd.raw(), offset as i64) };
            (p != libc::MAP_FAILED).then_some(()).ok_or_else(last_error)
        });
        // SAFETY: as above. A failed move gives the pages their protection back.
        unsafe {
            if placed.is_err() {
                libc::mprotect(at, len, prot);
            } else {
                libc::madvise(at, len, libc::MADV_DONTFORK);
            }
        }
        placed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::remote::pages::{File, Pages};
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    const MAPS: &str = "\
10000-12000 rw-p 00000000 00:00 0 [heap]
12000-13000 rw-s 00005000 00:01 77 /memfd:gdrcore-session (deleted)
13000-14000 r--p 00000000 fe:00 12 /usr/lib/x y.so
20000-21000 rw-s 00000000 00:01 78 /memfd:other (deleted)
30000-31000 ---p 00000000 00:00 0
40000-60000 rw-p 00000000 00:00 0 [stack]
70000-90000 rw-p 00000000 00:0f 9 /anon_hugepage (deleted)
a0000-b0000 r-xp 00000000 fe:00 12 /usr/bin/program
";

    #[test]
    fn a_range_has_parts_as_the_kernel_says() {
        let part = |begin, end, offset, writable| Part { begin, end, offset, writable };
        let found = parts(MAPS, 0x11000, 0x14000, 77, &[]).unwrap();
        let expected = [
            part(0x11000, 0x12000, None, true),
            part(0x12000, 0x13000, Some(0x5000), true),
            part(0x13000, 0x14000, None, false),
        ];
        assert_eq!(found, expected);
        let refused = |begin, end| parts(MAPS, begin, end, 77, &[]).unwrap_err();
        assert_eq!(refused(0x13000, 0x15000), Error::Fault, "a hole behind");
        assert_eq!(refused(0xf000, 0x11000), Error::Fault, "a hole before");
        assert_eq!(refused(0x30000, 0x31000), Error::Fault, "not readable");
        assert_eq!(refused(0x1000, 0x2000), Error::Fault);
        for (begin, end) in
            [(0x20000, 0x21000), (0x41000, 0x42000), (0x70000, 0x71000), (0xa0000, 0xa1000)]
        {
            assert_eq!(refused(begin, end), Error::Unsupported, "{begin:#x}");
        }
        // Another file of the same number is not ours.
        assert_eq!(parts(MAPS, 0x20000, 0x21000, 78, &[]).unwrap_err(), Error::Unsupported);
    }

    #[test]
    fn ranges_of_the_file_do_not_meet_and_are_used_again() {
        assert_eq!(free_range(&mut [], 4096, FILE), Ok(0));
        let behind = free_range(&mut [(0, 4096)], 4096, FILE).unwrap();
        assert!(behind >= 3 * 4096 + GAP);
        let far = 1 << 50;
        assert_eq!(free_range(&mut [(far, far + 4096)], 4096, FILE), Ok(0));
        assert_eq!(free_range(&mut [(0, FILE - 4096)], 4096, FILE), Err(Error::NoMemory));
        assert_eq!(free_range(&mut [], FILE + 1, FILE), Err(Error::NoMemory));
    }

    #[test]
    fn adopted_memory_is_the_routers_too_while_threads_write_to_it() {
        // Page by page, and all at once: the longer a move takes, the surer a write meets it.
        [1, 64].into_iter().for_each(adopt_while_written);
    }

    fn adopt_while_written(step: usize) {
        let len = 64 * page_size();
        let memory = Map::new(len).unwrap();
        let at = memory.as_ptr().addr();
        let word = |n: usize| {
            // SAFETY: inside the map; an atomic, for which any bits are valid.
            unsafe { &*memory.as_ptr().add(n * page_size()).cast::<AtomicU64>() }
        };
        let adopter = Adopter::of_process().unwrap();
        let stop = AtomicBool::new(false);
        std::thread::scope(|s| {
            // No increment may be lost, whenever the pages move.
            let counts = s.spawn(|| {
                let mut n = 0u64;
                while !stop.load(Ordering::Acquire) {
                    (0..64).for_each(|k| _ = word(k).fetch_add(1, Ordering::Relaxed));
                    n += 1;
                }
                n
            });
            while word(63).load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            for k in (0..64).step_by(step) {
                let (from, pages) = (at + k * page_size(), step * page_size());
                adopter.adopt(from as u64 + 8, pages as u64 - 16, true).unwrap();
            }
            stop.store(true, Ordering::Release);
            let n = counts.join().unwrap();
            (0..64).for_each(|k| assert_eq!(word(k).load(Ordering::Relaxed), n, "page {k}"));
        });
        let pieces = adopter.adopt(at as u64, len as u64, true).unwrap();
        assert_eq!(pieces.len(), 64 / step, "as they were adopted");
        let file = File::new(adopter.fd().try_clone_to_owned().unwrap().into()).unwrap();
        let pages = Pages::map(&file, &pieces, true).unwrap();
        host::place(pages.addr() + 5 * page_size() as u64, &77u64.to_ne_bytes()).unwrap();
        assert_eq!(word(5).load(Ordering::Relaxed), 77);
        adopter.release(&pieces);
    }

    #[test]
    fn memory_that_has_grown_is_whole_and_meets_no_other() {
        let page = page_size();
        let adopter = Adopter::of_process().unwrap();
        let map = || {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let p = unsafe { libc::mmap(core::ptr::null_mut(), page, prot, flags, -1, 0) };
            assert_ne!(p, libc::MAP_FAILED);
            adopter.release(&adopter.adopt(p.addr() as u64, 8, true).unwrap());
            p
        };
        let (a, b) = (map(), map());
        let long = 1024 * page;
        // SAFETY: the two mappings above, of which nobody else knows.
        unsafe {
            b.cast::<u8>().write(7);
            let a = libc::mremap(a, page, long, libc::MREMAP_MAYMOVE);
            assert_ne!(a, libc::MAP_FAILED);
            // As the router does it: no page may be missing.
            let pieces = adopter.adopt(a.addr() as u64, long as u64, true).unwrap();
            let file = File::new(adopter.fd().try_clone_to_owned().unwrap().into()).unwrap();
            Pages::map(&file, &pieces, true).unwrap();
            a.cast::<u8>().write_bytes(9, long);
            assert_eq!(b.cast::<u8>().read(), 7);
            adopter.release(&pieces);
            libc::munmap(a, long);
            libc::munmap(b, page);
        }
    }

    #[test]
    fn a_fork_waits_until_no_page_moves() {
        let _fork = gdrcore_testkit::descriptors::fork();
        let _adopter = Adopter::of_process().unwrap();
        let (moves, moved) = (AtomicBool::new(false), AtomicBool::new(false));
        let status = std::thread::scope(|s| {
            s.spawn(|| {
                let held = MOVING.lock();
                moves.store(true, Ordering::Release);
                // The longer, the surer is a fork that does not wait found out.
                std::thread::sleep(Duration::from_millis(50));
                moved.store(true, Ordering::Release);
                drop(held);
            });
            while !moves.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            // SAFETY: the child makes only async-signal-safe calls and ends by _exit.
            let pid = unsafe { libc::fork() };
            assert!(pid >= 0);
            if pid == 0 {
                let free = MOVING.is_free();
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(i32::from(!(moved.load(Ordering::Acquire) && free))) };
            }
            let mut status = 0;
            // SAFETY: our own child and a valid place for its status.
            assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
            status
        });
        assert_eq!(status, 0, "the child has pages that move, or a lock that nobody opens");
    }

    #[test]
    fn a_child_has_pages_of_its_own_in_place_of_adopted_ones() {
        let _fork = gdrcore_testkit::descriptors::fork();
        let page = page_size();
        let memory = Map::new(8 * page).unwrap();
        let at = |n: usize| memory.as_ptr().addr() as u64 + (n * page) as u64;
        let byte = |n: usize, to: Option<u8>| {
            // SAFETY: inside the map; the test's own, by volatile accesses.
            unsafe {
                let p = memory.as_ptr().add(n * page + 7);
                to.into_iter().for_each(|to| p.write_volatile(to));
                p.read_volatile()
            }
        };
        let adopter = Adopter::of_process().unwrap();
        (0..8).for_each(|n| _ = byte(n, Some(n as u8 + 1)));
        // A region of three pages, one that has ended, and a page that is read-only meanwhile.
        let pieces = adopter.adopt(at(1) + 64, 2 * page as u64, true).unwrap();
        adopter.release(&adopter.adopt(at(5), 8, true).unwrap());
        adopter.release(&adopter.adopt(at(7), 8, true).unwrap());
        let protect = |n: usize, prot| {
            // SAFETY: a page of the map.
            let rc = unsafe { libc::mprotect(memory.as_ptr().add(n * page).cast(), page, prot) };
            assert_eq!(rc, 0);
        };
        protect(7, libc::PROT_READ);
        let (mut to_child, mut to_parent) = ([0; 2], [0; 2]);
        // SAFETY: places for two descriptors each.
        unsafe {
            assert_eq!(
                (libc::pipe(to_child.as_mut_ptr()), libc::pipe(to_parent.as_mut_ptr())),
                (0, 0)
            );
        }
        let mut got = [0u8; 9];
        // SAFETY: the child makes only async-signal-safe calls and ends by _exit; descriptors and
        // places of this test.
        unsafe {
            let pid = libc::fork();
            assert!(pid >= 0);
            if pid == 0 {
                libc::read(to_child[0], got.as_mut_ptr().cast(), 1);
                (0..8).for_each(|n| got[n] = byte(n, None));
                (0..7).for_each(|n| _ = byte(n, Some(99)));
                let is_read_only = crate::fault::probe(at(7), 8, true).is_err();
                got[8] = u8::from(is_read_only && crate::fault::probe(at(6), 8, true).is_ok());
                libc::write(to_parent[1], got.as_ptr().cast(), 9);
                libc::_exit(0);
            }
            // Else a child that has ended would not end the pipe.
            libc::close(to_parent[1]);
            // What the parent writes now shows inside of the region alone.
            (0..7).for_each(|n| _ = byte(n, Some(50)));
            libc::write(to_child[1], [1u8].as_ptr().cast(), 1);
            assert_eq!(libc::read(to_parent[0], got.as_mut_ptr().cast(), 9), 9);
            let mut status = 0;
            assert_eq!((libc::waitpid(pid, &mut status, 0), status), (pid, 0));
            [to_child[0], to_child[1], to_parent[0]].iter().for_each(|&fd| _ = libc::close(fd));
        }
        assert_eq!(got, [1, 2, 50, 4, 5, 6, 7, 8, 1]);
        assert!((0..7).all(|n| byte(n, None) == 50), "the child's writes are its own");
        adopter.release(&pieces);
    }

    #[test]
    fn pages_outside_of_holes() {
        let of = |holes: &[(u64, u64)]| {
            let holes: Vec<_> = holes.iter().map(|&(start, end)| start..end).collect();
            outside(10..20, &holes).map(|part| (part.start, part.end)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), [(10, 20)]);
        let holes = [(0, 5), (3, 12), (14, 15), (14, 17), (19, 30), (40, 50)];
        assert_eq!(of(&holes), [(12, 14), (17, 19)]);
        assert_eq!(of(&[(0, 10), (20, 30)]), [(10, 20)]);
        assert_eq!(of(&[(9, 20)]), []);
    }

    #[test]
    fn memory_that_is_missing_or_read_only_is_refused() {
        let adopter = Adopter::of_process().unwrap();
        static FIXED: [u8; 8] = [1; 8];
        let at = FIXED.as_ptr().addr() as u64;
        assert_eq!(adopter.adopt(at, 8, true), Err(Error::Fault));
        assert_eq!(adopter.adopt(4096, 4096, false), Err(Error::Fault));
        for (addr, length) in [(0, 0), (u64::MAX, 1), (u64::MAX - 4096, 4096), (1 << 62, 4096)] {
            assert_eq!(adopter.adopt(addr, length, false), Err(Error::Invalid), "{addr:#x}");
        }
        let here = 5u64;
        let at = (&raw const here).addr() as u64;
        assert_eq!(adopter.adopt(at, 8, true), Err(Error::Unsupported), "a stack");
        // One that no thread was started with, as a coroutine has.
        let (begin, end) = ((at - STACK) & !4095, (at & !4095) + 4096);
        let line = format!("{begin:x}-{end:x} rw-p 00000000 00:00 0 ");
        assert_eq!(parts(&line, end - 4096, end, 1, &[]).err(), Some(Error::Unsupported));
    }

    #[test]
    fn another_threads_stack_is_refused() {
        let adopter = Adopter::of_process().unwrap();
        let (at, end) = (std::sync::mpsc::channel(), std::sync::Barrier::new(2));
        std::thread::scope(|s| {
            s.spawn(|| {
                let deep = [7u8; 100_000];
                let top = deep.as_ptr().addr() as u64 + 99_999;
                at.0.send([deep.as_ptr().addr() as u64, top]).unwrap();
                end.wait();
                assert!(std::hint::black_box(&deep).iter().all(|b| *b == 7));
            });
            let of_thread = at.1.recv().unwrap();
            let refused = of_thread.map(|addr| adopter.adopt(addr, 1, true));
            end.wait();
            assert_eq!(refused, [Err(Error::Unsupported), Err(Error::Unsupported)]);
        });
        // Where other memory is in its mapping, that moves.
        let line = |begin, end| format!("{begin:x}-{end:x} rw-p 00000000 00:00 0 ");
        let (begin, end, top) = (1 << 30, (1 << 30) + (64 << 20), (1 << 30) + (32 << 20));
        let may = |from: u64, to: u64| parts(&line(begin, end), from, to, 1, &[top]).is_ok();
        assert!(may(begin, top - STACK) && may(top + 4096, end));
        assert!(!may(begin, top - STACK + 4096) && !may(top & !4095, end) && !may(begin, end));
    }
}
