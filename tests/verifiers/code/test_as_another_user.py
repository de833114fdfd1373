"""The verdicts once more, as a user without any privilege: the walls are built another way then."""

from __future__ import annotations

import re
from pathlib import Path

from other_user import run_as_another

FILES = ("test_attacks.py", "test_code.py", "test_forms.py")
"""What runs programs; the other files of this folder do not start a sandbox."""


def test_verdicts_are_the_same_for_an_unprivileged_user() -> None:
    paths = [str(Path(__file__).with_name(name)) for name in FILES]
    done = run_as_another(
        ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", *paths],
        needs="pytest, hypothesis, rewardkit.code",
        timeout=900,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed, skipped = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "skipped"))
    assert passed is not None and int(passed[1]) > 100
    assert skipped is None or "shared data" in done.stdout, done.stdout[-5000:]
