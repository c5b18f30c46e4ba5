//! Every way in which a program ends, in each thing that it may be doing, over each path: what the
//! survivor sees stands in docs/using/ENDS.md. With GDRC_BLESS=1 the page is written instead.

use crate::play::{config, gid_of, gid_text, go, hear, shape, tell, WAYS};
use crate::survivor::{arguments, Program};
use gdrcore_core::cm::types::{cm_event, port_space, CmEvent, ConnParam};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::{qp_type, wc_status, AhAttr, Wc};
use gdrcore_tests::cm::{address as address_of, cm, offer};
use gdrcore_tests::ends::{Address, End, Op, Shape};
use gdrcore_tests::library;
use gdrcore_tests::patience::until;
use gdrcore_tests::place;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::router::{Router, TWO};
use gdrcore_tests::skip;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{compile, find, loopback, run, scratch};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const PAGE: &str = "docs/using/ENDS.md";
const PATHS: [&str; 3] = ["memory", "udp", "router"];
const PORT: u16 = 7471;
/// So many polls see what has been sent; if they see nothing, nothing was sent.
const LOOKS: u32 = 2000;

/// Ways that do not end the program: a child that it made by fork calls `exit`; its main thread
/// ends while another runs.
const CHILD: &str = "exit of a child of fork";
const THREAD: &str = "pthread_exit of main beside another thread";

/// Ways of a program in C (tests/c/ends.c), and their words there.
const WAYS_IN_C: [(&str, &str); 3] =
    [("dlclose", "dlclose"), ("pthread_exit of the only thread", "main"), (THREAD, "thread")];

/// What the program that ends is doing: the test, the section's title, and a remark.
struct Part {
    name: &'static str,
    title: &'static str,
    text: &'static str,
    /// Plays the program up to its end.
    program: fn(&Soft, &mut End<'static>, &[String]),
    /// What the survivor sees.
    survivor: fn(&mut Cell<'_>) -> String,
}

/// One cell of the table.
struct Cell<'c> {
    way: &'static str,
    path: &'static str,
    program: &'c mut Program,
    device: &'c Soft,
    end: End<'c>,
    /// Messages of the connection manager that were repeated before the program's end.
    repeated: u64,
}

impl Cell<'_> {
    /// Lets the program end, and waits for that.
    fn let_it_end(&mut self) {
        self.program.tell(&self.end.own);
        self.await_end();
    }

    fn goes_on(&self) -> bool {
        matches!(self.way, CHILD | THREAD)
    }

    fn repeats(&self) -> u64 {
        self.device.dev().counters().expect("counters").cm_retries
    }

    /// Waits until the program has ended, or says that it goes on.
    fn await_end(&mut self) {
        self.repeated = self.repeats();
        if self.goes_on() {
            self.program.wait_for("goes on");
        } else {
            let status = self.program.wait();
            let checks = WAYS_IN_C.iter().any(|(way, _)| *way == self.way);
            assert!(status.success() || !checks, "{}: {status}", self.way);
        }
    }

    fn completion(&mut self, id: u64) -> Wc {
        let end = &mut self.end;
        let turn = || {
            end.poll();
            end.take(id)
        };
        until(120, || format!("completion {id}"), turn)
    }

    /// How a request ended, and when.
    fn completed(&mut self, id: u64) -> String {
        let status = match self.completion(id).status {
            wc_status::SUCCESS => return "SUCCESS".into(),
            wc_status::RETRY_EXC_ERR => "RETRY_EXC_ERR",
            wc_status::WR_FLUSH_ERR => "WR_FLUSH_ERR",
            other => panic!("status {other}"),
        };
        let cause = self.end.dev.qp_cause(self.end.qp).expect("a cause");
        let at_once = cause.code == CauseCode::PathLost as u32;
        format!("{status}, {}", if at_once { "at once" } else { "by the retry timeout" })
    }

    fn event(&self) -> Option<CmEvent> {
        cm(self.device.dev()).event().expect("event")
    }

    /// The event that comes before long, if any does.
    fn look(&mut self) -> Option<String> {
        let _ = self.device.dev().wait(0);
        (0..LOOKS)
            .find_map(|_| {
                std::thread::yield_now();
                self.event()
            })
            .map(|e| self.told(&e))
    }

    fn told(&self, e: &CmEvent) -> String {
        let name = match e.event {
            cm_event::DISCONNECTED => "DISCONNECTED",
            cm_event::UNREACHABLE => "UNREACHABLE",
            cm_event::REJECTED => return "REJECTED, at once".into(),
            cm_event::ESTABLISHED => "ESTABLISHED",
            other => panic!("event {other}"),
        };
        let repeated = self.repeats() > self.repeated;
        let when = if repeated { "by the timeouts of its messages" } else { "at once" };
        // ETIMEDOUT, or what the network says, if that comes first.
        let status = match -e.status {
            libc::ETIMEDOUT if e.event == cm_event::DISCONNECTED => " (ETIMEDOUT)",
            _ => "",
        };
        format!("{name}{status}, {when}")
    }

    fn await_event(&self) -> String {
        self.told(&until(120, || "an event".into(), || self.event()))
    }
}

/// Response timeouts, by their codes, of requests that meet silence, and of others.
const SOON: u8 = 12;
const LATER: u8 = 15;

fn param(end: &End<'_>, timeout: u8) -> ConnParam<'static> {
    let response_timeout = gdrcore_tests::patience::ack_timeout(timeout);
    ConnParam { qpn: end.own.qpn, qp_type: qp_type::RC, response_timeout, ..offer(&[]) }
}

fn said(word: &str) {
    println!("{word}");
}

fn wait_for_line() {
    hear(&mut std::io::stdin().lock());
}

/// Connects the program's queue pair to the survivor's.
fn join(end: &mut End<'_>) {
    tell(&mut std::io::stdout(), &end.own);
    let peer = hear(&mut std::io::stdin().lock());
    end.connect(peer).expect("connect");
    end.post_recv(0, 0, 64).expect("post_recv");
    said("connected");
}

fn take(end: &mut End<'_>, id: u64) {
    while end.take(id).is_none() {
        end.poll();
    }
}

/// The survivor's side of [`join`].
fn joined(c: &mut Cell<'_>) {
    let peer = c.program.swap(&c.end.own);
    c.program.wait_for("connected");
    c.end.connect(peer).expect("connect");
}

const EXCHANGES: u64 = 20;

fn takes_a_message(_: &Soft, end: &mut End<'static>, _: &[String]) {
    join(end);
    take(end, 0);
}

fn sends_a_message(c: &mut Cell<'_>) -> String {
    joined(c);
    c.end.post(1, Op::Send(None), 0, 64).expect("post_send");
    c.await_end();
    c.completed(1)
}

fn answers_messages(_: &Soft, end: &mut End<'static>, _: &[String]) {
    join(end);
    take(end, 0);
    for round in 1..=EXCHANGES {
        end.post_recv(round, 0, 64).expect("post_recv");
        end.post(1000 + round, Op::Send(None), 64, 64).expect("post_send");
        take(end, round);
    }
}

fn sends_messages(c: &mut Cell<'_>) -> String {
    joined(c);
    for round in 0..EXCHANGES {
        c.end.post_recv(1000 + round, 64, 64).expect("post_recv");
        c.end.post(round, Op::Send(None), 0, 64).expect("post_send");
        assert_eq!(c.completion(1000 + round).status, wc_status::SUCCESS);
    }
    c.end.post(EXCHANGES, Op::Send(None), 0, 64).expect("post_send");
    c.await_end();
    c.completed(EXCHANGES)
}

fn gets_read(_: &Soft, end: &mut End<'static>, _: &[String]) {
    join(end);
    wait_for_line();
}

fn reads(c: &mut Cell<'_>) -> String {
    joined(c);
    c.end.post(1, Op::Read(0), 0, 4096).expect("post_send");
    c.let_it_end();
    c.completed(1)
}

/// Where the survivor listens, by the program's arguments.
fn server(arguments: &[String]) -> AhAttr {
    let udp_port = arguments[1].parse().expect("a port");
    AhAttr { dgid: gid_of(&arguments[0]), udp_port, ..AhAttr::default() }
}

fn listen(dev: &dyn Device) {
    let listener = cm(dev).create(port_space::TCP, 0).expect("an id");
    cm(dev).bind(listener, PORT).expect("bind");
    cm(dev).listen(listener, 4).expect("listen");
}

fn ask_for(dev: &dyn Device, end: &End<'_>, to: &AhAttr, timeout: u8) {
    let id = cm(dev).create(port_space::TCP, 0).expect("an id");
    cm(dev).connect(id, to, PORT, end.qp, &param(end, timeout)).expect("connect");
}

/// Runs a program's device until an event of a kind comes.
fn expect(dev: &dyn Device, kind: u32) -> CmEvent {
    let e = until(120, || format!("event {kind}"), || cm(dev).event().expect("event"));
    assert_eq!(e.event, kind);
    e
}

fn connects(device: &Soft, end: &mut End<'static>, arguments: &[String]) {
    ask_for(device.dev(), end, &server(arguments), LATER);
    expect(device.dev(), cm_event::ESTABLISHED);
    said("connected");
    wait_for_line();
}

fn waits_connected(c: &mut Cell<'_>) -> String {
    let request = expect(c.device.dev(), cm_event::CONNECT_REQUEST);
    cm(c.device.dev()).accept(request.id, c.end.qp, &param(&c.end, LATER)).expect("accept");
    c.end.post_recv(1, 0, 64).expect("post_recv");
    expect(c.device.dev(), cm_event::ESTABLISHED);
    c.program.wait_for("connected");
    let _ = c.device.dev().wait(0);
    c.let_it_end();
    if c.goes_on() {
        return c.look().unwrap_or_else(|| "nothing".into());
    }
    let seen = c.await_event();
    assert_eq!(c.completion(1).status, wc_status::WR_FLUSH_ERR, "its receive is flushed");
    seen
}

fn requests(device: &Soft, end: &mut End<'static>, arguments: &[String]) {
    ask_for(device.dev(), end, &server(arguments), LATER);
    wait_for_line();
}

fn accepts_late(c: &mut Cell<'_>) -> String {
    let request = expect(c.device.dev(), cm_event::CONNECT_REQUEST);
    c.let_it_end();
    if let Some(seen) = c.look() {
        return seen;
    }
    let accepted = cm(c.device.dev()).accept(request.id, c.end.qp, &param(&c.end, LATER));
    accepted.expect("accept");
    c.await_event()
}

fn leaves_a_request(device: &Soft, _: &mut End<'static>, _: &[String]) {
    listen(device.dev());
    tell(&mut std::io::stdout(), &Address { ah: address_of(device.dev()), ..Address::default() });
    expect(device.dev(), cm_event::CONNECT_REQUEST);
    said("asked");
    wait_for_line();
}

fn awaits_an_answer(c: &mut Cell<'_>) -> String {
    let to = hear(c.program.lines()).ah;
    ask_for(c.device.dev(), &c.end, &to, SOON);
    c.program.wait_for("asked");
    c.let_it_end();
    if c.goes_on() {
        return c.look().unwrap_or_else(|| "nothing".into());
    }
    c.await_event()
}

fn listens(device: &Soft, _: &mut End<'static>, _: &[String]) {
    listen(device.dev());
    tell(&mut std::io::stdout(), &Address { ah: address_of(device.dev()), ..Address::default() });
    wait_for_line();
}

fn finds_no_listener(c: &mut Cell<'_>) -> String {
    let to = hear(c.program.lines()).ah;
    c.let_it_end();
    ask_for(c.device.dev(), &c.end, &to, SOON);
    if c.goes_on() {
        return c.look().unwrap_or_else(|| "nothing".into());
    }
    c.await_event()
}

fn group() -> [u8; 16] {
    std::net::Ipv4Addr::new(239, place::number(), 9, 9).to_ipv6_mapped().octets()
}

fn datagram_end(dev: &dyn Device) -> End<'_> {
    End::new(dev, Shape { qp_type: qp_type::UD, ..shape() }).expect("a UD QP")
}

fn takes_datagrams(device: &Soft, _: &mut End<'static>, arguments: &[String]) {
    let mut end = datagram_end(device.dev());
    tell(&mut std::io::stdout(), &end.own);
    end.connect(hear(&mut std::io::stdin().lock())).expect("to RTS");
    if arguments[2] != "router" {
        end.dev.mcast_attach(end.qp, &gid_of(&arguments[3])).expect("the group");
    }
    said("connected");
    wait_for_line();
}

fn sends_datagrams(c: &mut Cell<'_>) -> String {
    let mut end = datagram_end(c.device.dev());
    let peer = c.program.swap(&end.own);
    c.program.wait_for("connected");
    end.connect(peer).expect("to RTS");
    c.let_it_end();
    end.post(1, Op::Send(None), 0, 64).expect("post_send");
    if c.path != "router" {
        let everybody = AhAttr { dgid: group(), ..AhAttr::default() };
        end.ah = end.dev.ah_create(end.pd, &everybody).expect("ah_create");
        end.peer.qpn = 0xff_ffff;
        end.post(2, Op::Send(None), 0, 64).expect("post_send");
        end.dev.mcast_attach(end.qp, &group()).expect("the group");
    }
    c.end = end;
    if c.path != "router" {
        assert_eq!(c.completion(2).status, wc_status::SUCCESS);
    }
    c.completed(1)
}

const PARTS: [Part; 8] = [
    Part {
        name: "message",
        title: "It has taken a message",
        text: "The sender of the message, whose completion the program has polled.",
        program: takes_a_message,
        survivor: sends_a_message,
    },
    Part {
        name: "answers",
        title: "It has taken a message, after it has answered others",
        text: "Over UDP the ACK of a program that answers each message waits for its next answer: \
               an ACK of its own would cost as much as the answer. What runs no code of the \
               device loses it. A sender of this host and user then finds the receipt of the \
               message, when its retries are used up; one of another host gets RETRY_EXC_ERR.",
        program: answers_messages,
        survivor: sends_messages,
    },
    Part {
        name: "read",
        title: "Its memory is being read",
        text: "The initiator of a READ that has arrived, and that the program has not looked at.",
        program: gets_read,
        survivor: reads,
    },
    Part {
        name: "idle",
        title: "It has an idle connection of rdma_cm",
        text: "The server, whose receives are flushed. With a status: the program said nothing. \
               librdmacm has that status only where the survivor asked for the end itself. Where \
               the program's process cannot be watched (another user or host), and it said \
               nothing, this takes as long as the keepalive: 1 to 15 s, and 2 s where the network \
               says that nobody is there, else 9 s.",
        program: connects,
        survivor: waits_connected,
    },
    Part {
        name: "request",
        title: "It has requested a connection",
        text: "The server, which accepts the request when the program has ended.",
        program: requests,
        survivor: accepts_late,
    },
    Part {
        name: "answer",
        title: "It has a request for a connection",
        text: "The client, which waits for the answer.",
        program: leaves_a_request,
        survivor: awaits_an_answer,
    },
    Part {
        name: "listener",
        title: "It listened",
        text: "A client that asks for a connection when the program has ended.",
        program: listens,
        survivor: finds_no_listener,
    },
    Part {
        name: "datagrams",
        title: "It takes datagrams, and is in a group",
        text: "The sender of a datagram to the program's queue pair, and (not over a router) of \
               one to the group. A datagram has no answer, so this is all that there is.",
        program: takes_datagrams,
        survivor: sends_datagrams,
    },
];

/// The program: part, path, way, device, and what the part needs.
fn play(arguments: &[String]) -> ! {
    let [part, path, way, name, rest @ ..] = arguments else { panic!("{arguments:?}") };
    let part = PARTS.iter().find(|p| p.name == part).expect("a part");
    let device = Soft::open(name, &config(path)).expect("a device");
    let device: &'static Soft = Box::leak(Box::new(device));
    let mut end = End::new(device.dev(), shape()).expect("an end");
    said("\nready");
    (part.program)(device, &mut end, rest);
    if way == "child" {
        go_on(device, &mut end);
    }
    go(way, device, &end)
}

/// A child of fork ends, and the program goes on until it is killed.
fn go_on(device: &Soft, end: &mut End<'_>) -> ! {
    // SAFETY: the child ends at once.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    said("goes on");
    loop {
        end.poll();
        let _ = cm(device.dev()).event();
    }
}

/// Compiles the program of [`WAYS_IN_C`] into a folder.
fn program_in_c(dir: &Path) -> PathBuf {
    let flags = library::flags(dir);
    let flags = flags.iter().map(String::as_str);
    let part: Vec<&str> = ["-shared", "-fPIC"].into_iter().chain(flags).collect();
    std::fs::rename(compile("cc", "ends", dir, &part), dir.join("ends.so")).expect("the library");
    compile("cc", "ends", dir, &["-DHOST", "-ldl", "-lpthread"])
}

fn cell(
    part: &Part,
    way: &'static str,
    path: &'static str,
    names: &[String; 2],
    c: &Path,
) -> String {
    let device = Soft::open(&names[0], &config(path)).expect("a device");
    let end = End::new(device.dev(), shape()).expect("an end");
    if matches!(part.name, "idle" | "request") {
        listen(device.dev());
    }
    let at = address_of(device.dev());
    let (gid, port) = (gid_text(&at.dgid), at.udp_port.to_string());
    let to = gid_text(&group());
    let arguments = |word| [part.name, path, word, &names[1], &gid, &port, path, &to];
    let in_c = WAYS_IN_C.iter().find(|(of, _)| *of == way);
    let mut program = match in_c {
        Some((_, word)) => Program::run(Command::new(c).args(arguments(word))),
        None => {
            let word = if way == CHILD { "child" } else { way };
            Program::start(&format!("matrix::{}", part.name), &arguments(word))
        }
    };
    let mut cell = Cell { way, path, program: &mut program, device: &device, end, repeated: 0 };
    let seen = (part.survivor)(&mut cell);
    drop(cell);
    seen
}

/// The section of a part.
fn section(part: &Part) -> String {
    let router = Router::start(TWO);
    let dir = scratch("ends");
    let in_c = program_in_c(&dir);
    let ways = WAYS.into_iter().chain([CHILD]).chain(WAYS_IN_C.map(|(way, _)| way));
    table(part.title, part.text, ways, |way, path| {
        let names = match path {
            "router" => [router.device("a"), router.device("b")],
            _ => [address(1), address(2)],
        };
        cell(part, way, path, &names, &in_c)
    })
}

/// A section of the page: ways with the same results share a row.
fn table(
    title: &str,
    text: &str,
    ways: impl Iterator<Item = &'static str>,
    mut cell: impl FnMut(&'static str, &'static str) -> String,
) -> String {
    let mut rows: Vec<(Vec<&str>, [String; 3])> = Vec::new();
    for way in ways {
        let seen = PATHS.map(|path| {
            let seen = cell(way, path);
            println!("{title}, {way}, {path}: {seen}");
            seen
        });
        match rows.iter_mut().find(|(_, row)| *row == seen) {
            Some((ways, _)) => ways.push(way),
            None => rows.push((vec![way], seen)),
        }
    }
    let mut text = format!("## {title}\n\n{}\n\n", wrapped(text));
    text += "| it ends by | memory | UDP | router |\n|---|---|---|---|\n";
    for (ways, [memory, udp, router]) in rows {
        text += &format!("| {} | {memory} | {udp} | {router} |\n", ways.join(", "));
    }
    text
}

fn wrapped(text: &str) -> String {
    let (mut lines, mut line) = (String::new(), String::new());
    for word in text.split_whitespace() {
        if line.len() + word.len() >= 100 {
            lines += &format!("{}\n", line.trim_end());
            line.clear();
        }
        line += word;
        line.push(' ');
    }
    lines + line.trim_end()
}

fn check(name: &str) {
    if let Some(arguments) = arguments() {
        play(&arguments);
    }
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let part = PARTS.iter().find(|p| p.name == name).expect("a part");
    compare(part.title, &section(part));
}

/// Compares the page's section, or writes it.
fn compare(title: &str, wanted: &str) {
    let path = root().join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page");
    let heading = format!("## {title}\n");
    let (before, rest) = page.split_once(&heading).unwrap_or((&page, ""));
    let end = rest.find("\n## ").map_or(rest.len(), |at| at + 1);
    let is = format!("{heading}{}", rest[..end].trim_end());
    if std::env::var_os("GDRC_BLESS").is_some() {
        let page = format!("{}\n\n{wanted}\n{}", before.trim_end(), &rest[end..]);
        std::fs::write(path, page.trim_end().to_string() + "\n").expect("the page");
    } else {
        assert_eq!(is, wanted.trim_end(), "{PAGE} says something else: GDRC_BLESS=1 writes it");
    }
}

macro_rules! parts {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*
    };
}

parts! { message answers read idle request answer listener datagrams }

const ON_SOCKETS: &str = "It has a connected rsocket";

/// A program of rsockets, unmodified (tests/c/dead_peer.c); both are its processes.
#[test]
fn rsocket() {
    if find("cc").is_none() || !Path::new("/usr/include/rdma/rsocket.h").exists() {
        skip!("no compiler, or no librdmacm-dev");
    }
    let dir = scratch("ends_rsocket");
    let program = compile("cc", "dead_peer", &dir, &["-lrdmacm", "-libverbs"]);
    let router = Router::start(TWO);
    let ways = ["close", "shutdown"].into_iter().chain(WAYS.into_iter().skip(4)).chain([CHILD]);
    let text =
        "The server, which waits in rpoll: it wakes, and this is what rrecv finds. `close` is \
                rclose, `shutdown` is rshutdown.";
    let wanted = table(ON_SOCKETS, text, ways, |way, path| {
        let word = if way == CHILD { "child" } else { way };
        let (a, b) = (router.socket("a"), router.socket("b"));
        let mut run_it = if path == "router" {
            let mut c = command(None, &[], &program);
            c.args(["10.99.0.2", "10.99.0.3", word]).args([a, b]);
            c
        } else {
            let path = if path == "udp" { "udp" } else { "auto" };
            let mut c = command(None, &["--path", path], &program);
            c.args([1, 2].map(|last| loopback(98, last))).arg(word);
            c
        };
        let done = run(&mut run_it, 90);
        assert!(done.ok(), "{way}, {path}: {done}");
        done.output.trim().to_string()
    });
    compare(ON_SOCKETS, &wanted);
}
