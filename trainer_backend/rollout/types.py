"""What a sampler is and what it returns. Token ids travel; text is for rewards and people, never tokenised again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from trainer_backend.data import Prompt

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Sampled:
    """One completion as it was drawn.

    Attributes:
        ids: Its tokens in order, the end token included where one was drawn; at least one.
        logps: As many log-probs (nats), each under the distribution that the token was drawn from: after
            temperature and truncation, renormalised. A greedy completion has those of the untruncated
            distribution at temperature 1.
        finish_reason: "stop" where an end token was drawn, "length" where the limit cut it off.
        text: The prompt's opener, then the decoded tokens; special tokens are left out.
    """

    ids: tuple[int, ...]
    logps: tuple[float, ...]
    finish_reason: FinishReason
    text: str


@dataclass(frozen=True, slots=True)
class Rollout:
    """A prompt and the group of completions that was drawn for it.

    Attributes:
        prompt: The prompt, as it was given.
        completions: The group, in a fixed order.
        version: The version of the adapter that drew it, as it was told to `Sampler.update`.
    """

    prompt: Prompt
    completions: tuple[Sampled, ...]
    version: int


@runtime_checkable
class Sampler(Protocol):
    """Draws groups of completions from the model as it is now."""

    @property
    def name(self) -> str:
        """What to call it in a log: "transformers", "vllm 0.32.0"."""
        ...

    @property
    def differs(self) -> str:
        """What its base weights are where they are not the trainer's, in a sentence; "" where they are."""
        ...

    def sample(
        self, prompts: Sequence[Prompt], n: int, *, seed: int, greedy: bool = False
    ) -> Iterator[tuple[int, Rollout]]:
        """Yield `(index into prompts, its group of n completions)`, each as soon as it is finished, in any order.

        The same seed, place and prompt give the same group, whatever else is drawn beside it (but for rounding).
        The weights must not change, and no second call be made, before the iterator is exhausted or closed.

        Args:
            prompts: May hold the same prompt several times.
            n: Completions of each; with `greedy` they are all the same.
            seed: Of this call; another step, another seed.
            greedy: Take the likeliest token each time; temperature and truncation are not used.
        """
        ...

    def update(self, version: int) -> None:
        """From now on the adapter as it is now is what samples; its groups carry `version`."""
        ...

    def current(self) -> bool:
        """Return whether the adapter that samples is the trainer's as it is now, as far as can be seen from inside.

        Bit by bit, so it also sees an adapter that is one small step old, which log-probs in bfloat16 do not.
        """
        ...

    def close(self) -> None:
        """Free what the sampler holds; it cannot sample any more. A second call does nothing."""
        ...
