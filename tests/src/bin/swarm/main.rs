//! Many processes on one address that start, leave and are killed, and check every byte they
//! exchange.
//!
//! `swarm N SECONDS [ADDRESS:PORT] [nobpf] [stops]`: keeps N members running on one address, half
//! of them with UDP only. Two to five times a second one member leaves or is killed (SIGKILL), and
//! another one is started in its place. At the end the program prints how much was exchanged, and
//! checks that no socket of the address, no object and no descriptor is left. Exit code 0 only if
//! nothing was wrong.
//!
//! - `nobpf`: as in a sandbox whose kernel refuses BPF programs for sockets, so that members pass
//!   packets on to each other.
//! - `stops`: five to fifty times a second one more member is stopped (SIGSTOP) for up to 1.5 s,
//!   which is less than a peer's retries take.
//!
//! A member (`swarm member SLOT SLOTS DEVICE PATH`) listens at the port of its slot and connects to
//! all other slots in turn by the connection manager. Over each connection it runs some rounds of
//! WRITE, SEND, echo and READ, then ends it. A peer that has died is the only failure allowed; any
//! other ends the member with the word WRONG.

mod member;

use gdrcore_tests::patience;
use gdrcore_tests::rng::Rng;
use gdrcore_tests::soft::names_of;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

struct Slot {
    child: Child,
    /// The time at which it is continued.
    stopped: Option<Instant>,
}

impl Slot {
    fn signal(&self, signal: i32) {
        // SAFETY: no pointers; the child has not been waited for, so its number is its own.
        unsafe { libc::kill(self.child.id() as i32, signal) };
    }

    fn stop_for(&mut self, time: Duration) {
        self.signal(libc::SIGSTOP);
        self.stopped = Some(Instant::now() + time);
    }

    fn go_on(&mut self) {
        if self.stopped.take().is_some() {
            self.signal(libc::SIGCONT);
        }
    }
}

fn start(slot: u32, slots: u32, device: &str, generation: u64) -> Slot {
    let me = std::env::current_exe().expect("its own path");
    let path = if (u64::from(slot) + generation).is_multiple_of(2) { "udp" } else { "auto" };
    let child = Command::new(me)
        .args(["member", &slot.to_string(), &slots.to_string(), device, path])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a member");
    Slot { child, stopped: None }
}

/// Lets a member end; its connections and rounds. `None`: it failed.
fn finish(mut slot: Slot) -> Option<(u64, u64)> {
    slot.go_on();
    drop(slot.child.stdin.take());
    let mut said = String::new();
    slot.child.stdout.take()?.read_to_string(&mut said).ok()?;
    let status = slot.child.wait().ok()?;
    let mut words = said.split_whitespace();
    if !status.success() || words.next() != Some("done") {
        return None;
    }
    Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?))
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("its own descriptors").count()
}

/// Forbids this process and its children to attach classic BPF to a group of sockets (EPERM).
fn forbid_bpf() {
    const SYSCALL_AT: u32 = 0;
    // The third argument of setsockopt, its lower half on a little-endian machine.
    const OPTION_AT: u32 = 16 + 2 * 8;
    const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    let insn = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let code = [
        insn(LOAD, 0, 0, SYSCALL_AT),
        insn(EQUAL, 0, 3, libc::SYS_setsockopt as u32),
        insn(LOAD, 0, 0, OPTION_AT),
        insn(EQUAL, 0, 1, libc::SO_ATTACH_REUSEPORT_CBPF as u32),
        insn(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        insn(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_ptr().cast_mut() };
    // SAFETY: no pointers.
    let quiet = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program lives through the call, which copies it.
    let set =
        unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    assert!(quiet == 0 && set == 0, "no seccomp here: {}", std::io::Error::last_os_error());
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| arguments.get(i).and_then(|a| a.parse::<u64>().ok());
    if arguments.first().is_some_and(|a| a == "member") {
        let (Some(slot), Some(slots)) = (number(1), number(2)) else {
            panic!("member SLOT SLOTS DEVICE PATH")
        };
        return member::run(slot as u32, slots as u32, &arguments[3], &arguments[4]);
    }
    let (Some(n), Some(seconds)) = (number(0), number(1)) else {
        panic!("swarm N SECONDS [ADDRESS:PORT]")
    };
    let address = arguments.get(2).cloned().unwrap_or_else(|| "127.53.0.1:4791".into());
    let device = format!("soft:{address}");
    let is_asked = |word: &str| arguments.iter().skip(3).any(|a| a == word);
    if is_asked("nobpf") {
        forbid_bpf();
    }
    let stops = is_asked("stops");
    let before = descriptors();
    let slots = n as u32;
    let mut swarm: Vec<Option<Slot>> =
        (0..slots).map(|i| Some(start(i, slots, &device, 0))).collect();
    let (mut killed, mut left, mut stopped, mut wrong, mut exchanged) =
        (0u64, 0u64, 0u64, 0u64, (0u64, 0u64));
    let end = patience::deadline(seconds);
    let mut rng = Rng::new(0);
    let mut draw = |below: u64| rng.below(below);
    let mut count = |done: Option<(u64, u64)>| match done {
        Some((connections, rounds)) => {
            exchanged.0 += connections;
            exchanged.1 += rounds;
        }
        None => wrong += 1,
    };
    while Instant::now() < end {
        std::thread::sleep(Duration::from_millis(if stops {
            20 + draw(180)
        } else {
            200 + draw(300)
        }));
        let now = Instant::now();
        for slot in
            swarm.iter_mut().flatten().filter(|s| s.stopped.is_some_and(|until| until <= now))
        {
            slot.go_on();
        }
        let i = draw(n) as usize;
        if stops && draw(8) > 0 {
            if let Some(slot) = swarm[i].as_mut().filter(|s| s.stopped.is_none()) {
                slot.stop_for(Duration::from_millis(20 + draw(1480)));
                stopped += 1;
            }
            continue;
        }
        let Some(mut slot) = swarm[i].take() else { continue };
        if let Ok(Some(status)) = slot.child.try_wait() {
            // It was not told to end.
            println!("a member ended by itself: {status}");
            count(None);
        } else if draw(2) == 0 {
            let _ = slot.child.kill();
            let _ = slot.child.wait();
            killed += 1;
        } else {
            count(finish(slot));
            left += 1;
        }
        swarm[i] = Some(start(i as u32, slots, &device, killed + left));
    }
    // All at once, because the last one to end has no peer left.
    for slot in swarm.iter_mut().flatten() {
        slot.go_on();
        drop(slot.child.stdin.take());
    }
    swarm.into_iter().flatten().for_each(|slot| count(finish(slot)));
    let names = names_of(&address);
    names.iter().for_each(|n| println!("left behind: {n}"));
    let kept = descriptors() - before;
    println!(
        "{n} members, {killed} killed, {stopped} times stopped, {left} left: {} connections, {} \
         rounds; {wrong} wrong, {} names and {kept} descriptors left",
        exchanged.0,
        exchanged.1,
        names.len()
    );
    std::process::exit(i32::from(wrong > 0 || !names.is_empty() || kept > 0 || exchanged.1 == 0));
}
