"""How long an update takes, from its operations and the rates that were measured on one card.

A row has T tokens, C of them of the completion; the letters are those of `terms`.

| part | operations | TFLOP/s |
| --- | --- | --- |
| linear layers | 2 T N(linear) forward, as many backward, and forward again where layers are computed again | 683 |
| attention | 2 L T^2 h D forward (half of a square), again likewise, but where its output is kept | 586 |
| ... backward | 2.5 times as many | 517 |
| head | two products, 4 C H V | 619 |
| the rest | 98 ps for each of the L (H + F) numbers of a token (streamed 27): norms, activations, casts, adapter | |

Measured on an H200 in bfloat16: the products, attention and the head alone; the rest is what they leave of a whole
micro-step of 20,480 tokens of an 8B model (r 32, layers computed again), 3.42 s, and of 71.8 ms for a streamed layer of
it, what attention gave being kept. Other cards are taken to be slower in
everything by their peak of dense bfloat16 products. Nothing was measured in float32.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_backend.plan.cards import CARDS, Card
from trainer_backend.plan.estimate import Plan
from trainer_backend.plan.terms import Task

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

MEASURED = CARDS["h200"]
LINEAR, FORWARD, BACKWARD, HEAD = 683e12, 586e12, 517e12, 619e12
REST, STREAMED_REST = 98e-12, 27e-12


@dataclass(frozen=True)
class Duration:
    """Seconds of the update of one step, by what they are spent on."""

    linears: float
    attention: float
    head: float
    rest: float

    @property
    def total(self) -> float:
        """All of it."""
        return self.linears + self.attention + self.head + self.rest


def update_seconds(task: Task, config: GRPOConfig, plan: Plan, card: Card) -> Duration:
    """Return an estimate of the time of an update, sampling left out, where every completion is as long as it may be,
    has advantage, and shares nothing with others.

    Args:
        task, config, plan: What is trained, and how.
        card: On which GPU.
    """
    s, tokens, rows = task.shape, task.longest(config), config.completions_per_step
    passes = 2 + plan.path.checkpointing
    every = rows * MEASURED.tflops / card.tflops
    linears = sum(inputs * outputs for _, inputs, outputs in s.linears) + s.routed
    square = 2 * s.layers * tokens**2 * s.heads * s.head_dim
    rest = STREAMED_REST if plan.path.streamed else passes / 3 * REST
    return Duration(
        linears=every * passes * 2 * tokens * linears / LINEAR,
        attention=every * square * ((1 + plan.path.attends_again) / FORWARD + 2.5 / BACKWARD),
        head=every * 4 * config.max_completion_length * s.hidden * s.vocabulary / HEAD,
        rest=every * rest * tokens * s.layers * (s.hidden + s.intermediate),
    )
