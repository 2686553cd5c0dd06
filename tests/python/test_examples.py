# SPDX-License-Identifier: Apache-2.0
"""The examples run, and the README shows what they are and print."""
import contextlib
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


@contextlib.contextmanager
def service_of(settings):
    program = os.environ.get("STATECACHE_TEST_SERVICE", "")
    if not os.access(program, os.X_OK):
        pytest.skip("statecached is not built")
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "service"))
    import wire
    service = wire.Service(program, settings)
    yield f"unix:{service.path}"
    assert service.stop() == 0


def shown(name, which):
    found = re.search(rf"<!-- output: {name}, {which} -->\n+```\n(.*?)```", PAGES, re.S)
    assert found, f"no page shows output of {name}, {which}"
    return found.group(1)


def test_service__a_second_process_finds_what_the_first_one_wrote():
    # chunks and policy as ./dev serve has them, with states that are smaller
    with service_of("model = qwen3.5-0.8b\nslots = 6\n") as address:
        for which in ("first", "later", "later"):
            assert run("service.py", address) == shown("service.py", which)


def test_shared_tier__a_second_engine_resumes_what_the_first_computed():
    with service_of("model = qwen3.5-0.8b\nslots = 6\n") as address:
        for which in ("first", "later", "later"):
            assert run("shared_tier.py", address, "qwen3.5-0.8b") == shown("shared_tier.py", which)


def test_page_order__what_the_first_example_left_does_not_change_the_second():
    with service_of("model = qwen3.5-0.8b\nslots = 6\n") as address:
        assert run("service.py", address) == shown("service.py", "first")
        for which in ("first", "later"):
            assert run("shared_tier.py", address, "qwen3.5-0.8b") == shown("shared_tier.py", which)
        assert run("service.py", address) == shown("service.py", "later")


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
