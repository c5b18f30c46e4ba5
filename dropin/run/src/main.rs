//! `gdrcore-run`: runs an unmodified verbs or librdmacm program on gdrcore. Sets the environment
//! that the libibverbs drop-in reads, puts the drop-in before the system's library and before one
//! that the program contains, and executes the program: exit code and signals are the program's
//! own.

mod arguments;
mod capture;
mod faults;
mod processes;
mod search;
mod shrink;
mod stop;
mod strict_files;
mod trace_file;

use arguments::{Arguments, Request};
use gdrcore_run::{drop_in_library, elf};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Exit codes of shells: bad usage, cannot be executed, not found.
const USAGE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

fn main() -> ExitCode {
    let arguments = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(Request::Help) => {
            print!("{}", arguments::help());
            return ExitCode::SUCCESS;
        }
        Ok(Request::Version) => {
            println!("gdrcore-run {}", env!("CARGO_PKG_VERSION"));
            return ExitCode::SUCCESS;
        }
        Ok(Request::Run(mut a)) => {
            let begun = capture::begin(&mut a)
                .and_then(|()| faults::begin(&mut a))
                .and_then(|()| strict_files::begin(&mut a))
                .and_then(|()| trace_file::begin(&mut a));
            match begun {
                Ok(()) => a,
                Err(why) => return fail(USAGE, &why),
            }
        }
        Err(why) => return fail(USAGE, &format!("{why}\nTry 'gdrcore-run --help'.")),
    };
    let Some(folder) = drop_in_library::folder() else {
        return fail(
            USAGE,
            &format!("{} was not found; {}", drop_in_library::VERBS, drop_in_library::WHERE),
        );
    };
    if let Some(why) = elf::obstacle(&arguments.program) {
        eprintln!("gdrcore-run: warning: {why}");
    }
    if let Some(search) = &arguments.search {
        let done = search::run(&arguments, search, &|| command(&arguments, &folder));
        return done.unwrap_or_else(|why| fail(USAGE, &why));
    }
    let e = command(&arguments, &folder).exec();
    let code = if e.kind() == std::io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE };
    fail(code, &format!("{}: {e}", arguments.program.to_string_lossy()))
}

fn fail(code: u8, why: &str) -> ExitCode {
    eprintln!("gdrcore-run: {why}");
    ExitCode::from(code)
}

/// The program with its environment.
fn command(a: &Arguments, folder: &std::path::Path) -> Command {
    let mut c = Command::new(&a.program);
    c.args(&a.rest);
    for (name, value) in &a.environment {
        c.env(name, value);
    }
    c.envs(drop_in_library::variables(folder));
    c
}
