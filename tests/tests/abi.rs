//! The header and the library, tested with C and C++ compilers, the linker, pkg-config and CMake.

use gdrcore_tests::library;
use gdrcore_tests::or_skip;
use gdrcore_tests::source::root;
use gdrcore_tests::tools::{installed, loopback, run, target_dir, verbs_compiler};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

const C11: &[&str] = &["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"];
const CXX17: &[&str] = &["-std=c++17", "-Wall", "-Wextra", "-Werror", "-pedantic"];

fn source(name: &str) -> PathBuf {
    root().join("tests/c").join(name)
}

/// An empty folder for the build output of one test.
fn scratch(test: &str) -> PathBuf {
    let dir = target_dir().join("abi-tests").join(test);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder below the target folder");
    dir
}

fn expect(command: &mut Command, seconds: u64) -> String {
    let done = run(command, seconds);
    assert!(done.ok(), "{command:?}\n{done}");
    done.output
}

fn include() -> String {
    format!("-I{}", root().join("include").display())
}

/// Compiles one file to an object, which is discarded.
fn compiles(compiler: &str, flags: &[&str], file: &Path) {
    expect(
        Command::new(compiler)
            .args(flags)
            .arg(include())
            .arg("-c")
            .arg(file)
            .args(["-o", "/dev/null"]),
        60,
    );
}

#[test]
fn header_compiles_as_c11_without_any_warning() {
    let dir = scratch("c11");
    let alone = dir.join("alone.c");
    std::fs::write(
        &alone,
        "#include <gdrcore.h>\n#include <gdrcore.h>\nint main(void) { return 0; }\n",
    )
    .unwrap();
    compiles("cc", C11, &alone);
    compiles(
        "cc",
        &["-std=c11", "-Wall", "-Wextra", "-Werror", "-Wconversion", "-Wstrict-prototypes"],
        &alone,
    );
    compiles("cc", C11, &source("use.c"));
}

#[test]
fn header_compiles_as_cpp17_without_any_warning() {
    or_skip!(installed("c++"));
    compiles("c++", CXX17, &source("header.cpp"));
}

#[test]
fn layout_of_hot_structs_is_that_of_libibverbs() {
    or_skip!(verbs_compiler());
    compiles("cc", C11, &source("layout.c"));
}

#[test]
fn names_do_not_clash_with_gdrcopy() {
    let lib = library::build();
    let program = scratch("gdrcopy").join("gdrcopy");
    expect(
        Command::new("cc")
            .args(C11)
            .arg(include())
            .arg(source("gdrcopy.c"))
            .arg(format!("-L{}", lib.display()))
            .args(["-lgdrcore", "-o"])
            .arg(&program),
        60,
    );
    let told =
        expect(Command::new(&program).env("LD_LIBRARY_PATH", with_soname(&lib, "gdrcopy")), 20);
    assert!(told.contains("beside gdrcore"), "{told}");
}

/// A folder in which the loader finds the library under its soname, as after an installation.
fn with_soname(lib: &Path, test: &str) -> PathBuf {
    let dir = target_dir().join("abi-tests").join(test).join("lib");
    std::fs::create_dir_all(&dir).unwrap();
    let link = dir.join("libgdrcore.so.0");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(lib.join("libgdrcore.so"), link).unwrap();
    dir
}

/// The functions on the list that the linker has, and their versions: `gdrc_open@@GDRC_0.1`.
fn listed() -> BTreeSet<String> {
    let map = std::fs::read_to_string(root().join("ffi/gdrcore.map")).expect("ffi/gdrcore.map");
    let mut version = "";
    let mut listed = BTreeSet::new();
    for line in map.lines() {
        if let Some(name) = line.strip_suffix(" {") {
            version = name;
        } else if let Some(name) = line.trim().strip_suffix(';').filter(|n| n.starts_with("gdrc_"))
        {
            listed.insert(format!("{name}@@{version}"));
        }
    }
    listed
}

#[test]
fn library_exports_exactly_the_symbols_on_the_list_with_their_versions() {
    or_skip!(installed("nm"));
    let lib = library::build().join("libgdrcore.so");
    let told =
        expect(Command::new("nm").args(["-D", "--defined-only", "--format=posix"]).arg(lib), 60);
    // GNU ld lists the versions, too.
    let names = told.lines().filter_map(|l| l.split_whitespace().next());
    let exported: BTreeSet<&str> = names.filter(|n| !n.starts_with("GDRC_")).collect();
    assert_eq!(exported, listed().iter().map(String::as_str).collect());
    let header = std::fs::read_to_string(root().join("include/gdrcore.h")).unwrap();
    for s in &exported {
        let (name, _) = s.split_once("@@").expect("a version");
        assert!(header.contains(&format!("{name}(")), "{name} is exported, but not in the header");
    }
    for declared in header.lines().filter(|l| !l.starts_with([' ', '*', '#', '}'])) {
        let Some((head, _)) = declared.split_once('(') else { continue };
        let name = head.rsplit([' ', '*']).next().unwrap_or_default();
        if name.starts_with("gdrc_") && !head.starts_with("static") {
            assert!(
                exported.iter().any(|s| s.split('@').next() == Some(name)),
                "{name} is in the header, but ffi/gdrcore.map lacks it"
            );
        }
    }
}

#[test]
fn library_has_its_soname_and_needs_only_the_c_library() {
    or_skip!(installed("readelf"));
    let told = expect(
        Command::new("readelf").args(["-dW"]).arg(library::build().join("libgdrcore.so")),
        60,
    );
    assert!(
        told.lines().any(|l| l.contains("(SONAME)") && l.contains("[libgdrcore.so.0]")),
        "{told}"
    );
    for line in told.lines().filter(|l| l.contains("(NEEDED)")) {
        let known = ["[libc.so.6]", "[libgcc_s.so.1]", "[ld-linux-x86-64.so.2]", "[libm.so.6]"];
        assert!(
            known.iter().any(|k| line.contains(k)),
            "a dependency beyond the C library: {line}"
        );
    }
    assert!(!told.contains("(TEXTREL)"), "text relocations");
}

/// Installs below a scratch folder, as a packager does; returns DESTDIR.
fn install(test: &str, prefix: &str) -> PathBuf {
    install_with(test, prefix, &[])
}

/// As [`install`], with more make variables.
fn install_with(test: &str, prefix: &str, more: &[&str]) -> PathBuf {
    library::build();
    // What is not built yet is built in one folder.
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dest = scratch(test).join("dest");
    let mut make = Command::new("make");
    make.args(["--no-print-directory", "-C"]).arg(root()).arg("install").args(more);
    make.arg(format!("PREFIX={prefix}")).arg(format!("DESTDIR={}", dest.display()));
    expect(&mut make, 600);
    dest
}

#[test]
fn installed_tree_works_with_pkg_config_shared_and_static() {
    or_skip!(installed("pkg-config"));
    let dest = install("pkg-config", "/opt/gdrcore");
    let lib = dest.join("opt/gdrcore/lib");
    let pkg = |args: &[&str]| {
        let mut c = Command::new("pkg-config");
        c.env("PKG_CONFIG_PATH", lib.join("pkgconfig")).env("PKG_CONFIG_SYSROOT_DIR", &dest);
        expect(c.args(args).arg("gdrcore"), 20)
            .split_whitespace()
            .map(str::to_string)
            .collect::<Vec<_>>()
    };
    assert_eq!(pkg(&["--modversion"]), [env!("CARGO_PKG_VERSION")]);
    let program = dest.join("use");
    expect(
        Command::new("cc")
            .args(C11)
            .arg(source("use.c"))
            .args(pkg(&["--cflags", "--libs"]))
            .arg("-o")
            .arg(&program),
        60,
    );
    expect(Command::new(&program).env("LD_LIBRARY_PATH", &lib), 20);
    // The static library: the libraries that --static lists are enough.
    let archive = lib.join("libgdrcore.a");
    let private: Vec<String> = pkg(&["--static", "--libs"])
        .into_iter()
        .filter(|a| a != "-lgdrcore" && !a.starts_with("-L"))
        .collect();
    let program = dest.join("use_static");
    expect(
        Command::new("cc")
            .args(C11)
            .arg(source("use.c"))
            .args(pkg(&["--cflags"]))
            .arg(&archive)
            .args(private)
            .arg("-o")
            .arg(&program),
        60,
    );
    expect(&mut Command::new(&program), 20);
}

#[test]
fn static_library_shows_only_its_own_functions_and_links_into_any_program() {
    or_skip!(installed("nm"));
    let dest = install("static", "/usr");
    let archive = dest.join("usr/lib/libgdrcore.a");
    let told = expect(
        Command::new("nm").args(["-g", "--defined-only", "--format=posix"]).arg(&archive),
        60,
    );
    let shown: BTreeSet<&str> = told
        .lines()
        .filter_map(|l| l.split_once(' '))
        .map(|(name, _)| name)
        .filter(|n| !n.ends_with(':'))
        .collect();
    let listed = listed();
    assert_eq!(shown, listed.iter().filter_map(|s| s.split('@').next()).collect());
    // A program that contains the names of a Rust runtime of its own.
    let dir = dest.join("program");
    std::fs::create_dir(&dir).unwrap();
    let clash = dir.join("clash.c");
    std::fs::write(
        &clash,
        "void rust_eh_personality(void) {}\n\
         void __rust_alloc(void) {}\nvoid rust_begin_unwind(void) {}\n",
    )
    .unwrap();
    for more in [&[][..], &["-Wl,--gc-sections"], &["-static"]] {
        let program = dir.join("use");
        let mut cc = Command::new("cc");
        cc.args(C11)
            .arg(format!("-I{}", dest.join("usr/include").display()))
            .arg(source("use.c"))
            .arg(&clash);
        cc.arg(&archive).args(["-lpthread", "-ldl", "-lm"]).args(more).arg("-o").arg(&program);
        expect(&mut cc, 60);
        expect(&mut Command::new(&program), 20);
        // Copies survive vanished memory by a table in a section that the linker finds by its name.
        let sections = expect(Command::new("readelf").args(["-SW"]).arg(&program), 20);
        assert!(sections.contains("gdrc_fixup"), "{more:?}: {sections}");
    }
}

#[test]
fn installed_tree_works_with_pkg_config_where_it_was_moved_to() {
    or_skip!(installed("pkg-config"));
    // Library folders as on Debian, and a single folder.
    for (test, more) in
        [("moved", &[][..]), ("moved-multiarch", &["LIBDIR=/opt/one/lib/x86_64-linux-gnu"])]
    {
        let dest = install_with(test, "/opt/one", more);
        let moved = dest.with_file_name("else where");
        let _ = std::fs::remove_dir_all(&moved);
        std::fs::rename(dest.join("opt/one"), &moved).unwrap();
        let lib = moved.join(if more.is_empty() { "lib" } else { "lib/x86_64-linux-gnu" });
        let pkg = |args: &[&str]| {
            let mut c = Command::new("pkg-config");
            expect(c.env("PKG_CONFIG_PATH", lib.join("pkgconfig")).args(args).arg("gdrcore"), 20)
        };
        // Characters that a shell would treat as quotes.
        let real =
            |text: String| std::fs::canonicalize(text.trim().replace('\\', "")).expect("a folder");
        assert_eq!(real(pkg(&["--variable=prefix"])), moved.canonicalize().unwrap());
        assert_eq!(real(pkg(&["--variable=libdir"])), lib.canonicalize().unwrap());
        // Through a shell, which removes the quotes that pkg-config adds.
        let script = "eval cc -std=c11 \"$1\" $(pkg-config --cflags --libs gdrcore) -o use_moved";
        let mut sh = Command::new("sh");
        sh.args(["-euc", script, "sh"]).arg(source("use.c")).current_dir(&moved);
        expect(sh.env("PKG_CONFIG_PATH", lib.join("pkgconfig")), 60);
        expect(Command::new(moved.join("use_moved")).env("LD_LIBRARY_PATH", &lib), 20);
    }
}

#[test]
fn installed_tree_works_with_cmake_where_it_was_moved_to() {
    or_skip!(installed("cmake"));
    let dest = install("cmake", "/usr");
    let moved = dest.with_file_name("moved");
    std::fs::rename(dest.join("usr"), &moved).unwrap();
    let build = moved.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(root().join("tests/c")).arg("-B").arg(&build);
    configure.arg(format!("-Dgdrcore_DIR={}", moved.join("lib/cmake/gdrcore").display()));
    expect(&mut configure, 120);
    expect(Command::new("cmake").arg("--build").arg(&build), 120);
    for program in ["use_shared", "use_static"] {
        expect(&mut Command::new(build.join(program)), 20);
    }
}

/// The C blocks of docs/using/ABI.md that begin with these words.
fn recipes(begin: &str) -> Vec<String> {
    let page =
        std::fs::read_to_string(root().join("docs/using/ABI.md")).expect("docs/using/ABI.md");
    let blocks = page.split("```c\n").skip(1).filter_map(|b| b.split("```").next());
    blocks.filter(|b| b.starts_with(begin)).map(String::from).collect()
}

/// A program of tests/c that includes a recipe of the page.
fn with_recipe(name: &str, file: &str, recipe: &str) -> PathBuf {
    let dir = scratch(name);
    std::fs::write(dir.join(file), recipe).unwrap();
    let lib = library::build();
    let program = dir.join(name);
    let loader = with_soname(&lib, name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(include());
    cc.arg(format!("-I{}", dir.display())).arg("-o").arg(&program);
    cc.arg(source(&format!("{name}.c"))).arg(lib.join("libgdrcore.so"));
    expect(cc.arg(format!("-Wl,-rpath,{}", loader.display())), 60);
    program
}

#[test]
fn the_small_configuration_takes_less_than_256_kib_and_carries_all_operations() {
    let recipe = recipes("static void small_config");
    assert_eq!(recipe.len(), 1, "the page has one small configuration");
    let program = with_recipe("embedded", "embedded.h", &recipe[0]);
    let devices = [1, 2].map(|host| format!("soft:{}", loopback(92, host)));
    let said = expect(Command::new(program).args(devices), 60);
    assert!(said.contains("every byte arrived"), "{said}");
    println!("{said}");
}

/// Compiles and runs the recipes of docs/using/ABI.md for threads that sleep, as the page shows
/// them.
#[test]
fn the_recipes_for_sleeping_work_and_take_no_cpu_time() {
    let recipes = recipes("static int wait_");
    assert_eq!(recipes.len(), 2, "the page has two recipes");
    let program = with_recipe("sleep", "recipes.h", &recipes.concat());
    for (n, way) in ["one", "many", "many helper", "fd helper"].into_iter().enumerate() {
        let n = n as u32;
        let words: Vec<&str> = way.split(' ').collect();
        let devices = [1, 2].map(|host| format!("soft:{}", loopback(91, 2 * n + host)));
        println!(
            "{way}: {}",
            expect(Command::new(&program).arg(words[0]).args(&devices).args(&words[1..]), 120)
        );
    }
}
