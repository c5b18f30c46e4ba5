//! The distance of NICs and GPUs: the parts of PCIe that they share, read from sysfs.
//!
//! The path of a PCI device below `/sys/devices` names every bridge between it and the processor,
//! so two paths show the parts that two devices share. A transfer that stays below one switch never
//! crosses the root complex.

use std::fs;
use std::path::{Path, PathBuf};

use crate::device::Bdf;

/// The PCIe part that a NIC and a GPU share (gdrc_topology_pair.near), the nearest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum Near {
    /// Nothing but the machine.
    System = 0,
    /// The NUMA node: memory controller, not PCIe.
    NumaNode = 1,
    /// The root complex: different root ports.
    HostBridge = 2,
    /// A root port.
    RootPort = 3,
    /// A PCIe switch.
    Switch = 4,
    /// One bridge, directly below it.
    Bridge = 5,
}

/// A network device with a PCI address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Its RDMA device, else its network interface.
    pub name: String,
    /// Its first network interface; empty if it has none.
    pub netdev: String,
    /// Where it is.
    pub place: PciPlace,
}

/// A GPU: a PCI display device (class 03).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// PCI class, 24 bits: 0x030200 is a 3D controller.
    pub class: u32,
    /// PCI vendor.
    pub vendor: u16,
    /// PCI device.
    pub device: u16,
    /// PCI revision.
    pub revision: u8,
    /// Where it is.
    pub place: PciPlace,
}

/// Where a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciPlace {
    /// PCI address.
    pub bdf: Bdf,
    /// NUMA node; −1 if the machine has none or does not report it.
    pub numa_node: i32,
    /// Root complex.
    root: String,
    /// Bridges from the root port down.
    bridges: Vec<Bdf>,
}

impl PciPlace {
    /// The place of a device's folder below `/sys`, with symbolic links followed. `None`: it is not
    /// on PCI.
    fn read(folder: &Path) -> Option<PciPlace> {
        let path = fs::canonicalize(folder).ok()?;
        let parts: Vec<&str> = path.iter().filter_map(|p| p.to_str()).collect();
        let at = parts.iter().rposition(|p| p.starts_with("pci") && p.contains(':'))?;
        // Below the PCI function there may be further folders (virtio).
        let mut bridges: Vec<Bdf> = parts[at + 1..].iter().map_while(|p| Bdf::parse(p)).collect();
        let bdf = bridges.pop()?;
        let folder: PathBuf = parts[..at + 2 + bridges.len()].iter().collect();
        let numa_node = text(&folder, "numa_node").and_then(|t| t.parse().ok()).unwrap_or(-1);
        Some(PciPlace { bdf, numa_node, root: parts[at].to_string(), bridges })
    }

    /// The part that it shares with another device.
    pub fn nearness(&self, other: &PciPlace) -> Near {
        if self.root != other.root {
            let same = self.numa_node >= 0 && self.numa_node == other.numa_node;
            return if same { Near::NumaNode } else { Near::System };
        }
        let shared = self.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
        match shared {
            0 => Near::HostBridge,
            n if n == self.bridges.len() && n == other.bridges.len() => Near::Bridge,
            1 => Near::RootPort,
            _ => Near::Switch,
        }
    }
}

fn text(folder: &Path, file: &str) -> Option<String> {
    fs::read_to_string(folder.join(file)).ok().map(|t| t.trim().to_string())
}

/// Reads a hexadecimal number with 0x, as sysfs writes them.
fn hex(folder: &Path, file: &str) -> Option<u32> {
    u32::from_str_radix(text(folder, file)?.strip_prefix("0x")?, 16).ok()
}

/// Names in a folder, sorted; none where there is no such folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|e| e.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// The NICs below a sysfs root: RDMA devices first, then network interfaces that belong to none of
/// them.
pub fn nics(sysfs: &Path) -> Vec<Nic> {
    let mut found: Vec<Nic> = Vec::new();
    let rdma = sysfs.join("class/infiniband");
    for name in names(&rdma) {
        let device = rdma.join(&name).join("device");
        if let Some(place) = PciPlace::read(&device) {
            let netdev = names(&device.join("net")).into_iter().next().unwrap_or_default();
            found.push(Nic { name, netdev, place });
        }
    }
    let net = sysfs.join("class/net");
    for name in names(&net) {
        let Some(place) = PciPlace::read(&net.join(&name).join("device")) else { continue };
        if !found.iter().any(|n| n.place.bdf == place.bdf) {
            found.push(Nic { netdev: name.clone(), name, place });
        }
    }
    found
}

/// The GPUs below a sysfs root, by PCI address.
pub fn gpus(sysfs: &Path) -> Vec<Gpu> {
    let devices = sysfs.join("bus/pci/devices");
    let gpu = |name: String| {
        let folder = devices.join(name);
        let class = hex(&folder, "class").filter(|c| c >> 16 == 3)?;
        Some(Gpu {
            class,
            vendor: hex(&folder, "vendor")? as u16,
            device: hex(&folder, "device")? as u16,
            revision: hex(&folder, "revision").unwrap_or(0) as u8,
            place: PciPlace::read(&folder)?,
        })
    };
    names(&devices).into_iter().filter_map(gpu).collect()
}

/// Every NIC with every GPU; for each NIC the nearest GPU first.
pub fn pairs(sysfs: &Path) -> Vec<(Nic, Gpu, Near)> {
    let gpus = gpus(sysfs);
    let mut pairs = Vec::new();
    for nic in nics(sysfs) {
        let mut of_nic: Vec<_> =
            gpus.iter().map(|g| (nic.clone(), g.clone(), nic.place.nearness(&g.place))).collect();
        of_nic.sort_by(|a, b| b.2.cmp(&a.2).then(a.1.place.bdf.cmp(&b.1.place.bdf)));
        pairs.append(&mut of_nic);
    }
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs tree of the test, removed when dropped.
    struct Tree(PathBuf);

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    impl Tree {
        fn new(name: &str) -> Tree {
            let root = std::env::temp_dir()
                .join(format!("gdrcore-topology-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            for folder in ["class/infiniband", "class/net", "bus/pci/devices"] {
                fs::create_dir_all(root.join(folder)).unwrap();
            }
            Tree(root)
        }

        /// A PCI device at a path below devices/.
        fn device(&self, path: &str, class: &str, numa: i32) -> PathBuf {
            let folder = self.0.join("devices").join(path);
            fs::create_dir_all(&folder).unwrap();
            for (file, value) in [
                ("class", class),
                ("vendor", "0x10de"),
                ("device", "0x1db8"),
                ("revision", "0xa1"),
                ("numa_node", &numa.to_string()),
            ] {
                fs::write(folder.join(file), format!("{value}\n")).unwrap();
            }
            let name = folder.file_name().unwrap().to_owned();
            symlink(&folder, self.0.join("bus/pci/devices").join(name)).unwrap();
            folder
        }

        fn rdma(&self, name: &str, folder: &Path, netdev: &str) {
            fs::create_dir_all(folder.join("infiniband").join(name)).unwrap();
            fs::create_dir_all(folder.join("net").join(netdev)).unwrap();
            symlink(folder, folder.join("infiniband").join(name).join("device")).unwrap();
            symlink(folder, folder.join("net").join(netdev).join("device")).unwrap();
            symlink(
                folder.join("infiniband").join(name),
                self.0.join("class/infiniband").join(name),
            )
            .unwrap();
            symlink(folder.join("net").join(netdev), self.0.join("class/net").join(netdev))
                .unwrap();
        }
    }

    #[test]
    fn every_kind_of_nearness_is_found() {
        let t = Tree::new("kinds");
        let switch = "pci0000:b0/0000:b0:02.0/0000:b1:00.0";
        let nic = t.device(&format!("{switch}/0000:b2:04.0/0000:b5:00.0"), "0x020000", 1);
        t.rdma("mlx5_12", &nic, "ens5f0");
        let gpus = [
            (format!("{switch}/0000:b2:08.0/0000:b7:00.0"), 1, Near::Switch),
            (format!("{switch}/0000:b2:04.0/0000:b5:00.1"), 1, Near::Bridge),
            ("pci0000:b0/0000:b0:02.0/0000:c1:00.0".to_string(), 1, Near::RootPort),
            ("pci0000:b0/0000:b0:04.0/0000:c2:00.0".to_string(), 1, Near::HostBridge),
            ("pci0000:d0/0000:d0:04.0/0000:d2:00.0".to_string(), 1, Near::NumaNode),
            ("pci0000:10/0000:10:04.0/0000:12:00.0".to_string(), 0, Near::System),
        ];
        for (path, numa, _) in &gpus {
            t.device(path, "0x030200", *numa);
        }
        // An NVMe drive is no GPU, and neither is a bridge.
        t.device("pci0000:10/0000:10:05.0/0000:13:00.0", "0x010802", 0);
        let found = pairs(&t.0);
        assert_eq!(found.len(), gpus.len());
        for (path, _, near) in &gpus {
            let bdf = Bdf::parse(path.rsplit('/').next().unwrap());
            let pair = found.iter().find(|p| Some(p.1.place.bdf) == bdf).unwrap();
            assert_eq!(
                (pair.2, pair.0.name.as_str(), pair.0.netdev.as_str()),
                (*near, "mlx5_12", "ens5f0"),
                "{path}"
            );
        }
        assert!(found.windows(2).all(|w| w[0].2 >= w[1].2), "the nearest first");
        let v = &found.iter().find(|p| p.2 == Near::Switch).unwrap().1;
        assert_eq!((v.class, v.vendor, v.device, v.revision), (0x030200, 0x10de, 0x1db8, 0xa1));
    }

    #[test]
    fn a_plain_interface_counts_and_a_machine_with_nothing_has_nothing() {
        let t = Tree::new("plain");
        let nic = t.device("pci0000:00/0000:00:03.0", "0x020000", -1);
        // As with virtio: the interface is in the folder of a device of its own.
        let virtio = nic.join("virtio0");
        fs::create_dir_all(virtio.join("net/eth0")).unwrap();
        symlink(&virtio, virtio.join("net/eth0/device")).unwrap();
        symlink(virtio.join("net/eth0"), t.0.join("class/net/eth0")).unwrap();
        fs::create_dir_all(t.0.join("class/net/lo")).unwrap();
        let found = nics(&t.0);
        assert_eq!(found.len(), 1);
        assert_eq!(
            (found[0].name.as_str(), found[0].place.bdf.to_string().as_str()),
            ("eth0", "0000:00:03.0")
        );
        assert_eq!((pairs(&t.0).len(), gpus(&t.0).len()), (0, 0));
        assert!(
            nics(Path::new("/nonexistent")).is_empty()
                && gpus(Path::new("/nonexistent")).is_empty()
        );
    }
}
