use super::rx::BATCH;
use super::tx::FRAME_MIN;
use super::*;
use crate::clock::now_ns;
use crate::local::{lead_to_first, Role, SocketPath};
use crate::map::Map;
use gdrcore_core::roce::run::{Run, RECORD_ALIGN};
use gdrcore_core::wire::{Class, PacketKind, Psn};
use gdrcore_testkit::descriptors::{keep, Keep};
use gdrcore_testkit::patience::limit_ms;
use gdrcore_testkit::place::loopback;
use std::os::unix::net::UnixStream;

const BOUNDS: ShmBounds = ShmBounds { links: LINKS, shared: SHARED };

struct End {
    port: ShmPort,
    waiter: Waiter,
    at: Endpoint,
    _locks: Vec<Lock>,
    _memory: Map,
    /// Others see its end.
    _kept: Keep,
}

/// The next lost link, and whether it led to an address.
fn lost(port: &mut ShmPort) -> Option<(u16, bool)> {
    port.take_lost().map(|(link, lost)| (link, lost.block.is_none()))
}

fn end(n: u8) -> End {
    end_with(n, n.into())
}

fn end_with(n: u8, block: u16) -> End {
    end_of(n, &[block])
}

/// The end of a device with several blocks.
fn end_of(n: u8, blocks: &[u16]) -> End {
    let at = Endpoint::v4(loopback(5, n), 4791);
    let memory = Map::new(ShmPort::memsize(&BOUNDS)).unwrap();
    let waiter = Waiter::new().unwrap();
    waiter.attach_io(true).unwrap();
    let socket_dir = SocketDir::open().unwrap();
    let take = |&block| Lock::take(&socket_dir, &at, Holder::Block(block)).unwrap();
    let taken: Vec<Lock> = blocks.iter().map(take).collect();
    let first = lead_to_first(taken.iter()).unwrap();
    // SAFETY: the map is ours, and is dropped after the port.
    let mut port = unsafe {
        ShmPort::open(&socket_dir, &at, first, &BOUNDS, memory.as_ptr(), memory.len(), &waiter)
            .unwrap()
    };
    port.enable_by_address();
    End { port, waiter, at, _locks: taken, _memory: memory, _kept: keep() }
}

impl End {
    fn maintain(&mut self) {
        self.port.maintain(now_ns(), &self.waiter);
    }
    fn link(&mut self, to: &End) -> u16 {
        self.port.connect(&to.at, None, &self.waiter).unwrap()
    }
    fn send(&mut self, link: u16, byte: u8, len: usize) -> bool {
        let Some((room, _)) = self.port.room(link) else { return false };
        let mut run = Run::new(Class::Rc, PacketKind::Send, 7, Psn::new(1));
        run.imm = byte.into();
        let payload = (len - run.head_len()) & !(RECORD_ALIGN - 1);
        assert!(run.emit_head(room, payload as u32));
        room[run.head_len()..][..payload].fill(byte);
        self.port.commit(link, run.head_len() + payload);
        true
    }
    /// The received frames: sender, first byte and length.
    fn poll(&mut self) -> Vec<(Endpoint, u8, usize)> {
        let mut out = Vec::new();
        self.port.poll(|from, run| {
            let (run, payload) = run.unwrap();
            assert!(payload.iter().all(|&b| b == run.imm as u8));
            out.push((*from, run.imm as u8, payload.len() + run.head_len()));
        });
        out
    }
}

#[test]
fn frames_go_both_ways_over_two_links() {
    let (mut a, mut b) = (end(1), end(2));
    let ab = a.link(&b);
    assert_eq!(a.link(&b), ab, "one link to one address");
    assert!(a.send(ab, 7, 112));
    assert!(b.poll().is_empty(), "a frame came before the listener was maintained");
    b.maintain();
    assert_eq!(b.poll(), [(a.at, 7, 112)]);
    let ba = b.link(&a);
    assert!(b.send(ba, 8, 60_000 & !15));
    a.maintain();
    assert_eq!(a.poll(), [(b.at, 8, 60_000 & !15)]);
    assert!(a.poll().is_empty());
}

#[test]
fn an_address_has_one_name_and_each_block_a_listener() {
    let first = end(15);
    let mut second = end_with(15, 7);
    let mut a = end(16);
    let to_address = a.port.connect(&first.at, None, &a.waiter).unwrap();
    let to_second = a.port.connect(&first.at, Some(7), &a.waiter).unwrap();
    assert_ne!(to_address, to_second);
    assert_eq!(a.port.connect(&first.at, Some(8), &a.waiter), Err(Error::NoDevice));
    second.maintain();
    assert!(a.send(to_second, 4, 112));
    assert_eq!(second.poll(), [(a.at, 4, 112)]);
    drop(second);
    a.maintain();
    assert_eq!(lost(&mut a.port), Some((to_second, false)));
}

#[test]
fn the_blocks_of_one_device_have_one_link() {
    let (mut a, mut first) = (end(30), end_of(29, &[7, 8, 9]));
    let link = a.port.connect(&first.at, Some(8), &a.waiter).unwrap();
    for block in [7, 9, 8] {
        assert_eq!(a.port.connect(&first.at, Some(block), &a.waiter), Ok(link), "{block}");
    }
    first.maintain();
    assert!(a.send(link, 4, 112));
    assert_eq!(first.poll(), [(a.at, 4, 112)]);
    drop(first);
    a.maintain();
    assert_eq!((lost(&mut a.port), lost(&mut a.port)), (Some((link, false)), None));
    // Each next owner of one of the blocks is a device of its own.
    let others = [end_of(29, &[9]), end_of(29, &[8, 7])];
    let mut to = |block| a.port.connect(&others[0].at, Some(block), &a.waiter).unwrap();
    let links = [to(9), to(8), to(7)];
    assert!(links[0] != links[1] && links[1] == links[2], "{links:?}");
}

/// The old owner's link was not maintained meanwhile.
#[test]
fn the_next_owner_of_a_block_gets_a_link_of_its_own() {
    let mut a = end(28);
    let first = end_with(27, 7);
    let old = a.port.connect(&first.at, Some(7), &a.waiter).unwrap();
    drop(first);
    let mut second = end_with(27, 7);
    let new = a.port.connect(&second.at, Some(7), &a.waiter).unwrap();
    assert_ne!(old, new);
    second.maintain();
    assert!(a.send(new, 4, 112));
    assert_eq!(second.poll(), [(a.at, 4, 112)]);
    a.maintain();
    assert_eq!((lost(&mut a.port), lost(&mut a.port)), (Some((old, false)), None));
    assert_eq!(a.port.connect(&second.at, Some(7), &a.waiter), Ok(new));
}

#[test]
fn a_full_ring_refuses_frames_and_wakes_its_writer_when_there_is_room() {
    let (mut a, mut b) = (end(3), end(4));
    let ab = a.link(&b);
    let mut sent = 0;
    while a.send(ab, 1, FRAME_MIN) {
        sent += 1;
    }
    assert_eq!(sent, LINK_RING_BYTES / FRAME_MIN.next_multiple_of(64));
    a.maintain();
    a.waiter.drain();
    assert!(!a.waiter.sleep(0));
    b.maintain();
    assert_eq!(b.poll().len(), BATCH);
    assert!(a.waiter.sleep(limit_ms(60)), "the reader has rung");
    a.maintain();
    assert!(a.send(ab, 2, 60_000 & !15));
    let mut read = BATCH;
    while read <= sent {
        read += b.poll().len();
    }
    assert_eq!(read, sent + 1);
}

#[test]
fn a_sleeper_is_woken_by_a_frame_and_only_a_sleeper() {
    let (mut a, mut b) = (end(5), end(6));
    let ab = a.link(&b);
    b.maintain();
    assert!(a.send(ab, 1, 112));
    b.maintain();
    assert!(!b.waiter.sleep(0), "it polls, and is not disturbed");
    assert!(b.port.announce_sleep(), "there is something");
    assert_eq!(b.poll().len(), 1);
    assert!(!b.port.announce_sleep());
    assert!(a.send(ab, 1, 112));
    assert!(b.waiter.sleep(limit_ms(60)));
    assert_eq!(a.port.counters().wakes, 1);
    b.maintain();
    assert_eq!(b.poll().len(), 1);
}

#[test]
fn a_lost_link_is_reported_once_after_its_last_frames() {
    let (mut a, mut b) = (end(7), end(8));
    let (ab, ba) = (a.link(&b), b.link(&a));
    a.maintain();
    b.maintain();
    assert!(b.send(ba, 3, 112));
    drop(b);
    a.maintain();
    assert_eq!(lost(&mut a.port), None, "an ACK may be among its unread frames");
    let got = a.poll();
    assert_eq!(got.len(), 1);
    a.maintain();
    assert_eq!(lost(&mut a.port), Some((ab, true)));
    assert_eq!(lost(&mut a.port), None);
    assert!(!a.send(ab, 1, 112));
    assert_eq!(a.port.open_len, 0, "then the link is closed");
    // Another process at the address: the link's number is free again.
    let b = end(8);
    assert_eq!(a.link(&b), ab);
}

#[test]
fn a_broken_ring_ends_its_own_link_only() {
    let (mut a, mut b, mut c) = (end(9), end(10), end(11));
    let (ab, cb) = (a.link(&b), c.link(&b));
    b.maintain();
    assert!(a.send(ab, 1, 112) && c.send(cb, 2, 112));
    // a's ring claims a frame as long as memory.
    {
        let Some(out) = &a.port.out[usize::from(ab)] else { panic!() };
        out.writer.place().write_length(u32::MAX);
    }
    let mut got = b.poll();
    got.extend(b.poll());
    assert_eq!(got, [(c.at, 2, 112)]);
    assert_eq!(b.port.counters().broken, 1);
    a.maintain();
    assert_eq!(lost(&mut a.port), Some((ab, true)));
}

#[test]
fn connections_without_hello_are_closed_in_time_and_bounded() {
    let mut b = end(12);
    // The listener accepts SOCK_SEQPACKET only, so a stream socket cannot connect.
    let [x, y, z, w] = loopback(5, 12);
    let path = format!("{:?}/{x}.{y}.{z}.{w}-4791/any/door", SocketDir::open().unwrap());
    assert!(std::path::Path::new(&path).exists());
    assert!(UnixStream::connect(&path).is_err());
    let mut links = Vec::new();
    let mut others: Vec<End> = (20..40).map(end).collect();
    for o in &mut others {
        links.push(o.link(&b));
    }
    b.maintain();
    b.maintain();
    assert_eq!(b.port.open_len, 20);
    for (o, l) in others.iter_mut().zip(links) {
        assert!(o.send(l, 9, 112));
    }
    assert_eq!(b.poll().len(), 20);
    drop(others);
    b.maintain();
    assert_eq!(b.port.open_len, 0);
    assert!(b.port.inbound.iter().all(Option::is_none));
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn a_thousand_links_leave_nothing_behind() {
    let mut b = end(13);
    for round in 0..1000u16 {
        let mut a = end_with(14, 1000 + round);
        let ab = a.link(&b);
        assert!(a.send(ab, 1, 112));
        b.maintain();
        assert_eq!(b.poll().len(), 1, "{round}");
        drop(a);
        b.maintain();
        assert_eq!(b.port.open_len, 0);
    }
    // Other tests of this process run beside it, each with a few descriptors.
    assert!(open_descriptors() < 400, "{}", open_descriptors());
}

#[test]
fn a_listener_wakes_sleepers_again_after_a_time_without_descriptors() {
    let (mut a, mut b) = (end(41), end(42));
    let wakes = |end: &End| end.waiter.sleep(0);
    assert!(!wakes(&b));
    let now = now_ns();
    b.port.pause_listeners(now, &b.waiter);
    assert_eq!(b.port.deadline(), Some(now + crate::local::ACCEPT_AGAIN_NS));
    a.link(&b);
    assert!(!wakes(&b), "a connection that cannot be accepted ends no sleep");
    b.port.maintain(now + crate::local::ACCEPT_AGAIN_NS - 1, &b.waiter);
    assert_eq!(b.port.inbound.iter().flatten().count(), 0, "not yet");
    b.port.maintain(now + crate::local::ACCEPT_AGAIN_NS, &b.waiter);
    assert_eq!((b.port.inbound.iter().flatten().count(), b.port.deadline()), (1, None));
    b.maintain();
    b.waiter.drain();
    let mut c = end(43);
    c.link(&b);
    assert!(wakes(&b), "the listener is not watched any more");
}

#[test]
fn who_connects_and_says_nothing_keeps_no_place() {
    let mut b = end(44);
    let name = SocketPath::new(&SocketDir::open().unwrap(), &b.at, Holder::Address, Role::Links);
    let silent: Vec<_> = (0..LINKS)
        .map_while(|n| {
            let fd = crate::local::connect(&name).ok()?;
            if n % 64 == 63 {
                b.maintain();
            }
            Some(fd)
        })
        .collect();
    assert_eq!(silent.len(), LINKS);
    b.maintain();
    assert_eq!(b.port.inbound.iter().flatten().count(), LINKS, "all places are taken");
    // A process with something to say finds none, and one once their time is over.
    let mut a = end(45);
    a.link(&b);
    b.maintain();
    a.maintain();
    assert!(a.port.take_lost().is_some(), "a link without a place");
    b.port.maintain(now_ns() + 1_000_000_000, &b.waiter);
    assert_eq!(
        (b.port.inbound.iter().flatten().count(), b.port.counters().broken),
        (0, LINKS as u64)
    );
    let ab = a.link(&b);
    assert!(a.send(ab, 7, 112));
    b.maintain();
    assert_eq!(b.poll(), [(a.at, 7, 112)]);
    drop(silent);
}
