"""Deliberate faults in where libraries run and what their releases promise; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

FAULTS = [
    ("libgdrcore.so has rustc's version script, without versions", "ffi/linker.sh",
     "    --version-script=*/list) ;;\n", "    --version-script=*.map) ;;\n", "abi"),
    ("a function has no version", "ffi/gdrcore.map",
     "        gdrc_ah_create;\n", "", "abi"),
    ("the static library has no functions, whose names have versions", "scripts/static_lib.sh",
     'sub("@.*", "", $1); ', "", "abi"),
    ("a field moves", "ffi/abi/0.1.txt",
     "field struct gdrc_sge.lkey 12 4", "field struct gdrc_sge.lkey 8 4", "abi_dump"),
    ("a struct of fixed size may grow", "tests/tests/abi_dump.rs",
     '.then_some(())?;', '.then_some(());', "abi_dump"),
    ("a release is made of a tree with changes", "scripts/release.py",
     'if git("status", "--porcelain"):', "if False:", "release"),
    ("a release leaves the lock file", "scripts/release.py",
     "\\n(?!source)", "\\n(?=source)", "release"),
    ("a release may be older than the one before", "scripts/release.py",
     "new < parts(old) or ", "", "release"),
    ("sockets go into a directory that is read-only here", "backends/net/src/local/socket_dir.rs",
     "        check(unsafe { libc::access(own.as_c_str().as_ptr(), libc::W_OK) })?;\n",
     "        _ = &own;\n",
     "where_it_runs"),
    ("no fault of a copy has a landing", "core/src/mem/host/landings.rs",
     "return Some(field(8, e.landing));", "return None;", "fault_chain"),
    ("gdrcore-run finds nothing without /proc", "dropin/run/src/drop_in_library.rs",
     ".or_else(|| called(&std::env::args_os().next()?))", "", "where_it_runs"),
]
