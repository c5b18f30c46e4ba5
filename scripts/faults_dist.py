"""Deliberate faults in the way from an empty machine to the first program; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

FAULTS = [
    ("a version's numbers are compared as text", "scripts/cargo_version.sh",
     "sort -V", "sort", "dist"),
    ("the router is built by any cargo", "Makefile",
     "	@$(FIT)\n	$(CARGO) build --release -p gdrcore-router -p",
     "	$(CARGO) build --release -p gdrcore-router -p", "dist"),
    ("units name /usr whatever the prefix is", "Makefile",
     "s|/usr/bin/gdrcore|$(PREFIX)/bin/gdrcore|", "s|/usr/bin/gdrcore|/usr/bin/gdrcore|", "dist"),
    ("installed tools look for the library nowhere", "Makefile",
     "RPATH='$(TOOLS_RPATH)'", "RPATH=", "dist"),
    ("uninstall leaves the units", "Makefile",
     ' $(UNITS:%="$(DESTDIR)$(UNITDIR)/%")', "", "dist"),
    ("a tarball has the times of the build", "dist/pack.py",
     "                info.mtime = release.epoch\n", "", "dist_roots"),
    ("a package has the times of the build", "dist/debs.py",
     "                os.utime(path, (release.epoch, release.epoch), follow_symlinks=False)\n",
     "", "dist_roots"),
    ("a package's libraries are executable", "dist/debs.py",
     "            to.chmod(0o644)\n", "            pass\n", "dist_roots"),
    ("the wheel's programs are not executable", "dist/wheel.py",
     "mode = 0o755 if", "mode = 0o644 if", "dist_roots"),
    ("the fixtures are no plugin of pytest", "dist/wheel.py",
     "[pytest11]", "[pytest]", "dist_roots"),
]
