use super::*;
use crate::map::Map;
use crate::sys::Fd;
use core::cell::Cell;
use core::sync::atomic::{AtomicU64, Ordering};
use gdrcore_testkit::descriptors::fork;

/// Memory that the two processes share.
#[repr(C)]
struct Shared {
    grant: Serial,
    /// The cell that the child writes in its parent, by its address.
    cell: AtomicU64,
}

/// Exit codes of a child.
const WRITTEN: i32 = 0;
const CANCELED: i32 = 1;
const OTHER: i32 = 2;
const NOT_TRACED: i32 = 3;

/// A child that its parent traces, killed with its test.
struct Child {
    pid: libc::pid_t,
    ended: Cell<bool>,
}

impl Child {
    fn status(&self) -> i32 {
        let mut status = 0;
        // SAFETY: the pointer is valid.
        assert_eq!(unsafe { libc::waitpid(self.pid, &raw mut status, 0) }, self.pid);
        self.ended.set(!libc::WIFSTOPPED(status));
        status
    }

    fn stops_by(&self, signal: i32) {
        let status = self.status();
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == signal, "{status:#x}");
    }

    /// Makes a ptrace(2) request with an address and a value.
    fn ask(&self, request: libc::c_uint, at: *mut u8, data: u64) -> u64 {
        // SAFETY: requests about a child that is stopped; what is written there is its own.
        let answer = unsafe { libc::ptrace(request, self.pid, at, data) };
        assert_ne!(answer, -1, "ptrace({request}): {}", crate::sys::errno());
        answer as u64
    }

    fn registers(&self, change: impl FnOnce(&mut libc::user_regs_struct)) {
        // SAFETY: plain numbers.
        let mut regs: libc::user_regs_struct = unsafe { core::mem::zeroed() };
        let at = (&raw mut regs).expose_provenance() as u64;
        self.ask(libc::PTRACE_GETREGS, core::ptr::null_mut(), at);
        change(&mut regs);
        self.ask(libc::PTRACE_SETREGS, core::ptr::null_mut(), at);
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.ended.get() {
            // SAFETY: a child that nobody has waited for.
            unsafe {
                libc::kill(self.pid, libc::SIGKILL);
                libc::waitpid(self.pid, core::ptr::null_mut(), 0);
            }
        }
    }
}

/// Waits to be traced, and writes once into its parent.
fn write_once(parent: libc::pid_t, shared: &Shared) -> i32 {
    // SAFETY: no pointers.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
            return NOT_TRACED;
        }
        libc::raise(libc::SIGSTOP);
    }
    let value = 7u64;
    let vec = |at: *const u64| libc::iovec { iov_base: at.cast_mut().cast(), iov_len: 8 };
    let (local, remote) = ([vec(&raw const value)], [vec(shared.cell.as_ptr())]);
    let call = WriteCall { pid: parent, local: &local, remote: &remote };
    // SAFETY: the cell has the same address in the parent, which reads it only as an atomic.
    match unsafe { write_while_active(&call, &shared.grant, 1) } {
        Ok(8) => WRITTEN,
        Err(libc::ECANCELED) => CANCELED,
        _ => OTHER,
    }
}

/// The system call's instruction.
fn syscall_instruction() -> *mut u8 {
    let code = sequence as *const () as *mut u8;
    // SAFETY: code of this program, of which there is more behind the function.
    let bytes = unsafe { core::slice::from_raw_parts(code, 512) };
    let at = bytes.windows(2).position(|two| two == [0x0f, 0x05]).expect("syscall");
    code.wrapping_add(at)
}

/// Stops a child right before its system call, by a breakpoint, runs `meanwhile`, continues the
/// child and returns its exit code.
fn stopped_before_the_call(shared: &Shared, meanwhile: impl FnOnce()) -> i32 {
    let parent = std::process::id() as libc::pid_t;
    // SAFETY: the child makes system calls alone; it does not allocate and takes no lock.
    let child = match unsafe { libc::fork() } {
        // SAFETY: the same.
        0 => unsafe { libc::_exit(write_once(parent, shared)) },
        pid => Child { pid, ended: Cell::new(false) },
    };
    let status = child.status();
    if libc::WIFEXITED(status) {
        return libc::WEXITSTATUS(status);
    }
    let (none, at) = (core::ptr::null_mut(), syscall_instruction());
    let code = child.ask(libc::PTRACE_PEEKTEXT, at, 0);
    child.ask(libc::PTRACE_POKETEXT, at, code & !0xff | 0xcc);
    child.ask(libc::PTRACE_CONT, none, 0);
    child.stops_by(libc::SIGTRAP);
    child.ask(libc::PTRACE_POKETEXT, at, code);
    child.registers(|regs| {
        assert_eq!(regs.rip, at.expose_provenance() as u64 + 1);
        assert_eq!(regs.rax, libc::SYS_process_vm_writev as u64);
        regs.rip -= 1;
    });
    meanwhile();
    child.ask(libc::PTRACE_CONT, none, 0);
    let status = child.status();
    assert!(libc::WIFEXITED(status), "{status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_thread_stopped_right_before_the_call_compares_again() {
    if area::of_thread().is_none() {
        gdrcore_testkit::skip!("the C library has registered no area for restartable sequences");
    }
    // SAFETY: the name is a string.
    let file = Fd::from_call(unsafe { libc::memfd_create(c"rseq".as_ptr(), 0) }).expect("a memfd");
    // SAFETY: a file of our own.
    assert_eq!(unsafe { libc::ftruncate(file.raw(), 4096) }, 0);
    let map = Map::shared(file.raw(), 0, 4096, true).expect("a map");
    // SAFETY: zeroed memory of the map, which outlives all uses, is a `Shared`; both processes
    // access it only as atomics.
    let shared = unsafe { &*map.as_ptr().cast::<Shared>() };
    let _fork = fork();
    shared.grant.activate(1);
    let end = stopped_before_the_call(shared, || shared.grant.revoke());
    if end == NOT_TRACED {
        gdrcore_testkit::skip!("ptrace(2) is not allowed here");
    }
    assert_eq!((end, shared.cell.load(Ordering::Acquire)), (CANCELED, 0));
    shared.grant.activate(1);
    let end = stopped_before_the_call(shared, || ());
    assert_eq!((end, shared.cell.load(Ordering::Acquire)), (WRITTEN, 7));
}
