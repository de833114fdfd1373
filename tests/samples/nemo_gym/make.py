"""Build rollouts as NeMo-Gym writes them (Apache-2.0, not on PyPI), with the response classes of the OpenAI client.

    pip install openai
    python make.py                   # writes the .jsonl files beside this script

The fields, their order and the three files follow `nemo_gym/rollout_collection.py` (commit 00536e7) and its published
example rollouts. The tool itself did not write these files.
"""

from __future__ import annotations

import json
from pathlib import Path

from openai.types.responses import Response

HERE = Path(__file__).resolve().parent
AGENT = {"name": "sums_agent"}


def asked(question: str) -> dict:
    message = {"content": question, "role": "user", "type": "message"}
    return {"input": [message], "parallel_tool_calls": True, "temperature": 1.0, "tools": []}


def answer(text: str) -> dict:
    part = {"annotations": [], "text": text, "type": "output_text"}
    message = {"id": "message-0", "content": [part], "role": "assistant", "status": "completed", "type": "message"}
    body = {
        "id": "resp_1", "created_at": 1.0, "model": "policy_model", "object": "response", "output": [message],
        "parallel_tool_calls": True, "tool_choice": "auto", "tools": [],
        "usage": {"input_tokens": 20, "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                  "output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 29},
    }  # fmt: skip
    return Response.model_validate(body).model_dump(mode="json")


def row(task: int, rollout: int, question: str, text: str, reward: float, expected: str) -> dict:
    return {
        "responses_create_params": asked(question), "response": answer(text), "reward": reward,
        "expected_answer": expected, "extracted_answer": text.split()[-1], "library_reward": reward,
        "_ng_task_index": task, "_ng_rollout_index": rollout, "agent_ref": AGENT,
    }  # fmt: skip


def write(name: str, rows: list[dict]) -> None:
    (HERE / name).write_text("".join(json.dumps(each, separators=(",", ":")) + "\n" for each in rows))


def main() -> None:
    pens, eggs = "Ann has 3 pens and buys 4. How many has she?", "A box holds 12 eggs. How many do 3 hold?"
    rows = [
        row(0, 1, pens, "3 * 4 = 12 #### 12", 0.0, "7"),
        row(1, 0, eggs, "3 * 12 = 36 #### 36", 1.0, "36"),
        row(0, 0, pens, "3 + 4 = 7 #### 7", 1.0, "7"),
    ]
    write("rollouts.jsonl", rows)
    failed = {"responses_create_params": asked(eggs), "_ng_failure_class": "timeout_exceeded"}
    where = {"_ng_failure_terminal": True, "_ng_task_index": 1, "_ng_rollout_index": 1, "agent_ref": AGENT}
    write("rollouts_failures.jsonl", [{**failed, **where}])
    inputs = [{"responses_create_params": asked(pens), "expected_answer": "7"}] * 2
    write("rollouts_materialized_inputs.jsonl", [
        {**each, "agent_ref": AGENT, "_ng_task_index": 0, "_ng_rollout_index": at} for at, each in enumerate(inputs)
    ])  # fmt: skip


main()
