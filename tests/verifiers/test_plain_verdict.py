"""Verdicts that are kept by a text's last line: what stands before that line must still count."""

from __future__ import annotations

import itertools

import pytest

from rewardkit import Completion, Sample
from rewardkit.verifiers import final_number
from rewardkit.verifiers.gsm8k import Gsm8k

HEADS = [
    "9 * 2 = 18\n",
    "so <<9*2=18>>18\n",
    "#### 5\n",
    "\\boxed{5}\n",
    "the cost is \\$5\n",
    "The answer is 4.\n",
    "# Plan\n",
    "<answer>5</answer>\n",
    "<think>hm\n",
    "<think>hm</think>\n",
    "5\nUser: and now?\n",
    "#### 5\nQuestion: why?\n",
    "[INST] 5 [/INST]\n",
    "5<|im_end|>\n",
    "#### 5\n\nTom has 3 apples and buys 4. How many does he have?\n3 + 4 = 7\n",
    "",
]
LINES = ["#### 18", "A: 18", "The answer is 18.", "So it is $\\boxed{18}$.", "A: -18", "#### 18 19"]
PROMPTS = ["Why?", "Why? <think>", [{"role": "user", "content": "Why?"}]]


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("reference", ["18", "#### -18"])
def test_a_kept_verdict_is_the_one_that_a_text_gets_alone(line, reference):
    """Trap: `#### 18` behind another `####`, a turn, open thinking or tags is not what it is by itself."""
    verifier = Gsm8k()
    cases = [(Completion(head + line), Sample(1, prompt, reference)) for head in HEADS for prompt in PROMPTS]
    alone = []
    for completion, sample in cases:
        final_number._known.clear()
        alone.append(verifier.judge(verifier.prepare(sample), sample, completion))
    for first, second in itertools.product(range(len(cases)), repeat=2):
        final_number._known.clear()
        for at in (first, second):
            completion, sample = cases[at]
            assert verifier.judge(verifier.prepare(sample), sample, completion) == alone[at], (first, at)


def test_what_is_kept_is_bounded(monkeypatch):
    monkeypatch.setattr(final_number, "_KEPT", 10)
    verifier = Gsm8k()
    sample = Sample(1, "Why?", "18")
    prepared = verifier.prepare(sample)
    for number in range(50):
        verifier.judge(prepared, sample, Completion(f"so\n#### {number}"))
        assert len(final_number._known) <= 10
    assert final_number._known
