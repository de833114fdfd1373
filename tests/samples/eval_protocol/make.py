"""Write rows with the models of eval-protocol (MIT), as its buffer writes them; no model is asked.

pip install eval-protocol==0.3.33 "litellm<1.81"     # two commands: its own pin of litellm does not import
python make.py                   # writes rows.jsonl beside this script
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

from eval_protocol.models import (
    EvaluateResult,
    EvaluationRow,
    ExecutionMetadata,
    InputMetadata,
    Message,
    MetricResult,
    Status,
)
from eval_protocol.pytest.buffer import MicroBatchDataBuffer

HERE = Path(__file__).resolve().parent
ASK = [
    Message(role="system", content="Answer after ####."),
    Message(role="user", content="Ann has 3 pens and buys 4. How many has she?"),
]


def row(rollout: int, reply: str | None, score: float | None) -> EvaluationRow:
    result = None
    if score is not None:
        short = MetricResult(score=0.5, reason="two lines")
        result = EvaluateResult(score=score, reason="compared as numbers", metrics={"short": short})
    return EvaluationRow(
        messages=ASK + ([Message(role="assistant", content=reply)] if reply else []),
        input_metadata=InputMetadata(row_id="pens", completion_params={"model": "written"}, dataset_info={"level": 1}),
        ground_truth="7",
        rollout_status=Status.rollout_finished() if reply else Status.rollout_internal_error("the endpoint closed"),
        evaluation_result=result,
        execution_metadata=ExecutionMetadata(
            invocation_id="i", experiment_id="e", run_id="r", rollout_id=f"r{rollout}", finish_reason="stop"
        ),
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
    )


async def main() -> None:
    rows = [row(0, "3 + 4 = 7\n#### 7", 1.0), row(1, "3 * 4 = 12\n#### 12", 0.0), row(2, None, None)]
    (HERE / "rows.jsonl").unlink(missing_ok=True)
    buffer = MicroBatchDataBuffer(num_runs=3, batch_size=1, output_path_template=str(HERE / "rows.jsonl"))
    for each in rows:
        await buffer.add_result(each)
    await buffer.close()


asyncio.run(main())
