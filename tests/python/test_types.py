# SPDX-License-Identifier: Apache-2.0
"""The package is typed: mypy finds nothing, in it and in code that uses it."""
import pathlib
import subprocess
import sys

import pytest

import statecache as sc

pytest.importorskip("mypy", reason="mypy is not installed")
USE = '''
import numpy as np
import statecache as sc

def use(cache: sc.Cache, ns: sc.Namespace) -> int:
    lease: sc.Lease = cache.acquire_one(ns, np.arange(4, dtype=np.int32))
    step: sc.Step = cache.plan(lease, 0, 4)
    step.commit()
    return lease.info.resume_len + int(step.source[0])

wrong: str = sc.Schema.presets()
'''


def test_mypy__package_is_clean_and_a_wrong_use_is_found(tmp_path):
    (tmp_path / "use.py").write_text(USE, encoding="utf-8")
    package = pathlib.Path(sc.__file__).parent
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-warn-unreachable", "--cache-dir",
         tmp_path / "cache", "--exclude", "_abi.py$", package, tmp_path / "use.py"],
        check=False, capture_output=True, text=True)
    lines = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(lines) == 1 and "use.py:11" in lines[0], done.stdout + done.stderr
