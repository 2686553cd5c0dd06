# SPDX-License-Identifier: Apache-2.0
"""Where the wheel takes headers and library from, and what it says when they are not there."""
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import statecache as sc

ROOT = pathlib.Path(__file__).resolve().parents[2]


def install(target, **environment):
    """pip install --target; the environment has STATECACHE_ variables as given and no others."""
    plain = {name: value for name, value in os.environ.items()
             if not name.startswith("STATECACHE_") and name != "PYTHONPATH"}
    return subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps",
         "--no-build-isolation", "--no-cache-dir", "--target", target, ROOT / "api" / "python"],
        env={**plain, **environment}, check=False, capture_output=True, text=True)


def test_prefix__an_installed_library_goes_into_the_wheel(tmp_path):
    prefix = tmp_path / "prefix"
    (prefix / "lib").mkdir(parents=True)
    shutil.copytree(ROOT / "api" / "include" / "statecache", prefix / "include" / "statecache")
    library = pathlib.Path(sc.__file__).parent / "lib" / "libstatecache.so"
    shutil.copy(library, prefix / "lib")
    done = install(tmp_path / "site", STATECACHE_PREFIX=str(prefix))
    assert done.returncode == 0, done.stderr
    shutil.rmtree(prefix)  # the wheel has its own
    example = ROOT / "api" / "python" / "examples" / "first_hit.py"
    done = subprocess.run([sys.executable, "-B", example], check=False, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert done.returncode == 0 and "resumed at 48" in done.stdout, done.stderr
    # The library without tiers: what is missing is said when it is asked for.
    code = "import statecache as sc; sc.Tiers(host=sc.TierConfig(1 << 20))"
    done = subprocess.run([sys.executable, "-B", "-c", code], check=False, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": str(tmp_path / "site")})
    assert "Unsupported" in done.stderr and "sc_tiers_create" in done.stderr


@pytest.mark.parametrize("environment, text", [
    ({"STATECACHE_PREFIX": "nowhere"}, "there are no headers in"),
    ({"STATECACHE_BUILD": "nowhere"}, "STATECACHE_BUILD=nowhere: there is no"),
    ({"STATECACHE_BUILD": "nowhere", "STATECACHE_PREFIX": str(ROOT / "api")}, "one of them"),
])
def test_refused__a_place_that_has_no_library(tmp_path, environment, text):
    done = install(tmp_path / "site", **environment)
    assert done.returncode != 0 and text in done.stderr + done.stdout
