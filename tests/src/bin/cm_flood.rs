//! Connections to a listener that is flooded with connection requests.
//!
//! `cm_flood COUNT FORGED [SINGLE] [WINDOW]` runs three processes. A server listens on one address.
//! A client makes COUNT connections to it, WINDOW (8) at a time, sends a message over each and ends
//! it. A third process sends the server FORGED requests a second from as many addresses, none of
//! which answers, and SINGLE (0) a second from one address. The program prints what became of all
//! of them. Exit code 0 only if each of the COUNT connections was made and delivered its message.
//!
//! The other roles are `cm_flood serve DEVICE` and `cm_flood flood ADDRESS PORT FORGED SINGLE`;
//! both end when their input does.

use gdrcore_core::cm::mad::{IpHeader, Mad, Message, Req, IP_HEADER_LEN, MAD_LEN};
use gdrcore_core::cm::types::{cm_event, port_space, ConnParam};
use gdrcore_core::config::Config;
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{wc_opcode, wc_status, Handle};
use gdrcore_core::wire::ip::gid_of_v4;
use gdrcore_core::wire::{DEFAULT_PKEY, QP1_QKEY};
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::cm::{cm, listen, offer};
use gdrcore_tests::ends::{End, Op, Shape};
use gdrcore_tests::forge::{bth, octets, send_valid};
use gdrcore_tests::patience::limit;
use gdrcore_tests::soft::Soft;
use gdrcore_tests::tools::loopback;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes of each connection's message.
const MESSAGE: u32 = 8;
/// Time limit of a connection, in seconds: 16 requests, half a second apart, and as long for its
/// end.
const LIMIT: u64 = 30;
const SHAPE: Shape = Shape {
    qp_type: gdrcore_core::verbs::types::qp_type::RC,
    buffer: 4096,
    access: 7,
    depth: 2,
    cqe: 4,
    sge: 1,
    mtu: 3,
    timeout: 14,
    retry_cnt: 7,
    rnr_retry: 7,
    min_rnr_timer: 12,
    peer_is_soft: false,
};

/// Opens a device with the default configuration, except for the objects that one [`End`] per
/// connection takes.
fn open(device: &str) -> Soft {
    let core =
        Config { max_pd: 512, max_cq: 512, max_mr: 1024, max_peer: 1024, ..Config::default() };
    Soft::open(device, &SoftConfig { core, ..SoftConfig::default() })
        .unwrap_or_else(|e| panic!("{device}: {e}"))
}

/// Set when the input of this process ends.
fn ended() -> Arc<AtomicBool> {
    let flag = Arc::new(AtomicBool::new(false));
    let set = flag.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        set.store(true, Relaxed);
    });
    flag
}

/// Number of messages that arrived; checks the bytes of each.
fn messages(end: &mut End) -> u64 {
    end.poll();
    let done = std::mem::take(&mut end.done);
    let came = done
        .iter()
        .filter(|wc| wc.status == wc_status::SUCCESS && wc.opcode & wc_opcode::RECV != 0)
        .count() as u64;
    came * u64::from(end.buffer.read(0, 4) == *b"flow")
}

/// The server: accepts every request.
fn serve(device: &str) {
    let soft = open(device);
    let dev = soft.dev();
    let (_, port) = listen(dev, port_space::TCP, 0);
    println!("port {port}");
    let end = ended();
    let mut ends: HashMap<Handle, End> = HashMap::new();
    let (mut asked, mut stood, mut lost, mut full, mut brought, mut most) =
        (0u64, 0u64, 0u64, 0u64, 0u64, 0);
    while !end.load(Relaxed) {
        let mut idle = true;
        while let Some(e) = cm(dev).event().expect("event") {
            idle = false;
            match e.event {
                cm_event::CONNECT_REQUEST => {
                    asked += 1;
                    let accepted = End::new(dev, SHAPE).and_then(|own| {
                        match cm(dev).accept(e.id, own.qp, &offer(b"")) {
                            Ok(()) => Ok(own),
                            Err(why) => own.destroy().and(Err(why)),
                        }
                    });
                    match accepted {
                        Ok(own) => {
                            own.post_recv(1, 0, MESSAGE).expect("post_recv");
                            ends.insert(e.id, own);
                        }
                        Err(_) => {
                            full += 1;
                            cm(dev).destroy(e.id).expect("destroy");
                        }
                    }
                    most = most.max(ends.len());
                }
                cm_event::ESTABLISHED => stood += 1,
                cm_event::TIMEWAIT_EXIT => {}
                event => {
                    lost += u64::from(event == cm_event::UNREACHABLE);
                    cm(dev).destroy(e.id).expect("destroy");
                    if let Some(mut own) = ends.remove(&e.id) {
                        brought += messages(&mut own);
                        own.destroy().expect("destroy");
                    }
                }
            }
        }
        for own in ends.values_mut() {
            let came = messages(own);
            idle &= came == 0;
            brought += came;
        }
        dev.progress().expect("progress");
        if idle {
            std::thread::sleep(Duration::from_micros(200));
        }
    }
    let c = dev.counters().expect("counters");
    println!(
        "server: {asked} requests heard of, {stood} connections stood, {brought} messages \
         came, {lost} were not confirmed, {full} found no queue pair, at most {most} at once; \
         {} messages of the connection manager came, {} were dropped, {} gave way to others",
        c.cm_rcvd, c.cm_dropped, c.cm_evicted
    );
    println!("served {stood} {brought}");
    ends.into_values().for_each(|own| own.destroy().expect("destroy"));
}

/// A REQ as the connection manager of the address `from` would send it.
fn request(from: Ipv4Addr, to: [u8; 4], port: u16, number: u32) -> Vec<u8> {
    let (src, dst) = (gid_of_v4(from.octets()), gid_of_v4(to));
    let mut data = [0; 92];
    let header = data.first_chunk_mut::<IP_HEADER_LEN>().expect("room for the header");
    IpHeader { src_port: 9, src, dst }.emit(header);
    let req = Req {
        local_comm_id: number,
        service_id: u64::from(port_space::TCP) << 16 | u64::from(port),
        local_ca_guid: 0x0200_0000_0000_0000 | u64::from(u32::from(from)),
        local_qpn: 2 + (number & 0x7f_ffff),
        responder_resources: 1,
        initiator_depth: 1,
        remote_cm_response_timeout: 20,
        local_cm_response_timeout: 20,
        pkey: DEFAULT_PKEY,
        path_mtu: 3,
        max_cm_retries: 15,
        local_gid: src,
        remote_gid: dst,
        local_ack_timeout: 19,
        private_data: &data,
        ..Req::default()
    };
    let mut mad = [0; MAD_LEN];
    Mad { tid: u64::from(number), message: Message::Req(req) }.emit(&mut mad);
    let mut packet = bth(0x64, 0, 1, false, number & 0xff_ffff);
    packet.extend_from_slice(&QP1_QKEY.to_be_bytes());
    packet.extend_from_slice(&[0, 0, 0, 1]);
    packet.extend_from_slice(&mad);
    packet
}

fn flood(target: SocketAddr, port: u16, forged: u64, single: u64) {
    let end = ended();
    let alone = UdpSocket::bind("127.250.255.254:0").expect("bind");
    let from_of = |s: &UdpSocket| match s.local_addr().expect("bound") {
        SocketAddr::V4(a) => *a.ip(),
        SocketAddr::V6(_) => unreachable!("bound to IPv4"),
    };
    let begin = Instant::now();
    let (mut sent, mut number) = ([0u64; 2], 0u32);
    while !end.load(Relaxed) {
        let due = [forged, single].map(|rate| (begin.elapsed().as_secs_f64() * rate as f64) as u64);
        for (kind, due) in due.into_iter().enumerate() {
            while sent[kind] < due {
                number += 1;
                let [_, a, b, c] = (0x40_0000 + number).to_be_bytes();
                let fresh;
                let socket = if kind == 1 {
                    &alone
                } else {
                    // From 127.64.0.0 upwards: each address once.
                    fresh = UdpSocket::bind((Ipv4Addr::new(127, a, b, c), 0)).expect("bind");
                    &fresh
                };
                let mut packet = request(from_of(socket), octets(target), port, number);
                send_valid(socket, target, &mut packet);
                sent[kind] += 1;
            }
        }
        std::thread::sleep(Duration::from_micros(500));
    }
    println!("flood: {} requests from as many addresses, {} from one", sent[0], sent[1]);
}

/// A connection that the client makes.
struct Attempt<'d> {
    end: End<'d>,
    began: Instant,
}

fn connect<'d>(
    dev: &'d dyn Device,
    to: [u8; 4],
    udp_port: u16,
    port: u16,
) -> (Handle, Attempt<'d>) {
    let end = End::new(dev, SHAPE).expect("an end");
    end.buffer.write(0, b"flow over");
    let ah =
        gdrcore_core::verbs::types::AhAttr { dgid: gid_of_v4(to), udp_port, ..Default::default() };
    let id = cm(dev).create(port_space::TCP, 0).expect("create");
    // Requests are repeated after 0.54 s, as librdmacm and the C API do.
    cm(dev)
        .connect(id, &ah, port, end.qp, &ConnParam { response_timeout: 0, ..offer(b"") })
        .expect("connect");
    (id, Attempt { end, began: Instant::now() })
}

fn start(args: &[&str]) -> Child {
    let me = std::env::current_exe().expect("its own path");
    Command::new(me)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a process")
}

/// Closes a process's input and waits for its end; returns its output.
fn finish(mut child: Child, mut output: impl Read) -> String {
    drop(child.stdin.take());
    let mut said = String::new();
    output.read_to_string(&mut said).expect("its words");
    assert!(child.wait().expect("its end").success());
    said
}

fn attack(count: u64, forged: u64, single: u64, window: usize) -> bool {
    let there: SocketAddr = format!("{}:4791", loopback(82, 1)).parse().expect("an address");
    let mut server = start(&["serve", &format!("soft:{there}")]);
    let mut words = BufReader::new(server.stdout.take().expect("piped"));
    let mut line = String::new();
    words.read_line(&mut line).expect("a line");
    let port: u16 =
        line.trim().strip_prefix("port ").and_then(|p| p.parse().ok()).expect("its port");
    let numbers = [port.to_string(), forged.to_string(), single.to_string()];
    let mut flood = start(&["flood", &there.to_string(), &numbers[0], &numbers[1], &numbers[2]]);
    let words_of_flood = flood.stdout.take().expect("piped");

    let soft = open(&format!("soft:{}", loopback(82, 2)));
    let dev = soft.dev();
    if forged + single > 0 {
        // The flood runs before the first connection is made.
        std::thread::sleep(Duration::from_secs(1));
    }
    let begin = Instant::now();
    let mut open: HashMap<Handle, Attempt> = HashMap::new();
    let (mut made, mut stood, mut ended, mut failed) = (0, 0u64, 0, 0u64);
    let mut longest = Duration::ZERO;
    while ended + failed < count {
        while made < count && open.len() < window {
            let (id, attempt) = connect(dev, octets(there), there.port(), port);
            open.insert(id, attempt);
            made += 1;
        }
        let mut idle = true;
        while let Some(e) = cm(dev).event().expect("event") {
            idle = false;
            let Some(attempt) = open.get_mut(&e.id) else { continue };
            match e.event {
                cm_event::ESTABLISHED => {
                    stood += 1;
                    longest = longest.max(attempt.began.elapsed());
                    attempt.end.post(2, Op::Send(None), 0, MESSAGE).expect("post");
                }
                cm_event::DISCONNECTED => {
                    ended += 1;
                    cm(dev).destroy(e.id).expect("destroy");
                    open.remove(&e.id).expect("open").end.destroy().expect("destroy");
                }
                cm_event::TIMEWAIT_EXIT => {}
                event => {
                    println!(
                        "failed: event {event}, status {}, after {:.1?}",
                        e.status,
                        attempt.began.elapsed()
                    );
                    failed += 1;
                    cm(dev).destroy(e.id).expect("destroy");
                    open.remove(&e.id).expect("open").end.destroy().expect("destroy");
                }
            }
        }
        let mut late = None;
        for (&id, attempt) in &mut open {
            attempt.end.poll();
            for wc in std::mem::take(&mut attempt.end.done) {
                idle = false;
                if wc.opcode == wc_opcode::SEND && wc.status == wc_status::SUCCESS {
                    cm(dev).disconnect(id).expect("disconnect");
                }
            }
            if attempt.began.elapsed() > limit(LIMIT) {
                late = Some(id);
            }
        }
        if let Some(id) = late {
            println!("failed: no end after {:?}", limit(LIMIT));
            failed += 1;
            cm(dev).destroy(id).expect("destroy");
            open.remove(&id).expect("open").end.destroy().expect("destroy");
        }
        dev.progress().expect("progress");
        if idle {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    let took = begin.elapsed().as_secs_f64();
    let asked_again = dev.counters().expect("counters").cm_retries;
    print!("{}", finish(flood, words_of_flood));
    let said = finish(server, words);
    println!(
        "client: {stood} of {count} connections stood in {took:.1} s, the longest wait \
        {longest:.2?}; messages sent again: {asked_again}"
    );
    print!("{said}");
    let brought =
        said.lines().find_map(|l| l.strip_prefix("served ")?.split_once(' ')?.1.parse().ok());
    failed == 0 && stood == count && brought == Some(count)
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number =
        |at: usize, default: u64| words.get(at).map_or(default, |w| w.parse().expect("a number"));
    let good = match words.as_slice() {
        ["serve", device] => {
            serve(device);
            true
        }
        ["flood", target, port, forged, single] => {
            let rate = |w: &str| w.parse().expect("a rate");
            flood(
                target.parse().expect("an address"),
                port.parse().expect("a port"),
                rate(forged),
                rate(single),
            );
            true
        }
        [_, _, ..] => attack(number(0, 0), number(1, 0), number(2, 0), number(3, 8) as usize),
        _ => {
            eprintln!("usage: cm_flood COUNT FORGED [SINGLE] [WINDOW]");
            std::process::exit(2);
        }
    };
    std::process::exit(i32::from(!good));
}
