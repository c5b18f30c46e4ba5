//! A system call that is made only while a word in memory has a value, although the thread may be
//! preempted or stopped between the comparison and the call.
//!
//! Both lie in a restartable sequence: where the thread loses its CPU, or a signal stops it, before
//! the instruction `syscall` was executed, the kernel has it go on at the comparison. The C library
//! registers the thread's area with the kernel (glibc from 2.35); where it has not, as under
//! valgrind, the comparison is made once before the call.
//!
//! Source: rseq(2); Linux's kernel/rseq.c on when a sequence is restarted; glibc's manual,
//! "Restartable Sequences", on `__rseq_offset` and `__rseq_size`.

use crate::sys::errno;
use gdrcore_core::lease::Serial;
use gdrcore_core::roce::peer_memory::{Piece, PIECES};

/// Copies pieces of this process, in order, into ranges (address, length) of another one, which the
/// kernel fills in order, while a grant of those addresses is active; at most [`PIECES`]. The
/// number of bytes copied, or the errno; ECANCELED: the grant was revoked.
pub(crate) fn write_process(
    pid: libc::pid_t,
    pieces: &[Piece],
    to: [(u64, u64); 2],
    (grant, serial): (&Serial, u32),
) -> Result<u64, i32> {
    let iovec = |(addr, len): (u64, u64)| libc::iovec {
        iov_base: core::ptr::with_exposed_provenance_mut(addr as usize),
        iov_len: len as usize,
    };
    let mut local = [iovec((0, 0)); PIECES];
    let count = pieces.len().min(PIECES);
    for (vec, piece) in local.iter_mut().zip(pieces) {
        *vec = iovec((piece.addr, piece.len));
    }
    let call = WriteCall { pid, local: &local[..count], remote: &to.map(iovec) };
    // SAFETY: what the pieces name of this process is only read, by the kernel, which answers
    // EFAULT where nothing is mapped. It writes into a process of this user that has granted these
    // addresses: memory that no Rust reference leads to there. That holds if it is this process as
    // well.
    unsafe { write_while_active(&call, grant, serial) }
}

/// The arguments of `process_vm_writev`, but for its flags, which are 0.
struct WriteCall<'a> {
    pid: libc::pid_t,
    local: &'a [libc::iovec],
    remote: &'a [libc::iovec],
}

/// What the call returns: the number of bytes, or the errno; ECANCELED where it was not made.
///
/// # Safety
/// The kernel reads what `local` names, which nobody need keep mapped, and writes what `remote`
/// names in the process `pid`: while the serial is the grant's, that has to be harmless there.
unsafe fn write_while_active(
    call: &WriteCall<'_>,
    grant: &Serial,
    serial: u32,
) -> Result<u64, i32> {
    #[cfg(target_arch = "x86_64")]
    if let Some(area) = area::of_thread() {
        // SAFETY: the caller's promise; the area is this thread's.
        let n = unsafe { sequence(area, call, grant, serial) };
        return u64::try_from(n).map_err(|_| i32::try_from(-n).unwrap_or(libc::EINVAL));
    }
    if !grant.is(serial) {
        return Err(libc::ECANCELED);
    }
    // SAFETY: both arrays live through the call and are as long as it is told; the rest is the
    // caller's promise.
    let n = unsafe {
        libc::process_vm_writev(
            call.pid,
            call.local.as_ptr(),
            call.local.len() as _,
            call.remote.as_ptr(),
            call.remote.len() as _,
            0,
        )
    };
    u64::try_from(n).map_err(|_| errno())
}

/// `struct rseq_cs`: where a sequence lies and where it goes on after it was restarted.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(32))]
struct Descriptor {
    version_and_flags: u64,
    start_ip: u64,
    post_commit_offset: u64,
    abort_ip: u64,
}

/// The comparison and the call, as one restartable sequence. Returns what the kernel does: the
/// number of bytes, or an errno below zero.
///
/// # Safety
/// As [`write_while_active`]; `area` is the pointer `rseq_cs` of this thread's registered area.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn sequence(area: *mut u64, call: &WriteCall<'_>, grant: &Serial, serial: u32) -> i64 {
    let mut place =
        Descriptor { version_and_flags: 0, start_ip: 0, post_commit_offset: 0, abort_ip: 0 };
    let returned: i64;
    // SAFETY: writes the descriptor, which lives through the block, and the area's pointer, which
    // is null again at the end: the kernel clears it at a restart, and the block otherwise. The
    // grant's word is a u32 (`Serial`'s layout) and read alone. The system call gets arrays that
    // live through it, and their lengths; what it does with them is the caller's promise. It
    // changes rax, rcx and r11. The sequence ends behind `syscall`, where the kernel finds the
    // thread after the call: a call that was made is not made again. The four bytes before the
    // place of restart are the signature with which glibc registers.
    unsafe {
        core::arch::asm!(
            "lea rcx, [rip + 2f]",
            "mov qword ptr [{place} + 8], rcx",
            "lea rcx, [rip + 3f]",
            "sub rcx, qword ptr [{place} + 8]",
            "mov qword ptr [{place} + 16], rcx",
            "lea rcx, [rip + 4f]",
            "mov qword ptr [{place} + 24], rcx",
            "5:",
            "mov rax, {canceled}",
            "mov qword ptr [{area}], {place}",
            "2:",
            "cmp dword ptr [{word}], r11d",
            "jne 3f",
            "mov eax, {number}",
            "syscall",
            "3:",
            "mov qword ptr [{area}], 0",
            "jmp 6f",
            // An instruction that traps, with the signature as its operand.
            ".byte 0x0f, 0xb9, 0x3d",
            ".long 0x53053053",
            "4:",
            "jmp 5b",
            "6:",
            place = in(reg) &raw mut place,
            area = in(reg) area,
            word = in(reg) core::ptr::from_ref(grant),
            canceled = const -(libc::ECANCELED as i64),
            number = const libc::SYS_process_vm_writev,
            in("rdi") i64::from(call.pid),
            in("rsi") call.local.as_ptr(),
            in("rdx") call.local.len(),
            in("r10") call.remote.as_ptr(),
            in("r8") call.remote.len(),
            in("r9") 0u64,
            out("rax") returned,
            out("rcx") _,
            inout("r11") u64::from(serial) => _,
            options(nostack),
        );
    }
    returned
}

/// Where the C library keeps the area that it registered.
#[cfg(target_arch = "x86_64")]
mod area {
    use std::sync::OnceLock;

    /// Bytes from the area's start to its fields `cpu_id` and `rseq_cs`.
    const CPU_ID: isize = 4;
    const RSEQ_CS: isize = 8;

    /// The area's place relative to the thread pointer, where the library has one.
    fn offset() -> Option<isize> {
        static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
        *OFFSET.get_or_init(|| {
            // SAFETY: two names that are strings; what is found under them in glibc is a ptrdiff_t
            // and an unsigned int, constants from the start of the program on.
            unsafe {
                let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
                let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
                // Size 0: not registered.
                (!size.is_null() && !offset.is_null() && *size.cast::<u32>() != 0)
                    .then(|| *offset.cast::<isize>())
            }
        })
    }

    /// The pointer `rseq_cs` of this thread's area; `None`: the kernel does not know the area.
    pub(super) fn of_thread() -> Option<*mut u64> {
        let offset = offset()?;
        let thread: *mut u8;
        // SAFETY: on x86-64 the thread pointer's own address is at fs:0. glibc keeps the area of
        // each thread at that offset from it, and a negative `cpu_id` in it where the kernel
        // refused the registration.
        unsafe {
            core::arch::asm!("mov {}, fs:[0]", out(reg) thread,
                options(nostack, readonly, preserves_flags));
            let area = thread.offset(offset);
            (area.offset(CPU_ID).cast::<i32>().read_volatile() >= 0)
                .then(|| area.offset(RSEQ_CS).cast())
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests;
