use super::*;
use gdrcore_core::verbs::types::{AhAttr, QpAttr};
use gdrcore_testkit::rng::Rng;

/// A command: number, room for the answer, and the fields.
fn command(number: u32, room: u16, body: &[u8]) -> Vec<u8> {
    let mut v = number.to_ne_bytes().to_vec();
    v.extend((body.len() as u16).to_ne_bytes());
    v.extend(room.to_ne_bytes());
    v.extend(body);
    v
}

fn body(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn sockaddr_in(ip: [u8; 4], port: u16, len: usize) -> Vec<u8> {
    let mut v = body(&[&2u16.to_ne_bytes(), &port.to_be_bytes(), &ip]);
    v.resize(len, 0);
    v
}

fn v4(ip: [u8; 4], port: u16) -> Addr {
    Addr { ip: ip.into(), port, scope_id: 0 }
}

/// One valid command of each kind.
fn all() -> Vec<(Vec<u8>, &'static str)> {
    let storage = |ip, port| sockaddr_in(ip, port, 128);
    let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    let r = 0x1122_3344_5566_7788u64.to_ne_bytes();
    let uid = 0x99u64.to_ne_bytes();
    let id = 7u32.to_ne_bytes();
    let zeros = |n: usize| vec![0u8; n];
    let mut param = zeros(272);
    param[..4].copy_from_slice(&0x11u32.to_ne_bytes());
    param[8..11].copy_from_slice(b"abc");
    param[264..].copy_from_slice(&[3, 1, 4, 5, 1, 6, 7, 1]);
    let mut reject = zeros(264);
    reject[..4].copy_from_slice(&id);
    reject[4..6].copy_from_slice(&[2, 28]);
    reject[8..10].copy_from_slice(b"no");
    let row = |number, room, fields: &[&[u8]], name| (command(number, room, &body(fields)), name);
    let (u16s, u32s) = (u16::to_ne_bytes, u32::to_ne_bytes);
    let group = [239, 1, 1, 1];
    vec![
        row(number::CREATE_ID, 4, &[&uid, &r, &u16s(0x106), &[2], &zeros(5)], "CreateId"),
        row(number::DESTROY_ID, 4, &[&r, &id, &zeros(4)], "DestroyId"),
        row(number::BIND_IP, 0, &[&r, &sockaddr_in(a, 1, 28), &id], "Bind"),
        row(number::BIND, 0, &[&id, &u16s(16), &zeros(2), &storage(a, 1)], "Bind"),
        row(
            number::RESOLVE_IP,
            0,
            &[&zeros(28), &sockaddr_in(b, 2, 28), &id, &zeros(4)],
            "Resolve",
        ),
        row(
            number::RESOLVE_ADDR,
            0,
            &[&id, &zeros(4), &u16s(16), &u16s(16), &zeros(4), &storage(a, 1), &storage(b, 2)],
            "Resolve",
        ),
        row(number::RESOLVE_ROUTE, 0, &[&id, &zeros(4)], "ResolveRoute"),
        row(number::QUERY_ROUTE, 208, &[&r, &id, &zeros(4)], "QueryRoute"),
        row(number::QUERY, 280, &[&r, &id, &u32s(query::GID)], "Query"),
        row(number::CONNECT, 0, &[&param, &id, &zeros(12)], "Connect"),
        row(number::LISTEN, 0, &[&id, &u32s(5)], "Listen"),
        row(number::ACCEPT, 0, &[&uid, &param, &id, &zeros(12)], "Accept"),
        row(number::REJECT, 0, &[&reject], "Reject"),
        row(number::DISCONNECT, 0, &[&id], "Disconnect"),
        row(number::INIT_QP_ATTR, 144, &[&r, &id, &u32s(2)], "InitQpAttr"),
        row(number::GET_EVENT, 336, &[&r], "GetEvent"),
        row(number::SET_OPTION, 0, &[&r, &id, &zeros(4), &u32s(3), &u32s(1)], "SetOption"),
        row(number::NOTIFY, 0, &[&id, &u32s(4)], "Notify"),
        row(number::JOIN_IP_MCAST, 4, &[&r, &uid, &sockaddr_in(group, 0, 28), &id], "Join"),
        row(
            number::JOIN_MCAST,
            4,
            &[&r, &uid, &id, &u16s(16), &zeros(2), &storage(group, 0)],
            "Join",
        ),
        row(number::LEAVE_MCAST, 4, &[&r, &id, &zeros(4)], "Leave"),
        row(number::MIGRATE_ID, 4, &[&r, &id, &u32s(9)], "Migrate"),
        row(
            number::WRITE_CM_EVENT,
            0,
            &[&id, &zeros(4), &u32s(18), &u32s(3), &uid, &zeros(408)],
            "WriteEvent",
        ),
    ]
}

#[test]
fn every_command_is_read() {
    for (bytes, name) in all() {
        let (c, _) = Command::parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(format!("{c:?}").starts_with(name), "{name}: {c:?}");
    }
}

#[test]
fn fields_are_where_the_kernel_has_them() {
    let named =
        |n: u32| all().into_iter().map(|(b, _)| b).find(|b| b[..4] == n.to_ne_bytes()).unwrap();
    let r = 0x1122_3344_5566_7788;
    let is = |n: u32, c: Command<'_>| assert_eq!(Command::parse(&named(n)).unwrap().0, c);
    let param = ConnParam {
        qp_num: 0x11,
        qkey: 0,
        private_data: b"abc",
        srq: true,
        responder_resources: 4,
        initiator_depth: 5,
        flow_control: true,
        retry_count: 6,
        rnr_retry_count: 7,
        valid: true,
    };
    is(number::CREATE_ID, Command::CreateId { uid: 0x99, response: r, ps: 0x106, qp_type: 2 });
    is(number::DESTROY_ID, Command::DestroyId { response: r, id: 7 });
    is(number::BIND_IP, Command::Bind { id: 7, addr: v4([10, 0, 0, 1], 1) });
    is(number::BIND, Command::Bind { id: 7, addr: v4([10, 0, 0, 1], 1) });
    is(number::RESOLVE_IP, Command::Resolve { id: 7, src: None, dst: v4([10, 0, 0, 2], 2) });
    let src = Some(v4([10, 0, 0, 1], 1));
    is(number::RESOLVE_ADDR, Command::Resolve { id: 7, src, dst: v4([10, 0, 0, 2], 2) });
    is(number::QUERY, Command::Query { response: r, id: 7, option: query::GID });
    is(number::CONNECT, Command::Connect { id: 7, param });
    is(number::LISTEN, Command::Listen { id: 7, backlog: 5 });
    is(number::ACCEPT, Command::Accept { id: 7, uid: 0x99, param });
    is(number::REJECT, Command::Reject { id: 7, reason: 28, private_data: b"no" });
    is(number::INIT_QP_ATTR, Command::InitQpAttr { response: r, id: 7, qp_state: 2 });
    is(number::SET_OPTION, Command::SetOption { id: 7, level: 0, name: 3, value: r, len: 1 });
    let (addr, send_only) = (v4([239, 1, 1, 1], 0), false);
    is(number::JOIN_IP_MCAST, Command::Join { response: r, uid: 0x99, id: 7, addr, send_only });
    is(number::JOIN_MCAST, Command::Join { response: r, uid: 0x99, id: 7, addr, send_only });
    is(number::MIGRATE_ID, Command::Migrate { response: r, id: 7, fd: 9 });
    is(number::WRITE_CM_EVENT, Command::WriteEvent { id: 7, event: 18, status: 3, argument: 0x99 });
}

#[test]
fn truncated_and_garbled_bytes_parse_to_an_error_or_a_command() {
    let mut rng = Rng::new(1);
    let mut random = move || rng.next() as u8;
    for (bytes, name) in all() {
        for len in 0..bytes.len() {
            assert_eq!(
                Command::parse(&bytes[..len]).unwrap_err(),
                Error::Invalid,
                "{name} cut to {len}"
            );
        }
        // The header has the right length, but the body is too short.
        let fixed = bytes.len() - 8;
        let cut = command(
            u32::from_ne_bytes(bytes[..4].try_into().unwrap()),
            512,
            &bytes[8..8 + fixed.min(4) - 1],
        );
        assert_eq!(Command::parse(&cut).unwrap_err(), Error::Invalid, "{name} with three bytes");
        for _ in 0..2000 {
            let mut garbled = bytes.clone();
            for _ in 0..1 + random() % 8 {
                let at = usize::from(random()) * 2 % garbled.len();
                garbled[at] = random();
            }
            let _ = Command::parse(&garbled);
        }
    }
    for number in [13, 23, u32::MAX] {
        assert_eq!(Command::parse(&command(number, 512, &[0; 400])).unwrap_err(), Error::Invalid);
    }
}

#[test]
fn too_little_room_for_the_answer_is_an_error() {
    for (mut bytes, name) in all() {
        let room = u16::from_ne_bytes(bytes[6..8].try_into().unwrap());
        bytes[6..8].copy_from_slice(&3u16.to_ne_bytes());
        let got = Command::parse(&bytes);
        if room > 0 {
            assert_eq!(got.unwrap_err(), NO_SPACE, "{name}");
        } else {
            assert!(got.is_ok(), "{name}");
        }
    }
}

#[test]
fn addresses_of_other_families_are_refused() {
    assert_eq!(Addr::parse(&[0; 16]), Ok(None));
    let ib = [27u16.to_ne_bytes().to_vec(), vec![0; 46]].concat();
    assert_eq!(Addr::parse(&ib), Err(Error::Invalid));
    assert_eq!(Addr::parse(&sockaddr_in([1, 2, 3, 4], 5, 15)), Err(Error::Invalid));
    let v6 = body(&[
        &10u16.to_ne_bytes(),
        &80u16.to_be_bytes(),
        &[0; 4],
        &[0xfd; 16],
        &3u32.to_ne_bytes(),
    ]);
    assert_eq!(Addr::parse(&v6), Ok(Some(Addr { ip: [0xfd; 16].into(), port: 80, scope_id: 3 })));
    assert_eq!(Addr::parse(&v6[..27]), Err(Error::Invalid));
}

#[test]
fn addresses_and_gids() {
    let a = v4([10, 1, 2, 3], 9);
    assert_eq!(a.gid(), [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 1, 2, 3]);
    assert_eq!(Addr::from_gid(&a.gid(), 0, 9), a);
    assert!(!a.is_any() && !a.is_loopback() && !a.is_multicast());
    let mapped = |ip: [u8; 4]| Addr {
        ip: std::net::Ipv4Addr::from(ip).to_ipv6_mapped().into(),
        port: 0,
        scope_id: 0,
    };
    assert!(
        mapped([127, 0, 0, 1]).is_loopback()
            && mapped([0; 4]).is_any()
            && mapped([239, 0, 0, 1]).is_multicast()
    );
    let one = Addr { ip: std::net::Ipv6Addr::LOCALHOST.into(), port: 0, scope_id: 0 };
    assert!(one.is_loopback() && !one.is_any() && Addr { ip: [0; 16].into(), ..one }.is_any());
}

#[test]
fn answers_have_the_kernels_sizes() {
    let r = Route {
        node_guid: 0x0102_0304_0506_0708,
        device_index: 5,
        src: Some(v4([10, 0, 0, 1], 1)),
        dst: Some(v4([10, 0, 0, 2], 2)),
        resolved: true,
        mtu: 3,
        traffic_class: 0,
    };
    let a = route_answer(&r);
    assert_eq!(a.len(), 208);
    assert_eq!(a[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(a[8 + 12..8 + 16], [10, 0, 0, 2]);
    assert_eq!(a[24 + 12..24 + 16], [10, 0, 0, 1]);
    assert_eq!(Addr::parse(&a[136..164]), Ok(r.src));
    assert_eq!(Addr::parse(&a[164..192]), Ok(r.dst));
    assert_eq!((a[192], a[196], a[200]), (1, 1, 5));
    assert_eq!(addr_answer(&r, false).len(), 280);
    assert_eq!(Addr::parse(&addr_answer(&r, false)[144..]), Ok(r.dst));
    assert_eq!(addr_answer(&r, true)[16..18], 27u16.to_ne_bytes());
    assert_eq!(path_answer(&r).len(), 80);
    assert_eq!(path_answer(&Route::default()), [0; 8]);
    assert_eq!(qp_attr_answer(&QpAttr::default(), 0, 0).len(), size::QP_ATTR);
    for param in [
        EventParam::None,
        EventParam::Conn {
            qp_num: 1,
            private_data: &[1; 300],
            srq: false,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 1,
            rnr_retry_count: 1,
        },
        EventParam::Ud {
            qp_num: 1,
            qkey: 2,
            ah: AhAttr::default(),
            gid_index: 0,
            private_data: b"x",
        },
    ] {
        assert_eq!(event_answer(1, 2, 3, -4, &param).len(), size::EVENT);
    }
}
