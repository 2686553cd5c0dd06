# SPDX-License-Identifier: Apache-2.0
"""shown_output.py DOCUMENT NAME PROGRAM [ARGUMENT...]: the document shows what the program prints.

The block below `<!-- output: NAME -->` must have lines of the program's output, in their order;
lines may be left out, and one that ends in " ..." is only its beginning. Times may differ, and what
is said of a run without a cache is not compared: the program may be run with --no-cold.
"""
import re
import subprocess
import sys

TIMES = re.compile(r"[\d.]+ (?:s|us|threads|times less)\b")
COLD = re.compile(r", [\d.]+(?: s)? cold: [\d.]+ times \w+")


def shown_lines(path, name):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    block = re.search(rf"^<!-- output: {re.escape(name)} -->\n+```\n(.*?)^```", text, re.M | re.S)
    if not block:
        sys.exit(f"{path} has no block of output named '{name}'")
    return block.group(1).splitlines()


def plain(line):
    """The line without what depends on the machine or on the run without a cache."""
    return TIMES.sub("#", COLD.sub("", line))


def is_shown_as(line, shown):
    if shown.endswith(" ..."):
        return plain(line).startswith(plain(shown[:-4]))
    return plain(line) == plain(shown)


def cold_adds_up(shown):
    """A cold run computes what the cache saved, too."""
    text = "\n".join(shown)
    said = re.search(r"(\d+) tokens computed with the cache, (\d+) cold: ([\d.]+) times", text)
    if not said:
        return True
    computed, cold = int(said.group(1)), int(said.group(2))
    hit = int(re.search(r"^hit +(\d+) tokens", text, re.M).group(1))
    return computed + hit == cold and said.group(3) == f"{cold / computed:.1f}"


def main():
    document, name, *command = sys.argv[1:]
    shown = shown_lines(document, name)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    print(done.stdout, end="")
    failed = [f"the program ended with {done.returncode}"] if done.returncode else []
    left = done.stdout.splitlines()
    for line in shown:
        at = next((i for i, printed in enumerate(left) if is_shown_as(printed, line)), None)
        if at is None:
            failed.append(f"{document} shows this, the program does not: {line}")
        else:
            left = left[at + 1:]
    if not shown:
        failed.append(f"{document} shows nothing of '{name}'")
    if not cold_adds_up(shown):
        failed.append(f"{document}: tokens computed and hit do not add up to those of a cold run")
    for problem in failed:
        print("NOT OK", problem)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
