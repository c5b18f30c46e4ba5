//! Memory that vanishes under a copy is an answer, not the end of the process.
//!
//! The handler here does what the OS layer's does: look up the faulting program counter, go to the
//! landing pad.
#![cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_os = "linux"))]

use gdrcore_core::mem::weak::Weak;
use gdrcore_core::mem::{host, Access, AtomicOp, Providers, Target, TransferId};
use gdrcore_core::wire::Opcode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, Once};

const PAGE: usize = 4096;

/// Faults that the handler has turned into answers.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_fault(
    _signal: libc::c_int,
    _info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes the interrupted thread's context to a handler with SA_SIGINFO.
    let machine = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
    #[cfg(target_arch = "x86_64")]
    let pc = &mut machine.gregs[libc::REG_RIP as usize];
    #[cfg(target_arch = "aarch64")]
    let pc = &mut machine.pc;
    match host::fixup(*pc as usize) {
        Some(landing) => {
            CAUGHT.fetch_add(1, Ordering::Relaxed);
            *pc = landing as _;
        }
        // Some other bug: die of it, as without a handler.
        // SAFETY: abort may be called in a signal handler.
        None => unsafe { libc::abort() },
    }
}

/// Installs the handler, once. While the guard lives no other test maps anything where this one
/// unmaps.
fn install() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for signal in [libc::SIGSEGV, libc::SIGBUS] {
            // SAFETY: all zero bytes are a valid sigaction.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_fault as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: the action is complete and the handler has the signature that SA_SIGINFO asks
            // for.
            assert_eq!(unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) }, 0);
        }
    });
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

/// Pages of a memfd, mapped shared; the tests take the later ones away.
struct Mapping(usize, usize);

impl Mapping {
    fn new(pages: usize) -> (Self, i32) {
        // SAFETY: a name and no flags.
        let fd = unsafe { libc::memfd_create(c"gone".as_ptr(), 0) };
        assert!(fd >= 0);
        // SAFETY: fd is ours.
        assert_eq!(unsafe { libc::ftruncate(fd, (pages * PAGE) as i64) }, 0);
        let (rw, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        // SAFETY: a new mapping at an address of the kernel's choice.
        let p = unsafe { libc::mmap(std::ptr::null_mut(), pages * PAGE, rw, shared, fd, 0) };
        assert_ne!(p, libc::MAP_FAILED);
        (Mapping(p as usize, pages * PAGE), fd)
    }
    fn protect(&self, from_page: usize, prot: i32) {
        let (at, len) = (self.0 + from_page * PAGE, self.1 - from_page * PAGE);
        // SAFETY: pages of our own mapping, to which no Rust reference exists.
        assert_eq!(unsafe { libc::mprotect(at as *mut _, len, prot) }, 0);
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: as `protect`.
        unsafe { libc::munmap(self.0 as *mut _, self.1) };
    }
}

/// Every kind of access, at and across the border at `gone`, before which memory is good.
fn all_accesses_fault_across(gone: u64, writable_gone: bool) {
    let lengths = [
        1, 2, 3, 4, 5, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128,
        129, 143, 144, 145, 200, 256, 300, 511, 512, 513, 700, 1000, 4096,
    ];
    for n in lengths {
        let mut buf = vec![7u8; n];
        for into in [0, 1, n / 2, n - 1, n] {
            // The last `into` bytes lie behind the border; none of them: no fault.
            let addr = gone - (n - into) as u64;
            let want = if into == 0 { Ok(()) } else { Err(host::Fault) };
            assert_eq!(host::place(addr, &buf), want, "place {n}, {into} of it gone");
            let want = if writable_gone { Ok(()) } else { want };
            assert_eq!(host::fetch(addr, &mut buf), want, "fetch {n}, {into} of it gone");
        }
    }
    for off in [0, 8, 64] {
        assert_eq!(host::fetch_add(gone + off, 1), Err(host::Fault));
        assert_eq!(host::cmp_swap(gone + off, 0, 1), Err(host::Fault));
    }
    assert!(host::fetch_add(gone - 8, 1).is_ok());
    let t = Target { addr: gone, cookie: 0, provider: 0, len: 8 };
    assert_eq!(Providers::new().place(&t, 0, &[0; 8]), Access::Fault);
    assert_eq!(
        Providers::new().atomic(&t, AtomicOp::FetchAdd(1), TransferId::default()),
        Err(Access::Fault)
    );
}

#[test]
fn unmapped_memory_is_a_fault() {
    let _alone = install();
    let before = CAUGHT.load(Ordering::Relaxed);
    let (map, fd) = Mapping::new(4);
    map.protect(2, libc::PROT_NONE);
    all_accesses_fault_across((map.0 + 2 * PAGE) as u64, false);
    assert!(CAUGHT.load(Ordering::Relaxed) > before + 100);
    let addr = map.0 as u64;
    drop(map);
    assert_eq!(host::fetch(addr, &mut [0; 8]), Err(host::Fault));
    // SAFETY: ours.
    unsafe { libc::close(fd) };
}

#[test]
fn truncated_file_is_a_fault() {
    let _alone = install();
    let (map, fd) = Mapping::new(4);
    let gone = (map.0 + 2 * PAGE) as u64;
    assert_eq!(host::place(gone - 100, &[1; 200]), Ok(()));
    // SAFETY: fd is ours.
    assert_eq!(unsafe { libc::ftruncate(fd, 2 * PAGE as i64) }, 0);
    all_accesses_fault_across(gone, false);
    // SAFETY: as above.
    assert_eq!(unsafe { libc::ftruncate(fd, 4 * PAGE as i64) }, 0);
    assert_eq!(host::place(gone - 100, &[1; 200]), Ok(()));
    // SAFETY: as above.
    unsafe { libc::close(fd) };
}

#[test]
fn read_only_memory_faults_on_writes_only() {
    let _alone = install();
    let (map, fd) = Mapping::new(4);
    map.protect(2, libc::PROT_READ);
    all_accesses_fault_across((map.0 + 2 * PAGE) as u64, true);
    // SAFETY: ours.
    unsafe { libc::close(fd) };
}

#[test]
fn addresses_that_cannot_exist_are_faults() {
    let _alone = install();
    // Null, the kernel's half, not canonical, the very end.
    for addr in [0, 8, 0xffff_8000_0000_0000, 0x8000_0000_0000_0000, u64::MAX - 7, u64::MAX - 4095]
    {
        for n in [1, 4, 8] {
            let mut buf = vec![0u8; n];
            assert_eq!(host::fetch(addr, &mut buf), Err(host::Fault), "{addr:#x}");
            assert_eq!(host::place(addr, &buf), Err(host::Fault), "{addr:#x}");
        }
        let mut buf = vec![0u8; 4096];
        assert_eq!(host::fetch(addr, &mut buf), Err(host::Fault), "{addr:#x}");
        assert_eq!(host::place(addr, &buf), Err(host::Fault), "{addr:#x}");
        assert_eq!(host::fetch_add(addr & !7, 1), Err(host::Fault));
        assert_eq!(host::cmp_swap(addr & !7, 1, 1), Err(host::Fault));
    }
}

/// The bytes before the border are written, those behind it leave no trace, and the copies work as
/// before.
#[test]
fn fault_in_the_middle_leaves_the_good_part() {
    let _alone = install();
    let (map, fd) = Mapping::new(4);
    map.protect(2, libc::PROT_NONE);
    let gone = (map.0 + 2 * PAGE) as u64;
    assert_eq!(host::place(gone - 64, &[9; 200]), Err(host::Fault));
    let mut back = [0u8; 64];
    assert_eq!(host::fetch(gone - 64, &mut back), Ok(()));
    // The unit that crosses the border may be missing as a whole: up to 128 bytes are loaded, then
    // stored one by one.
    assert!(back.iter().all(|b| *b == 9), "{back:?}");
    map.protect(2, libc::PROT_READ | libc::PROT_WRITE);
    assert_eq!(host::place(gone - 64, &[5; 200]), Ok(()));
    // SAFETY: ours.
    unsafe { libc::close(fd) };
}

/// Bulk that is placed by strings: a fault within one, and between two.
#[test]
fn fault_in_the_middle_of_bulk_leaves_the_good_part() {
    const LEN: usize = 160 << 10;
    let _alone = install();
    let (map, fd) = Mapping::new(2 * LEN / PAGE);
    let start = map.0 as u64;
    for good in [1, 3, 4, 5, 15, 16, 17, 33] {
        map.protect(0, libc::PROT_READ | libc::PROT_WRITE);
        assert_eq!(host::place(start, &[0; LEN]), Ok(()));
        map.protect(good, libc::PROT_NONE);
        for at in [0, 1, 40] {
            assert_eq!(host::place(start + at, &[9; LEN]), Err(host::Fault));
            let mut back = vec![0; good * PAGE - at as usize];
            assert_eq!(host::fetch(start + at, &mut back), Ok(()));
            // The unit that crosses the border may be missing as a whole.
            let whole = back.len() - 128;
            assert!(back[..whole].iter().all(|b| *b == 9), "{good} pages, from {at} on");
        }
    }
    // SAFETY: ours.
    unsafe { libc::close(fd) };
}

#[test]
fn memory_that_vanishes_under_a_late_piece_is_the_fault_of_its_placement() {
    let _alone = install();
    let (mapping, fd) = Mapping::new(1);
    let mut weak = Box::new(Weak::new());
    let waits = (0..100).find_map(|draw| {
        weak.begin(1, Opcode::RC_WRITE_ONLY, Some(draw));
        match weak.place(0, false, mapping.0 as u64, &[7; 64]) {
            Access::Pending(token) => Some(token),
            _ => None,
        }
    });
    let last = waits.expect("one that waits");
    assert_eq!(weak.poll(0, last), Access::Pending(last));
    mapping.protect(0, libc::PROT_NONE);
    assert_eq!(weak.poll(u64::MAX, last), Access::Fault);
    assert_eq!(weak.poll(u64::MAX, last), Access::Ready, "it is told once");
    weak.begin(1, Opcode::RC_WRITE_ONLY, None);
    assert_eq!(weak.place(0, false, mapping.0 as u64, &[7; 64]), Access::Fault);
    // SAFETY: ours, and not used any more.
    unsafe { libc::close(fd) };
}
