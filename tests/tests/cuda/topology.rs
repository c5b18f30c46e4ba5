//! map_pci_nic_gpu and arp_announce_conf.sh on a sysfs of the test.

use super::*;

/// Makes a sysfs tree of a machine with two switches, four GPUs and two NICs.
fn sysfs(dir: &Path) -> PathBuf {
    let root = dir.join("sys");
    let device = |path: &str, class: &str| {
        let folder = root.join("devices").join(path);
        fs::create_dir_all(&folder).expect("a folder");
        for (file, value) in [
            ("class", class),
            ("vendor", "0x10de"),
            ("device", "0x1db8"),
            ("revision", "0xa1"),
            ("numa_node", "0"),
        ] {
            fs::write(folder.join(file), format!("{value}\n")).expect("a file");
        }
        let bus = root.join("bus/pci/devices");
        fs::create_dir_all(&bus).expect("a folder");
        symlink(&folder, bus.join(folder.file_name().expect("a name"))).expect("a link");
        folder
    };
    for (bus, nic, gpus) in [("b0", "b5", ["b7", "b8"]), ("30", "35", ["37", "38"])] {
        let switch = format!("pci0000:{bus}/0000:{bus}:02.0/0000:{bus}:10.0");
        for (i, gpu) in gpus.iter().enumerate() {
            device(&format!("{switch}/0000:{bus}:1{}.0/0000:{gpu}:00.0", i + 1), "0x030200");
        }
        let folder = device(&format!("{switch}/0000:{bus}:14.0/0000:{nic}:00.0"), "0x020700");
        let name = format!("mlx5_{nic}");
        fs::create_dir_all(folder.join("net/lo")).expect("a folder");
        fs::create_dir_all(folder.join("infiniband").join(&name)).expect("a folder");
        symlink(&folder, folder.join("infiniband").join(&name).join("device")).expect("a link");
        fs::create_dir_all(root.join("class/infiniband")).expect("a folder");
        symlink(folder.join("infiniband").join(&name), root.join("class/infiniband").join(&name))
            .expect("a link");
    }
    root
}

#[test]
fn map_pci_nic_gpu_names_the_pairs_that_are_near() {
    let dir = scratch("cuda-topology");
    let root = sysfs(&dir);
    let ids = dir.join("pci.ids");
    fs::write(
        &ids,
        "# comment\n10dd  Another\n\t1db8  Not this\n10de  NVIDIA Corporation\n\
         \t1db7  Not this either\n\t1db8  GV100GL\n\t\t10de 1db8  Nor this\n10df  Last\n",
    )
    .unwrap();
    let map = library::examples().join("gpu_direct/map_pci_nic_gpu");
    let done = run(Command::new(&map).arg("-r").arg(&root).arg("-i").arg(&ids), 10);
    assert!(done.ok(), "{done}");
    let near = "127.0.0.1 (mlx5_b5) is near 0000:b7:00.0 3D \
                controller: NVIDIA Corporation GV100GL (rev a1)";
    assert!(done.output.lines().any(|l| l == near), "{done}");
    assert_eq!(done.output.lines().count(), 4, "{done}");
    let done = run(Command::new(&map).args(["-a", "-i", "/nonexistent", "-r"]).arg(&root), 10);
    assert_eq!(done.output.lines().count(), 8, "{done}");
    assert!(done.output.contains(
            "is far from 0000:37:00.0 3D controller: 10de Device 1db8 (rev a1), sharing a NUMA node"
        ), "{done}");
    let done = run(Command::new(&map).args(["-r", "/nonexistent"]), 10);
    assert!(done.code() == Some(1) && done.output.contains("no NIC or no GPU"), "{done}");
}

#[test]
fn arp_announce_conf_shows_and_makes_its_changes() {
    let dir = scratch("cuda-arp");
    let conf = dir.join("net/ipv4/conf");
    for interface in ["all", "eth0", "eth1"] {
        fs::create_dir_all(conf.join(interface)).unwrap();
        for setting in ["arp_announce", "arp_ignore", "rp_filter"] {
            fs::write(conf.join(interface).join(setting), "0\n").unwrap();
        }
    }
    let script = root().join("c-examples/gpu_direct/arp_announce_conf.sh");
    let read = |file: &str| fs::read_to_string(conf.join(file)).unwrap().trim().to_string();
    let run_it = |args: &[&str]| {
        run(Command::new("sh").arg(&script).args(args).env("PROC_SYS", dir.as_os_str()), 10)
    };
    let done = run_it(&["-n", "eth0"]);
    assert!(
        done.ok() && done.output.contains("would set net.ipv4.conf.eth0.arp_announce=2 (now 0)"),
        "{done}"
    );
    assert_eq!(
        (read("eth0/arp_announce"), read("all/arp_ignore")),
        ("0".into(), "0".into()),
        "a dry run changed the setting"
    );
    let done = run_it(&["eth0"]);
    assert!(done.ok(), "{done}");
    assert_eq!(
        (read("eth0/arp_announce"), read("all/arp_ignore"), read("eth0/rp_filter")),
        ("2".into(), "1".into(), "2".into())
    );
    assert_eq!(read("eth1/arp_announce"), "0", "another interface");
    let done = run_it(&["eth0", "nosuch0"]);
    assert!(done.code() == Some(1) && done.output.contains("nosuch0"), "{done}");
    assert!(
        run_it(&["--help"]).output.contains("Usage:") && run_it(&["--nonsense"]).code() == Some(2)
    );
}
