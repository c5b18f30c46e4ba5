//! A supervisor of a router: it holds the sockets, and starts the router anew after its end.

use crate::library;
use crate::tools::Running;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// From the end of a router to the start of the next one, as in router/units.
const RESTART: Duration = Duration::from_millis(100);

/// A folder whose path is short enough for sockets.
pub fn folder(name: &str) -> PathBuf {
    let dir = std::env::temp_dir().join(format!("gdrc-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    dir
}

/// A listener of packets at a path.
pub fn listener(path: &Path) -> OwnedFd {
    // SAFETY: no pointers.
    let raw = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET, 0) };
    assert!(raw >= 0);
    // SAFETY: new, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(raw) };
    // SAFETY: zeroes are a valid address.
    let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
    let text = path.to_str().expect("a path of text");
    for (to, from) in addr.sun_path.iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    // SAFETY: the address is whole and lives through the call.
    let rc = unsafe {
        libc::bind(raw, (&raw const addr).cast(), size_of_val(&addr) as u32) | libc::listen(raw, 16)
    };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
    fd
}

/// A router that is started with sockets, as a supervisor starts it. It may not be ready yet.
pub fn supervised(bash: &Path, sockets: &[&dyn AsRawFd], policy: &Path) -> Running {
    let mut script = String::new();
    for (k, socket) in sockets.iter().enumerate() {
        let raw = socket.as_raw_fd();
        // SAFETY: no pointers. Programs that this process starts get the descriptor.
        assert_eq!(unsafe { libc::fcntl(raw, libc::F_SETFD, 0) }, 0);
        // First to numbers that nothing else has.
        script += &format!("exec {}<&{raw}; ", 200 + k);
    }
    for k in 0..sockets.len() {
        script += &format!("exec {}<&{}; ", 3 + k, 200 + k);
    }
    script += "LISTEN_PID=$$ exec \"$@\"";
    let routerd = library::router().join("gdrcore-routerd");
    Running::start(
        Command::new(bash)
            .args(["-c", &script, "bash"])
            .arg(routerd)
            .args(["-v", "--firewall", "off"])
            .arg(policy)
            .env("LISTEN_FDS", sockets.len().to_string())
            .env("LISTEN_FDNAMES", "tenant:wire:stray"),
    )
}

/// Two tenants by links, and two by the relay; each takes its address from the pool.
pub const TWO_PAIRS: &str = r#"
[tenant.a]
listen = "DIR/a"
[tenant.b]
listen = "DIR/b"
[tenant.c]
listen = "DIR/c"
metered = true
[tenant.d]
listen = "DIR/d"
metered = true
"#;

/// How often a router is killed.
pub fn kills() -> u32 {
    std::env::var("GDRC_ROUTER_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// A router whose listeners a supervisor holds.
pub struct Supervised {
    bash: PathBuf,
    dir: PathBuf,
    sockets: Vec<OwnedFd>,
    running: Option<Running>,
}

impl Supervised {
    /// Starts one with a policy in which `DIR` stands for a folder; its tenants listen there at
    /// these names.
    pub fn start(bash: &Path, policy: &str, listeners: &[&str]) -> Supervised {
        let dir = folder("supervised");
        let text = policy.replace("DIR", dir.to_str().expect("a path of text"));
        let key = format!("[router]\nkey = \"{}/key\"\n", dir.display());
        std::fs::write(dir.join("policy.toml"), key + &text).expect("the policy");
        let sockets = listeners.iter().map(|name| listener(&dir.join(name))).collect();
        let mut router = Supervised { bash: bash.to_path_buf(), dir, sockets, running: None };
        router.again();
        router.running.as_mut().expect("it runs").wait_for_output("ready");
        router
    }

    fn again(&mut self) {
        let sockets: Vec<&dyn AsRawFd> = self.sockets.iter().map(|s| s as _).collect();
        let policy = self.dir.join("policy.toml");
        self.running = Some(supervised(&self.bash, &sockets, &policy));
    }

    /// Kills it, and starts it anew a moment after its end.
    pub fn kill(&mut self) {
        let mut running = self.running.take().expect("it runs");
        running.kill();
        running.finish(Duration::from_secs(60));
        std::thread::sleep(RESTART);
        self.again();
    }

    /// The name of a device by way of one of its listeners.
    pub fn device(&self, name: &str) -> String {
        format!("router:{}", self.dir.join(name).display())
    }
}

impl Drop for Supervised {
    fn drop(&mut self) {
        self.running = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
