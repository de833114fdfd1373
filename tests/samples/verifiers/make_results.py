"""Write results.jsonl with the savers of an older verifiers (MIT); no model is asked.

pip install verifiers==0.3.1 datasets && python make_results.py       # v0.3.1/results.jsonl and metadata.json
pip install verifiers==0.1.9 && python make_results.py                # v0.1.9/results.jsonl and metadata.json
"""

from __future__ import annotations

from pathlib import Path

import verifiers

HERE = Path(__file__).resolve().parent
ASK = [{"role": "system", "content": "Answer after ####."},
       {"role": "user", "content": "Ann has 3 pens and buys 4. How many has she?"}]  # fmt: skip
REPLIES = ["3 + 4 = 7\n#### 7", "3 * 4 = 12\n#### 12", None]
METADATA = {
    "env_id": "sums", "env_args": {}, "model": "written", "base_url": "http://localhost/v1", "num_examples": 1,
    "rollouts_per_example": 3, "sampling_args": {}, "date": "", "time_ms": 1.0, "avg_reward": 0.333, "avg_metrics": {},
    "state_columns": [],
}  # fmt: skip


def new(folder: Path) -> None:
    from verifiers.legacy.utils.save_utils import save_metadata, save_outputs, states_to_outputs

    states = []
    for reply in REPLIES:
        state = {
            "example_id": 0, "prompt": ASK, "answer": "7", "timing": {"generation_ms": 3.0, "scoring_ms": 1.0},
            "reward": float(reply == REPLIES[0]), "metrics": {"correct": float(reply == REPLIES[0]), "short": 0.5},
            "is_completed": True, "stop_condition": "max_turns_reached", "trajectory": [],
        }  # fmt: skip
        if reply is None:
            state["error"] = verifiers.ModelError("the endpoint closed the connection")
        else:
            state["completion"] = [{"role": "assistant", "content": reply}]
        states.append(state)
    save_outputs(states_to_outputs(states), folder, mode="w")
    save_metadata({**METADATA, "path_to_save": folder}, folder)


def old(folder: Path) -> None:
    from verifiers.utils.eval_utils import make_dataset, sanitize_metadata, save_to_disk

    rewards = [float(reply == REPLIES[0]) for reply in REPLIES]
    timing = {"generation_ms": 3.0, "scoring_ms": 1.0, "total_ms": 4.0}
    errors = [None, None, RuntimeError("the endpoint closed the connection")]
    results = {
        "prompt": [ASK] * 3,
        "completion": [[{"role": "assistant", "content": reply}] if reply else [] for reply in REPLIES],
        "answer": ["7"] * 3, "task": ["sums"] * 3, "info": [{}] * 3, "example_id": [0] * 3, "reward": rewards,
        "metrics": {"correct": rewards, "short": [0.5] * 3}, "metadata": {**METADATA, "path_to_save": folder},
        "state": [{"timing": timing, "error": error} for error in errors],
    }  # fmt: skip
    folder.mkdir(exist_ok=True)
    save_to_disk(make_dataset(results), sanitize_metadata(results["metadata"]), folder)


(new if verifiers.__version__.startswith("0.3") else old)(HERE / f"v{verifiers.__version__}")
