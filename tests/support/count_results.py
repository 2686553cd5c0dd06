# SPDX-License-Identifier: Apache-2.0
"""Turns a JUnit file of ctest into the closing line `N passed, N failed, N skipped`.

A Check program reports each of its tests ("90%: Checks: 10, Failures: 1, Errors: 0"), a script its
own "N passed, N failed, N skipped" line; those are counted one by one, any other ctest entry as
one. A program that fails without saying so (a crash, a timeout) counts as one more failure, and so
does one that could not be run. Only a program that says so itself (exit status 77) is skipped.
"""
import re
import sys
import xml.etree.ElementTree as ElementTree

CHECK = re.compile(r"^\d+%: Checks: (\d+), Failures: (\d+), Errors: (\d+)\s*$", re.M)
OWN = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped\s*$", re.M)


def count_case(status, output, message=""):
    """Returns (passed, failed, skipped) of one ctest entry."""
    if status == "disabled" or status == "notrun" and message.startswith("SKIP_"):
        return 0, 0, 1
    if status == "notrun":
        return 0, 1, 0
    passed = failed = skipped = 0
    for checks, failures, errors in CHECK.findall(output):
        bad = int(failures) + int(errors)
        passed += int(checks) - bad
        failed += bad
    for good, bad, left_out in OWN.findall(output):
        passed += int(good)
        failed += int(bad)
        skipped += int(left_out)
    if status == "fail" and failed == 0:
        failed = 1
    elif passed + failed + skipped == 0:
        passed = 1
    return passed, failed, skipped


def count_file(path):
    """Returns the totals, the names of failed entries and of skipped ones."""
    totals = [0, 0, 0]
    bad, left_out = [], []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        output = "".join(out.text or "" for out in case.iter("system-out"))
        skip = case.find("skipped")
        message = "" if skip is None else skip.get("message", "")
        result = count_case(case.get("status"), output, message)
        totals = [a + b for a, b in zip(totals, result)]
        if result[1]:
            bad.append(case.get("name"))
        if result[2]:
            left_out.append(case.get("name"))
    return totals, bad, left_out


def main():
    totals, bad, left_out = count_file(sys.argv[1])
    if left_out:
        print("skipped:", " ".join(left_out))
    if bad:
        print("failed:", " ".join(bad))
    print("%d passed, %d failed, %d skipped" % tuple(totals))
    return 1 if totals[1] or sum(totals) == totals[2] else 0


if __name__ == "__main__":
    sys.exit(main())
