//! Congestion control over a wire that marks packets. Two soft devices are each in a network
//! namespace of their own, with a tap device in each; the wire between them is [`Mangler`], which
//! marks packets as a switch with a long queue would. Needs a network namespace in which it may do
//! anything.
//!
//! Prints its measurements. Panics if notifications do not come back, if the sender does not slow
//! down or does not recover, or if a byte is wrong.

use gdrcore_core::config::{config_flags, Config};
use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::wc_status;
use gdrcore_core::wire::PacketKind;
use gdrcore_net::soft::SoftConfig;
use gdrcore_tests::ends::{connected_pair, pattern, succeed, End, Op};
use gdrcore_tests::patience::deadline;
use gdrcore_tests::rxe::mangle::{open_tap, Mangler};
use gdrcore_tests::rxe::packets::{ecn, Moment, Seen};
use gdrcore_tests::rxe::side::Side;
use gdrcore_tests::soft::Soft;
use gdrcore_tests::tools::run;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::time::{Duration, Instant};

/// Bytes per second at which the sender starts. So low that the rate, and not the CPU, is the limit
/// on a busy machine too.
const LINE_RATE: u64 = 5_000_000;
/// Requests of a measurement, and bytes of each.
const REQUESTS: usize = 8;
const BYTES: usize = 500_000;

/// Counters: marked packets received, notifications sent, notifications heeded, notifications
/// ignored.
fn counts(dev: &dyn Device) -> [u64; 4] {
    let c = dev.counters().expect("counters");
    [c.np_ecn_marked, c.np_cnp_sent, c.rp_cnp_handled, c.rp_cnp_ignored]
}

fn ip(arguments: &str) {
    let done = run(Command::new("ip").args(arguments.split(' ')), 10);
    assert!(done.ok(), "ip {arguments}: {done}");
}

/// A tap device in this namespace.
fn tap(name: &str, host: u8) -> File {
    let tap = open_tap(name).expect("a tap device");
    ip("link set lo up");
    ip(&format!("link set {name} mtu 4200 addrgenmode none up"));
    ip(&format!("addr add 10.77.0.{host}/24 dev {name}"));
    ip(&format!("addr add fd00:77::{host}/64 dev {name} nodad"));
    tap
}

/// Time that the requests of one measurement take. Compares every byte.
fn time_of(a: &mut End, b: &mut End, op: Op, seed: u64) -> Duration {
    let reads = matches!(op, Op::Read(_));
    let data = pattern(seed, BYTES);
    let (source, target) =
        if reads { (&mut b.buffer, &mut a.buffer) } else { (&mut a.buffer, &mut b.buffer) };
    source.write(0, &data);
    target.write(0, &vec![0; BYTES]);
    let (began, mut done, end) = (Instant::now(), 0, deadline(60));
    for i in 0..REQUESTS {
        a.post(100 + i as u64, op, 0, BYTES as u32).expect("post_send");
    }
    while done < REQUESTS {
        for _ in 0..8 {
            b.poll();
            a.poll();
        }
        // The wire's threads need a core too.
        std::thread::yield_now();
        assert!(a.done.iter().all(|wc| wc.status == wc_status::SUCCESS), "{:?}", a.done);
        done += a.done.len();
        a.done.clear();
        assert!(Instant::now() < end, "{done} of {REQUESTS}");
    }
    let took = began.elapsed();
    let target = if reads { &a.buffer } else { &b.buffer };
    assert!(target.read(0, BYTES) == data, "a byte is wrong");
    took
}

/// Notifications that arrived, and whether all packets with data that `from` sent are ECN-capable.
fn on_the_wire(seen: &[Seen], from: Side) -> (usize, bool) {
    let kind = |s: &Seen| s.view().map(|v| v.opcode().kind());
    let cnps = seen.iter().filter(|s| {
        s.from != from && s.moment == Moment::Delivered && kind(s) == Some(PacketKind::Cnp)
    });
    let data =
        seen.iter().filter(|s| s.from == from && s.moment == Moment::Sent && s.frame.len() > 1000);
    (cnps.count(), data.clone().count() > 0 && data.clone().all(|s| ecn(&s.frame) == Some(2)))
}

/// Waits for the notifications that `receiver` has sent but `sender` has not got, then until the
/// rate has recovered.
fn settle(receiver: &dyn Device, sender: &dyn Device) {
    let (until, end) = (Instant::now() + Duration::from_millis(200), deadline(60));
    let all_came = || counts(sender)[2] + counts(sender)[3] >= counts(receiver)[1];
    while Instant::now() < until || !all_came() {
        assert!(Instant::now() < end, "{:?} sent, {:?} taken", counts(receiver), counts(sender));
        receiver.progress().expect("progress");
        sender.progress().expect("progress");
        std::thread::yield_now();
    }
}

/// Measures one operation between two devices without congestion, with it, and after it. Only the
/// direction of the data is marked.
fn between(wire: &Mangler, x: &dyn Device, y: &dyn Device, op: Op, what: &str) {
    let (mut a, mut b) = connected_pair(x, y);
    a.post(1, op, 0, BYTES as u32).expect("post_send");
    succeed(&mut a, &mut b, 1);
    // The sender of the data, and the receiver, which sends the notifications.
    let reads = matches!(op, Op::Read(_));
    let (sender, receiver, side) = if reads { (y, x, Side::Rxe) } else { (x, y, Side::Ours) };
    let (before, heard) = (counts(receiver), counts(sender));
    let mut free = time_of(&mut a, &mut b, op, 0);
    assert_eq!(
        (counts(receiver), counts(sender)),
        (before, heard),
        "packets were marked before congestion began"
    );
    let (mut congested, mut cnps, mut capable) = (Duration::ZERO, 0, true);
    // A busy machine makes the first measurement slow too; then all of them are repeated.
    for seed in 1..20 {
        wire.mark(side, 10_000);
        wire.watch();
        congested = congested.max(time_of(&mut a, &mut b, op, seed));
        wire.mark(side, 0);
        let (arrived, all) = on_the_wire(&wire.seen(), side);
        (cnps, capable) = (cnps + arrived, capable && all);
        settle(receiver, sender);
        free = free.min(time_of(&mut a, &mut b, op, 100 + seed));
        if 2 * congested > 3 * free {
            break;
        }
    }
    let (now, told) = (counts(receiver), counts(sender));
    // Repeated until one is fast: a busy machine makes each of them slow.
    let mut recovered = Duration::MAX;
    for seed in 200..220 {
        recovered = recovered.min(time_of(&mut a, &mut b, op, seed));
        if recovered < congested {
            break;
        }
    }
    let since = |i: usize| (now[i] - before[i], told[i] - heard[i]);
    let (marked, sent, followed) = (since(0).0, since(1).0, since(2).1);
    println!(
        "{what}: {marked} marks seen, {sent} notifications, {cnps} on the \
         wire while it lasted, {followed} followed; {} MB in {free:?} \
         without congestion, {congested:?} with it, {recovered:?} after it",
        REQUESTS * BYTES / 1_000_000
    );
    assert!(capable, "{what}: the sender's packets are not ECN-capable");
    assert!(
        marked > 100 && sent > 10 && sent <= marked,
        "{what}: {marked} marks, {sent} notifications"
    );
    assert!(
        cnps > 10 && followed > 10 && followed + since(3).1 <= sent,
        "{what}: {cnps} arrived, {followed} followed"
    );
    assert!(2 * congested > 3 * free, "{what}: the sender did not slow down");
    assert!(recovered < congested, "{what}: the sender did not recover");
    let after = (counts(receiver)[1], counts(sender)[2]);
    assert_eq!(after, (now[1], told[2]), "{what}: notifications after the congestion");
    a.destroy().and(b.destroy()).expect("destroy");
}

fn main() {
    let core = Config {
        flags: config_flags::DCQCN,
        line_rate_bytes_per_s: LINE_RATE,
        ..Config::default()
    };
    let config = SoftConfig { core, ..SoftConfig::default() };
    let open = |address: &str| Soft::open(&format!("soft:{address}"), &config).expect("a device");
    let near = tap("gdr0", 1);
    let home = File::open("/proc/self/ns/net").expect("this namespace");
    // SAFETY: no pointers; this is the only thread.
    assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0, "another network namespace");
    let far = tap("gdr1", 2);
    let theirs = ["10.77.0.2", "[fd00:77::2]:4791"].map(&open);
    // SAFETY: an open descriptor of a namespace.
    let back = unsafe { libc::setns(home.as_raw_fd(), libc::CLONE_NEWNET) };
    assert_eq!(back, 0, "back to the first");
    let ours = ["10.77.0.1", "[fd00:77::1]:4791"].map(&open);
    let wire = Mangler::join(near, far);
    for (i, family) in ["IPv4", "IPv6"].iter().enumerate() {
        let (x, y) = (ours[i].dev(), theirs[i].dev());
        between(&wire, x, y, Op::Write(0, None), &format!("{family} WRITE"));
        between(&wire, x, y, Op::Read(0), &format!("{family} READ"));
    }
    println!("{} packets bore a mark", wire.marked());
}
