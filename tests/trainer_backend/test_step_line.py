"""A step on rows in a line, through streamed layers, against one through the model's own layers, in float64."""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
pytest.importorskip("transformers", reason="the models of these tests are transformers'")
pytest.importorskip("peft", reason="the adapters of these tests are peft's")

from one_thread import one_thread  # noqa: E402, F401
from tiny_policies import VOCABULARY, KeepGradients, laid_out, make_rows, near, tiny_policy  # noqa: E402

from trainer_backend import step as stepping  # noqa: E402
from trainer_backend.batch import MicroStep, Row, micro_steps, with_old_logps  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402
from trainer_backend.loss import preset  # noqa: E402
from trainer_backend.model.forward import Branch, Dense  # noqa: E402
from trainer_backend.step import Policy, StepResult, StepSettings, score, update  # noqa: E402

KINDS: dict[str, dict[str, Any]] = {"llama": {}, "qwen2": {}, "qwen3": {"head_dim": 12}}


@functools.lru_cache(maxsize=len(KINDS))
def policy_of(kind: str) -> Policy:
    return tiny_policy(kind, **KINDS[kind])


def settings(loss: Any = None, **changes: Any) -> StepSettings:
    numbers: dict[str, Any] = {"max_grad_norm": None, "max_completion_length": 64, "token_budget": 40}
    return StepSettings(loss=loss or preset("dapo"), **(numbers | changes))


def ragged() -> list[Row]:
    """Rows of 2 to 70 tokens, and a prompt that begins as another one does."""
    dice = random.Random(2)
    prompts = [(5, 6, 7), (5, 6, 8, 9), tuple(dice.randrange(1, VOCABULARY) for _ in range(12))]
    return [
        Row(prompt, tuple(dice.randrange(1, VOCABULARY) for _ in range(length)), dice.gauss(0.0, 1.0))
        for prompt in prompts
        for length in (1, 1, 58, 9)
    ]


def identical() -> list[Row]:
    """Completions that are the same, begin alike, and contain each other."""
    completions = [(3, 4, 5, 6), (3, 4, 5, 6), (3, 4, 9), (3, 4), (3, 4, 5, 6), (8,)]
    return [Row((1, 2, 3, 4, 5), one, 0.5 - at) for at, one in enumerate(completions)]


ROWS = {"ragged": ragged, "identical": identical, "groups": lambda: make_rows(11)}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "grpo, as it is": {"loss": preset("grpo"), "temperature": 0.8},
    "reference": {"loss": preset("grpo", beta=0.3)},
    "entropy bonus": {"loss": preset("dapo", entropy_coef=0.2)},
    "highest entropies": {"top_entropy_quantile": 0.4},
    "all of it": {"loss": preset("grpo", beta=0.1, entropy_coef=0.1), "top_entropy_quantile": 0.5},
}


def taken(policy: Policy, rows: Sequence[Row], how: StepSettings) -> tuple[list[Any], StepResult]:
    """The gradients of a step, and its result; the weights do not move."""
    optimizer = KeepGradients(policy.trained)
    found = update(policy, rows, optimizer, None, how)
    assert not found.skipped
    return optimizer.kept, found


def distance(found: tuple[list[Any], StepResult], wanted: tuple[list[Any], StepResult]) -> float:
    """The largest relative distance of gradients, log-probs and metrics."""
    pairs = list(zip(found[0], wanted[0], strict=True))
    for one, other in zip(found[1].logps, wanted[1].logps, strict=True):
        assert (one is None) is (other is None)
        if one is not None:
            pairs.append((one, other))
    scale = max(float(value.norm()) for value in wanted[0])
    assert scale > 0, "gradients of zero prove nothing"
    largest = max(float((one - other).norm() / other.norm().clamp(min=1e-3 * scale)) for one, other in pairs)
    mine, theirs = ({k: v for k, v in one[1].metrics.items() if k != "tokens/fed"} for one in (found, wanted))
    assert mine.keys() == theirs.keys()
    return max(largest, *(abs(mine[name] - theirs[name]) / max(1e-2, abs(theirs[name])) for name in theirs))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_that_of_the_other_layouts(kind: str, name: str, rows: str) -> None:
    policy, given = policy_of(kind), ROWS[rows]()
    if name != "plain":
        given = [dataclasses.replace(row, ref_logps=None) for row in near(policy, given)]
    how = settings(**VARIANTS[name])
    wanted = taken(laid_out(policy, "apart"), given, how)
    assert distance(taken(laid_out(policy, "shared"), given, how), wanted) < 1e-12
    for chunk, budget in ((5, 40), (64, 100), (1000, None), (16, 1)):
        again = dataclasses.replace(how, token_budget=budget)
        assert distance(taken(laid_out(policy, "line", chunk), given, again), wanted) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_those_of_the_other_layouts_and_of_the_step_itself(kind: str) -> None:
    policy, rows, how = policy_of(kind), ragged(), settings()
    line = laid_out(policy, "line")
    for reference in (False, True):
        found, wanted = (score(one, rows, how, reference=reference) for one in (line, policy))
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    assert not torch.allclose(score(line, rows, how)[2], found[2])  # type: ignore[arg-type]
    # Not nearly: without gradient the same products are taken in the same order.
    result = taken(line, with_old_logps(rows, score(line, rows, how)), how)[1]
    assert result.metrics["ratio/min"] == result.metrics["ratio/max"] == 1.0


def test_two_updates_on_the_same_rows() -> None:
    found = []
    for layout in ("apart", "line"):
        policy = laid_out(tiny_policy("llama"), layout)  # type: ignore[arg-type]
        optimizer, how = KeepGradients(policy.trained, lr=0.05), settings(preset("grpo", epsilon_low=0.01))
        first = update(policy, ragged(), optimizer, None, how)
        second = update(policy, with_old_logps(ragged(), first.logps), optimizer, None, how)
        assert first.metrics["ratio/max"] == 1.0 < second.metrics["ratio/max"]
        found.append((optimizer.kept, second))
    assert distance(found[1], found[0]) < 1e-11


def test_rows_without_advantage_are_dropped_and_counted() -> None:
    policy = policy_of("llama")
    rows = [dataclasses.replace(row, advantage=0.0 if at % 3 else 1.0) for at, row in enumerate(ragged())]
    wanted, found = (taken(laid_out(policy, layout), rows, settings()) for layout in ("apart", "line"))  # type: ignore[arg-type]
    assert distance(found, wanted) < 1e-12
    assert found[1].metrics["rows/learning"] == 4 and found[1].metrics["rows/in_loss"] == 12


def test_fewer_tokens_are_fed_than_with_padding_or_with_a_mask() -> None:
    policy, rows = policy_of("llama"), ragged()
    fed = {
        layout: taken(laid_out(policy, layout), rows, settings(token_budget=None))[1].metrics["tokens/fed"]  # type: ignore[arg-type]
        for layout in ("apart", "shared", "line")
    }
    assert fed["line"] < fed["shared"] <= fed["apart"]


# -------------------------------------------------------------------------------------------------- negative controls


def far(monkeypatch: pytest.MonkeyPatch, change: Any) -> float:
    """How far a step is off when its micro-steps are changed."""
    policy, rows = policy_of("llama"), make_rows(11)
    wanted = taken(laid_out(policy, "apart"), rows, settings())
    line = laid_out(policy, "line")

    def changed(*args: Any, **options: Any) -> list[MicroStep]:
        return [change(step) for step in micro_steps(*args, **options)]

    monkeypatch.setattr(stepping, "micro_steps", changed)
    return distance(taken(line, rows, settings()), wanted)


def test_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert far(monkeypatch, lambda step: step) < 1e-12


def test_positions_that_do_not_start_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only distances count, so a row alone would not notice; one whose beginning stands further away does."""

    def change(step: MicroStep) -> MicroStep:
        return dataclasses.replace(step, position_ids=torch.arange(step.tokens).unsqueeze(0))

    assert far(monkeypatch, change) > 1e-3


def test_a_branch_that_is_off_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(step: MicroStep) -> MicroStep:
        assert step.branches is not None
        moved = [Branch(one.start, one.stop, [at + 1 for at in one.before]) for one in step.branches[0]]
        return dataclasses.replace(step, branches=(moved,))

    assert far(monkeypatch, change) > 1e-3


def test_a_policy_streams_in_a_line_and_nowhere_else() -> None:
    policy = policy_of("llama")
    line = laid_out(policy, "line")
    with pytest.raises(TensorError, match="take rows in a \"line\"; the layout is 'shared'"):
        dataclasses.replace(line, layout="shared")
    with pytest.raises(TensorError, match="the layout is 'line'"):
        dataclasses.replace(policy, layout="line")
    with pytest.raises(TensorError, match="need a head"):
        dataclasses.replace(line, head=Dense("no head"))
