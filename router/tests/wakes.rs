//! Who sleeps is woken: a receiver by the worker, the worker by a sender.

use gdrcore_core::config::QPN_UNIT;
use gdrcore_core::roce::run::Run;
use gdrcore_core::wire::{Class, PacketKind, Psn, ICRC_LEN};
use gdrcore_net::shm::relay::{Put, Relay, PACKET_MAX};
use gdrcore_net::via::find::SocketPath;
use gdrcore_net::via::session::Session;
use gdrcore_router::daemon::{Daemon, Options};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

/// Milliseconds, longer than anything here takes on a busy machine.
const LIMIT_MS: i32 = 60_000;
/// The worker spins for less.
const ASLEEP: Duration = Duration::from_millis(5);

fn open(at: &Path) -> (Session, Relay) {
    let path = SocketPath::new(at.as_os_str().as_bytes()).expect("a path");
    let (session, relay) = Session::open(&path, QPN_UNIT).expect("a session");
    (session, relay.expect("rings"))
}

/// A SEND of one packet to a queue pair of a session.
fn packet_to(to: &Session) -> Vec<u8> {
    let run = Run::new(Class::Rc, PacketKind::Send, to.welcome().qpns.0 + 3, Psn::new(1));
    let opcode = run.opcode(true, true);
    let mut bytes = vec![0; opcode.header_len()];
    run.emit_headers(opcode, run.psn, false, 0, &mut bytes);
    bytes.resize(bytes.len() + 64 + ICRC_LEN, 7);
    bytes
}

#[test]
fn who_sleeps_is_woken_however_many_frames_come() {
    let dir = std::env::temp_dir().join(format!("gdrc-wakes-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let (at, file) = (dir.join("s"), dir.join("policy"));
    std::fs::write(&file, format!("[tenant.a]\nlisten = \"{}\"\n", at.display())).expect("a file");
    let options = Options { file: Some(file), ..Options::default() };
    let mut daemon = Daemon::open(&options).expect("a router");
    std::thread::spawn(move || daemon.run());
    let (_from, mut sender) = open(&at);
    let (to, mut receiver) = open(&at);
    let packet = packet_to(&to);
    let mut space = [0; PACKET_MAX];
    for frames in [1, 3, 100] {
        assert!(!receiver.announce_sleep(), "nothing was sent");
        // Nobody polls, so only a bell brings the worker here.
        std::thread::sleep(ASLEEP);
        for _ in 0..frames {
            assert_eq!(sender.put(&to.gid(), &packet), Ok(Put::Done));
        }
        let mut came = 0;
        let mut take_all = |receiver: &mut Relay| {
            while receiver.take(&mut space).expect("a ring").is_some() {
                came += 1;
            }
            came
        };
        while take_all(&mut receiver) < frames {
            // One that came meanwhile brings no bell.
            if receiver.announce_sleep() {
                continue;
            }
            let mut p =
                libc::pollfd { fd: receiver.fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one live entry.
            assert_eq!(unsafe { libc::poll(&mut p, 1, LIMIT_MS) }, 1, "no bell");
            assert!(!receiver.take_wakeups(), "the router is gone");
        }
    }
    let _ = std::fs::remove_dir_all(&dir);
}
