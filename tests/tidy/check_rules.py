# SPDX-License-Identifier: Apache-2.0
"""check_rules.py ROOT: runs every rule of rules.py over the tree."""
import sys

import rules


def main():
    tree = rules.Tree.read(sys.argv[1])
    if "CMakeLists.txt" not in tree.files:
        sys.exit("no repository at " + sys.argv[1])
    failed = 0
    for name, problems in rules.problems_of(tree).items():
        failed += bool(problems)
        print("NOT OK" if problems else "ok", name)
        for problem in problems:
            print("   ", problem)
    print(f"{len(rules.RULES) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
