//! C programs of libibverbs, from `tests/c`, under gdrcore-run in a folder of the test's own.

use crate::rdmacm::command;
use crate::source::root;
use crate::tools::{compile, run, scratch, verbs_compiler, verbs_program, Done, Scratch};
use std::fs::DirEntry;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The names of the programs in a folder of `tests/c`, sorted.
pub fn programs_of(folder: &str) -> Vec<String> {
    let all = std::fs::read_dir(root().join("tests/c").join(folder)).expect("the folder");
    let name = |e: DirEntry| Some(e.file_name().to_str()?.strip_suffix(".c")?.to_string());
    let mut names: Vec<String> = all.flatten().filter_map(name).collect();
    names.sort();
    names
}

/// A folder for programs and what they write, and the address on which they run.
pub struct Place {
    /// The folder.
    pub dir: Scratch,
    /// The address.
    pub address: String,
}

impl Place {
    /// `None`: there is no compiler, or libibverbs's headers are not installed.
    pub fn new(test: &str, address: String) -> Option<Place> {
        verbs_compiler().is_ok().then(|| Place { dir: scratch(test), address })
    }

    /// Compiles a program.
    pub fn compile(&self, name: &str, more: &[&str]) -> PathBuf {
        compile("cc", name, &self.dir, &[more, &["-libverbs", "-lpthread"]].concat())
    }

    /// A program in the folder.
    pub fn command(&self, options: &[&str], program: &Path) -> Command {
        let mut c = command(Some(&self.address), options, program);
        c.current_dir(&*self.dir);
        c
    }

    /// Runs a program in the folder, for a minute at most.
    pub fn run(&self, options: &[&str], program: &Path) -> Done {
        run(&mut self.command(options, program), 60)
    }

    /// A file of the folder; an empty text if there is none.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.join(name)).unwrap_or_default()
    }
}

/// One program with its place.
pub struct Program {
    place: Place,
    /// The compiled program.
    pub file: PathBuf,
}

impl Program {
    /// An error: as [`verbs_program`].
    pub fn new(name: &str, test: &str, address: String) -> Result<Program, String> {
        let (file, dir) = verbs_program(test, name, &[])?;
        Ok(Program { file, place: Place { dir, address } })
    }

    /// The program with these arguments.
    pub fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut c = self.place.command(options, &self.file);
        c.args(words);
        c
    }

    /// Runs it, for a minute at most.
    pub fn run(&self, options: &[&str], words: &[&str]) -> Done {
        run(&mut self.command(options, words), 60)
    }
}

impl Deref for Program {
    type Target = Place;
    fn deref(&self) -> &Place {
        &self.place
    }
}
