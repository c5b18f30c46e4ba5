//! A message whose completion the receiver has taken is delivered: its sender gets SUCCESS, however
//! the receiver ends. A READ that has arrived is answered before its queue pair ends.

use crate::play::{config, go, hear, shape, tell, WAYS};
use crate::survivor::{arguments, Program};
use gdrcore_core::error::Result;
use gdrcore_core::verbs::types::{qp_attr_mask, qp_state, wc_status, QpAttr};
use gdrcore_tests::ends::{connected_pair, succeed, End, Op};
use gdrcore_tests::patience::until;
use gdrcore_tests::soft::{address, over_each, Soft};
use std::io::Write;

/// Messages to and fro before the last one: a program that answers each message, until it ends.
/// Over UDP the ACK of such a program waits for its next answer. Ways that run no code of the
/// device lose it, and its receipt remains.
const EXCHANGES: [u64; 2] = [0, 20];

/// The receiver: path, way, address, exchanges.
fn receive(arguments: &[String]) -> ! {
    let [path, way, address, exchanges] = arguments else { panic!("{arguments:?}") };
    let device = Soft::open(address, &config(path)).expect("a device");
    let device: &'static Soft = Box::leak(Box::new(device));
    let mut end = End::new(device.dev(), shape()).expect("an end");
    println!("\nready");
    tell(&mut std::io::stdout(), &end.own);
    let peer = hear(&mut std::io::stdin().lock());
    end.connect(peer).expect("connect");
    end.post_recv(0, 0, 64).expect("post_recv");
    println!("connected");
    std::io::stdout().flush().expect("a pipe");
    for round in 0..=exchanges.parse::<u64>().expect("a number") {
        if round > 0 {
            end.post_recv(round, 0, 64).expect("post_recv");
            end.post(1000 + round, Op::Send(None), 64, 64).expect("post_send");
        }
        while end.take(round).is_none() {
            end.poll();
        }
    }
    go(way, device, &end)
}

/// The sender's side. It looks for the completion of the last message when the receiver is gone.
fn send(test: &str, path: &str, way: &str, exchanges: u64) -> u32 {
    let [a, b] = [address(1), address(2)];
    let device = Soft::open(&a, &config(path)).expect("a device");
    let mut program = Program::start(test, &[path, way, &b, &exchanges.to_string()]);
    let mut end = End::new(device.dev(), shape()).expect("an end");
    let peer = program.swap(&end.own);
    program.wait_for("connected");
    end.connect(peer).expect("connect");
    let await_one = |end: &mut End, id: u64| {
        let turn = || {
            end.poll();
            end.take(id)
        };
        until(60, || format!("completion {id}"), turn)
    };
    for round in 0..=exchanges {
        if round < exchanges {
            end.post_recv(1000 + round, 64, 64).expect("post_recv");
        }
        end.post(round, Op::Send(None), 0, 64).expect("post_send");
        if round < exchanges {
            assert_eq!(await_one(&mut end, 1000 + round).status, wc_status::SUCCESS);
        }
    }
    program.wait();
    let status = await_one(&mut end, exchanges).status;
    drop(end);
    status
}

fn every_way(test: &str, path: &str) {
    if let Some(arguments) = arguments() {
        receive(&arguments);
    }
    for exchanges in EXCHANGES {
        for way in WAYS {
            let status = send(test, path, way, exchanges);
            assert_eq!(status, wc_status::SUCCESS, "{path}, {way} after {exchanges} answers");
        }
    }
}

#[test]
fn over_shared_memory() {
    every_way("last_message::over_shared_memory", "memory");
}

/// A receiver whose queue pair has two connections with the same PSNs, and takes nothing of the
/// second. `late`: it takes the rest of the first connection when its peer has begun the second.
fn receive_twice(address: &str, late: bool) -> ! {
    let device = Soft::open(address, &config("memory")).expect("a device");
    let device: &'static Soft = Box::leak(Box::new(device));
    let mut end = End::new(device.dev(), shape()).expect("an end");
    println!("\nready");
    tell(&mut std::io::stdout(), &end.own);
    let mut lines = std::io::stdin().lock();
    let peer = hear(&mut lines);
    end.connect(peer).expect("connect");
    let take = |end: &mut End, id: u64| {
        end.post_recv(id, 0, 64).expect("post_recv");
        println!("connected");
        while end.take(id).is_none() {
            end.poll();
        }
        println!("received");
    };
    take(&mut end, 0);
    hear(&mut lines);
    if late {
        take(&mut end, 1);
        end.dev.qp_reset(end.qp).expect("reset");
        end.connect(peer).expect("connect");
        println!("again");
        hear(&mut lines);
    }
    go("_exit", device, &end)
}

/// Messages of a second connection that the receiver never took fail, whatever it took of the
/// first one.
#[test]
fn of_another_connection_of_the_same_queue_pairs() {
    let test = "last_message::of_another_connection_of_the_same_queue_pairs";
    if let Some(arguments) = arguments() {
        receive_twice(&arguments[0], arguments[1] == "late");
    }
    for when in ["early", "late"] {
        let [a, b] = [address(1), address(2)];
        let device = Soft::open(&a, &config("memory")).expect("a device");
        let mut program = Program::start(test, &[&b, when]);
        let mut end = End::new(device.dev(), shape()).expect("an end");
        let peer = program.swap(&end.own);
        let connect = |end: &mut End| {
            end.dev.qp_reset(end.qp).expect("reset");
            end.connect(peer).expect("connect");
        };
        connect(&mut end);
        program.wait_for("connected");
        let send = |end: &End, id| end.post(id, Op::Send(None), 0, 64).expect("post_send");
        send(&end, 0);
        program.wait_for("received");
        if when == "late" {
            send(&end, 1);
        }
        connect(&mut end);
        while end.poll() > 0 {}
        end.done.clear();
        if when == "late" {
            program.tell(&end.own);
            program.wait_for("again");
            // The last ACK of the first connection.
            end.poll();
        }
        send(&end, 10);
        send(&end, 11);
        program.tell(&end.own);
        program.wait();
        for id in [10, 11] {
            let turn = || {
                end.poll();
                end.take(id)
            };
            let wc = until(60, || format!("completion {id}"), turn);
            assert_ne!(wc.status, wc_status::SUCCESS, "{when}: nobody took {id}");
        }
    }
}

#[test]
fn over_udp() {
    every_way("last_message::over_udp", "udp");
}

#[test]
fn a_read_that_has_arrived_is_answered_before_its_queue_pair_ends() {
    type Way = fn(&End<'_>) -> Result<()>;
    let ways: [Way; 3] = [
        |end| end.dev.qp_destroy(end.qp),
        |end| end.dev.qp_reset(end.qp),
        |end| {
            let error = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
            end.dev.qp_modify(end.qp, &error, qp_attr_mask::STATE)
        },
    ];
    for end in ways {
        // The peer has run no round since the reader's link was made.
        over_each(|da, db| {
            let (mut a, mut b) = connected_pair(da, db);
            a.post(1, Op::Read(0), 0, 4096).expect("post_send");
            end(&b).expect("its end");
            succeed(&mut a, &mut b, 1);
        });
    }
}
