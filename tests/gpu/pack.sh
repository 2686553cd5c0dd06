#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pack.sh BUILD FOLDER: everything that checks and measures the CUDA kernels, in a folder that runs
# on a machine with a GPU and without Debian's libraries. BUILD is the preset
# gpu-pack, built (./dev gpu-pack does both). On that machine: FOLDER/run.sh
set -euo pipefail
(($# == 2)) || {
    echo "usage: pack.sh BUILD FOLDER" >&2
    exit 2
}
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$1 out=$2
python=$root/build/python-venv/bin/python3 # ./dev makes it
mkdir -p "$out/bin" "$out/lib"
rm -f "$out"/bin/test_gpu_* # of an earlier pack
programs=("$build"/tests/gpu/test_gpu_{kernels,once,backend,lost} "$build"/bench/statecache-bench)
library=$build/api/libstatecache_tiers.so
cp "${programs[@]}" "$out/bin/"
cp -r "$root/tests/oracle/fixtures" "$out/"
# The Python package, its library and the tests of both that need no other program.
cp "$library" "$out/lib/"
rm -rf "$out/python"
mkdir -p "$out/python"
if [[ -x $python ]]; then
    cp -r "$root/api/python/src/statecache" "$out/python/"
    cp "$root"/tests/python/{conftest,test_cuda,test_memory}.py "$out/python/"
    "$python" -B "$root/api/python/declarations.py" "$root/api/include" \
        "$out/python/statecache/_abi.py"
    find "$out/python" -name __pycache__ -prune -exec rm -r {} +
else
    echo "pack.sh: there is no $python with cffi: run.sh python will skip" >&2
fi
# What the programs load beyond the C library, which is the other machine's own.
ldd "${programs[@]}" "$library" | awk '$2 == "=>" { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread)\.so' | xargs -r cp -Lt "$out/lib"
strip "$out"/bin/* "$out"/lib/*
cp "$root/bench/gpu/rivals.py" "$out/"
cat >"$out/run.sh" <<'RUN'
#!/bin/sh
# run.sh [OPTION...]: tests, replays, the table and its bars (options of statecache-bench gpu), and
# the rivals beside it where python3 has torch, triton and their packages (rivals.py).
# run.sh test, run.sh replay, run.sh tier, run.sh table [OPTION...]: only these.
# run.sh python: the Python package, over PyTorch's tensors on the device. Needs python3 with torch,
# numpy, pytest and cffi; wheels of what is missing lie in the folder whl, beside this script.
# run.sh ptx: the tests from the PTX of compute_90, compiled by the driver.
# run.sh sanitize [TOOL...]: every kernel once under compute-sanitizer's four tools, or those named;
# the parts of test_gpu_once side by side, a process each.
# Exit status: 0 all well, 77 no device, else something failed.
cd "$(dirname "$0")" || exit 1
paths=${LD_LIBRARY_PATH:-} # Python has libraries of its own
export CK_FORK=no SC_FIXTURES=fixtures LD_LIBRARY_PATH="$PWD/lib"
failed=0
tests() { # a name and, for the program of many, its argument
    for test in once "kernels small" "kernels conv" "kernels step" "kernels decode" \
        "kernels move" "kernels delta" "kernels delta_bits" backend lost; do
        bin/test_gpu_$test
        status=$?
        [ $status = 77 ] && exit 77
        [ $status = 0 ] || failed=1
    done
}
# A workload served with its states on the device, at real head sizes; checked bit for bit.
replays() {
    for kind in gdn kda; do
        for state in fp32 bf16; do
            for layout in contiguous page-major; do
                heads=16
                [ $kind = kda ] && heads=32
                bin/statecache-bench replay --backend cuda --kind $kind --state $state \
                    --layout $layout --heads $heads --v-heads 32 --head-dim 128 --chunk 64 \
                    --page 64 --system-len 256 --requests 24 --check 5 --no-cold --in-flight 2 \
                    --late-stop --fork 0.1 --preempt 0.02 --threads 8
                status=$?
                [ $status = 77 ] && exit 77
                [ $status = 0 ] || failed=1
            done
        done
    done
}
# The host tier beside plain copies; a workload that goes to disk and comes back in a second run.
tiers() {
    bin/statecache-bench spill --device cuda --pairs 15 --bars
    status=$?
    [ $status = 77 ] && exit 77
    [ $status = 0 ] || failed=1
    for state in fp32 bf16; do
        for layout in contiguous page-major; do
            folder=$(mktemp -d)
            for run in first second; do
                bin/statecache-bench replay --backend cuda --kind gdn --state $state \
                    --layout $layout --heads 16 --v-heads 32 --head-dim 128 --chunk 64 \
                    --page 64 --system-len 256 --requests 48 --check 10 --no-cold --slots 8 \
                    --running 2 --host-slots 16 --kv-pages 600 --disk "$folder" \
                    --threads 8 || failed=1
            done
            rm -r "$folder"
        done
    done
}
# Ours and the rivals in one table. Those that cannot run say why; the status is ours alone. What
# rivals compile is compiled first: nothing runs beside what is measured.
table() {
    if ! command -v python3 >/dev/null; then
        bin/statecache-bench gpu --bars "$@" || failed=1
        return
    fi
    bin/statecache-bench gpu --only none >/dev/null || exit $?
    ours=$(mktemp)
    LD_LIBRARY_PATH=$paths python3 rivals.py --warm 2>/dev/null
    bin/statecache-bench gpu --bars --json "$@" 2>&1 >"$ours" | tee "$ours.bars" >&2
    grep -q '^missed: ' "$ours.bars" && failed=1
    grep -Eq ' bars met$|^there are no bars' "$ours.bars" || failed=1 # it ended early
    LD_LIBRARY_PATH=$paths python3 rivals.py --ours "$ours" \
        --bench "env LD_LIBRARY_PATH=$LD_LIBRARY_PATH bin/statecache-bench"
    [ $? = 2 ] && failed=1
    cat "$ours.bars"
    rm "$ours" "$ours.bars"
}
# One part under one tool: what it says, and its exit status behind it.
sanitize_part() {
    CK_RUN_CASE=$2 compute-sanitizer --tool "$1" --error-exitcode 9 --print-limit 5 \
        bin/test_gpu_once >"$logs/$2" 2>&1
    echo $? >"$logs/$2.status"
}
sanitize() {
    logs=$(mktemp -d)
    parts="copies move small conv step decode apart delta_walk delta_mma delta_scan delta_wide"
    CK_RUN_CASE=copies bin/test_gpu_once >/dev/null
    [ $? = 77 ] && exit 77
    for tool in ${*:-memcheck initcheck synccheck racecheck}; do
        began=$(date +%s)
        for part in $parts; do
            sanitize_part "$tool" "$part" &
        done
        wait
        for part in $parts; do
            echo "$tool, $part: $(tail -n 1 "$logs/$part")"
            [ "$(cat "$logs/$part.status")" = 0 ] && continue
            cat "$logs/$part"
            failed=1
        done
        echo "$tool: $(($(date +%s) - began)) s"
    done
    rm -r "$logs"
}
python_tests() {
    site=$(mktemp -d)
    set -- whl/*.whl
    [ -e "$1" ] && python3 -m pip install -q --no-index --no-deps --no-compile --target "$site" "$@"
    export PYTHONPATH="$site:$PWD/python" LD_LIBRARY_PATH="$paths" PYTHONDONTWRITEBYTECODE=1
    if ! [ -e python/statecache/_abi.py ]; then
        echo "skipped: the pack was made without Python's part"
    elif ! python3 -c 'import cffi, numpy, pytest, torch'; then
        echo "skipped: python3 lacks one of cffi, numpy, pytest, torch. Wheels can lie in $PWD/whl"
    else
        STATECACHE_LIBRARY=$PWD/lib/libstatecache_tiers.so \
            python3 -m pytest -q -rs -p no:cacheprovider python
        status=$?
        rm -r "$site"
        return $status
    fi
    rm -r "$site"
    return 77
}
case $1 in
python)
    python_tests
    exit $?
    ;;
sanitize)
    shift
    sanitize "$@"
    ;;
test) tests ;;
ptx)
    export CUDA_FORCE_PTX_JIT=1
    tests
    ;;
replay) replays ;;
tier) tiers ;;
table)
    shift
    table "$@"
    ;;
*)
    tests
    replays
    tiers
    table "$@"
    (python_tests) || [ $? = 77 ] || failed=1
    ;;
esac
exit $failed
RUN
commit=$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null) || commit= # an archive has none
dirty=$(git -C "$root" status --porcelain 2>/dev/null | head -n 1)
sed -i "s/^failed=0\$/export SC_BENCH_GIT=$commit ${dirty:+SC_BENCH_DIRTY=1}\n&/" "$out/run.sh"
chmod +x "$out/run.sh"
du -sh "$out"
[[ $(du -sm "$out" | cut -f 1) -le 60 ]] || {
    echo "pack.sh: $out has more than 60 MiB" >&2
    exit 1
}
