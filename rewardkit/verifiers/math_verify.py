"""`math_verify`: a second opinion from the math-verify package, where that is installed."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, ClassVar

from pydantic import Field, field_validator

from rewardkit.errors import UsageError
from rewardkit.leaf import Placement
from rewardkit.types import Completion, Sample, Verdict
from rewardkit.verifier import Reference, Verifier

_ABSENT = "math_verify needs the package math-verify, which is not installed: pip install 'math-verify[antlr4_13_2]'"


class MathVerifyReference(Reference):
    """The right answer as text; LaTeX without delimiters gets dollar signs, which math-verify wants."""

    answer: str = Field(description="an answer as text")

    @field_validator("answer", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise ValueError(f"an answer as text is wanted, got {type(value).__name__}")
        text = str(value).strip()
        if not text:
            raise ValueError("an answer is wanted, got an empty text")
        return text if "$" in text or "\\boxed" in text else f"${text}$"


class MathVerify(Verifier[MathVerifyReference]):
    r"""Accept when the math-verify package does: to compare verifiers on your data.

    It runs as that package's own defaults say, in a worker process that is killed over the deadline; its alarm signal
    is switched off. Without the package every run stops with an error that says how to install it.

    Traps: use `math` to train. math-verify drops unknown letters behind numbers, compares some numbers after rounding,
    and looks for a number inside what it cannot read.

    Options:
        float_rounding: decimal places that it rounds to.
        strict: its own option of that name.
        timeout: deadline in seconds for one completion.

    Example:
        rewardkit show math_verify
    """

    name: ClassVar[str | None] = "math_verify"
    placement: ClassVar[Placement] = "process"  # type: ignore[misc]

    float_rounding: int = Field(default=6, ge=0, le=20)
    strict: bool = True
    timeout: float = Field(default=5.0, gt=0)  # type: ignore[misc]

    def warm(self) -> None:
        if importlib.util.find_spec("math_verify") is not None:
            importlib.import_module("math_verify")

    def verify(self, completion: Completion, reference: MathVerifyReference, sample: Sample) -> Verdict:
        if importlib.util.find_spec("math_verify") is None:
            raise UsageError(_ABSENT)
        package: Any = importlib.import_module("math_verify")
        gold = package.parse(reference.answer, parsing_timeout=None)
        if not gold:
            return Verdict.abstain(f"math-verify cannot read {reference.answer[:60]!r}", reason="bad_reference")
        if not completion.text.strip():
            return Verdict.reject("the completion is empty", reason="no_answer")
        answer = package.parse(completion.text, parsing_timeout=None)
        if not answer:
            return Verdict.reject("math-verify finds no answer", reason="no_answer")
        shown = str(answer[-1])[:200]
        same = package.verify(
            gold, answer, float_rounding=self.float_rounding, strict=self.strict, timeout_seconds=None
        )
        return (
            Verdict.accept("as math-verify says", extracted=shown)
            if same
            else Verdict.reject("as math-verify says", extracted=shown)
        )
