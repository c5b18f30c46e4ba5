//! Multicast on one host: members on several devices, as in several processes, receive the messages
//! of their group.

use gdrcore_core::device::Device;
use gdrcore_core::verbs::types::{qp_type, wc_status, AhAttr};
use gdrcore_core::Error;
use gdrcore_tests::ends::{Address, End, Op, Shape};
use gdrcore_tests::patience::{deadline, run_until};
use gdrcore_tests::place;
use gdrcore_tests::remote;
use gdrcore_tests::rng::Rng;
use gdrcore_tests::soft::{address, Soft};
use gdrcore_tests::tools::{installed, loopback, run, scratch};
use gdrcore_tests::{library, or_skip};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

const GRH: u64 = 40;

fn gid(group: Ipv4Addr) -> [u8; 16] {
    group.to_ipv6_mapped().octets()
}

/// A group that no other test process uses.
fn group(last: u8) -> [u8; 16] {
    gid(Ipv4Addr::new(239, place::number(), 0, last))
}

/// The address of a group: every member, whatever its QPN.
fn everybody(gid: [u8; 16]) -> Address {
    Address { ah: AhAttr { dgid: gid, ..AhAttr::default() }, qpn: 0xff_ffff, ..Address::default() }
}

fn member<'d>(dev: &'d dyn Device, to: [u8; 16]) -> End<'d> {
    let mut end =
        End::new(dev, Shape { qp_type: qp_type::UD, ..Shape::default() }).expect("a UD QP");
    end.connect(everybody(to)).expect("to RTS");
    end
}

/// Polls until each end has `n` completions.
fn poll(ends: &mut [&mut End<'_>], n: usize) {
    run_until(60, "not all completions came", || {
        ends.iter_mut().for_each(|e| _ = e.poll());
        ends.iter().all(|e| e.done.len() >= n)
    });
}

/// Polls ends that must get nothing: messages of this host are in the sockets by now.
fn look(ends: &mut [&mut End<'_>]) {
    for _ in 0..1000 {
        ends.iter_mut().for_each(|e| _ = e.poll());
    }
}

/// One test at a time: one of them counts the process's descriptors.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

// rxe rxe_recv.c rxe_rcv_mcast_pkt
// Linux uverbs_std_types_qp.c uverbs_free_qp
#[test]
fn all_members_but_the_sender_receive_a_group() {
    let _alone = alone();
    let (a, b, c) = (Soft::new(&address(1)), Soft::new(&address(2)), Soft::new(&address(3)));
    expect_a_group([a.dev(), b.dev(), c.dev()], [group(1), group(2)]);
}

#[test]
fn tenants_of_a_routers_device_are_members_of_a_group() {
    let _alone = alone();
    let router = remote::start(4);
    let [a, b] = ["a", "b"].map(|name| remote::open(&router, name));
    let c = Soft::new(&address(5));
    expect_a_group([&a, &b, c.dev()], [group(9), group(10)]);
    // A tenant that ends as a member leaves nothing.
    let left = member(&b, group(9));
    b.mcast_attach(left.qp, &group(9)).expect("attach");
    let _memory = left.leave();
    drop((a, b));
    remote::wait_until_empty(&router);
}

/// Queue pairs of the devices send to the first of the groups, and receive what others send there.
fn expect_a_group(devices: [&dyn Device; 3], [ours, other]: [[u8; 16]; 2]) {
    let [a, b, c] = devices;
    let mut sender = member(a, ours);
    let (mut first, mut second, mut beside) = (member(b, ours), member(b, ours), member(a, ours));
    let (mut elsewhere, mut nowhere) = (member(c, ours), member(c, ours));
    for e in [&sender, &first, &second, &beside] {
        e.dev.mcast_attach(e.qp, &ours).expect("attach");
    }
    first.dev.mcast_attach(first.qp, &ours).expect("twice is once");
    elsewhere.dev.mcast_attach(elsewhere.qp, &other).expect("attach");
    for e in [&sender, &first, &second, &beside, &elsewhere, &nowhere] {
        for wr_id in 0..2 {
            e.post_recv(wr_id, wr_id * 4096, 2048).expect("post_recv");
        }
    }
    sender.buffer.write(9000, b"to all of you");
    sender.post(7, Op::Send(None), 9000, 13).expect("post_send");
    poll(&mut [&mut first, &mut second, &mut beside, &mut sender], 1);
    for e in [&first, &second, &beside] {
        assert_eq!(
            (e.done.len(), e.done[0].status),
            (1, wc_status::SUCCESS),
            "{:?}",
            e.dev.counters()
        );
        assert_eq!((e.done[0].byte_len, e.done[0].src_qp), (GRH as u32 + 13, sender.own.qpn));
        assert_eq!(e.buffer.read(GRH as usize, 13), b"to all of you");
        // The GRH names the sender and the group.
        assert_eq!(e.buffer.read(36, 4), ours[12..]);
        assert_eq!(e.buffer.read(32, 4), sender.own.ah.dgid[12..]);
    }
    look(&mut [&mut sender, &mut elsewhere, &mut nowhere]);
    assert_eq!(sender.done.len(), 1, "the sender must only get the completion of its SEND");
    assert!(elsewhere.done.is_empty() && nowhere.done.is_empty());

    // A QP that has left receives nothing; the members do.
    first.dev.mcast_detach(first.qp, &ours).expect("detach");
    assert_eq!(first.dev.mcast_detach(first.qp, &ours), Err(Error::Invalid));
    sender.post(8, Op::Send(None), 9000, 13).expect("post_send");
    poll(&mut [&mut second], 2);
    look(&mut [&mut first]);
    assert_eq!((second.done.len(), first.done.len()), (2, 1));
    let members = [(&sender, &ours), (&second, &ours), (&beside, &ours), (&elsewhere, &other)];
    for (e, gid) in members {
        assert_eq!(e.dev.qp_destroy(e.qp), Err(Error::Busy), "a member of a group");
        e.dev.mcast_detach(e.qp, gid).expect("detach");
    }
    for e in [sender, first, second, beside, elsewhere, nowhere] {
        e.destroy().expect("destroy");
    }
    for d in devices {
        assert_eq!(d.leaks(), Ok(Default::default()));
    }
}

#[test]
fn groups_are_for_datagrams_and_their_members_stay() {
    let _alone = alone();
    let a = Soft::new(&address(1));
    let ours = group(3);
    let rc = End::new(a.dev(), Shape::default()).expect("an RC QP");
    assert_eq!(a.dev().mcast_attach(rc.qp, &ours), Err(Error::Invalid));
    let ud = member(a.dev(), ours);
    let unicast = gid(Ipv4Addr::new(127, 0, 0, 1));
    let mut v6 = [0; 16];
    v6[..2].copy_from_slice(&[0xff, 0x02]);
    for bad in [unicast, v6, [0; 16]] {
        assert_eq!(a.dev().mcast_attach(ud.qp, &bad), Err(Error::Invalid), "{bad:?}");
    }
    assert_eq!(a.dev().mcast_attach(0, &ours), Err(Error::StaleHandle));
    let sockets = || std::fs::read_dir("/proc/self/fd").expect("descriptors").count();
    let before = sockets();
    // More groups than the port can join: an error, and the existing memberships stay.
    let joined = (0..200).take_while(|&n| a.dev().mcast_attach(ud.qp, &group(n)).is_ok()).count();
    assert_eq!((joined, sockets() - before), (16, 16));
    assert_eq!(a.dev().mcast_attach(ud.qp, &group(100)), Err(Error::NoMemory));
    rc.destroy().expect("destroy");
    for n in 0..16 {
        assert_eq!(a.dev().qp_destroy(ud.qp), Err(Error::Busy), "{n}");
        a.dev().mcast_detach(ud.qp, &group(n)).expect("detach");
    }
    ud.destroy().expect("destroy");
    assert_eq!(sockets(), before);
}

/// Anybody on the network may send to a group.
// rxe rxe_recv.c rxe_rcv_mcast_pkt
#[test]
fn strangers_packets_to_a_group_are_dropped() {
    let _alone = alone();
    let a = Soft::new(&address(1));
    let ours = group(4);
    let mut end = member(a.dev(), ours);
    a.dev().mcast_attach(end.qp, &ours).expect("attach");
    end.post_recv(1, 0, 2048).expect("post_recv");
    let d = a.dev().query().expect("query");
    let ip = Ipv4Addr::from(<[u8; 4]>::try_from(&d.gid[12..]).unwrap());
    let stranger = UdpSocket::bind((ip, 0)).expect("a socket");
    let via: libc::in_addr = libc::in_addr { s_addr: u32::from_ne_bytes(ip.octets()) };
    // SAFETY: an open socket and one whole address.
    let rc = unsafe {
        libc::setsockopt(
            std::os::fd::AsRawFd::as_raw_fd(&stranger),
            libc::IPPROTO_IP,
            libc::IP_MULTICAST_IF,
            (&raw const via).cast(),
            size_of::<libc::in_addr>() as u32,
        )
    };
    assert_eq!(rc, 0);
    let to = (Ipv4Addr::from(<[u8; 4]>::try_from(&ours[12..]).unwrap()), d.udp_port as u16);
    let mut rng = Rng::new(1);
    for len in 0..200usize {
        stranger.send_to(&rng.bytes(len), to).expect("send");
    }
    let until = deadline(60);
    let refused = || {
        let c = a.dev().counters().expect("counters");
        c.rcvd_malformed + c.rcvd_icrc_err
    };
    while refused() < 150 && Instant::now() < until {
        end.poll();
    }
    assert!(refused() >= 150 && end.done.is_empty(), "{} {:?}", refused(), end.done);
    a.dev().mcast_detach(end.qp, &ours).expect("detach");
    end.destroy().expect("destroy");
}

/// Groups by the C API, as a C program uses them: on devices with an address, and the words of
/// those without.
#[test]
fn c_programs_join_groups_and_leave_them() {
    // Others count this process's descriptors.
    let _alone = alone();
    or_skip!(installed("cc"));
    let dir = scratch("mcast");
    let program = library::program("mcast", &dir);
    let says = |from: &str, to: &str, words: &str| {
        let group = format!("239.{}.0.9", place::number());
        let mut c = Command::new(&program);
        let done = run(c.args([from, to, &group]), 60);
        assert!(done.ok() && done.output.starts_with(words), "{from} {to}: {done}");
    };
    let soft = |n| format!("soft:{}", loopback(96, n));
    says(&soft(1), &soft(2), "ok");
    says("loopback", "loopback", "refused: gid: loopback has no multicast");
}
