"""Rows of an optimizer batch into micro-steps: the one place where shapes are named.

A row is a prompt and one completion, as token ids. A micro-step is what one forward and backward pass takes: whole
rows, as many as a token budget allows, the longest first, so that the largest memory is seen at once and not after an
hour.

Two layouts hold the same rows:

* apart: a sequence is `prompt + completion`, padded on the right;
* shared: completions of one prompt stand behind it in one sequence, `prompt + completion 1 + completion 2 + ...`. Each
  sees the prompt and itself, and its positions go on from the prompt's end. The prompt is computed once, and what flows
  back into it is the sum over its completions. With a prompt of P tokens and G completions of R, P + G R tokens take
  the place of G (P + R).

| name | meaning |
| --- | --- |
| row | a prompt with one completion; `MicroStep.rows` are their places in the list that was given |
| sequence | a row of `input_ids`: one row (apart), or a prompt with some of its completions (shared) |
| width | tokens of the longest sequence |
| tokens | tokens of the longest completion: masks and log-probs are [rows, tokens] |
| counted | completion tokens of all rows, in one line; what the head is applied to |

The last token of a completion predicts nothing, so it is never fed to the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch

from trainer_backend.errors import TensorError
from trainer_backend.model.forward import PADDING, prefix_mask
from trainer_backend.plan import SHARED_WIDTH

Numbers: TypeAlias = "Sequence[float] | torch.Tensor"
"""One number a token: a sequence, or a tensor with one dimension."""

Layout: TypeAlias = Literal["apart", "shared"]

WORTH = 1.15
"""A shared layout is taken for a prompt when it saves at least this factor of tokens."""


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
        input_ids: int64 [sequences, width], padded on the right with 0.
        attention_mask: bool [sequences, 1, width, width] for a shared layout; None: causal, which right padding leaves
            exact (no token comes after it).
        position_ids: int64 [sequences, width].
        mask: bool [rows, tokens].
        targets: int64 [counted].
        sources: int64 [counted]; sequence * width + column of the token that predicts the target.
        places: int64 [counted]; row * tokens + token.
        advantages: float64 [rows].
        rollout_logps, ref_logps, old_logps: float64 [rows, tokens], NaN beyond the mask and for rows that lack them;
            None where no row has any.
        lengths: Tokens of each row's completion.
    """

    rows: tuple[int, ...]
    input_ids: torch.Tensor
    attention_mask: torch.Tensor | None
    position_ids: torch.Tensor
    mask: torch.Tensor
    targets: torch.Tensor
    sources: torch.Tensor
    places: torch.Tensor
    advantages: torch.Tensor
    rollout_logps: torch.Tensor | None
    ref_logps: torch.Tensor | None
    old_logps: torch.Tensor | None
    lengths: tuple[int, ...]

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
        token_budget: Tokens of a micro-step at most, padding included; None: all in one.
        layout: "shared" lets completions of equal prompts share it where that saves enough tokens (`WORTH`).
        places: Which of the rows to take; None: all that count.
        device: Where the tensors are made.

    Raises:
        TensorError: A budget below 1.
    """
    if token_budget is not None and token_budget < 1:
        raise TensorError(f"token_budget is at least 1 token, got {token_budget}")
    chosen = [at for at, row in enumerate(rows) if row.in_loss] if places is None else list(places)
    sequences: list[list[int]] = []  # the rows of each
    for members in _by_prompt(rows, chosen).values():
        sequences += _sequences(rows, members, token_budget) if layout == "shared" else [[at] for at in members]
    widths = [_width(rows, members) for members in sequences]
    # Ties are broken by place, so that the same rows always give the same micro-steps.
    order = sorted(range(len(sequences)), key=lambda number: (-widths[number], sequences[number]))
    steps: list[list[list[int]]] = []
    width = 0
    for number in order:
        if steps and (token_budget is None or (len(steps[-1]) + 1) * width <= token_budget):
            steps[-1].append(sequences[number])
        else:
            steps.append([sequences[number]])
            width = widths[number]
    return [_micro_step(rows, step, torch.device(device)) for step in steps]


def _by_prompt(rows: Sequence[Row], places: Sequence[int]) -> dict[tuple[int, ...], list[int]]:
    groups: dict[tuple[int, ...], list[int]] = {}
    for at in places:
        groups.setdefault(tuple(rows[at].prompt_ids), []).append(at)
    return groups


def _width(rows: Sequence[Row], members: Sequence[int]) -> int:
    return len(rows[members[0]].prompt_ids) + sum(rows[at].length - 1 for at in members)


def _sequences(rows: Sequence[Row], members: Sequence[int], token_budget: int | None) -> list[list[int]]:
    """Return the sequences of one prompt's rows: shared as far as the budget allows, or apart where it saves little."""
    most = min(SHARED_WIDTH, token_budget or SHARED_WIDTH)
    prompt = len(rows[members[0]].prompt_ids)
    longest_first = sorted(members, key=lambda at: (-rows[at].length, at))
    packed: list[list[int]] = []
    room = 0
    for at in longest_first:
        needed = rows[at].length - 1
        if packed and needed <= room:
            packed[-1].append(at)
        else:
            packed.append([at])
            room = most - prompt
        room -= needed
    apart = sum(_width(rows, [at]) for at in members)
    shared = sum(_width(rows, sequence) for sequence in packed)
    if apart < WORTH * shared:
        return [[at] for at in members]
    return packed


def _micro_step(rows: Sequence[Row], sequences: Sequence[Sequence[int]], device: torch.device) -> MicroStep:
    order = tuple(at for sequence in sequences for at in sequence)
    lengths = tuple(rows[at].length for at in order)
    width = max(_width(rows, sequence) for sequence in sequences)
    tokens = max(lengths)
    ids, positions, segments, sources = [], [], [], []
    for number, sequence in enumerate(sequences):
        line = _Line(rows[sequence[0]].prompt_ids)
        for at in sequence:
            sources += [number * width + column for column in line.add(rows[at].completion_ids)]
        missing = width - len(line.ids)
        ids.append(line.ids + [0] * missing)
        # Positions go on over padding: places that start again would be read as packed sequences.
        positions.append(line.positions + list(range(len(line.ids), width)))
        segments.append(line.segments + [PADDING] * missing)
    shared = any(len(sequence) > 1 for sequence in sequences)
    numbers = torch.tensor(lengths)
    mask = torch.arange(tokens).unsqueeze(0) < numbers.unsqueeze(1)
    return MicroStep(
        rows=order,
        input_ids=torch.tensor(ids, device=device),
        attention_mask=prefix_mask(torch.tensor(segments, device=device)) if shared else None,
        position_ids=torch.tensor(positions, device=device),
        mask=mask.to(device),
        targets=torch.tensor([token for at in order for token in rows[at].completion_ids], device=device),
        sources=torch.tensor(sources, device=device),
        places=mask.flatten().nonzero().squeeze(1).to(device),
        advantages=torch.tensor([rows[at].advantage for at in order], dtype=torch.float64, device=device),
        rollout_logps=_tokens([rows[at].rollout_logps for at in order], tokens, device),
        ref_logps=_tokens([rows[at].ref_logps for at in order], tokens, device),
        old_logps=_tokens([rows[at].old_logps for at in order], tokens, device),
        lengths=lengths,
    )


class _Line:
    """A sequence as it is put together."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = len(prompt)
        self.ids = list(prompt)
        self.positions = list(range(self.prompt))
        self.segments = [0] * self.prompt
        self.count = 0

    def add(self, completion: Sequence[int]) -> list[int]:
        """Append a completion but for its last token; return the column that predicts each of its tokens."""
        self.count += 1
        start, fed = len(self.ids), len(completion) - 1
        self.ids += completion[:-1]
        self.positions += range(self.prompt, self.prompt + fed)
        self.segments += [self.count] * fed
        return [self.prompt - 1, *range(start, start + fed)]


def _tokens(values: Sequence[Numbers | None], tokens: int, device: torch.device) -> torch.Tensor | None:
    """Return one number a token as float64 [rows, tokens], NaN where there is none; None when no row has any."""
    if all(value is None for value in values):
        return None
    table = torch.full((len(values), tokens), float("nan"), dtype=torch.float64)
    for row, value in enumerate(values):
        if value is not None:
            table[row, : len(value)] = torch.as_tensor(value, dtype=torch.float64, device="cpu")
    return table.to(device)
