//! The process that goes on, and the program that it starts.

use crate::play::{hear, tell};
use gdrcore_tests::ends::Address;
use gdrcore_tests::patience::{self, Watch};
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

/// A program that will end. One that does not is killed.
pub struct Program {
    child: Child,
    _watch: Watch,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// The arguments of the program that this process is, after its part's name.
pub fn arguments() -> Option<Vec<String>> {
    let all = std::env::var("GDRC_TEST_ENDS").ok()?;
    Some(all.split(' ').map(str::to_string).collect())
}

impl Program {
    /// Starts this test program anew, for one of its tests alone.
    pub fn start(test: &str, arguments: &[&str]) -> Program {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        command.args(["--exact", test, "--nocapture", "-q"]);
        command.env("GDRC_TEST_ENDS", arguments.join(" "));
        Self::run(&mut command)
    }

    /// Starts a program that says when it is ready.
    pub fn run(command: &mut Command) -> Program {
        patience::hand_on(command);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
        let (to, from) = (child.stdin.take().expect("in"), child.stdout.take().expect("out"));
        let _watch = patience::watch(60, "a program that ends");
        let mut program = Program { child, _watch, to, from: BufReader::new(from) };
        program.wait_for("ready");
        program
    }

    /// Waits for a line of its.
    pub fn wait_for(&mut self, word: &str) {
        let mut line = String::new();
        while self.from.read_line(&mut line).expect("a pipe") > 0 {
            if line.trim_end().ends_with(word) {
                return;
            }
            line.clear();
        }
        panic!("the program ended before it said {word}");
    }

    /// Lets it go on.
    pub fn tell(&mut self, own: &Address) {
        tell(&mut self.to, own);
    }

    /// What it writes.
    pub fn lines(&mut self) -> &mut impl BufRead {
        &mut self.from
    }

    /// Exchanges ends with it.
    pub fn swap(&mut self, own: &Address) -> Address {
        let other = hear(&mut self.from);
        tell(&mut self.to, own);
        other
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("its end")
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
