//! gpu_direct over either transport.

use super::*;

const BOTH: [&str; 2] = ["dc", "rc"];

fn port(transport: &str) -> &'static str {
    if transport == "dc" {
        "19941"
    } else {
        "19946"
    }
}

/// A server at the address that ends in `last`, with more options.
fn server(transport: &str, last: u32, more: &[&str]) -> Running {
    let mut command = Command::new(library::examples().join("gpu_direct/server"));
    command.args(["-a", &loopback(41, last), "-p", port(transport), "-T", transport, "-P"]);
    Running::start(command.args(["-s", "1M", "-l", "3"]).args(more))
}

/// A client at `last` of the server at `to`, with more options.
fn client(transport: &str, last: u32, to: u32, more: &[&str]) -> Command {
    let mut command = Command::new(library::examples().join("gpu_direct/client"));
    command.args(["-a", &loopback(41, last), "-p", port(transport), "-T", transport, "-c"]);
    command.args(more).arg(loopback(41, to));
    command
}

/// Waits until the server has said something a number of times.
fn wait_for_count(server: &Running, text: &str, count: usize) {
    wait_for(60, text, || server.output().matches(text).count() == count);
}

fn finish(server: Running) -> String {
    server.interrupt();
    let done = server.finish(LIMIT);
    assert!(done.ok(), "{done}");
    assert!(!done.output.contains("left open"), "{done}");
    done.output
}

/// More clients at once than the server has DC initiators, some of them at one address.
#[test]
fn many_clients_are_written_and_read_at_once() {
    for transport in BOTH {
        let server = server(transport, 131, &[]);
        let clients = [
            ("0", "200", "100001", 132),
            ("1", "200", "65536", 133),
            ("0", "50", "1M", 134),
            ("1", "50", "1M", 135),
            ("0", "200", "7", 136),
            ("1", "200", "8000", 136),
            ("0", "100", "300000", 136),
        ];
        let clients = clients.map(|(kind, n, size, last)| {
            Running::start(&mut client(transport, last, 131, &["-t", kind, "-n", n, "-s", size]))
        });
        for client in clients {
            let done = client.finish(LIMIT);
            assert!(done.ok(), "{transport}: {done}");
            assert!(!done.output.contains("left open"), "{done}");
        }
        wait_for_count(&server, " is done: ", 7);
        finish(server);
    }
}

/// With DC the server's initiator recovers in place, and the client needs no other connection.
#[test]
fn a_task_that_fails_takes_no_other_with_it() {
    for transport in BOTH {
        let server = server(transport, 141, &["-D", "8"]);
        let clients = [142, 143, 144, 145, 146, 147].map(|last| {
            let kind = ["0", "1"][last as usize % 2];
            Running::start(&mut client(transport, last, 141, &["-t", kind, "-n", "40"]))
        });
        for client in clients {
            let done = client.finish(LIMIT);
            assert!(done.ok(), "{transport}: {done}");
            let failed = done.output.matches("failed on the server").count();
            let resets = done.output.matches("resetting the connection").count();
            let expected = if transport == "dc" { (1, 0) } else { (1, 1) };
            assert_eq!((failed, resets), expected, "{transport}: {done}");
        }
        let said = finish(server);
        assert_eq!(said.matches("REM_ACCESS_ERR").count(), 6, "{transport}: {said}");
    }
}

#[test]
fn a_client_that_is_killed_stops_no_other() {
    // Ended by us: it has more tasks than it can do.
    let many = ["-n", "4000000000", "-D", "1"];
    for transport in BOTH {
        let server = server(transport, 151, &[]);
        let mut other = Running::start(&mut client(transport, 152, 151, &many));
        for (last, kind) in [(153, "0"), (154, "1"), (155, "0"), (156, "1"), (157, "0")] {
            let more = [&many[..], &["-s", "1M", "-t", kind]].concat();
            let mut dying = Running::start(&mut client(transport, last, 151, &more));
            dying.wait_for_output("task 20:");
            other.wait_for_output("task 20:");
            dying.kill();
            let done = other.output().matches("client: task ").count();
            other.wait_for_output(&format!("task {}:", done + 50));
        }
        let next = run(&mut client(transport, 158, 151, &["-t", "1", "-n", "50"]), 60);
        assert!(next.ok(), "{transport}: {next}");
        other.interrupt();
        let done = other.finish(LIMIT);
        assert_eq!(done.code(), Some(128 + libc::SIGINT), "{done}");
        assert!(!done.output.contains("failed"), "{transport}: {done}");
        wait_for_count(&server, "closed the connection", 6);
        finish(server);
    }
}

/// Clients come and go while a pool of two serves them all; in each wave one is killed.
#[test]
fn a_pool_serves_more_clients_than_it_has_initiators() {
    let server = server("dc", 171, &["-i", "2"]);
    for wave in 0..3 {
        let clients: Vec<Running> = (0..6)
            .map(|k| {
                let kind = ["0", "1"][k % 2];
                let (n, size) = [("60", "1M"), ("200", "65536")][k / 3];
                Running::start(&mut client(
                    "dc",
                    172 + k as u32,
                    171,
                    &["-t", kind, "-n", n, "-s", size],
                ))
            })
            .collect();
        let kind = ["0", "1", "0"][wave];
        let many = ["-n", "4000000000", "-s", "1M", "-D", "1", "-t", kind];
        let mut dying = Running::start(&mut client("dc", 178, 171, &many));
        dying.wait_for_output("task 5:");
        dying.kill();
        for client in clients {
            let done = client.finish(LIMIT);
            assert!(done.ok(), "wave {wave}: {done}");
            assert!(done.output.contains("every byte checked"), "{done}");
        }
        wait_for_count(&server, "closed the connection", wave + 1);
    }
    wait_for_count(&server, " is done: ", 18);
    finish(server);
    let path = library::examples().join("gpu_direct/server");
    for wrong in ["0", "65", "x"] {
        let done = run(Command::new(&path).args(["-i", wrong]), 10);
        assert!(done.code() == Some(2) && done.output.contains("--initiators"), "{done}");
    }
}

#[test]
fn different_transports_are_an_error_on_both_sides() {
    for (own, other, name) in [("dc", "rc", "DC"), ("rc", "dc", "RC")] {
        let server = server(own, 161, &[]);
        let mut command = client(own, 162, 161, &[]);
        let done = run(command.args(["-T", other]), 60);
        let said = format!("this server uses {name}: give both sides the same --transport");
        assert!(done.code() == Some(1) && done.output.contains(&said), "{done}");
        let said = finish(server);
        assert!(said.contains(&format!("this side {name}")), "{said}");
    }
    for program in ["server", "client"] {
        let path = library::examples().join("gpu_direct").join(program);
        let done = run(Command::new(path).args(["-T", "ud", &loopback(41, 161)]), 10);
        assert!(done.code() == Some(2) && done.output.contains("dc or rc"), "{done}");
    }
}
