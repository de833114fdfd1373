"""Whole runs on a GPU: the memory that was planned against the memory that was taken, for another model than SmolLM2.

Needs what `rewardkit train` needs: `python3 -m pytest --noconftest -q tests/trainer_backend/test_train_gpu.py`; about
a minute. The same code runs on a CPU with a tiny model in test_train.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="training needs torch")
pytest.importorskip("transformers", reason="training needs transformers")
pytest.importorskip("peft", reason="training needs peft")
if not torch.cuda.is_available():
    pytest.skip("needs a CUDA device", allow_module_level=True)

from planned_runs import HALF_A_BILLION, planned_run, write_random_model  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a billion random parameters in bfloat16; this process keeps none of them on the device."""
    folder = write_random_model(tmp_path_factory.mktemp("model") / "model", HALF_A_BILLION, torch.bfloat16, "cuda")
    torch.cuda.empty_cache()
    return folder


@pytest.mark.parametrize("mode", [None, "offload"], ids=["default", "offload"])
def test_a_plan_is_within_a_tenth_of_what_is_taken(model: Path, tmp_path: Path, mode: str | None) -> None:
    run = planned_run(tmp_path, model, tokens=1024, rows=16, dtype="bfloat16", mode=mode)
    assert abs(run.peak - run.planned) <= 0.1 * run.planned, f"{run.peak:.2f} GB of {run.planned:.2f}: {run.plan}"
