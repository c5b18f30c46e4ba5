//! Checks a policy, and the objects of this host that it names, before a router runs by it.

use super::options::read_map;
use super::users::Users;
use super::{remoting, sys};
use crate::nic;
use crate::policy::{host_references, HostObject, HostReference, Lookup, Policy};
use std::fs;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// What is wrong with a policy file: the first fault of its text, or all that it names and this
/// host lacks, each with line and column. It is checked with this process's rights, and nothing is
/// made.
pub fn check(file: &Path) -> Vec<String> {
    let in_file = |what: &dyn std::fmt::Display| format!("{}: {what}", file.display());
    let text = match fs::read_to_string(file) {
        Ok(text) => text,
        Err(e) => return vec![in_file(&e)],
    };
    // A missing user is one of the references below, so that it hides no other.
    let lookup = Lookup { map: &read_map, user: &|_| Ok(0) };
    let parsed = Policy::parse_with(&text, lookup).and_then(|_| host_references(&text));
    let references = match parsed {
        Ok(references) => references,
        Err(fault) => return vec![in_file(&fault)],
    };
    let users = Users::default();
    let checked = |reference: &HostReference| {
        let what = check_object(&reference.object, &users).err()?;
        Some(in_file(&reference.fault(what)))
    };
    references.iter().filter_map(checked).collect()
}

fn check_object(object: &HostObject, users: &Users) -> Result<(), String> {
    match object {
        HostObject::Socket(path) => {
            made(path, |kind| kind.is_socket(), "there is a file, and no socket")
        }
        HostObject::Written(path) => made(path, |kind| kind.is_file(), "it is no regular file"),
        HostObject::Netns(path) => netns(path),
        HostObject::User(name) => {
            users.number(name).map(drop).map_err(|why| format!("uid '{name}': {why}"))
        }
        HostObject::Host(at) => {
            let ip = Ipv6Addr::from(at.ip).to_canonical();
            is_here((ip, 0).into()).and_then(|()| nic::check(at))
        }
        HostObject::Device(at) => is_here((Ipv6Addr::from(at.ip).to_canonical(), 0).into()),
        HostObject::Nic(name) => remoting::open_one(name, &[]).map(drop),
        HostObject::Address(at) => is_here(*at),
    }
}

/// Whether the router can make a file.
fn made(path: &Path, is_kind: fn(&fs::FileType) -> bool, other: &str) -> Result<(), String> {
    let shown = path.display();
    if fs::symlink_metadata(path).is_ok_and(|m| !is_kind(&m.file_type())) {
        return Err(format!("'{shown}': {other}"));
    }
    // The router makes folders that are missing.
    let Some(there) = path.ancestors().skip(1).find(|folder| folder.exists()) else {
        return Ok(());
    };
    match there.is_dir() {
        false => Err(format!("'{shown}': '{}' is no folder", there.display())),
        true if sys::may_write(there) => Ok(()),
        true if Some(there) == path.parent() => {
            Err(format!("'{shown}': this user may make nothing in its folder"))
        }
        true => Err(format!(
            "'{shown}': its folder is missing, and this user may not make it in '{}'",
            there.display()
        )),
    }
}

fn netns(path: &Path) -> Result<(), String> {
    let shown = path.display();
    let meta = fs::metadata(path).map_err(|e| format!("netns '{shown}': {e}"))?;
    // The kernel keeps all namespaces in one file system.
    let known = fs::metadata("/proc/self/ns/net");
    match known.is_ok_and(|own| own.dev() != meta.dev()) {
        true => Err(format!("netns '{shown}': it is no namespace")),
        false => Ok(()),
    }
}

fn is_here(mut at: SocketAddr) -> Result<(), String> {
    // Any port will do: a router may have its own already.
    at.set_port(0);
    UdpSocket::bind(at).map(drop).map_err(|e| format!("address {}: {e}", at.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddrV6;
    use std::path::PathBuf;

    /// A policy in a folder of its own, which `DIR` stands for.
    fn faults(name: &str, text: &str, before: impl Fn(&Path)) -> Vec<String> {
        let dir = std::env::temp_dir().join(format!("gdrc-check-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).unwrap();
        before(&dir);
        let shown = dir.to_str().unwrap();
        let file: PathBuf = dir.join("policy.toml");
        fs::write(&file, text.replace("DIR", shown)).unwrap();
        let begin = format!("{}: ", file.display());
        let all = check(&file);
        fs::remove_dir_all(&dir).unwrap();
        let cut = |f: &String| f.strip_prefix(&begin).unwrap().replace(shown, "DIR");
        all.iter().map(cut).collect()
    }

    #[test]
    fn each_missing_thing_is_named_with_its_place() {
        let text = "\
[router]
listen = \"DIR/file/router.gdrc\"
admin = \"DIR/file\"
key = \"DIR/folder\"
metrics = \"192.0.2.77:9100\"
metrics_from = [\"192.0.2.0/24\"]
[host]
id = \"a\"
address = \"192.0.2.78\"
map = \"feed\"
feed = \"DIR/new/feed.sock\"
[tenant.blue]
match = { uid = \"no-such-user\", netns = \"DIR/nowhere\" }
[tenant.red]
match = { netns = \"DIR/file\" }
[tenant.green]
match = { uid = \"root\", netns = \"/proc/self/ns/net\" }
[tenant.own]
listen = \"DIR/t/own/tenant.gdrc\"
";
        let all = faults("all", text, |dir| {
            fs::write(dir.join("file"), "x").unwrap();
            fs::create_dir(dir.join("folder")).unwrap();
        });
        let expected = [
            "line 2, column 10: 'DIR/file/router.gdrc': 'DIR/file' is no folder",
            "line 3, column 9: 'DIR/file': there is a file, and no socket",
            "line 4, column 7: 'DIR/folder': it is no regular file",
            "line 5, column 11: address 192.0.2.77: ",
            "line 9, column 11: address 192.0.2.78: ",
            "line 13, column 17: uid 'no-such-user': there is no user of this name",
            "line 13, column 41: netns 'DIR/nowhere': No such file",
            "line 15, column 19: netns 'DIR/file': it is no namespace",
        ];
        assert_eq!(all.len(), expected.len(), "{all:#?}");
        for (said, expected) in all.iter().zip(expected) {
            assert!(said.starts_with(expected), "{said}, not {expected}");
        }
    }

    #[test]
    fn a_link_local_address_keeps_its_interface() {
        let all = host_references("[router]\nmetrics = \"[fe80::1%2]:9100\"").unwrap();
        let things: Vec<&HostObject> = all.iter().map(|reference| &reference.object).collect();
        assert_eq!(things, [&HostObject::Address("[fe80::1%2]:9100".parse().unwrap())]);
        if UdpSocket::bind("[::1]:0").is_err() {
            gdrcore_testkit::skip!("this kernel has no IPv6");
        }
        // No interface has it; a link-local address without one is invalid.
        let at = |scope| SocketAddrV6::new("fe80::1:2:3:4".parse().unwrap(), 9100, 0, scope);
        let why = |scope| is_here(at(scope).into()).unwrap_err();
        assert_ne!(why(1), why(0));
    }

    #[test]
    fn a_fault_of_the_text_comes_first_and_nothing_missing_is_fine() {
        assert_eq!(faults("text", "[router]\nlisten = \"x\"", |_| ()).len(), 1);
        assert_eq!(faults("fine", "[tenant.a]\nlisten = \"DIR/a\"", |_| ()), [""; 0]);
        assert_eq!(check(Path::new("/nowhere/at.all")).len(), 1);
    }
}
