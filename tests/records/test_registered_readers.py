"""Readers of plugins are found from Python too, not only by the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PLUGIN = """
from rewardkit import hookimpl
from rewardkit.records import Row

class Lines:
    def detect(self, name, head):
        return 100 if name.endswith(".lines") else 0
    def rows(self, source):
        for number, line in enumerate(source.lines(), 1):
            yield Row(number, {"completion": line.decode().rstrip()})

READER = Lines()

@hookimpl
def rewardkit_readers(register):
    register("lines", "rewardkit_lines:READER", "one completion a line")
    register("gone", "rewardkit_lines:GONE", "does not load")
"""


def test_a_plugin_s_reader_is_used_and_a_broken_one_is_said(tmp_path):
    info = tmp_path / "site" / "rewardkit_lines-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rewardkit-lines\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rewardkit]\nlines = rewardkit_lines\n")
    (tmp_path / "site" / "rewardkit_lines.py").write_text(PLUGIN)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.lines").write_text("x\ny\n")
    code = (
        "import sys; from rewardkit import read_generations\n"
        "records = read_generations(sys.argv[1])\n"
        "print(records.format, [one.completions[0].text for one in records])"
    )
    env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}
    for given in ("a.lines", ""):  # by name, and found in a folder
        command = [sys.executable, "-c", code, str(tmp_path / "runs" / given)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        assert done.stdout == "lines/lines ['x', 'y']\n"
        assert "lines/gone" in done.stderr and "is left out" in done.stderr
