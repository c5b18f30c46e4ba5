//! Checks whether a program can run on the drop-in: the dynamic loader loads the drop-in, so the
//! program must have one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

const EXEC: u16 = 2;
const DYN: u16 = 3;
/// Types of program headers.
const DYNAMIC: u64 = 2;
const INTERP: u64 = 3;
/// Entry of the dynamic section with flags, and the flag "this is a program, not a library".
const FLAGS_1: u64 = 0x6fff_fffb;
const PIE: u64 = 0x0800_0000;
/// Most bytes of a file that are read at a time, and of a script's first line.
const PART_MAX: usize = 1 << 16;
const LINE_MAX: usize = 256;
/// Bits of the mode: the program runs with the rights of its owner or group.
const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;

/// Reads a part of a file, from an offset, of at most so many bytes.
type FileReader<'a> = &'a dyn Fn(u64, usize) -> Vec<u8>;

/// The obstacle in words; `None`: none was found.
pub fn obstacle(program: &OsStr) -> Option<String> {
    let path = binary(program)?;
    of_file(&path, &reader(&path)?)
}

/// The loader of a program, and the file that it loads; `None`: it has none that is known here.
pub fn loader(program: &OsStr) -> Option<(PathBuf, PathBuf)> {
    let path = binary(program)?;
    match check_loader(&reader(&path)?) {
        ElfCheck::Loaded(loader) => Some((loader.into(), path)),
        _ => None,
    }
}

/// The file that is executed: a script's interpreter, else the program itself.
fn binary(program: &OsStr) -> Option<PathBuf> {
    let path = find(program)?;
    Some(script(&reader(&path)?(0, LINE_MAX)).unwrap_or(path))
}

fn reader(path: &Path) -> Option<impl Fn(u64, usize) -> Vec<u8>> {
    let file = std::fs::File::open(path).ok()?;
    Some(move |offset: u64, length: usize| part(&file, offset, length))
}

fn part(file: &std::fs::File, offset: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length.min(PART_MAX)];
    let n = file.read_at(&mut bytes, offset).unwrap_or(0);
    bytes.truncate(n);
    bytes
}

fn of_file(path: &Path, file: FileReader) -> Option<String> {
    let name = path.display();
    let why = match check_loader(file) {
        ElfCheck::Static => {
            format!(
                "{name} is statically linked: no library can be put \
                 in front of its own, so its verbs do not come here"
            )
        }
        ElfCheck::Foreign => {
            format!(
                "{name} is of another processor or word size than \
                 these libraries, so its loader passes over them"
            )
        }
        ElfCheck::OtherLoader(loader) => {
            format!(
                "{name} has the loader {loader}, and these libraries \
                 need {LIBC}'s: they will probably not be loaded"
            )
        }
        ElfCheck::Fine | ElfCheck::Loaded(_) => {
            let rights = std::fs::metadata(path).ok()?;
            let own = std::fs::metadata("/proc/self").ok()?;
            let uid = rights.mode() & SET_UID != 0 && rights.uid() != own.uid();
            let gid = rights.mode() & SET_GID != 0 && rights.gid() != own.gid();
            if !uid && !gid {
                return None;
            }
            format!(
                "{name} runs with the rights of another user or \
                 group: the loader takes no libraries from its caller"
            )
        }
    };
    Some(why + "; programs that it starts may still run on gdrcore")
}

/// The path of a program, by the rules of execvp(3).
pub fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|p| p.is_file())
}

/// The interpreter of a script.
fn script(front: &[u8]) -> Option<PathBuf> {
    let line = front.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let word = line.split(|b| *b == b' ' || *b == b'\t').find(|w| !w.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(word)))
}

#[derive(Debug, PartialEq, Eq)]
enum ElfCheck {
    Fine,
    /// By glibc's loader, whose path this is.
    Loaded(String),
    Static,
    Foreign,
    OtherLoader(String),
}

/// The C library that this was built for, and how its loader is called.
const LIBC: &str = if cfg!(target_env = "musl") { "musl" } else { "glibc" };
const LOADER: &str = if cfg!(target_env = "musl") { "ld-musl" } else { "ld-linux" };

/// This processor's ELF machine number.
const MACHINE: u16 = if cfg!(target_arch = "aarch64") { 183 } else { 62 };

fn check_loader(file: FileReader) -> ElfCheck {
    // The system judges a file that is no ELF file or is truncated.
    parse(file).unwrap_or(ElfCheck::Fine)
}

/// A number of `length` bytes at an offset of a part.
fn number(part: &[u8], at: usize, length: usize) -> Option<u64> {
    let bytes = part.get(at..at.checked_add(length)?)?;
    Some(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
}

fn parse(file: FileReader) -> Option<ElfCheck> {
    let front = file(0, 64);
    if front.get(..4)? != b"\x7fELF" {
        return None;
    }
    // 64 bits, little-endian: the only kind that this is built for.
    if front.get(4..6)? != [2, 1] || number(&front, 18, 2)? != u64::from(MACHINE) {
        return Some(ElfCheck::Foreign);
    }
    let kind = number(&front, 16, 2)? as u16;
    let (at, size, count) =
        (number(&front, 32, 8)?, number(&front, 54, 2)? as usize, number(&front, 56, 2)? as usize);
    let mut is_program = kind == EXEC;
    let headers = file(at, size.checked_mul(count)?);
    for header in headers.chunks_exact(size.max(1)) {
        let (offset, length) = (number(header, 8, 8)?, number(header, 32, 8)? as usize);
        match number(header, 0, 4)? {
            INTERP => {
                let text = file(offset, length.min(LINE_MAX));
                let name = String::from_utf8_lossy(text.split(|b| *b == 0).next()?).into_owned();
                return Some(if name.contains(LOADER) {
                    ElfCheck::Loaded(name)
                } else {
                    ElfCheck::OtherLoader(name)
                });
            }
            DYNAMIC if kind == DYN => {
                let is_pie = |e: &[u8]| {
                    number(e, 0, 8) == Some(FLAGS_1)
                        && number(e, 8, 8).is_some_and(|v| v & PIE != 0)
                };
                is_program |= file(offset, length).chunks_exact(16).any(is_pie);
            }
            _ => {}
        }
    }
    Some(if is_program { ElfCheck::Static } else { ElfCheck::Fine })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An ELF file with these program headers `(type, contents)`.
    fn file(kind: u16, headers: &[(u64, &[u8])]) -> Vec<u8> {
        let mut f = vec![0u8; 64 + headers.len() * 56];
        f[..6].copy_from_slice(b"\x7fELF\x02\x01");
        f[16..18].copy_from_slice(&kind.to_le_bytes());
        f[18..20].copy_from_slice(&MACHINE.to_le_bytes());
        f[32..40].copy_from_slice(&64u64.to_le_bytes());
        f[54..56].copy_from_slice(&56u16.to_le_bytes());
        f[56..58].copy_from_slice(&(headers.len() as u16).to_le_bytes());
        for (i, (kind, contents)) in headers.iter().enumerate() {
            let (at, offset) = (64 + i * 56, f.len() as u64);
            f[at..at + 4].copy_from_slice(&(*kind as u32).to_le_bytes());
            f[at + 8..at + 16].copy_from_slice(&offset.to_le_bytes());
            f[at + 32..at + 40].copy_from_slice(&(contents.len() as u64).to_le_bytes());
            f.extend_from_slice(contents);
        }
        f
    }

    fn judged(file: &[u8]) -> ElfCheck {
        check_loader(&|offset, length| {
            let rest =
                usize::try_from(offset).ok().and_then(|at| file.get(at..)).unwrap_or_default();
            rest[..length.min(rest.len())].to_vec()
        })
    }

    #[test]
    fn a_program_without_a_loader_is_an_obstacle() {
        let pie = [FLAGS_1.to_le_bytes(), PIE.to_le_bytes()].concat();
        let plain = [1u64.to_le_bytes(), [0; 8]].concat();
        assert_eq!(judged(&file(EXEC, &[(1, b"")])), ElfCheck::Static);
        assert_eq!(judged(&file(DYN, &[(DYNAMIC, &pie)])), ElfCheck::Static);
        assert_eq!(
            judged(&file(DYN, &[(DYNAMIC, &plain)])),
            ElfCheck::Fine,
            "a library that can be run"
        );
        assert_eq!(
            judged(&file(DYN, &[(INTERP, b"/lib64/ld-linux-x86-64.so.2\0"), (DYNAMIC, &pie)])),
            ElfCheck::Loaded("/lib64/ld-linux-x86-64.so.2".into())
        );
        let musl = judged(&file(EXEC, &[(INTERP, b"/lib/ld-musl-x86_64.so.1\0")]));
        assert_eq!(musl, ElfCheck::OtherLoader("/lib/ld-musl-x86_64.so.1".into()));
        let mut small = file(EXEC, &[(1, b"")]);
        small[4] = 1;
        assert_eq!(judged(&small), ElfCheck::Foreign);
    }

    #[test]
    fn any_bytes_are_parsed_without_panic() {
        let whole = file(DYN, &[(INTERP, b"/lib64/ld-linux-x86-64.so.2\0")]);
        for n in 0..whole.len() {
            judged(&whole[..n]);
            let mut bad = whole.clone();
            bad[n] = 0xff;
            judged(&bad);
        }
        assert_eq!(judged(b"#!/bin/sh\n"), ElfCheck::Fine);
        assert_eq!(script(b"#! /usr/bin/env python3\n"), Some("/usr/bin/env".into()));
        assert_eq!(script(b"#!\n"), None);
    }
}
