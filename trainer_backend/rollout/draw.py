"""From logits to tokens: truncation by transformers' own processors, drawing by inversion, log-probs.

A row of logits may serve several completions that are the same so far, each with a random number of its own. A uniform
number u takes the first token at which the cumulative probability exceeds u; the cumulative sums run over blocks of the
vocabulary first and within one block then, so that only exponentials and block sums are computed for the whole of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from trainer_backend.errors import NotFinite
from trainer_backend.rollout.options import SamplingOptions

BLOCK = 256
"""Tokens of the vocabulary that are summed together."""


def processors(options: SamplingOptions) -> LogitsProcessorList:
    """Return what `generate` would do to the logits, in its order."""
    found = LogitsProcessorList()
    if options.repetition_penalty != 1.0:
        found.append(RepetitionPenaltyLogitsProcessor(options.repetition_penalty))
    if options.temperature != 1.0:
        found.append(TemperatureLogitsWarper(options.temperature))
    if options.top_k:
        found.append(TopKLogitsWarper(options.top_k))
    if options.top_p < 1.0:
        found.append(TopPLogitsWarper(options.top_p))
    if options.min_p:
        found.append(MinPLogitsWarper(options.min_p))
    return found


@dataclass(frozen=True)
class Drawn:
    """Tokens, and the log-prob of each under the distribution that it was drawn from."""

    tokens: list[int]
    logps: list[float]


def greedy(logits: torch.Tensor, rows: Sequence[int]) -> Drawn:
    """Return the likeliest token of each of `rows` of the logits [_, vocabulary], and its log-prob in them.

    Raises:
        NotFinite: One of these log-probs is no number.
    """
    best, at = logits.max(1)
    logps = (best - torch.logsumexp(logits, 1)).tolist()
    tokens = at.tolist()
    return _checked(Drawn([tokens[row] for row in rows], [logps[row] for row in rows]))


def draw(logits: torch.Tensor, rows: Sequence[int], uniforms: torch.Tensor) -> Drawn:
    """Draw one token for each of `rows` of processed logits.

    Args:
        logits: float32 or float64 [_, vocabulary]; -inf takes a token out. Overwritten.
        rows: The row that each token is drawn from.
        uniforms: float64 [len(rows)] in [0, 1), one for each.

    Raises:
        NotFinite: A row has NaN or +inf, or nothing but -inf.
    """
    where = torch.tensor(rows, device=logits.device)
    highest = logits.amax(1, keepdim=True)
    weights = logits.sub_(highest).exp_()
    ends = _block_sums(weights).cumsum_(1)
    totals = ends[:, -1]
    mine = ends[where]
    aim = _below(uniforms * totals[where], totals[where])
    block = torch.searchsorted(mine, aim.unsqueeze(1), right=True).squeeze(1)
    before = torch.where(block > 0, mine.gather(1, (block - 1).clamp(min=0).unsqueeze(1)).squeeze(1), 0.0)
    columns = block.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=logits.device)
    inside = columns < weights.shape[1]
    part = weights[where.unsqueeze(1), columns.clamp(max=weights.shape[1] - 1)].double().mul_(inside).cumsum_(1)
    step = torch.searchsorted(part, _below(aim - before, part[:, -1]).unsqueeze(1), right=True).squeeze(1)
    tokens = (block * BLOCK + step).clamp_(max=weights.shape[1] - 1)  # beyond it where sums are NaN
    logps = torch.log(weights[where, tokens].double()) - torch.log(totals[where])
    return _checked(Drawn(tokens.tolist(), logps.tolist()))


def _checked(drawn: Drawn) -> Drawn:
    """Return what was drawn; a row whose logits are not finite has no finite log-prob."""
    if not all(map(math.isfinite, drawn.logps)):
        raise NotFinite(
            "the model's logits are not finite (NaN or infinity), so nothing can be sampled from it: its weights are"
            ' broken, or too large for its type; model.dtype = "float32" has room for more'
        )
    return drawn


def _below(value: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """Return `value` inside [0, limit): what rounding carries over the end stays on the last token with any mass."""
    return torch.minimum(value.clamp(min=0.0), torch.nextafter(limit, torch.zeros_like(limit)))


def _block_sums(weights: torch.Tensor) -> torch.Tensor:
    """Return the sums of blocks of the vocabulary, float64 [rows, blocks]."""
    whole = weights.shape[1] // BLOCK * BLOCK
    sums = weights[:, :whole].reshape(len(weights), -1, BLOCK).sum(-1) if whole else weights[:, :0]
    rest = weights[:, whole:]
    return torch.cat([sums, rest.sum(1, keepdim=True)] if rest.shape[1] else [sums], 1).double()
