"""What `rewardkit train` hands to a training backend, and what it expects back; the same of `rewardkit plan`.

A backend is registered by the hook `rewardkit_backends`. Its target is imported when somebody trains, and called with
the path of a training file and with these options; it reads and checks the file itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

MARK = "# Written by rewardkit train"
"""What config.toml in the folder of a training run begins with."""


@dataclass(frozen=True)
class TrainOptions:
    """What was said on the command line.

    Attributes:
        check: Look at sizes, memory, and a few prompts, and train nothing.
        resume: The folder of a run to go on with.
        force: Start although no plan of the memory fits; with `check`, return 0 whatever it finds.
        allow_change: Resume although settings have changed.
        require_learning: Return 1 when nothing was learned.
        overwrite: Start again in a folder that has a run.
        output: The run's folder; None: what the file says.
        set: Settings that replace those of the file, each `table.key=value`.
        quiet: Print one line, at the end.
    """

    check: bool = False
    resume: Path | None = None
    force: bool = False
    allow_change: bool = False
    require_learning: bool = False
    overwrite: bool = False
    output: Path | None = None
    set: tuple[str, ...] = ()
    quiet: bool = False


class Backend(Protocol):
    """A training backend: the target of an entry of `rewardkit_backends`."""

    def __call__(self, path: Path, options: TrainOptions, /) -> int:
        """Train as a file says.

        Args:
            path: The training file; it exists.
            options: All else.

        Returns:
            The exit code: 0 done; 1 a bar that was asked for was missed (`require_learning`); 2 what was
            trained could not be written; 3 stopped because a reward failed; 130 interrupted, to be resumed.

        Raises:
            RewardkitError: Whatever is wrong with the file, the data or the machine, in one sentence.
        """
        ...


@dataclass(frozen=True)
class PlanOptions:
    """What was said to `rewardkit plan`.

    Attributes:
        model: A folder with config.json, the file, a name on the hub, or a well-known model.
        context: Tokens of the longest row, prompt and completion.
        generations: Completions of a prompt; a step is one prompt.
        prompt: Tokens of the prompt in it; None: 512, or a quarter of a small context.
        load_in_4bit: Weights as NF4.
        rank: Of the adapter; None: the trainer's own.
        dtype: Of the weights: "bfloat16", "float16" or "float32".
        engine: What samples: "transformers" or "vllm".
        fit_in: Memory to stay in, such as "12GB"; None: that of the card.
        gpu: A card by name; None: an H200.
        cpu: Plan for a CPU.
        json: Give JSON in place of text.
    """

    model: str
    context: int
    generations: int
    prompt: int | None = None
    load_in_4bit: bool = False
    rank: int | None = None
    dtype: str = "bfloat16"
    engine: Literal["transformers", "vllm"] = "transformers"
    fit_in: str | None = None
    gpu: str | None = None
    cpu: bool = False
    json: bool = False


class Planner(Protocol):
    """What answers `rewardkit plan`."""

    def __call__(self, options: PlanOptions, /) -> tuple[str, int]:
        """Return what to print, and the exit code: 0, or 1 where `fit_in` was asked for and missed.

        Raises:
            RewardkitError: Whatever is wrong with the model or the options, in one sentence.
        """
        ...
