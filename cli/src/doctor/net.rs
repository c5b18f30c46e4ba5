//! Interfaces, addresses, the soft device on each, and the router.

use super::{address, broken, fine, soft, warning, FactSource, Finding};
use gdrcore_net::addr::Endpoint;
use gdrcore_net::interfaces;
use gdrcore_net::soft::PathChoice;
use gdrcore_net::via::find::{from_environment, Found};
use std::net::{IpAddr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Most addresses that are tried.
const ADDRESSES: usize = 16;

/// An interface.
#[derive(Debug, Default)]
struct Link {
    name: String,
    is_up: bool,
    has_carrier: bool,
    addresses: Vec<IpAddr>,
}

pub fn all(facts: &FactSource) -> Vec<Finding> {
    gdrcore_net::reason::install();
    let mut all = Vec::new();
    let (links, listed) = links();
    if !listed {
        let seen = "the system gives no list of interfaces (netlink is refused)";
        all.push(warning("addresses", seen, "name an address: GDRC_ADDRESS, --address"));
    }
    // A bridge has a carrier when something is plugged in.
    let is_bridge = |name: &str| facts.path(&format!("sys/class/net/{name}/bridge")).exists();
    all.extend(check_links_up(&links, &is_bridge));
    let named = std::env::var("GDRC_ADDRESS").ok().filter(|a| !a.is_empty());
    match addresses(&links, named.as_deref()) {
        Ok(addresses) => {
            if listed && addresses.is_empty() {
                let seen = "no interface that is up has an address";
                all.push(broken("addresses", seen, "ip link set lo up, or give one an address"));
            }
            all.extend(addresses.iter().take(ADDRESSES).map(|at| device(*at, &soft::carries)));
        }
        Err(why) => {
            all.push(broken("addresses", why, "set GDRC_ADDRESS to an address of this machine"))
        }
    }
    all.push(router(from_environment().map_err(soft::words), &|path| {
        UnixStream::connect(path).map(drop)
    }));
    all
}

fn ip(at: &Endpoint) -> IpAddr {
    Ipv6Addr::from(at.ip).to_canonical()
}

/// The interfaces; false: the system gives no list.
fn links() -> (Vec<Link>, bool) {
    let mut links: Vec<Link> = Vec::new();
    let listed = interfaces::for_each(|i| {
        let name = i.name.to_string_lossy();
        let at = links.iter().position(|l| l.name == name).unwrap_or_else(|| {
            let has_carrier = i.flags & libc::IFF_RUNNING as u32 != 0;
            let name = name.into_owned();
            links.push(Link { name, is_up: i.is_up(), has_carrier, ..Link::default() });
            links.len() - 1
        });
        // Link-local ones need a zone, which a GID cannot hold.
        let usable = |at: &Endpoint| at.is_unicast() && at.ip[..2] != [0xfe, 0x80];
        links[at].addresses.extend(i.at.filter(usable).as_ref().map(ip));
    });
    (links, listed)
}

/// Interfaces that have an address and cannot carry packets.
fn check_links_up(links: &[Link], is_bridge: &dyn Fn(&str) -> bool) -> Vec<Finding> {
    let dark =
        |l: &&Link| !(l.addresses.is_empty() || l.is_up && l.has_carrier || is_bridge(&l.name));
    let said = |l: &Link| {
        let (why, remedy) = match l.is_up {
            true => ("has no carrier", "plug it in, or switch on its other end".to_string()),
            false => ("is down", format!("ip link set {} up", l.name)),
        };
        let seen = format!("{} with {} {why}: peers there are not reached", l.name, l.addresses[0]);
        warning("link", seen, remedy)
    };
    links.iter().filter(dark).map(said).collect()
}

/// The addresses on which a device is tried: those that programs see, in the order of the system.
fn addresses(links: &[Link], named: Option<&str>) -> Result<Vec<IpAddr>, String> {
    if let Some(text) = named {
        let at = address(text).ok_or(format!("GDRC_ADDRESS={text} is no IP address"))?;
        return Ok(vec![at]);
    }
    let mut all: Vec<IpAddr> = Vec::new();
    for at in links.iter().filter(|l| l.is_up).flat_map(|l| &l.addresses) {
        if !all.contains(at) {
            all.push(*at);
        }
    }
    Ok(all)
}

/// Whether a device on an address carries bytes over UDP and through memory.
fn device(at: IpAddr, carries: &dyn Fn(IpAddr, PathChoice) -> Result<u32, String>) -> Finding {
    match (carries(at, PathChoice::Udp), carries(at, PathChoice::Shm)) {
        (Ok(mtu), Ok(_)) => fine(
            "device",
            format!(
                "{at}: UDP and shared memory carry all bytes; path MTU {mtu}; its GID is at index \
                 0 to 3"
            ),
        ),
        (Ok(_), Err(why)) => warning(
            "device",
            format!("{at}: UDP carries all bytes, shared memory does not: {why}"),
            "see what was found above; --path udp does without",
        ),
        (Err(why), _) => broken(
            "device",
            format!("{at}: UDP carries nothing: {why}"),
            "see what was found above; a rule of this machine's firewall must let UDP port 4791 \
             pass, also on lo",
        ),
    }
}

/// The router that the environment names or that is mounted here.
fn router(found: Result<Found, String>, connect: &dyn Fn(&Path) -> std::io::Result<()>) -> Finding {
    const CHECK: &str = "router";
    let path = match found {
        Ok(Found::Off) => return fine(CHECK, "GDRC_ROUTER=off: none is used"),
        Ok(Found::Nothing) => return fine(CHECK, "none here, and none is needed"),
        Ok(Found::Named(path) | Found::Mounted(path)) => path,
        Err(why) => {
            return broken(CHECK, format!("GDRC_ROUTER: {why}"), "correct it, or GDRC_ROUTER=off");
        }
    };
    match connect(Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()))) {
        Ok(()) => fine(CHECK, format!("{path} answers")),
        Err(e) => {
            let seen = format!("{path}: {e}: programs reach no peer by it");
            broken(CHECK, seen, "start gdrcore-routerd, or set GDRC_ROUTER=off")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;
    use gdrcore_net::via::find::SocketPath;
    use std::io;

    fn link(name: &str, is_up: bool, has_carrier: bool, addresses: &[&str]) -> Link {
        let addresses = addresses.iter().map(|a| a.parse().unwrap()).collect();
        Link { name: name.into(), is_up, has_carrier, addresses }
    }

    #[test]
    fn dark_interfaces_matter_if_they_have_an_address() {
        let links = [
            link("lo", true, true, &["127.0.0.1"]),
            link("e0", false, false, &["192.0.2.1"]),
            link("e1", true, false, &["192.0.2.2"]),
            link("e2", false, false, &[]),
            link("docker0", true, false, &["172.17.0.1"]),
        ];
        let found = check_links_up(&links, &|name| name == "docker0");
        let seen: Vec<&str> = found.iter().map(|f| f.seen.split(':').next().unwrap()).collect();
        assert_eq!(seen, ["e0 with 192.0.2.1 is down", "e1 with 192.0.2.2 has no carrier"]);
        let tried = addresses(&links, None).unwrap();
        assert_eq!(tried.len(), 3);
        assert_eq!(addresses(&links, Some("[::1]")), Ok(vec!["::1".parse().unwrap()]));
        assert!(addresses(&links, Some("eth0")).unwrap_err().contains("eth0"));
    }

    #[test]
    fn a_device_is_as_good_as_its_paths() {
        let at = "192.0.2.1".parse().unwrap();
        let with = |udp: bool, shm: bool| {
            device(at, &|_, path| {
                let ok = if path == PathChoice::Udp { udp } else { shm };
                ok.then_some(1024).ok_or("no".into())
            })
        };
        assert!(with(true, true).seen.contains("path MTU 1024"));
        assert_eq!(with(true, false).level, Level::Warning);
        assert_eq!(with(false, true).level, Level::Broken);
    }

    #[test]
    fn bytes_are_carried_on_loopback() {
        gdrcore_net::reason::install();
        let at = IpAddr::from(gdrcore_testkit::place::loopback(1, 1));
        for path in [PathChoice::Udp, PathChoice::Shm] {
            assert_eq!(soft::carries(at, path), Ok(4096));
        }
        let strange = soft::carries("192.0.2.77".parse().unwrap(), PathChoice::Udp).unwrap_err();
        assert!(strange.contains("not local"), "{strange}");
    }

    #[test]
    fn a_router_that_is_gone_is_named() {
        let path = SocketPath::new(b"/x/y.gdrc").unwrap();
        let gone = |_: &Path| Err(io::Error::from(io::ErrorKind::ConnectionRefused));
        let f = router(Ok(Found::Mounted(path)), &gone);
        assert!(f.level == Level::Broken && f.seen.contains("/x/y.gdrc"), "{f:?}");
        assert_eq!(router(Ok(Found::Named(path)), &|_| Ok(())).level, Level::Fine);
        assert_eq!(router(Ok(Found::Nothing), &gone).level, Level::Fine);
        assert_eq!(router(Err("no".into()), &gone).level, Level::Broken);
    }
}
