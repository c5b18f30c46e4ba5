//! What a process of this machine holds and uses, as procfs tells it.

use std::fs;
use std::path::PathBuf;

fn read(pid: u32, file: &str) -> String {
    let path = PathBuf::from(format!("/proc/{pid}/{file}"));
    fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// KiB by the first line of a file that begins with a name, such as `VmRSS:` of `status` or `Pss:`
/// of `smaps_rollup`.
pub fn kib(pid: u32, file: &str, name: &str) -> u64 {
    let text = read(pid, file);
    let line = text.lines().find_map(|l| l.strip_prefix(name)).expect("a figure");
    line.split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

/// Open descriptors.
pub fn descriptors(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).expect("procfs").count()
}

/// Mappings.
pub fn mappings(pid: u32) -> usize {
    read(pid, "maps").lines().count()
}

/// KiB that are resident in mappings of files whose path has a text in it.
pub fn resident_of(pid: u32, path: &str) -> u64 {
    let (mut counts, mut sum) = (false, 0);
    for line in read(pid, "smaps").lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Rss:") if counts => {
                sum += words.next().and_then(|n| n.parse::<u64>().ok()).expect("a number");
            }
            Some(first) if !first.ends_with(':') => counts = line.contains(path),
            _ => {}
        }
    }
    sum
}

/// Nanoseconds on a CPU so far, of all threads that live.
pub fn cpu_ns(pid: u32) -> u64 {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("procfs");
    let of = |task: fs::DirEntry| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    };
    tasks.flatten().filter_map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_some_of_everything() {
        let own = std::process::id();
        assert!(kib(own, "status", "VmRSS:") > 100 && kib(own, "smaps_rollup", "Pss:") > 100);
        assert!(descriptors(own) >= 3 && mappings(own) > 5 && cpu_ns(own) > 0);
        let file = std::env::current_exe().expect("a path");
        let name = file.file_name().and_then(|n| n.to_str()).expect("a name");
        assert!(resident_of(own, name) > 100);
        assert_eq!(resident_of(own, "/no such file"), 0);
    }
}
