# SPDX-License-Identifier: Apache-2.0
"""The examples run, and the README shows what they are and print."""
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

PACKAGE = pathlib.Path(__file__).resolve().parents[2] / "api" / "python"
README = (PACKAGE / "README.md").read_text(encoding="utf-8")
PAGES = README + (PACKAGE / "examples" / "README.md").read_text(encoding="utf-8")


def run(name):
    done = subprocess.run([sys.executable, "-B", PACKAGE / "examples" / name], check=False,
                          env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["first_hit.py", "scheduler.py"])
def test_example__runs_and_prints_what_is_shown(name):
    output = run(name)
    shown = re.search(rf"<!-- output: {name} -->\n+```\n(.*?)```", PAGES, re.S)
    assert shown, f"no page shows no output of {name}"
    assert shown.group(1) == output


def test_readme__python_is_the_text_of_the_examples():
    blocks = re.findall(r"(?:<!-- sample: (\S+) \[(\w+)\] -->\n+)?```python\n(.*?)```", README,
                        re.S)
    assert len(blocks) >= 2
    for name, region, shown in blocks:
        assert name, f"a block names no sample: {shown[:60]}"
        text = (PACKAGE / name).read_text(encoding="utf-8")
        parts = re.split(rf"^ *# \[{region}\]\n", text, flags=re.M)
        assert len(parts) == 3 and textwrap.dedent(parts[1]).strip("\n") == shown.strip("\n")


def test_scheduler__is_forty_lines():
    text = (PACKAGE / "examples" / "scheduler.py").read_text(encoding="utf-8")
    loop = re.split(r"^# \[loop\]\n", text, flags=re.M)[1]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 41
