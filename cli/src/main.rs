//! `gdrcore`: one command for the programs of gdrcore. Subcommands that are programs of their own
//! are executed in this process's place; `doctor` and `top` are here.

mod completion;
mod doctor;
mod programs;
mod top;

use lexopt::prelude::*;
use programs::{Program, PROGRAMS};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Exit code of bad usage.
const USAGE: u8 = 2;

/// What the command line asks for.
enum Request {
    Say(String),
    Doctor(doctor::Options),
    Top(top::Options),
    Execute(&'static Program, Vec<OsString>),
}

/// The subcommands that are here, with their lines for `--help`.
const OWN: [(&str, &str); 5] = [
    ("doctor", "say what keeps RDMA from working here, or to a peer"),
    ("top", "show the devices of your processes, their rates and troubles"),
    ("version", "the version; also --version"),
    ("help [COMMAND]", "this text, or that of a command; also --help"),
    ("completion [SHELL]", "what a shell completes gdrcore with: bash, zsh, fish"),
];

fn help() -> String {
    let mut text = String::from(
        "usage: gdrcore COMMAND [ARGUMENT]...\n\
         RDMA with or without an RDMA NIC. `gdrcore COMMAND --help` tells more.\n\n",
    );
    for (name, what) in PROGRAMS.iter().map(|p| (p.name, p.what)).chain(OWN) {
        text += &format!("  {name:<19} {what}\n");
    }
    text
}

fn version() -> String {
    format!("gdrcore {}\n", env!("CARGO_PKG_VERSION"))
}

fn parse(words: impl Iterator<Item = OsString>) -> Result<Request, lexopt::Error> {
    let mut words = lexopt::Parser::from_args(words);
    let command = match words.next()? {
        Some(Short('h') | Long("help")) => return Ok(Request::Say(help())),
        Some(Short('V') | Long("version")) => return Ok(Request::Say(version())),
        Some(Value(command)) => command.string()?,
        Some(word) => return Err(word.unexpected()),
        None => return Err(format!("which command?\n{}", help().trim_end()).into()),
    };
    of_command(&command, words.raw_args()?.collect())
}

fn of_command(command: &str, rest: Vec<OsString>) -> Result<Request, lexopt::Error> {
    match command {
        "help" if rest.is_empty() => Ok(Request::Say(help())),
        "help" if rest.len() == 1 && rest[0] != "help" => {
            of_command(&rest[0].clone().string()?, vec!["--help".into()])
        }
        "version" if rest.is_empty() => Ok(Request::Say(version())),
        "completion" if rest.len() < 2 => {
            let shell = rest.first().map_or(Ok("bash".into()), |shell| shell.clone().string())?;
            let script = completion::script(&shell).ok_or(format!("no shell '{shell}'"))?;
            Ok(Request::Say(script))
        }
        "version" | "help" | "completion" => Err(format!("{command}: too many arguments").into()),
        "doctor" => match doctor::parse(rest.into_iter())? {
            Some(options) => Ok(Request::Doctor(options)),
            None => Ok(Request::Say(doctor::HELP.into())),
        },
        "top" => match top::parse(rest.into_iter())? {
            Some(options) => Ok(Request::Top(options)),
            None => Ok(Request::Say(top::HELP.into())),
        },
        _ => match PROGRAMS.iter().find(|p| p.name == command) {
            Some(program) => Ok(Request::Execute(program, rest)),
            None => Err(format!("no command '{command}'").into()),
        },
    }
}

/// Executes a program in this one's place; returns what is wrong.
fn execute(program: &Program, arguments: &[OsString]) -> String {
    match program.find() {
        Some(path) => format!("{}: {}", path.display(), Command::new(&path).args(arguments).exec()),
        None => format!(
            "{}: there is no {} beside this program; Debian's package of it is {}",
            program.name, program.installed, program.package
        ),
    }
}

fn main() -> ExitCode {
    let said = match parse(std::env::args_os().skip(1)) {
        Ok(Request::Say(text)) => std::io::stdout()
            .write_all(text.as_bytes())
            .map(|()| 0)
            .map_err(|e| (1, format!("standard output: {e}"))),
        Ok(Request::Doctor(options)) => doctor::run(&options).map_err(|e| (1, e)),
        Ok(Request::Top(options)) => top::run(&options).map_err(|e| (1, e)),
        Ok(Request::Execute(program, rest)) => Err((127, execute(program, &rest))),
        Err(why) => Err((USAGE, format!("{why}\nTry 'gdrcore --help'."))),
    };
    match said {
        Ok(code) => ExitCode::from(code),
        Err((code, why)) => {
            // Standard error may have been closed.
            let _ = std::io::stderr().write_all(format!("gdrcore: {why}\n").as_bytes());
            ExitCode::from(code)
        }
    }
}
