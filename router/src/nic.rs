//! RoCE devices of the host that have the router's address. A NIC, or rxe, takes UDP 4791 of its
//! own addresses before any socket, so a router there would receive nothing.

use gdrcore_net::addr::{Endpoint, ROCE_PORT};
use std::fs;
use std::net::Ipv6Addr;
use std::path::Path;

/// Where the kernel lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// Checks that no RoCE device of this host has the router's address.
///
/// # Errors
/// The device, in words.
pub fn check(at: &Endpoint) -> Result<(), String> {
    check_in(Path::new(DEVICES), at)
}

fn check_in(devices: &Path, at: &Endpoint) -> Result<(), String> {
    if at.port != ROCE_PORT {
        return Ok(());
    }
    for device in names(devices) {
        let ports = devices.join(&device).join("ports");
        for port in names(&ports) {
            let gids = ports.join(&port).join("gids");
            for index in names(&gids) {
                let text = fs::read_to_string(gids.join(&index)).unwrap_or_default();
                let gid: Option<Ipv6Addr> = text.trim().parse().ok();
                if gid.is_some_and(|gid| gid.octets() == at.ip) {
                    return Err(format!(
                        "[host] {at}: the RoCE device {device} has this address (port {port}, GID \
                         {index}) and takes its packets before any socket: give the router \
                         another address of the host, or, between routers only, another port"
                    ));
                }
            }
        }
    }
    Ok(())
}

/// The names in a folder, in order; none where there is no folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut all: Vec<String> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_the_address_is_named() {
        let root = std::env::temp_dir().join(format!("gdrc-nic-{}", std::process::id()));
        let gids = root.join("mlx5_0/ports/1/gids");
        fs::create_dir_all(&gids).unwrap();
        fs::create_dir_all(root.join("empty")).unwrap();
        fs::write(gids.join("0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n").unwrap();
        fs::write(gids.join("3"), "0000:0000:0000:0000:0000:ffff:c000:0201\n").unwrap();
        fs::write(gids.join("4"), "no gid\n").unwrap();
        let at = |last, port| Endpoint::v4([192, 0, 2, last], port);
        let conflict = check_in(&root, &at(1, 4791)).unwrap_err();
        assert!(conflict.contains("mlx5_0") && conflict.contains("GID 3"), "{conflict}");
        assert_eq!(check_in(&root, &at(2, 4791)), Ok(()));
        assert_eq!(check_in(&root, &at(1, 4793)), Ok(()), "another port");
        assert_eq!(check_in(&root.join("nowhere"), &at(1, 4791)), Ok(()));
        fs::remove_dir_all(&root).unwrap();
    }
}
