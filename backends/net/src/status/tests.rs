use super::*;
use std::os::unix::fs::symlink;
use std::process::Command;

/// A folder of this test.
fn folder(name: &str) -> PathBuf {
    let at = std::env::temp_dir().join(format!("gdrcore-status-{name}-{}", std::process::id()));
    let _ = fs::remove_dir_all(&at);
    fs::create_dir(&at).expect("a folder");
    at
}

#[test]
fn neither_a_fifo_nor_a_link_is_waited_for() {
    let at = folder("fifo");
    let place = at.join("7");
    assert!(Command::new("mkfifo").arg(&place).status().expect("mkfifo").success());
    assert!(!is_device(&place), "no folder");
    let whole = at.join("whole");
    fs::write(&whole, format!("{HEAD}end\n")).expect("written");
    let asked = Asked { place: at.clone(), before: None };
    symlink(&whole, at.join("status")).expect("a link");
    assert!(read(&asked).is_none(), "a link to another file");
    fs::remove_file(at.join("status")).expect("removed");
    fs::rename(&whole, at.join("status")).expect("moved");
    assert_eq!(read(&asked).expect("a status").text, "end\n");
    fs::remove_dir_all(at).expect("removed");
}

#[test]
fn the_counters_of_a_device_are_read_from_its_line() {
    let text = "process pid=1 pid_ns=2 program=x sent_pkts=9\n\
                device address=1.2.3.4:5 qp=3 sent_pkts=7 later=1 rdma_writes=x rcvd_pkts=2\n\
                qp qpn=1 sent_pkts=8\nend\n";
    assert_eq!(counters(text), Counters { sent_pkts: 7, rcvd_pkts: 2, ..Counters::ZERO });
    assert_eq!(counters("process pid=1\n"), Counters::ZERO);
}
