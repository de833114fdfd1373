"""Start Python as a user without any privilege, which only root can do."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
USER = 54_321


def run_as_another(arguments: Sequence[str], *, needs: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments as a user who owns nothing, in a temporary folder of that user's own.

    The first interpreter that such a user may start, and that has what the script imports (`needs`), is taken; the test
    is skipped where there is none, or where this process is not root.
    """
    import msgspec

    if os.geteuid() != 0:
        pytest.skip("run as a normal user, every other test shows this")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    check = f"import sys; assert sys.version.startswith('{version}.'); import {needs}"
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chown(folder, USER, USER)
        environment = {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(msgspec.__file__).parents[1])]),
            "PATH": os.environ["PATH"],
            "TMPDIR": folder,
            "HOME": folder,
        }

        def start(interpreter: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [interpreter, "-B", *words],
                user=USER,
                group=USER,
                extra_groups=[],
                env=environment,
                cwd=folder,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )

        for interpreter in (sys.executable, getattr(sys, "_base_executable", ""), f"/usr/bin/python{version}"):
            try:
                if interpreter and start(interpreter, ["-c", check]).returncode == 0:
                    return start(interpreter, arguments)
            except (PermissionError, FileNotFoundError):
                continue
    pytest.skip("no interpreter and checkout here that another user may read")
