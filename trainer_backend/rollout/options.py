"""How to sample: the settings that every sampler knows, and the further ones that each takes by its own names.

What the trainer decides itself (how many completions, their seeds, log-probs) cannot be set; a name that nobody knows
is refused with the nearest one. Nothing is dropped silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rewardkit.errors import OptionError, UnknownName
from trainer_backend.errors import meant

if TYPE_CHECKING:
    from trainer_backend.config import GRPOConfig

OWN: Mapping[str, str] = {
    "max_tokens": "it is grpo.max_completion_length",
    "max_new_tokens": "it is grpo.max_completion_length",
    "max_length": "lengths are data.max_prompt_length and grpo.max_completion_length",
    "temperature": "it is grpo.temperature",
    "top_k": "it is grpo.top_k",
    "top_p": "it is grpo.top_p",
    "min_p": "it is grpo.min_p",
    "repetition_penalty": "it is grpo.repetition_penalty",
    "n": "the number of completions of a prompt is grpo.num_generations",
    "num_return_sequences": "the number of completions of a prompt is grpo.num_generations",
    "seed": "each group gets its own seed from run.seed, the step and its place",
    "do_sample": "training samples, and greedy completions are for held-out prompts only",
    "logprobs": "the log-prob of every sampled token is always taken",
    "flat_logprobs": "the log-prob of every sampled token is always taken",
    "logprob_token_ids": "the log-prob of the sampled token is the one that the loss needs",
    "prompt_logprobs": "prompts are not trained on",
    "prompt_logprob_token_ids": "prompts are not trained on",
    "prompt_logprob_start": "prompts are not trained on",
    "detokenize": "token ids are what is trained on, and rewards need the text",
    "skip_special_tokens": "the text for rewards has no special tokens; the token ids have them all",
    "spaces_between_special_tokens": "the text for rewards has no special tokens",
    "include_stop_str_in_output": "the text is that of all tokens that were sampled, since those are trained on",
    "output_kind": "groups are taken when they are finished",
    "stream_interval": "groups are taken when they are finished",
    "skip_clone": "it is the sampler's own matter",
    "skip_reading_prefix_cache": "the prefix cache is emptied at every update of the weights",
    "trace_decode_token_ids": "it replaces what the model samples",
    "watermarking": "a watermark changes the distribution that is sampled from",
}
"""Settings that stand elsewhere or that the trainer decides, and the reason."""

PLAIN = ("stop_token_ids", "ignore_eos", "min_tokens")
"""The further settings that the transformers sampler takes."""


@dataclass(frozen=True)
class SamplingOptions:
    """How completions are drawn.

    Attributes:
        max_tokens: The most tokens of a completion, the end token included.
        temperature: Logits are divided by it.
        top_k: Only the k likeliest tokens; 0: all.
        top_p: Only the likeliest tokens that together have this probability; 1: all.
        min_p: Only tokens at least this many times as likely as the likeliest; 0: all.
        repetition_penalty: Logits of tokens that occurred (prompt included) are divided by it, negative ones
            multiplied; 1: none.
        extra: Further settings by the sampler's own names; None as a value is the same as leaving it out.

    Raises:
        OptionError: A value outside its range, or a setting that the trainer decides.
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, fine, wanted in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("temperature", 0.0 < self.temperature < math.inf, "above 0"),
            ("top_k", self.top_k >= 0, "0 (all) or the number of tokens"),
            ("top_p", 0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            ("min_p", 0.0 <= self.min_p < 1.0, "at least 0 and below 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty < math.inf, "above 0"),
        ):
            if not fine:
                raise OptionError(f"sampling: {name} is {wanted}, got {getattr(self, name)}")
        for name in self.extra:
            if name in OWN:
                raise OptionError(f"rollout.sampling: {name} cannot be set here; {OWN[name]}")

    @classmethod
    def from_config(cls, config: GRPOConfig) -> SamplingOptions:
        """Return the options of a training run."""
        return cls(
            max_tokens=config.max_completion_length,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            min_p=config.min_p or 0.0,
            repetition_penalty=config.repetition_penalty,
            extra=dict(config.sampling),
        )

    @property
    def given(self) -> dict[str, Any]:
        """The further settings that are set to something."""
        return {name: value for name, value in self.extra.items() if value is not None}


@dataclass(frozen=True)
class Ends:
    """When a completion ends.

    Attributes:
        ids: Tokens that end it; they belong to the completion.
        at_least: So many tokens are drawn before one of these can be.
    """

    ids: frozenset[int]
    at_least: int = 0


def ends_of(options: SamplingOptions, eos_ids: Iterable[int]) -> Ends:
    """Return when a completion of the transformers sampler ends; refuse settings that it does not have.

    Args:
        options: The options of the run.
        eos_ids: Every end token of the model.

    Raises:
        UnknownName: A setting that is unknown.
        OptionError: A value of the wrong type.
    """
    given = options.given
    for name in given:
        if name not in PLAIN:
            raise UnknownName(
                f"rollout.sampling: the transformers sampler has no {name!r}"
                f"{meant(name, PLAIN, 'it has ' + ', '.join(PLAIN))}"
                '; everything else of vLLM\'s SamplingParams needs rollout.engine = "vllm"'
            )
    ignore, least = given.get("ignore_eos", False), given.get("min_tokens", 0)
    if not isinstance(ignore, bool):
        raise OptionError(f"rollout.sampling: ignore_eos is true or false, got {ignore!r}")
    if isinstance(least, bool) or not isinstance(least, int) or not 0 <= least <= options.max_tokens:
        raise OptionError(f"rollout.sampling: min_tokens is 0 to max_completion_length, got {least!r}")
    stops = _token_ids(given.get("stop_token_ids", ()))
    return Ends(frozenset([*stops, *(() if ignore else eos_ids)]), least)


def _token_ids(value: Any) -> Sequence[int]:
    wanted = isinstance(value, Sequence) and not isinstance(value, str)
    if not wanted or not all(isinstance(id, int) and not isinstance(id, bool) and id >= 0 for id in value):
        raise OptionError(f"rollout.sampling: stop_token_ids is a list of token ids, got {value!r}")
    return list(value)


def vllm_arguments(options: SamplingOptions, fields: Iterable[str], *, greedy: bool = False) -> dict[str, Any]:
    """Return what vLLM's `SamplingParams` is given for these options, less n and seed.

    Args:
        options: The options of the run.
        fields: The names that the installed `SamplingParams` takes.
        greedy: The likeliest token each time, without truncation and penalties.

    Raises:
        UnknownName: A setting that this vLLM does not have.
    """
    known = [name for name in fields if not name.startswith("_") and name not in OWN]
    for name in options.given:
        if name not in known:
            raise UnknownName(
                f"rollout.sampling: the SamplingParams of this vLLM has no {name!r}"
                f"{meant(name, known, 'it has ' + ', '.join(sorted(known)))}"
            )
    arguments: dict[str, Any] = {"max_tokens": options.max_tokens, "logprobs": 0, "temperature": 0.0}
    if not greedy:
        arguments |= {
            "temperature": options.temperature,
            "top_k": options.top_k or -1,
            "top_p": options.top_p,
            "min_p": options.min_p,
            "repetition_penalty": options.repetition_penalty,
        }
    return arguments | options.given
