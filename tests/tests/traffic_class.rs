//! Traffic class, hop limit and flow label on the wire, between hosts: of
//! `tests/c/traffic_class.c`, whose connection has class 0xb8 by rdma_cm's TOS, and whose datagrams
//! have those of their address handles.

use gdrcore_core::wire::grh::Fields;
use gdrcore_core::wire::{Class, Opcode};
use gdrcore_tests::lab::Lab;
use gdrcore_tests::rdmacm::launcher;
use gdrcore_tests::sniffed::{packets, roce, sniff};
use gdrcore_tests::tools::{verbs_program, Done, Running};
use gdrcore_tests::two_hosts::{TwoHosts, HOSTS};
use gdrcore_tests::{or_skip, patience};
use std::cell::RefCell;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);
const SNIFFER: &str = env!("CARGO_BIN_EXE_sniffer");

fn gid(address: &str) -> [u8; 16] {
    match address.parse().expect("an address") {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn both_are_ok(done: &[Done; 2]) {
    for side in done {
        let [server, client] = done;
        let both = || format!("{}\n---\n{}", server.output, client.output);
        assert!(side.ok() && side.output.contains("ok\n"), "{}", both());
    }
}

/// Waits until the capture has what both sides of the program send, and nothing else.
fn has_all(file: &Path, hosts: [&str; 2]) {
    let v6 = hosts[0].contains(':');
    let of = |traffic_class, hop_limit, flow_label| Fields {
        flow_label: if v6 { flow_label } else { 0 },
        traffic_class,
        hop_limit,
    };
    // The client's datagrams; the first label of all is the system's choice.
    let asked = [
        of(0, 64, 0),
        of(0x20, 17, 0xa_bcde),
        of(0, 64, 0),
        of(0x20, 255, 1),
        of(0x68, 64, 0xa_bcde),
        of(0x20, 17, 0xa_bcde),
    ];
    let [server, client] = hosts.map(gid);
    let said = RefCell::new(String::new());
    let lacks = || format!("the capture has {}", said.borrow());
    patience::until(60, lacks, || {
        let bytes = std::fs::read(file).unwrap_or_default();
        let (mut datagrams, mut answers, mut connected) = (Vec::new(), Vec::new(), [0, 0]);
        for packet in packets(&bytes).into_iter().filter_map(roce) {
            let mut header = packet.header;
            header.traffic_class &= 0xfc;
            let is_mad = packet.bytes[5..8] == [0, 0, 1];
            let from_client = packet.from == client;
            assert!(from_client || packet.from == server);
            if Opcode(packet.bytes[0]).class() != Class::Ud {
                // All of both sides' requests and answers.
                assert_eq!((header.traffic_class, header.hop_limit), (0xb8, 64));
                connected[usize::from(from_client)] += 1;
            } else if !is_mad {
                if header.traffic_class == 0 {
                    header.flow_label = 0;
                }
                let to = if from_client { &mut datagrams } else { &mut answers };
                to.push(header);
            }
        }
        *said.borrow_mut() = format!("{datagrams:?} {answers:?} {connected:?}");
        let back: Vec<_> = asked.iter().map(|f| Fields { hop_limit: 255, ..*f }).collect();
        (datagrams == asked && answers == back && connected.iter().all(|&n| n > 0)).then_some(())
    });
}

#[test]
fn between_two_hosts_each_packet_has_its_class() {
    let (program, dir) = or_skip!(verbs_program("class-hosts", "traffic_class", &["-lrdmacm"]));
    let lab = or_skip!(Lab::new(2));
    let all = [["10.9.0.1", "10.9.0.2"], ["fd00:9::1", "fd00:9::2"]];
    let with = |k: usize| [format!("{}/24", all[0][k]), format!("{}/64", all[1][k])];
    let (own, other) = (with(0), with(1));
    lab.link((0, "a0", &[&own[0], &own[1]]), (1, "b0", &[&other[0], &other[1]])).expect("a link");
    for (k, hosts) in all.into_iter().enumerate() {
        let file = dir.join(format!("capture-{k}"));
        let mut dump = sniff(&lab, 1, Path::new(SNIFFER), &file);
        let side = |host: usize, side: &str| {
            let mut c = lab.command(host, &launcher());
            c.args(["--address", hosts[host]]).arg(&program).args([side, hosts[0]]);
            Running::start(&mut c)
        };
        let mut server = side(0, "s");
        server.wait_for_output("listening");
        let client = side(1, "c").finish(LIMIT);
        both_are_ok(&[server.finish(LIMIT), client]);
        has_all(&file, hosts);
        dump.kill();
    }
}

#[test]
fn classes_pass_through_two_routers() {
    let (program, _dir) = or_skip!(verbs_program("class-routers", "traffic_class", &["-lrdmacm"]));
    let world = or_skip!(TwoHosts::new(&[]));
    let file = world.routers[0].dir().join("capture");
    let mut dump = sniff(&world.lab, 0, Path::new(SNIFFER), &file);
    let sides = ["s", "c"].map(|side| format!("{} {side} {{S}}", program.display()));
    let sides = [&*sides[0], &*sides[1]];
    // The program is found by its path.
    let done = world.run(sides, ["green", "blue"]).expect("the program is there");
    both_are_ok(&done);
    has_all(&file, [HOSTS[1], HOSTS[0]]);
    dump.kill();
    // By the relay within a host.
    both_are_ok(&world.run(sides, ["red", "blue"]).expect("the program is there"));
}
