//! A connection of the connection manager whose other end is gone without a word is DISCONNECTED.

use crate::play::{config, go, shape, WAYS};
use crate::survivor::{arguments, Program};
use gdrcore_core::cm::types::{cm_event, port_space, CmEvent, ConnParam};
use gdrcore_core::device::CmDevice;
use gdrcore_core::verbs::types::{qp_type, wc_status, AhAttr};
use gdrcore_core::Error;
use gdrcore_tests::ends::{End, Op};
use gdrcore_tests::or_skip;
use gdrcore_tests::patience::until;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::as_root;

const PORT: u16 = 7471;

/// Ways that run no code of the device, or none of its end.
const SILENT: [&str; 6] = ["_exit", "abort", "SIGTERM", "SIGKILL", "SIGSEGV", "execve"];

fn manager(device: &Soft) -> &dyn CmDevice {
    device.dev().cm().expect("a connection manager")
}

/// The next event.
fn event(device: &Soft, what: &str) -> CmEvent {
    let next = || manager(device).event().expect("event");
    until(60, || what.to_string(), next)
}

fn expect(device: &Soft, kind: u32, what: &str) -> CmEvent {
    let e = event(device, what);
    assert_eq!((e.event, e.status), (kind, 0), "{what}");
    e
}

fn param(end: &End<'_>) -> ConnParam<'static> {
    let (qpn, retry_count, rnr_retry, ack_timeout) = (end.own.qpn, 7, 7, end.shape.timeout);
    ConnParam {
        qpn,
        qp_type: qp_type::RC,
        retry_count,
        rnr_retry,
        ack_timeout,
        ..Default::default()
    }
}

/// Messages that the client answers, before the last one.
const ANSWERS: u64 = 3;

/// Polls until a request has completed; returns its status.
fn await_one(end: &mut End<'_>, id: u64) -> u32 {
    let turn = || {
        end.poll();
        end.take(id)
    };
    until(60, || format!("completion {id}"), turn).status
}

/// A user without a name; its processes are not watched by those of another one.
const OTHER_USER: libc::uid_t = 64_321;

/// The client, which ends: path, way, its address, the server's.
fn client(arguments: &[String]) -> ! {
    let [path, way, own, server] = arguments else { panic!("{arguments:?}") };
    if path == OTHER {
        // SAFETY: no pointers.
        assert_eq!(unsafe { libc::setuid(OTHER_USER) }, 0);
    }
    let device = Soft::open(own, &config(path)).expect("a device");
    let device: &'static Soft = Box::leak(Box::new(device));
    let mut end = End::new(device.dev(), shape()).expect("an end");
    let id = manager(device).create(port_space::TCP, 0).expect("an id");
    let (host, port) = server.trim_start_matches("soft:").split_once(':').expect("an address");
    let host: std::net::Ipv4Addr = host.parse().expect("an address");
    let to = AhAttr {
        dgid: host.to_ipv6_mapped().octets(),
        udp_port: port.parse().expect("a port"),
        ..AhAttr::default()
    };
    println!("\nready");
    manager(device).connect(id, &to, PORT, end.qp, &param(&end)).expect("connect");
    expect(device, cm_event::ESTABLISHED, "the connection");
    for round in 0..=ANSWERS {
        end.post_recv(round, 0, 64).expect("post_recv");
        await_one(&mut end, round);
        if round < ANSWERS {
            end.post(1000 + round, Op::Send(None), 64, 64).expect("post_send");
        }
    }
    println!("connected");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("a pipe");
    let told = match way.as_str() {
        "disconnect" => manager(device).disconnect(id),
        "destroy_id" => manager(device).destroy(id),
        way => go(way, device, &end),
    };
    told.expect(way);
    go("_exit", device, &end)
}

/// The ways of the connection manager: its program tells the peer, and goes by `_exit`.
const TOLD: [&str; 2] = ["disconnect", "destroy_id"];

/// The server, whose last message the client has taken. Returns the event that it gets. Its receive
/// is flushed, and its message was delivered, unless the client's user hides that.
fn serve(test: &str, path: &str, way: &str) -> CmEvent {
    let [a, b] = [address(1), address(2)];
    let device = Soft::open(&a, &config(path)).expect("a device");
    let mut end = End::new(device.dev(), shape()).expect("an end");
    let listener = manager(&device).create(port_space::TCP, 0).expect("an id");
    manager(&device).bind(listener, PORT).expect("bind");
    manager(&device).listen(listener, 4).expect("listen");
    let mut program = Program::start(test, &[path, way, &b, &a]);
    let request = expect(&device, cm_event::CONNECT_REQUEST, "a request");
    manager(&device).accept(request.id, end.qp, &param(&end)).expect("accept");
    expect(&device, cm_event::ESTABLISHED, "the connection");
    for round in 0..=ANSWERS {
        end.post_recv(1000 + round, 0, 64).expect("post_recv");
        end.post(round, Op::Send(None), 64, 64).expect("post_send");
        if round < ANSWERS {
            assert_eq!(await_one(&mut end, 1000 + round), wc_status::SUCCESS);
        }
    }
    program.wait_for("connected");
    // The device looks for its peers' processes while the program polls or sleeps.
    assert!(manager(&device).event().expect("event").is_none());
    device.dev().wait(0).expect("wait");
    program.tell(&end.own);
    let e = event(&device, "DISCONNECTED");
    assert_eq!(await_one(&mut end, 1000 + ANSWERS), wc_status::WR_FLUSH_ERR, "{way}");
    let delivered = await_one(&mut end, ANSWERS) == wc_status::SUCCESS;
    assert_eq!(delivered, path != OTHER, "{path}, {way}: the last message");
    e
}

/// Over UDP, by a process of another user.
const OTHER: &str = "udp_of_another";

fn every_way(test: &str, path: &str) {
    if let Some(arguments) = arguments() {
        client(&arguments);
    }
    for way in WAYS.into_iter().chain(TOLD) {
        // These end a queue pair, not the connection; then the program goes by `_exit`.
        let silent = SILENT.contains(&way) || ["destroy", "error", "reset"].contains(&way);
        let e = serve(test, path, way);
        let status = if silent { -Error::TimedOut.errno() } else { 0 };
        assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, status), "{path}, {way}");
    }
}

#[test]
fn over_shared_memory() {
    every_way("connection::over_shared_memory", "memory");
}

#[test]
fn over_udp() {
    every_way("connection::over_udp", "udp");
}

/// A peer that cannot be watched is asked, and the network says that it is gone.
#[test]
fn by_another_user() {
    let test = "connection::by_another_user";
    if let Some(arguments) = arguments() {
        client(&arguments);
    }
    or_skip!(as_root());
    let e = serve(test, OTHER, "SIGKILL");
    let _ = std::fs::remove_dir_all(format!("/dev/shm/gdrcore-{OTHER_USER}"));
    assert_eq!((e.event, e.status), (cm_event::DISCONNECTED, -Error::TimedOut.errno()));
}
