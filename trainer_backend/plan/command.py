"""`rewardkit plan`: a model and a few numbers to a plan, as text or as JSON. Nothing is loaded and nothing is run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rewardkit.display import visible
from rewardkit.errors import UsageError
from rewardkit.report.text import counted, duration
from rewardkit.training import PlanOptions
from trainer_backend.config import GRPOConfig, gigabytes
from trainer_backend.plan.advice import Change, advice, smallest_peak
from trainer_backend.plan.cards import Card, card_of
from trainer_backend.plan.duration import MEASURED, update_seconds
from trainer_backend.plan.estimate import Plan
from trainer_backend.plan.families import shape_from_json, text_part
from trainer_backend.plan.memory import available_host
from trainer_backend.plan.models import Found, find_config
from trainer_backend.plan.search import HEADROOM, longest_context, make_plan, why
from trainer_backend.plan.terms import GB, Task, adapter_numbers, folds

SCHEMA = "rewardkit.plan/1"
PROMPT = 512
"""Tokens of a prompt where nothing is said; of a context below four times that, a quarter."""

_NUMBERS = {"bfloat16": 2, "float16": 2, "float32": 4}


def answer(options: PlanOptions) -> tuple[str, int]:
    """Return what `rewardkit plan` prints, and its exit code; see `rewardkit.training.Planner`.

    Raises:
        RewardkitError: The model is nowhere or cannot be read, or an option is wrong.
    """
    made = _make(options)
    missed = options.fit_in is not None and not made.plan.fits
    if options.json:
        return json.dumps(made.data(), indent=1, allow_nan=False), int(missed)
    return "\n".join(made.lines()), int(missed)


@dataclass(frozen=True)
class _Made:
    """A plan with all that it was made from.

    Attributes:
        options: What was asked.
        found: The model's configuration.
        task, config, plan: What is planned, and how.
        card: The GPU; None: a CPU.
        room: Where the limit comes from, in words.
        seconds: Of an update; None where no rate is known, or it does not fit.
        least: Bytes of the smallest limit that these settings fit in.
        longest: Tokens of the longest context that fits; None: none does.
        changes: Settings that would fit, where these do not.
        notes: What may not be expected.
    """

    options: PlanOptions
    found: Found
    task: Task
    config: GRPOConfig
    plan: Plan
    card: Card | None
    room: str
    seconds: float | None
    least: int
    longest: int | None
    changes: tuple[Change, ...]
    notes: tuple[str, ...]

    @property
    def positions(self) -> int | None:
        """The positions that the model was made for, as config.json says."""
        most = text_part(self.found.config).get("max_position_embeddings")
        return most if isinstance(most, int) else None

    @property
    def limit(self) -> int:
        """Bytes that the run may take."""
        assert self.plan.limit is not None  # `make_plan` sets one
        return self.plan.limit

    def data(self) -> dict[str, Any]:
        """Return all of it as JSON can hold it."""
        plan, options = self.plan, self.options
        return {
            "schema": SCHEMA,
            "model": options.model,
            "found": self.found.where,
            "parameters": self.task.shape.parameters,
            "trained": adapter_numbers(self.task.shape, self.config),
            "context": options.context,
            "prompt": self.task.longest_prompt,
            "generations": options.generations,
            "load_in_4bit": self.config.load_in_4bit,
            "rank": self.config.r,
            "dtype": options.dtype,
            "engine": options.engine,
            "device": self.task.device,
            "gpu": None if self.card is None else self.card.name,
            "total_gb": plan.device_peak / GB,
            "training_gb": plan.training / GB,
            "sampling_gb": plan.sampling / GB,
            "host_gb": plan.host_peak / GB,
            "limit_gb": self.limit / GB,
            "least_gb": self.least / GB,
            "fits": plan.fits,
            "path": plan.path.name,
            "why": why(self.task, self.config, plan),
            "token_budget": plan.token_budget,
            "rows": plan.rows,
            "seconds_update": self.seconds,
            "longest_context": self.longest,
            "positions": self.positions,
            "terms": [
                {
                    "name": term.name,
                    "bytes": term.bytes,
                    "formula": term.formula,
                    "phase": term.phase,
                    "place": term.place,
                }
                for term in plan.terms
                if term.bytes
            ],
            "advice": [{"settings": dict(one.settings), "peak_gb": one.peak / GB} for one in self.changes],
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """Return all of it as lines of text."""
        shape, config, plan, longest = self.task.shape, self.config, self.plan, self.task.longest(self.config)
        weights = "NF4" if config.load_in_4bit else self.options.dtype
        trained = adapter_numbers(shape, config)
        lines = [
            f"model    {visible(self.found.where, 200)}: {shape.parameters / 1e6:,.1f}M parameters as {weights},"
            f" {trained / 1e6:.2f}M trained (LoRA r {config.r})",
            f"step     1 prompt x {config.num_generations} completions, sampled by {config.engine}; the longest row has"
            f" {longest:,} tokens: {self.task.longest_prompt:,} + {config.max_completion_length:,}",
            f"room     {self.limit / GB:.1f} GB: {self.room}",
            "",
            "memory",
            *(f"  {line}" for line in plan.table().splitlines()),
            "",
            f"path     {why(self.task, config, plan)}",
        ]
        if plan.fits:
            peak = f"{plan.device_peak / GB:.1f} of {self.limit / GB:.1f} GB"
            least = f"these settings fit in {self.least / GB:.1f} GB, too, more slowly"
            lines.append(f"fits     yes: {peak}; {least if self.least < plan.device_peak else 'no path takes less'}")
        else:
            lines.append(f"fits     no: {plan.device_peak / GB:.1f} GB are more than {self.limit / GB:.1f}")
            lines += [f"         {change}" for change in self.changes]
            if not self.changes:
                lines.append("         no settings of this model that fit were found: take a smaller model")
            else:
                lines.insert(-len(self.changes), "         keys of the training file that would fit, with their peak:")
        if self.seconds is not None and self.card is not None:
            lines.append(
                f"time     about {duration(self.seconds)} for the update of a step on {_a(self.card)}: an estimate from"
                f" its operations and rates measured on {_a(MEASURED)}; sampling comes on top"
            )
        lines.append(f"longest  {self._longest()}")
        lines += [f"note     {note}" for note in self.notes]
        return lines

    def _longest(self) -> str:
        if self.longest is None:
            return "no context fits with the other settings as they are"
        text = f"{self.longest:,} tokens fit with the other settings as they are"
        if self.positions is None:
            return text
        more = "more than" if self.longest > self.positions else "of"
        return f"{text}; {more} the {counted(self.positions, 'position')} of the model"


def _a(card: Card) -> str:
    """Return a card with its article, by how its name is spoken."""
    return f"{'an' if card.name[0] in 'AHLR' else 'a'} {card.name}"


def _make(options: PlanOptions) -> _Made:
    if options.cpu and options.gpu is not None:
        raise UsageError("--cpu plans for a CPU and --gpu for a card; give one of them")
    prompt = options.prompt if options.prompt is not None else max(1, min(PROMPT, options.context // 4))
    if prompt >= options.context:
        raise UsageError(
            f"--context {options.context} counts prompt and completion, and --prompt {prompt} leaves no room for a"
            " completion; raise --context or lower --prompt"
        )
    fit_in = None if options.fit_in is None else _size(options.fit_in)
    card = None if options.cpu else card_of(options.gpu or "h200")
    found = find_config(options.model)
    shape = shape_from_json(found.config)
    quantised, notes = _quantised(found.config)
    config = GRPOConfig(
        model=options.model,
        load_in_4bit=options.load_in_4bit or bool(quantised.get("load_in_4bit")),
        engine=options.engine,
        num_generations=options.generations,
        per_device_train_batch_size=options.generations,
        max_completion_length=options.context - prompt,
        fit_in=fit_in,
    )
    if options.rank is not None:
        config = config.model_copy(update={"r": options.rank})
    number, device = _NUMBERS[options.dtype], "cpu" if card is None else "cuda"
    task = Task(
        shape=shape,
        longest_prompt=prompt,
        device=device,
        number=number,
        shared=None,
        folded=folds(config, number, device),
        skipped=tuple(quantised.get("llm_int8_skip_modules") or ()),
        sampler_in_4bit=device == "cuda",  # the vLLM that is tested can
    )
    free, room = _room(options, fit_in, card)
    plan = make_plan(task, config, free=free)
    assert plan.limit is not None
    seconds = None
    if card is not None and plan.fits and number == 2:
        seconds = update_seconds(task, config, plan, card).total
    return _Made(
        options=options,
        found=found,
        task=task,
        config=config,
        plan=plan,
        card=card,
        room=room,
        seconds=seconds,
        least=smallest_peak(task, config),
        longest=longest_context(task, config, free=free),
        changes=() if plan.fits else tuple(advice(task, config, limit=plan.limit)),
        notes=notes,
    )


def _size(text: str) -> float:
    try:
        found = float(gigabytes(text))
    except ValueError:
        found = 0.0
    if found <= 0:
        raise UsageError(f"--fit-in {text}: a size above 0 is wanted, in GB (10^9 bytes), such as 12, 12GB or 900MB")
    return found


def _room(options: PlanOptions, fit_in: float | None, card: Card | None) -> tuple[int, str]:
    """Return the free bytes to plan with, and where the limit comes from."""
    if fit_in is not None and options.gpu is None:
        # As much as makes what was asked for the limit, whatever this machine or the card of the rates has.
        return int(fit_in * GB / HEADROOM) + 1, "--fit-in"
    share = f"{HEADROOM:.0%}".replace("%", " %")
    if card is None:
        free, room = available_host(), f"{share} of what is free on this machine"
    else:
        free, room = int(card.gb * GB), f"{share} of the {card.gb} GB of {_a(card)}"
    if fit_in is not None and fit_in * GB < HEADROOM * free:
        room = "--fit-in"
    return free, room


def _quantised(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Return what a configuration says about how its weights are stored, and what the plan makes of it."""
    found = config.get("quantization_config") or text_part(config).get("quantization_config")
    if not isinstance(found, Mapping):
        return {}, ()
    if found.get("load_in_4bit"):
        return found, ("the model is stored as 4-bit weights of bitsandbytes, and planned as such",)
    method = visible(str(found.get("quant_method") or "unknown"), 40)
    return found, (f"the model is stored quantised ({method}); the plan counts its weights as if they were not",)
