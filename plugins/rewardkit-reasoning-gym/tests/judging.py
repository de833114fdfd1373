"""Judging in this process, for tables of many cases; the deadline and the workers are the engine's own tests."""

from __future__ import annotations

from typing import Any

from rewardkit import Completion, Sample, Score, Verifier


def judge(verifier: Verifier[Any], text: str, reference: Any = None, prompt: str = "", **columns: Any) -> Score:
    sample = Sample(0, prompt, reference, columns)
    prepared = verifier.prepare(sample)
    if isinstance(prepared, Score):
        return prepared
    return verifier.judge(prepared, sample, Completion(text))


def tagged(answer: str) -> str:
    return f"<answer>{answer}</answer>"
