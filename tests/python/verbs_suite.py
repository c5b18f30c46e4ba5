"""Runs rdma-core's tests of generic verbs and prints a line for each: module, test, outcome,
reason, separated by tabs."""

import os
import sys
import unittest

# The suite imports its own modules by their bare names as well.
sys.path[:0] = [".", "tests"]
import tests.base
from args_parser import parser


def address_of_the_device(self, dev, port, idx):
    """The suite looks for the device's network interface below /sys/class/infiniband, which only
    the kernel can provide. The tests of librdmacm need only the address and the kernel's interface,
    which is preloaded; they skip themselves without both."""
    address = os.environ["GDRC_ADDRESS"] if "LD_PRELOAD" in os.environ else None
    self.args.append([dev, port, idx, address, None])


tests.base.RDMATestCase._get_ip_mac = address_of_the_device


class Lines(unittest.TestResult):
    def say(self, test, outcome, reason=""):
        module, case = (
            test.id().split(".", 2)[1:] if test.id().startswith("tests.") else ("", test.id())
        )
        print(
            module, case, outcome, " ".join(str(reason).split()), sep="\t", file=sys.stdout,
            flush=True,
        )

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
