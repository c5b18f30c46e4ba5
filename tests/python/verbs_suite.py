"""Runs rdma-core's tests of generic verbs and prints one line for each: module, test, outcome, reason, with tabs between."""
import sys
import unittest

# The suite imports its own modules by their bare names too.
sys.path[:0] = [".", "tests"]
from args_parser import parser


class Lines(unittest.TestResult):
    def say(self, test, outcome, reason=""):
        module, case = test.id().split(".", 2)[1:] if test.id().startswith("tests.") else ("", test.id())
        print(module, case, outcome, " ".join(str(reason).split()), sep="\t", file=sys.stdout, flush=True)

    def addSuccess(self, test):
        self.say(test, "pass")

    def addSkip(self, test, reason):
        self.say(test, "skip", reason)

    def addFailure(self, test, err):
        self.say(test, "fail", err[1])

    def addError(self, test, err):
        self.say(test, "fail", err[1])


parser.parse_args()
modules = sys.argv[-1].split(",")
suite = unittest.defaultTestLoader.loadTestsFromNames("tests." + m for m in modules)
suite.run(Lines())
