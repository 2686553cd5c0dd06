#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Mutants: believable faults, one in each *.patch, that simulation or stress must find.

  run.py                 builds each in a copy of the tree and says what found it, and how fast
  run.py NAME...         these alone
  run.py --check         only: does every patch still apply and compile? (ctest, label tidy)

The copy lies in build/mutants. Clean code must pass the same seeds first. A patch that does not
build, or that nothing finds within a minute, is a failure of the suite.
"""
import argparse
import os
import pathlib
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
LAYERS = ("api/base", "kernels", "pool", "snapshot", "snapshot/tier", "radix", "radix/policy",
          "api/engine", "api/wire", "api/client", "api/daemon")
SECONDS = 60  # of processor time
# Fixed seeds: the simulation, then schedulers in one thread, then threads.
HUNTS = (
    ("simulation", ["tests/sim/test_sim", "--seeds", "4000"]),
    ("stress", ["tests/stress/statecache-stress", "--virtual", "--threads", "4", "--worlds", "30",
                "--seed", "7", "--quiet", "--shrink", "0", "--out", "finding.script"]),
    ("threads", ["tests/stress/statecache-stress", "--threads", "4", "--seconds", "8",
                 "--seed", "7", "--quiet", "--shrink", "0", "--out", "finding.script"]),
)
# Clients of a statecached; it finds what it finds by chance and time, hence twice.
SERVICE = tuple(
    (f"service {seed}", ["tests/stress/statecache-stress", "--daemon", "--seconds", "10", "--seed",
                         str(seed), "--quiet"]) for seed in (7, 8))


def hunts_of(patches):
    """The hunts of each patch: those above, or what its second line names: a unit test, or
    `service`."""
    named = {}
    for patch in patches:
        line = (patch.read_text().splitlines() + ["", ""])[1]
        if line == "# found by service":
            named[patch] = SERVICE
            continue
        test = re.fullmatch(r"# found by (test_\w+)", line)
        named[patch] = ((test[1], ["tests/unit/" + test[1]]),) if test else HUNTS
    return named


def run(command, cwd, **more):
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, errors="replace", **more)


def apply(tree, patch, *flags):
    """Context may have moved a little: one line of it must match on either side."""
    environment = dict(os.environ, GIT_CEILING_DIRECTORIES=str(tree.parent), GIT_DIR="/nonexistent")
    return run(["git", "apply", "-C1", *flags, str(patch)], tree, env=environment)


def tracked(root):
    """What git tracks or would track, as the build of ./dev sees it."""
    listed = run(["git", "ls-files", "-co", "--exclude-standard"], root)
    return [name for name in listed.stdout.splitlines() if (root / name).is_file()]


def copy_tree(root, tree):
    """Brings the copy up to date; files that are equal keep their time, so that make is short."""
    names = set(tracked(root))
    for name in names:
        source, dest = root / name, tree / name
        if dest.is_file() and dest.read_bytes() == source.read_bytes():
            continue
        dest.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, dest)
        shutil.copymode(source, dest)
    for path in list(tree.rglob("*")):
        if path.is_file() and str(path.relative_to(tree)) not in names:
            path.unlink()


def build(tree, out, hunts):
    """What the build says when it fails."""
    if not (out / "build.ninja").is_file():
        done = run(["cmake", "-S", str(tree), "-B", str(out), "-G", "Ninja",
                    "-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DSC_ASSERT_LEVEL=2",
                    "-DSC_BUILD_BENCH=OFF", "-DSC_WITH_CUDA=OFF"], tree)
        if done.returncode:
            return done.stdout
    targets = [pathlib.Path(command[0]).name for _, command in hunts]
    done = run(["cmake", "--build", str(out), "--target", *dict.fromkeys(targets)], tree)
    return done.stdout if done.returncode else None


def spent():
    """Processor time of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def hunt(out, hunts):
    """(what found it, seconds, first line) or None."""
    start = spent()
    for name, command in hunts:
        left = int(SECONDS - (spent() - start))
        if left <= 0:
            break
        done = run([str(out / command[0]), *command[1:]], out, preexec_fn=lambda: (
            resource.setrlimit(resource.RLIMIT_CPU, (left, left + 5))))
        if done.returncode == -24:  # SIGXCPU
            return name, spent() - start, "it does not end"
        if done.returncode:
            lines = [line for line in done.stdout.splitlines() if line.strip()]
            place = next((line for line in lines if ".c:" in line or line.startswith("signal")),
                         lines[-1] if lines else f"exit {done.returncode}")
            return name, spent() - start, place
    return None


def compiles(patch):
    """None, or what the compiler says of the files that the patch changes."""
    names = re.findall(r"^\+\+\+ b/(.*)$", patch.read_text(), re.M)
    places = ["api/include", *(str(path.relative_to(ROOT)) for layer in LAYERS
                               for path in (ROOT / layer, ROOT / layer / "include"))]
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (pathlib.Path(folder) / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, pathlib.Path(folder) / name)
        apply(pathlib.Path(folder), patch)
        for name in names:
            wide = ["-mavx2", "-mfma"] if platform.machine() == "x86_64" else []
            if "wide" in name and not wide:
                continue  # not compiled here
            done = run(["cc", *wide, "-std=gnu11", "-fsyntax-only",
                        "-D_GNU_SOURCE", "-DSC_ASSERT_LEVEL=2",
                        *(f"-I{ROOT / place}" for place in places),
                        str(pathlib.Path(folder) / name)], ROOT)
            if done.returncode:
                return done.stdout
    return None


def check(patches):
    bad = 0
    for patch in patches:
        done = apply(ROOT, patch, "--check")
        fault = f"does not apply:\n{done.stdout}" if done.returncode else compiles(patch)
        if not patch.read_text().startswith("# "):
            fault = "the first line must say what is wrong in it"
        if fault:
            bad += 1
            print(f"{patch.name}: {fault}")
    print(f"{len(patches) - bad} of {len(patches)} patches are good")
    return 1 if bad else 0


def test_mutant(patch, tree, out, hunts):
    """True when it was found."""
    print(f"{patch.stem:28} ", end="", flush=True)
    done = apply(tree, patch)
    if done.returncode:
        print(f"does not apply: {done.stdout}")
        return False
    try:
        broken = build(tree, out, hunts)
        if broken:
            print(f"does not build:\n{broken[-2000:]}")
            return False
        found = hunt(out, hunts)
    finally:
        apply(tree, patch, "--reverse")
    if not found:
        print("NOT FOUND")
        return False
    print(f"found by {found[0]} in {found[1]:.1f} s: {found[2][:150]}", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    patches = sorted(HERE.glob("*.patch"))
    if args.names:
        patches = [patch for patch in patches if patch.stem in args.names]
        if len(patches) != len(args.names):
            sys.exit("no such mutant")
    if not patches:
        sys.exit("there are no mutants")
    if args.check:
        return check(patches)
    tree, out = ROOT / "build/mutants/tree", ROOT / "build/mutants/build"
    tree.mkdir(parents=True, exist_ok=True)
    copy_tree(ROOT, tree)
    named = hunts_of(patches)
    hunts = list({hunt[0]: hunt for own in named.values() for hunt in own}.values())
    broken = build(tree, out, hunts)
    if broken:
        sys.exit(f"clean code does not build:\n{broken[-4000:]}")
    clean = hunt(out, hunts)
    if clean:
        sys.exit(f"clean code fails on these seeds, {clean[0]}: {clean[2]}")
    print("clean code passes")
    found = sum(test_mutant(patch, tree, out, named[patch]) for patch in patches)
    print(f"{found} of {len(patches)} mutants found")
    return 0 if found == len(patches) else 1


if __name__ == "__main__":
    sys.exit(main())
