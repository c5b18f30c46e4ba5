//! Congestion marks on real sockets: the kernel passes the mark on, notifications go back, the
//! sender slows down.

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::wc_status;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::ends::{connected_pair, pattern, succeed, End, Op};
use gdrcore_tests::forge::{bth, plain, send_valid};
use gdrcore_tests::patience::{deadline, limit, run_until};
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{find, run, scratch};
use std::ffi::CString;
use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// WRITEs of a measurement.
const WRITES: usize = 16;
/// Bytes of each.
const BYTES: usize = 500_000;
/// The usual interval: one notification in 50 µs.
const CNP_INTERVAL: Duration = Duration::from_micros(50);

/// Makes the socket's packets carry these ECN bits, as if a switch had set them.
fn mark(socket: &UdpSocket, ecn: i32) {
    let value: *const i32 = &ecn;
    // SAFETY: an open socket and one whole int.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_TOS,
            value.cast(),
            std::mem::size_of_val(&ecn) as libc::socklen_t,
        )
    };
    assert_eq!(rc, 0, "IP_TOS");
}

/// Counters: marked packets received, notifications sent, notifications heeded, notifications
/// ignored.
fn counts(dev: &dyn Device) -> [u64; 4] {
    let c = dev.counters().expect("counters");
    [c.np_ecn_marked, c.np_cnp_sent, c.rp_cnp_handled, c.rp_cnp_ignored]
}

/// Time that the WRITEs take; `beside` is called between polls.
fn time_of(a: &mut End, b: &mut End, beside: &mut dyn FnMut()) -> Duration {
    let (began, mut done) = (Instant::now(), 0);
    for i in 0..WRITES {
        a.post(100 + i as u64, Op::Write(0, None), 0, BYTES as u32).expect("post_send");
    }
    while done < WRITES {
        beside();
        for _ in 0..8 {
            b.poll();
            a.poll();
        }
        assert!(a.done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{:?}", a.done);
        done += a.done.len();
        a.done.clear();
        assert!(began.elapsed() < limit(60), "{done} of {WRITES}");
    }
    began.elapsed()
}

#[test]
fn marks_become_notifications_and_those_a_lower_rate() {
    let (x, y) = (address(1), address(2));
    let folder = scratch("cnp");
    let file = folder.join("cnp.pcap");
    let path = CString::new(file.to_str().expect("a plain path")).expect("no NUL");
    let core = Config {
        flags: config_flags::DCQCN,
        line_rate_bytes_per_s: 1_250_000_000,
        ..Config::default()
    };
    let dx = Soft::open(&x, &SoftConfig { core, ..SoftConfig::default() }).expect("a device");
    let dy = Soft::open(&y, &SoftConfig { pcap: Some(&path), ..SoftConfig::default() })
        .expect("a device");
    let (mut a, mut b) = connected_pair(dx.dev(), dy.dev());
    a.buffer.write(0, &pattern(1, BYTES));
    a.post(1, Op::Write(0, None), 0, BYTES as u32).expect("post_send");
    succeed(&mut a, &mut b, 1);
    assert_eq!((counts(dx.dev()), counts(dy.dev())), ([0; 4], [0; 4]), "loopback marks no packets");

    // Marked duplicates of the peer's packets from the peer's address; and the same from a
    // stranger, which must be ignored.
    let forger = UdpSocket::bind((plain(&x).ip(), 0)).expect("a socket at the peer's address");
    let stranger = UdpSocket::bind((plain(&address(3)).ip(), 0)).expect("a socket");
    mark(&forger, 3);
    mark(&stranger, 3);
    let target = plain(&y);
    let (qpn, psn) = (b.own.qpn, a.own.psn);
    let packet = || [bth(0x04, 0x40, qpn, false, psn), vec![7; 64]].concat();
    for _ in 0..20 {
        send_valid(&stranger, target, &mut packet());
    }
    run_until(60, "the kernel passes no mark on", || {
        b.dev.progress().expect("progress");
        counts(dy.dev())[0] >= 20
    });
    assert_eq!(counts(dy.dev())[1], 0, "marks on a stranger's packets caused notifications");
    // The same WRITEs in turn without and with congestion, until the marks have had their effect. A
    // fast machine ends the first WRITEs before the first notification arrives, and on a busy
    // machine WRITEs without congestion are slow as well.
    let mut free = (0..3).map(|_| time_of(&mut a, &mut b, &mut || {})).min().expect("three");
    let (began, mut sent, mut congested) = (Instant::now(), 0u64, Duration::ZERO);
    loop {
        let took = time_of(&mut a, &mut b, &mut || {
            send_valid(&forger, target, &mut packet());
            sent += 1;
        });
        congested = congested.max(took);
        let ([marked, cnps, ..], [_, _, handled, _]) = (counts(dy.dev()), counts(dx.dev()));
        if marked > 40 && cnps > 10 && handled > 10 && congested > 3 * free {
            break;
        }
        assert!(
            began.elapsed() < limit(60),
            "{marked} marks, {cnps} notifications, {handled} followed; \
             {free:?} without, {congested:?} with congestion"
        );
        free = free.min(time_of(&mut a, &mut b, &mut || {}));
    }
    let end = deadline(60);
    while counts(dx.dev())[2] + counts(dx.dev())[3] < counts(dy.dev())[1] && Instant::now() < end {
        b.dev.progress().expect("progress");
        a.dev.progress().expect("progress");
    }
    let most = (began.elapsed().as_nanos() / CNP_INTERVAL.as_nanos()) as u64 + 1;
    let ([marked, cnps, ..], [_, _, handled, ignored]) = (counts(dy.dev()), counts(dx.dev()));
    println!(
        "{sent} marked packets, {marked} seen, {cnps} \
         notifications (at most {most}), {handled} followed"
    );
    println!(
        "{} MiB in {free:?} without, in {congested:?} with congestion",
        (WRITES * BYTES) >> 20
    );
    assert!(cnps <= most && cnps <= marked, "{cnps} notifications, at most {most} expected");
    assert_eq!(handled + ignored, cnps, "not all notifications arrived");
    assert!(b.buffer.read(0, BYTES) == pattern(1, BYTES));
    // Now nothing is marked any more.
    std::thread::sleep(Duration::from_millis(200));
    time_of(&mut a, &mut b, &mut || {});
    assert_eq!(counts(dx.dev())[2] + counts(dx.dev())[3], cnps);
    a.destroy().and(b.destroy()).expect("destroy");
    drop(dy);

    tshark_sees(&file, target.port(), cnps);
}

/// Checks that tshark finds as many CNPs in a capture.
fn tshark_sees(file: &Path, port: u16, cnps: u64) {
    if find("tshark").is_none() {
        gdrcore_tests::skip!("tshark is not installed; no other program read the notifications");
    }
    let mut tshark = Command::new(root().join("scripts/tshark_roce.sh"));
    tshark.args(["-p", &port.to_string()]).arg(file);
    tshark.args(["-T", "fields", "-e", "infiniband.bth.opcode"]);
    // The file has all packets: up to some hundred MiB.
    let read = run(&mut tshark, 300);
    assert!(read.ok(), "{read}");
    let seen = read.output.lines().filter(|l| l.trim() == "129").count() as u64;
    assert_eq!(seen, cnps, "tshark reads each notification as a CNP (0x81)");
}
