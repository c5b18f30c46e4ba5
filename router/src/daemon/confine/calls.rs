//! The system calls of a router that serves, each with what it is for. A call that is not here ends
//! the router.
//!
//! Some are there for libc and the standard library, which choose among several calls with one
//! effect, by architecture and version.

use libc::c_long;

/// A condition: the argument (from 0), a mask, and the value that its lower 32 bits must have under
/// it.
pub(super) type Test = (u8, u32, u32);

/// A call: its number, and the conditions of which all of one list must be met; no list: none.
pub(super) struct Call(pub(super) c_long, pub(super) &'static [&'static [Test]]);

/// With any arguments.
const ANY: &[&[Test]] = &[];
const EXACTLY: u32 = u32::MAX;
/// Memory whose bytes are never code: argument 2 of mmap and of mprotect.
const DATA: &[&[Test]] = &[&[(2, libc::PROT_EXEC as u32, 0)]];
/// A thread, and no process.
const THREAD: u32 = (libc::CLONE_VM | libc::CLONE_THREAD) as u32;
const THREADS: &[&[Test]] = &[&[(0, THREAD, THREAD)]];
const THREAD_NAME: &[&[Test]] = &[&[(0, EXACTLY, libc::PR_SET_NAME as u32)]];
/// SOCK_TYPE_MASK of linux/net.h: argument 1 of socket without its flags.
const KIND: u32 = 0xf;
const DATAGRAMS: Test = (1, KIND, libc::SOCK_DGRAM as u32);
/// No TCP: the listener of metrics is there before, and connections to it are accepted.
const FAMILIES: &[&[Test]] = &[
    &[(0, EXACTLY, libc::AF_UNIX as u32)],
    &[(0, EXACTLY, libc::AF_INET as u32), DATAGRAMS],
    &[(0, EXACTLY, libc::AF_INET6 as u32), DATAGRAMS],
    &[(0, EXACTLY, libc::AF_NETLINK as u32)],
];
const UNIX: &[&[Test]] = &[&[(0, EXACTLY, libc::AF_UNIX as u32)]];
/// Flags with which an open changes a file that is there, or makes one where there is none.
const CHANGES: u32 = (libc::O_ACCMODE | libc::O_TRUNC | libc::O_CREAT) as u32;
/// Flags with which it makes a new file, or fails.
const NEW: u32 = (libc::O_CREAT | libc::O_EXCL) as u32;
/// Files that are there are read only: `/proc/<pid>/mem` written to is another process.
const READ_OR_NEW: &[&[Test]] = &[&[(2, CHANGES, 0)], &[(2, NEW, NEW)]];
/// The same of open, which has no folder before the path.
#[cfg(target_arch = "x86_64")]
const READ_OR_NEW_BY_PATH: &[&[Test]] = &[&[(1, CHANGES, 0)], &[(1, NEW, NEW)]];
/// None that has the kernel send signals (F_SETOWN, F_SETSIG, O_ASYNC of F_SETFL).
const OF_DESCRIPTORS: &[&[Test]] = &[
    &[(1, EXACTLY, libc::F_DUPFD_CLOEXEC as u32)],
    // A debug build's check that a descriptor it closes is open.
    &[(1, EXACTLY, libc::F_GETFD as u32)],
    &[(1, EXACTLY, libc::F_GETFL as u32)],
    // musl's open.
    &[(1, EXACTLY, libc::F_SETFD as u32)],
    &[(1, EXACTLY, libc::F_ADD_SEALS as u32)],
    &[(1, EXACTLY, libc::F_GET_SEALS as u32)],
];
const QUESTIONS: &[&[Test]] = &[
    &[(1, EXACTLY, libc::FIONBIO as u32)],
    &[(1, EXACTLY, libc::SIOCGIFINDEX as u32)],
    &[(1, EXACTLY, libc::SIOCGIFNAME as u32)],
    &[(1, EXACTLY, libc::SIOCGIFMTU as u32)],
];

/// Of NVIDIA's driver: those of its modules nvidia (`_IOC_TYPE` 'F') and nvidia-uvm (bare numbers).
pub(super) const OF_GPUS: &[&[Test]] = &[&[(1, 0xff00, 0x4600)], &[(1, !0xff, 0)]];

/// Signals to its own threads, with which abort(3) ends it; the condition is its number, which is
/// known when it runs.
pub(super) const TGKILL: c_long = libc::SYS_tgkill;

/// asm-generic/unistd.h; the libc crate lacks it for glibc.
#[cfg(target_arch = "aarch64")]
const RENAMEAT: c_long = 38;

/// RDMA_VERBS_IOCTL of rdma/rdma_user_ioctl_cmds.h: `_IOWR(0x1b, 1, struct ib_uverbs_ioctl_hdr)`,
/// which has 24 bytes.
const VERBS: &[&[Test]] = &[&[(1, EXACTLY, 0xc018_1b01)]];

/// Those of libibverbs and a NIC's driver besides, where the router drives one. Its descriptors
/// are open by now; older kernels take its commands by write.
#[rustfmt::skip]
pub(super) const CALLS_OF_NICS: &[Call] = &[
    Call(libc::SYS_ioctl, VERBS),            // objects of a NIC
    // A peer's link address, which libibverbs asks netlink for where the kernel does not find it.
    Call(libc::SYS_timerfd_create, ANY),
    Call(libc::SYS_pselect6, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_select, ANY),
    // Threads of a driver, and how it reads events: gdrcore's own libibverbs, where that stands for
    // a NIC.
    Call(libc::SYS_preadv2, ANY),
    Call(libc::SYS_epoll_create1, ANY),
    Call(libc::SYS_sched_getattr, ANY),
    Call(libc::SYS_sched_setattr, ANY),
];

/// All others.
#[rustfmt::skip]
pub(super) const CALLS: &[Call] = &[
    // Memory.
    Call(libc::SYS_mmap, DATA),              // rings, and blocks of malloc
    Call(libc::SYS_munmap, ANY),             // a session ends
    Call(libc::SYS_mprotect, DATA),          // malloc's arenas, a thread's guard page
    Call(libc::SYS_mremap, ANY),             // realloc of large blocks
    Call(libc::SYS_madvise, ANY),            // malloc, and a thread's stack at its end
    Call(libc::SYS_brk, ANY),                // malloc
    Call(libc::SYS_memfd_create, ANY),       // a session's rings
    Call(libc::SYS_ftruncate, ANY),          // their size
    Call(libc::SYS_fallocate, ANY),          // their pages
    // Threads that close what other processes made, and waiting.
    Call(libc::SYS_clone, THREADS),          // a thread
    Call(libc::SYS_clone3, ANY),             // not there: another filter says so
    Call(libc::SYS_set_robust_list, ANY),    // a thread's start
    Call(libc::SYS_rseq, ANY),               // the same
    Call(libc::SYS_sigaltstack, ANY),        // the same, and its end
    Call(libc::SYS_sched_getaffinity, ANY),  // where its stack is, and how many arenas malloc has
    Call(libc::SYS_prctl, THREAD_NAME),      // its name
    Call(libc::SYS_gettid, ANY),             // abort
    Call(libc::SYS_getpid, ANY),             // abort
    Call(libc::SYS_futex, ANY),              // locks
    Call(libc::SYS_sched_yield, ANY),        // the worker, before it sleeps
    Call(libc::SYS_getcpu, ANY),             // where the vDSO does not tell the CPU
    Call(libc::SYS_nanosleep, ANY),          // a full queue of commands
    Call(libc::SYS_clock_nanosleep, ANY),    // the same
    Call(libc::SYS_clock_gettime, ANY),      // where the vDSO has no clock
    Call(libc::SYS_getrandom, ANY),          // seeds of hashes
    Call(libc::SYS_rt_sigprocmask, ANY),     // signals of a new thread
    Call(libc::SYS_rt_sigpending, ANY),      // rings beyond RLIMIT_FSIZE are refused, not fatal
    Call(libc::SYS_rt_sigtimedwait, ANY),    // the same
    Call(libc::SYS_rt_sigaction, ANY),       // abort
    Call(libc::SYS_rt_sigreturn, ANY),       // the end of a handler
    Call(libc::SYS_restart_syscall, ANY),    // the kernel's own, after a stop
    Call(libc::SYS_exit, ANY),               // a thread's end
    Call(libc::SYS_exit_group, ANY),         // the router's end
    // Sockets.
    Call(libc::SYS_socket, FAMILIES),        // other hosts, listeners, the link's MTU
    Call(libc::SYS_socketpair, UNIX),        // a link, a session's bells
    Call(libc::SYS_bind, ANY),               // a tenant's listener, a session's UDP port
    Call(libc::SYS_listen, ANY),             // a tenant's listener
    Call(libc::SYS_accept4, ANY),            // sessions, administrators, readers of metrics
    Call(libc::SYS_connect, ANY),            // whether another router has a socket; routes
    Call(libc::SYS_getsockopt, ANY),         // who the peer is
    Call(libc::SYS_setsockopt, ANY),         // buffers, steering, descriptors that are refused
    Call(libc::SYS_getsockname, ANY),        // the port that a socket got
    Call(libc::SYS_getpeername, ANY),        // the address of a reader of metrics
    Call(libc::SYS_sendto, ANY),             // bells, answers, the supervisor, the journal
    Call(libc::SYS_sendmsg, ANY),            // messages with descriptors, bursts
    Call(libc::SYS_sendmmsg, ANY),           // bursts
    Call(libc::SYS_recvfrom, ANY),           // bells, requests
    Call(libc::SYS_recvmsg, ANY),            // messages, packets, ICMP errors
    Call(libc::SYS_recvmmsg, ANY),           // packets
    Call(libc::SYS_shutdown, ANY),           // a connection with descriptors in its queue
    Call(libc::SYS_epoll_ctl, ANY),          // both threads
    Call(libc::SYS_epoll_pwait, ANY),        // both threads
    Call(libc::SYS_epoll_pwait2, ANY),       // both threads
    Call(libc::SYS_ppoll, ANY),              // whether a process lives
    Call(libc::SYS_timerfd_settime, ANY),    // a device's next deadline
    Call(libc::SYS_pidfd_open, ANY),         // a session's process, before Linux 6.5
    Call(libc::SYS_ioctl, QUESTIONS),        // sockets of the standard library; interfaces
    // Files: a reload, a peer's /proc, the key, the sockets of tenants.
    Call(libc::SYS_openat, READ_OR_NEW),     // policy, map, key, /proc, /dev/null
    Call(libc::SYS_close, ANY),
    Call(libc::SYS_read, ANY),
    Call(libc::SYS_pread64, ANY),
    Call(libc::SYS_write, ANY),              // key, standard error
    Call(libc::SYS_writev, ANY),             // standard error
    Call(libc::SYS_lseek, ANY),              // the length of a file that is read; holes of a region
    Call(libc::SYS_fcntl, OF_DESCRIPTORS),   // seals of rings, copies of descriptors
    Call(libc::SYS_dup, ANY),                // copies of descriptors
    Call(libc::SYS_fstat, ANY),
    Call(libc::SYS_fstatfs, ANY),            // whether a session's memory has plain pages
    Call(libc::SYS_newfstatat, ANY),         // namespaces, what is at a socket's path
    Call(libc::SYS_statx, ANY),              // the same
    Call(libc::SYS_readlinkat, ANY),         // the same
    Call(libc::SYS_mkdirat, ANY),            // a new tenant's folder
    Call(libc::SYS_fchmodat, ANY),           // its mode, a socket's mode
    Call(libc::SYS_fchmod, ANY),             // the same
    Call(libc::SYS_renameat2, ANY),          // a socket and a key come to their places
    Call(libc::SYS_unlinkat, ANY),           // a tenant that goes
    Call(libc::SYS_flock, ANY),              // a service of a device's connection manager
    Call(libc::SYS_geteuid, ANY),            // whose the key is, who may administrate
    // Older numbers of the same calls, of which other architectures lack all or some.
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_renameat, ANY),
    #[cfg(target_arch = "aarch64")] Call(RENAMEAT, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_open, READ_OR_NEW_BY_PATH),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_stat, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_lstat, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_readlink, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_mkdir, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_chmod, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_rmdir, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_rename, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_unlink, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_poll, ANY),
    #[cfg(target_arch = "x86_64")] Call(libc::SYS_epoll_wait, ANY),
];
