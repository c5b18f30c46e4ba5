//! The tree of names: folders, files and links that the kernel would make for the devices, as a map
//! from path to node.
//!
//! Every path is canonical: below `/sys/devices` and `/dev`, and below the two class folders.
//! Programs parse the last component of `/sys/class/infiniband/<device>/device` as a PCI address,
//! and group devices by it. So a device's own folder is that of a PCI device which does not exist,
//! one for each network interface.

use crate::gids;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The folder of RDMA devices, and that of their files for libibverbs.
pub const CLASS: &str = "/sys/class/infiniband";
pub const CLASS_VERBS: &str = "/sys/class/infiniband_verbs";
/// The kernel's folder of device files.
pub const FILES: &str = "/dev/infiniband";
/// The PCI domain of the folders, which no machine has, and the rest of their addresses.
const DOMAIN: u32 = 0x9d00;
/// The folder of files for libibumad.
pub const CLASS_MAD: &str = "/sys/class/infiniband_mad";
/// Numbers of the device files, as in the kernel. The first file for libibumad has the minor number
/// 0.
const MAJOR: u32 = 231;
const UVERBS_MINOR: u32 = 192;

/// A name of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// A folder. `merged`: it also contains the kernel's names.
    Folder { merged: bool },
    /// A file that can be read.
    File(Content),
    /// A symbolic link, with its target in the kernel's form.
    Link(String),
    /// A character device.
    Device { major: u32, minor: u32 },
}

/// The contents of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Text(String),
    /// Nothing: a read of the file fails with EINVAL.
    Unreadable,
    /// A text that depends on the port of the device with this index.
    Port {
        device: u32,
        file: PortFile,
    },
    /// A counter of the device with this index, by its name in `gdrcore_core::counters`, divided by
    /// `unit`.
    Counter {
        device: u32,
        name: &'static str,
        unit: u64,
    },
}

/// A file of a port whose contents depend on the port's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortFile {
    State,
    PhysState,
    /// A GID; zeros while the machine does not have the address.
    Gid(String),
    /// An attribute of a GID; unreadable while the machine does not have the address.
    OfGid(String),
}

impl PortFile {
    /// The text; `None`: it cannot be read.
    pub fn text(&self, is_up: bool, has_gid: bool) -> Option<String> {
        let text = match self {
            PortFile::State => if is_up { "4: ACTIVE" } else { "1: DOWN" }.into(),
            PortFile::PhysState => if is_up { "5: LinkUp" } else { "3: Disabled" }.into(),
            PortFile::Gid(_) if !has_gid => groups(&[0; 16]),
            PortFile::OfGid(_) if !has_gid => return None,
            PortFile::Gid(text) | PortFile::OfGid(text) => text.clone(),
        };
        Some(text + "\n")
    }
}

/// The facts of a device that the tree shows.
#[derive(Clone, Debug, Default)]
pub struct DeviceFacts {
    /// Its place in the list: `gdrc<index>`.
    pub index: u32,
    /// The number of its `uverbs` file.
    pub uverbs: u32,
    /// The number of its `umad` file.
    pub umad: u32,
    pub guid: u64,
    pub gid: [u8; 16],
    pub lid: u16,
    pub interface: Option<Interface>,
}

/// The network interface that has a device's address.
#[derive(Clone, Debug, Default)]
pub struct Interface {
    pub name: String,
    /// Its own folder below `/sys/devices`, if the kernel shows it.
    pub folder: Option<String>,
    /// The folder of its hardware, if there is any.
    pub hardware: Option<String>,
    /// The NUMA node in that folder, or −1.
    pub numa_node: i32,
}

/// The map of all names.
#[derive(Debug, Default)]
pub struct Tree(BTreeMap<String, Node>);

/// A counter of a port: in `ports/1/counters`, and in answers to performance queries.
pub struct PortCounter {
    /// The file's name.
    pub file: &'static str,
    /// Our counter. Empty: an event that a software device does not have.
    pub name: &'static str,
    pub unit: u64,
    /// Offset and bytes in PortCounters (IBTA 16.1.3.5), and in PortCountersExtended. No bytes: the
    /// counter is not there, or is a part of a byte, and always 0.
    pub at: (usize, usize),
    pub extended: (usize, usize),
}

const fn counter(
    file: &'static str,
    name: &'static str,
    unit: u64,
    at: (usize, usize),
    extended: (usize, usize),
) -> PortCounter {
    PortCounter { file, name, unit, at, extended }
}

/// All of them.
pub const PORT_COUNTERS: &[PortCounter] = &[
    counter("port_xmit_data", "sent_bytes", 4, (24, 4), (8, 8)),
    counter("port_rcv_data", "rcvd_bytes", 4, (28, 4), (16, 8)),
    counter("port_xmit_packets", "sent_pkts", 1, (32, 4), (24, 8)),
    counter("port_rcv_packets", "rcvd_pkts", 1, (36, 4), (32, 8)),
    counter("port_rcv_errors", "rcvd_malformed", 1, (8, 2), (0, 0)),
    counter("port_xmit_discards", "send_err", 1, (14, 2), (0, 0)),
    counter("symbol_error", "", 1, (4, 2), (0, 0)),
    counter("link_downed", "", 1, (7, 1), (0, 0)),
    counter("link_error_recovery", "", 1, (6, 1), (0, 0)),
    counter("local_link_integrity_errors", "", 1, (0, 0), (0, 0)),
    counter("excessive_buffer_overrun_errors", "", 1, (0, 0), (0, 0)),
    counter("port_rcv_remote_physical_errors", "", 1, (10, 2), (0, 0)),
    counter("port_rcv_switch_relay_errors", "", 1, (12, 2), (0, 0)),
    counter("port_xmit_constraint_errors", "", 1, (16, 1), (0, 0)),
    counter("port_rcv_constraint_errors", "", 1, (17, 1), (0, 0)),
    counter("VL15_dropped", "", 1, (22, 2), (0, 0)),
];

/// Bytes in the kernel's format of GUIDs and GIDs: groups of 16 bits.
fn groups(bytes: &[u8]) -> String {
    let all: Vec<String> =
        bytes.chunks_exact(2).map(|b| format!("{:02x}{:02x}", b[0], b[1])).collect();
    all.join(":")
}

/// The relative path from a folder to a path, both absolute. Programs take the last component of
/// `device`. So, as in the kernel, the result ends in the path's own name even if it leads to a
/// folder above.
fn relative(from: &str, to: &str) -> String {
    let (from, to): (Vec<&str>, Vec<&str>) = (from.split('/').collect(), to.split('/').collect());
    let same = from.iter().zip(&to[..to.len() - 1]).take_while(|(a, b)| a == b).count();
    let up = from[same..].iter().map(|_| "..");
    up.chain(to[same..].iter().copied()).collect::<Vec<_>>().join("/")
}

impl Tree {
    /// The tree of these devices. `cpus`: the online processors, as in
    /// `/sys/devices/system/cpu/online`.
    pub fn new(devices: &[DeviceFacts], cpus: &str) -> Tree {
        let mut t = Tree::default();
        for folder in [CLASS, CLASS_VERBS, CLASS_MAD, FILES] {
            t.put(folder, Node::Folder { merged: true });
        }
        t.put(&format!("{FILES}/rdma_cm"), Node::Device { major: 0, minor: 0 });
        t.text(CLASS_VERBS, "abi_version", "6");
        t.text(CLASS_MAD, "abi_version", "5");
        for d in devices {
            let same = |o: &&DeviceFacts| {
                o.interface.as_ref().map(|i| &i.name) == d.interface.as_ref().map(|i| &i.name)
            };
            // Each device without an interface has a folder of its own.
            let first = devices.iter().find(same).filter(|_| d.interface.is_some()).unwrap_or(d);
            let card = card(first.index);
            if first.index == d.index {
                t.card(&card, d.interface.as_ref(), cpus);
            }
            t.device(&card, d);
        }
        t
    }

    /// The name at a canonical path; `None`: no name of ours.
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.0.get(path)
    }

    /// The names in a folder.
    pub fn list<'a>(&'a self, folder: &'a str) -> impl Iterator<Item = (&'a str, &'a Node)> {
        let front = format!("{folder}/");
        let below =
            self.0.range(front.clone()..).take_while(move |(path, _)| path.starts_with(&front));
        below.filter_map(|(path, node)| {
            let name = &path[folder.len() + 1..];
            (!name.contains('/')).then_some((name, node))
        })
    }

    fn put(&mut self, path: &str, node: Node) {
        self.0.insert(path.into(), node);
    }

    fn folder(&mut self, path: &str) {
        self.put(path, Node::Folder { merged: false });
    }

    fn text(&mut self, folder: &str, name: &str, text: &str) {
        self.put(&format!("{folder}/{name}"), Node::File(Content::Text(format!("{text}\n"))));
    }

    fn link(&mut self, folder: &str, name: &str, to: &str) {
        self.put(&format!("{folder}/{name}"), Node::Link(relative(folder, to)));
    }

    /// The folder of a PCI device.
    fn card(&mut self, card: &str, interface: Option<&Interface>, cpus: &str) {
        let (root, slot) = card.rsplit_once('/').unwrap_or(("", card));
        self.folder(root);
        self.folder(card);
        self.text(card, "class", "0x020000");
        self.text(card, "uevent", &format!("PCI_CLASS=20000\nPCI_SLOT_NAME={slot}"));
        self.text(card, "numa_node", &interface.map_or(-1, |i| i.numa_node).to_string());
        if let Some(mask) = cpu_mask(cpus) {
            self.text(card, "local_cpulist", cpus);
            self.text(card, "local_cpus", &mask);
        }
        self.link(card, "subsystem", "/sys/bus/pci");
        for class in ["infiniband", "infiniband_verbs", "infiniband_mad"] {
            self.folder(&format!("{card}/{class}"));
        }
        let net = format!("{card}/net");
        self.folder(&net);
        let Some(i) = interface else { return };
        let Some(own) = &i.folder else {
            // The kernel does not show interfaces of another network namespace.
            return self.folder(&format!("{net}/{}", i.name));
        };
        self.link(&net, &i.name, own);
        match &i.hardware {
            None => self.link(own, "device", card),
            Some(hardware) => {
                for class in ["infiniband", "infiniband_verbs", "infiniband_mad"] {
                    self.link(hardware, class, &format!("{card}/{class}"));
                }
            }
        }
    }

    fn device(&mut self, card: &str, d: &DeviceFacts) {
        let (name, node) = (format!("gdrc{}", d.index), format!("uverbs{}", d.uverbs));
        let (major, minor) = (MAJOR, UVERBS_MINOR + d.uverbs);
        self.put(&format!("{FILES}/{node}"), Node::Device { major, minor });

        let verbs = format!("{card}/infiniband_verbs/{node}");
        self.link(CLASS_VERBS, &node, &verbs);
        self.folder(&verbs);
        self.text(&verbs, "ibdev", &name);
        self.text(&verbs, "abi_version", "1");
        self.text(&verbs, "dev", &format!("{major}:{minor}"));
        self.text(
            &verbs,
            "uevent",
            &format!("MAJOR={major}\nMINOR={minor}\nDEVNAME=infiniband/{node}"),
        );
        self.link(&verbs, "device", card);
        self.link(&verbs, "subsystem", CLASS_VERBS);

        let (node, minor) = (format!("umad{}", d.umad), d.umad);
        self.put(&format!("{FILES}/{node}"), Node::Device { major, minor });
        let mads = format!("{card}/infiniband_mad/{node}");
        self.link(CLASS_MAD, &node, &mads);
        self.folder(&mads);
        self.text(&mads, "ibdev", &name);
        self.text(&mads, "port", "1");
        self.text(&mads, "dev", &format!("{major}:{minor}"));
        self.link(&mads, "device", card);
        self.link(&mads, "subsystem", CLASS_MAD);

        let own = format!("{card}/infiniband/{name}");
        self.link(CLASS, &name, &own);
        self.folder(&own);
        let version = env!("CARGO_PKG_VERSION");
        let guid = groups(&d.guid.to_be_bytes());
        for (file, text) in [
            ("node_type", "1: CA"),
            ("node_guid", &guid),
            ("sys_image_guid", &guid),
            ("node_desc", &name),
            ("fw_ver", version),
            ("hw_rev", "0"),
            ("hca_type", "gdrcore"),
            ("board_id", "gdrcore_soft"),
            ("uevent", &format!("NAME={name}")),
        ] {
            self.text(&own, file, text);
        }
        self.link(&own, "device", card);
        self.link(&own, "subsystem", CLASS);
        self.folder(&format!("{own}/ports"));
        self.port(&format!("{own}/ports/1"), d);
    }

    fn port(&mut self, port: &str, d: &DeviceFacts) {
        self.folder(port);
        for (file, text) in [
            ("link_layer", "Ethernet"),
            // As ibv_query_port: one lane of FDR10.
            ("rate", "10 Gb/sec (1X FDR10)"),
            ("cap_mask", "0x04010000"),
            ("lid", &format!("{:#x}", d.lid)),
            ("lid_mask_count", "0"),
            ("sm_lid", "0x0"),
            ("sm_sl", "0"),
        ] {
            self.text(port, file, text);
        }
        self.of_port(&format!("{port}/state"), d.index, PortFile::State);
        self.of_port(&format!("{port}/phys_state"), d.index, PortFile::PhysState);
        let [gids, attrs, pkeys, counters, hw] =
            ["gids", "gid_attrs", "pkeys", "counters", "hw_counters"]
                .map(|f| format!("{port}/{f}"));
        let [types, ndevs] = ["types", "ndevs"].map(|f| format!("{attrs}/{f}"));
        for folder in [&gids, &attrs, &types, &ndevs, &pkeys, &counters, &hw] {
            self.folder(folder);
        }
        self.text(&pkeys, "0", "0xffff");
        for index in 0..gids::LEN {
            let n = index.to_string();
            let Ok(Some(kind)) = gids::entry(index) else {
                // As the kernel shows an unused entry.
                self.text(&gids, &n, &groups(&[0; 16]));
                for folder in [&types, &ndevs] {
                    self.put(&format!("{folder}/{n}"), Node::File(Content::Unreadable));
                }
                continue;
            };
            self.of_port(&format!("{gids}/{n}"), d.index, PortFile::Gid(groups(&d.gid)));
            let of_gid = PortFile::OfGid(kind.name().into());
            self.of_port(&format!("{types}/{n}"), d.index, of_gid);
            if let Some(i) = &d.interface {
                let of_gid = PortFile::OfGid(i.name.clone());
                self.of_port(&format!("{ndevs}/{n}"), d.index, of_gid);
            }
        }
        for c in PORT_COUNTERS {
            match c.name {
                "" => self.text(&counters, c.file, "0"),
                name => self.counter(&counters, c.file, d.index, name, c.unit),
            }
        }
        for name in gdrcore_core::counters::Counters::NAMES {
            self.counter(&hw, name, d.index, name, 1);
        }
    }

    fn of_port(&mut self, path: &str, device: u32, file: PortFile) {
        self.put(path, Node::File(Content::Port { device, file }));
    }

    fn counter(&mut self, folder: &str, file: &str, device: u32, name: &'static str, unit: u64) {
        self.put(&format!("{folder}/{file}"), Node::File(Content::Counter { device, name, unit }));
    }
}

/// The folder of the PCI device whose first RDMA device has this index.
fn card(index: u32) -> String {
    let (domain, bus) = (DOMAIN | index >> 8 & 0xff, index & 0xff);
    format!("/sys/devices/pci{domain:04x}:{bus:02x}/{domain:04x}:{bus:02x}:00.0")
}

/// Converts a list of processors such as `0-3,8` to the kernel's mask: words of 32 bits, the
/// highest first.
fn cpu_mask(list: &str) -> Option<String> {
    let mut words: Vec<u32> = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if last >= 1 << 16 {
            return None;
        }
        for cpu in first..=last {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            words[cpu / 32] |= 1 << (cpu % 32);
        }
    }
    let mut mask = String::new();
    for (n, word) in words.iter().rev().enumerate() {
        match n {
            0 => write!(mask, "{word:x}"),
            _ => write!(mask, ",{word:08x}"),
        }
        .ok()?;
    }
    Some(mask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_as_a_mask() {
        assert_eq!(cpu_mask("0-1").as_deref(), Some("3"));
        assert_eq!(cpu_mask("0-3,32-34,64").as_deref(), Some("1,00000007,0000000f"));
        for bad in ["", "x", "1-", "0-99999999999", "0-100000"] {
            assert_eq!(cpu_mask(bad), None, "{bad}");
        }
    }

    #[test]
    fn links_lead_where_the_kernels_do() {
        assert_eq!(relative(CLASS, "/sys/devices/pci1:00/a"), "../../devices/pci1:00/a");
        assert_eq!(relative("/sys/devices/a/infiniband/g", "/sys/devices/a"), "../../../a");
        assert_eq!(relative("/sys/a", "/sys/a/b"), "b");
    }

    #[test]
    fn folders_of_pci_devices_are_apart_and_have_the_mark() {
        let all: std::collections::BTreeSet<String> = (0..1000).map(card).collect();
        assert_eq!(all.len(), 1000);
        // The preloaded library asks about no other names in `/sys/devices`.
        assert!(card(0).contains("/pci9d") && card(255).contains("/pci9d"));
    }
}
