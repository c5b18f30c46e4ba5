//! Seeds of keys and queue pair numbers that follow from the seed of the faults (the rule `keys`):
//! others for each device that a process opens, and for each program and process as far as what
//! they are is the same in each run.

use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::hash_map::DefaultHasher;
use std::sync::OnceLock;

/// The number of a process in its job, as launchers say it: Open MPI, PMI, PMIx, Slurm, torchrun.
const RANKS: [&str; 5] = ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID", "RANK"];

/// Devices with such keys that this process has opened.
static OPENS: AtomicU64 = AtomicU64::new(0);
/// Children that this process has made, and which child of its ancestors it is.
static CHILDREN: AtomicU64 = AtomicU64::new(0);
static DESCENT: AtomicU64 = AtomicU64::new(0);

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

extern "C" fn count_child() {
    CHILDREN.fetch_add(1, Ordering::Relaxed);
}

extern "C" fn descend() {
    let child = CHILDREN.swap(0, Ordering::Relaxed);
    DESCENT.store(hash((DESCENT.load(Ordering::Relaxed), child + 1)), Ordering::Relaxed);
    OPENS.store(0, Ordering::Relaxed);
}

/// Notes the program, and counts its children from now on: at the first device with such keys, or
/// before, when the program has not yet changed its words or forked. Any thread.
pub fn note_program() -> u64 {
    static PROGRAM: OnceLock<u64> = OnceLock::new();
    static COUNTS: AtomicBool = AtomicBool::new(false);
    if let Some(program) = PROGRAM.get() {
        return *program;
    }
    if !COUNTS.swap(true, Ordering::Relaxed) {
        // SAFETY: functions of this library, which change atomics alone.
        unsafe { libc::pthread_atfork(None, Some(count_child), Some(descend)) };
    }
    // Its name and arguments.
    let words = std::fs::read("/proc/self/cmdline").unwrap_or_default();
    let program = hash((words, RANKS.map(std::env::var_os)));
    *PROGRAM.get_or_init(|| program)
}

/// A seed that follows from that of the faults, and differs between programs.
pub fn program_keys(seed: u64) -> u64 {
    hash((seed, note_program()))
}

/// The seed of the keys of a device that is about to be opened.
pub fn device_keys(seed: u64, device: &str) -> u64 {
    let open = OPENS.fetch_add(1, Ordering::Relaxed);
    // 0 would be drawn.
    hash((program_keys(seed), DESCENT.load(Ordering::Relaxed), device, open)) | 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_is_opened_again_has_other_keys() {
        let [one, again, other] = ["a", "a", "b"].map(|device| device_keys(7, device));
        assert!(one != again && one != other && again != other);
        assert_eq!(program_keys(7), program_keys(7));
        assert_ne!(program_keys(7), program_keys(8));
    }
}
