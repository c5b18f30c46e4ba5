"""Deliberate faults in what other users of the host and of the network may cost; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
N = "backends/net/src/"

FAULTS = []
