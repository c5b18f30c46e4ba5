//! A tenant's process that goes as far with its router as it is told and stays there, so that a
//! test can stop or kill it at that step.
//!
//! `tenant_step SOCKET STEP [ADDRESS]`. STEP: `connected`; `hello`: that is sent, and its answer
//! not read; `welcome`: read, with rings; `route`: asked for one to ADDRESS, and the answer not
//! read; `link`: somebody else's has come, and is not read; `relay`: datagrams flow by the rings to
//! ADDRESS. Line out: `at NUMBER`, when it is there or, for `link`, waits for it, with its first
//! queue pair number; the end of input ends it.

use gdrcore_net::shm::relay::Relay;
use gdrcore_net::via::proto::{Message, Route};
use gdrcore_tests::far_end::parse_address;
use gdrcore_tests::forge;
use gdrcore_tests::router::{hello, Raw};
use std::path::Path;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, step, more @ ..] = &arguments[..] else { panic!("SOCKET STEP [ADDRESS]") };
    let target = more.first().and_then(|text| parse_address(text));
    let target = || target.expect("ADDRESS is missing");
    let mut raw = Raw::connect(Path::new(socket)).expect("a connection");
    let mut rings = None;
    let mut first = 0;
    match &step[..] {
        "connected" => {}
        "hello" => assert!(raw.say(1, Message::Hello(hello()))),
        "welcome" | "relay" => {
            let (welcome, ends) = raw.greet_with_rings();
            first = welcome.qpns.0;
            rings = Some(Relay::open(ends, welcome.rings, false).expect("rings"));
        }
        "route" => {
            first = raw.greet().qpns.0;
            let (gid, qpn) = (target().ah.dgid, target().qpn);
            let route = Route { gid, sgid_index: 0, qpn, traffic_class: 0 };
            assert!(raw.say(2, Message::Route(route)));
        }
        "link" => first = raw.greet().qpns.0,
        other => panic!("{other} is no step"),
    }
    println!("at {first}");
    if step == "relay" {
        let mut relay = rings.expect("rings");
        let packet = forge::datagram(first + 3, target().qpn, 500);
        loop {
            if relay.put(&target().ah.dgid, &packet).is_err() {
                return;
            }
            std::thread::yield_now();
        }
    }
    let _ = std::io::stdin().read_line(&mut String::new());
}
