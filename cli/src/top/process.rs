//! What the kernel says of a process: its state, and the CPU time of it and of the helper threads
//! of gdrcore.

use gdrcore_run::proc_stat::Stat;
use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// A process at one time.
#[derive(Clone, Debug)]
pub struct Process {
    /// Its main thread's state, in the kernel's letter (proc_pid_stat(5)).
    pub state: char,
    at: Instant,
    /// Ticks of CPU time.
    ticks: u64,
    /// Names and ticks of the helper threads, by thread id.
    helpers: BTreeMap<u64, (String, u64)>,
}

/// Ticks a second: the kernel's USER_HZ, which is 100 on every architecture of this library.
const TICKS_A_SECOND: f64 = 100.0;

impl Process {
    /// The process with a number of this PID namespace, and a name; `None`: there is none.
    pub fn find(pid: u64, name: &str) -> Option<Process> {
        let stat = Stat::read(&format!("/proc/{pid}/stat")).filter(|stat| stat.name == name)?;
        let mut helpers = BTreeMap::new();
        for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
            let id = task.file_name().to_string_lossy().into_owned();
            let found = Stat::read(&format!("/proc/{pid}/task/{id}/stat"));
            let ticks = found.as_ref().and_then(Stat::ticks);
            if let (Some(Stat { name, .. }), Some(ticks), Ok(id)) = (found, ticks, id.parse()) {
                if name.starts_with("gdrc-") && id != pid {
                    helpers.insert(id, (name, ticks));
                }
            }
        }
        Some(Process { state: stat.state()?, at: Instant::now(), ticks: stat.ticks()?, helpers })
    }

    /// Its state in a word.
    pub fn state_word(&self) -> &'static str {
        match self.state {
            'R' => "running",
            'S' | 'I' => "sleeping",
            'D' => "in the kernel",
            'T' | 't' => "stopped",
            'Z' | 'X' => "ended",
            _ => "?",
        }
    }

    /// The shares of a core that it, and its helper threads, have used since.
    pub fn usage_since(&self, before: &Process) -> (Option<f64>, Vec<(String, f64)>) {
        let seconds = self.at.duration_since(before.at).as_secs_f64();
        if seconds <= 0.0 {
            return (None, Vec::new());
        }
        let share = |now: u64, old: u64| now.saturating_sub(old) as f64 / TICKS_A_SECOND / seconds;
        let helpers = self.helpers.iter().map(|(id, (name, ticks))| {
            let old = before.helpers.get(id).map_or(*ticks, |old| old.1);
            (name.clone(), share(*ticks, old))
        });
        (Some(share(self.ticks, before.ticks)), helpers.collect())
    }
}
