//! Completion channels: each thread sleeps on CQs of its own, with and without a helper thread,
//! over each path.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{
    qp_attr_mask, qp_state, wc_opcode, wc_status, Handle, QpAttr, Wc,
};
use gdrcore_core::Error;
use gdrcore_net::soft::{soft_flags, PathChoice, SoftConfig};
use gdrcore_tests::ends::{connect_both, connected, End, Op, Shape};
use gdrcore_tests::patience::limit_ms;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::workers::{await_sleep, sleeping};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::Arc;
use std::time::Duration;

/// Wake-ups of a run, summed over its threads.
const WAKE_UPS: u64 = 100_000;
fn small() -> Shape {
    Shape { buffer: 4096, depth: 8, cqe: 16, ..Shape::default() }
}

/// Sleeps until a completion comes, by the recipe of docs/using/ABI.md.
fn sleep_for(end: &mut End, channel: Handle) {
    while end.poll() == 0 {
        end.dev.cq_arm(end.cq, false).expect("cq_arm");
        // A completion that came before the CQ was armed raises no event.
        if end.poll() > 0 {
            return;
        }
        let woken = end.dev.channel_wait(channel, limit_ms(60)).expect("channel_wait");
        assert_eq!(woken, Some(end.cq), "the sleeper was not woken by an event of its CQ");
    }
}

/// Polls completions until a message has arrived.
fn receive(end: &mut End, channel: Handle) {
    loop {
        sleep_for(end, channel);
        let mut came = false;
        for wc in std::mem::take(&mut end.done) {
            assert_eq!(wc.status, wc_status::SUCCESS);
            came |= wc.opcode & wc_opcode::RECV != 0;
        }
        if came {
            return;
        }
    }
}

/// One side of an exchange of messages, each of which wakes a sleeper.
fn exchange(mut end: End, channel: Handle, first: bool, rounds: u64, ended: &AtomicU32) {
    end.post_recv(0, 2048, 64).expect("post_recv");
    for round in 0..rounds {
        if first || round > 0 {
            end.post(round, Op::Send(None), 0, 8).expect("post_send");
        }
        receive(&mut end, channel);
        end.post_recv(0, 2048, 64).expect("post_recv");
    }
    if !first {
        end.post(rounds, Op::Send(None), 0, 8).expect("post_send");
        sleep_for(&mut end, channel);
    }
    // The last message is acknowledged only while its receiver runs its engine.
    ended.fetch_add(1, Ordering::Relaxed);
    while first && ended.load(Ordering::Relaxed) < 2 {
        end.dev.progress().expect("progress");
        std::thread::yield_now();
    }
}

/// Two contexts with two threads each; the threads exchange messages in pairs.
fn four_sleepers(config: &SoftConfig, names: [&str; 2]) {
    let [x, y] = names.map(|n| Soft::open(n, config).unwrap_or_else(|e| panic!("{n}: {e}")));
    let rounds = WAKE_UPS / 4;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let channels = [&x, &y].map(|d| d.dev().channel_create().expect("a channel"));
            let (a, b) = pair([x.dev(), y.dev()], channels);
            let ended = Arc::new(AtomicU32::new(0));
            let same = ended.clone();
            scope.spawn(move || exchange(a, channels[0], true, rounds, &ended));
            scope.spawn(move || exchange(b, channels[1], false, rounds, &same));
        }
    });
}

/// Two connected ends, each with its CQ on a channel.
fn pair<'d>(devices: [&'d dyn Device; 2], channels: [Handle; 2]) -> (End<'d>, End<'d>) {
    let [mut a, mut b] =
        [0, 1].map(|i| End::on_channel(devices[i], small(), channels[i]).expect("an end"));
    connect_both(&mut a, &mut b);
    (a, b)
}

#[test]
fn no_wake_up_is_lost_over_udp() {
    four_sleepers(&SoftConfig::default(), [&address(1), &address(2)]);
}

#[test]
fn no_wake_up_is_lost_through_shared_memory() {
    let config = SoftConfig { path: PathChoice::Shm, ..SoftConfig::default() };
    four_sleepers(&config, [&address(1), &address(2)]);
}

#[test]
fn no_wake_up_is_lost_with_a_helper() {
    let config =
        SoftConfig { path: PathChoice::Auto, flags: soft_flags::HELPER, ..SoftConfig::default() };
    four_sleepers(&config, [&address(1), &address(2)]);
}

#[test]
fn no_wake_up_is_lost_while_a_helper_comes_and_goes() {
    let [x, y] = [1, 2].map(|n| Soft::new(&address(n)));
    let channels = [&x, &y].map(|d| d.dev().channel_create().expect("a channel"));
    let (a, b) = pair([x.dev(), y.dev()], channels);
    let ended = AtomicU32::new(0);
    std::thread::scope(|scope| {
        let ended = &ended;
        let one = scope.spawn(move || exchange(a, channels[0], true, 20_000, ended));
        let other = scope.spawn(move || exchange(b, channels[1], false, 20_000, ended));
        let mut on = false;
        while !one.is_finished() || !other.is_finished() {
            on = !on;
            [&x, &y].into_iter().for_each(|d| d.dev().helper(on).expect("helper"));
            std::thread::sleep(Duration::from_millis(3));
        }
    });
}

#[test]
fn threads_on_channels_on_which_nothing_happens_all_sleep() {
    for flags in [0, soft_flags::HELPER] {
        let config = SoftConfig { path: PathChoice::Auto, flags, ..SoftConfig::default() };
        let [x, y] = [1, 2].map(|n| Soft::open(&address(n), &config).expect("a device"));
        let (mut a, mut b) = connected(x.dev(), y.dev(), small()).expect("connected ends");
        a.post(1, Op::Write(0, None), 0, 8).expect("post_send");
        gdrcore_tests::ends::succeed(&mut a, &mut b, 1);
        let channels: Vec<Handle> =
            (0..3).map(|_| x.dev().channel_create().expect("a channel")).collect();
        let stopped = AtomicBool::new(false);
        let stop = &stopped;
        std::thread::scope(|scope| {
            let (send, asleep) = std::sync::mpsc::channel();
            for &channel in &channels {
                let (dev, send) = (x.dev(), send.clone());
                scope.spawn(move || {
                    send.send(sleeping()).expect("a listener");
                    while !stop.load(Ordering::Relaxed) {
                        assert_eq!(dev.channel_wait(channel, 500), Ok(None), "nothing happens");
                    }
                });
            }
            let asleep: Vec<_> =
                channels.iter().map(|_| asleep.recv().expect("a thread")).collect();
            // All at the same time, again and again, once owed ACKs and the steering of the
            // address have settled.
            for _ in 0..20 {
                await_sleep(|| asleep.iter().all(|sleeps| sleeps()));
            }
            stop.store(true, Ordering::Relaxed);
        });
    }
}

#[test]
fn events_go_to_their_own_channel_only() {
    let x = Soft::new("loopback");
    let dev = x.dev();
    let channels = [0, 1].map(|_| dev.channel_create().expect("a channel"));
    let (mut a, mut b) = pair([dev, dev], channels);
    let readable = |channel: Handle| {
        let mut p = libc::pollfd {
            fd: dev.channel_fd(channel).expect("fd"),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&mut p, 1, 0) == 1 }
    };
    for e in [&a, &b] {
        dev.cq_arm(e.cq, false).expect("cq_arm");
    }
    b.post_recv(7, 0, 64).expect("post_recv");
    assert!(!readable(channels[0]) && !readable(channels[1]));
    a.post(8, Op::Send(None), 0, 8).expect("post_send");
    dev.progress().expect("progress");
    assert!(readable(channels[0]) && readable(channels[1]));
    assert_eq!(dev.cq_event(), Ok(None), "no event of the context");
    assert_eq!(dev.channel_wait(channels[1], 0), Ok(Some(b.cq)));
    assert!(readable(channels[0]) && !readable(channels[1]));
    assert_eq!(dev.channel_event(channels[1]), Ok(None));
    assert_eq!(dev.channel_event(channels[0]), Ok(Some(a.cq)));
    assert!(!readable(channels[0]));
    a.poll();
    b.poll();
    // An event that was not taken is removed with its CQ.
    dev.cq_arm(a.cq, false).expect("cq_arm");
    a.post(9, Op::Write(0, None), 0, 8).expect("post_send");
    dev.progress().expect("progress");
    assert!(readable(channels[0]));
    assert_eq!(dev.channel_destroy(channels[0]), Err(Error::Busy));
    let mut wc = [Wc::default(); 4];
    while dev.poll_cq(a.cq, &mut wc).expect("poll") > 0 {}
    a.destroy().expect("destroy");
    assert!(!readable(channels[0]));
    b.destroy().expect("destroy");
    for channel in channels {
        dev.channel_destroy(channel).expect("no CQ uses the channel");
        assert_eq!(dev.channel_event(channel), Err(Error::StaleHandle));
        assert_eq!(dev.channel_destroy(channel), Err(Error::StaleHandle));
    }
    assert!(dev.cq_create_on(16, channels[0]).is_err());
}

#[test]
fn an_event_goes_with_its_cq_and_the_others_stay() {
    let x = Soft::new("loopback");
    let dev = x.dev();
    for gone in 0..3 {
        let channel = dev.channel_create().expect("a channel");
        let mut ends: Vec<(End, End)> = (0..3).map(|_| pair([dev, dev], [channel; 2])).collect();
        for (a, _) in &ends {
            dev.cq_arm(a.cq, false).expect("cq_arm");
            a.post(1, Op::Write(0, None), 0, 8).expect("post_send");
            dev.progress().expect("progress");
        }
        // A CQ has one event, however often it is armed and gets a completion before the event is
        // taken.
        let (a, _) = &mut ends[0];
        a.poll();
        dev.cq_arm(a.cq, false).expect("cq_arm");
        a.post(2, Op::Write(0, None), 0, 8).expect("post_send");
        dev.progress().expect("progress");
        let mut left: Vec<Handle> = ends.iter().map(|(a, _)| a.cq).collect();
        left.remove(gone);
        let (a, b) = ends.remove(gone);
        let mut wc = [Wc::default(); 4];
        while dev.poll_cq(a.cq, &mut wc).expect("poll") > 0 {}
        a.destroy().and(b.destroy()).expect("destroy");
        let mut taken: Vec<Handle> =
            std::iter::from_fn(|| dev.channel_event(channel).expect("an event")).collect();
        taken.sort_unstable();
        left.sort_unstable();
        assert_eq!(taken, left);
        for (a, b) in ends {
            while dev.poll_cq(a.cq, &mut wc).expect("poll") > 0 {}
            a.destroy().and(b.destroy()).expect("destroy");
        }
        dev.channel_destroy(channel).expect("destroy");
    }
}

#[test]
fn channels_are_bounded_and_a_sleeper_keeps_its_own() {
    let x = Soft::new("loopback");
    let dev = x.dev();
    let all: Vec<Handle> = (0..64).map(|_| dev.channel_create().expect("a channel")).collect();
    assert_eq!(dev.channel_create(), Err(Error::NoMemory));
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| dev.channel_wait(all[3], 500));
        let mut refused = false;
        while !sleeper.is_finished() {
            // If the thread sleeps already, this call is refused, else the thread's call is.
            refused |=
                dev.channel_fd(all[3]).is_ok() && dev.channel_destroy(all[3]) == Err(Error::Busy);
            std::thread::yield_now();
        }
        let outcome = sleeper.join().expect("a sleeper");
        assert!(
            refused && outcome == Ok(None) || outcome == Err(Error::StaleHandle),
            "{outcome:?}"
        );
    });
    for h in [0, u64::MAX, all[0] ^ 1 << 40, all[0] | 0xff, all[0] ^ 0x100] {
        assert_eq!(dev.channel_event(h), Err(Error::StaleHandle), "{h:#x}");
    }
}

#[test]
fn a_signal_ends_the_sleep() {
    extern "C" fn nothing(_: i32) {}
    // SAFETY: a handler that does nothing, without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(i32) as usize;
        libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut());
    }
    let x = Soft::new(&address(1));
    let channels = [0, 1].map(|_| x.dev().channel_create().expect("a channel"));
    // One sleeper that runs the engine, and one beside it.
    std::thread::scope(|scope| {
        let sleepers = channels.map(|c| {
            let (send, thread) = std::sync::mpsc::channel();
            let dev = x.dev();
            let sleeper = scope.spawn(move || {
                // SAFETY: no precondition.
                send.send(unsafe { libc::pthread_self() }).expect("a listener");
                dev.channel_wait(c, -1)
            });
            (thread.recv().expect("a thread"), sleeper)
        });
        for (thread, sleeper) in sleepers {
            while !sleeper.is_finished() {
                // SAFETY: the thread has not been joined.
                unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
                std::thread::sleep(Duration::from_millis(1));
            }
            assert_eq!(sleeper.join().expect("a sleeper"), Err(Error::Os(libc::EINTR)));
        }
    });
}

#[test]
fn a_sleeper_beside_a_channel_goes_on_when_that_one_leaves() {
    let config = SoftConfig { path: PathChoice::Udp, ..SoftConfig::default() };
    let [x, y] = [1, 2].map(|n| Soft::open(&address(n), &config).expect("a device"));
    let channels = [&x, &y].map(|d| d.dev().channel_create().expect("a channel"));
    let (mut told, tells) = pair([x.dev(), y.dev()], channels);
    // A queue pair whose peer is in RESET: it answers nothing, so that only timers end its request.
    let (mut waits, mute) = connected(x.dev(), y.dev(), small()).expect("connected ends");
    let reset = QpAttr { qp_state: qp_state::RESET, ..QpAttr::default() };
    mute.dev.qp_modify(mute.qp, &reset, qp_attr_mask::STATE).expect("to RESET");
    told.post_recv(0, 2048, 64).expect("post_recv");
    std::thread::scope(|scope| {
        let channel = channels[0];
        let driver = scope.spawn(move || receive(&mut told, channel));
        // It drives the engine when it sleeps. Without that the test shows nothing, and passes.
        std::thread::sleep(Duration::from_millis(50));
        waits.post(9, Op::Write(0, None), 0, 8).expect("post_send");
        let sleeper = scope.spawn(move || {
            waits.dev.cq_arm(waits.cq, false).expect("cq_arm");
            if waits.poll() == 0 {
                assert_eq!(waits.dev.wait(limit_ms(60)), Ok(true), "nobody runs what is due");
                waits.poll();
            }
            assert_eq!(waits.done[0].status, wc_status::RETRY_EXC_ERR);
        });
        std::thread::sleep(Duration::from_millis(20));
        tells.post(1, Op::Send(None), 0, 8).expect("post_send");
        driver.join().expect("the message has come");
        sleeper.join().expect("the request has ended");
    });
}
