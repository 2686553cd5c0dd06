# SPDX-License-Identifier: Apache-2.0
"""Builds the wheel: the package, the declarations of the headers, and the library itself.

Headers and library belong together and come from one place, the first of

    STATECACHE_BUILD=FOLDER    a build folder of this repository (build/dev)
    STATECACHE_PREFIX=FOLDER   an installed prefix (cmake --install ... --prefix FOLDER)
    neither                    the repository is built (cmake, in the wheel's temporary folder)

The library is copied into the wheel, so that what was compiled against is what is loaded. The wheel
is of one platform, but of no Python version: it has no extension module (docs/adr/0006).
"""
import atexit
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE))

import declarations  # noqa: E402 (needs the path)

LIBRARIES = ("libstatecache_tiers.so", "libstatecache.so")
CLIENT = "libstatecache_client.so"


def sources(scratch):
    """(include folder, folder of the libraries, that of the client's)"""
    build, prefix = (os.environ.get("STATECACHE_" + name) for name in ("BUILD", "PREFIX"))
    if build and prefix:
        sys.exit("STATECACHE_BUILD and STATECACHE_PREFIX: one of them")
    if build:
        if not pathlib.Path(build, "api", LIBRARIES[1]).exists():
            sys.exit(f"STATECACHE_BUILD={build}: there is no api/{LIBRARIES[1]} in it")
        api = pathlib.Path(build, "api")
        return ROOT / "api" / "include", api, api / "client"
    if prefix:
        for folder in ("lib", "lib64", f"lib/{os.uname().machine}-linux-gnu"):
            if pathlib.Path(prefix, folder, LIBRARIES[1]).exists():
                found = pathlib.Path(prefix, folder)
                return pathlib.Path(prefix, "include"), found, found
        sys.exit(f"STATECACHE_PREFIX={prefix}: there is no {LIBRARIES[1]} below it")
    scratch = pathlib.Path(scratch).resolve() / "cmake"
    subprocess.run(["cmake", "-S", ROOT, "-B", scratch, "-G", "Ninja",
                    "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSC_BUILD_TESTS=OFF",
                    "-DSC_BUILD_BENCH=OFF"], check=True)
    subprocess.run(["cmake", "--build", scratch, "--target", "statecache", "statecache_tiers",
                    "statecache_client"], check=True)
    return ROOT / "api" / "include", scratch / "api", scratch / "api" / "client"


class Build(build_py):
    """Adds the generated module and the libraries to the package."""

    def run(self):
        super().run()
        package = pathlib.Path(self.build_lib, "statecache")
        include, folder, client = sources(self.get_finalized_command("build").build_temp)
        declarations.write(include, package / "_abi.py")
        (package / "lib").mkdir(exist_ok=True)
        for path in [folder / name for name in LIBRARIES] + [client / CLIENT]:
            if path.exists():
                shutil.copyfile(path, package / "lib" / path.name)
                shutil.copymode(path, package / "lib" / path.name)


class Wheel(bdist_wheel):
    """py3-none-PLATFORM: a shared library inside, no extension module."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class Binary(Distribution):
    def has_ext_modules(self):
        return True


def version():
    """That of the headers."""
    prefix = os.environ.get("STATECACHE_PREFIX")
    include = pathlib.Path(prefix, "include") if prefix else ROOT / "api" / "include"
    if not (include / "statecache/status.h").exists():
        sys.exit(f"there are no headers in {include}: set STATECACHE_PREFIX to where statecache is "
                 "installed")
    text = (include / "statecache/status.h").read_text(encoding="utf-8")
    return ".".join(re.search(rf"#define SC_VERSION_{part} (\d+)", text).group(1)
                    for part in ("MAJOR", "MINOR", "PATCH"))


# Nothing is written into the source folder, and nothing of an earlier build is taken.
base = tempfile.mkdtemp(prefix="statecache-")
atexit.register(shutil.rmtree, base, ignore_errors=True)
setup(version=version(), distclass=Binary, cmdclass={"build_py": Build, "bdist_wheel": Wheel},
      options={"build": {"build_base": base}, "egg_info": {"egg_base": base}})
