"""Hostile answers in a new process; computer algebra that gives up, is killed, or is not there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import rewardkit.math
from rewardkit import Completion, Generation, Sample, score
from rewardkit.errors import UsageError
from rewardkit.math import verify

OWN_HOSTILE = [
    "9^{9^{9^{9}}}",
    "(10^9)!",
    "((10!)!)!",
    "\\binom{10^{9}}{5\\cdot 10^8}",
    "\\prod_{k=1}^{10^9} k",
    "\\sum_{k=1}^{10^{100}}\\frac{1}{k}",
    "\\sum_{a=1}^{9}\\sum_{b=1}^{99}\\sum_{c=1}^{999}\\sum_{d=1}^{9999} abcd",
    "\\lfloor \\pi^{10^7}\\rfloor",
    "\\gcd(10^{10^5}, 6^{10^5})",
    "\\sqrt[10^9]{2}",
    "\\log_{10^{-9999}}(10^{9999})",
    "\\sin(10^{10^{8}})",
    "x^{x^{x^{x^{x^{x^{x}}}}}}",
    "(a+b+c+d)^{500}",
    "1e400000000",
    "1" * 5000,
    "$" * 20000,
    "{" * 300 + "1" + "}" * 300,
    "\\frac{1}{" * 60 + "2" + "}" * 60,
    "0." + "\\overline{" + "7" * 299 + "}",
    "__import__('os').system('touch rkcanary')",
    'exec(\'open("rkcanary","w")\')',
    "{n:open('rkcanary','w')}[n]",
]
FOR_ALGEBRA = [
    "\\sum_{k=1}^{\\infty}\\frac{1}{k^{1000000}}",
    "\\int e^{e^{e^x}}\\,dx",
    "\\int_0^{\\infty}\\frac{\\sin^{20} x\\cos^{19}x}{x^{7}+3x^5+1}\\,dx",
    "\\sum_{n=1}^{\\infty}\\frac{n^{50}}{2^n+3^n}",
    "\\int_0^1\\sin(\\sin(\\sin(\\sin(\\sin(\\sin(x))))))dx",
]
JUDGE = """
import json, sys
from rewardkit.verifiers.math.policy import DEFAULT
from rewardkit.verifiers.math.reading import read
from rewardkit.verifiers.math.verifier import compared
# `compared` raises NeedsAlgebra where it cannot tell, and the process fails.
print(json.dumps([compared(read(text), read(gold), DEFAULT).value for text, gold in json.load(sys.stdin)]))
"""


def in_new_process(code: str, stdin: str = "", cwd: Path | None = None) -> str:
    path = os.pathsep.join([str(Path(rewardkit.math.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=stdin,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_hostile_answers_are_decided_before_computer_algebra(tmp_path):
    """So nothing has to be started for them; and nothing of them is executed."""
    values = json.loads(in_new_process(JUDGE, json.dumps([[t, "1"] for t in OWN_HOSTILE]), tmp_path))
    assert dict(zip(OWN_HOSTILE, values, strict=True)) == dict.fromkeys(OWN_HOSTILE, 0.0)
    assert list(tmp_path.iterdir()) == []


def test_visible_hostile_answers_are_decided_before_computer_algebra(shared, tmp_path):
    rows = [json.loads(line) for line in shared("cases/math_cases.jsonl").read_text("utf-8").splitlines()]
    rows = [row for row in rows if row["kind"] == "hostile"]
    asked = json.dumps([[row["prediction"], row["gold"]] for row in rows])
    values = json.loads(in_new_process(JUDGE, asked, tmp_path))
    assert [value == 1.0 for value in values] == [row["expected"] for row in rows]
    assert list(tmp_path.iterdir()) == []


def test_computer_algebra_gives_up_by_itself():
    """A worker that is killed for each would have to start again for each, which takes longer than the answer may."""
    verify("\\int_0^1 x\\,dx", "\\frac12")
    assert rewardkit.math._pool is not None
    before = rewardkit.math._pool.stats
    for text in FOR_ALGEBRA:
        assert verify(text, "1").value == 0.0
    after = rewardkit.math._pool.stats
    assert after.kills - before.kills <= 1  # a loaded machine may be late once
    assert verify("\\int_0^1 x\\,dx", "\\frac12").value == 1.0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_has_a_worker_of_its_own():
    """The parent's pool refuses work in a fork; the answers must be the same there."""
    code = "import os, rewardkit.math as m\n"
    code += "ask = lambda: m.verify(r'\\int_0^1 x\\,dx', r'\\frac12').value == 1.0\n"
    code += "first = ask()\nchild = os.fork()\n"
    code += "if child == 0:\n    right = ask()\n    m._pool.close()\n    os._exit(0 if right else 1)\n"
    code += "print(first, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ask())"
    assert in_new_process(code).split() == ["True", "0", "True"]


def test_warm_returns_at_once_and_starts_one_worker():
    code = "import rewardkit.math as m\nassert m._pool is None\nm.warm(); m.warm()\n"
    code += "print(m.verify(r'\\int_0^1 x\\,dx', '0.5').value, m.grade(r'\\boxed{\\int_0^1 x\\,dx}', '0.5').value"
    code += ", len(m._pool.worker_pids))"
    assert in_new_process(code).split() == ["1.0", "1.0", "1"]


def test_hostile_answers_with_gmpy2(shared):
    """sympy computes with gmpy2 where it is there, whose long calculations no signal interrupts."""
    pytest.importorskip("gmpy2")
    from sympy.external.gmpy import GROUND_TYPES

    assert GROUND_TYPES == "gmpy"
    for text in [*OWN_HOSTILE, *FOR_ALGEBRA]:
        assert verify(text, "1").value == 0.0, text
    rows = [json.loads(line) for line in shared("cases/math_cases.jsonl").read_text("utf-8").splitlines()]
    for row in rows:
        if row["kind"] == "hostile":
            assert (verify(row["prediction"], row["gold"]).value == 1.0) == row["expected"], row["id"]


def second_opinion(reference: str, *texts: str, **options: object) -> list[tuple[float | None, str | None]]:
    from rewardkit.verifiers.math_verify import MathVerify

    generation = Generation(Sample(0, "", reference), tuple(map(Completion, texts)))
    scored = next(iter(score(MathVerify(**options), [generation])))
    return [(one.value, one.reason) for one in scored.scores["math_verify"]]


def test_the_second_opinion():
    """math-verify itself, in a worker: no alarm, so also in this thread's children; killed over its deadline."""
    pytest.importorskip("math_verify")
    texts = ("so $\\boxed{0.5}$", "\\boxed{0.4}", "", "dunno")
    assert second_opinion("\\frac{1}{2}", *texts) == [
        (1.0, None),
        (0.0, "wrong"),
        (0.0, "no_answer"),
        (0.0, "no_answer"),
    ]
    assert second_opinion("1", "$9^{9^{9^{9}}}$", "$1$", timeout=2.0) == [(0.0, "deadline"), (1.0, None)]
    assert second_opinion("", "3")[0][0] is None


def test_the_second_opinion_says_how_to_install_it():
    import importlib.util

    if importlib.util.find_spec("math_verify") is not None:
        pytest.skip("math-verify is installed")
    with pytest.raises(UsageError, match="pip install 'math-verify"):
        second_opinion("1", "1")
