"""Writes the logs beside this file with inspect_ai itself and its mock model: no network, a second or two.

    pip install inspect_ai==0.3.285 && python tests/samples/inspect_ai/make.py

The answers are made up; everything else is what the tool does. One sample fails in its solver.
"""

from __future__ import annotations

import os
import tempfile
import zipfile
from pathlib import Path

from inspect_ai import Epochs, Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalError, write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import Score, Target, match, mean, scorer
from inspect_ai.solver import Generate, TaskState, solver, system_message

HERE = Path(__file__).parent
ANSWERS = {"2 + 2?": ["4", "It is 4"], "3 + 3?": ["6", "seven"], "Name a prime below 4.": ["2", "4"]}


@scorer(metrics=[mean()])
def brevity():
    """One over the number of words."""

    async def score(state: TaskState, target: Target) -> Score:
        words = len(state.output.completion.split())
        return Score(value=float("nan") if words > 1 else 1 / (1 + words), answer=str(words))

    return score


@solver
def answer():
    """Answer from the table above; the sample `broken` fails."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        if state.sample_id == "broken":
            raise RuntimeError("the tool server went away")
        text = ANSWERS[state.user_prompt.text][state.epoch - 1]
        output = ModelOutput.from_content("mockllm/model", text)
        output.usage = ModelUsage(input_tokens=9, output_tokens=len(text.split()), total_tokens=9 + len(text.split()))
        outputs = [output]  # with usage, as counting tokens would download a tokenizer
        state.output = await get_model("mockllm/model", custom_outputs=outputs, memoize=False).generate(state.messages)
        state.messages.append(state.output.message)
        return state

    return solve


def task() -> Task:
    """Four samples: an integer id, text ids, a list of targets, one that fails."""
    samples = [
        Sample(input="2 + 2?", target="4", id=1, metadata={"level": 1}),
        Sample(input="3 + 3?", target="6", id="three plus three", metadata={"level": 1}),
        Sample(input="Name a prime below 4.", target=["2", "3"], id="prime", metadata={"level": 2}),
        Sample(input="9 - 9?", target="0", id="broken"),
    ]
    return Task(
        name="sums",
        dataset=MemoryDataset(samples, name="sums"),
        solver=[system_message("Answer with one number."), answer()],
        scorer=[brevity(), match(location="any", numeric=True)],
        epochs=Epochs(2),
    )


def main() -> None:
    os.environ["INSPECT_NO_ANSI"] = "1"
    for kind in ("eval", "json"):
        with tempfile.TemporaryDirectory() as folder:
            (log,) = eval(task(), model="mockllm/model", log_dir=folder, fail_on_error=False, display="none")
            for sample in log.samples or ():
                # Tracebacks, and the events that repeat them, hold this machine's paths; without them the log is small.
                sample.events, sample.attachments = [], {}
                if sample.error is not None:
                    sample.error = EvalError(message=sample.error.message, traceback="", traceback_ansi="")
            write_eval_log(log, HERE / f"sums.{kind}", format=kind)
    # Older versions deflate the members: the same bytes again, written so by the standard library.
    import zipfile_zstd  # noqa: F401  (lets zipfile read method 93 before Python 3.14)

    with zipfile.ZipFile(HERE / "sums.eval") as new, zipfile.ZipFile(HERE / "sums_deflate.eval", "w", 8) as old:
        for info in new.infolist():
            old.writestr(info.filename, new.read(info))


if __name__ == "__main__":
    main()
