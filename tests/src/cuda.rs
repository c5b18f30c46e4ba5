//! Loads a CUDA driver for tests: the machine's own where it has a GPU, else the fake one of
//! `fakecuda/`, built here.

use crate::source::root;
use crate::tools::{run, target_dir};
use gdrcore_cuda::device::Device;
use std::ffi::{CStr, CString};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Which driver a test runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// NVIDIA's.
    Real,
    /// `tests/fakecuda`.
    Fake,
}

/// Counters of the fake driver, for [`stat`].
#[derive(Clone, Copy)]
#[repr(u32)]
pub enum Stat {
    /// Asynchronous copies that have completed.
    Copies,
    /// Those of them from or to memory that was not pinned.
    Pageable,
    /// Their bytes.
    Bytes,
    /// File descriptors exported.
    Descriptors,
    /// Allocations and mappings that exist.
    Blocks,
}

/// Builds the fake driver; returns its folder, for `LD_LIBRARY_PATH`.
pub fn fake() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let dir = target_dir().join("fakecuda");
        std::fs::create_dir_all(&dir).expect("a folder below the target folder");
        let sources = ["fake.c", "memory.c", "share.c", "stream.c"]
            .map(|f| root().join("tests/fakecuda").join(f));
        // Several test processes may build at once: each writes a name of its own and moves it into
        // place.
        let fresh = dir.join(format!("libcuda.{}", std::process::id()));
        let mut cc = Command::new("cc");
        cc.args([
            "-std=c11",
            "-O2",
            "-g",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-fPIC",
            "-shared",
            "-Wl,-soname,libcuda.so.1",
        ]);
        let done = run(cc.args(&sources).arg("-o").arg(&fresh).arg("-lpthread"), 60);
        assert!(done.ok(), "{done}");
        std::fs::rename(&fresh, dir.join("libcuda.so.1")).expect("rename");
        dir
    })
}

/// Loads a driver into this process and prints which one. The first call decides.
pub fn driver() -> Driver {
    static CHOSEN: OnceLock<Driver> = OnceLock::new();
    *CHOSEN.get_or_init(|| {
        if Device::count().is_ok_and(|n| n > 0) {
            println!(
                "cuda: NVIDIA's driver, {}",
                Device::get(0).map(|d| d.name()).unwrap_or_default()
            );
            return Driver::Real;
        }
        let path = CString::new(fake().join("libcuda.so.1").into_os_string().into_encoded_bytes())
            .expect("a path");
        // Two GPUs. Set before the fake driver, its only reader, reads its environment.
        std::env::set_var("FAKECUDA_DEVICES", "0000:b7:00.0,0001:3b:00.0");
        // SAFETY: a terminated path to a library of our own. What is loaded already is found under
        // its soname.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!library.is_null(), "{path:?} cannot be loaded");
        println!("cuda: the fake driver, tests/fakecuda");
        Driver::Fake
    })
}

/// The driver for one test at a time, because a failure set in the fake one affects all tests. The
/// fake one begins with its defaults.
pub fn alone() -> (MutexGuard<'static, ()>, Driver) {
    static ONE: Mutex<()> = Mutex::new(());
    let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let driver = driver();
    if driver == Driver::Fake {
        lose(0);
        option("FAKECUDA_DELAY_US", 20);
        option("FAKECUDA_DMABUF", 1);
        option("FAKECUDA_VMM", 1);
    }
    (guard, driver)
}

fn symbol(name: &CStr) -> *mut libc::c_void {
    // SAFETY: terminated names; the library is loaded already and stays so.
    let found = unsafe {
        libc::dlsym(libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW), name.as_ptr())
    };
    assert!(!found.is_null(), "{name:?} is not in the fake driver");
    found
}

/// Makes a call of the fake driver fail with `code`: the next `after` calls succeed, then `times`
/// calls fail (0: all). Code 0 ends the failures.
pub fn fail(call: &str, code: i32, after: u32, times: u32) {
    let f = symbol(c"fakecuda_fail");
    let call = CString::new(call).expect("a name");
    // SAFETY: the function's own type.
    let f = unsafe {
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(*const libc::c_char, i32, u32, u32)>(
            f,
        )
    };
    f(call.as_ptr(), code, after, times);
}

/// Makes every call fail with `code`, as after a lost context; 0 restores the context.
pub fn lose(code: i32) {
    // SAFETY: the function's own type.
    let f = unsafe {
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(i32)>(symbol(c"fakecuda_lose"))
    };
    f(code);
}

/// Sets a numeric option of the fake driver (`FAKECUDA_DELAY_US` and its kin) from now on.
pub fn option(name: &str, value: i32) {
    let name = CString::new(name).expect("a name");
    let f = symbol(c"fakecuda_option");
    // SAFETY: the function's own type.
    let f = unsafe {
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(*const libc::c_char, i32)>(f)
    };
    f(name.as_ptr(), value);
}

/// Reads a counter of the fake driver.
pub fn stat(what: Stat) -> u64 {
    // SAFETY: the function's own type.
    let f = unsafe {
        std::mem::transmute::<*mut libc::c_void, extern "C" fn(u32) -> u64>(symbol(
            c"fakecuda_stat",
        ))
    };
    f(what as u32)
}
