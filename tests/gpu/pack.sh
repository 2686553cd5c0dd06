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
mkdir -p "$out/bin" "$out/lib"
cp "$build"/tests/gpu/test_gpu_{small,conv,step,delta,delta_bits,backend,lost} \
    "$build"/bench/statecache-bench "$out/bin/"
strip --strip-debug "$out"/bin/*
cp -r "$root/tests/oracle/fixtures" "$out/"
# What the programs load beyond the C library, which is the other machine's own.
ldd "$out"/bin/* | awk '$2 == "=>" { print $3 }' | sort -u |
    grep -Ev '/(libc|libm|libdl|librt|libpthread)\.so' | xargs -r cp -Lt "$out/lib"
cp "$root/bench/gpu/rivals.py" "$out/"
cat >"$out/run.sh" <<'RUN'
#!/bin/sh
# run.sh [OPTION...]: tests, then the table with its bars (options of statecache-bench gpu).
# run.sh sanitize: the tests under compute-sanitizer's four tools.
# Exit status: 0 all well, 77 no device, else something failed.
cd "$(dirname "$0")" || exit 1
export CK_FORK=no SC_FIXTURES=fixtures LD_LIBRARY_PATH="$PWD/lib"
failed=0
if [ "$1" = sanitize ]; then
    bin/test_gpu_small >/dev/null
    [ $? = 77 ] && exit 77
    for tool in memcheck racecheck initcheck synccheck; do
        for test in small conv step delta; do
            echo "$tool: $test"
            compute-sanitizer --tool $tool --error-exitcode 9 --print-limit 5 bin/test_gpu_$test \
                || failed=1
        done
    done
    exit $failed
fi
for test in small conv step delta delta_bits backend lost; do
    bin/test_gpu_$test
    status=$?
    [ $status = 77 ] && exit 77
    [ $status = 0 ] || failed=1
done
bin/statecache-bench gpu --bars "$@" || failed=1
exit $failed
RUN
chmod +x "$out/run.sh"
du -sh "$out"
