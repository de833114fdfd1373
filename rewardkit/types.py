"""The data that travels through rewardkit: samples, completions, verdicts, scores.

Everything here is frozen, holds only finite numbers, and can be written as plain JSON. Behaviour lives
elsewhere: rewards in `reward.py` and `verifier.py`, the pipeline in `engine.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec

State = Literal["scored", "abstained", "error"]

# The closed list of reasons, by who is to blame (docs/rewards.md, "The blame rule").
BlameCompletion = Literal[
    "wrong",  # an answer that is not the reference
    "no_answer",  # empty, null, a refusal, cut off before an answer
    "unreadable",  # an answer that cannot be read as what was asked for
    "too_large",  # over a size limit
    "timeout",  # its program ran too long
    "memory",  # its program, or judging it, took too much memory
    "crash",  # its program ended abnormally
    "output",  # its program wrote too much
    "deadline",  # judging it took longer than the verifier's deadline
]
BlameReference = Literal[
    "missing",  # no reference, or a column that the reward needs is empty
    "bad_reference",  # a reference that the verifier cannot read
    "unsupported",  # readable, but outside what the reward can judge
]
BlameMachine = Literal[
    "raised",  # the reward raised an exception
    "worker_died",  # the process that ran it ended
    "deadline_reference",  # reading the reference took longer than the deadline
    "service",  # something it depends on over a network failed
    "sandbox_unavailable",  # the sandbox could not start
    "source_failed",  # the input itself marks this row as failed
]
Reason = Literal[BlameCompletion, BlameReference, BlameMachine]

COMPLETION_REASONS: frozenset[str] = frozenset(get_args(BlameCompletion))
REFERENCE_REASONS: frozenset[str] = frozenset(get_args(BlameReference))
MACHINE_REASONS: frozenset[str] = frozenset(get_args(BlameMachine))

_ALL_REASONS = COMPLETION_REASONS | REFERENCE_REASONS | MACHINE_REASONS

Message = Mapping[str, Any]

_ASSISTANT = ("assistant", "gpt", "model")


def message_text(content: object) -> str:
    """Return the text of one chat message's content: a string, a list of parts, or None (tool calls)."""
    if isinstance(content, (str, Mapping)):
        return _part_text(content)
    if isinstance(content, Sequence) and not isinstance(content, (bytes, bytearray)):
        return "".join(map(_part_text, content))
    return ""


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) else part
    return text if isinstance(text, str) else ""


def _content(message: object) -> object:
    """Return what a message says: under `content`, or under `value` in from/value chats."""
    if not isinstance(message, Mapping):
        return None
    # Tables fill absent keys with None, so None counts as absent.
    content = message.get("content")
    return message.get("value") if content is None else content


def is_reply(message: Message) -> bool:
    """Whether a chat message is the model's."""
    return (message.get("role") or message.get("from")) in _ASSISTANT


def last_reply(messages: Sequence[Message]) -> str:
    """Return the text of the last assistant message, or "" when there is none."""
    for message in reversed(messages):
        if isinstance(message, Mapping) and is_reply(message):
            return message_text(_content(message))
    return ""


class Completion(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model output.

    Attributes:
        text: What the model wrote; for a chat, its last assistant message. A null output is "".
        tokens: Length in tokens, where the source knows it.
        finish_reason: Why generation stopped ("stop", "length", …), where the source knows it.
        messages: The chat turns, where the source has them.
        error: The source's own failure message. Such a completion is an error for every reward.
        metadata: Columns that belong to this completion alone, such as a published `label`.
    """

    text: str
    tokens: int | None = None
    finish_reason: str | None = None
    messages: tuple[Message, ...] | None = None
    error: str | None = None
    metadata: dict[str, Any] = {}

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(f"a completion's text is a str, got {type(self.text).__name__}")

    @classmethod
    def from_messages(cls, messages: Sequence[Message], **fields: Any) -> Completion:
        """Return a completion whose text is the last assistant message of a chat."""
        return cls(last_reply(messages), messages=tuple(messages), **fields)


class Sample(msgspec.Struct, frozen=True):
    """One task.

    Attributes:
        id: Its name in the source (an integer and a string are different ids).
        prompt: Text, or chat messages.
        reference: The gold answer as the source has it; None when there is none.
        metadata: Every other column.
        step: The training step it was sampled at, where known.
    """

    id: str | int
    prompt: Any = ""
    reference: Any = None
    metadata: dict[str, Any] = {}
    step: int | None = None

    @property
    def prompt_text(self) -> str:
        """The prompt as plain text: itself, or its messages' texts, one a line."""
        if isinstance(self.prompt, str):
            return self.prompt
        if isinstance(self.prompt, Sequence):
            return "\n".join(message_text(_content(message)) for message in self.prompt if isinstance(message, Mapping))
        return ""


class Generation(msgspec.Struct, frozen=True):
    """A sample with its completions: the group that "group-relative" means.

    Attributes:
        sample: The task.
        completions: One or more outputs for it.
        model: The column of a file that holds several models side by side.
        start: The index of the first completion within its group, when a file spreads a group over rows.
        where: Where it came from, for messages: `a.jsonl:17`.
        key: Identity of the group: equal keys are one group (docs/records.md). 0 when made in code.
    """

    sample: Sample
    completions: tuple[Completion, ...]
    model: str | None = None
    start: int = 0
    where: str = ""
    key: int = 0

    def __post_init__(self) -> None:
        if type(self.sample) is not Sample:
            raise TypeError(f"a generation's sample is a Sample, got {type(self.sample).__name__}")
        for completion in self.completions:
            if type(completion) is not Completion:
                raise TypeError(f"a generation's completions are Completions, got {type(completion).__name__}")


def finite(value: object, what: str) -> float:
    """Return `value` as a finite float; raise TypeError or ValueError that names `what`."""
    if isinstance(value, (str, bytes)) or not hasattr(value, "__float__"):
        raise TypeError(f"{what} is a number, got {type(value).__name__}")
    try:
        number = float(value)
    except OverflowError:
        raise ValueError(f"{what} is a finite number, got an integer too large for a float") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} is a finite number, got {number}")
    return number


class Verdict(msgspec.Struct, frozen=True):
    """What a verifier decides: a value in [0, 1], or an abstention (value None).

    Make one with `accept`, `partial`, `reject` or `abstain`.

    Attributes:
        value: 1 correct, 0 wrong, between: partly; None: could not judge because of the reference.
        detail: Free text: which rule fired, what differs.
        extracted: The answer that was found in the completion.
        reason: From the closed list; None when there is nothing to blame.
    """

    value: float | None
    detail: str = ""
    extracted: str | None = None
    reason: Reason | None = None

    def __post_init__(self) -> None:
        value = self.value
        if type(value) is float and 0.0 <= value <= 1.0 and (self.reason is None or self.reason in COMPLETION_REASONS):
            return  # nearly always
        if value is None:
            if self.reason not in REFERENCE_REASONS:
                raise ValueError(f"an abstention's reason is one of {sorted(REFERENCE_REASONS)}, got {self.reason!r}")
            return
        value = finite(value, "a verdict's value")
        if not 0.0 <= value <= 1.0:
            raise ValueError(f"a verdict's value lies in [0, 1], got {value}")
        if self.reason is not None and self.reason not in COMPLETION_REASONS:
            raise ValueError(f"a verdict's reason is one of {sorted(COMPLETION_REASONS)}, got {self.reason!r}")
        msgspec.structs.force_setattr(self, "value", value)

    @classmethod
    def accept(cls, detail: str = "", *, extracted: str | None = None) -> Verdict:
        """Correct: value 1."""
        return cls(1.0, detail, extracted)

    @classmethod
    def partial(
        cls, value: float, detail: str = "", *, extracted: str | None = None, reason: BlameCompletion | None = None
    ) -> Verdict:
        """Partly correct: a value in [0, 1]."""
        return cls(value, detail, extracted, reason)

    @classmethod
    def reject(cls, detail: str = "", *, extracted: str | None = None, reason: BlameCompletion = "wrong") -> Verdict:
        """Not correct, and the completion is to blame: value 0."""
        return cls(0.0, detail, extracted, reason)

    @classmethod
    def abstain(
        cls, detail: str = "", *, extracted: str | None = None, reason: BlameReference = "unsupported"
    ) -> Verdict:
        """Could not judge, and the reference (or the verifier's reach) is to blame: no value."""
        return cls(None, detail, extracted, reason)


class Score(msgspec.Struct, frozen=True):
    """The named number that leaves a reward, in one of three states.

    A reward may return one to say more than a number: `Score(0.5, "two of four tags")`. The name is
    filled in by the reward. `Score(None, "no tags to judge")` abstains.

    Attributes:
        value: Any finite number; None unless scored.
        detail: Free text.
        extracted: The answer that was found, where there is one.
        reason: From the closed list; None when there is nothing to blame.
        name: The reward's name.
        weight: This part's factor in the sum it belongs to; None outside a sum.
        parts: The components of a composed reward.
        seconds: Time it took; None where it was not measured.
        trace: The traceback of an exception, shown once by the command line and never written to records.
    """

    value: float | None
    detail: str = ""
    extracted: str | None = None
    reason: Reason | None = None
    name: str = ""
    weight: float | None = None
    parts: tuple[Score, ...] = ()
    seconds: float | None = None
    trace: str | None = None

    def __post_init__(self) -> None:
        value, reason = self.value, self.reason
        if value is None:
            if reason is None:
                msgspec.structs.force_setattr(self, "reason", "unsupported")
            elif reason in COMPLETION_REASONS:
                raise ValueError(f"what a completion causes is scored, so reason {reason!r} needs a value")
            elif reason not in REFERENCE_REASONS and reason not in MACHINE_REASONS:
                raise ValueError(f"{reason!r} is no reason; known are {sorted(REFERENCE_REASONS | MACHINE_REASONS)}")
        elif reason is not None and reason not in COMPLETION_REASONS:
            raise ValueError(f"a scored value cannot carry the reason {reason!r}")
        elif type(value) is not float or not math.isfinite(value):
            msgspec.structs.force_setattr(self, "value", finite(value, "a score's value"))

    @property
    def state(self) -> State:
        """ "scored", "abstained" (the reference is to blame) or "error" (verifier, service or machine)."""
        if self.value is not None:
            return "scored"
        return "error" if self.reason in MACHINE_REASONS else "abstained"

    @property
    def why(self) -> str:
        """Reason and detail as one line, `wrong: 12 is not 13`; a detail that reads like a reason says `note:`."""
        if self.reason is None:
            return f"note: {self.detail}" if self.detail.partition(":")[0] in _ALL_REASONS else self.detail
        return f"{self.reason}: {self.detail}" if self.detail else self.reason

    @property
    def label_why(self) -> str:
        """The name in front of `why`: what a whole says when this part blocks it."""
        return f"{self.name}: {self.detail or self.reason or self.value}" if self.name else self.why

    @classmethod
    def error(cls, reason: BlameMachine, detail: str, *, name: str = "") -> Score:
        """Neither judged nor judgeable: the verifier, a service or the machine is to blame."""
        return cls(None, detail, reason=reason, name=name)

    @classmethod
    def of(cls, verdict: Verdict, name: str = "") -> Score:
        """Return the score that a verdict is worth."""
        return cls(verdict.value, verdict.detail, verdict.extracted, verdict.reason, name)
