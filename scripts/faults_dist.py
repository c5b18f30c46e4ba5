"""Deliberate faults in the way from an empty machine to the first program; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

FAULTS = [
    ("a version's numbers are compared as text", "scripts/cargo_version.sh",
     "sort -V", "sort", "dist"),
    ("the router is built by any cargo", "Makefile",
     "	@$(FIT)\n	$(CARGO) build --release -p gdrcore-router -p",
     "	$(CARGO) build --release -p gdrcore-router -p", "dist"),
]
