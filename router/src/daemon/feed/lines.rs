//! Lines of an adapter, as events of the broker.

use crate::broker::MapEvent;
use crate::policy::{parse_address, show, Placed};
use gdrcore_router_feed::{read, Entry, Event, Key};

/// Why a line is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// It is not of the protocol, so its sender is not an adapter.
    Nonsense(String),
    /// Its values are not valid. That is no fault of the adapter: the store may hold anything.
    Refused(Key, String),
}

/// Parses a line. The key is the address that the line is for, if there is one.
pub(super) fn event(line: &[u8]) -> Result<(Key, MapEvent), Fault> {
    let event = read::<Event>(line).map_err(Fault::Nonsense)?;
    let of = |network: &str, vip: &str| Key { network: network.into(), vip: vip.into() };
    let checked = |network: String, vip: String| match parse_address(&vip) {
        Some(gid) => Ok((of(&network, &vip), network, gid)),
        None => Err(Fault::Refused(of(&network, &vip), format!("vip '{vip}': an address"))),
    };
    let named = |network: String| (of(&network, ""), network);
    Ok(match event {
        Event::Begin { network } => {
            let (key, network) = named(network);
            (key, MapEvent::Begin(network))
        }
        Event::End { network } => {
            let (key, network) = named(network);
            (key, MapEvent::End(network))
        }
        Event::Store { network, up } => {
            let (key, network) = named(network);
            (key, MapEvent::Store(network, up))
        }
        Event::Put(entry) => {
            let placed = placed(&entry).map_err(|why| Fault::Refused(entry.key(), why))?;
            (entry.key(), MapEvent::Put(placed))
        }
        Event::Gone { network, vip, stale } => {
            let (key, network, gid) = checked(network, vip)?;
            (key, MapEvent::Gone { network, gid, stale })
        }
        Event::Claimed(Key { network, vip }) => {
            let (key, network, gid) = checked(network, vip)?;
            (key, MapEvent::Claimed(network, gid))
        }
        Event::Denied { network, vip, holder } => {
            let (key, network, gid) = checked(network, vip)?;
            (key, MapEvent::Denied { network, gid, holder })
        }
    })
}

fn placed(e: &Entry) -> Result<Placed, String> {
    Placed::checked((&e.host, &e.address, e.port), &e.tenant, &e.network, &e.vip, e.blocks)
}

/// The description of a tenant for the adapter.
pub(super) fn entry(p: &Placed) -> Entry {
    Entry {
        network: p.network.to_string(),
        vip: show(&p.gid),
        tenant: p.tenant.clone(),
        blocks: (p.blocks.start, p.blocks.len() as u32),
        host: p.host.to_string(),
        address: show(&p.at.ip),
        port: p.at.port,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUT: &str = r#"{"put":{"network":"n","vip":"10.0.0.7","tenant":"gold","blocks":[5,2],
        "host":"b","address":"192.0.2.2","port":4791}}"#;

    #[test]
    fn lines_become_events_and_what_they_say_is_checked() {
        let Ok((key, MapEvent::Put(placed))) = event(PUT.as_bytes()) else { panic!() };
        assert_eq!((key.network.as_str(), key.vip.as_str()), ("n", "10.0.0.7"));
        assert_eq!((&*placed.host, placed.blocks.clone()), ("b", 5..7));
        assert_eq!(placed.at.to_string(), "192.0.2.2:4791");
        let there_and_back = serde_json::to_string(&Event::Put(entry(&placed))).unwrap();
        assert_eq!(event(there_and_back.as_bytes()).map(|(_, e)| e), Ok(MapEvent::Put(placed)));
        for (from, to) in [
            ("\"n\"", "\"n m\""),
            ("\"gold\"", "\"\""),
            ("\"b\"", "\"b/c\""),
            ("10.0.0.7", "127.0.0.1"),
            ("10.0.0.7", "x"),
            ("192.0.2.2", "224.0.0.1"),
            ("192.0.2.2", "192.0.2.2:1"),
            ("4791", "0"),
            ("[5,2]", "[0,2]"),
            ("[5,2]", "[5,0]"),
            ("[5,2]", "[1015,2]"),
            ("[5,2]", "[4294967295,4294967295]"),
        ] {
            let bad = PUT.replacen(from, to, 1);
            assert_ne!(bad, PUT);
            assert!(matches!(event(bad.as_bytes()), Err(Fault::Refused(..))), "{bad}");
        }
        for (from, to) in [("[5,2]", "[5]"), ("[5,2]", "[5,-2]"), ("4791", "65536"), ("put", "x")] {
            let bad = PUT.replacen(from, to, 1);
            assert!(matches!(event(bad.as_bytes()), Err(Fault::Nonsense(_))), "{bad}");
        }
        let gone = br#"{"gone":{"network":"n","vip":"::1","stale":true}}"#;
        assert!(matches!(event(gone), Err(Fault::Refused(..))));
    }
}
