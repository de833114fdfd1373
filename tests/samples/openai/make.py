"""Build files as the OpenAI API gives them, with the response classes of its client library; no service is asked.

    pip install openai               # Apache-2.0; the version is printed
    python make.py                   # writes the .jsonl files beside this script

chat_*, responses_* and completions_* are outputs of batches, with the requests of the first two; calls.jsonl are logged
requests and answers, answers.jsonl answers alone.
"""

from __future__ import annotations

import json
from pathlib import Path

import openai
from openai.types import Completion
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

HERE = Path(__file__).resolve().parent
PENS = "Ann has 3 pens and buys 4. How many has she?"
EGGS = "A box holds 12 eggs. How many do 3 hold?"


def chat(*texts: str | None, refusal: str | None = None, finish: str = "stop") -> dict:
    message = [{"role": "assistant", "content": text, "refusal": refusal} for text in texts]
    choices = [
        {"index": at, "message": each, "finish_reason": finish, "logprobs": None} for at, each in enumerate(message)
    ]
    body = {
        "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "gpt-test", "choices": choices,
        "usage": {"prompt_tokens": 20, "completion_tokens": 9, "total_tokens": 29},
    }  # fmt: skip
    return ChatCompletion.model_validate(body).model_dump(mode="json")


def legacy(text: str) -> dict:
    body = {
        "id": "cmpl-1", "object": "text_completion", "created": 1, "model": "gpt-test",
        "choices": [{"index": 0, "text": text, "finish_reason": "length", "logprobs": None}],
    }  # fmt: skip
    return Completion.model_validate(body).model_dump(mode="json")


def response(*texts: str, tool: bool = False, stopped: bool = False) -> dict:
    output: list[dict] = [{"id": "rs_1", "type": "reasoning", "summary": [{"type": "summary_text", "text": "Add."}]}]
    if tool:
        output.append({"id": "fc_1", "type": "function_call", "call_id": "c1", "name": "times", "arguments": "[12, 3]"})
    for at, text in enumerate(texts):
        part = {"type": "output_text", "text": text, "annotations": []}
        message = {"id": f"msg_{at}", "type": "message", "role": "assistant", "status": "completed"}
        output.append({**message, "content": [part]})
    body = {
        "id": "resp_1", "object": "response", "created_at": 1, "model": "gpt-test", "output": output,
        "status": "incomplete" if stopped else "completed", "parallel_tool_calls": True, "tool_choice": "auto",
        "tools": [],
        "incomplete_details": {"reason": "max_output_tokens"} if stopped else None,
    }  # fmt: skip
    return Response.model_validate(body).model_dump(mode="json")


def answered(custom_id: str, body: dict, status: int = 200) -> dict:
    held = {"status_code": status, "request_id": "req_1", "body": body}
    return {"id": f"batch_req_{custom_id}", "custom_id": custom_id, "response": held, "error": None}


def request(custom_id: str, url: str, body: dict) -> dict:
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": {"model": "gpt-test", **body}}


def write(name: str, *rows: dict) -> None:
    (HERE / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def main() -> None:
    url = "/v1/chat/completions"
    eggs = [{"role": "user", "content": EGGS}]
    user = [{"role": "system", "content": "Answer after ####."}, {"role": "user", "content": PENS}]
    write(
        "chat_requests.jsonl",
        request("pens", url, {"messages": user, "n": 2, "metadata": {"answer": "7"}}),
        request("eggs", url, {"messages": eggs, "metadata": {"answer": "36"}}),
        request("late", url, {"messages": user, "metadata": {"answer": "7"}}),
        request("long", url, {"messages": user, "metadata": {"answer": "7"}}),
    )
    said = "This request could not be executed before the completion window expired."
    expired = {"code": "batch_expired", "message": said}
    write(
        "chat_output.jsonl",  # in another order than the requests
        {"id": "batch_req_late", "custom_id": "late", "response": None, "error": expired},
        answered("eggs", chat(None, refusal="I cannot help with eggs.")),
        answered("pens", chat("3 + 4 = 7\n#### 7", "3 * 4 = 12\n#### 12")),
        answered("long", {"error": {"message": "maximum context length", "type": "invalid_request_error"}}, 400),
    )
    url, told = "/v1/responses", {"instructions": "Answer after ####."}
    write(
        "responses_requests.jsonl",
        request("r1", url, {**told, "input": PENS, "metadata": {"answer": "7"}}),
        request("r2", url, {"input": eggs, "metadata": {"answer": "36"}}),
        request("r3", url, {"input": EGGS, "metadata": {"answer": "36"}}),
    )
    write(
        "responses_output.jsonl",
        answered("r2", response("#### 36")),
        answered("r1", response("3 + 4 = 7\n", "#### 7")),
        answered("r3", response(tool=True, stopped=True)),
    )
    write("completions_output.jsonl", answered("c1", legacy(" 7")), answered("c2", legacy(" 36")))
    write(
        "calls.jsonl",
        {"request": {"model": "gpt-test", "messages": user}, "response": chat("#### 7"), "answer": "7"},
        {"request": {"model": "gpt-test", "messages": user}, "response": None, "error": "timed out", "answer": "7"},
    )
    write("answers.jsonl", {**chat("#### 7"), "id": "chatcmpl-1"}, {**chat("#### 36"), "id": "chatcmpl-2"})
    print("openai", openai.__version__)


main()
