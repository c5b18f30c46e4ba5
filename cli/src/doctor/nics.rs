//! RDMA NICs and GPUs of this machine, by sysfs.

use super::{calls, fine, warning, FactSource, Finding};

/// What programs register and the kernel pins by far; less makes `ibv_reg_mr` fail.
const MEMLOCK: u64 = 64 << 20;

pub fn all(facts: &FactSource) -> Vec<Finding> {
    check_nics(facts, calls::limit(libc::RLIMIT_MEMLOCK))
}

fn check_nics(facts: &FactSource, memlock: u64) -> Vec<Finding> {
    let nics = facts.names("sys/class/infiniband");
    let mut all: Vec<Finding> = nics.iter().map(|name| nic(facts, name)).collect();
    if all.is_empty() {
        all.push(fine("nic", "none: the soft device takes its place"));
    } else {
        if !facts.names("dev/infiniband").iter().any(|n| n.starts_with("uverbs")) {
            let seen = "there is no /dev/infiniband/uverbs*: no program can open a NIC";
            let remedy = "modprobe ib_uverbs; containers need --device /dev/infiniband/uverbs0";
            all.push(warning("nic", seen, remedy));
        }
        all.push(locked(memlock));
    }
    all.extend(gpu(facts, !nics.is_empty()));
    all
}

/// A NIC: its driver, the state of its ports, the index that programs take.
fn nic(facts: &FactSource, name: &str) -> Finding {
    let at = format!("sys/class/infiniband/{name}");
    let driver = std::fs::read_link(facts.path(&format!("{at}/device/driver"))).ok();
    let driver = driver.as_deref().and_then(|d| d.file_name()).map(|n| n.to_string_lossy());
    let mut seen = format!("{name} ({})", driver.as_deref().unwrap_or("no driver of a device"));
    let (mut is_dark, mut index) = (false, None);
    for port in facts.names(&format!("{at}/ports")) {
        let state = facts.text(&format!("{at}/ports/{port}/state"));
        let link = facts.text(&format!("{at}/ports/{port}/link_layer"));
        is_dark |= !state.ends_with("ACTIVE");
        seen += &format!(", port {port} {state} ({link})");
        index = index.or_else(|| roce_index(facts, &format!("{at}/ports/{port}")));
    }
    if let Some(index) = index {
        seen += &format!(", RoCE v2 at GID index {index}");
    }
    if is_dark {
        let remedy = "plug it in, ip link set its interface up; `rdma link` tells more";
        return warning("nic", format!("{seen}: not active, nothing leaves"), remedy);
    }
    if index.is_none() && seen.contains("Ethernet") {
        let remedy = "give its interface an IPv4 address: programs need a GID of RoCE v2";
        return warning("nic", format!("{seen}: no GID of RoCE v2"), remedy);
    }
    fine("nic", seen)
}

/// The first GID of RoCE v2 with an IPv4 address, else the first of RoCE v2.
fn roce_index(facts: &FactSource, port: &str) -> Option<u32> {
    let mut all: Vec<(bool, u32)> = facts
        .names(&format!("{port}/gids"))
        .iter()
        .filter(|i| facts.text(&format!("{port}/gid_attrs/types/{i}")) == "RoCE v2")
        .filter_map(|i| {
            let gid = facts.text(&format!("{port}/gids/{i}"));
            Some((!gid.starts_with("0000:0000:0000:0000:0000:ffff:"), i.parse().ok()?))
        })
        .collect();
    all.sort();
    all.first().map(|(_, index)| *index)
}

fn locked(memlock: u64) -> Finding {
    if memlock < MEMLOCK {
        let seen = format!(
            "{} KiB of memory may be locked (memlock): a NIC cannot register more",
            memlock >> 10
        );
        let remedy = "ulimit -l unlimited; LimitMEMLOCK=infinity of a unit; docker's --ulimit \
                      memlock=-1";
        return warning("memlock", seen, remedy);
    }
    fine("memlock", "enough memory may be locked for a NIC")
}

/// NVIDIA's GPUs.
fn gpu(facts: &FactSource, with_nic: bool) -> Option<Finding> {
    let is_gpu =
        |name: &&String| name.strip_prefix("nvidia").is_some_and(|n| n.parse::<u32>().is_ok());
    let count = facts.names("dev").iter().filter(is_gpu).count();
    if count == 0 {
        return None;
    }
    if !with_nic {
        return Some(fine("gpu", format!("{count} without a NIC: their memory is staged")));
    }
    if !facts.path("sys/module/nvidia_peermem").exists() {
        let seen = format!("{count} beside a NIC, and nvidia_peermem is not loaded");
        let remedy = "modprobe nvidia_peermem, where kernel and driver have no dma-buf";
        return Some(warning("gpu", seen, remedy));
    }
    Some(fine("gpu", format!("{count} beside a NIC, with nvidia_peermem")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::Root;
    use super::super::Level;
    use super::*;

    #[test]
    fn a_nic_is_judged_by_sysfs() {
        let root = Root::new("nic", &[]);
        let facts = FactSource { root: &root.0 };
        let levels = |memlock| -> Vec<(&str, Level)> {
            check_nics(&facts, memlock).iter().map(|f| (f.check, f.level)).collect()
        };
        assert_eq!(levels(0), [("nic", Level::Fine)], "memlock is of no interest without a NIC");
        let port = "sys/class/infiniband/mlx5_0/ports/1";
        root.put(&format!("{port}/state"), "4: ACTIVE\n");
        root.put(&format!("{port}/link_layer"), "Ethernet\n");
        root.put("dev/infiniband/uverbs0", "");
        let no_gid = check_nics(&facts, u64::MAX);
        assert!(no_gid[0].seen.contains("no GID of RoCE v2"), "{no_gid:?}");
        for (i, kind, gid) in [
            ("0", "IB/RoCE v1", "fe80:0000:0000:0000:0000:0000:0000:0001"),
            ("1", "RoCE v2", "fe80:0000:0000:0000:0000:0000:0000:0001"),
            ("3", "RoCE v2", "0000:0000:0000:0000:0000:ffff:c000:0201"),
        ] {
            root.put(&format!("{port}/gids/{i}"), gid);
            root.put(&format!("{port}/gid_attrs/types/{i}"), kind);
        }
        let good = check_nics(&facts, u64::MAX);
        assert!(good[0].seen.contains("GID index 3"), "{good:?}");
        assert_eq!(levels(u64::MAX), [("nic", Level::Fine), ("memlock", Level::Fine)]);
        assert_eq!(levels(8 << 20)[1], ("memlock", Level::Warning));
        root.put("dev/nvidia0", "");
        assert_eq!(levels(u64::MAX)[2], ("gpu", Level::Warning));
        root.put("sys/module/nvidia_peermem/x", "");
        assert_eq!(levels(u64::MAX)[2], ("gpu", Level::Fine));
        root.put(&format!("{port}/state"), "1: DOWN\n");
        assert!(check_nics(&facts, u64::MAX)[0].seen.contains("not active"));
        std::fs::remove_file(root.0.join("dev/infiniband/uverbs0")).unwrap();
        assert_eq!(levels(u64::MAX)[1], ("nic", Level::Warning));
    }
}
