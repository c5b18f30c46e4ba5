//! Runs other programs from tests: finds them or skips, limits their time, kills only by their own
//! pid.

use crate::source::root;
use crate::{patience, place};
use std::ffi::{CString, OsStr};
use std::fmt::{Display, Formatter};
use std::io::{BufRead, Read};
use std::net::Ipv4Addr;
use std::ops::Deref;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{mpsc, Arc, Mutex};
use std::time::{Duration, Instant};

/// Whether this process is root's.
pub fn is_root() -> bool {
    // SAFETY: no precondition.
    unsafe { libc::geteuid() == 0 }
}

/// An error unless this process is root's.
pub fn as_root() -> Result<(), String> {
    is_root().then_some(()).ok_or_else(|| "only root can do it".into())
}

/// The folder that keeps other users from what was built; `None`: they may enter all.
pub fn closed_to_others() -> Option<PathBuf> {
    let may_pass = |dir: &Path| dir.metadata().is_ok_and(|m| m.mode() & 1 == 1);
    root().ancestors().find(|dir| !may_pass(dir)).map(Path::to_path_buf)
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Done {
    /// Its exit status; `None` if it was killed at the time limit.
    pub status: Option<ExitStatus>,
    /// Its standard output, then its standard error.
    pub output: String,
}

impl Done {
    /// Whether it ended by itself with exit code 0.
    pub fn ok(&self) -> bool {
        self.status.is_some_and(|s| s.success())
    }

    /// The exit code, if it ended by itself and not by a signal.
    pub fn code(&self) -> Option<i32> {
        self.status.and_then(|s| s.code())
    }
}

impl Display for Done {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.status {
            Some(status) => write!(f, "{status}: {}", self.output),
            None => write!(f, "killed at its time limit: {}", self.output),
        }
    }
}

/// A child in a process group of its own. Its output is collected while it runs; dropping the value
/// kills the whole group.
pub struct Running {
    child: Child,
    /// Its standard output and error, as far as they were read.
    outputs: [Arc<Mutex<Vec<u8>>>; 2],
    readers: Vec<std::thread::JoinHandle<()>>,
}

impl Running {
    /// Starts the program with its output piped to readers, so that it never blocks on a full pipe.
    pub fn start(command: &mut Command) -> Running {
        patience::hand_on(command);
        // A shell without job control starts what it runs in the background with these ignored, and
        // an exec keeps that: a test in such a run could not interrupt its programs.
        let default_signals = || {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                // SAFETY: no handler, and this is async-signal-safe.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            Ok(())
        };
        // SAFETY: the closure allocates nothing and takes no lock.
        unsafe { command.pre_exec(default_signals) };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let end = patience::deadline(60);
        let mut child = loop {
            match command.spawn() {
                Ok(child) => break child,
                // A child of another thread that has not executed its program yet has the file
                // open, which a test has just written.
                Err(e) if e.raw_os_error() == Some(libc::ETXTBSY) && Instant::now() < end => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(e) => panic!("{command:?}: {e}"),
            }
        };
        fn reader(
            pipe: impl Read + Send + 'static,
            into: Arc<Mutex<Vec<u8>>>,
        ) -> std::thread::JoinHandle<()> {
            let mut pipe = pipe;
            std::thread::spawn(move || {
                let mut bytes = [0; 4096];
                while let Ok(n) = pipe.read(&mut bytes) {
                    if n == 0 {
                        break;
                    }
                    into.lock().expect("no reader panics").extend_from_slice(&bytes[..n]);
                }
            })
        }
        let outputs: [Arc<Mutex<Vec<u8>>>; 2] = Default::default();
        let readers = vec![
            reader(child.stdout.take().expect("stdout is piped"), outputs[0].clone()),
            reader(child.stderr.take().expect("stderr is piped"), outputs[1].clone()),
        ];
        Running { child, outputs, readers }
    }

    /// What it has printed so far: standard output, then standard error.
    pub fn output(&self) -> String {
        let text = |o: &Arc<Mutex<Vec<u8>>>| {
            String::from_utf8_lossy(&o.lock().expect("no reader panics")).into_owned()
        };
        self.outputs.iter().map(text).collect()
    }

    /// Waits until it has printed a text; panics if it ends first.
    pub fn wait_for_output(&mut self, text: &str) {
        let end = patience::deadline(60);
        while !self.output().contains(text) {
            // Asked before the look at the output, so that output printed at its end is not missed.
            let ended = !self.still_runs();
            assert!(
                !ended && Instant::now() < end,
                "no '{text}' (ended: {ended}) in: {}",
                self.output()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub fn still_runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// Interrupts it (SIGINT).
    pub fn interrupt(&self) {
        self.signal(libc::SIGINT);
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers. The child is not reaped before `finish`, so the number is its
        // own.
        unsafe { libc::kill(self.pid() as i32, signal) };
    }

    /// Kills it and the processes that it started.
    pub fn kill(&mut self) {
        // It is not reaped yet, so the pid is still its own.
        if self.still_runs() {
            // SAFETY: signals the group that `start` made.
            unsafe { libc::kill(-(self.pid() as i32), libc::SIGKILL) };
        }
    }

    /// Waits for its end; kills it at the limit, which is for an idle machine (see [`patience`]).
    pub fn finish(mut self, limit: Duration) -> Done {
        let end = Instant::now() + limit * patience::factor();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(5)),
                _ => {
                    self.kill();
                    let _ = self.child.wait();
                    break None;
                }
            }
        };
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
        Done { status, output: self.output() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        let _ = self.child.wait();
    }
}

/// Runs a program until it ends, at most `seconds` of an idle machine.
pub fn run(command: &mut Command, seconds: u64) -> Done {
    Running::start(command).finish(Duration::from_secs(seconds))
}

/// The lines of standard input.
pub fn lines_of_input() -> mpsc::Receiver<String> {
    let (send, lines) = mpsc::channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if send.send(line).is_err() {
                break;
            }
        }
    });
    lines
}

/// True in the child process in which a test runs alone; otherwise starts that process and fails if
/// it fails.
pub fn is_alone(test: &str) -> bool {
    if std::env::var_os("GDRC_TEST_ALONE").is_some() {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    let done = run(command.args(["--exact", test, "--nocapture"]).env("GDRC_TEST_ALONE", "1"), 60);
    assert!(done.ok(), "{done}");
    false
}

/// The same command at a higher priority, where this user may raise it: for programs with timers of
/// their own that assume an idle machine.
pub fn favoured(command: &Command) -> Command {
    let mut c = Command::new("nice");
    c.args(["-n", "-10"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => c.env(name, value),
            None => c.env_remove(name),
        };
    }
    c
}

/// The path of a program, if it is installed and this user may run it.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from);
    let may_run = |p: &PathBuf| {
        let name = CString::new(p.as_os_str().as_bytes()).unwrap_or_default();
        // SAFETY: a terminated string.
        p.is_file() && unsafe { libc::access(name.as_ptr(), libc::X_OK) } == 0
    };
    std::env::split_paths(&path).chain(more).map(|d| d.join(program)).find(may_run)
}

/// The path of a program; an error if it is not installed.
pub fn installed(program: &str) -> Result<PathBuf, String> {
    find(program).ok_or_else(|| format!("{program} is not installed"))
}

/// An error names one that is not installed.
pub fn all_installed(programs: &[&str]) -> Result<(), String> {
    programs.iter().try_for_each(|program| installed(program).map(drop))
}

/// An error unless C programs of libibverbs and librdmacm can be compiled.
pub fn verbs_compiler() -> Result<(), String> {
    installed("cc")?;
    let headers = ["infiniband/verbs.h", "rdma/rdma_cma.h"];
    match headers.iter().find(|h| !Path::new("/usr/include").join(h).exists()) {
        Some(header) => Err(format!("no <{header}> (libibverbs-dev, librdmacm-dev)")),
        None => Ok(()),
    }
}

/// Compiles a program of libibverbs from `tests/c` into a folder of the test; an error: as
/// [`verbs_compiler`].
pub fn verbs_program(test: &str, name: &str, more: &[&str]) -> Result<(PathBuf, Scratch), String> {
    verbs_compiler()?;
    let dir = scratch(test);
    let program = compile("cc", name, &dir, &[more, &["-libverbs", "-lpthread"]].concat());
    Ok((program, dir))
}

/// Compiles a file of `tests/c`, or of a folder of it (`folder/name`), into a folder; `compiler` is
/// `cc` or a wrapper of it.
pub fn compile(compiler: &str, name: &str, dir: &Path, more: &[&str]) -> PathBuf {
    let to = dir.join(name.replace('/', "-"));
    let mut cc = Command::new(compiler);
    cc.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-o"]).arg(&to);
    let done = run(cc.arg(crate::source::root().join(format!("tests/c/{name}.c"))).args(more), 60);
    assert!(done.ok(), "{name}.c: {}", done.output);
    to
}

/// The folder of build output (`CARGO_TARGET_DIR`, else `target` in the root).
pub fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR")
        .map_or_else(|| crate::source::root().join("target"), PathBuf::from)
}

/// A folder of one test. It is removed when the test passes and kept when the test fails.
pub struct Scratch(PathBuf);

impl Deref for Scratch {
    type Target = Path;
    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<OsStr> for Scratch {
    fn as_ref(&self) -> &OsStr {
        self.0.as_os_str()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }
}

/// A fresh folder for a test's files, below the build output.
pub fn scratch(test: &str) -> Scratch {
    let dir = target_dir().join("test-files").join(format!("{test}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    Scratch(dir)
}

/// A loopback address that no other test process uses; the test chooses `n` and `last`.
pub fn loopback(n: u32, last: u32) -> String {
    let part = |n: u32| u8::try_from(n).expect("a part of an IPv4 address");
    Ipv4Addr::from(place::loopback(part(n), part(last))).to_string()
}
