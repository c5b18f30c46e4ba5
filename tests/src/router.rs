//! A router for tests, and clients of it that keep to no rule.

use crate::lab::Lab;
use crate::library;
use crate::soft::Soft;
use crate::tools::{favoured, run, Done, Running};
use gdrcore_core::{Error, Result};
use gdrcore_net::reason;
use gdrcore_net::rights::Foreign;
use gdrcore_net::shm::relay::RingDescriptors;
use gdrcore_net::via::proto::{
    feature, mode, Envelope, Hello, Message, Text, Welcome, MESSAGE_MAX, VERSIONS,
};
use gdrcore_net::via::wire::{receive, send_bytes, Buffer, ReadOutcome, Received};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

/// Two tenants that talk to each other, by sockets of their own.
pub const TWO: &str = r#"
[tenant.a]
listen = "DIR/a"
vip = "10.99.0.2"
[tenant.b]
listen = "DIR/b"
vip = "10.99.0.3"
"#;

/// A running router and the folder of its sockets, which every user may look into. Both go when it
/// is dropped.
pub struct Router {
    dir: PathBuf,
    options: Vec<String>,
    environment: Vec<(String, String)>,
    /// What runs it elsewhere than here.
    by: Vec<OsString>,
    running: Option<Running>,
}

impl Router {
    /// Starts one with a policy in which `DIR` stands for the folder. Its admin socket is
    /// `DIR/admin`.
    pub fn start(policy: &str) -> Router {
        Router::start_with(policy, &[])
    }

    /// The same, with options.
    pub fn start_with(policy: &str, options: &[&str]) -> Router {
        Router::start_in(policy, options, &[])
    }

    /// The same, with more in its environment.
    pub fn start_in(policy: &str, options: &[&str], environment: &[(&str, &str)]) -> Router {
        Router::prepare(options, environment).begin(policy, &[])
    }

    /// Starts one on a host of a lab, in whose network it then is, with files beside its policy:
    /// names and what they say.
    pub fn start_on(lab: &Lab, host: usize, policy: &str, files: &[(&str, &str)]) -> Router {
        let mut router = Router::prepare(&[], &[]);
        let on = favoured(&lab.in_network(host));
        router.by =
            std::iter::once(on.get_program()).chain(on.get_args()).map(Into::into).collect();
        router.begin(policy, files)
    }

    /// Starts one with options and with files beside its policy: names and what they say.
    pub fn start_beside(policy: &str, options: &[&str], files: &[(&str, &str)]) -> Router {
        Router::prepare(options, &[]).begin(policy, files)
    }

    /// Starts one that may have so many descriptors.
    pub fn start_with_descriptors(policy: &str, most: usize) -> Router {
        let mut router = Router::prepare(&[], &[]);
        router.by = vec!["prlimit".into(), format!("--nofile={most}:{most}").into()];
        router.begin(policy, &[])
    }

    fn begin(mut self, policy: &str, files: &[(&str, &str)]) -> Router {
        for (name, text) in files {
            std::fs::write(self.dir.join(name), text).expect("a file");
        }
        self.write(policy);
        self.restart();
        self
    }

    /// Its folder.
    fn prepare(options: &[&str], environment: &[(&str, &str)]) -> Router {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // Paths of sockets are short, and build folders are not.
        let n = NEXT.fetch_add(1, Relaxed);
        let dir = std::env::temp_dir().join(format!("gdrc-router-{}-{n}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
        let options = options.iter().map(|o| o.to_string()).collect();
        let environment = environment.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
        Router { dir, options, environment, by: Vec::new(), running: None }
    }

    /// Writes another policy; [`Router::reload`] puts it in force.
    pub fn write(&self, policy: &str) {
        let dir = self.dir.to_str().expect("a path of text");
        std::fs::write(self.file(), policy.replace("DIR", dir)).expect("the policy");
    }

    fn file(&self) -> PathBuf {
        self.dir.join("policy.toml")
    }

    /// The folder of the sockets.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts it anew, after its end.
    pub fn restart(&mut self) {
        let program = library::router().join("gdrcore-routerd");
        let admin = self.dir.join("admin");
        let words: Vec<OsString> = self.by.iter().cloned().chain([program.into()]).collect();
        let mut running = Running::start(
            Command::new(&words[0])
                .args(&words[1..])
                .arg("-v")
                .args(&self.options)
                .envs(self.environment.iter().map(|(n, v)| (n, v)))
                .arg("--admin")
                .arg(admin)
                .arg(self.file()),
        );
        running.wait_for_output("ready");
        self.running = Some(running);
    }

    /// Its process.
    pub fn running(&mut self) -> &mut Running {
        self.running.as_mut().expect("a router that was started")
    }

    /// Kills it at once.
    pub fn kill(&mut self) {
        let mut running = self.running.take().expect("a router that was started");
        running.kill();
        running.finish(Duration::from_secs(60));
    }

    /// Asks it, as `gdrcore-routerctl` does.
    pub fn ask(&self, what: &str) -> Done {
        run(&mut self.asks(&[what]), 60)
    }

    /// The command that asks it.
    pub fn asks(&self, words: &[&str]) -> Command {
        let mut command = Command::new(library::router().join("gdrcore-routerctl"));
        command.arg("--socket").arg(self.dir.join("admin")).args(words);
        command
    }

    /// Its sessions, a line each.
    pub fn sessions(&self) -> Vec<String> {
        let done = self.ask("sessions");
        assert!(done.ok(), "{done}");
        done.output.lines().map(str::to_string).collect()
    }

    /// Puts the written policy in force; what is wrong with it otherwise.
    pub fn reload(&self) -> Result<(), String> {
        let done = self.ask("reload");
        if done.ok() {
            Ok(())
        } else {
            Err(done.output)
        }
    }

    /// The path of a socket of the folder.
    pub fn socket(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The name of a device by way of a socket of the folder.
    pub fn device(&self, name: &str) -> String {
        format!("router:{}", self.socket(name).display())
    }

    /// Opens the device of a tenant's socket.
    pub fn open(&self, name: &str) -> Soft {
        Soft::new(&self.device(name))
    }
}

impl Drop for Router {
    fn drop(&mut self) {
        if std::thread::panicking() {
            if let Some(running) = &self.running {
                eprintln!("the router said: {}", running.output());
            }
        }
        self.running = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// A connection to a router that says what it is told to say.
pub struct Raw {
    fd: OwnedFd,
    buffer: Box<Buffer>,
}

impl Raw {
    /// Connects, and says nothing yet.
    pub fn connect(path: &Path) -> io::Result<Raw> {
        // SAFETY: zeroes are a valid sockaddr_un.
        let mut addr: libc::sockaddr_un = unsafe { std::mem::zeroed() };
        addr.sun_family = libc::AF_UNIX as libc::sa_family_t;
        for (to, &from) in addr.sun_path.iter_mut().zip(path.as_os_str().as_bytes()) {
            *to = from as libc::c_char;
        }
        // SAFETY: no pointers.
        let raw =
            unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0) };
        assert!(raw >= 0, "{}", io::Error::last_os_error());
        // SAFETY: new, and nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(raw) };
        // SAFETY: the whole address is initialised and lives through the call.
        let rc = unsafe {
            libc::connect(fd.as_raw_fd(), (&raw const addr).cast(), size_of_val(&addr) as u32)
        };
        match rc {
            0 => Ok(Raw { fd, buffer: Box::new([0; MESSAGE_MAX + 1]) }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Says any bytes, with a descriptor or without. False: it did not go.
    pub fn say_bytes(&self, bytes: &[u8], fd: Option<BorrowedFd<'_>>) -> bool {
        send_bytes(self.fd.as_fd(), bytes, fd).is_ok()
    }

    /// Says a message.
    pub fn say(&self, seq: u32, message: Message) -> bool {
        let mut bytes = [0; MESSAGE_MAX];
        let n = Envelope::new(seq, message).emit(&mut bytes);
        self.say_bytes(&bytes[..n], None)
    }

    /// The next message; `None`: the router has hung up.
    pub fn hear(&mut self) -> Option<(Envelope, Received)> {
        let mut p = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let ms = 60_000 * crate::patience::factor() as i32;
        // SAFETY: one live entry.
        assert_eq!(unsafe { libc::poll(&mut p, 1, ms) }, 1, "the router says nothing");
        match receive(self.fd.as_fd(), &mut self.buffer) {
            ReadOutcome::Message(m) => {
                let e = Envelope::parse(&self.buffer[..m.len]).expect("a message of the router");
                Some((e, m))
            }
            ReadOutcome::Gone => None,
            ReadOutcome::Nothing => panic!("readable, and nothing there"),
        }
    }

    /// Says hello, and hears who it is.
    pub fn greet(&mut self) -> Welcome {
        self.say(1, Message::Hello(hello()));
        match self.hear() {
            Some((Envelope { status: 0, message: Message::Welcome(w), .. }, _)) => w,
            other => panic!("{other:?}"),
        }
    }

    /// The same, with rings.
    pub fn greet_with_rings(&mut self) -> (Welcome, RingDescriptors) {
        let features = feature::DIRECT | feature::RELAY;
        self.say(1, Message::Hello(Hello { features, ..hello() }));
        match self.hear() {
            Some((Envelope { status: 0, message: Message::Welcome(w), .. }, m)) => {
                let [up, down, bell, none] = m.fds.map(|fd| fd.map(Foreign::trusted));
                assert!(none.is_none());
                (w, RingDescriptors::from_descriptors([up, down, bell]).expect("rings"))
            }
            other => panic!("{other:?}"),
        }
    }

    /// Readable when the router says something.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Whether the router has hung up.
    pub fn has_ended(&self) -> bool {
        let mut p = libc::pollfd { fd: self.fd.as_raw_fd(), events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one live entry; no wait.
        unsafe { libc::poll(&mut p, 1, 0) > 0 }
    }
}

/// The hello of a device.
pub fn hello() -> Hello {
    Hello {
        versions: VERSIONS,
        features: feature::DIRECT,
        mode: mode::SWITCH,
        qpns: gdrcore_core::config::QPN_UNIT,
        ffr_id: -1,
        program: Text::new("raw"),
        token: [0; 64],
    }
}

/// What a program may find another device by.
const VARIABLES: [&str; 7] = [
    "GDRC_ADDRESS",
    "GDRC_DEVICE",
    "GDRC_PATH",
    "GDRC_PCAP",
    "GDRC_ROUTER",
    "FFR_NAME",
    "LD_PRELOAD",
];

/// A program of a container on the drop-in, by way of a router's socket or of what it finds itself.
pub fn contained(lab: &Lab, host: usize, program: &Path, router: Option<&Path>) -> Command {
    let mut c = lab.command(host, program);
    on_the_drop_in(&mut c);
    if let Some(router) = router {
        c.env("GDRC_ROUTER", router);
    }
    c
}

/// Has a program load the drop-in, and none of what may find it another device.
pub fn on_the_drop_in(c: &mut Command) {
    c.env("LD_LIBRARY_PATH", library::dropin());
    for name in VARIABLES {
        c.env_remove(name);
    }
}

/// The error of a call that must be refused, and its words.
pub fn words<T>(refused: Result<T>) -> (Error, String) {
    let Err(e) = refused else { panic!("it is allowed") };
    reason::note_returned(e);
    (e, reason::with_text(|words| words.to_string()))
}

/// The first number of a name in what `gdrcore-routerctl` says; `None`: the name is not there, or
/// has no number.
pub fn number(said: &str, name: &str) -> Option<u64> {
    let (_, rest) = said.split_once(&format!("\"{name}\":"))?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
