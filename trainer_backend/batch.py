"""Rows of an optimizer batch into micro-steps: the one place where shapes are named.

A row is a prompt and one completion, as token ids. A micro-step is what one forward and backward pass takes: whole
rows, as many as a token budget allows, the longest first, so that the largest memory is seen at once and not after an
hour.

Three layouts hold the same rows:

* apart: a sequence is `prompt + completion`, padded on the right;
* shared: rows that begin alike stand in one sequence, in the order of their tokens, and each brings only what the row
  before it does not have. Each token sees what comes before it in its own row, and its position is its place there.
  What begins alike is computed once, and what flows back into it is the sum over its rows. With a prompt of P tokens
  and G completions of R, P + G R tokens at most take the place of G (P + R); completions that begin alike, and prompts
  with the same instructions, save more;
* line: such sequences stand end to end in one, without padding, and see nothing of each other. There is no mask:
  streamed layers (`model.streamed`) go by the branches.

| name | meaning |
| --- | --- |
| row | a prompt with one completion; `MicroStep.rows` are their places in the list that was given |
| sequence | a row of `input_ids`: one row (apart), rows that begin alike (shared), or all of a micro-step (line) |
| width | tokens of the longest sequence |
| tokens | tokens of the longest completion: masks and log-probs are [rows, tokens] |
| counted | completion tokens of all rows, in one line |
| distinct | counted, but once for rows that go on alike from the same token; what the head is applied to |

The last token of a completion predicts nothing, so it is never fed to the model.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trainer_backend.errors import TensorError
from trainer_backend.model.forward import Branch, prefix_mask
from trainer_backend.plan import LINE_WORTH, MERGED_WIDTH, PADDED, SHARED_WIDTH, WORTH

Numbers: TypeAlias = "Sequence[float] | torch.Tensor"
"""One number a token: a sequence, or a tensor with one dimension."""

Layout: TypeAlias = Literal["apart", "shared", "line"]


@dataclass(frozen=True, eq=False)
class Row:
    """A prompt with one completion, and what is known about it.

    Attributes:
        prompt_ids: At least one token.
        completion_ids: As they were sampled, the end token included; empty ones teach nothing.
        advantage: Of the whole completion; 0 where it was not scored.
        rollout_logps: The sampler's log-probs, one a token; NaN where it does not know. None: it knows none.
        ref_logps: Under the reference policy. None: computed where they are needed.
        old_logps: Under the policy before the first update on these rows. None: it has not changed since.
        counted: False leaves the row out of the loss and of what the loss divides by: it was not scored, or it was cut
            off and is masked on request.

    Raises:
        TensorError: An empty prompt, or log-probs of another length than the completion.
    """

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    advantage: float
    rollout_logps: Numbers | None = None
    ref_logps: Numbers | None = None
    old_logps: Numbers | None = None
    counted: bool = True

    def __post_init__(self) -> None:
        if not self.prompt_ids:
            raise TensorError("a row has a prompt of at least one token: the first completion token is predicted by it")
        for name in ("rollout_logps", "ref_logps", "old_logps"):
            value = getattr(self, name)
            if value is not None and len(value) != len(self.completion_ids):
                raise TensorError(
                    f"{name} has one number a completion token, {len(self.completion_ids):,}; got {len(value):,}"
                )

    @property
    def length(self) -> int:
        """Tokens of the completion."""
        return len(self.completion_ids)

    @property
    def in_loss(self) -> bool:
        """Whether the row has tokens that count."""
        return self.counted and bool(self.completion_ids)


def with_old_logps(rows: Sequence[Row], logps: Sequence[Numbers | None]) -> list[Row]:
    """Return the rows with log-probs before the first update, for the second update on them (`num_iterations`)."""
    return [dataclasses.replace(row, old_logps=value) for row, value in zip(rows, logps, strict=True)]


@dataclass(frozen=True, eq=False)
class MicroStep:
    """What one forward and backward pass takes. Everything that is indexed by a row has the order of `rows`.

    Attributes:
        rows: Places in the list of rows that was given.
        layout: How the rows lie.
        input_ids: int64 [sequences, width], padded on the right with 0.
        branches: Of each sequence, how its rows share it; None: every sequence is one row. Never None for a line.
        position_ids: int64 [sequences, width].
        mask: bool [rows, tokens].
        targets: int64 [distinct].
        sources: int64 [distinct]; sequence * width + column of the token that predicts the target.
        repeats: int64 [counted], which of the distinct ones each is.
        firsts: int64 [distinct], the first of the counted ones that each is.
        places: int64 [counted]; row * tokens + token.
        advantages: float64 [rows].
        rollout_logps, ref_logps, old_logps: float64 [rows, tokens], NaN beyond the mask and for rows that lack them;
            None where no row has any.
        lengths: Tokens of each row's completion.
    """

    rows: tuple[int, ...]
    layout: Layout
    input_ids: torch.Tensor
    branches: tuple[Sequence[Branch], ...] | None
    position_ids: torch.Tensor
    mask: torch.Tensor
    targets: torch.Tensor
    sources: torch.Tensor
    repeats: torch.Tensor
    firsts: torch.Tensor
    places: torch.Tensor
    advantages: torch.Tensor
    rollout_logps: torch.Tensor | None
    ref_logps: torch.Tensor | None
    old_logps: torch.Tensor | None
    lengths: tuple[int, ...]

    @property
    def attention_mask(self) -> torch.Tensor | None:
        """Who sees whom, bool [sequences, 1, width, width]; None: causal, which right padding leaves exact.

        Made when it is asked for: those of all micro-steps together would not be small.

        Raises:
            TensorError: The layout is "line", which is as long as memory allows, and its mask the square of that.
        """
        if self.layout == "line":
            raise TensorError("a line has no mask: who sees whom is in its branches")
        if self.branches is None:
            return None
        return prefix_mask(self.branches, self.input_ids.shape[1], self.input_ids.device)

    @property
    def tokens(self) -> int:
        """Tokens that the model computes, padding included."""
        return self.input_ids.numel()

    def spread(self, values: torch.Tensor) -> torch.Tensor:
        """Return values of the counted tokens, [counted], as [rows, tokens], 0 elsewhere; differentiable."""
        return values.new_zeros(self.mask.numel()).index_copy(0, self.places, values).view(self.mask.shape)

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """Return the counted tokens of values [rows, tokens], as [counted]."""
        return values.reshape(-1).index_select(0, self.places)

    def by_row(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return values of the counted tokens, [counted], cut into rows, each [its length]."""
        return list(torch.split(values, list(self.lengths)))


def micro_steps(
    rows: Sequence[Row],
    token_budget: int | None = None,
    *,
    layout: Layout = "apart",
    places: Iterable[int] | None = None,
    device: torch.device | str = "cpu",
) -> list[MicroStep]:
    """Return the micro-steps of rows, the longest sequences first. Rows are never cut: one may exceed the budget alone.

    Args:
        rows: The rows of an optimizer batch.
        token_budget: Tokens of a micro-step at most, padding included; None: all in one. With one, sequences are also
            padded to `plan.PADDED` times their tokens at most, and rows alone stand in other micro-steps than rows
            that share: they need no mask. A line has neither padding nor mask.
        layout: "shared" lets rows that begin alike share their beginning where that saves enough tokens (`plan.WORTH`),
            "line" likewise from less on (`plan.LINE_WORTH`).
        places: Which of the rows to take; None: all that count.
        device: Where the tensors are made.

    Raises:
        TensorError: A budget below 1.
    """
    if token_budget is not None and token_budget < 1:
        raise TensorError(f"token_budget is at least 1 token, got {token_budget}")
    chosen = [at for at, row in enumerate(rows) if row.in_loss] if places is None else list(places)
    lines = [_Line(rows, at) for at in chosen] if layout == "apart" else _lines(rows, chosen, token_budget, layout)
    # Ties are broken by place, so that the same rows always give the same micro-steps.
    lines.sort(key=lambda line: (-line.width, line.rows))
    if token_budget is None:
        steps = [lines] if lines else []
    elif layout == "line":
        steps = _packed(lines, token_budget, padding=False)
    else:
        alone, sharing = ([line for line in lines if (len(line.rows) > 1) is many] for many in (False, True))
        steps = [*_packed(sharing, token_budget), *_packed(alone, token_budget)]
    if layout == "line":
        steps = [[_end_to_end(step)] for step in steps]
    steps.sort(key=lambda step: -step[0].width)
    return [_micro_step(rows, step, layout, torch.device(device)) for step in steps]


def _packed(lines: Sequence[_Line], token_budget: int, *, padding: bool = True) -> list[list[_Line]]:
    """Return sequences, the widest first, in micro-steps; `padding`: whether each takes the width of the widest."""
    steps: list[list[_Line]] = []
    fed = 0
    for line in lines:
        fed += line.width
        taken = (len(steps[-1]) + 1) * steps[-1][0].width if steps and padding else fed
        if steps and taken <= min(token_budget, PADDED * fed):
            steps[-1].append(line)
        else:
            steps.append([line])
            fed = line.width
    return steps


class _Line:
    """A sequence as it is put together: the columns of each of its rows.

    Attributes:
        rows: Places in the list of rows.
        ids, positions: Of its columns.
        branches: Runs of columns that a row brought, in order.
        paths: Of each row, the columns of its tokens; completions without their last one.
    """

    def __init__(self, rows: Sequence[Row], first: int) -> None:
        self.rows: list[int] = []
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.branches: list[Branch] = []
        self.paths: list[Sequence[int]] = []
        self.add(first, _fed(rows[first]), 0)

    @property
    def width(self) -> int:
        return len(self.ids)

    def add(self, at: int, fed: tuple[int, ...], common: int) -> None:
        """Add a row whose first `common` tokens are those of the row before it."""
        before = self.paths[-1][:common] if common else ()
        start, stop = self.width, self.width + len(fed) - common
        self.rows.append(at)
        self.ids += fed[common:]
        self.positions += range(common, len(fed))
        if stop > start:
            self.branches.append(Branch(start, stop, before))
        self.paths.append([*before, *range(start, stop)])

    def append(self, other: _Line) -> None:
        """Put another sequence behind this one; neither sees anything of the other."""
        at = self.width
        self.rows += other.rows
        self.ids += other.ids
        self.positions += other.positions
        self.branches += [
            Branch(at + one.start, at + one.stop, [at + column for column in one.before]) for one in other.branches
        ]
        self.paths += [[at + column for column in path] for path in other.paths]


def _end_to_end(lines: Sequence[_Line]) -> _Line:
    whole = lines[0]
    for line in lines[1:]:
        whole.append(line)
    return whole


def _fed(row: Row) -> tuple[int, ...]:
    return (*row.prompt_ids, *row.completion_ids[:-1])


def _lines(rows: Sequence[Row], places: Sequence[int], token_budget: int | None, layout: Layout) -> list[_Line]:
    """Return the sequences of rows that share how they begin.

    In the order of their tokens no row has more in common with an earlier one than with the one before it, so the
    sequences are the walks of a tree of prefixes. Where a mask is made, its square bounds their width; in a line, whose
    blocks of attention are computed only where rows see each other, nothing but the budget does.
    """
    worth, widest, merged = (
        (LINE_WORTH, sys.maxsize, sys.maxsize) if layout == "line" else (WORTH, SHARED_WIDTH, MERGED_WIDTH)
    )
    most = min(widest, token_budget or widest)
    completions: dict[tuple[int, ...], int] = {}  # tokens of all rows of a prompt
    for at in places:
        completions[rows[at].prompt_ids] = completions.get(rows[at].prompt_ids, 0) + rows[at].length - 1
    lines: list[_Line] = []
    last: tuple[int, ...] = ()
    for fed, at in sorted((_fed(rows[at]), at) for at in places):
        common, prompt = _in_common(last, fed), rows[at].prompt_ids
        joins = False
        if lines and common * worth >= (worth - 1.0) * len(fed):
            if rows[lines[-1].rows[-1]].prompt_ids == prompt:
                joins = lines[-1].width + len(fed) - common <= most
            else:  # with all of its rows, or not at all
                whole = len(prompt) - min(common, len(prompt)) + completions[prompt]
                joins = lines[-1].width + whole <= min(most, merged)
        if joins:
            lines[-1].add(at, fed, common)
        else:
            lines.append(_Line(rows, at))
        last = fed
    return lines


def _in_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two rows have in common from the start."""
    most = min(len(one), len(other))
    return next((at for at in range(most) if one[at] != other[at]), most)


def _micro_step(rows: Sequence[Row], lines: Sequence[_Line], layout: Layout, device: torch.device) -> MicroStep:
    order = tuple(at for line in lines for at in line.rows)
    lengths = tuple(rows[at].length for at in order)
    width = max(line.width for line in lines)
    tokens = max(lengths)
    branched = layout == "line" or any(len(line.rows) > 1 for line in lines)
    ids, positions = [], []
    distinct: dict[tuple[int, int], int] = {}
    repeats: list[int] = []
    firsts: list[int] = []
    for number, line in enumerate(lines):
        missing = width - line.width
        ids.append(line.ids + [0] * missing)
        # Without a mask positions go on over padding: places that start again would be read as packed sequences. With
        # one they must not: a shared sequence is wider than any row, and models have a largest position.
        positions.append(line.positions + ([0] * missing if branched else list(range(line.width, width))))
        for at, path in zip(line.rows, line.paths, strict=True):
            from_prompt = path[len(rows[at].prompt_ids) - 1 :]
            for column, target in zip(from_prompt, rows[at].completion_ids, strict=True):
                one = distinct.setdefault((number * width + column, target), len(distinct))
                if one == len(firsts):
                    firsts.append(len(repeats))
                repeats.append(one)
    numbers = torch.tensor(lengths)
    mask = torch.arange(tokens).unsqueeze(0) < numbers.unsqueeze(1)
    return MicroStep(
        rows=order,
        layout=layout,
        input_ids=torch.tensor(ids, device=device),
        branches=tuple(line.branches for line in lines) if branched else None,
        position_ids=torch.tensor(positions, device=device),
        mask=mask.to(device),
        targets=torch.tensor([target for _, target in distinct], device=device),
        sources=torch.tensor([source for source, _ in distinct], device=device),
        repeats=torch.tensor(repeats, device=device),
        firsts=torch.tensor(firsts, device=device),
        places=mask.flatten().nonzero().squeeze(1).to(device),
        advantages=torch.tensor([rows[at].advantage for at in order], dtype=torch.float64, device=device),
        rollout_logps=_tokens([rows[at].rollout_logps for at in order], tokens, device),
        ref_logps=_tokens([rows[at].ref_logps for at in order], tokens, device),
        old_logps=_tokens([rows[at].old_logps for at in order], tokens, device),
        lengths=lengths,
    )


def _tokens(values: Sequence[Numbers | None], tokens: int, device: torch.device) -> torch.Tensor | None:
    """Return one number a token as float64 [rows, tokens], NaN where there is none; None when no row has any."""
    if all(value is None for value in values):
        return None
    table = torch.full((len(values), tokens), float("nan"), dtype=torch.float64)
    for row, value in enumerate(values):
        if value is not None:
            table[row, : len(value)] = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    return table.to(device)
