"""Deliberate faults in what tenants and peers may take from each other; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
N = "backends/net/src/"

FAULTS = []
