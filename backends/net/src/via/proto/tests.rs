use super::*;
use proptest::prelude::*;

fn text<const N: usize>() -> impl Strategy<Value = Text<N>> {
    ".{0,40}".prop_map(|s| Text::new(&s))
}

fn qpn() -> impl Strategy<Value = u32> {
    0u32..1 << 24
}

fn hello() -> impl Strategy<Value = Message> {
    let numbers = (any::<(u32, u32)>(), any::<u64>(), any::<u32>(), qpn(), any::<i32>());
    (numbers, text(), any::<[u8; 32]>()).prop_map(
        |((versions, features, mode, qpns, ffr_id), program, half)| {
            let mut token = [7; 64];
            token[..32].copy_from_slice(&half);
            Message::Hello(Hello { versions, features, mode, qpns, ffr_id, program, token })
        },
    )
}

fn welcome() -> impl Strategy<Value = Message> {
    let numbers = any::<(u32, u32, u64, u64, u64, u32)>();
    let sizes = (qpn(), qpn(), any::<u32>(), any::<(u32, u32)>(), any::<u32>());
    let all = (numbers, sizes, text(), text(), any::<[[u8; 16]; GIDS]>(), text());
    all.prop_map(|(n, s, tenant, network, gids, cause)| {
        let (version, mode, features, epoch, line_rate, session) = n;
        let (first, count, mtu, rings, max_routes) = s;
        let (qpns, token) = ((first, count), [9; 64]);
        #[rustfmt::skip]
        let w = Welcome {
            version, features, mode, session, epoch, tenant, network, gids, qpns, mtu, line_rate,
            rings, max_routes, token, cause,
        };
        Message::Welcome(w)
    })
}

fn routes() -> impl Strategy<Value = Message> {
    let ask = (any::<[u8; 16]>(), 0..GIDS as u32, qpn(), 0u32..256);
    let ask = ask.prop_map(|(gid, sgid_index, qpn, traffic_class)| {
        Message::Route(Route { gid, sgid_index, qpn, traffic_class })
    });
    let told = (any::<(u32, u32, u32, u32)>(), qpn(), qpn(), qpn(), text());
    let told = told.prop_map(|((kind, peer, flags, mtu), route, first, count, cause)| {
        Message::Routed(Routed { kind, route, peer, flags, qpns: (first, count), mtu, cause })
    });
    let event = (qpn(), any::<(u32, u32, u32)>(), text());
    let event = event.prop_map(|(route, (event, peer, final_ms), cause)| {
        Message::RouteEvent(RouteEvent { route, event, peer, final_ms, cause })
    });
    let gone = qpn().prop_map(|route| Message::Unroute(Unroute { route }));
    prop_oneof![ask, told, event, gone]
}

fn others() -> impl Strategy<Value = Message> {
    let link = any::<([u8; 16], u32, u32)>();
    let link = link.prop_map(|(gid, peer, flags)| Message::Link(Link { gid, peer, flags }));
    let service = any::<(bool, u16, u16)>().prop_map(|(on, space, port)| {
        let service = Service { space, port };
        if on {
            Message::Listen(service)
        } else {
            Message::Unlisten(service)
        }
    });
    let drain = (any::<u32>(), text())
        .prop_map(|(deadline_ms, text)| Message::Drain(Drain { deadline_ms, text }));
    let bye = (any::<i32>(), text()).prop_map(|(errno, text)| Message::Bye(Bye { errno, text }));
    prop_oneof![link, service, drain, bye, Just(Message::Ping(()))]
}

fn envelope() -> impl Strategy<Value = Envelope> {
    let message = prop_oneof![hello(), welcome(), routes(), others()];
    (any::<(bool, u32, i32)>(), message).prop_map(|((answer, seq, status), message)| Envelope {
        answer,
        seq,
        status,
        message,
    })
}

fn bytes(e: &Envelope) -> Vec<u8> {
    let mut buffer = [0xee; MESSAGE_MAX];
    let n = e.emit(&mut buffer);
    buffer[..n].to_vec()
}

/// The same message, `len` bytes long: cut, or with bytes appended.
fn resized(message: &[u8], len: usize, with: u8) -> Vec<u8> {
    let mut m = message.to_vec();
    m.resize(len, with);
    m[12..16].copy_from_slice(&(len as u32).to_le_bytes());
    m
}

proptest! {
    #[test]
    fn emitted_messages_are_read_back(e in envelope()) {
        prop_assert_eq!(Envelope::parse(&bytes(&e)), Ok(e));
    }

    #[test]
    fn a_message_may_grow_by_zeroes_only(
        e in envelope(),
        more in 1usize..64,
        at in any::<prop::sample::Index>(),
    ) {
        let message = bytes(&e);
        let longer = resized(&message, message.len() + more, 0);
        prop_assert_eq!(Envelope::parse(&longer), Ok(e));
        let mut newer = longer;
        newer[message.len() + at.index(more)] = 1;
        prop_assert_eq!(Envelope::parse(&newer), Err(Fault::TooBig));
        prop_assert_eq!(Fault::TooBig.errno(), libc::E2BIG);
    }

    /// Every truncation is read like the same message with zeroes at its end.
    #[test]
    fn missing_bytes_count_as_zero(e in envelope(), at in any::<prop::sample::Index>()) {
        let message = bytes(&e);
        let short = resized(&message, HEAD_LEN + at.index(message.len() - HEAD_LEN + 1), 0);
        let filled = resized(&short, message.len(), 0);
        prop_assert_eq!(Envelope::parse(&short), Envelope::parse(&filled));
        // A datagram that was cut on its way claims a larger length.
        if short.len() < message.len() {
            prop_assert_eq!(Envelope::parse(&message[..short.len()]), Err(Fault::Length));
        }
    }

    #[test]
    fn any_bytes_are_a_message_or_a_fault(
        mut junk in prop::collection::vec(any::<u8>(), 0..900),
        kind in 0u16..16,
    ) {
        if let Ok(e) = Envelope::parse(&junk) {
            prop_assert_eq!(Envelope::parse(&bytes(&e)), Ok(e));
        }
        // The same behind a right head.
        if junk.len() >= HEAD_LEN {
            junk[..2].copy_from_slice(&kind.to_le_bytes());
            junk[2..4].copy_from_slice(&[1, 0]);
            let junk = resized(&junk, junk.len(), 0);
            if let Ok(e) = Envelope::parse(&junk) {
                prop_assert_eq!(Envelope::parse(&bytes(&e)), Ok(e));
            }
        }
    }
}

#[test]
fn unknown_types_flags_and_lengths_are_refused() {
    let ping = bytes(&Envelope::new(5, Message::Ping(())));
    assert_eq!(ping.len(), HEAD_LEN);
    for kind in (0..=u16::MAX).filter(|k| !KINDS.contains(k)) {
        let mut m = ping.clone();
        m[..2].copy_from_slice(&kind.to_le_bytes());
        assert_eq!(Envelope::parse(&m), Err(Fault::Unknown(kind)));
    }
    for flags in 2..=u16::MAX {
        let mut m = ping.clone();
        m[2..4].copy_from_slice(&flags.to_le_bytes());
        assert_eq!(Envelope::parse(&m), Err(Fault::Flags(flags)));
    }
    for len in (0..64u32).filter(|&l| l != 16) {
        let mut m = ping.clone();
        m[12..16].copy_from_slice(&len.to_le_bytes());
        assert_eq!(Envelope::parse(&m), Err(Fault::Length), "{len}");
    }
    assert_eq!(Envelope::parse(&resized(&ping, MESSAGE_MAX, 0)), Envelope::parse(&ping));
    assert_eq!(Envelope::parse(&resized(&ping, MESSAGE_MAX + 1, 0)), Err(Fault::Length));
    for e in [Fault::Length, Fault::Flags(2), Fault::Unknown(9), Fault::Value] {
        assert!(e.errno() > 0 && !e.to_string().is_empty());
    }
}

#[test]
fn a_hello_begins_with_the_protocols_name() {
    let hello = Hello {
        versions: (1, 1),
        features: 1,
        mode: 0,
        qpns: 4096,
        ffr_id: -1,
        program: Text::new("x"),
        token: [0; 64],
    };
    let mut m = bytes(&Envelope::new(1, Message::Hello(hello)));
    for at in HEAD_LEN..HEAD_LEN + MAGIC.len() {
        m[at] ^= 1;
        assert_eq!(Envelope::parse(&m), Err(Fault::Value));
        m[at] ^= 1;
    }
    assert!(Envelope::parse(&m).is_ok());
}

#[test]
fn numbers_that_do_not_fit_their_fields_are_refused() {
    let route = Route { gid: [1; 16], sgid_index: 0, qpn: 7, traffic_class: 0 };
    let m = bytes(&Envelope::new(1, Message::Route(route)));
    for (at, value) in [(16, GIDS as u32), (20, 1 << 24), (24, 256)] {
        let mut m = m.clone();
        m[HEAD_LEN + at..][..4].copy_from_slice(&value.to_le_bytes());
        assert_eq!(Envelope::parse(&m), Err(Fault::Value), "{at}");
    }
}

#[test]
fn texts_are_cut_between_characters_and_are_read_only_as_they_are_written() {
    let t = Text::<8>::new("aaaaaaaä");
    assert_eq!(t.as_str(), "aaaaaaa");
    assert_eq!(Text::<8>::new("12345678").as_str(), "12345678");
    assert_eq!(Text::<8>::new("a\0b").as_str(), "a");
    assert_eq!(Text::<8>::new("123456ääb").as_str(), "123456ä");
    assert_eq!(format!("{t} {t:?}"), "aaaaaaa \"aaaaaaa\"");
    for bytes in [*b"a\0b\0\0\0\0\0", [0xff; 8], *b"aaaaaaa\xc3"] {
        assert_eq!(Text::<8>::parse(&mut Reader::new(&bytes)), Err(Fault::Value), "{bytes:?}");
    }
}

#[test]
fn two_ends_talk_in_the_newest_version_that_both_speak() {
    for (a, b, common) in [
        ((1, 1), (1, 1), Some(1)),
        ((1, 3), (2, 9), Some(3)),
        ((2, 9), (1, 3), Some(3)),
        ((1, 1), (2, 3), None),
        ((4, 2), (1, 9), None),
        ((0, u32::MAX), (1, 1), Some(1)),
    ] {
        assert_eq!(common_version(a, b), common, "{a:?} {b:?}");
    }
}
