"""Writes the details beside this file with lighteval's own records and its own writer; no model runs.

    pip install torch lighteval==0.13.0 xxhash==3.5.0 && python tests/samples/lighteval/make.py

`Doc`, `ModelResponse` and metrics are filled by hand; DetailsLogger logs them and EvaluationTracker.save writes the
parquet files, as after a run.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from lighteval.logging.evaluation_tracker import EvaluationTracker
from lighteval.models.dummy.dummy_model import DummyModelConfig
from lighteval.models.model_output import ModelResponse
from lighteval.tasks.requests import Doc, SamplingMethod

HERE = Path(__file__).parent


def doc(query: str, choices: list[str], gold: int | list[int], id: str, task: str, samples: int = 1) -> Doc:
    return Doc(
        query=query, choices=choices, gold_index=gold, id=id, task_name=task, num_samples=samples,
        sampling_methods=[SamplingMethod.GENERATIVE], specific={"level": 1},
    )  # fmt: skip


def answer(query: str, texts: list[str]) -> ModelResponse:
    tokens = [[7] * len(text.split()) for text in texts]
    return ModelResponse(input=query, input_tokens=[1, 2, 3], text=texts, output_tokens=tokens)


def one(tracker: EvaluationTracker) -> None:
    """One completion a question; em is the verdict, the other metric is none."""
    task = "sums|0"
    for id, query, gold, text, right in [
        ("0", "2 + 2?", "4", "It is 4", 1.0),
        ("1", "3 + 3?", "6", "seven", 0.0),
        ("2", "4 + 4?", "8", "", 0.0),
    ]:
        tracker.details_logger.log(
            task, doc(query, [gold], 0, id, task), answer(query, [text]), {"em": right, "f1_score": right / 2 + 0.25}
        )


def several(tracker: EvaluationTracker) -> None:
    """Four completions a question, two right answers to the second; metrics are those of the whole question."""
    task = "primes|0"
    for id, query, choices, gold, texts, share in [
        ("0", "Name a prime between 4 and 6.", ["5"], [0], ["5", "4", "5", "6"], 0.5),
        ("1", "Name a prime below 4.", ["1", "2", "3"], [1, 2], ["2", "3", "1", "1"], 0.5),
    ]:
        tracker.details_logger.log(
            task, doc(query, choices, gold, id, task, 4), answer(query, texts), {"pass@k:k=1&n=4": share}
        )


def letters(tracker: EvaluationTracker) -> None:
    """A log-likelihood task: the model writes no text."""
    task = "letters|0"
    response = ModelResponse(
        input="Pick.", input_tokens=[1], logprobs=[-1.0, -2.0], argmax_logits_eq_gold=[True, False]
    )
    tracker.details_logger.log(task, doc("Pick.", ["A", "B"], 0, "0", task), response, {"acc": 1})


def main() -> None:
    for name, fill in (("one", one), ("several", several), ("letters", letters)):
        with tempfile.TemporaryDirectory() as folder:
            tracker = EvaluationTracker(output_dir=folder, save_details=True)
            tracker.general_config_logger.log_model_info(DummyModelConfig(seed=0, model_name="dummy"))
            fill(tracker)
            tracker.save()
            (path,) = Path(folder).rglob("details_*.parquet")
            shutil.copy(path, HERE / f"{name}.parquet")


if __name__ == "__main__":
    main()
