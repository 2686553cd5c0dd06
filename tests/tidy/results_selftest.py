# SPDX-License-Identifier: Apache-2.0
"""The closing line of ./dev test must tell the truth: cases for tests/support/count_results.py."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))
import count_results  # noqa: E402

CASES = [
    # ctest's status, output, (passed, failed, skipped), ctest's message
    ("run", "Running suite(s): a\n100%: Checks: 12, Failures: 0, Errors: 0\n", (12, 0, 0)),
    ("run", "100%: Checks: 2, Failures: 0, Errors: 0\n100%: Checks: 3, Failures: 0, Errors: 0\n",
     (5, 0, 0)),
    ("fail", "50%: Checks: 4, Failures: 1, Errors: 1\na.c:1:F:x:y:0: z\n", (2, 2, 0)),
    ("fail", "ok one\n5 passed, 2 failed, 1 skipped\n", (5, 2, 1)),
    ("run", "anything\n", (1, 0, 0)),
    ("fail", "crashed\n", (0, 1, 0)),
    ("fail", "100%: Checks: 12, Failures: 0, Errors: 0\nSIGSEGV at exit\n", (12, 1, 0)),
    ("notrun", "no GPU\n", (0, 0, 1), "SKIP_RETURN_CODE=77"),
    ("notrun", "", (0, 1, 0), "Unable to find executable"),
    ("notrun", "", (0, 1, 0)),
    ("disabled", "", (0, 0, 1)),
]


def main():
    failed = 0
    for number, (status, output, want, *message) in enumerate(CASES):
        got = count_results.count_case(status, output, *message)
        if got != want:
            failed += 1
            print(f"NOT OK case {number}: {got} instead of {want}")
    print(f"{len(CASES) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
