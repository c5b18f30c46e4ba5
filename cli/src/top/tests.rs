use super::snapshot::{changes, Device, Fill};
use super::{parse, routers, table, Options};
use gdrcore_net::status::Status;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// A device that said something, so many seconds after the epoch.
fn device(text: &str, at: u64) -> Device {
    device_of("7", text, at)
}

/// One of another block.
fn device_of(block: &str, text: &str, at: u64) -> Device {
    Device::from_status(&Status {
        place: format!("/somewhere/{block}").into(),
        text: text.into(),
        written: SystemTime::UNIX_EPOCH + Duration::from_secs(at),
        is_answer: true,
    })
}

fn prometheus(devices: &[Device]) -> String {
    table::prometheus(&devices.iter().map(table::source).collect::<Vec<_>>())
}

const PROCESS: &str = "process pid=0 program=a name=b\n";

fn with_qp(counters: &str, cause: &str) -> String {
    format!(
        "{PROCESS}device address=127.0.0.1:4791 qp=1 cq=2 srq=0 mr=3 mw=0 sent_bytes=10\n\
         qp qpn=17 type=RC state=ERR peer=127.0.0.3 peer_qpn=5 path=udp sq=3/16 rq=0/0{counters}\
         {cause}\ncq entries=4/64\nend\n"
    )
}

#[test]
fn a_status_is_read() {
    let d = device(&with_qp(" sent_bytes=10 rnr=2", " cause=no answer (7 retries); PSN=3"), 1);
    assert_eq!((d.pid, d.program.as_str()), (0, "a name=b"));
    assert_eq!(d.address, "127.0.0.1:4791");
    assert_eq!((d.objects["mr"], d.objects["cq"], d.counters["sent_bytes"]), (3, 2, 10));
    assert!(!d.counters.contains_key("mr"), "an object is no counter");
    let qp = &d.qps[0];
    assert_eq!((qp.qpn, qp.kind.as_str(), qp.state.as_str()), (17, "RC", "ERR"));
    assert_eq!((qp.peer.0.as_str(), qp.peer.1, qp.path.as_str()), ("127.0.0.3", 5, "udp"));
    assert_eq!((qp.sq, qp.rq), (Fill(3, 16), Fill(0, 0)));
    assert_eq!(qp.counters.len(), 2);
    assert_eq!(qp.cause, "no answer (7 retries); PSN=3");
    assert_eq!(d.cqs, [Fill(4, 64)]);
}

#[test]
fn text_that_is_no_status_is_no_fault() {
    for text in
        ["", "qp", "qp qpn=", "device =3 =", "process pid=-1 program", "\n\n", "cq entries=/"]
    {
        let d = device(text, 1);
        assert_eq!(d.pid, 0, "{text}");
        let all = [d];
        table::text(&all, &changes(&[], &all), false);
    }
}

#[test]
fn rates_are_of_the_time_between_two_answers() {
    let old = [device(&with_qp(" rdma_sends=10", ""), 1)];
    let new = [device(&with_qp(" rdma_sends=30", ""), 3)];
    let all = changes(&old, &new);
    assert_eq!(all[0].qps[0]["rdma_sends"], 10.0);
    assert!(all[0].counters.is_empty(), "nothing else has changed");
    // A device that has not answered since has no rates.
    assert!(changes(&new, &new)[0].qps.is_empty());
    // Nor has one that the process has opened anew.
    assert!(changes(&[device(&with_qp(" rdma_sends=40", ""), 1)], &new)[0].qps[0].is_empty());
    // Nor has one of another process at the same place.
    let [old] = old;
    assert!(changes(&[Device { pid: 1, ..old }], &new)[0].qps.is_empty());
}

#[test]
fn a_device_that_was_just_opened_has_no_rates_of_all_its_life() {
    let (old, new) = (device(PROCESS, 1), device(&with_qp(" rdma_sends=30", ""), 3));
    assert!(changes(&[old], &[new])[0].qps.is_empty());
}

#[test]
fn a_name_cannot_command_the_terminal_or_break_a_label() {
    let d = device("process pid=0 program=a\x1b[2J\"\\\n", 1);
    let all = [d];
    let shown = table::text(&all, &changes(&[], &all), false);
    assert!(!shown.contains('\x1b') && shown.contains("a?[2J"), "{shown}");
    assert!(prometheus(&all).contains(r#"program="a?[2J\"\\""#));
    let words = "\x1b[2J";
    let all = [device(
        &format!(
            "{PROCESS}device address={words}\" qp=1 a\"b=1 c{words}=2\n\
             qp qpn=1 type={words} state={words} peer={words} path={words} cause={words}\nend\n"
        ),
        1,
    )];
    let shown = table::text(&all, &changes(&[], &all), false) + &prometheus(&all);
    assert!(!shown.contains('\x1b') && shown.contains("?[2J"), "{shown}");
    assert!(shown.contains("device=\"soft:?[2J\\\""), "{shown}");
    assert!(all[0].counters.is_empty(), "{:?}", all[0].counters);
}

#[test]
fn a_process_of_another_pid_namespace_is_not_confused() {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    let (pid, own) = (std::process::id(), gdrcore_net::status::pid_namespace());
    for ns in [own, own + 1] {
        let d = device(&format!("process pid={pid} pid_ns={ns} program={name}"), 1);
        assert_eq!((d.process.is_some(), d.pid), (ns == own, pid.into()), "{ns}");
    }
}

#[test]
fn the_counters_of_prometheus_are_families() {
    let text = prometheus(&["7", "8"].map(|block| device_of(block, &with_qp("", ""), 1)));
    let families = text.matches("# TYPE ").count();
    assert_eq!(text.matches("# TYPE gdrcore_sent_bytes_total counter").count(), 1);
    assert_eq!(text.matches("device=\"soft:127.0.0.1:4791\",block=").count(), 2 * families);
    // Two engines of a process have an address.
    let mut series: Vec<_> = text.lines().filter_map(|l| l.rsplit_once(' ')).collect();
    series.retain(|(name, _)| !name.starts_with('#'));
    let all = series.len();
    series.sort_by_key(|(name, _)| *name);
    series.dedup_by_key(|(name, _)| *name);
    assert_eq!((series.len(), all), (2 * families, 2 * families));
}

#[test]
fn options_are_parsed() {
    let of = |words: &[&str]| parse(words.iter().map(Into::into));
    let plain = Options { interval: Duration::from_secs(1), ..Options::default() };
    assert_eq!(of(&[]).unwrap(), Some(plain));
    let half = of(&["--json", "--once", "--interval", "0.5"]).unwrap().unwrap();
    assert!(half.json && half.once && half.interval == Duration::from_millis(500));
    assert_eq!(of(&["--help"]).unwrap(), None);
    let routers = of(&["--router", "/a", "--router=/b"]).unwrap().unwrap().routers;
    assert_eq!(routers, [PathBuf::from("/a"), PathBuf::from("/b")]);
    let served = of(&["--prometheus", "127.0.0.1:1", "--router", "/a"]).unwrap().unwrap();
    assert_eq!((served.prometheus.is_some(), served.routers.len()), (true, 1));
    let wrong: [&[&str]; 9] = [
        &["x"],
        &["--interval", "0"],
        &["--interval", "NaN"],
        &["--interval"],
        &["--prometheus", "here"],
        &["--prometheus", "127.0.0.1:1", "--once"],
        &["--router"],
        &["--prometheus", "127.0.0.1:1", "--json"],
        &["--wrong"],
    ];
    wrong.iter().for_each(|words| assert!(of(words).is_err(), "{words:?}"));
}

#[test]
fn sessions_of_routers_have_rates_and_no_word_for_the_terminal() {
    let session = |id: u32, bytes: u64| {
        serde_json::json!({
            "session": id, "state": "up", "tenant": "blue", "address": "10.99.0.2", "pid": 7,
            "program": "a\u{1b}[2J", "remote": null,
            "relay": {"tx_bytes": bytes, "full": 1, "refused": {"policy": 2, "rate": 3}},
        })
        .to_string()
    };
    let of = |text: &str| [routers::Router::from_answer("/r/admin", Ok(text))];
    let (old, new) = (of(&session(1, 1000)), of(&[session(1, 3000), session(2, 9000)].join("\n")));
    let all = routers::json(&new, &old);
    let sessions = all[0]["sessions"].as_array().unwrap();
    assert!(sessions[0]["rates"]["tx_bytes"].as_f64() > Some(0.0), "{all}");
    assert_eq!(sessions[1]["rates"], serde_json::json!({}), "it was not there before");
    assert_eq!(all[0]["error"], serde_json::Value::Null);
    let shown = routers::text(&new, &old);
    let row = shown.lines().nth(2).unwrap();
    assert!(row.contains("blue") && row.contains("a?[2J") && !shown.contains('\x1b'), "{shown}");
    assert!(row.ends_with(" 6"), "lost: {row}");
    let text = table::prometheus(&routers::sources(&new).collect::<Vec<_>>());
    let of_session = |id: u32| {
        format!(
            "{{router=\"/r/admin\",session=\"{id}\",tenant=\"blue\",address=\"10.99.0.2\",\
             program=\"a?[2J\",pid=\"7\"}}"
        )
    };
    for (id, bytes) in [(1, 3000), (2, 9000)] {
        let line = format!("gdrcore_session_tx_bytes_total{} {bytes}\n", of_session(id));
        assert!(text.contains(&line), "{text}");
    }
    assert!(text.contains("gdrcore_router_answers{router=\"/r/admin\"} 1\n"), "{text}");
    // Requests that a router's device refuses are no packets that it did not forward.
    let remote = serde_json::json!({
        "session": 1, "relay": {"tx_bytes": 1, "refused": {"policy": 2}},
        "remote": {"device": "soft:10.0.0.1", "posted": 9, "refused": 5, "completed": 4},
    })
    .to_string();
    let remote = of(&remote);
    assert!(routers::text(&remote, &remote).trim_end().ends_with(" 2"));
    assert_eq!(routers::json(&remote, &remote)[0]["sessions"][0]["remote"]["refused"], 5);
    // Another router's counters, an answer that is no session, and a router that refuses.
    let other = [routers::Router::from_answer("/r/other", Ok(&session(1, 0)))];
    assert_eq!(routers::json(&new, &other)[0]["sessions"][0]["rates"], serde_json::json!({}));
    for answer in [Ok("{"), Ok("7"), Ok("[{}]"), Ok("null"), Err("it refuses".to_string())] {
        let wrong = [routers::Router::from_answer("/r/admin", answer)];
        assert!(routers::json(&wrong, &new)[0]["error"].is_string());
        assert!(routers::text(&wrong, &new).starts_with("/r/admin: "));
        let text = table::prometheus(&routers::sources(&wrong).collect::<Vec<_>>());
        let no =
            "# TYPE gdrcore_router_answers gauge\ngdrcore_router_answers{router=\"/r/admin\"} 0\n";
        assert_eq!(text, no);
    }
}
