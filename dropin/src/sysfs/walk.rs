//! Resolves a path through names and links of ours and of the kernel, `.` and `..`.

use super::tree::{Node, Tree};
use core::ffi::c_int;

/// Most links in a path, as in the kernel.
const LINKS_MAX: usize = 40;
/// Longest path.
const PATH_MAX: usize = 4096;

/// The kernel's own names.
pub trait Kernel {
    /// The target of a symbolic link; `None`: the name is not a link.
    fn read_link(&self, path: &str) -> Option<String>;
}

/// The result of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// No name of ours: the kernel gets the path unchanged.
    Nothing,
    /// A name of the kernel, by this path.
    Moved(String),
    /// A name of ours, by its canonical path.
    Ours(String, Node),
}

/// Looks up an absolute path. `follow`: a link at the end is followed.
///
/// # Errors
/// A positive errno, for names below folders of ours.
pub fn resolve(
    tree: &Tree,
    kernel: &dyn Kernel,
    path: &str,
    follow: bool,
) -> Result<Resolved, c_int> {
    if !path.starts_with('/') || path.len() >= PATH_MAX {
        return Ok(Resolved::Nothing);
    }
    // A slash at the end requires a folder.
    let folder = path.ends_with('/');
    let (at, ours) = walk(tree, kernel, path, follow || folder)?;
    match tree.get(&at) {
        Some(Node::File(_) | Node::Device { .. }) if folder => Err(libc::ENOTDIR),
        Some(node) => Ok(Resolved::Ours(at, node.clone())),
        None if ours => Ok(Resolved::Moved(if at.is_empty() { "/".into() } else { at })),
        None => Ok(Resolved::Nothing),
    }
}

/// The canonical form of a path of the kernel, whether it exists or not.
pub fn canonical(kernel: &dyn Kernel, path: &str) -> Option<String> {
    walk(&Tree::default(), kernel, path, true).ok().map(|(at, _)| at)
}

/// The target of a path, and whether a link of ours led there. The kernel does not find such a
/// target by the program's path.
fn walk(
    tree: &Tree,
    kernel: &dyn Kernel,
    path: &str,
    follow: bool,
) -> Result<(String, bool), c_int> {
    // The remaining components, the next one last.
    let mut rest: Vec<String> = Vec::new();
    push(&mut rest, path);
    let mut at = String::new();
    let mut links = 0;
    let mut ours = false;
    while let Some(name) = rest.pop() {
        let inside = tree.get(&at);
        if matches!(inside, Some(Node::File(_) | Node::Device { .. })) {
            return Err(libc::ENOTDIR);
        }
        match name.as_str() {
            "." => continue,
            ".." => {
                at.truncate(at.rfind('/').unwrap_or(0));
                continue;
            }
            _ => {}
        }
        let next = format!("{at}/{name}");
        let followed = follow || !rest.is_empty();
        let node = tree.get(&next);
        let target = match node {
            Some(Node::Link(target)) if followed => Some(target.clone()),
            Some(_) => None,
            None if matches!(inside, Some(Node::Folder { merged: false })) => {
                return Err(libc::ENOENT)
            }
            None if followed => kernel.read_link(&next),
            None => None,
        };
        let Some(target) = target else {
            at = next;
            continue;
        };
        links += 1;
        if links > LINKS_MAX || target.len() >= PATH_MAX {
            return Err(libc::ELOOP);
        }
        ours |= node.is_some();
        if target.starts_with('/') {
            at.clear();
        }
        push(&mut rest, &target);
    }
    Ok((at, ours))
}

/// Puts the components of a path before the remaining ones.
fn push(rest: &mut Vec<String>, path: &str) {
    rest.extend(path.split('/').rev().filter(|n| !n.is_empty()).map(str::to_string));
}

#[cfg(test)]
mod tests {
    use super::super::tree::{DeviceFacts, Interface};
    use super::*;

    /// A machine that has a NIC at a PCI address, and a hardware RDMA device.
    struct Machine;

    const NIC: &str = "/sys/devices/pci0000:00/0000:00:03.0";

    impl Kernel for Machine {
        fn read_link(&self, path: &str) -> Option<String> {
            let to = match path {
                "/sys/class/net/eth0" => "../../devices/pci0000:00/0000:00:03.0/net/eth0",
                "/sys/class/net/lo" => "../../devices/virtual/net/lo",
                "/sys/class/infiniband/mlx5_0" => {
                    "../../devices/pci0000:00/0000:00:04.0/infiniband/mlx5_0"
                }
                "/sys/bus/pci/devices/0000:00:03.0" => "../../../devices/pci0000:00/0000:00:03.0",
                "/sys/devices/pci0000:00/0000:00:03.0/net/eth0/device" => "../../../0000:00:03.0",
                "/sys/loop" => "loop",
                _ => return None,
            };
            Some(to.into())
        }
    }

    fn tree() -> Tree {
        let interface = |name: &str, folder: &str, hardware: Option<&str>| Interface {
            name: name.into(),
            folder: Some(folder.into()),
            hardware: hardware.map(str::to_string),
            numa_node: 1,
        };
        let eth0 = interface("eth0", &format!("{NIC}/net/eth0"), Some(NIC));
        let lo = interface("lo", "/sys/devices/virtual/net/lo", None);
        let device = |index, interface: &Interface| DeviceFacts {
            index,
            uverbs: index + 1,
            umad: index + 2,
            interface: Some(interface.clone()),
            ..DeviceFacts::default()
        };
        Tree::new(&[device(0, &eth0), device(1, &lo), device(2, &eth0)], "0-1")
    }

    fn at(path: &str, follow: bool) -> Result<Resolved, c_int> {
        resolve(&tree(), &Machine, path, follow)
    }

    /// The canonical path of a name of ours.
    #[track_caller]
    fn real(path: &str) -> String {
        match at(path, true) {
            Ok(Resolved::Ours(canonical, _)) => canonical,
            other => panic!("{path}: {other:?}"),
        }
    }

    const CARD: &str = "/sys/devices/pci9d00:00/9d00:00:00.0";

    #[test]
    fn a_device_lies_below_a_pci_device() {
        assert_eq!(real("/sys/class/infiniband/gdrc0"), format!("{CARD}/infiniband/gdrc0"));
        // The paths that Mooncake, NCCL and UCX use.
        assert_eq!(real("/sys/class/infiniband/gdrc0/../.."), CARD);
        assert_eq!(real("/sys/class/infiniband/gdrc0/device"), CARD);
        assert_eq!(real("/sys/class/infiniband_verbs/uverbs1/device/"), CARD);
        // Two devices on one interface share a PCI device.
        assert_eq!(real("/sys/class/infiniband/gdrc2/device"), CARD);
        assert_ne!(real("/sys/class/infiniband/gdrc1/device"), CARD);
        assert_eq!(real("//sys/./class/infiniband/../infiniband/gdrc0/ports/1/gids/3"), {
            format!("{CARD}/infiniband/gdrc0/ports/1/gids/3")
        });
    }

    #[test]
    fn the_interface_leads_to_the_device_and_back() {
        let moved = |path: &str| match at(path, true) {
            Ok(Resolved::Moved(to)) => to,
            other => panic!("{path}: {other:?}"),
        };
        assert_eq!(
            moved("/sys/class/infiniband/gdrc0/device/net/eth0/mtu"),
            format!("{NIC}/net/eth0/mtu")
        );
        assert_eq!(
            real("/sys/class/net/eth0/device/infiniband/gdrc2"),
            format!("{CARD}/infiniband/gdrc2")
        );
        assert_eq!(
            real("/sys/bus/pci/devices/0000:00:03.0/infiniband"),
            format!("{CARD}/infiniband")
        );
        // Without hardware, the link is ours.
        assert_eq!(real("/sys/class/net/lo/device"), real("/sys/class/infiniband/gdrc1/device"));
        assert_eq!(at("/sys/class/net/eth0/device", true), Ok(Resolved::Nothing));
        assert_eq!(at("/sys/class/net/eth0/device/vendor", true), Ok(Resolved::Nothing));
    }

    #[test]
    fn links_are_followed_where_they_are_to_be() {
        let Ok(Resolved::Ours(path, Node::Link(to))) = at("/sys/class/infiniband/gdrc0", false)
        else {
            panic!()
        };
        assert_eq!((path.as_str(), to.as_str()), {
            (
                "/sys/class/infiniband/gdrc0",
                "../../devices/pci9d00:00/9d00:00:00.0/infiniband/gdrc0",
            )
        });
        let Ok(Resolved::Ours(_, Node::Link(to))) = at("/sys/class/infiniband/gdrc0/device", false)
        else {
            panic!()
        };
        assert_eq!(to, "../../../9d00:00:00.0");
        assert!(matches!(
            at("/sys/class/infiniband/gdrc0/", false),
            Ok(Resolved::Ours(_, Node::Folder { .. }))
        ));
        assert_eq!(at("/sys/loop/infiniband", true), Err(libc::ELOOP));
    }

    #[test]
    fn the_kernels_devices_stay() {
        assert_eq!(at("/sys/class/infiniband/mlx5_0/ports/1/state", true), Ok(Resolved::Nothing));
        assert_eq!(at("/sys/class/infiniband/nothing", true), Ok(Resolved::Nothing));
        assert_eq!(at("/dev/infiniband/umad0", true), Ok(Resolved::Nothing));
        for path in ["", "infiniband", "/", "/sys", "/sys/class", "/sys/class/net/eth0"] {
            assert_eq!(at(path, true), Ok(Resolved::Nothing), "{path}");
        }
    }

    #[test]
    fn missing_names_are_errors() {
        let gdrc0 = "/sys/class/infiniband/gdrc0";
        for (path, errno) in [
            (format!("{gdrc0}/ports/2"), libc::ENOENT),
            (format!("{gdrc0}/ports/1/gids/16"), libc::ENOENT),
            (format!("{gdrc0}/ports/1/state/x"), libc::ENOTDIR),
            (format!("{gdrc0}/ports/1/state/"), libc::ENOTDIR),
            ("/dev/infiniband/rdma_cm/x".into(), libc::ENOTDIR),
        ] {
            assert_eq!(at(&path, true), Err(errno), "{path}");
        }
        assert_eq!(at(&format!("/{}", "infiniband/".repeat(1000)), true), Ok(Resolved::Nothing));
    }

    #[test]
    fn folders_have_the_names_that_are_in_them() {
        let t = tree();
        let names =
            |folder: &str| t.list(folder).map(|(name, _)| name.to_string()).collect::<Vec<_>>();
        assert_eq!(names("/sys/class/infiniband"), ["gdrc0", "gdrc1", "gdrc2"]);
        assert_eq!(
            names("/dev/infiniband"),
            ["rdma_cm", "umad2", "umad3", "umad4", "uverbs1", "uverbs2", "uverbs3"]
        );
        assert_eq!(names(&format!("{CARD}/infiniband")), ["gdrc0", "gdrc2"]);
        assert_eq!(names(&format!("{CARD}/net")), ["eth0"]);
        for folder in ["gids", "gid_attrs/types", "gid_attrs/ndevs"] {
            let folder = format!("{CARD}/infiniband/gdrc0/ports/1/{folder}");
            assert_eq!(names(&folder).len() as u32, crate::gids::LEN, "{folder}");
        }
        assert!(names("/sys/class").contains(&"infiniband".into()));
        // Every name can be resolved, and every link has a target of ours or of the kernel.
        let mut todo = vec!["/sys/class/infiniband".to_string(), CARD.into()];
        let mut seen = 0;
        while let Some(folder) = todo.pop() {
            for (name, node) in t.list(&folder) {
                let path = format!("{folder}/{name}");
                assert!(
                    matches!(at(&path, true), Ok(Resolved::Ours(..) | Resolved::Moved(_))),
                    "{path}"
                );
                seen += 1;
                if matches!(node, Node::Folder { .. }) {
                    todo.push(path);
                }
            }
        }
        assert!(seen > 100, "{seen}");
    }
}
