//! A session over a real device: ids of two programs in one process, connected through loopback.

pub(crate) mod session_lab;

use super::session_events::number;
use super::*;
use crate::proto::number as cmd;
use gdrcore_core::cm::types::cm_event;
use gdrcore_core::verbs::types::{qp_attr_mask as mask, qp_state};
use gdrcore_testkit::patience::until;
use gdrcore_testkit::rng::Rng;
use session_lab::Lab;

/// A session with one channel, and the calls that a library makes.
struct Program {
    s: CmSession<Lab>,
    channel: u32,
    /// The byte in the program's memory that SET_OPTION reads.
    option: u8,
}

fn sockaddr(ip: [u8; 4], port: u16) -> Vec<u8> {
    let mut v = [&2u16.to_ne_bytes()[..], &port.to_be_bytes(), &ip].concat();
    v.resize(28, 0);
    v
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(b[at..at + 4].try_into().unwrap())
}

/// An event as parsed by the library.
#[derive(Debug)]
struct Seen {
    uid: u64,
    id: u32,
    event: u32,
    status: i32,
    param: Vec<u8>,
}

impl Program {
    fn new() -> Program {
        Program::on(session_lab::open())
    }

    fn on(devices: Lab) -> Program {
        let mut s = CmSession::new(devices);
        let channel = s.open();
        Program { s, channel, option: 0x20 }
    }

    fn try_raw(&mut self, channel: u32, number: u32, room: u16, body: &[&[u8]]) -> Result<Vec<u8>> {
        let body = body.concat();
        let head =
            [&number.to_ne_bytes()[..], &(body.len() as u16).to_ne_bytes(), &room.to_ne_bytes()]
                .concat();
        let bytes = [head, body].concat();
        let value = self.option;
        let option = |_: u64, to: &mut [u8]| {
            to.fill(value);
            Ok(())
        };
        let of = |fd: i32| u32::try_from(fd).ok();
        Ok(self.s.execute(channel, &bytes, &option, &of)?.map_or(Vec::new(), |a| a.bytes))
    }

    fn raw(&mut self, number: u32, body: &[&[u8]]) -> Result<Vec<u8>> {
        self.try_raw(self.channel, number, 512, body)
    }

    fn create(&mut self, uid: u64, ps: u16) -> u32 {
        let made = self
            .raw(cmd::CREATE_ID, &[&uid.to_ne_bytes(), &[0; 8], &ps.to_ne_bytes(), &[2], &[0; 5]]);
        u32_at(&made.unwrap(), 0)
    }

    fn destroy(&mut self, id: u32) -> u32 {
        u32_at(&self.raw(cmd::DESTROY_ID, &[&[0; 8], &id.to_ne_bytes(), &[0; 4]]).unwrap(), 0)
    }

    fn bind(&mut self, id: u32, ip: [u8; 4], port: u16) -> Result<()> {
        self.raw(cmd::BIND_IP, &[&[0; 8], &sockaddr(ip, port), &id.to_ne_bytes()]).map(|_| ())
    }

    fn listen(&mut self, id: u32) -> Result<()> {
        self.raw(cmd::LISTEN, &[&id.to_ne_bytes(), &1u32.to_ne_bytes()]).map(|_| ())
    }

    fn resolve(&mut self, id: u32, ip: [u8; 4], port: u16) -> Result<()> {
        self.raw(cmd::RESOLVE_IP, &[&[0; 28], &sockaddr(ip, port), &id.to_ne_bytes(), &[0; 4]])
            .map(|_| ())
    }

    fn route(&mut self, id: u32) -> Result<()> {
        self.raw(cmd::RESOLVE_ROUTE, &[&id.to_ne_bytes(), &[0; 4]]).map(|_| ())
    }

    fn param(qpn: u32, data: &[u8]) -> Vec<u8> {
        let mut p = vec![0; 272];
        p[..4].copy_from_slice(&qpn.to_ne_bytes());
        p[8..8 + data.len()].copy_from_slice(data);
        p[264..].copy_from_slice(&[data.len() as u8, 0, 1, 1, 0, 7, 7, 1]);
        p
    }

    fn connect(&mut self, id: u32, qpn: u32, data: &[u8]) -> Result<()> {
        self.raw(cmd::CONNECT, &[&Self::param(qpn, data), &id.to_ne_bytes(), &[0; 12]]).map(|_| ())
    }

    fn accept(&mut self, id: u32, uid: u64, qpn: u32, data: &[u8]) -> Result<()> {
        self.raw(
            cmd::ACCEPT,
            &[&uid.to_ne_bytes(), &Self::param(qpn, data), &id.to_ne_bytes(), &[0; 12]],
        )
        .map(|_| ())
    }

    fn establish(&mut self, id: u32) -> Result<()> {
        self.raw(cmd::ACCEPT, &[&[0; 8], &[0; 272], &id.to_ne_bytes(), &[0; 12]]).map(|_| ())
    }

    fn disconnect(&mut self, id: u32) -> Result<()> {
        self.raw(cmd::DISCONNECT, &[&id.to_ne_bytes()]).map(|_| ())
    }

    /// `(mask, answer)` of INIT_QP_ATTR.
    fn attr(&mut self, id: u32, state: u32) -> Result<(u32, Vec<u8>)> {
        let a = self.raw(cmd::INIT_QP_ATTR, &[&[0; 8], &id.to_ne_bytes(), &state.to_ne_bytes()])?;
        Ok((u32_at(&a, 0), a))
    }

    fn event(&mut self) -> Option<Seen> {
        let e = self.raw(cmd::GET_EVENT, &[&[0; 8]]).ok()?;
        let uid = u64::from_ne_bytes(e[..8].try_into().unwrap());
        Some(Seen {
            uid,
            id: u32_at(&e, 8),
            event: u32_at(&e, 12),
            status: u32_at(&e, 16) as i32,
            param: e[20..324].to_vec(),
        })
    }

    /// Takes the next event, which must have this number.
    fn expect(&mut self, uid: u64, event: u32) -> Seen {
        let missing = || format!("event {event} of {uid} did not come");
        let e = until(60, missing, || {
            self.s.pump();
            let e = self.event();
            if e.is_none() {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            e
        });
        assert_eq!((e.uid, e.event), (uid, event), "{e:?}");
        e
    }

    /// A client that has resolved an address and a route to a port here.
    fn client(&mut self, uid: u64, ps: u16, port: u16) -> u32 {
        let c = self.create(uid, ps);
        self.resolve(c, [127, 0, 0, 1], port).unwrap();
        self.expect(uid, number::ADDR_RESOLVED);
        self.route(c).unwrap();
        self.expect(uid, number::ROUTE_RESOLVED);
        c
    }

    fn server(&mut self, uid: u64, ps: u16, port: u16) -> u32 {
        let l = self.create(uid, ps);
        self.bind(l, [127, 0, 0, 1], port).unwrap();
        self.listen(l).unwrap();
        l
    }
}

fn data(e: &Seen, at: usize) -> &[u8] {
    &e.param[at..at + 3]
}

#[test]
fn a_connection_from_bind_to_timewait() {
    let mut p = Program::new();
    let l = p.server(1, port_space::TCP, 4000);
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, b"hi!").unwrap();
    let e = p.expect(1, cm_event::CONNECT_REQUEST);
    let r = e.id;
    assert!(r != l && r != c);
    assert_eq!((u32_at(&e.param, 0), data(&e, 8)), (0x100, &b"hi!"[..]));
    let (m, rtr) = p.attr(r, qp_state::RTR).unwrap();
    assert_eq!(m & mask::RQ_PSN, mask::RQ_PSN);
    let server_psn = u32_at(&rtr, 24);
    assert_eq!(u32_at(&rtr, 32), 0x100);
    p.accept(r, 3, 0x200, b"yes").unwrap();
    let e = p.expect(2, cm_event::CONNECT_RESPONSE);
    assert_eq!((e.id, u32_at(&e.param, 0), data(&e, 8)), (c, 0x200, &b"yes"[..]));
    // Each side expects the other's first PSN.
    let (_, rts) = p.attr(c, qp_state::RTS).unwrap();
    assert_eq!(u32_at(&rts, 28), server_psn);
    let (_, rtr) = p.attr(c, qp_state::RTR).unwrap();
    p.establish(c).unwrap();
    p.expect(3, cm_event::ESTABLISHED);
    let (_, rts) = p.attr(r, qp_state::RTS).unwrap();
    assert_eq!(u32_at(&rts, 28), u32_at(&rtr, 24));
    p.disconnect(c).unwrap();
    let mut left = vec![2, 3];
    for _ in 0..2 {
        p.s.pump();
        let e = p.event().unwrap();
        assert_eq!(e.event, cm_event::DISCONNECTED);
        left.retain(|u| *u != e.uid);
    }
    assert!(left.is_empty());
    // Both have disconnected; a second disconnect is no error.
    p.disconnect(r).unwrap();
    // The events: two resolutions, the response, the end.
    assert_eq!(p.destroy(c), 4);
    assert_eq!(p.destroy(r), 2);
    assert_eq!(p.destroy(l), 1);
    assert_eq!(p.s.ids(), 0);
    assert!(p.s.by_handle.is_empty());
}

#[test]
fn a_datagram_service() {
    let mut p = Program::new();
    p.server(1, port_space::UDP, 4000);
    let c = p.client(2, port_space::UDP, 4000);
    // INIT_QP_ATTR for INIT works before anything is resolved.
    let (m, init) = p.attr(c, qp_state::INIT).unwrap();
    assert_eq!((m & mask::QKEY, u32_at(&init, 20)), (mask::QKEY, UDP_QKEY));
    p.connect(c, 0, b"who").unwrap();
    let e = p.expect(1, cm_event::CONNECT_REQUEST);
    assert_eq!(data(&e, 40), b"who");
    p.accept(e.id, 3, 0x300, b"me!").unwrap();
    let e = p.expect(2, cm_event::ESTABLISHED);
    assert_eq!(
        (u32_at(&e.param, 0), u32_at(&e.param, 4), data(&e, 40)),
        (0x300, UDP_QKEY, &b"me!"[..])
    );
    // The address handle: the peer's GID, and the index of the own GID.
    assert_eq!(
        (&e.param[8 + 12..8 + 16], e.param[8 + 20], e.param[8 + 29]),
        (&[127, 0, 0, 1][..], 1, 1)
    );
}

#[test]
fn a_reject_carries_its_reason_and_data() {
    let mut p = Program::new();
    p.server(1, port_space::TCP, 4000);
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, &[]).unwrap();
    let r = p.expect(1, cm_event::CONNECT_REQUEST).id;
    let mut body = vec![0; 264];
    body[..4].copy_from_slice(&r.to_ne_bytes());
    body[4..6].copy_from_slice(&[3, 28]);
    body[8..11].copy_from_slice(b"no!");
    p.raw(cmd::REJECT, &[&body]).unwrap();
    let e = p.expect(2, cm_event::REJECTED);
    assert_eq!((e.status, data(&e, 8)), (28, &b"no!"[..]));
    p.destroy(r);
    // A port without a listener.
    let d = p.client(4, port_space::TCP, 4001);
    p.connect(d, 0x101, &[]).unwrap();
    assert_eq!(p.expect(4, cm_event::REJECTED).status, 8);
}

#[test]
fn a_request_whose_peer_gave_up_cannot_be_accepted() {
    let mut p = Program::new();
    p.server(1, port_space::TCP, 4000);
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, &[]).unwrap();
    let r = p.expect(1, cm_event::CONNECT_REQUEST).id;
    p.destroy(c);
    p.s.pump();
    // Its end causes no event, because the library does not know the id yet.
    assert!(p.event().is_none());
    assert_eq!(p.accept(r, 3, 0x200, &[]), Err(Error::Invalid));
    assert_eq!(p.destroy(r), 0);
}

#[test]
fn a_request_before_the_listen_waits_if_the_port_is_bound() {
    let mut p = Program::new();
    let l = p.create(1, port_space::TCP);
    p.bind(l, [127, 0, 0, 1], 4000).unwrap();
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, b"hi!").unwrap();
    p.s.pump();
    assert!(p.event().is_none(), "not refused");
    p.listen(l).unwrap();
    assert_eq!(p.expect(1, cm_event::CONNECT_REQUEST).param.get(8..11), Some(&b"hi!"[..]));
    // An id that has bound and then connects does not listen.
    let b = p.create(5, port_space::TCP);
    p.bind(b, [127, 0, 0, 1], 4001).unwrap();
    p.resolve(b, [127, 0, 0, 1], 4000).unwrap();
    p.expect(5, number::ADDR_RESOLVED);
    let c = p.client(6, port_space::TCP, 4001);
    p.connect(c, 0x101, b"").unwrap();
    let e = p.expect(6, cm_event::REJECTED);
    assert_eq!(e.status, i32::from(gdrcore_core::cm::types::reject::INVALID_SERVICE_ID));
}

#[test]
fn commands_out_of_place_are_errors() {
    let mut p = Program::new();
    let l = p.server(1, port_space::TCP, 4000);
    let a = p.create(5, port_space::TCP);
    assert_eq!(p.bind(a, [127, 0, 0, 1], 4000), Err(Error::AddressInUse));
    assert_eq!(p.bind(a, [10, 9, 8, 7], 0), Err(Error::NoDevice));
    assert_eq!(p.route(a), Err(Error::Invalid));
    assert_eq!(p.connect(a, 0x100, &[]), Err(Error::Invalid));
    assert_eq!(p.attr(a, qp_state::INIT).unwrap_err(), Error::Invalid);
    assert_eq!(p.disconnect(a), Err(Error::Invalid));
    assert_eq!(p.accept(a, 1, 0x100, &[]), Err(Error::Invalid));
    assert_eq!(p.establish(a), Err(Error::Invalid));
    assert_eq!(p.listen(l), Err(Error::Invalid));
    assert_eq!(p.bind(999, [0; 4], 0), Err(NO_ENTRY));
    assert_eq!(p.try_raw(777, cmd::GET_EVENT, 512, &[&[0; 8]]), Err(Error::Os(9)));
    let other = p.s.open();
    let body: &[&[u8]] = &[&[0; 8], &a.to_ne_bytes(), &[0; 4]];
    assert_eq!(p.try_raw(other, cmd::DESTROY_ID, 512, body), Err(Error::Invalid));
    for ps in [0u16, 2, 0x1234] {
        let got = p.raw(cmd::CREATE_ID, &[&[0; 16], &ps.to_ne_bytes(), &[2], &[0; 5]]);
        assert_eq!(got, Err(Error::Invalid), "{ps:#x}");
    }
    // An unreachable destination is an event, as from the kernel.
    let v6 = [&10u16.to_ne_bytes()[..], &[0; 6], &[0xfe; 16], &[0; 4]].concat();
    p.bind(a, [127, 0, 0, 1], 0).unwrap();
    p.raw(cmd::RESOLVE_IP, &[&[0; 28], &v6, &a.to_ne_bytes(), &[0; 4]]).unwrap();
    assert_eq!(p.expect(5, number::ADDR_ERROR).status, -19);
    let c = p.client(6, port_space::TCP, 4000);
    assert_eq!(
        p.connect(c, 0x100, &[1; 57]),
        Err(Error::Invalid),
        "more private data than a REQ holds"
    );
    assert_eq!(p.connect(c, 0x100_0000, &[]), Err(Error::Invalid), "not a QPN");
    p.connect(c, 0x100, &[1; 56]).unwrap();
    assert_eq!(p.connect(c, 0x100, &[]), Err(Error::Invalid), "twice");
}

#[test]
fn pending_requests_end_with_their_listener() {
    let mut p = Program::new();
    let l = p.server(1, port_space::TCP, 4000);
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, &[]).unwrap();
    p.s.pump();
    assert_eq!((p.s.queued(p.channel), p.s.ids()), (1, 3));
    assert_eq!(p.destroy(l), 0);
    assert_eq!(p.s.ids(), 1);
    let e = p.expect(2, cm_event::REJECTED);
    assert!(e.status == 8 || e.status == 28, "{e:?}");
}

#[test]
fn closing_a_channel_ends_its_ids() {
    let mut p = Program::new();
    p.server(1, port_space::TCP, 4000);
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, &[]).unwrap();
    p.s.pump();
    p.s.close(p.channel);
    assert_eq!((p.s.ids(), p.s.by_handle.len(), p.s.queued(p.channel)), (0, 0, 0));
    p.s.close(p.channel);
    // The port is free again.
    p.channel = p.s.open();
    p.server(3, port_space::TCP, 4000);
}

#[test]
fn an_id_moves_with_its_events() {
    let mut p = Program::new();
    let old = p.channel;
    let c = p.create(2, port_space::TCP);
    p.resolve(c, [127, 0, 0, 1], 4000).unwrap();
    p.create(3, port_space::TCP);
    let new = p.s.open();
    let got =
        p.try_raw(new, cmd::MIGRATE_ID, 512, &[&[0; 8], &c.to_ne_bytes(), &old.to_ne_bytes()]);
    assert_eq!(u32_at(&got.unwrap(), 0), 0);
    assert_eq!((p.s.queued(old), p.s.queued(new)), (0, 1));
    p.channel = new;
    p.expect(2, number::ADDR_RESOLVED);
    let got =
        p.try_raw(old, cmd::MIGRATE_ID, 512, &[&[0; 8], &c.to_ne_bytes(), &new.to_ne_bytes()]);
    assert_eq!(u32_at(&got.unwrap(), 0), 1, "told once");
}

#[test]
fn a_listener_moves_with_the_requests_that_wait_for_the_program() {
    let mut p = Program::new();
    let l = p.server(1, port_space::TCP, 4000);
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, &[]).unwrap();
    p.s.pump();
    let (old, new) = (p.channel, p.s.open());
    migrate(&mut p, l, old, new);
    p.channel = new;
    let request = p.expect(1, cm_event::CONNECT_REQUEST).id;
    p.accept(request, 3, 0x200, &[]).expect("an id of the new channel");
    // The old channel keeps nothing of the moved ids, and its end does not affect them.
    p.channel = old;
    p.expect(2, cm_event::CONNECT_RESPONSE);
    p.establish(c).unwrap();
    p.channel = new;
    p.expect(3, cm_event::ESTABLISHED);
    p.s.close(old);
    assert_eq!(p.s.ids(), 2);
}

#[test]
fn a_bind_to_all_addresses_that_one_device_refuses_leaves_its_port_free_on_the_others() {
    let mut p = Program::on(session_lab::open_so_many(2));
    let owner = p.create(1, port_space::TCP);
    p.bind(owner, [127, 0, 0, 2], 4000).unwrap();
    let any = p.create(2, port_space::TCP);
    assert_eq!(p.bind(any, [0; 4], 4000), Err(Error::AddressInUse));
    let first = p.create(3, port_space::TCP);
    p.bind(first, [127, 0, 0, 1], 4000).expect("nothing of the refused bind is left");
    // The id itself can be bound again, once the port is free.
    p.destroy(owner);
    p.destroy(first);
    p.bind(any, [0; 4], 4000).unwrap();
    let late = p.create(4, port_space::TCP);
    assert_eq!(p.bind(late, [127, 0, 0, 2], 4000), Err(Error::AddressInUse));
}

/// The events of a channel, as (uid, event).
fn all(p: &mut Program) -> Vec<(u64, u32)> {
    std::iter::from_fn(|| p.event()).map(|e| (e.uid, e.event)).collect()
}

fn migrate(p: &mut Program, id: u32, from: u32, to: u32) {
    let body: &[&[u8]] = &[&[0; 8], &id.to_ne_bytes(), &from.to_ne_bytes()];
    p.try_raw(to, cmd::MIGRATE_ID, 512, body).unwrap();
}

#[test]
fn a_channels_events_stay_in_the_order_of_arrival() {
    let mut p = Program::new();
    p.server(1, port_space::TCP, 4000);
    let old = p.channel;
    let c = p.client(2, port_space::TCP, 4000);
    p.connect(c, 0x100, &[]).unwrap();
    let r = p.expect(1, cm_event::CONNECT_REQUEST).id;
    p.accept(r, 3, 0x200, &[]).unwrap();
    p.expect(2, cm_event::CONNECT_RESPONSE);
    let d = p.client(4, port_space::TCP, 4000);
    p.establish(c).unwrap();
    p.connect(d, 0x101, &[]).unwrap();
    // An event of this layer comes after the device's earlier events, even if those are not fetched
    // yet.
    let e = p.create(5, port_space::TCP);
    p.resolve(e, [127, 0, 0, 1], 4000).unwrap();
    assert_eq!(p.s.queued(old), 3);
    p.disconnect(c).unwrap();
    p.s.pump();
    // A move to the same channel changes nothing.
    for id in [r, c, e] {
        migrate(&mut p, id, old, old);
    }
    let ended = cm_event::DISCONNECTED;
    let (first, rest) =
        ([(3, cm_event::ESTABLISHED), (1, cm_event::CONNECT_REQUEST)], (5, number::ADDR_RESOLVED));
    // Moves to another channel, and one by one back.
    let new = p.s.open();
    for id in [e, r] {
        migrate(&mut p, id, old, new);
    }
    assert_eq!((p.s.queued(old), p.s.queued(new)), (2, 3));
    for id in [r, e] {
        migrate(&mut p, id, new, old);
    }
    let seen = all(&mut p);
    assert_eq!((&seen[..2], seen[2]), (&first[..], rest));
    let mut ends = seen[3..].to_vec();
    ends.sort_unstable();
    assert_eq!(ends, [(2, ended), (3, ended)]);
}

#[test]
fn queries_name_the_device_once_it_is_selected() {
    let mut p = Program::new();
    let l = p.create(1, port_space::TCP);
    p.bind(l, [0; 4], 4000).unwrap();
    let route = |p: &mut Program, id: u32| {
        p.raw(cmd::QUERY_ROUTE, &[&[0; 8], &id.to_ne_bytes(), &[0; 4]]).unwrap()
    };
    let a = route(&mut p, l);
    assert_eq!((&a[..8], a[196], u16::from_be_bytes([a[138], a[139]])), (&[0; 8][..], 0, 4000));
    p.listen(l).unwrap();
    let c = p.client(2, port_space::TCP, 4000);
    let a = route(&mut p, c);
    assert_eq!((a[7], a[192], a[196], a[200]), (1, 1, 1, 3));
    // A connection accepted through "any" has the address to which the request came.
    p.connect(c, 0x100, &[]).unwrap();
    let r = p.expect(1, cm_event::CONNECT_REQUEST).id;
    let a = route(&mut p, r);
    assert_eq!(&a[136 + 4..136 + 8], &[127, 0, 0, 1]);
    for option in 0..3u32 {
        assert!(p.raw(cmd::QUERY, &[&[0; 8], &r.to_ne_bytes(), &option.to_ne_bytes()]).is_ok());
    }
    assert!(p.raw(cmd::QUERY, &[&[0; 8], &r.to_ne_bytes(), &9u32.to_ne_bytes()]).is_err());
}

#[test]
fn options() {
    let mut p = Program::new();
    let id = p.create(1, port_space::TCP);
    let set = |p: &mut Program, level: u32, name: u32, len: u32| {
        p.raw(
            cmd::SET_OPTION,
            &[
                &[0; 8],
                &id.to_ne_bytes(),
                &level.to_ne_bytes(),
                &name.to_ne_bytes(),
                &len.to_ne_bytes(),
            ],
        )
    };
    assert!(set(&mut p, 0, 0, 1).is_ok());
    assert!(set(&mut p, 0, 1, 4).is_ok());
    assert_eq!(set(&mut p, 0, 1, 3), Err(Error::Invalid));
    // 0x20 is no ACK timeout code.
    assert_eq!(set(&mut p, 0, 3, 1), Err(Error::Invalid));
    assert_eq!(set(&mut p, 7, 0, 1), Err(Error::Os(38)));
    p.resolve(id, [127, 0, 0, 1], 4000).unwrap();
    p.expect(1, number::ADDR_RESOLVED);
    // The route has the class that the program has set.
    let a = p.raw(cmd::QUERY_ROUTE, &[&[0; 8], &id.to_ne_bytes(), &[0; 4]]).unwrap();
    assert_eq!(a[192], 0);
    assert!(set(&mut p, 1, 1, 72).is_ok());
    p.expect(1, number::ROUTE_RESOLVED);
    let a = p.raw(cmd::QUERY_ROUTE, &[&[0; 8], &id.to_ne_bytes(), &[0; 4]]).unwrap();
    assert_eq!((a[192], a[8 + 55]), (1, 0x20));
}

/// The real device is IPv4; the IPv6 one in the list cannot be opened.
#[test]
fn the_any_address_of_either_family_has_ports_of_its_own() {
    let mut p = Program::new();
    let v6 = [&10u16.to_ne_bytes()[..], &4000u16.to_be_bytes(), &[0; 24]].concat();
    let bind_v6 = |p: &mut Program, id: u32| {
        p.raw(cmd::BIND_IP, &[&[0; 8], &v6, &id.to_ne_bytes()]).map(|_| ())
    };
    let own_family = |p: &mut Program, id: u32, on: u8| {
        p.option = on;
        let (level, name, len) = (0u32.to_ne_bytes(), 2u32.to_ne_bytes(), 4u32.to_ne_bytes());
        p.raw(cmd::SET_OPTION, &[&[0; 8], &id.to_ne_bytes(), &level, &name, &len])
    };
    let a = p.create(1, port_space::TCP);
    p.bind(a, [0; 4], 4000).unwrap();
    p.listen(a).unwrap();
    assert!(own_family(&mut p, a, 1).is_err(), "too late");
    // Without the option [::] covers both families, and IPv4's port is taken.
    let b = p.create(2, port_space::TCP);
    assert_eq!(bind_v6(&mut p, b), Err(Error::AddressInUse));
    assert!(own_family(&mut p, b, 1).is_ok());
    // No IPv6 device can be opened, so none counts.
    assert_eq!(bind_v6(&mut p, b), Err(Error::NoDevice));
    // An id that is bound to both families gives one up.
    let c = p.create(3, port_space::TCP);
    let other = [&10u16.to_ne_bytes()[..], &4001u16.to_be_bytes(), &[0; 24]].concat();
    p.raw(cmd::BIND_IP, &[&[0; 8], &other, &c.to_ne_bytes()]).unwrap();
    let d = p.create(4, port_space::TCP);
    assert_eq!(p.bind(d, [127, 0, 0, 1], 4001), Err(Error::AddressInUse));
    assert!(own_family(&mut p, c, 1).is_ok());
    p.bind(d, [127, 0, 0, 1], 4001).unwrap();
    // In the other direction: IPv4's "any" cannot include IPv6, because the port is taken there.
    let e = p.create(5, port_space::TCP);
    assert!(own_family(&mut p, e, 0).is_ok());
    assert_eq!(p.bind(e, [0; 4], 4001), Err(Error::AddressInUse));
    for id in [a, b, c, d, e] {
        p.destroy(id);
    }
    assert_eq!((p.s.ids(), p.s.by_handle.len()), (0, 0));
}

#[test]
fn a_program_raises_events_of_its_own() {
    let mut p = Program::new();
    let id = p.create(1, port_space::TCP);
    let write = |p: &mut Program, id: u32, event: u32| {
        let body: &[&[u8]] = &[
            &id.to_ne_bytes(),
            &[0; 4],
            &event.to_ne_bytes(),
            &7u32.to_ne_bytes(),
            &0x1122_3344_5566_7788u64.to_ne_bytes(),
            &[0; 408],
        ];
        p.raw(cmd::WRITE_CM_EVENT, body)
    };
    for event in [number::USER, number::INTERNAL] {
        write(&mut p, id, event).unwrap();
        let e = p.expect(1, event);
        assert_eq!((e.id, e.status), (id, 7));
        assert_eq!(e.param[..8], 0x1122_3344_5566_7788u64.to_ne_bytes());
    }
    for event in [0, cm_event::ESTABLISHED, 17, 20, u32::MAX] {
        assert_eq!(write(&mut p, id, event), Err(Error::Invalid), "{event}");
    }
    assert_eq!(write(&mut p, 999, number::USER), Err(NO_ENTRY));
    assert_eq!(p.destroy(id), 2);
}

#[test]
fn the_accepting_side_sets_its_own_ack_timeout() {
    let mut p = Program::new();
    p.server(1, port_space::TCP, 4001);
    let c = p.client(2, port_space::TCP, 4001);
    let set = |p: &mut Program, id: u32, code: u8| {
        p.option = code;
        p.raw(
            cmd::SET_OPTION,
            &[
                &[0; 8],
                &id.to_ne_bytes(),
                &0u32.to_ne_bytes(),
                &3u32.to_ne_bytes(),
                &1u32.to_ne_bytes(),
            ],
        )
    };
    set(&mut p, c, 19).unwrap();
    p.connect(c, 0x100, &[]).unwrap();
    let r = p.expect(1, cm_event::CONNECT_REQUEST).id;
    let timeout = |p: &mut Program, id: u32| {
        let (m, a) = p.attr(id, qp_state::RTS).unwrap();
        assert_eq!(m & mask::TIMEOUT, mask::TIMEOUT);
        a[a.len() - 10]
    };
    p.accept(r, 3, 0x200, &[]).unwrap();
    p.expect(2, cm_event::CONNECT_RESPONSE);
    // The request's value applies until the program sets another.
    assert_eq!((timeout(&mut p, c), timeout(&mut p, r)), (19, 19));
    set(&mut p, r, 21).unwrap();
    assert_eq!((timeout(&mut p, c), timeout(&mut p, r)), (19, 21));
}

/// If the peer has a limited RNR retry count, this side uses the kernel's long RNR timer.
#[test]
fn a_side_without_a_receive_gets_a_long_rnr_timer() {
    let mut p = Program::new();
    p.server(1, port_space::TCP, 4002);
    for (tries, endless) in [(5, false), (7, true)] {
        let c = p.client(2, port_space::TCP, 4002);
        let mut param = Program::param(0x100, &[]);
        param[270] = tries;
        p.raw(cmd::CONNECT, &[&param, &c.to_ne_bytes(), &[0; 12]]).unwrap();
        let r = p.expect(1, cm_event::CONNECT_REQUEST).id;
        let timer = |p: &mut Program, id: u32| {
            let (m, a) = p.attr(id, qp_state::RTR).unwrap();
            assert_eq!(m & mask::MIN_RNR_TIMER, mask::MIN_RNR_TIMER);
            a[a.len() - 12]
        };
        assert_eq!(timer(&mut p, r) == 0, !endless, "{tries}");
        p.accept(r, 3, 0x200, &[]).unwrap();
        p.expect(2, cm_event::CONNECT_RESPONSE);
        assert_eq!(timer(&mut p, c) == 0, !endless, "{tries}");
        p.destroy(c);
        p.destroy(r);
        while p.event().is_some() {}
    }
}

#[test]
fn groups() {
    let mut p = Program::new();
    let id = p.create(1, port_space::UDP);
    let join = |p: &mut Program, uid: u64, ip: [u8; 4]| {
        p.raw(
            cmd::JOIN_IP_MCAST,
            &[&[0; 8], &uid.to_ne_bytes(), &sockaddr(ip, 0), &id.to_ne_bytes()],
        )
    };
    assert_eq!(join(&mut p, 9, [239, 1, 2, 3]), Err(Error::NoDevice));
    p.resolve(id, [239, 1, 2, 3], 0).unwrap();
    p.expect(1, number::ADDR_RESOLVED);
    assert_eq!(join(&mut p, 9, [10, 1, 2, 3]), Err(Error::Invalid));
    let g = u32_at(&join(&mut p, 9, [239, 1, 2, 3]).unwrap(), 0);
    assert_eq!(join(&mut p, 9, [239, 1, 2, 3]), Err(Error::AddressInUse));
    let e = p.expect(9, number::MULTICAST_JOIN);
    assert_eq!((e.id, u32_at(&e.param, 0), u32_at(&e.param, 4)), (id, BITS_24, UDP_QKEY));
    assert_eq!(&e.param[8 + 10..8 + 16], &[0xff, 0xff, 239, 1, 2, 3]);
    let leave =
        |p: &mut Program, g: u32| p.raw(cmd::LEAVE_MCAST, &[&[0; 8], &g.to_ne_bytes(), &[0; 4]]);
    assert_eq!(u32_at(&leave(&mut p, g).unwrap(), 0), 1);
    assert_eq!(leave(&mut p, g), Err(NO_ENTRY));
    join(&mut p, 9, [239, 1, 2, 4]).unwrap();
    // The group's event counts for the id as well; the second was dropped.
    assert_eq!(p.destroy(id), 2);
    assert!(p.event().is_none());
}

/// Random bytes in random order, on existing ids: no panic, no leak.
#[test]
fn any_bytes_in_any_order() {
    let mut rng = Rng::new(7);
    let mut random = move || rng.next() as u32;
    let mut p = Program::new();
    for uid in 1..6 {
        p.create(uid, [port_space::TCP, port_space::UDP, port_space::IB][uid as usize % 3]);
    }
    for _ in 0..20_000 {
        let len = [8usize, 12, 16, 24, 40, 48, 64, 152, 264, 288, 296][random() as usize % 11];
        let mut body: Vec<u8> =
            (0..len).map(|_| if random() % 3 == 0 { random() as u8 } else { 0 }).collect();
        // Puts existing ids at the offsets where commands have them.
        for at in [0, 8, 16, 36, 44, 56, 272, 280] {
            if at + 4 <= len && random() % 2 == 0 {
                body[at..at + 4].copy_from_slice(&(1 + random() % 12).to_ne_bytes());
            }
        }
        for at in [8, 28, 16, 24] {
            if at + 8 <= len && random() % 2 == 0 {
                body[at..at + 8].copy_from_slice(&[2, 0, 0x0f, 0xa0, 127, 0, 0, 1]);
            }
        }
        let _ = p.raw(random() % 26, &[&body]);
        if random() % 8 == 0 {
            p.s.pump();
        }
    }
    p.s.close(p.channel);
    assert_eq!((p.s.ids(), p.s.by_handle.len()), (0, 0));
    assert_eq!(p.s.devices().leaks(), Default::default());
}
