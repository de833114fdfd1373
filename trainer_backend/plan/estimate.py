"""A plan: every term of a run on one path, with its peaks, as a table and as a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_backend.plan.paths import Path
from trainer_backend.plan.terms import (
    GB,
    HEAP,
    PADDED,
    SAMPLED_ROWS,
    SHARED_WIDTH,
    VLLM_CACHE,
    WORTH,
    Phase,
    Place,
    Task,
    Term,
    always,
    sampling,
)

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig


@dataclass(frozen=True)
class Plan:
    """What a run takes.

    Attributes:
        terms: All of it by name.
        path: The way that layers are gone through.
        token_budget: Tokens of a micro-step.
        rows: Completions that are decoded together, or that vLLM's key-value cache is made for.
        device: "cuda" or "cpu".
        limit, host_limit: Bytes that it may take; None: not known.
    """

    terms: tuple[Term, ...]
    path: Path
    token_budget: int
    rows: int
    device: str
    limit: int | None = None
    host_limit: int | None = None

    def total(self, *phases: Phase, place: Place = "device") -> int:
        """Return the bytes of these phases."""
        return sum(term.bytes for term in self.terms if term.phase in phases and term.place == place)

    @property
    def training(self) -> int:
        """The device's peak while training."""
        return self.total("always", "training") + max(self.total("layer"), self.total("head"))

    @property
    def sampling(self) -> int:
        """The device's peak while sampling."""
        return self.total("always", "sampling")

    @property
    def device_peak(self) -> int:
        """The device's peak in bytes."""
        return max(self.training, self.sampling)

    @property
    def host_peak(self) -> int:
        """Host memory beside what the process itself needs, in bytes."""
        return self.total("always", "training", "layer", "head", "sampling", place="host")

    @property
    def vllm_cache(self) -> int:
        """Bytes of vLLM's key-value cache; 0 with the transformers sampler."""
        return sum(term.bytes for term in self.terms if term.name == VLLM_CACHE)

    @property
    def fits(self) -> bool:
        """Whether both limits are kept."""
        return (self.limit is None or self.device_peak <= self.limit) and (
            self.host_limit is None or self.host_peak <= self.host_limit
        )

    def table(self) -> str:
        """Return every term, the peaks and the limits as lines of text."""
        width = max(len(term.name) for term in self.terms) + 2
        when = {"always": "always", "training": "training", "layer": "training", "head": "training"}
        lines = [f"{'':{width}}{'GB':>8}  {'when':9} {'where':7} how"]
        for term in self.terms:
            if term.bytes:
                lines.append(
                    f"{term.name:{width}}{term.bytes / GB:8.3f}  {when.get(term.phase, term.phase):9} {term.place:7}"
                    f" {term.formula}"
                )
        limit = "" if self.limit is None else f" of {self.limit / GB:.2f} that it may take"
        lines.append(f"{'peak, training':{width}}{self.training / GB:8.3f}")
        lines.append(f"{'peak, sampling':{width}}{self.sampling / GB:8.3f}")
        lines.append(f"{'peak':{width}}{self.device_peak / GB:8.3f}  {self.device}{limit}")
        if self.host_peak:
            lines.append(f"{'host':{width}}{self.host_peak / GB:8.3f}")
        return "\n".join(lines)

    def sentence(self) -> str:
        """Return the plan in one sentence."""
        cache = f"; vLLM's key-value cache has {self.vllm_cache / GB:.1f} GB" if self.vllm_cache else ""
        verdict = "" if self.limit is None else f", {'of' if self.fits else 'more than'} {self.limit / GB:.1f} GB"
        return (
            f"{self.token_budget:,} tokens a micro-step, {self.path.words}: peak about {self.device_peak / GB:.1f} GB"
            f"{verdict}{cache}"
        )


def estimate(task: Task, config: GRPOConfig, *, token_budget: int, path: Path, rows: int | None = None) -> Plan:
    """Return what a run takes on one of the paths; see `terms` and `paths` for each term.

    Args:
        task: Model, prompts and device.
        config: The settings.
        token_budget: Tokens of a micro-step. A step that has fewer counts with what it has.
        path: The way that layers are gone through.
        rows: Completions that are decoded together; None: as many as are of use.
    """
    rows = rows or most_rows(task, config)
    # In a line there is no padding.
    most = (
        config.completions_per_step * task.longest(config) if path.streamed else most_tokens(task, config, token_budget)
    )
    moments: Place = "host" if path.mode == "offload" and task.device == "cuda" else "device"
    terms = [
        *always(task, config, rows, moments=moments),
        *path.terms(task, config, min(token_budget, most)),
        *sampling(task, config, rows),
    ]
    if task.device == "cpu":
        alive = Plan(tuple(terms), path, token_budget, rows, "cpu")
        passing = alive.training - alive.total("always")
        terms.append(Term("gaps in the heap", int(HEAP * passing), f"{HEAP:g} x {passing:,}", "training"))
    return Plan(tuple(terms), path, token_budget, rows, task.device)


def most_tokens(task: Task, config: GRPOConfig, token_budget: int) -> int:
    """Return the tokens of a step, padding included, where every completion is as long as it may be."""
    prompt, count = task.longest_prompt, config.num_generations
    group = apart = count * task.longest(config)
    if task.shared is False:
        return config.completions_per_step // count * apart  # all are as wide as the widest at most
    most = min(SHARED_WIDTH, token_budget)
    room = most - task.longest(config)  # a sequence that is full has less than a row left
    if task.shared and room > 0:
        together = prompt + count * config.max_completion_length
        sequences = 1 if together <= most else -(-count * config.max_completion_length // room)
        # Rows of which the prompt is too small a part stay apart.
        group = min(apart, int(WORTH * (together + (sequences - 1) * prompt)))
    return int(PADDED * config.completions_per_step / count * group)


def most_rows(task: Task, config: GRPOConfig) -> int:
    """Return how many completions are decoded together where memory is no matter; on a CPU vLLM's cache is there for
    training, too, so it is made for the completions of a step."""
    held = config.engine == "vllm" and task.device == "cpu"
    most = SAMPLED_ROWS if task.held_out and not held else min(SAMPLED_ROWS, config.completions_per_step)
    return max(most, least_rows(task, config))


def least_rows(task: Task, config: GRPOConfig) -> int:
    """Return the completions of a group, which the transformers sampler decodes together; vLLM lets them wait."""
    if config.engine == "vllm":
        return 1
    return max(config.num_generations, config.eval_samples if task.held_out else 1)
