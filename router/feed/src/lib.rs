//! The protocol of a router and its adapter: one JSON object a line, over the router's socket
//! `feed` (docs/using/ROUTER-HOSTS.md, "A map that an adapter brings").
//!
//! The router sends [`Wish`]es: its own tenants, which other hosts may know. The adapter sends
//! [`Event`]s: the tenants of other hosts, and the results of the claims. A line has at most
//! [`LINE_MAX`] bytes. Unknown fields are errors.

use serde::{de::DeserializeOwned, Deserialize, Serialize};

/// Longest line, in bytes, its end included.
pub const LINE_MAX: usize = 1024;
/// The version of this protocol, in [`Wish::Hello`].
pub const VERSION: u32 = 1;

/// An address of a network, which identifies a tenant.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Key {
    /// The network's name.
    pub network: String,
    /// The virtual address, as a text.
    pub vip: String,
}

/// A tenant and where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its network.
    pub network: String,
    /// Its virtual address.
    pub vip: String,
    /// Its name there.
    pub tenant: String,
    /// Its blocks of queue pair numbers: the first, and how many.
    pub blocks: (u32, u32),
    /// The id of its host.
    pub host: String,
    /// The IP address of that.
    pub address: String,
    /// The UDP port of that.
    pub port: u16,
}

impl Entry {
    /// Its network and address.
    pub fn key(&self) -> Key {
        Key { network: self.network.clone(), vip: self.vip.clone() }
    }
}

/// A line from the adapter to the router.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Event {
    /// All tenants of a network follow, up to `end`.
    Begin {
        /// Its name.
        network: String,
    },
    /// A tenant is new, has changed or has moved.
    Put(Entry),
    /// A tenant is gone.
    Gone {
        /// Its network.
        network: String,
        /// Its address.
        vip: String,
        /// The tenant's host has not withdrawn it, so that host may only be cut off.
        stale: bool,
    },
    /// The tenants since `begin` are all of a network.
    End {
        /// Its name.
        network: String,
    },
    /// Whether a network can be read from the store.
    Store {
        /// Its name.
        network: String,
        /// Whether it can be read.
        up: bool,
    },
    /// The store has accepted a tenant as this host's.
    Claimed(Key),
    /// Another host has the address.
    Denied {
        /// The network.
        network: String,
        /// The address.
        vip: String,
        /// The id of that host.
        holder: String,
    },
}

/// A line from the router to the adapter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Wish {
    /// The first line: the host.
    Hello {
        /// [`VERSION`].
        version: u32,
        /// Its id.
        host: String,
        /// Its IP address.
        address: String,
        /// Its UDP port.
        port: u16,
        /// A number that tells this life of the router from others.
        epoch: u64,
    },
    /// A tenant of this host, which others may know.
    Publish(Entry),
    /// A tenant is no longer this host's.
    Withdraw(Key),
    /// The router has sent all its present tenants.
    Ready {},
    /// The router has refused a `put`.
    Refused {
        /// Its network.
        network: String,
        /// Its address.
        vip: String,
        /// Why.
        why: String,
    },
    /// The last line: why the router ends the connection.
    Error {
        /// In words.
        why: String,
    },
}

/// Reads a line, without its end.
///
/// # Errors
/// In words: it is none of these.
pub fn read<T: DeserializeOwned>(line: &[u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| format!("no line of this protocol: {e}"))
}

/// Appends a line.
pub fn write<T: Serialize>(what: &T, to: &mut Vec<u8>) {
    // Texts and numbers always have a JSON form, and a `Vec` grows.
    let _ = serde_json::to_writer(&mut *to, what);
    to.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            network: "default".into(),
            vip: "10.99.0.1".into(),
            tenant: "blue".into(),
            blocks: (748, 100),
            host: "a".into(),
            address: "192.0.2.1".into(),
            port: 4791,
        }
    }

    #[test]
    fn lines_say_what_they_said() {
        let (network, vip) = ("n".to_string(), "10.0.0.1".to_string());
        let key = Key { network: network.clone(), vip: vip.clone() };
        for event in [
            Event::Begin { network: network.clone() },
            Event::Put(entry()),
            Event::Gone { network: network.clone(), vip: vip.clone(), stale: true },
            Event::End { network: network.clone() },
            Event::Store { network: network.clone(), up: false },
            Event::Claimed(key.clone()),
            Event::Denied { network, vip, holder: "b".into() },
        ] {
            let mut line = Vec::new();
            write(&event, &mut line);
            assert_eq!(line.pop(), Some(b'\n'));
            assert_eq!(read::<Event>(&line), Ok(event));
        }
        let mut line = Vec::new();
        write(&Wish::Ready {}, &mut line);
        write(&Wish::Withdraw(key), &mut line);
        assert_eq!(
            String::from_utf8(line).unwrap(),
            "{\"ready\":{}}\n{\"withdraw\":{\"network\":\"n\",\"vip\":\"10.0.0.1\"}}\n"
        );
        assert_eq!(entry().key().vip, "10.99.0.1");
    }

    #[test]
    fn whatever_else_is_an_error() {
        for bad in [
            "",
            "{",
            "[]",
            "null",
            "{\"begin\":{}}",
            "{\"begin\":{\"network\":5}}",
            "{\"begin\":{\"network\":\"n\",\"x\":1}}",
            "{\"begin\":{\"network\":\"n\"},\"end\":{\"network\":\"n\"}}",
            "{\"fly\":{}}",
            "{\"end\":{\"network\":\"n\"}} x",
        ] {
            assert!(read::<Event>(bad.as_bytes()).is_err(), "{bad}");
        }
        assert!(read::<Event>(b"\xff").is_err());
    }
}
