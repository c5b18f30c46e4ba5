//! The keys of the store, and their values.
//!
//! | key | value |
//! |---|---|
//! | `/gdrcore/v1/host/<id>` | address, port, epoch and version of a host |
//! | `/gdrcore/v1/net/<network>/vip/<address>` | whose that address is: host, its address and port, tenant, blocks |
//!
//! Both are written by the host's adapter, under its lease.

use gdrcore_router_feed::{Entry, Key};
use serde::{Deserialize, Serialize};

/// The beginning of all keys.
pub const PREFIX: &str = "/gdrcore/v1";

/// A host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Host {
    pub address: String,
    pub port: u16,
    pub epoch: u64,
    pub version: String,
}

/// The holder of an address. Fields that are not known here are another version's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub host: String,
    pub address: String,
    pub port: u16,
    pub tenant: String,
    pub blocks: (u32, u32),
    /// Its host has given it up; the key goes next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
}

impl Holder {
    pub fn from_entry(e: &Entry) -> Holder {
        Holder {
            host: e.host.clone(),
            address: e.address.clone(),
            port: e.port,
            tenant: e.tenant.clone(),
            blocks: e.blocks,
            withdrawn: false,
        }
    }

    pub fn entry(self, key: Key) -> Entry {
        Entry {
            network: key.network,
            vip: key.vip,
            tenant: self.tenant,
            blocks: self.blocks,
            host: self.host,
            address: self.address,
            port: self.port,
        }
    }
}

/// The key of a host.
pub fn host(id: &str) -> String {
    format!("{PREFIX}/host/{id}")
}

/// The beginning of the keys of a network's addresses.
pub fn network(name: &str) -> String {
    format!("{PREFIX}/net/{name}/vip/")
}

/// The key of an address.
pub fn vip(key: &Key) -> String {
    network(&key.network) + &key.vip
}

/// The address in a key of a network; `None`: the key has none.
pub fn parse(network_name: &str, key: &str) -> Option<Key> {
    let vip = key.strip_prefix(&network(network_name))?;
    // Only the form that the adapter writes: another text of the same address would be another key.
    let ip: std::net::IpAddr = vip.parse().ok().filter(|ip| vip == format!("{ip}"))?;
    Some(Key { network: network_name.into(), vip: ip.to_string() })
}

/// The bytes of a value.
pub fn bytes(value: &impl Serialize) -> Vec<u8> {
    // The values are texts and numbers, which always have a JSON form.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_says_whose_address_it_is() {
        let key = Key { network: "prod".into(), vip: "10.99.0.1".into() };
        assert_eq!(vip(&key), "/gdrcore/v1/net/prod/vip/10.99.0.1");
        assert_eq!(parse("prod", &vip(&key)), Some(key));
        for bad in [
            "/gdrcore/v1/net/prod/vip/",
            "/gdrcore/v1/net/prod/vip/x",
            "/gdrcore/v1/net/prod/vip/fd00:0::1",
            "/gdrcore/v1/net/other/vip/10.99.0.1",
            "",
        ] {
            assert_eq!(parse("prod", bad), None, "{bad}");
        }
    }

    #[test]
    fn values_of_another_version_are_read() {
        let text = br#"{"host":"b","address":"192.0.2.2","port":4791,"tenant":"red",
            "blocks":[1,2],"colour":"red"}"#;
        let place: Holder = serde_json::from_slice(text).unwrap();
        assert!(!place.withdrawn && !String::from_utf8(bytes(&place)).unwrap().contains("withdr"));
        let gone = Holder { withdrawn: true, ..place };
        assert_eq!(serde_json::from_slice::<Holder>(&bytes(&gone)).unwrap(), gone);
    }
}
