"""Held-out prompts before and after: the figures against a table worked out by hand, and what a run says at its end."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from rewardkit import Sample, reward
from rewardkit.engine import Engine
from rewardkit.errors import UsageError
from trainer_backend.data import Prompt
from trainer_backend.evaluate import Change, HeldOut, Learning, Measured, closing_text, held_out, paired, write_held_out
from trainer_backend.rollout.types import Rollout, Sampled

PROMPTS = [Prompt(Sample(f"q{at}", f"{at} + 1?", reference=str(at + 1)), (1, 2)) for at in range(12)]


def test_large_rewards_are_told_in_few_digits() -> None:
    def seen(value: float) -> HeldOut:
        return HeldOut((1,), Measured((value,), (), 3.0, 0.0, ()), None, 0)

    text = closing_text(change=paired(seen(1e30), seen(3e30)), learning=LEARNED, adapter=None, run=Path("run"))
    assert "1.00e+30 -> 3.00e+30  +2.00e+30" in text and "0" * 6 not in text
    assert "with 1 held-out prompt only a large one shows" in text


LEARNED = Learning(steps=20, groups=80, live=20, norm_of_change=1.25)


@reward
def half(completion: str, reference: str) -> float | None:
    """1 when right, 0.5 when it says a number, None (not scored) when it is empty."""
    return None if not completion else 1.0 if completion == reference else 0.5


class Answers:
    """A policy that knows the answers to its first prompts; its groups come in a shuffled order, as a sampler's do."""

    name, differs = "answers", ""

    def __init__(self, knows: int, silent: Sequence[int] = ()) -> None:
        self.knows, self.silent = knows, silent
        self.calls: list[tuple[int, int, bool]] = []

    def sample(
        self, prompts: Sequence[Prompt], n: int, *, seed: int, greedy: bool = False
    ) -> Iterator[tuple[int, Rollout]]:
        self.calls.append((n, seed, greedy))
        for at in random.Random(1).sample(range(len(prompts)), len(prompts)):
            right = prompts[at].sample.reference
            texts = ["" if at in self.silent else right if at < self.knows and i != 1 else "0" for i in range(n)]
            found = tuple(Sampled((5,) * (3 + at % 2), (0.0,) * (3 + at % 2), "stop", text) for text in texts)
            yield at, Rollout(prompts[at], found, 0)

    def update(self, version: int) -> None: ...
    def close(self) -> None: ...

    def current(self) -> bool:
        return True


def measure(knows: int, samples: int = 4, silent: Sequence[int] = (), which: object = "exact") -> HeldOut:
    with Engine({"total": which}, workers=1) as engine:  # type: ignore[dict-item]
        return held_out(Answers(knows, silent), engine, PROMPTS, samples)


def change(before: int, after: int, **how: object) -> Change:
    return paired(measure(before, **how), measure(after, **how))  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------------------ measuring


def test_rewards_stand_in_the_order_of_the_prompts() -> None:
    found = measure(3)
    assert found.greedy.rewards == (1.0,) * 3 + (0.0,) * 9
    assert found.sampled is not None and found.sampled.rewards == (0.75,) * 3 + (0.0,) * 9
    assert found.sampled.mean == pytest.approx(0.75 * 3 / 12)
    assert found.greedy.length == 3.5  # half of 3 tokens, half of 4
    assert found.sampled.pass_at(1) == pytest.approx(0.75 * 3 / 12)
    assert found.sampled.pass_at(4) == pytest.approx(3 / 12)


def test_greedy_takes_one_and_sampling_the_same_seed_each_time() -> None:
    policy = Answers(3)
    with Engine({"total": "exact"}, workers=1) as engine:
        for _ in range(2):
            held_out(policy, engine, PROMPTS, 4, seed=7)
        held_out(policy, engine, PROMPTS, 0, seed=8)
    first, second = policy.calls[:2], policy.calls[2:4]
    assert [(n, greedy) for n, _, greedy in first] == [(1, True), (4, False)]
    assert first == second
    assert policy.calls[4][1] != first[0][1] and len(policy.calls) == 5  # 0 samples: greedy only


def test_a_prompt_without_a_reward_is_left_out_of_both_sides() -> None:
    found = paired(measure(3, silent=[0], which=half), measure(6, silent=[11], which=half))
    assert found.greedy is not None
    # 10 prompts have a reward both times: 1 and 2 are right before, 1 to 5 after, the others 0.5.
    assert (found.greedy.problems, found.greedy.left_out) == (10, 2)
    assert found.greedy.before == pytest.approx((2 * 1 + 8 * 0.5) / 10)
    assert found.greedy.after == pytest.approx((5 * 1 + 5 * 0.5) / 10)
    assert found.before.greedy.pass_at(1) is None  # no reward of 0s and 1s


def test_a_real_sampler_gives_the_same_twice_and_another_policy_another() -> None:
    """Two measurements of one policy tie on every prompt; a changed adapter is seen."""
    import torch
    from tiny_policies import tiny_model

    from trainer_backend.model.forward import head_of
    from trainer_backend.rollout.options import SamplingOptions
    from trainer_backend.rollout.transformers_sampler import TransformersSampler

    class Words:
        def decode(self, ids: Sequence[int], **how: object) -> str:
            return " ".join(map(str, ids))

    @reward
    def low_tokens(completion: str) -> float:
        return sum(int(token) < 40 for token in completion.split()) / 8

    torch.set_num_threads(1)
    model = tiny_model(dtype=torch.float32).eval()
    options = SamplingOptions(max_tokens=8)
    found = []
    with Engine({"total": low_tokens}, workers=1) as engine:
        for _ in range(3):
            sampler = TransformersSampler(model, Words(), options, head=head_of(model), eos_ids=(2,))
            found.append(held_out(sampler, engine, PROMPTS, 3, seed=4))
            if len(found) == 2:
                for name, weight in model.named_parameters():
                    if "lora_B" in name:
                        torch.nn.init.normal_(weight, std=0.5)
    same, other = paired(found[0], found[1]), paired(found[0], found[2])
    assert same.greedy is not None and same.sampled is not None and other.sampled is not None
    assert (same.greedy.difference.ties, same.sampled.difference.ties) == (12, 12)
    assert same.sampled.difference.p == 1.0
    assert other.sampled.difference.ties < 12


def test_a_missing_reward_and_no_prompts_are_errors() -> None:
    with Engine({"other": "exact"}, workers=1) as engine:
        with pytest.raises(UsageError, match="no reward 'total' to measure; there are other"):
            held_out(Answers(1), engine, PROMPTS, 1)
        with pytest.raises(UsageError, match="no held-out prompts"):
            held_out(Answers(1), engine, [], 1, reward="other")


def test_eval_reads_what_was_held_out_and_finds_the_same(tmp_path: Path) -> None:
    path = write_held_out(tmp_path, "before", measure(3))
    done = subprocess.run(
        [sys.executable, "-m", "rewardkit", "eval", str(path), "-r", "exact", "-o", "scores", "-q"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "greedy/exact 0.25 (12 scored, 0 unscored)" in done.stdout
    assert "sampled/exact 0.1875 (48 scored, 0 unscored)" in done.stdout


# ------------------------------------------------------------------------------------------------------------ comparing


def test_the_test_is_exact_and_paired() -> None:
    found = change(3, 10)
    assert found.greedy is not None
    difference = found.greedy.difference
    assert (difference.wins, difference.losses, difference.ties) == (7, 0, 5)
    assert difference.p == pytest.approx(2 * 0.5**7)  # seven coins, all heads, two-sided
    assert difference.mean == pytest.approx(7 / 12)
    assert found.to_dict()["greedy"]["won"] == 7
    assert found.to_dict()["greedy"]["length_before"] == 3.5


def test_other_prompts_cannot_be_paired() -> None:
    with Engine({"total": "exact"}, workers=1) as engine:
        few = held_out(Answers(1), engine, PROMPTS[:5], 0)
    with pytest.raises(UsageError, match="different held-out prompts"):
        paired(measure(1), few)


# ---------------------------------------------------------------------------------------------------------------- words


def closing(change: Change | None, learning: Learning = LEARNED) -> str:
    return closing_text(
        change=change, learning=learning, adapter=Path("runs/x/adapter"), run=Path("runs/x"), seconds=412.3,
        metrics={"kl": 0.012, "entropy": float("nan")}, file=Path("train.toml"),
    )  # fmt: skip


def test_a_better_model_is_said_with_its_figures() -> None:
    text = closing(change(3, 10))
    assert "greedy   0.250 -> 0.833  +0.583 [" in text
    assert "p 0.02  won 7, lost 0, same 5 of 12 prompts" in text
    assert "sampled  0.188 -> 0.625" in text and "pass@4 0.250 -> 0.833" in text
    assert "better on prompts that it was not trained on" in text
    assert "20 steps in 6 min 52 s; live groups 25.0 % of 80" in text and "change 1.25" in text
    assert "KL to the start 0.0120" in text and "entropy 0" not in text and "entropy nan" not in text
    assert "adapter   runs/x/adapter" in text and text.splitlines()[-1].startswith("next      rewardkit plot runs/x")


def test_a_worse_model_is_said_to_be_worse() -> None:
    assert "WORSE" in closing(change(10, 3))


def test_a_difference_that_may_be_chance_is_not_called_one() -> None:
    text = closing(change(3, 4))
    assert "no more than chance would give (p 1.00); with 12 held-out prompts only a large one shows" in text
    assert "better" not in text and "lora.start_from=runs/x/adapter" in text


@pytest.mark.parametrize(
    ("learning", "why"),
    [
        # posttrainarena#31: a run "succeeded" although no group had spread and every LoRA-B stayed 0
        (Learning(10, 40, 0, 0.0), "in none of 40 groups did the rewards differ"),
        (Learning(10, 40, 0, 0.3), "in none of 40 groups did the rewards differ"),  # weight decay moves weights, too
        (Learning(10, 40, 0, 0.0, errors=1.0), "the reward failed on every completion"),
        (Learning(10, 40, 9, 0.0, skipped=10), "every step was left out"),
        (Learning(10, 40, 9, 0.0), "the adapter's weights are what they were"),
        (Learning(0, 0, 0, 0.0), "no step was taken"),
    ],
    ids=["dead", "dead but moved", "failed", "skipped", "unmoved", "none"],
)
def test_nothing_learned_is_said_in_words(learning: Learning, why: str) -> None:
    text = closing(None, learning)
    assert not learning.learned
    assert "NOTHING WAS LEARNED" in text and why in text
    assert "rewardkit train train.toml --check" in text


def test_without_held_out_prompts_that_is_said() -> None:
    assert "no prompts were held out" in closing(None)


def test_an_evil_path_cannot_act_on_the_terminal() -> None:
    text = closing_text(change=None, learning=LEARNED, adapter=None, run=Path("a\x1b[2J b"))
    assert "\x1b" not in text
