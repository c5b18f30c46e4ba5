//! Handlers of SIGSEGV and SIGBUS: a fault on vanished memory inside core's copies becomes an error
//! of the copy.
//!
//! The copy loops of [`gdrcore_core::mem::host`] have a landing address for each of their
//! instructions. The handlers here look a fault's address up among them and continue there. Every
//! other fault goes to the handler that was installed before. Threads that run the engine must
//! leave SIGSEGV and SIGBUS unblocked: the kernel kills a process in which a real fault raises a
//! blocked signal.
//!
//! A program may install a handler of its own later. The next [`install`] puts ours in front of it,
//! with another entry point for each handler that it replaces. So a program that restores an older
//! action gets that action. The program's handler may pass a signal on to ours, which it replaced.
//! Ours notes in the signal's information which handlers were called, so that no two pass a signal
//! to each other for ever.

use crate::map::page_size;
use crate::remote::moving::is_moving;
use crate::sys::{check, errno};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use gdrcore_core::refuse;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// The two signals of a bad access.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Most handlers of the program, per signal, that ours can stand in front of. Further ones stay in
/// front of ours.
const HANDLERS: usize = 16;

/// A handler with siginfo, as the kernel calls it.
type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Our handlers, one for each action that ours can replace.
static ENTRIES: [Handler; HANDLERS] = [
    handler::<0>,
    handler::<1>,
    handler::<2>,
    handler::<3>,
    handler::<4>,
    handler::<5>,
    handler::<6>,
    handler::<7>,
    handler::<8>,
    handler::<9>,
    handler::<10>,
    handler::<11>,
    handler::<12>,
    handler::<13>,
    handler::<14>,
    handler::<15>,
];

/// The actions of one signal that ours have replaced, oldest first. `ENTRIES[n]` replaced entry
/// `n`.
struct Replaced {
    actions: [UnsafeCell<MaybeUninit<libc::sigaction>>; HANDLERS],
    len: AtomicUsize,
    /// A bit for each action whose handler was for one signal (SA_RESETHAND) and has run.
    spent: AtomicU64,
}

// SAFETY: an entry is written once, by the thread that holds `CHANGING`, before `len` counts it
// with release, and only read afterwards, by threads that loaded `len` with acquire.
unsafe impl Sync for Replaced {}

impl Replaced {
    const fn new() -> Self {
        Replaced {
            actions: [const { UnsafeCell::new(MaybeUninit::uninit()) }; HANDLERS],
            len: AtomicUsize::new(0),
            spent: AtomicU64::new(0),
        }
    }

    fn get(&self, n: usize) -> Option<&libc::sigaction> {
        // SAFETY: what `len` counts was written before and does not change.
        (n < self.len.load(Ordering::Acquire))
            .then(|| unsafe { (*self.actions[n].get()).assume_init_ref() })
    }

    /// Finds or adds the entry of an action that the program has just installed. `None`: no entry
    /// is free. The caller holds `CHANGING`.
    fn put(&self, action: libc::sigaction) -> Option<usize> {
        let len = self.len.load(Ordering::Relaxed);
        if let Some(known) = (0..len).find(|&n| self.get(n).is_some_and(|a| is_same(a, &action))) {
            self.spent.fetch_and(!(1 << known), Ordering::AcqRel);
            return Some(known);
        }
        let free = self.actions.get(len)?;
        // SAFETY: no thread reads an entry that `len` does not count, and no other thread writes
        // (`CHANGING`).
        unsafe { (*free.get()).write(action) };
        self.len.store(len + 1, Ordering::Release);
        Some(len)
    }
}

static REPLACED: [Replaced; 2] = [const { Replaced::new() }; 2];

/// Flags that ours takes over from the program's handler: the stack, the blocked signals, and
/// whether system calls are restarted.
const INHERITED: i32 = libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;

/// Memory is there, and its protection forbids the access: asm-generic/siginfo.h.
const SEGV_ACCERR: i32 = 2;

/// Held by the thread that changes the actions of signals.
static CHANGING: AtomicBool = AtomicBool::new(false);

fn is_same(a: &libc::sigaction, b: &libc::sigaction) -> bool {
    // SAFETY: sets are plain words, all of which the kernel has written.
    let mask = |s: &libc::sigaction| unsafe {
        core::mem::transmute::<libc::sigset_t, [u64; 16]>(s.sa_mask)[0]
    };
    a.sa_sigaction == b.sa_sigaction && a.sa_flags == b.sa_flags && mask(a) == mask(b)
}

/// The number of our handler that an action calls.
fn entry_of(action: &libc::sigaction) -> Option<usize> {
    ENTRIES.iter().position(|&e| e as *const () as usize == action.sa_sigaction)
}

fn is_ours(action: &libc::sigaction) -> bool {
    entry_of(action).is_some()
}

/// The action of a signal.
fn read_action(signal: i32) -> Result<libc::sigaction> {
    // SAFETY: sigaction is plain data for which zeroes are valid.
    let mut now: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: asks only; `now` has room for the answer.
    check(unsafe { libc::sigaction(signal, core::ptr::null(), &mut now) })?;
    Ok(now)
}

/// Puts our handlers in front. Any thread; called before the first copy, and whenever the program
/// may have installed handlers of its own. No effect on machines where core has no landing
/// addresses ([`host::HAS_LANDINGS`]).
///
/// # Errors
/// Those of sigaction(2), which does not fail on Linux. `Busy`: another thread held the list for
/// too long; in a child of a fork, this may be one of the parent.
///
/// # Cost
/// Two system calls.
pub fn install() -> Result<()> {
    if !host::HAS_LANDINGS
        || (is_ours(&read_action(SIGNALS[0])?) && is_ours(&read_action(SIGNALS[1])?))
    {
        return Ok(());
    }
    let mut tries = 0u32;
    while CHANGING.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
        // The other thread is between two system calls.
        if tries > 10_000 {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        if tries > 11_000 {
            return Err(refuse!(
                Busy,
                "signal handlers: another thread installs them, for seconds"
            ));
        }
        tries += 1;
        std::thread::yield_now();
    }
    let result = SIGNALS
        .into_iter()
        .zip(&REPLACED)
        .try_for_each(|(signal, replaced)| put_in_front(signal, replaced));
    CHANGING.store(false, Ordering::Release);
    result
}

/// Installs an action and returns the one that it replaced.
fn set(signal: i32, new: &libc::sigaction) -> Result<libc::sigaction> {
    // SAFETY: sigaction is plain data for which zeroes are valid.
    let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
    // SAFETY: a whole action, and room for the old one.
    check(unsafe { libc::sigaction(signal, new, &mut old) })?;
    Ok(old)
}

/// Puts our handler in front of a signal's action. The caller holds `CHANGING`.
fn put_in_front(signal: i32, replaced: &Replaced) -> Result<()> {
    let mut behind = read_action(signal)?;
    let mut last = 0;
    // Other threads of the program may install handlers meanwhile. Each call returns the action
    // that it replaced, so no action is lost.
    while !is_ours(&behind) {
        // SAFETY: sigaction is plain data for which zeroes are valid.
        let mut new: libc::sigaction = unsafe { core::mem::zeroed() };
        let Some(n) = replaced.put(behind) else {
            // Without a free entry, the replaced action is restored.
            return if last == 0 { Ok(()) } else { set(signal, &behind).map(|_| ()) };
        };
        new.sa_sigaction = ENTRIES[n] as *const () as usize;
        new.sa_flags = libc::SA_SIGINFO | behind.sa_flags & INHERITED;
        new.sa_mask = behind.sa_mask;
        if matches!(behind.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            // A thread with an alternate stack may have little room on its own. System calls are
            // restarted after an ignored signal.
            new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // SAFETY: the mask is part of `new`.
            unsafe { libc::sigemptyset(&mut new.sa_mask) };
        }
        let old = set(signal, &new)?;
        if is_same(&old, &behind) || old.sa_sigaction == last {
            return Ok(());
        }
        if is_ours(&old) {
            // The program has just restored an action of ours.
            return set(signal, &old).map(|_| ());
        }
        (behind, last) = (old, new.sa_sigaction);
    }
    Ok(())
}

/// Removes our handlers where they are in front, and restores the program's: this library's code
/// may be unmapped next (dlclose). A handler of the program that is in front stays. Any thread,
/// once no thread copies any more.
pub fn uninstall() {
    for (signal, replaced) in SIGNALS.into_iter().zip(&REPLACED) {
        let Ok(now) = read_action(signal) else { continue };
        let Some(n) = entry_of(&now) else { continue };
        let Some(mut behind) = replaced.get(n).copied() else { continue };
        if behind.sa_flags & libc::SA_RESETHAND != 0
            && replaced.spent.load(Ordering::Acquire) & 1 << n != 0
        {
            behind.sa_sigaction = libc::SIG_DFL;
        }
        // Another thread of the program may have installed a handler since.
        if let Ok(old) = set(signal, &behind) {
            if !is_same(&old, &now) {
                let _ = set(signal, &old);
            }
        }
    }
}

/// A note in the information of a signal: the handlers that each copy of this library has called.
#[repr(C)]
struct Note {
    /// The copy; 0: none.
    owner: usize,
    /// A bit for each of its `REPLACED`.
    called: u64,
}

/// Bytes of a siginfo that the kernel uses for faults. It sets the rest to 0.
const NOTES_AT: usize = 48;
const INFO_BYTES: usize = 128;
const _: () = assert!(
    size_of::<libc::siginfo_t>() == INFO_BYTES && NOTES_AT.is_multiple_of(align_of::<Note>())
);

/// The note of this copy of the library. `None`: there is no room.
///
/// # Safety
/// `info` is a signal's, or a copy of it, and nothing else accesses it meanwhile.
unsafe fn note<'a>(info: *mut libc::siginfo_t) -> Option<&'a mut Note> {
    let owner = (&raw const REPLACED).addr();
    (0..(INFO_BYTES - NOTES_AT) / size_of::<Note>()).find_map(|n| {
        // SAFETY: inside of `info`, whose alignment is that of its pointers; any bits are a note.
        let note = unsafe { &mut *info.byte_add(NOTES_AT).cast::<Note>().add(n) };
        if note.owner == 0 {
            *note = Note { owner, called: 0 };
        }
        (note.owner == owner).then_some(note)
    })
}

/// The next handler to call for the signal: the newest behind `ENTRIES[top]` that was not called
/// yet. `None`: the system's action.
fn next<'a>(replaced: &'a Replaced, top: usize, note: &mut Note) -> Option<&'a libc::sigaction> {
    let n = (0..=top).rev().find(|&n| note.called & 1 << n == 0)?;
    note.called |= 1 << n;
    let action = replaced.get(n)?;
    // The kernel would put SIG_DFL in front; ours stays there and notes that the handler has run.
    let once = action.sa_flags & libc::SA_RESETHAND != 0;
    let spent = once && replaced.spent.fetch_or(1 << n, Ordering::AcqRel) & 1 << n != 0;
    Some(action).filter(|_| !spent)
}

/// Continues a copy that faulted at its landing address, or passes the signal on.
extern "C" fn handler<const TOP: usize>(
    signal: i32,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    let errno = errno();
    pass(TOP, signal, info, context);
    // SAFETY: the thread's own variable.
    unsafe { *libc::__errno_location() = errno };
}

fn pass(top: usize, signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(k) = SIGNALS.iter().position(|&s| s == signal) else { return };
    // A program may pass a signal on without its information, which then gets the system's action.
    // SAFETY: information that is there is a valid siginfo, as the kernel passes it to SA_SIGINFO
    // handlers.
    let from_kernel = info.is_null() || unsafe { (*info).si_code } > 0;
    // Before the landing: a copy into pages that move is to be repeated as well.
    // SAFETY: as above; the signals of faults have an address in their information.
    let address = (signal == libc::SIGSEGV && !info.is_null())
        .then(|| unsafe { ((*info).si_code, (*info).si_addr().addr() as u64) });
    if address.is_some_and(|(code, addr)| code == SEGV_ACCERR && is_moving(addr)) {
        // SAFETY: no pointers.
        unsafe { libc::sched_yield() };
        return;
    }
    // SAFETY: the kernel passes the interrupted context, ours to change until we return.
    if from_kernel && !context.is_null() && unsafe { leave_copy(context) } {
        return;
    }
    let previous = if info.is_null() {
        None
    } else {
        // SAFETY: as above; a handler has its signal's information to itself.
        unsafe { note(info) }.and_then(|note| next(&REPLACED[k], top, note))
    };
    let (function, flags) = previous.map_or((libc::SIG_DFL, 0), |p| (p.sa_sigaction, p.sa_flags));
    match function {
        libc::SIG_IGN if !from_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // A fault repeats itself when we return and then ends the process as it would have
            // without us. A signal that a process sent does not repeat, so it is sent again.
            // SAFETY: async-signal-safe calls with valid arguments.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !from_kernel {
                    libc::raise(signal);
                }
            }
        }
        function => {
            // SAFETY: async-signal-safe; the masks are whole. The kernel restores the mask when we
            // return.
            unsafe {
                if let Some(p) = previous {
                    libc::pthread_sigmask(libc::SIG_BLOCK, &p.sa_mask, core::ptr::null_mut());
                }
                let masked = previous.is_some_and(|p| libc::sigismember(&p.sa_mask, signal) == 1);
                if flags & libc::SA_NODEFER != 0 && !masked {
                    let mut own: libc::sigset_t = core::mem::zeroed();
                    libc::sigemptyset(&mut own);
                    libc::sigaddset(&mut own, signal);
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &own, core::ptr::null_mut());
                }
            }
            if flags & libc::SA_SIGINFO != 0 {
                // SAFETY: it was installed with SA_SIGINFO, which promises this signature.
                let f: Handler = unsafe { core::mem::transmute(function) };
                f(signal, info, context);
            } else {
                // SAFETY: it was installed without SA_SIGINFO, which promises this signature.
                let f: extern "C" fn(i32) = unsafe { core::mem::transmute(function) };
                f(signal);
            }
        }
    }
}

/// Moves the interrupted thread to the landing address of its instruction, if that has one.
///
/// # Safety
/// `context` is the ucontext of the running signal handler.
unsafe fn leave_copy(context: *mut libc::c_void) -> bool {
    // SAFETY: by the caller's promise.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let pc = &mut machine.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let pc = &mut machine.pc;
    // Core has no landing addresses elsewhere.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let (pc, _) = (&mut 0, machine);
    match host::fixup(*pc as usize) {
        Some(landing) => {
            *pc = landing as _;
            true
        }
        None => false,
    }
}

/// Checks that a whole range can be read, and written if `write`; changes no byte of it.
///
/// Populates the pages, as a registration with a NIC would: holes, PROT_NONE, read-only pages and
/// pages past the end of a file are found now. The copies handle later changes of the range.
///
/// # Errors
/// `Fault`.
///
/// # Cost
/// One system call and the page faults; if the kernel cannot populate (before 5.14, mappings of
/// device memory), one access per page.
pub fn probe(addr: u64, len: u64, write: bool) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let refused = || {
        let done = if write { "written" } else { "read" };
        refuse!(
            Fault,
            "addr {addr:#x}: of the {len:#x} bytes from there some are not mapped, or cannot be \
             {done}"
        )
    };
    let page = page_size() as u64;
    let first = addr & !(page - 1);
    let end = addr.checked_add(len).and_then(|e| e.checked_add(page - 1)).ok_or_else(refused)?
        & !(page - 1);
    // Program memory lies in the lower half.
    if end > i64::MAX as u64 || first == 0 {
        return Err(refused());
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    for _ in 0..16 {
        // SAFETY: populating changes no contents, whatever the range holds.
        if unsafe { libc::madvise(first as *mut libc::c_void, (end - first) as usize, advice) } == 0
        {
            return Ok(());
        }
        match errno() {
            libc::EAGAIN | libc::EINTR => {}
            libc::EINVAL => return touch(first, end, page, write).map_err(|_| refused()),
            _ => break,
        }
    }
    Err(refused())
}

/// One harmless access per page: a load, or an atomic addition of zero. Without landing addresses a
/// bad page would end the process, so a range that the kernel cannot check is refused.
fn touch(first: u64, end: u64, page: u64, write: bool) -> Result<()> {
    if !host::HAS_LANDINGS {
        // No words: `probe` names the argument.
        return Err(Error::Fault);
    }
    install()?;
    let mut at = first;
    while at < end {
        let fine = if write {
            host::fetch_add(at, 0).is_ok()
        } else {
            host::fetch(at, &mut [0u8; 1]).is_ok()
        };
        if !fine {
            // No words: `probe` names the argument.
            return Err(Error::Fault);
        }
        at += page;
    }
    Ok(())
}

#[cfg(test)]
mod crc_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::sys::Fd;

    fn protect(m: &Map, from: usize, pages: usize, prot: i32) {
        // SAFETY: pages of our own map.
        let rc = unsafe {
            libc::mprotect(m.as_ptr().add(from * page_size()).cast(), pages * page_size(), prot)
        };
        assert_eq!(rc, 0);
    }

    /// Both ways of probing must agree.
    fn both(addr: u64, len: u64, write: bool) -> Result<()> {
        let page = page_size() as u64;
        let one = probe(addr, len, write);
        let two = touch(addr & !(page - 1), (addr + len).next_multiple_of(page), page, write);
        assert_eq!(one, two, "the fallback disagrees");
        one
    }

    #[test]
    fn good_memory_passes_and_stays_as_it_is() {
        let m = Map::new(64 * page_size()).unwrap();
        let at = m.as_ptr() as u64;
        // SAFETY: our own map.
        unsafe { m.as_ptr().write_bytes(0x5a, m.len()) };
        for (off, len) in
            [(0, 1), (1, 1), (100, 10_000), (0, m.len() as u64), (m.len() as u64 - 1, 1)]
        {
            assert_eq!(both(at + off, len, true), Ok(()));
            assert_eq!(both(at + off, len, false), Ok(()));
        }
        // SAFETY: our own map.
        assert!(unsafe { core::slice::from_raw_parts(m.as_ptr(), m.len()) }
            .iter()
            .all(|&b| b == 0x5a));
        assert_eq!(probe(0x1234, 0, true), Ok(()), "nothing to check");
        let stack = [0u8; 100];
        assert_eq!(both(stack.as_ptr() as u64, 100, true), Ok(()));
        let text = probe as *const () as u64;
        assert_eq!(both(text, 16, false), Ok(()), "code can be read");
        assert_eq!(both(text, 16, true), Err(Error::Fault), "but not written");
    }

    #[test]
    fn protections_and_holes_are_found() {
        let p = page_size();
        let m = Map::new(8 * p).unwrap();
        let at = m.as_ptr() as u64;
        protect(&m, 3, 1, libc::PROT_READ);
        protect(&m, 5, 1, libc::PROT_NONE);
        let page = p as u64;
        assert_eq!(both(at, 3 * page, true), Ok(()));
        assert_eq!(both(at, 3 * page + 1, true), Err(Error::Fault));
        assert_eq!(both(at, 5 * page, false), Ok(()));
        assert_eq!(both(at, 5 * page + 1, false), Err(Error::Fault));
        assert_eq!(both(at + 6 * page, 2 * page, true), Ok(()));
        // SAFETY: a page of our own map, used by nobody.
        unsafe { libc::munmap(m.as_ptr().add(6 * p).cast(), p) };
        assert_eq!(probe(at + 6 * page, 1, false), Err(Error::Fault));
    }

    #[test]
    fn a_file_ends_where_it_ends() {
        let p = page_size();
        // SAFETY: the name is a C string.
        let fd = Fd::from_call(unsafe { libc::memfd_create(c"probe".as_ptr(), libc::MFD_CLOEXEC) })
            .unwrap();
        // SAFETY: takes no pointers.
        unsafe { libc::ftruncate(fd.raw(), 2 * p as i64) };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let m = unsafe {
            libc::mmap(core::ptr::null_mut(), 4 * p, prot, libc::MAP_SHARED, fd.raw(), 0)
        };
        let (at, page) = (m as u64, p as u64);
        assert_eq!(both(at, 2 * page, true), Ok(()));
        assert_eq!(both(at, 2 * page + 1, true), Err(Error::Fault));
        assert_eq!(both(at, 2 * page + 1, false), Err(Error::Fault));
        // The file shrinks under a copy: SIGBUS becomes an error.
        install().unwrap();
        let mut b = [0u8; 64];
        assert!(host::fetch(at + page, &mut b).is_ok());
        // SAFETY: takes no pointers.
        unsafe { libc::ftruncate(fd.raw(), p as i64) };
        assert!(host::fetch(at + page, &mut b).is_err());
        assert!(host::place(at + page, &b).is_err());
        assert!(host::fetch_add(at + page, 1).is_err());
        assert!(host::cmp_swap(at + page, 0, 1).is_err());
        assert!(host::place(at, &b).is_ok());
        // SAFETY: the mapping made above.
        unsafe { libc::munmap(m, 4 * p) };
        assert!(host::place(at, &b).is_err(), "unmapped");
        assert!(host::fetch(0x8000_0000_0000_0000, &mut b).is_err(), "no canonical address");
    }

    #[test]
    fn impossible_ranges_are_refused() {
        for (addr, len) in [
            (0, 1),
            (0, 8192),
            (u64::MAX, 1),
            (u64::MAX - 8191, 4096),
            (4096, u64::MAX),
            (1 << 63, 4096),
        ] {
            assert_eq!(probe(addr, len, false), Err(Error::Fault), "{addr:#x} + {len:#x}");
            assert_eq!(probe(addr, len, true), Err(Error::Fault), "{addr:#x} + {len:#x}");
        }
    }
}
