# SPDX-License-Identifier: Apache-2.0
"""rivals_run.py RIVALS: the table of the GPU benchmark without torch has our figures, their bars,
and why there are no rivals."""
import json
import pathlib
import subprocess
import sys
import tempfile

LINES = [
    {"params": {"section": "limits"}, "metric": "read only", "us": 460.2, "p50": 4666,
     "unit": "GB/s"},
    {"params": {"section": "decode"}, "metric": "GDN B=256", "us": 265.02, "p50": 95.4,
     "unit": "% of limit", "bar": 95, "bar_is": "at least", "met": True},
    {"params": {"section": "decode"}, "metric": "GDN B=1", "us": 3.1, "p50": 1.2,
     "unit": "x plain", "bar": 1.08, "bar_is": "at most", "met": False},
]


def main():
    with tempfile.TemporaryDirectory() as folder:
        ours = pathlib.Path(folder) / "ours"
        ours.write_text("".join(json.dumps(line) + "\n" for line in LINES))
        run = subprocess.run([sys.executable, "-I", "-S", sys.argv[1], "--ours", str(ours),
                              "errors"], capture_output=True, text=True, check=False)
    out = [line.split() for line in run.stdout.splitlines()]
    wanted = [["limits"], ["decode"]]
    for line in wanted:
        assert any(row[:1] == line for row in out), run.stdout
    assert ["GDN", "B=256", "265.02", "95.4", "%", "of", "limit", ">=", "95"] in out, run.stdout
    assert ["GDN", "B=1", "3.10", "1.2", "x", "plain", "<=", "1.08", "MISSED"] in out, run.stdout
    assert "note: errors: ModuleNotFoundError" in run.stdout, run.stdout
    assert run.returncode == 1, run.returncode
    bad = subprocess.run([sys.executable, "-I", "-S", sys.argv[1], "gossip"], capture_output=True,
                         text=True, check=False)
    assert bad.returncode == 2 and "no part 'gossip'" in bad.stderr, bad.stderr


main()
