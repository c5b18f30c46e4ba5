//! Rates, weights and counters of tenants, with processes of their own.
//!
//! What the router promises is looked at: that no more goes than a limit says, over the time that
//! really went by, and that shares are as weights say. How fast the machine is says nothing here:
//! all rates are such that any machine reaches them.

use gdrcore_core::verbs::cause::CauseCode;
use gdrcore_core::verbs::types::wc_status;
use gdrcore_net::shm::relay::{Put, Relay, RINGS};
use gdrcore_tests::ends::{connected_pair, pattern, succeed, Op};
use gdrcore_tests::far_end::Far;
use gdrcore_tests::library;
use gdrcore_tests::patience::{self, deadline, limit, until, wait_for};
use gdrcore_tests::router::{Raw, Router};
use gdrcore_tests::tools::{is_root, run, Done, Running};
use gdrcore_tests::traffic::failure;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::Arc;
use std::time::{Duration, Instant};

const FAR: &str = env!("CARGO_BIN_EXE_far_end");
const LIMIT: Duration = Duration::from_secs(60);
/// What the router adds to the bytes of a packet; see `relay::scheduler`.
const OVERHEAD: u64 = 48;
/// Bytes that may go at once where nothing is said.
const BURST: u64 = 256 << 10;

/// Tenants that send, and one to which they do.
const FOUR: &str = r#"
[router]
local = "relay"
[tenant.one]
listen = "DIR/one"
[tenant.two]
listen = "DIR/two"
weight = 2
[tenant.four]
listen = "DIR/four"
weight = 4
[tenant.sink]
listen = "DIR/sink"
weight = 100
"#;

/// What `routerctl tenants` says.
fn tenants(router: &Router) -> String {
    let done = router.ask("tenants");
    assert!(done.ok(), "{done}");
    done.output
}

/// A tenant's line of it.
fn of<'t>(tenants: &'t str, name: &str) -> &'t str {
    let is = |line: &&str| line.contains(&format!("\"tenant\":\"{name}\""));
    tenants.lines().find(is).unwrap_or_else(|| panic!("{tenants}"))
}

/// The line of one tenant, asked for alone.
fn tenant(router: &Router, name: &str) -> String {
    of(&tenants(router), name).to_string()
}

/// A number of it.
fn number(line: &str, key: &str) -> u64 {
    let (_, rest) = line.split_once(&format!("\"{key}\":")).unwrap_or_else(|| panic!("{line}"));
    let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
    digits.and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// What a tenant has sent, in bytes as they are charged, and when that was so at the latest.
fn sent(router: &Router, name: &str) -> (u64, Instant) {
    let line = tenant(router, name);
    (number(&line, "tx_bytes") + OVERHEAD * number(&line, "tx_packets"), Instant::now())
}

fn set(router: &Router, words: &[&str]) -> Done {
    run(&mut router.asks(&[&["set"], words].concat()), 60)
}

fn must_set(router: &Router, words: &[&str]) {
    let done = set(router, words);
    assert!(done.ok(), "{words:?}: {done}");
}

/// A process of a tenant that sends without end to one of the sink, and both.
fn stream(router: &Router, name: &str) -> [Far; 2] {
    // A ring of a limited tenant is long in time: no patience ends before it has gone.
    let options = ["stream=write", "piece=16384", "timeout=20"];
    let mut from = Far::start(FAR, &router.device(name), &options);
    let mut to = Far::start(FAR, &router.device("sink"), &["timeout=20"]);
    from.connect_far(&mut to);
    from.say("go");
    [from, to]
}

/// Waits until tenants have sent so much more, all together; what each has.
fn more(router: &Router, names: &[&str], bytes: u64) -> Vec<u64> {
    let before: Vec<u64> = names.iter().map(|name| sent(router, name).0).collect();
    let mut now = Vec::new();
    wait_for(120, "the streams stand still", || {
        now = names.iter().zip(&before).map(|(n, before)| sent(router, n).0 - before).collect();
        now.iter().sum::<u64>() >= bytes
    });
    now
}

/// Bytes a second that are few enough for a thread to keep rings filled, even if it gets no CPU for
/// a tenth of a second on an idle machine.
fn slow() -> u64 {
    500_000 / u64::from(patience::factor())
}

/// Seconds that a thread of the router has run.
fn cpu(router: &mut Router, thread: &str) -> f64 {
    let tasks = format!("/proc/{}/task", router.running().pid());
    for task in std::fs::read_dir(tasks).expect("its threads").flatten() {
        let text = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((name, rest)) = text.rsplit_once(')') else { continue };
        if name.ends_with(&format!("({thread}")) {
            let field = |n: usize| rest.split_whitespace().nth(n)?.parse::<f64>().ok();
            // SAFETY: no precondition.
            let hertz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
            return (field(11).expect("utime") + field(12).expect("stime")) / hertz;
        }
    }
    panic!("no thread {thread}");
}

#[test]
fn no_more_goes_than_a_limit_says_and_that_much_does() {
    let mut router = Router::start(FOUR);
    let _ends = stream(&router, "one");
    more(&router, &["one"], 1 << 20);
    let mut seen = Vec::new();
    for rate in [250_000u64, 1_000_000] {
        must_set(&router, &["one", &format!("tx_rate={rate}")]);
        // What was on its way when the limit came.
        let began = Instant::now();
        let from = sent(&router, "one").0;
        let before = cpu(&mut router, "relay");
        let mut last = (from, began);
        wait_for(120, "the stream stands still", || {
            std::thread::sleep(Duration::from_millis(100));
            last = sent(&router, "one");
            let most = rate as f64 * (last.1 - began).as_secs_f64() + (BURST + 8192) as f64;
            assert!(((last.0 - from) as f64) < most, "{rate}: {} {most}", last.0 - from);
            last.0 - from > BURST + 2 * rate
        });
        let seconds = (last.1 - began).as_secs_f64();
        let ran = cpu(&mut router, "relay") - before;
        assert!(ran < seconds / 2.0, "the worker spins at an empty bucket: {ran} of {seconds}");
        seen.push((last.0 - from - BURST) as f64 / seconds / rate as f64);
    }
    println!("shares of two limits: {seen:?}");
    must_set(&router, &["one", "tx_rate=off"]);
    more(&router, &["one"], 8 << 20);
    assert_eq!(number(&tenant(&router, "one"), "unpaid"), 0);
}

/// Rings of tenants that a thread keeps full, so that shares do not depend on which process gets a
/// CPU. What they carry is no packet, and is paid for as one.
struct Full {
    names: &'static [&'static str],
    filler: Option<std::thread::JoinHandle<()>>,
    shared: Arc<Filling>,
}

#[derive(Default)]
struct Filling {
    over: AtomicBool,
    /// A ring was all but empty when the thread came to it.
    ran_dry: AtomicBool,
}

/// Bytes of each frame's packet.
const JUNK: [u8; 1000] = [7; 1000];

impl Full {
    fn start(router: &Router, names: &'static [&'static str]) -> Full {
        let mut rings: Vec<(Raw, Relay)> = names.iter().map(|name| rings(router, name)).collect();
        let shared = Arc::new(Filling::default());
        let theirs = shared.clone();
        let filler = std::thread::spawn(move || {
            while !theirs.over.load(Relaxed) {
                for (_, relay) in &mut rings {
                    // Room for all but a few frames.
                    if relay.ask_room(RINGS.0 as usize * 7 / 8) == Ok(true) {
                        theirs.ran_dry.store(true, Relaxed);
                    }
                    while relay.put(&[9; 16], &JUNK) == Ok(Put::Done) {}
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        Full { names, filler: Some(filler), shared }
    }

    /// What each tenant is charged while all of them together are charged at least `bytes`, in a
    /// stretch of time in which no ring ran dry.
    fn charged(&self, router: &Router, bytes: u64) -> Vec<u64> {
        // All of one answer: between two of them the rings go on.
        let charged = || -> Vec<u64> {
            let all = tenants(router);
            let frames = |name| number(of(&all, name), "bad_frame");
            self.names.iter().map(|name| frames(name) * (JUNK.len() as u64 + OVERHEAD)).collect()
        };
        let mut from: Option<Vec<u64>> = None;
        until(
            240,
            || "no stretch of time in which all rings had frames".into(),
            || {
                let now = charged();
                if self.shared.ran_dry.swap(false, Relaxed) {
                    from = None;
                }
                let from = from.get_or_insert_with(|| now.clone());
                let more: Vec<u64> = now.iter().zip(&*from).map(|(now, from)| now - from).collect();
                (more.iter().sum::<u64>() >= bytes).then_some(more)
            },
        )
    }
}

impl Drop for Full {
    fn drop(&mut self) {
        self.shared.over.store(true, Relaxed);
        let _ = self.filler.take().map(std::thread::JoinHandle::join);
    }
}

/// `FOUR` with a rate of all tenants that leaves the filler time.
fn four_on_a_slow_line() -> String {
    FOUR.replace("local =", &format!("line_rate = {}\nlocal =", slow()))
}

#[test]
fn shares_are_as_weights_say() {
    let router = Router::start(&four_on_a_slow_line());
    let full = Full::start(&router, &["one", "two", "four"]);
    let shares = full.charged(&router, 1 << 20);
    println!("weights 1, 2, 4: {shares:?}");
    let ratio = |a: usize, b: usize| shares[a] as f64 / shares[b] as f64;
    assert!((1.7..2.4).contains(&ratio(1, 0)), "{shares:?}");
    assert!((1.7..2.4).contains(&ratio(2, 1)), "{shares:?}");
    assert!((3.2..5.0).contains(&ratio(2, 0)), "{shares:?}");
    // And as they are set to while all goes on.
    must_set(&router, &["one", "weight=4"]);
    must_set(&router, &["four", "weight=1"]);
    let shares = full.charged(&router, 1 << 20);
    assert!((3.2..5.0).contains(&(shares[0] as f64 / shares[2] as f64)), "{shares:?}");
}

#[test]
fn who_has_no_limit_keeps_its_share_beside_a_flood_that_has_one() {
    let router = Router::start(&four_on_a_slow_line().replace("weight = 2\n", ""));
    let full = Full::start(&router, &["one", "two"]);
    let ratio = |s: &[u64]| s[0] as f64 / s[1] as f64;
    let shares = full.charged(&router, 1 << 20);
    assert!((0.8..1.25).contains(&ratio(&shares)), "equals: {shares:?}");
    must_set(&router, &["two", &format!("tx_rate={}", slow() / 10), "burst=16KiB"]);
    let shares = full.charged(&router, 1 << 20);
    println!("none, and a tenth of the line: {shares:?}");
    assert!(ratio(&shares) > 6.0, "nine to one: {shares:?}");
}

#[test]
fn what_a_tenant_is_sent_has_a_limit_too() {
    let rate = 500_000;
    let router = Router::start(
        &FOUR
            .replace("weight = 100", &format!("weight = 100\nrx_rate = {rate}\nburst = \"64KiB\"")),
    );
    let _ends = stream(&router, "one");
    let received = || {
        let line = tenant(&router, "sink");
        (number(&line, "rx_bytes") + OVERHEAD * number(&line, "rx_packets"), Instant::now(), line)
    };
    let began = Instant::now();
    let mut last = received();
    let from = last.0;
    wait_for(120, "the stream stands still", || {
        std::thread::sleep(Duration::from_millis(50));
        last = received();
        let most = rate as f64 * (last.1 - began).as_secs_f64() + (64 << 10) as f64 + 8192.0;
        assert!(((last.0 - from) as f64) < most, "{} {most}", last.0 - from);
        last.0 - from > 1_000_000
    });
    assert!(number(&last.2, "marked") > 0, "{}", last.2);
}

#[test]
fn who_is_read_pays_for_it() {
    let (rate, burst) = (300_000, 32u64 << 10);
    let limit = format!("weight = 100\ntx_rate = {rate}\nburst = {burst}");
    let router = Router::start(&FOUR.replace("weight = 100", &limit));
    let mut from =
        Far::start(FAR, &router.device("one"), &["stream=read", "piece=16384", "timeout=19"]);
    let mut to = Far::start(FAR, &router.device("sink"), &["timeout=19"]);
    from.connect_far(&mut to);
    let began = Instant::now();
    from.say("go");
    wait_for(120, "the stream stands still", || {
        std::thread::sleep(Duration::from_millis(50));
        let (bytes, now) = sent(&router, "sink");
        let most = rate as f64 * (now - began).as_secs_f64() + (burst + 8192) as f64;
        assert!((bytes as f64) < most, "{bytes} {most}");
        bytes > 1_000_000
    });
    // Requests are a few bytes.
    assert!(sent(&router, "one").0 < 300_000);
}

#[test]
fn a_limit_that_comes_sends_pairs_through_the_relay() {
    let two = FOUR.replace("local = \"relay\"\n", "");
    let router = Router::start(&two);
    let [a, b] = ["one", "sink"].map(|name| router.open(name));
    let exchange = || {
        let (mut x, mut y) = connected_pair(a.dev(), b.dev());
        x.buffer.write(0, &pattern(1, 50_000));
        x.post(1, Op::Write(0, None), 0, 50_000).expect("post_send");
        succeed(&mut x, &mut y, 1);
        assert!(y.buffer.read(0, 50_000) == pattern(1, 50_000));
        (x, y)
    };
    let (mut x, mut y) = exchange();
    assert_eq!(sent(&router, "one").0, 0, "by a link");
    router.write(&two.replace("[tenant.one]", "[tenant.one]\ntx_rate = \"100MB\""));
    assert_eq!(router.reload(), Ok(()));
    let (status, cause) = failure(&mut x, &mut y);
    // What the peer has taken succeeds by its receipt; then the next one finds the end.
    assert!([wc_status::RETRY_EXC_ERR, wc_status::WR_FLUSH_ERR].contains(&status), "{status}");
    assert_eq!(cause.code, CauseCode::PathLost as u32);
    let relayed = exchange();
    let after = sent(&router, "one").0;
    assert!(after > 50_000, "{after}");
    // Without the limit there are links again.
    router.write(&two);
    assert_eq!(router.reload(), Ok(()));
    drop(relayed);
    let _ends = exchange();
    let is_linked = |line: &String| !line.contains("\"linked_by\":[]");
    assert!(router.sessions().iter().any(is_linked), "{:?}", router.sessions());
}

#[test]
fn who_may_not_set_sets_nothing_and_who_may_is_told_what_is_wrong() {
    let router = Router::start(FOUR);
    let device = router.open("one");
    for (words, why) in [
        (&["nobody", "weight=3"][..], "tenant nobody"),
        (&["one", "weight=0"], "weight '0'"),
        (&["one", "tx_rate=1Gb"], "tx_rate '1Gb'"),
        (&["one", "tx_rate=1Mbit", "colour=red"], "no such limit: colour"),
    ] {
        let done = set(&router, words);
        assert!(!done.ok() && done.output.contains(why), "{words:?} {done}");
    }
    let line = tenant(&router, "one");
    assert!(line.contains("\"tx_rate\":null") && number(&line, "weight") == 1, "{line}");
    if is_root() {
        // Where every user finds it.
        let program = router.dir().join("ctl");
        std::fs::copy(router.asks(&[]).get_program(), &program).expect("a copy");
        let stranger = |socket_mode: u32| {
            let mode = std::fs::Permissions::from_mode(socket_mode);
            std::fs::set_permissions(router.socket("admin"), mode).expect("the admin socket");
            let mut ask = Command::new(&program);
            ask.args(router.asks(&["set", "one", "weight=9"]).get_args());
            run(ask.uid(30001), 60)
        };
        let (kept_out, sent_away) = (stranger(0o600), stranger(0o666));
        assert!(!kept_out.ok() && kept_out.output.contains("ermission"), "{kept_out}");
        let words = "only root and its own user may ask";
        // It may notice while it asks.
        let is_told = [words, "Broken pipe", "reset"].iter().any(|w| sent_away.output.contains(w));
        assert!(!sent_away.ok() && is_told, "{sent_away}");
        assert_eq!(number(&tenant(&router, "one"), "weight"), 1);
    }
    must_set(&router, &["one", "tx_rate=1Mbit", "weight=3", "metered=true"]);
    let line = tenant(&router, "one");
    let numbers = ["tx_rate", "weight", "sessions"].map(|key| number(&line, key));
    assert!(numbers == [125_000, 3, 1] && line.contains("\"metered\":true"), "{line}");
    assert_eq!(router.reload(), Ok(()));
    assert_eq!(number(&tenant(&router, "one"), "weight"), 1, "until the next reload");
    // A session is dropped by its number, and by no other.
    let session = number(&router.sessions()[0], "session");
    let drop_it = |n: u64| run(&mut router.asks(&["drop", &n.to_string()]), 60);
    assert!(drop_it(session + 1).output.contains("there is none"));
    assert!(drop_it(session).ok() && router.sessions().is_empty());
    drop(device);
}

#[test]
fn freeflow_s_variables_are_limits() {
    let policy = FOUR.replace("[tenant.two]", "[tenant.two]\nffr_id = 7");
    let router = Router::start_in(&policy, &[], &[("RATE_LIMIT_7", "8000000")]);
    assert_eq!(number(&tenant(&router, "two"), "tx_rate"), 1_000_000);
    assert!(tenant(&router, "one").contains("\"tx_rate\":null"));
    assert_eq!(router.reload(), Ok(()));
    assert_eq!(number(&tenant(&router, "two"), "tx_rate"), 1_000_000, "after a reload as well");
    // A limit that nobody would have is not passed over.
    router.write(FOUR);
    assert!(router.reload().unwrap_err().contains("RATE_LIMIT_7: no tenant has ffr_id = 7"));
}

#[test]
fn a_top_shows_what_goes() {
    let router = Router::start(FOUR);
    let _ends = stream(&router, "two");
    more(&router, &["two"], 1 << 20);
    must_set(&router, &["two", "tx_rate=100MB"]);
    let mut top = Running::start(&mut router.asks(&["top", "--json"]));
    let row =
        |line: &str| line.contains("\"tenant\":\"two\"") && number(line, "tx_bytes_per_s") > 0;
    wait_for(60, "nothing goes", || top.output().lines().filter(|l| row(l)).count() > 1);
    assert!(top.output().lines().any(|l| row(l) && number(l, "tx_rate") == 100_000_000));
    top.kill();
    top.finish(LIMIT);
    let once = run(&mut router.asks(&["top", "--once"]), 60);
    let names = once.output.lines().skip(1).filter_map(|l| l.split_whitespace().next());
    assert!(once.ok() && names.eq(["one", "two", "four", "sink"]), "{once}");
}

/// `gdrcore top` has the sessions beside the devices (docs/using/TOP.md).
#[test]
fn the_top_of_a_user_has_the_sessions_of_routers() {
    let router = Router::start(FOUR);
    let _ends = stream(&router, "two");
    let top = |router: &Path| {
        let mut command = Command::new(library::cli());
        command.args(["top", "--json", "--once", "--interval", "0.3", "--router"]).arg(router);
        let done = run(&mut command, 60);
        let all: Value = serde_json::from_str(&done.output).expect("JSON");
        assert!(all["devices"].is_array(), "{all}");
        all["routers"][0].clone()
    };
    library::router();
    wait_for(60, "the session of tenant two does not send", || {
        let said = top(&router.socket("admin"));
        let sessions = said["sessions"].as_array().expect("sessions");
        let two = sessions.iter().find(|s| s["tenant"] == "two");
        let sends = |s: &Value| s["rates"]["tx_bytes"].as_f64() > Some(0.0);
        sessions.len() == 2 && two.is_some_and(|s| s["program"] == "far_end" && sends(s))
    });
    let mut command = Command::new(library::cli());
    command.args(["top", "--prometheus", "127.0.0.1:0", "--router"]).arg(router.socket("admin"));
    let mut server = Running::start(&mut command);
    server.wait_for_output("/metrics\n");
    let output = server.output();
    let at = output.trim().trim_start_matches("http://").trim_end_matches("/metrics");
    let mut client = TcpStream::connect(at).expect("a connection");
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("it listens");
    let mut said = String::new();
    client.read_to_string(&mut said).expect("an answer");
    let is_sent = |l: &str| l.starts_with("gdrcore_session_tx_bytes_total{");
    let two = said.lines().find(|l| is_sent(l) && l.contains(",tenant=\"two\","));
    assert!(two.is_some_and(|l| !l.ends_with(" 0")), "{said}");
    let none = top(&router.socket("none"));
    assert!(none["error"].as_str().is_some_and(|why| why.contains("none")), "{none}");
    // A router that is stopped.
    let silent = router.socket("silent");
    let _listener = UnixListener::bind(&silent).expect("a socket");
    let said = top(&silent);
    assert_eq!(said["error"], "no answer within 1 s");
}

/// Rings of a tenant, which a test fills as it likes.
fn rings(router: &Router, name: &str) -> (Raw, Relay) {
    let mut raw = Raw::connect(&router.socket(name)).expect("the router listens");
    let (welcome, ends) = raw.greet_with_rings();
    (raw, Relay::open(ends, welcome.rings, false).expect("rings"))
}

#[test]
fn rubbish_is_paid_for_as_data_is_and_coming_and_going_buys_nothing() {
    let (rate, burst) = (200_000u64, 16u64 << 10);
    let limit = format!("[tenant.one]\ntx_rate = {rate}\nburst = {burst}");
    let router = Router::start(&FOUR.replace("[tenant.one]", &limit));
    let cost = JUNK.len() as u64 + OVERHEAD;
    let refused = || number(&tenant(&router, "one"), "bad_frame") * cost;
    let most = |began: Instant, bursts: u64| {
        (rate as f64 * began.elapsed().as_secs_f64()) as u64 + bursts * burst + 8192
    };
    let (raw, mut relay) = rings(&router, "one");
    let began = Instant::now();
    wait_for(120, "the ring stands still", || {
        while relay.put(&[9; 16], &JUNK) == Ok(Put::Done) {}
        let seen = refused();
        assert!(seen < most(began, 1), "{seen} in {:?}", began.elapsed());
        seen > 2 * rate
    });
    assert!(!raw.has_ended(), "it may send what it likes");
    drop((raw, relay));
    // Each session fills its ring and goes.
    for _ in 0..60 {
        let (_raw, mut relay) = rings(&router, "one");
        while relay.put(&[9; 16], &JUNK) == Ok(Put::Done) {}
    }
    wait_for(60, "sessions stay", || router.sessions().is_empty());
    let line = tenant(&router, "one");
    assert!(refused() < most(began, 2), "{line}");
    assert!(number(&line, "unpaid") > 0, "{line}");
}

/// A port that nobody has at the moment.
fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its address").port()
}

/// The router's endpoint, and who reads there.
struct Reader(u16);

impl Reader {
    fn connect(&self) -> TcpStream {
        TcpStream::connect(("127.0.0.1", self.0)).expect("the router listens")
    }

    fn ask(&self, request: &str) -> std::io::Result<String> {
        let mut stream = self.connect();
        stream.write_all(request.as_bytes())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map(|_| text)
    }

    /// The counters. Too many who ask in a second are told so, and who came before many others is
    /// gone.
    fn counters(&self) -> String {
        let end = deadline(60);
        loop {
            match self.ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") {
                Ok(text) if text.starts_with("HTTP/1.1 200 OK\r\n") => break text,
                other => assert!(Instant::now() < end, "{other:?}"),
            }
        }
    }
}

/// A counter of tenant `one`.
fn value(text: &str, name: &str) -> u64 {
    let begin = format!("{name}{{tenant=\"one\",network=\"default\"}} ");
    let line = text.lines().find_map(|l| l.strip_prefix(&begin));
    line.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{name}: {text}"))
}

fn with_metrics() -> (Router, Reader) {
    let port = free_port();
    let there = format!("metrics = \"127.0.0.1:{port}\"\nlocal =");
    (Router::start(&FOUR.replace("local =", &there)), Reader(port))
}

#[test]
fn counters_are_read_over_http() {
    let (router, reader) = with_metrics();
    let _ends = stream(&router, "one");
    more(&router, &["one"], 100_000);
    let text = reader.counters();
    assert!(value(&text, "gdrcore_router_tx_bytes_total") >= 90_000);
    assert_eq!(value(&text, "gdrcore_router_sessions"), 1);
    for (request, status) in [("GET / HTTP/1.1", "404"), ("PUT /metrics HTTP/1.1", "405")] {
        let text = reader.ask(&format!("{request}\r\n\r\n")).expect("an answer");
        assert!(text.starts_with(&format!("HTTP/1.1 {status}")), "{text}");
    }
    // It can't move while the router runs.
    router.write(FOUR);
    assert!(router.reload().unwrap_err().contains("`metrics` can't change"));
}

#[test]
fn readers_without_manners_cost_their_own_connections() {
    let (mut router, reader) = with_metrics();
    let (before, began) = (cpu(&mut router, "gdrcore-routerd"), Instant::now());
    let mut rude: Vec<TcpStream> = Vec::new();
    // Some say nothing, some half a request or more than that, some ask often and never read.
    for n in 0..60 {
        let mut stream = reader.connect();
        let words = match n % 4 {
            0 => String::new(),
            1 => "GET /metrics HTTP/1.1\r\n".into(),
            2 => "GET /metrics HTTP/1.1\r\n\r\n".repeat(20),
            _ => "x".repeat(100_000),
        };
        // It may have been closed by then.
        let _ = stream.write_all(words.as_bytes());
        rude.push(stream);
        if n % 10 == 0 {
            assert_eq!(value(&reader.counters(), "gdrcore_router_sessions"), 0);
        }
    }
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", router.running().pid()));
    let count = descriptors.expect("its descriptors").count();
    assert!(count < 60, "{count} descriptors");
    // All of them are gone in a while, and none has kept the router busy.
    rude.truncate(0);
    rude.extend((0..4).map(|_| reader.connect()));
    for stream in &mut rude {
        let _ = stream.write_all(b"GET /metrics HTTP/1.1\r\n");
        stream.set_read_timeout(Some(limit(60))).expect("a limit");
        // Reset, where it was closed with words in it that nobody has read.
        let end = stream.read(&mut [0; 16]);
        let is_reset = |e: &std::io::Error| e.kind() == std::io::ErrorKind::ConnectionReset;
        assert!(matches!(&end, Ok(0)) || end.as_ref().is_err_and(is_reset), "it stays: {end:?}");
    }
    let (ran, seconds) =
        (cpu(&mut router, "gdrcore-routerd") - before, began.elapsed().as_secs_f64());
    assert!(ran < seconds / 2.0, "{ran} of {seconds}");
}
