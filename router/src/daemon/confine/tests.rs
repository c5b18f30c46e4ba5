use super::*;

/// How a child behind the filters ends that makes one call: its exit code, or the signal.
fn end_after(call: impl FnOnce() -> i32) -> Result<i32, i32> {
    end_behind(Fence::Whole, false, call)
}

/// The same behind those of a router with a NIC or without.
fn end_behind(fence: Fence, nic: bool, call: impl FnOnce() -> i32) -> Result<i32, i32> {
    let programs = programs(fence, nic).unwrap();
    sys::in_child(|| {
        for program in &programs {
            if sys::filter_calls(program).is_err() {
                return 99;
            }
        }
        call()
    })
}

/// What no router does, and a shell, a debugger or a thief of files would.
#[test]
fn a_call_that_is_not_listed_ends_the_process() {
    use libc::*;
    let memory = c"/proc/self/mem".as_ptr() as usize;
    let open = |flags: i32| [AT_FDCWD as usize, memory, flags as usize, 0];
    let forbidden: &[(&str, c_long, [usize; 4])] = &[
        ("execve", SYS_execve, [0; 4]),
        ("execveat", SYS_execveat, [0; 4]),
        ("fork", SYS_clone, [SIGCHLD as usize, 0, 0, 0]),
        ("ptrace", SYS_ptrace, [PTRACE_TRACEME as usize, 0, 0, 0]),
        ("process_vm_readv", SYS_process_vm_readv, [1, 0, 0, 0]),
        ("kill", SYS_kill, [0; 4]),
        ("another's signal", SYS_tgkill, [1, 1, 0, 0]),
        ("a packet socket", SYS_socket, [AF_PACKET as usize, SOCK_RAW as usize, 0, 0]),
        (
            "a TCP socket",
            SYS_socket,
            [AF_INET as usize, (SOCK_STREAM | SOCK_CLOEXEC) as usize, 0, 0],
        ),
        (
            "a raw socket",
            SYS_socket,
            [AF_INET6 as usize, SOCK_RAW as usize, IPPROTO_UDP as usize, 0],
        ),
        ("memory as a file", SYS_openat, open(O_RDWR | O_CLOEXEC)),
        ("the same, for writing", SYS_openat, open(O_WRONLY | O_CREAT)),
        #[cfg(target_arch = "x86_64")]
        ("the same, by open", SYS_open, [memory, O_WRONLY as usize, 0, 0]),
        ("a file that is emptied", SYS_openat, open(O_RDONLY | O_TRUNC)),
        ("signals of a descriptor", SYS_fcntl, [0, F_SETOWN as usize, 1, 0]),
        ("the same, on", SYS_fcntl, [0, F_SETFL as usize, O_ASYNC as usize, 0]),
        ("setns", SYS_setns, [0; 4]),
        ("unshare", SYS_unshare, [0; 4]),
        ("mount", SYS_mount, [0; 4]),
        ("bpf", SYS_bpf, [0; 4]),
        ("io_uring_setup", SYS_io_uring_setup, [1, 0, 0, 0]),
        ("setuid", SYS_setuid, [0; 4]),
        ("memory with code", SYS_mprotect, [0, 0, (PROT_READ | PROT_EXEC) as usize, 0]),
        ("core dumps", SYS_prctl, [PR_SET_DUMPABLE as usize, 1, 0, 0]),
    ];
    for &(name, number, [a, b, c, d]) in forbidden {
        let ended = end_after(|| {
            // SAFETY: it ends the process. Where it does not, the kernel follows no pointer, or one
            // to a C string.
            unsafe { syscall(number, a, b, c, d, 0) };
            0
        });
        assert_eq!(ended, Err(SIGSYS), "{name}");
        let refused = end_behind(Fence::Gpu, false, || {
            // SAFETY: as above.
            let rc = unsafe { syscall(number, a, b, c, d, 0) };
            i32::from(rc != -1 || std::io::Error::last_os_error().raw_os_error() != Some(EPERM))
        });
        assert_eq!(refused, Ok(0), "{name}, beside a GPU");
    }
    // Calls of NVIDIA's driver reach it; here there is none behind the descriptor.
    for request in [0xc020_462a_usize, 73, 0x5401] {
        let answer = end_behind(Fence::Gpu, false, || {
            // SAFETY: no descriptor.
            unsafe { syscall(SYS_ioctl, -1, request, 0) };
            std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
        });
        assert_eq!(answer, Ok(if request == 0x5401 { EPERM } else { EBADF }), "{request:#x}");
    }
}

#[test]
fn a_call_that_is_listed_works() {
    let ended = end_after(|| {
        let call = |number, a: i32, b: i32, c: i32| {
            // SAFETY: none of these calls has a pointer.
            unsafe { libc::syscall(number, a, b, c, 0, 0) }
        };
        let open = |path: &std::ffi::CStr, flags: i32| {
            // SAFETY: a C string.
            unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, path.as_ptr(), flags, 0) }
        };
        let new = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_CLOEXEC;
        let file = open(c"/proc/self/comm", libc::O_RDONLY | libc::O_CLOEXEC) as i32;
        let works = [
            call(libc::SYS_geteuid, 0, 0, 0) >= 0,
            call(libc::SYS_mprotect, 0, 0, libc::PROT_READ) == 0,
            call(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_STREAM, 0) >= 0,
            call(libc::SYS_socket, libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) >= 0,
            file >= 0,
            // It is judged as a new file, which this is not.
            open(c"/proc/self/comm", new) == -1,
            call(libc::SYS_fcntl, file, libc::F_GETFD, 0) == i64::from(libc::FD_CLOEXEC),
            call(libc::SYS_fcntl, file, libc::F_DUPFD_CLOEXEC, 0) > i64::from(file),
            // So that libc makes its threads by clone.
            call(libc::SYS_clone3, 0, 0, 0) == -1
                && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOSYS),
        ];
        works.iter().position(|works| !works).map_or(0, |k| k as i32 + 1)
    });
    assert_eq!(ended, Ok(0));
}

/// Of a NIC's device files the kernel takes one ioctl(2); no other device has it.
#[test]
fn a_nic_has_its_ioctl_and_no_other() {
    let ioctl = |request: libc::c_ulong| {
        // SAFETY: there is no such descriptor.
        move || unsafe { libc::ioctl(-1, request as _, 0) + 1 }
    };
    assert_eq!(end_behind(Fence::Whole, true, ioctl(0xc018_1b01)), Ok(0));
    assert_eq!(end_behind(Fence::Whole, true, ioctl(libc::FIONBIO)), Ok(0), "those of any router");
    assert_eq!(end_behind(Fence::Whole, true, ioctl(libc::TIOCSTI)), Err(libc::SIGSYS));
    assert_eq!(end_behind(Fence::Whole, false, ioctl(0xc018_1b01)), Err(libc::SIGSYS));
}

/// The same program is right on each architecture, if its calls have their numbers there.
#[test]
fn every_call_is_listed_once() {
    let numbers: std::collections::BTreeSet<_> = CALLS.iter().map(|call| call.0).collect();
    assert_eq!(numbers.len(), CALLS.len());
    let more = CALLS_OF_NICS.iter().filter(|Call(number, _)| numbers.contains(number));
    assert!(more.clone().all(|Call(_, any_of)| !any_of.is_empty()), "a condition more, or nothing");
    assert!(!numbers.contains(&TGKILL), "it has a condition");
}

#[test]
fn a_proc_that_hides_processes_is_known() {
    let mount = |at: &str, options: &str| {
        format!("22 27 0:21 / {at} rw,nosuid shared:5 - proc proc {options}\n")
    };
    for (at, options, hidden) in [
        ("/proc", "rw", false),
        ("/proc", "rw,hidepid=0", false),
        ("/proc", "rw,hidepid=off", false),
        ("/proc", "rw,gid=4,hidepid=2", true),
        ("/proc", "rw,hidepid=invisible", true),
        ("/other/proc", "rw,hidepid=2", false),
    ] {
        let mounts = format!("{}{}", mount("/", "rw"), mount(at, options));
        assert_eq!(is_hidden(&mounts), hidden, "{mounts}");
    }
}

#[test]
fn behind_landlock_no_policy_tells_tenants_by_namespaces() {
    let named = "[router]\nlisten = \"/s\"\n[tenant.a]\nmatch = { netns = \"/run/netns/a\" }";
    let [by_netns, other] =
        [named, "[tenant.a]\nlisten = \"/a\""].map(|t| Policy::parse(t).unwrap());
    assert!(Fence::Whole.admits(&by_netns).unwrap_err().contains("restart it"));
    for (fence, policy) in
        [(Fence::Whole, &other), (Fence::Looks, &by_netns), (Fence::Off, &by_netns)]
    {
        assert_eq!(fence.admits(policy), Ok(()), "{fence:?}");
    }
    let denied = "/x: Permission denied (os error 13)".to_string();
    assert!(Fence::Whole.explain(denied.clone()).contains("restart it"));
    assert_eq!(Fence::Looks.explain(denied.clone()), denied);
    assert_eq!(Fence::Whole.explain("no such file".into()), "no such file");
}
