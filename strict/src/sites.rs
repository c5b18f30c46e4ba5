//! Places of the program: the call stacks of its calls, each kept once.
//!
//! A call's stack is walked at each post, but file and line are looked up only when a report names
//! it: the standard library reads the debug information of the program then.

use core::ffi::{c_int, c_void, CStr};
use std::backtrace::Backtrace;
use std::collections::HashMap;

/// Most stacks that are kept; the calls of further ones have no place.
const SITES_MAX: usize = 4096;
/// Most frames by which stacks are told apart.
const FRAMES_MAX: usize = 48;
/// Most frames that are shown.
pub const SHOWN_MAX: usize = 16;

/// The number of a stack; [`UNKNOWN`] if too many were kept.
pub type Site = usize;
pub const UNKNOWN: Site = usize::MAX;

extern "C" {
    /// Of the C++ ABI: calls `each` for the frames of this thread, until it returns other than 0.
    fn _Unwind_Backtrace(
        each: unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
    fn _Unwind_GetIP(frame: *mut c_void) -> usize;
}

/// A frame of the program.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frame {
    pub address: usize,
    /// Empty: unknown.
    pub function: String,
    /// File and line; `None`: no debug information.
    pub line: Option<(String, u32)>,
    /// The file of its code, and the offset there.
    pub module: (String, usize),
}

/// Addresses of code, in fixed memory.
struct Walk {
    addresses: [usize; FRAMES_MAX],
    count: usize,
}

unsafe extern "C" fn note(frame: *mut c_void, walk: *mut c_void) -> c_int {
    // SAFETY: `hash` passes a walk, and the unwinder a frame of its own.
    let (walk, at) = unsafe { (&mut *walk.cast::<Walk>(), _Unwind_GetIP(frame)) };
    walk.addresses[walk.count] = at;
    walk.count += 1;
    c_int::from(walk.count == FRAMES_MAX)
}

/// A number of this thread's stack.
fn hash() -> u64 {
    let mut walk = Walk { addresses: [0; FRAMES_MAX], count: 0 };
    // SAFETY: `note` writes at most as many addresses as the walk has room for.
    unsafe { _Unwind_Backtrace(note, (&raw mut walk).cast()) };
    let mix =
        |h: u64, at: &usize| (h ^ *at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    walk.addresses[..walk.count].iter().fold(0, mix)
}

/// The file that holds the code at an address, its begin there and its name.
fn module_of(address: usize) -> Option<(usize, String)> {
    // SAFETY: zeroes are a value of the struct, which the call fills; the name is a static text.
    unsafe {
        let mut info: libc::Dl_info = core::mem::zeroed();
        if libc::dladdr(address as *const c_void, &mut info) == 0 || info.dli_fname.is_null() {
            return None;
        }
        let name = CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned();
        Some((info.dli_fbase as usize, name))
    }
}

/// All stacks.
#[derive(Default)]
pub struct Sites {
    numbers: HashMap<u64, Site>,
    all: Vec<Backtrace>,
}

impl Sites {
    /// The place of the call that this thread is in.
    pub fn here(&mut self) -> Site {
        let hash = hash();
        if let Some(known) = self.numbers.get(&hash) {
            return *known;
        }
        if self.all.len() == SITES_MAX {
            return UNKNOWN;
        }
        self.all.push(Backtrace::force_capture());
        self.numbers.insert(hash, self.all.len() - 1);
        self.all.len() - 1
    }

    /// The frames of the program at a place, the innermost first. Those of this library are left
    /// out.
    pub fn frames(&self, site: Site) -> Vec<Frame> {
        let Some(trace) = self.all.get(site) else { return Vec::new() };
        let base_of = |address| module_of(address).map(|(base, _)| base);
        let own = base_of(hash as *const () as usize);
        let mut frames = parse(&format!("{trace:#}"));
        let main = frames.iter().find(|f| f.function == "main");
        // The program contains this library: their frames differ by their names alone.
        let is_one = main.is_some_and(|main| base_of(main.address) == own);
        if is_one {
            frames.drain(..of_library(&frames));
        }
        frames.retain_mut(|f| match module_of(f.address) {
            Some((base, _)) if Some(base) == own && !is_one => false,
            Some((base, name)) => {
                f.module = (name, f.address - base);
                true
            }
            None => true,
        });
        if let Some(main) = frames.iter().position(|f| f.function == "main") {
            frames.truncate(main + 1);
        }
        // Of a program without symbols.
        if let Some(libc) = frames.iter().position(|f| f.function.starts_with("__libc_start")) {
            frames.truncate(libc);
        }
        frames.truncate(SHOWN_MAX);
        frames
    }
}

/// How many of the innermost frames are this library's, by their names. A frame of the standard
/// library counts if one of ours has called it.
fn of_library(frames: &[Frame]) -> usize {
    let is_ours = |f: &Frame| f.function.starts_with("gdrc_") || f.function.contains("gdrcore");
    let is_std = |f: &Frame| f.function.trim_start_matches('<').starts_with("std");
    let inner = frames.iter().take_while(|f| is_ours(f) || is_std(f)).count();
    frames[..inner].iter().rposition(is_ours).map_or(0, |n| n + 1)
}

/// Whether librdmacm has made the call by itself. Such calls are not the program's.
pub fn is_of_librdmacm(frames: &[Frame]) -> bool {
    frames.first().is_some_and(|f| f.module.0.contains("librdmacm.so"))
}

/// The frames of a backtrace's text: `N: 0xADDRESS - FUNCTION`, and in a line of its own `at
/// FILE:LINE[:COLUMN]`.
fn parse(text: &str) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    for line in text.lines().map(str::trim) {
        if let (Some(place), Some(last)) = (line.strip_prefix("at "), frames.last_mut()) {
            last.line = file_and_line(place);
            continue;
        }
        let Some((_, rest)) = line.split_once(": ") else { continue };
        let (address, function) = rest.trim_start().split_once(" - ").unwrap_or((rest, ""));
        let hex = address.trim().trim_start_matches("0x");
        let Ok(address) = usize::from_str_radix(hex, 16) else { continue };
        let function = if function == "<unknown>" { "" } else { function };
        frames.push(Frame { address, function: function.into(), ..Frame::default() });
    }
    frames
}

fn file_and_line(place: &str) -> Option<(String, u32)> {
    let (rest, last) = place.rsplit_once(':')?;
    let last: u32 = last.parse().ok()?;
    match rest.rsplit_once(':').map(|(file, line)| (file, line.parse::<u32>())) {
        Some((file, Ok(line))) => Some((file.into(), line)),
        _ => Some((rest.into(), last)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_with_and_without_lines() {
        let text = "   0:     0x7f00 - post\n               at /a/b: c.c:31:5\n   \
                    1:     0x7e10 - <unknown>\n   2:     0x7d20 - main\n      at x.c:7\n";
        let frames = parse(text);
        let wanted = [
            (0x7f00, "post", Some(("/a/b: c.c".to_string(), 31))),
            (0x7e10, "", None),
            (0x7d20, "main", Some(("x.c".to_string(), 7))),
        ];
        assert_eq!(frames.len(), wanted.len());
        for (f, (address, function, line)) in frames.iter().zip(wanted) {
            assert_eq!((f.address, f.function.as_str(), &f.line), (address, function, &line));
        }
        assert!(parse("").is_empty() && parse("x\n: y\nat z:1\n").is_empty());
    }

    #[test]
    fn a_program_that_contains_the_library_is_behind_its_call() {
        let frames = |names: &[&str]| -> Vec<Frame> {
            names.iter().map(|n| Frame { function: n.to_string(), ..Frame::default() }).collect()
        };
        let fast = ["<std[1]>::x", "gdrcore_strict::y", "gdrc_post_send", "gdrcore::z", "send"];
        assert_eq!(of_library(&frames(&fast)), 4);
        let tail_call = ["std::x", "<gdrcore_strict::y>", "std::sort", "main", "gdrc_like"];
        assert_eq!(of_library(&frames(&tail_call)), 2);
        assert_eq!(of_library(&frames(&["std::x", "main"])), 0);
    }

    #[test]
    fn one_place_is_one_site() {
        let mut sites = Sites::default();
        let n = core::hint::black_box(3);
        let of_loop: Vec<Site> = (0..n).map(|_| sites.here()).collect();
        let other = sites.here();
        assert_eq!(of_loop, [0, 0, 0]);
        assert_eq!((other, sites.all.len()), (1, 2));
    }
}
