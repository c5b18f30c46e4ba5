"""Deliberate faults in what happens when a program ends; see mutate.py.

A row: what is wrong, the file, its text, what replaces it, and the stage that notices it (a name of
`mutate.NAMED`, or a test of tests/tests)."""

C = "core/src/"
N = "backends/net/src/"

FAULTS = []
