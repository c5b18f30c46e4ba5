//! The devices' files below `/sys` and `/dev`, as seen by programs under `gdrcore-run` and by their
//! children.

use gdrcore_tests::or_skip;
use gdrcore_tests::patience::wait_for;
use gdrcore_tests::rdmacm::command;
use gdrcore_tests::tools::{
    compile, find, installed, loopback, run, scratch, verbs_compiler, Running,
};
use std::process::Command;

/// A program on an address of this test's own.
fn on(last: u32, program: &str) -> Option<Command> {
    Some(command(Some(&loopback(110, last)), &[], find(program)?))
}

/// The output of a shell whose children read the files.
fn shell(last: u32, script: &str) -> String {
    let mut c = on(last, "sh").expect("a shell");
    let done = run(c.args(["-ec", script]), 30);
    assert!(done.ok(), "{script}: {done}");
    done.output
}

#[test]
fn every_call_of_the_c_library_finds_the_files() {
    let dir = scratch("sysfs");
    let plain = compile("cc", "sysfs", &dir, &["-lpthread"]);
    let run_it = |program: &std::path::Path| {
        let done =
            run(command(Some(&loopback(110, 1)), &[], program).args(["gdrc0", "uverbs0"]), 60);
        assert!(done.ok() && done.output.contains("ok"), "{done}");
    };
    run_it(&plain);
    // A child of a program, neither of which uses libibverbs.
    shell(1, &format!("{} gdrc0 uverbs0", plain.display()));
    // As distributions build programs: with the checked functions of the C library.
    let checked = scratch("sysfs-checked");
    run_it(&compile("cc", "sysfs", &checked, &["-lpthread", "-O2", "-D_FORTIFY_SOURCE=2"]));
    // Calls with 32-bit offsets have other names for the same functions on 64-bit systems.
    let large = scratch("sysfs-large");
    run_it(&compile("cc", "sysfs", &large, &["-lpthread", "-D_FILE_OFFSET_BITS=64"]));
}

#[test]
fn the_files_agree_with_ibv_devinfo() {
    or_skip!(installed("ibv_devinfo"));
    let info = run(on(2, "ibv_devinfo").expect("looked for").arg("-v"), 20).output;
    let field = |name: &str| -> String {
        let line = info.lines().find_map(|l| l.trim().strip_prefix(name)?.strip_prefix(':'));
        line.unwrap_or_else(|| panic!("{name}: {info}")).trim().to_string()
    };
    let file = |name: &str| {
        shell(2, &format!("cat /sys/class/infiniband/gdrc0/{name}")).trim().to_string()
    };
    for (name, path) in [
        ("node_guid", "node_guid"),
        ("sys_image_guid", "sys_image_guid"),
        ("fw_ver", "fw_ver"),
        ("board_id", "board_id"),
        ("link_layer", "ports/1/link_layer"),
    ] {
        assert_eq!(field(name), file(path), "{name}");
    }
    assert!(field("state").starts_with("PORT_ACTIVE") && file("ports/1/state") == "4: ACTIVE");
    assert_eq!(
        u32::from_str_radix(file("ports/1/lid").trim_start_matches("0x"), 16),
        field("port_lid").parse()
    );
    assert!(
        field("phys_state").starts_with("LINK_UP") && file("ports/1/phys_state") == "5: LinkUp"
    );
    assert!(field("active_speed").starts_with("10.0") && field("active_width").starts_with("1X"));
    assert_eq!(file("ports/1/rate"), "10 Gb/sec (1X FDR10)");
    assert_eq!(file("ports/1/cap_mask"), field("port_cap_flags"));
    assert_eq!(
        field("max_pkeys"),
        shell(2, "ls /sys/class/infiniband/gdrc0/ports/1/pkeys | wc -l").trim()
    );
    assert_eq!(
        field("gid_tbl_len"),
        shell(2, "ls /sys/class/infiniband/gdrc0/ports/1/gids | wc -l").trim()
    );
}

#[test]
fn shells_and_their_tools_find_the_files() {
    assert_eq!(shell(3, "ls /sys/class/infiniband").trim(), "gdrc0");
    assert_eq!(shell(3, "echo /sys/class/infiniband/*/ports/*/state"), {
        "/sys/class/infiniband/gdrc0/ports/1/state\n"
    });
    let listed = shell(3, "ls -lR /sys/class/infiniband/gdrc0/ /dev/infiniband");
    assert!(
        listed.contains("device -> ../../../9d00:00:00.0") && listed.contains("rdma_cm"),
        "{listed}"
    );
    // The interface of loopback addresses has no hardware; the drop-in adds its link.
    assert_eq!(shell(3, "ls /sys/class/net/lo/device/infiniband").trim(), "gdrc0");
    assert_eq!(shell(3, "cat /sys/class/infiniband/gdrc0/device/net/lo/ifindex").trim(), "1");
    let n: usize =
        shell(3, "find /sys/class/infiniband/gdrc0/ | wc -l").trim().parse().expect("a number");
    assert!(n > 80, "{n}");
    if find("python3").is_some() {
        let script = "import os; print(os.listdir('/sys/class/infiniband'), \
                      os.path.realpath('/sys/class/infiniband/gdrc0/../..'))";
        let said = shell(3, &format!("python3 -c \"{script}\""));
        assert_eq!(said.trim(), "['gdrc0'] /sys/devices/pci9d00:00/9d00:00:00.0");
    }
    // Without the launcher the files do not exist, and it leaves none behind.
    assert!(!std::path::Path::new("/sys/class/infiniband/gdrc0").exists());
}

/// A shell's children have not opened the device; a ping-pong has it and polls it.
#[test]
fn counters_are_those_of_all_processes_of_an_address() {
    or_skip!(installed("ibv_rc_pingpong"));
    let ping_pong = |last: u32, to: Option<&str>| {
        let mut c = on(last, "ibv_rc_pingpong").expect("looked for");
        Running::start(c.args(["-g", "0", "-n", "1000000000"]).args(to))
    };
    let count = || {
        let said = shell(5, "cat /sys/class/infiniband/gdrc0/ports/1/hw_counters/sent_pkts");
        said.trim().parse::<u64>().expect("a number")
    };
    assert_eq!(count(), 0);
    let mut server = ping_pong(5, None);
    // One that comes before the server listens ends.
    let mut client = ping_pong(6, Some(&loopback(110, 5)));
    wait_for(30, "packets of the server", || {
        if !client.still_runs() {
            client = ping_pong(6, Some(&loopback(110, 5)));
        }
        count() > 0
    });
    server.kill();
    wait_for(30, "a process that has ended counts no more", || count() == 0);
}

#[test]
fn a_counter_is_that_of_the_process_that_reads() {
    or_skip!(verbs_compiler());
    let dir = scratch("sysfs-counters");
    let program = compile("cc", "verbs", &dir, &["-libverbs"]);
    let done = run(command(Some(&loopback(110, 4)), &[], program).arg("counters"), 30);
    assert!(done.ok(), "{done}");
    assert_eq!(
        shell(4, "cat /sys/class/infiniband/gdrc0/ports/1/hw_counters/rdma_writes").trim(),
        "0"
    );
}
