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
SERVICE = PACKAGE.parents[1] / "docs" / "howto" / "python-service.md"
PAGES = (README + (PACKAGE / "examples" / "README.md").read_text(encoding="utf-8") +
         SERVICE.read_text(encoding="utf-8"))


def run(name, *words):
    done = subprocess.run([sys.executable, "-B", PACKAGE / "examples" / name, *words], check=False,
                          env=dict(os.environ), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", ["first_hit.py", "scheduler.py"])
def test_example__runs_and_prints_what_is_shown(name):
    output = run(name)
    shown = re.search(rf"<!-- output: {name} -->\n+```\n(.*?)```", PAGES, re.S)
    assert shown, f"no page shows no output of {name}"
    assert shown.group(1) == output


def test_service__runs_against_one_and_prints_what_is_shown():
    program = os.environ.get("STATECACHE_TEST_SERVICE", "")
    if not os.access(program, os.X_OK):
        pytest.skip("statecached is not built")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
    from wire import TINY, Service
    # chunks and policy as ./dev serve has them, with states that are small
    service = Service(program, TINY.replace("gdn 16", "gdn 64").replace("policy = lru\n", ""))
    shown = re.search(r"<!-- output: service.py -->\n+```\n(.*?)```", PAGES, re.S)
    for _ in range(2):  # another process finds what the first one wrote, and prints the same
        assert run("service.py", f"unix:{service.path}") == shown.group(1)
    assert service.stop() == 0


def test_shared_tier__a_second_engine_resumes_what_the_first_computed():
    program = os.environ.get("STATECACHE_TEST_SERVICE", "")
    if not os.access(program, os.X_OK):
        pytest.skip("statecached is not built")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
    from wire import Service
    service = Service(program, "model = qwen3.5-0.8b\nslots = 6\n")
    for which in ("first", "later", "later"):
        shown = re.search(rf"<!-- output: shared_tier.py, {which} -->\n+```\n(.*?)```", PAGES, re.S)
        assert run("shared_tier.py", f"unix:{service.path}", "qwen3.5-0.8b") == shown.group(1)
    assert service.stop() == 0


@pytest.mark.parametrize("page", [PACKAGE / "README.md", SERVICE])
def test_page__python_is_the_text_of_the_examples(page):
    blocks = re.findall(r"(?:<!-- sample: (\S+) \[(\w+)\] -->\n+)?```python\n(.*?)```",
                        page.read_text(encoding="utf-8"), re.S)
    assert len(blocks) >= 2
    for name, region, shown in blocks:
        assert name, f"a block names no sample: {shown[:60]}"
        text = (page.parent / name).read_text(encoding="utf-8")
        parts = re.split(rf"^ *# \[{region}\]\n", text, flags=re.M)
        assert len(parts) == 3 and textwrap.dedent(parts[1]).strip("\n") == shown.strip("\n")


def test_scheduler__is_forty_lines():
    text = (PACKAGE / "examples" / "scheduler.py").read_text(encoding="utf-8")
    loop = re.split(r"^# \[loop\]\n", text, flags=re.M)[1]
    assert len([line for line in loop.splitlines() if line.strip()]) <= 41
