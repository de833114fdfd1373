"""Rows into micro-steps: what is fed, what predicts what, and which rows go together."""

from __future__ import annotations

import random
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch")
transformers = pytest.importorskip("transformers", reason="micro-steps know the models' masks")

from trainer_backend.batch import MicroStep, Row, micro_steps, with_old_logps  # noqa: E402
from trainer_backend.errors import TensorError  # noqa: E402
from trainer_backend.plan import MERGED_WIDTH, SHARED_WIDTH  # noqa: E402


def rows_of(*shapes: tuple[int, int], seed: int = 0) -> list[Row]:
    """Rows of (prompt number, completion length); a prompt's number sets its tokens and its length."""
    dice = random.Random(seed)
    return [
        Row(
            tuple(random.Random(prompt).randrange(9, 99) for _ in range(3 + prompt)),
            tuple(dice.randrange(9, 99) for _ in range(length)),
            advantage=float(at),
        )
        for at, (prompt, length) in enumerate(shapes)
    ]


def seen_by(step: MicroStep, source: int) -> list[int]:
    """The token ids that a flat place sees, in the order of their positions."""
    width = step.input_ids.shape[1]
    sequence, column = divmod(source, width)
    ids, places = step.input_ids[sequence].tolist(), step.position_ids[sequence].tolist()
    if step.branches is None:
        sees = [at <= column for at in range(width)]
    elif step.layout == "line":
        (own,) = (branch for branch in step.branches[sequence] if branch.start <= column < branch.stop)
        sees = [at in own.before or own.start <= at <= column for at in range(width)]
    else:
        assert step.attention_mask is not None
        sees = step.attention_mask[sequence, 0, column].tolist()
    order = sorted((places[at], ids[at]) for at in range(width) if sees[at])
    assert [place for place, _ in order] == list(range(len(order))), "positions go on without a gap"
    assert step.branches is None or max(max(line) for line in step.position_ids.tolist()) < max(
        branch.stop - branch.start + len(branch.before) for line in step.branches for branch in line
    ), "no position is beyond the longest row"
    return [token for _, token in order]


def alike(seed: int, count: int) -> list[Row]:
    """Rows of few different tokens, so that they begin alike, contain each other and are the same, in every way."""
    dice = random.Random(seed)
    prompts = [tuple(dice.choices((1, 2), k=dice.randrange(1, 7))) for _ in range(4)]
    return [
        Row(dice.choice(prompts), tuple(dice.choices((1, 2), k=dice.randrange(1, 6))), float(at)) for at in range(count)
    ]


SETS = {
    "different": rows_of((0, 4), (0, 1), (5, 7), (0, 4), (5, 2), (2, 1), (5, 7), (0, 6), (2, 3)),
    **{f"alike {seed}": alike(seed, 20) for seed in range(6)},
}


@pytest.mark.parametrize("budget", [None, 1, 12, 25, 60])
@pytest.mark.parametrize("layout", ["apart", "shared", "line"])
@pytest.mark.parametrize("rows", SETS.values(), ids=SETS)
def test_each_token_is_predicted_from_its_own_prompt_and_what_came_before(
    rows: list[Row], layout: Any, budget: Any
) -> None:
    found: dict[int, int] = {}
    for step in micro_steps(rows, budget, layout=layout):
        assert step.mask.sum(1).tolist() == list(step.lengths) == [rows[at].length for at in step.rows]
        assert step.advantages.tolist() == [rows[at].advantage for at in step.rows]
        at_row, at_token = (step.places // step.mask.shape[1]).tolist(), (step.places % step.mask.shape[1]).tolist()
        sources, targets = step.sources[step.repeats].tolist(), step.targets[step.repeats].tolist()
        assert step.repeats[step.firsts].tolist() == list(range(len(step.targets)))
        assert len({*zip(sources, targets, strict=True)}) == len(step.targets), "none is computed twice"
        for row, token, source, target in zip(at_row, at_token, sources, targets, strict=True):
            one = rows[step.rows[row]]
            assert target == one.completion_ids[token]
            assert seen_by(step, source) == [*one.prompt_ids, *one.completion_ids[:token]]
            found[step.rows[row]] = found.get(step.rows[row], 0) + 1
    assert found == {at: row.length for at, row in enumerate(rows)}


@pytest.mark.parametrize("layout", ["apart", "shared", "line"])
def test_longest_first_and_within_the_budget(layout: Any) -> None:
    dice = random.Random(3)
    rows = rows_of(*[(dice.randrange(5), dice.randrange(1, 30)) for _ in range(60)])
    for budget in (1, 40, 100, 5000):
        steps = micro_steps(rows, budget, layout=layout)
        widths = [step.input_ids.shape[1] for step in steps]
        assert widths == sorted(widths, reverse=True)
        assert sorted(at for step in steps for at in step.rows) == list(range(60))
        for step in steps:
            assert step.tokens <= budget or step.input_ids.shape[0] == 1
            if step.tokens > budget:
                assert len(step.rows) == 1, "only a row that does not fit alone may exceed the budget"
    assert len(micro_steps(rows, None, layout=layout)) == 1


def test_same_rows_same_micro_steps() -> None:
    rows = rows_of((0, 4), (1, 3), (0, 4), (1, 3))
    one, other = (micro_steps(rows, 14, layout="shared") for _ in range(2))
    assert [step.rows for step in one] == [step.rows for step in other]
    assert all(torch.equal(a.input_ids, b.input_ids) for a, b in zip(one, other, strict=True))


def test_a_prompt_is_shared_only_where_that_saves_tokens() -> None:
    (few,) = micro_steps(rows_of((0, 40), (0, 40)), layout="shared")  # 3 prompt tokens twice: 84 for 81
    assert few.attention_mask is None and few.input_ids.shape[0] == 2
    (many,) = micro_steps(rows_of((9, 4), (9, 4)), layout="shared")
    assert many.attention_mask is not None and many.input_ids.shape == (1, 12 + 3 + 3)


def test_shared_sequences_stay_below_the_width_that_a_mask_can_have() -> None:
    prompt = tuple(range(1, 1001))
    rows = [Row(prompt, tuple(range(1, 1001)), 1.0) for _ in range(10)]
    steps = micro_steps(rows, None, layout="shared")
    assert all(step.input_ids.shape[1] <= SHARED_WIDTH for step in steps)
    assert sum(step.tokens for step in steps) < 10 * 1999


def test_a_line_holds_real_tokens_only_and_as_many_as_the_budget_allows() -> None:
    dice = random.Random(1)
    rows = [
        Row((at, at + 1), tuple(dice.choices(range(9, 99), k=dice.randrange(1, 50))), 1.0) for at in range(100, 140)
    ]
    fed = [len(row.prompt_ids) + row.length - 1 for row in rows]
    (whole,) = micro_steps(rows, layout="line")
    assert whole.input_ids.shape == (1, sum(fed)) and whole.tokens == sum(fed)
    steps = micro_steps(rows, 200, layout="line")
    assert [step.tokens for step in steps] == [sum(fed[at] for at in step.rows) for step in steps]
    left = sorted(fed)  # the longest first: a micro-step ends where the next row has no room
    for step in sorted(steps, key=lambda step: -max(fed[at] for at in step.rows)):
        held = sorted(fed[at] for at in step.rows)
        assert left[-len(held) :] == held
        del left[-len(held) :]
        assert step.tokens <= 200 and (not left or step.tokens + left[-1] > 200)


def test_a_line_shares_what_a_mask_would_be_too_large_for() -> None:
    prompt = tuple(range(1, 1001))
    rows = [Row(prompt, tuple(range(at, at + 1000)), 1.0) for at in range(1001, 1011)]
    (step,) = micro_steps(rows, None, layout="line")
    assert step.tokens == 1000 + 10 * 999 > SHARED_WIDTH
    rows = [Row((*range(500), task), tuple(range(1000, 1200)), 1.0) for task in range(12)]
    (step,) = micro_steps(rows, None, layout="line")
    assert step.tokens == 500 + 12 * 200 > MERGED_WIDTH


def test_a_line_shares_a_prompt_from_less_on() -> None:
    """3 prompt tokens of rows of 42: a seventh less would have to be saved for a mask, a fiftieth in a line."""
    (step,) = micro_steps(rows_of((0, 40), (0, 40)), layout="line")
    assert step.tokens == 3 + 39 + 39
    (step,) = micro_steps(rows_of((0, 400), (0, 400)), layout="line")
    assert step.tokens == 2 * 402


def test_a_line_has_no_mask() -> None:
    for rows in (SETS["different"], SETS["different"][:1]):
        (step,) = micro_steps(rows, layout="line")
        with pytest.raises(TensorError, match="a line has no mask"):
            _ = step.attention_mask
        assert step.branches is not None


def prefixes(rows: list[Row]) -> int:
    """How many different beginnings the rows have: the tokens that must be computed, by definition."""
    fed = [(*row.prompt_ids, *row.completion_ids[:-1]) for row in rows]
    return len({one[:stop] for one in fed for stop in range(1, len(one) + 1)})


def test_what_begins_alike_is_computed_once() -> None:
    for seed in range(20):
        rows = [Row((1, 2, 3, 4), one.completion_ids, 1.0) for one in alike(seed, 20)]
        for layout in ("shared", "line"):
            (step,) = micro_steps(rows, layout=layout)
            assert step.tokens == prefixes(rows)
        found = {(row.prompt_ids + row.completion_ids)[:stop] for row in rows for stop in range(5, 5 + row.length)}
        assert len(step.targets) == len(found)


def test_prompts_with_the_same_instructions_share_them() -> None:
    rows = [Row((*range(100, 140), task), (7, 8, at), 1.0) for task in (1, 2, 3) for at in (4, 5)]
    (step,) = micro_steps(rows, layout="shared")
    assert step.input_ids.shape == (1, 40 + 3 * 3)  # completions differ in their last token only, which is not fed
    (other,) = micro_steps([Row((1, task), tuple(range(20, 40)), 1.0) for task in (1, 2)], layout="shared")
    assert other.input_ids.shape == (2, 21)  # one token in common is not worth a mask


def test_a_micro_step_is_padded_little_and_its_plan_is_no_less() -> None:
    from trainer_backend.config import GRPOConfig
    from trainer_backend.plan import Task, most_tokens, shape_of

    shape = shape_of(transformers.LlamaConfig())
    for first, second, budget in [
        ((250, 250), (10, 250), 32_768),
        ((2000, 200), (20, 200), 32_768),
        ((2000, 200), (30, 20), 32_768),
        ((6000, 500), (6000, 500), 65_536),
    ]:
        dice = random.Random(0)
        rows = [
            Row(tuple(range(number, number + prompt)), tuple(dice.choices(range(1, 10**6), k=length)), 1.0)
            for number, (prompt, length) in ((1, first), (10**5, second), (2 * 10**5, second))
            for _ in range(8)
        ]
        steps = micro_steps(rows, budget, layout="shared")
        settings = GRPOConfig(
            model="-", max_completion_length=first[1], num_generations=8, per_device_train_batch_size=24
        )
        task = Task(shape=shape, longest_prompt=first[0], device="cuda", number=2, shared=True)
        assert max(step.tokens for step in steps) <= most_tokens(task, settings, budget)
        for step in steps:
            padding = step.input_ids.numel() / int((step.input_ids != 0).sum())
            assert padding <= 1.5


def test_rows_alone_need_no_mask_beside_rows_that_share() -> None:
    prompt = tuple(range(1, 201))
    rows = [
        Row(prompt, tuple(range(at, at + length)), 1.0)
        for at, length in ((300, 9000), (400, 9000), (500, 90), (600, 90))
    ]
    steps = micro_steps(rows, 40_000, layout="shared")
    assert sorted((step.branches is None, step.input_ids.shape[0]) for step in steps) == [(False, 1), (True, 2)]
    assert all(step.branches is None or step.input_ids.shape[1] <= SHARED_WIDTH for step in steps)


def test_a_prompt_joins_others_with_all_its_rows_or_not_at_all() -> None:
    dice = random.Random(0)
    rows = [
        Row((*range(150), *range(task * 1000, task * 1000 + 50)), tuple(dice.choices(range(10**6), k=100)), 1.0)
        for task in range(1, 17)
        for _ in range(8)
    ]
    (step,) = micro_steps(rows, layout="shared")
    assert step.input_ids.shape[1] <= MERGED_WIDTH


def test_prompts_are_merged_up_to_a_width_and_rows_of_one_prompt_beyond_it() -> None:
    rows = [Row((*range(500), task), tuple(range(1000, 1200)), 1.0) for task in range(12)]
    steps = micro_steps(rows, None, layout="shared")
    assert max(step.input_ids.shape[1] for step in steps) <= MERGED_WIDTH
    assert sum(step.tokens for step in steps) < 12 * 700 / 1.5
    (one,) = micro_steps([Row((1, 2), (at, *range(9, 1000)), 1.0) for at in (3, 4, 5)] * 3, layout="shared")
    assert one.input_ids.shape[0] == 3, "rows that begin alike but for two tokens stay apart"
    rows = [Row(tuple(range(500)), (at, *range(1000, 1300)), 1.0) for at in range(20)]
    (one,) = micro_steps(rows, layout="shared")
    assert one.input_ids.shape == (1, 500 + 20 * 300) and one.input_ids.shape[1] > MERGED_WIDTH


def test_rows_that_do_not_count_are_not_computed() -> None:
    rows = [Row((1, 2), (3,), 0.5), Row((1, 2), (), 0.5), Row((1, 2), (3, 4), 0.5, counted=False)]
    (step,) = micro_steps(rows)
    assert step.rows == (0,)
    assert micro_steps(rows[1:]) == []


def test_numbers_stand_beside_their_tokens_and_unknown_ones_are_nan() -> None:
    rows = [
        Row((1,), (5, 6), 0.0, rollout_logps=(-1.0, -2.0)),
        Row((1,), (7,), 0.0),
        Row((1,), (8, 9, 10), 0.0, rollout_logps=torch.tensor([-3.0, float("nan"), -5.0])),
    ]
    (step,) = micro_steps(rows)
    assert step.old_logps is None and step.rollout_logps is not None
    expected = {0: [-1.0, -2.0], 1: [float("nan")], 2: [-3.0, float("nan"), -5.0]}
    for at, row in enumerate(step.rows):
        known = step.rollout_logps[at, : rows[row].length]
        torch.testing.assert_close(known, torch.tensor(expected[row], dtype=torch.float64), equal_nan=True)
    values = step.gather(step.rollout_logps)
    for row, value in zip(step.rows, step.by_row(values), strict=True):
        torch.testing.assert_close(value, torch.tensor(expected[row], dtype=torch.float64), equal_nan=True)
    assert torch.equal(step.gather(step.spread(values.nan_to_num())), values.nan_to_num())


def test_float32_log_probs_survive_as_old_ones() -> None:
    """A ratio is exactly 1 only if the old log-prob comes back to the last bit."""
    logps = torch.tensor([-0.1, -1.2345678, -3e-7], dtype=torch.float32)
    (row,) = with_old_logps([Row((1,), (2, 3, 4), 1.0)], [logps])
    (step,) = micro_steps([row])
    assert step.old_logps is not None and torch.equal(step.old_logps[0].float(), logps)


def test_wrong_rows_are_refused() -> None:
    with pytest.raises(TensorError, match="prompt of at least one token"):
        Row((), (1,), 0.0)
    with pytest.raises(TensorError, match="rollout_logps has one number a completion token, 2; got 1"):
        Row((1,), (1, 2), 0.0, rollout_logps=(-1.0,))
    with pytest.raises(TensorError, match="token_budget is at least 1"):
        micro_steps([Row((1,), (1,), 0.0)], 0)
