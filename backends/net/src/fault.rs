//! Memory that vanishes: a fault inside core's copies becomes an error of the copy.
//!
//! The copy loops of [`gdrcore_core::mem::host`] know a landing place for each of their instructions. The handlers
//! here look a fault's address up among them and continue there; every other fault goes to whoever handled it before.
//! Threads that run the engine must leave SIGSEGV and SIGBUS unblocked: the kernel kills a process whose blocked
//! signal is a real fault.

use crate::map::page_size;
use crate::sys::{check, errno};
use gdrcore_core::error::{Error, Result};
use gdrcore_core::mem::host;
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering};

/// The two signals of a bad access, and where their previous actions are kept.
const SIGNALS: [i32; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Who handled a signal before us. Written before our handler is in place, only read afterwards.
struct Previous(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: `install` writes it once, before the handler that reads it can run.
unsafe impl Sync for Previous {}

static PREVIOUS: [Previous; 2] = [const { Previous(UnsafeCell::new(MaybeUninit::uninit())) }; 2];

static STATE: AtomicU32 = AtomicU32::new(NOT_INSTALLED);
const NOT_INSTALLED: u32 = 0;
const INSTALLING: u32 = 1;
const INSTALLED: u32 = 2;

/// Installs the handlers, once per process; later calls do nothing. Any thread, before the first copy.
///
/// A program that sets its own handlers afterwards should call the one that it replaced for faults that are not its
/// own. On machines where core has no landing places (other than x86-64) there is nothing to install.
///
/// # Errors
/// What sigaction(2) says; it does not fail on Linux.
pub fn install() -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Ok(());
    }
    loop {
        match STATE.compare_exchange(NOT_INSTALLED, INSTALLING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => break,
            Err(INSTALLED) => return Ok(()),
            // Another thread is between two system calls.
            Err(_) => std::thread::yield_now(),
        }
    }
    let result = install_both();
    STATE.store(if result.is_ok() { INSTALLED } else { NOT_INSTALLED }, Ordering::Release);
    result
}

fn install_both() -> Result<()> {
    for (signal, previous) in SIGNALS.into_iter().zip(&PREVIOUS) {
        // SAFETY: sigaction is plain data for which zeroes are valid.
        let mut old: libc::sigaction = unsafe { core::mem::zeroed() };
        // SAFETY: asks only; `old` has room for the answer.
        check(unsafe { libc::sigaction(signal, core::ptr::null(), &mut old) })?;
        if old.sa_sigaction == handler as *const () as usize {
            continue;
        }
        // SAFETY: INSTALLING keeps other threads out, and our handler does not run for this signal yet.
        unsafe { (*previous.0.get()).write(old) };
        // SAFETY: as above.
        let mut new: libc::sigaction = unsafe { core::mem::zeroed() };
        new.sa_sigaction = handler as *const () as usize;
        // On the alternate stack where there is one: the previous handler may be one for stack overflows.
        new.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the mask is part of `new`.
        unsafe { libc::sigemptyset(&mut new.sa_mask) };
        // SAFETY: `new` is a whole action and the handler is async-signal-safe.
        check(unsafe { libc::sigaction(signal, &new, core::ptr::null_mut()) })?;
    }
    Ok(())
}

/// Continues a copy that faulted at its landing place, or passes the signal on.
extern "C" fn handler(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to SA_SIGINFO handlers.
    let from_kernel = unsafe { (*info).si_code } > 0;
    // SAFETY: the kernel passes the interrupted context, ours to change until we return.
    if from_kernel && unsafe { land(context) } {
        return;
    }
    let Some(k) = SIGNALS.iter().position(|&s| s == signal) else { return };
    // SAFETY: written before this handler was installed, and never again.
    let previous = unsafe { (*PREVIOUS[k].0.get()).assume_init_ref() };
    match previous.sa_sigaction {
        libc::SIG_IGN if !from_kernel => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // A fault repeats itself when we return and now ends the process as it would have without us; a signal
            // that somebody sent does not, so it is sent again.
            // SAFETY: async-signal-safe calls with valid arguments.
            unsafe {
                libc::signal(signal, libc::SIG_DFL);
                if !from_kernel {
                    libc::raise(signal);
                }
            }
        }
        function => {
            // SAFETY: async-signal-safe; the masks are whole. The kernel restores the mask when we return.
            unsafe {
                libc::pthread_sigmask(libc::SIG_BLOCK, &previous.sa_mask, core::ptr::null_mut());
                if previous.sa_flags & libc::SA_NODEFER != 0 {
                    let mut own: libc::sigset_t = core::mem::zeroed();
                    libc::sigemptyset(&mut own);
                    libc::sigaddset(&mut own, signal);
                    libc::pthread_sigmask(libc::SIG_UNBLOCK, &own, core::ptr::null_mut());
                }
            }
            if previous.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: whoever installed it with SA_SIGINFO promised this signature.
                let f: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                    unsafe { core::mem::transmute(function) };
                f(signal, info, context);
            } else {
                // SAFETY: whoever installed it without SA_SIGINFO promised this signature.
                let f: extern "C" fn(i32) = unsafe { core::mem::transmute(function) };
                f(signal);
            }
        }
    }
}

/// Moves the interrupted thread to the landing place of its instruction, if that has one.
///
/// # Safety
/// `context` is the ucontext of the running signal handler.
#[cfg(target_arch = "x86_64")]
unsafe fn land(context: *mut libc::c_void) -> bool {
    // SAFETY: by the caller's promise.
    let context = unsafe { &mut *context.cast::<libc::ucontext_t>() };
    let pc = &mut context.uc_mcontext.gregs[libc::REG_RIP as usize];
    match host::fixup(*pc as usize) {
        Some(landing) => {
            *pc = landing as libc::greg_t;
            true
        }
        None => false,
    }
}

/// Core has no landing places here.
///
/// # Safety
/// None needed.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn land(_: *mut libc::c_void) -> bool {
    false
}

/// Checks that all of a range can be read, and written if `write`; changes no byte of it.
///
/// Brings the pages in, as registering them with a NIC would: holes, PROT_NONE, read-only pages and pages past the
/// end of a file are found now. What happens to the range later is the copies' business.
///
/// # Errors
/// `Fault`.
///
/// # Cost
/// One system call and the page faults; where the kernel cannot do it (before 5.14, mappings of device memory) one
/// access per page.
pub fn probe(addr: u64, len: u64, write: bool) -> Result<()> {
    if len == 0 {
        return Ok(());
    }
    let page = page_size() as u64;
    let first = addr & !(page - 1);
    let end = addr.checked_add(len).and_then(|e| e.checked_add(page - 1)).ok_or(Error::Fault)? & !(page - 1);
    // Program memory lies in the lower half.
    if end > i64::MAX as u64 || first == 0 {
        return Err(Error::Fault);
    }
    let advice = if write { libc::MADV_POPULATE_WRITE } else { libc::MADV_POPULATE_READ };
    for _ in 0..16 {
        // SAFETY: populating changes no contents, whatever the range holds.
        if unsafe { libc::madvise(first as *mut libc::c_void, (end - first) as usize, advice) } == 0 {
            return Ok(());
        }
        match errno() {
            libc::EAGAIN | libc::EINTR => {}
            libc::EINVAL => return touch(first, end, page, write),
            _ => return Err(Error::Fault),
        }
    }
    Err(Error::Fault)
}

/// One harmless access per page: a load, or an atomic addition of zero.
#[cfg(target_arch = "x86_64")]
fn touch(first: u64, end: u64, page: u64, write: bool) -> Result<()> {
    install()?;
    let mut at = first;
    while at < end {
        let fine = if write { host::fetch_add(at, 0).is_ok() } else { host::fetch(at, &mut [0u8; 1]).is_ok() };
        if !fine {
            return Err(Error::Fault);
        }
        at += page;
    }
    Ok(())
}

/// Without landing places a bad page would end the process, so what the kernel cannot vouch for is refused.
#[cfg(not(target_arch = "x86_64"))]
fn touch(_: u64, _: u64, _: u64, _: bool) -> Result<()> {
    Err(Error::Fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::Map;
    use crate::sys::Fd;

    fn protect(m: &Map, from: usize, pages: usize, prot: i32) {
        // SAFETY: pages of our own map.
        let rc = unsafe { libc::mprotect(m.as_ptr().add(from * page_size()).cast(), pages * page_size(), prot) };
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
        for (off, len) in [(0, 1), (1, 1), (100, 10_000), (0, m.len() as u64), (m.len() as u64 - 1, 1)] {
            assert_eq!(both(at + off, len, true), Ok(()));
            assert_eq!(both(at + off, len, false), Ok(()));
        }
        // SAFETY: our own map.
        assert!(unsafe { core::slice::from_raw_parts(m.as_ptr(), m.len()) }.iter().all(|&b| b == 0x5a));
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
        let fd = Fd::from_call(unsafe { libc::memfd_create(c"probe".as_ptr(), libc::MFD_CLOEXEC) }).unwrap();
        // SAFETY: takes no pointers.
        unsafe { libc::ftruncate(fd.raw(), 2 * p as i64) };
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let m = unsafe { libc::mmap(core::ptr::null_mut(), 4 * p, prot, libc::MAP_SHARED, fd.raw(), 0) };
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
        for (addr, len) in
            [(0, 1), (0, 8192), (u64::MAX, 1), (u64::MAX - 8191, 4096), (4096, u64::MAX), (1 << 63, 4096)]
        {
            assert_eq!(probe(addr, len, false), Err(Error::Fault), "{addr:#x} + {len:#x}");
            assert_eq!(probe(addr, len, true), Err(Error::Fault), "{addr:#x} + {len:#x}");
        }
    }
}
