use super::*;

fn soft(text: &str) -> Result<Endpoint> {
    match DeviceName::parse(text)? {
        DeviceName::Soft(e) => Ok(e),
        other => panic!("{other} is no soft device"),
    }
}

#[test]
fn every_form_is_read() {
    assert_eq!(DeviceName::parse("loopback"), Ok(DeviceName::Loopback));
    let router = DeviceName::parse("router:/run/x/y.gdrc").unwrap();
    assert!(
        matches!(router, DeviceName::Router(_)) && router.to_string() == "router:/run/x/y.gdrc"
    );
    assert_eq!(DeviceName::parse("router:of-no-such-name"), Err(Error::NoDevice));
    assert_eq!(soft("soft:127.0.0.2"), Ok(Endpoint::v4([127, 0, 0, 2], 4791)));
    assert_eq!(soft("soft:127.0.0.2:5000"), Ok(Endpoint::v4([127, 0, 0, 2], 5000)));
    assert_eq!(soft("soft:127.0.0.2:0").unwrap().port, 0);
    let one = Ipv6Addr::LOCALHOST.octets();
    assert_eq!(soft("soft:[::1]"), Ok(Endpoint::new(one, 0, 4791)));
    assert_eq!(soft("soft:::1"), Ok(Endpoint::new(one, 0, 4791)));
    assert_eq!(soft("soft:[::1]:77"), Ok(Endpoint::new(one, 0, 77)));
    assert_eq!(soft("soft:[::ffff:10.0.0.1]:77"), Ok(Endpoint::v4([10, 0, 0, 1], 77)));
    let e = soft("soft:[fe80::1%lo]:4791").unwrap();
    assert!(e.scope_id > 0);
    assert_eq!(soft("soft:[fe80::1%7]").unwrap().scope_id, 7);
}

#[test]
fn display_reads_back() {
    for text in ["soft:10.1.2.3:4791", "soft:[2001:db8::1]:1", "soft:[fe80::1%3]:4791", "loopback"]
    {
        let name = DeviceName::parse(text).unwrap();
        assert_eq!(name.to_string(), text);
        assert_eq!(DeviceName::parse(&name.to_string()), Ok(name));
    }
}

#[test]
fn nonsense_is_refused() {
    for text in [
        "",
        "soft",
        "soft:",
        "soft:host",
        "soft:1.2.3",
        "soft:1.2.3.4:",
        "soft:1.2.3.4:x",
        "soft:1.2.3.4:65536",
        "soft:1.2.3.4:+5",
        "soft:1.2.3.4:-5",
        "soft:0.0.0.0",
        "soft:224.0.0.1",
        "soft:255.255.255.255",
        "soft:[::]",
        "soft:[ff02::1%1]",
        "soft:[fe80::1]",
        "soft:[fe80::1%0]",
        "soft:[fe80::1%]",
        "soft:[2001:db8::1%1]",
        "soft:1.2.3.4%1",
        "soft:[1.2.3.4]",
        "soft:[::1",
        "soft:[::1]x",
        "soft:[::1]:",
        "soft:::1]:5",
        "Loopback",
        "loopback ",
        "verbs:mlx5_0",
    ] {
        assert_eq!(DeviceName::parse(text), Err(Error::Invalid), "{text}");
    }
    assert_eq!(soft("soft:[fe80::1%nosuchif0]"), Err(Error::NoDevice));
    assert_eq!(soft("soft:[fe80::1%a-name-that-is-far-too-long-for-linux]"), Err(Error::NoDevice));
}

#[test]
fn socket_addresses_convert_both_ways() {
    for text in ["soft:10.1.2.3:4791", "soft:[2001:db8::1]:1", "soft:[fe80::1%3]:4791"] {
        let e = soft(text).unwrap();
        let (sa, _) = e.to_sockaddr();
        assert_eq!(Endpoint::from_sockaddr(&sa), Some(e));
    }
    assert_eq!(Endpoint::from_sockaddr(&SockAddr::zeroed()), None);
    // The kernel may report a zone with a global address. The zone must not make two peers of one
    // address.
    assert_eq!(
        Endpoint::new(Ipv6Addr::LOCALHOST.octets(), 1, 5),
        Endpoint::new(Ipv6Addr::LOCALHOST.octets(), 0, 5)
    );
}
