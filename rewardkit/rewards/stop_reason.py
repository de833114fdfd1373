"""`stop_reason`: a penalty for completions that were cut off."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rewardkit.errors import OptionError
from rewardkit.reward import reward
from rewardkit.types import Score

_CUT = frozenset(
    {
        "length",
        "limit",
        "max_tokens",
        "max_new_tokens",
        "max_output_tokens",
        "max_completion_tokens",
        "max_length",
        "model_length",
        "model_context_window_exceeded",
        "token_limit",
        "truncated",
        "incomplete",
        "cut_off",
    }
)
_ENDED = frozenset(
    {
        "stop",
        "stop_sequence",
        "stop_token",
        "stop_string",
        "eos",
        "eos_token",
        "end_turn",
        "end_of_turn",
        "complete",
        "completed",
        "finished",
        "done",
        "tool_calls",
        "tool_call",
        "tool_use",
        "function_call",
    }
)


def _word(said: str) -> str:
    """Return a reason in one spelling: `FinishReason.MAX_TOKENS`, `maxTokens` and `max-tokens` are `max_tokens`."""
    last = said.strip().rpartition(".")[2][:100]
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", last)
    return apart.lower().replace("-", "_").replace(" ", "_").removeprefix("finish_reason_")


@reward(name="stop_reason")
def stop_reason(finish_reason: Any, *, penalty: float = -1.0) -> Score:
    """`penalty` when generation stopped at a length limit, 0 when the model came to its end.

    Read are the words of the usual engines and services, in any case: "length", "max_tokens", "model_length",
    "truncated" … for cut off; "stop", "eos", "end_turn", "stop_sequence", "tool_calls" … for ended. A row that does
    not say it abstains (missing). Anything else ("content_filter", "abort") is not the completion's fault, and
    abstains, too (unsupported).

    Traps: the column is `finish_reason` (`stop_reason` is taken for it, which in vLLM's output is the string that ended
    the text); map another: `--map finish_reason=why`.

    Options:
        penalty: the value for a completion that was cut off; 0 or less.

    Example:
        rewardkit eval runs.jsonl -r "gsm8k + stop_reason(penalty=-0.5)"
    """
    if penalty > 0:
        raise OptionError(f"stop_reason: option penalty={penalty}: a penalty is wanted, 0 or less")
    said = finish_reason.get("type") if isinstance(finish_reason, Mapping) else finish_reason
    if said is None or (isinstance(said, str) and not said.strip()):
        return Score(None, "the row does not say why generation stopped", reason="missing")
    word = _word(said) if isinstance(said, str) else ""
    if word in _CUT:
        return Score(penalty, f"cut off: {word}")
    if word in _ENDED:
        return Score(0.0, f"ended: {word}")
    shown = repr(said[:60]) if isinstance(said, str) else f"a value of type {type(said).__name__}"
    return Score(None, f"{shown} says neither that it ended nor that it was cut off", reason="unsupported")
