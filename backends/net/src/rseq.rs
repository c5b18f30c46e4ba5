//! A system call that is made only while a word in memory has an expected value, although the
//! thread may be preempted or stopped between the comparison and the call.
//!
//! The comparison and the call are one restartable sequence: if the thread loses its CPU, or a
//! signal stops it, before the instruction `syscall` was executed, the kernel restarts it at the
//! comparison. The C library registers the thread's area with the kernel (glibc from 2.35). Without
//! a registration, as under valgrind, the comparison is made once before the call.
//!
//! Source: rseq(2); Linux's kernel/rseq.c on when a sequence is restarted; glibc's manual,
//! "Restartable Sequences", on `__rseq_offset` and `__rseq_size`.

use crate::sys::errno;
use gdrcore_core::lease::Serial;
use gdrcore_core::roce::peer_memory::{Piece, PIECES};

/// Copies ranges of this process, in order, into ranges (address, length) of another process, at
/// most [`PIECES`], while a grant of those addresses is active. Returns the number of bytes copied,
/// or the errno; ECANCELED: the grant was revoked.
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
    // SAFETY: the kernel only reads the ranges of this process, and returns EFAULT where nothing is
    // mapped. It writes into a process of this user that has granted these addresses, to memory to
    // which no Rust reference leads there. That holds if it is this process as well.
    unsafe { write_while_active(&call, grant, serial) }
}

/// The arguments of `process_vm_writev`, but for its flags, which are 0.
struct WriteCall<'a> {
    pid: libc::pid_t,
    local: &'a [libc::iovec],
    remote: &'a [libc::iovec],
}

/// Returns the call's result: the number of bytes, or the errno; ECANCELED if it was not made.
///
/// # Safety
/// The kernel reads the ranges in `local`, which need not be mapped, and writes the ranges in
/// `remote` in the process `pid`. While the serial is the grant's, that must be harmless there.
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
    // SAFETY: both arrays live through the call and have the given lengths; the rest is the
    // caller's contract.
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

/// `struct rseq_cs`: the range of a sequence, and the address at which it continues after a
/// restart.
#[cfg(target_arch = "x86_64")]
#[repr(C, align(32))]
struct Descriptor {
    version_and_flags: u64,
    start_ip: u64,
    post_commit_offset: u64,
    abort_ip: u64,
}

/// The comparison and the call, as one restartable sequence. Returns the kernel's result: the
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
    // grant's word is a u32 (`Serial`'s layout) and is only read. The system call gets arrays that
    // live through it, and their lengths; its effect on them is the caller's contract. It changes
    // rax, rcx and r11. The sequence ends behind `syscall`, where the kernel finds the thread after
    // the call, so a call that was made is not repeated. The four bytes before the restart address
    // are the signature with which glibc registers.
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

/// Finds the area that the C library registered with the kernel.
#[cfg(target_arch = "x86_64")]
mod area {
    use std::sync::OnceLock;

    /// Bytes from the area's start to its fields `cpu_id` and `rseq_cs`.
    const CPU_ID: isize = 4;
    const RSEQ_CS: isize = 8;

    /// The area's offset from the thread pointer, if the library has one.
    fn offset() -> Option<isize> {
        static OFFSET: OnceLock<Option<isize>> = OnceLock::new();
        *OFFSET.get_or_init(|| {
            // SAFETY: two symbol names that are C strings. Under them glibc has a ptrdiff_t and an
            // unsigned int, constant from the start of the program.
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
