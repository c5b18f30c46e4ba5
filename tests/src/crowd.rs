//! A crowd of tenants of one router, by a socket each: who they are, how they are connected, and
//! the processes in which they live (the binary `crowd` of this package).
//!
//! A tenant has [`QPS`] queue pairs. Its k-th leads to the k-th of the tenant whose number differs
//! in bit k (of as many bits as tenants have), so each talks to as many others as there are bits.

use crate::ends::{connected, pattern, succeed, Op, Shape};
use crate::far_end::Far;
use crate::patience;
use crate::process;
use crate::router::{hello, Raw, Router};
use crate::soft::Soft;
use gdrcore_core::config::Config;
use gdrcore_core::device::Device;
use gdrcore_core::error::Error;
use gdrcore_net::remote::client::RemoteDevice;
use gdrcore_net::soft::SoftConfig;
use gdrcore_net::via::proto::{feature, Hello, Message};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Tenants, of switch mode.
pub const TENANTS: u32 = 256;
/// Tenants that share a device of the router.
pub const REMOTE_TENANTS: u32 = 64;
/// Queue pairs of a tenant.
pub const QPS: u32 = 16;
/// Processes in which they live.
pub const PROCESSES: u32 = 8;
/// Bytes of each message of an exchange.
pub const PIECE: usize = 8192;
/// Between two tries to get numbers.
const AGAIN: Duration = Duration::from_millis(50);

/// The policy: every tenant has a socket of its own and an address of the pool.
pub fn policy() -> String {
    (0..TENANTS).map(|n| format!("[tenant.t{n}]\nlisten = \"DIR/t{n}\"\n")).collect()
}

/// The policy of tenants that share a device of the router.
pub fn remote_policy(device: &str) -> String {
    let tenant = |n| format!("[tenant.t{n}]\nlisten = \"DIR/t{n}\"\ndevice = \"{device}\"\n");
    (0..REMOTE_TENANTS).map(tenant).collect()
}

/// The tenant, of so many, at the other end of a tenant's k-th queue pair.
fn other_end(tenants: u32, tenant: u32, k: u32) -> u32 {
    tenant ^ 1 << (k % tenants.ilog2())
}

/// A tenant's device: its own, or the router's.
pub enum Member {
    /// Of switch mode.
    Own(Soft),
    /// Of remote mode.
    Remote(Box<RemoteDevice>),
}

impl Member {
    /// As the router says.
    pub fn open(socket: &Path) -> Member {
        match RemoteDevice::open(&format!("router:{}", socket.display())) {
            Ok(device) => Member::Remote(Box::new(device)),
            Err(_) => Member::Own(open(socket)),
        }
    }

    /// The device.
    pub fn dev(&self) -> &dyn Device {
        match self {
            Member::Own(soft) => soft.dev(),
            Member::Remote(device) => &**device,
        }
    }
}

/// A device that is large enough for a tenant of the crowd, and not larger. Waits where the router
/// has no numbers left: those of sessions that end rest for a minute. The router hangs up on who
/// says no HELLO within a second, and a busy machine may let a process stand for so long.
pub fn open(socket: &Path) -> Soft {
    let core = Config {
        max_qp: QPS,
        max_pd: QPS,
        max_cq: QPS,
        max_mr: QPS,
        max_srq: 1,
        max_ah: 4,
        max_peer: 16,
        ring_bytes: 1 << 19,
        max_sge: 1,
        ..Config::default()
    };
    let name = format!("router:{}", socket.display());
    let config = SoftConfig { core, ..SoftConfig::default() };
    patience::until(
        120,
        || format!("{name}: no numbers are left"),
        || match Soft::open(&name, &config) {
            Ok(soft) => Some(soft),
            Err(Error::Os(libc::ENOSPC | libc::ENOTCONN | libc::EPIPE | libc::ECONNRESET)) => {
                std::thread::sleep(AGAIN);
                None
            }
            Err(e) => panic!("{name}: {e}"),
        },
    )
}

/// A session that takes its rings, and hangs up. Waits as [`open`].
fn come_and_hang_up(socket: &Path) {
    patience::until(
        120,
        || format!("{}: no numbers are left", socket.display()),
        || {
            let mut raw = Raw::connect(socket).expect("a connection");
            raw.say(
                1,
                Message::Hello(Hello { features: feature::DIRECT | feature::RELAY, ..hello() }),
            );
            let (e, received) = raw.hear()?;
            if matches!(e.message, Message::Bye(_)) {
                return None;
            }
            match e.status {
                0 => assert!(received.fds[2].is_some(), "no rings: {e:?}"),
                status => {
                    assert_eq!(-status, libc::ENOSPC, "{e:?}");
                    std::thread::sleep(AGAIN);
                }
            }
            (e.status == 0).then_some(())
        },
    );
}

/// The shape of its queue pairs.
pub fn shape() -> Shape {
    Shape { buffer: 4 * PIECE, depth: 4, cqe: 8, sge: 1, ..Shape::default() }
}

/// The running crowd; dropping it kills its processes.
pub struct Crowd(Vec<Far>);

impl Crowd {
    /// Starts all of it, connects all queue pairs and exchanges bytes over each, there and back by
    /// SEND, WRITE and READ, all compared by their receivers. Then nobody polls.
    pub fn start(program: &Path, router: &Router, tenants: u32) -> Crowd {
        let each = tenants / PROCESSES;
        let mut members: Vec<Far> = (0..PROCESSES)
            .map(|p| {
                let numbers = [p * each, each].map(|n| n.to_string());
                Far::run(Command::new(program).arg("member").arg(router.dir()).args(numbers))
            })
            .collect();
        let mut addresses = vec![String::new(); (tenants * QPS) as usize];
        for member in &members {
            for _ in 0..each * QPS {
                let line = member.answer("at ");
                let (place, address) = line.split_once(' ').expect("a place and an address");
                addresses[place.parse::<usize>().expect("a number")] = address.to_string();
            }
        }
        for (place, address) in addresses.iter().enumerate() {
            let (tenant, k) = (place as u32 / QPS, place as u32 % QPS);
            let to = other_end(tenants, tenant, k);
            members[(to / each) as usize].say(&format!("to {} {address}", to * QPS + k));
        }
        let mut crowd = Crowd(std::mem::take(&mut members));
        crowd.each("connected");
        for word in ["go", "rest"] {
            crowd.0.iter_mut().for_each(|m| m.say(word));
            crowd.each(if word == "go" { "done" } else { "rests" });
        }
        crowd
    }

    fn each(&self, says: &str) {
        let line = |m: &Far| m.line(Duration::from_secs(240));
        self.0.iter().for_each(|m| assert_eq!(line(m).as_deref(), Some(says)));
    }

    /// Half of its processes end by themselves, the other half is killed.
    pub fn leave(self) {
        for (n, mut member) in self.0.into_iter().enumerate() {
            if n % 2 == 0 {
                assert!(member.finish(), "it has left something open");
            } else {
                member.kill();
            }
        }
    }
}

/// What a router's process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Held {
    /// Its descriptors.
    pub descriptors: usize,
    /// Its mappings.
    pub mappings: usize,
    /// KiB of memory of its own.
    pub private_kib: u64,
}

impl Held {
    /// By now.
    pub fn by(pid: u32) -> Held {
        Held {
            descriptors: process::descriptors(pid),
            mappings: process::mappings(pid),
            private_kib: process::kib(pid, "smaps_rollup", "Anonymous:"),
        }
    }
}

/// The KiB of a router's memory: its share of all by the kernel's count (PSS), and all of it, each
/// page once, whoever else has it, too: a ring is mapped twice.
pub fn memory(pid: u32) -> (u64, u64) {
    let rollup = |name| process::kib(pid, "smaps_rollup", name);
    (rollup("Pss:"), rollup("Rss:") - process::resident_of(pid, "gdrcore-ring") / 2)
}

/// The part of a core that a process uses in a time.
pub fn busy(pid: u32, time: Duration) -> f64 {
    let (began, before) = (Instant::now(), process::cpu_ns(pid));
    std::thread::sleep(time);
    (process::cpu_ns(pid) - before) as f64 / began.elapsed().as_nanos() as f64
}

/// At least so many sessions come and go, those of all tenants in turn: half of them take their
/// rings and hang up, the others are devices that exchange bytes by a queue pair, and end with it
/// or without having destroyed it.
pub fn come_and_go(router: &Router, count: u32) {
    for round in 0..count.div_ceil(4) {
        let [a, b] = [0, 1].map(|n| router.socket(&format!("t{}", (2 * round + n) % TENANTS)));
        come_and_hang_up(&a);
        come_and_hang_up(&b);
        let (one, other) = (open(&a), open(&b));
        let (mut x, mut y) = connected(one.dev(), other.dev(), shape()).expect("connected ends");
        let data = pattern(round.into(), PIECE);
        x.buffer.write(0, &data);
        x.post(1, Op::Write(0, None), 0, PIECE as u32).expect("post_send");
        succeed(&mut x, &mut y, 1);
        assert!(y.buffer.read(0, PIECE) == data);
        if round % 2 == 0 {
            x.destroy().expect("nothing in use");
            y.destroy().expect("nothing in use");
        }
    }
}
