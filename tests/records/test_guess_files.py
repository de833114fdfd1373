"""Files as people have them on disk: each is read by the right columns without a flag, or stops with a question.

One case a shape; the field names are those of the tools named. Where a file stops, its suggestion must work when it
is pasted, and must give the columns that are right (or, where the file holds no outputs, there must be none).
"""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from typing import Any, NamedTuple

import pytest

from rewardkit.errors import MapError
from rewardkit.records import FieldMap, Row, guess, read_generations
from rewardkit.records.csv_table import READER as CSV
from rewardkit.records.json_document import READER as DOCUMENT
from rewardkit.records.jsonl import READER as JSONL

PLAIN = {"jsonl": JSONL, "json": DOCUMENT, "csv": CSV}  # without the readers of tools, so that the guess is tested

THOUGHT = "First we add the two numbers, then we look at what we were asked for, and so on, until it is clear that "


class Case(NamedTuple):
    """A file, and the map that it must get; or what the stop says, and the map that its suggestion must give."""

    name: str
    rows: Any  # of a number, giving a row; or the whole document
    map: str
    stops: str = ""
    ext: str = "jsonl"
    count: int = 6


def q(n: int) -> str:
    return f"What is {n} + {n}? Show your work."


def out(n: int, more: str = "") -> str:
    return f"{more}{n} + {n} = {2 * n}, so the answer is {2 * n}"


def user(n: int) -> dict[str, str]:
    return {"role": "user", "content": q(n)}


def reply(n: int) -> dict[str, str]:
    return {"role": "assistant", "content": out(n)}


CASES = [
    # One completion a row
    Case(
        "plain",
        lambda n: {"question": q(n), "answer": str(2 * n), "response": out(n)},
        "completion=response,reference=answer,prompt=question",
    ),
    Case(
        "vllm script", lambda n: {"prompt": q(n), "generated_text": out(n)}, "completion=generated_text,prompt=prompt"
    ),
    Case(
        "vllm request outputs",
        lambda n: {
            "request_id": str(n),
            "prompt": q(n),
            "outputs": [
                {"index": i, "text": out(n, str(i)), "token_ids": [1, 2], "finish_reason": "stop"} for i in (0, 1)
            ],
        },
        "completion=outputs[].text,prompt=prompt,finish_reason=outputs[].finish_reason",
    ),
    Case(
        "chat completions stored whole",
        lambda n: {
            "question": q(n),
            "gold": str(2 * n),
            "response": {
                "id": f"c{n}",
                "object": "chat.completion",
                "model": "m",
                "choices": [{"index": 0, "message": reply(n), "finish_reason": "stop"}],
                "usage": {"completion_tokens": 7},
            },
        },
        "completion=response.choices[].message,reference=gold,prompt=question,finish_reason=response.choices[].finish_reason",
    ),
    Case(
        "anthropic message stored whole",
        lambda n: {
            "prompt": q(n),
            "response": {"role": "assistant", "content": [{"type": "text", "text": out(n)}], "stop_reason": "end_turn"},
        },
        "completion=response,prompt=prompt",
    ),
    Case(
        "llama-factory",
        lambda n: {"prompt": q(n), "predict": out(n), "label": str(2 * n)},
        "completion=predict,reference=label,prompt=prompt",
    ),
    Case(
        "llama-factory, binary task",
        lambda n: {"prompt": q(n), "predict": str(n % 2), "label": str(n // 2 % 2)},
        "completion=predict,reference=label,prompt=prompt",
    ),
    Case(
        "alpaca-eval",
        lambda n: {"dataset": "helpful_base", "instruction": q(n), "output": out(n), "generator": "gpt-4"},
        "completion=output,prompt=instruction,model=generator",
    ),
    Case(
        "alpaca, no inputs",
        lambda n: {"instruction": q(n), "input": "", "output": out(n)},
        "completion=output,prompt=instruction",
    ),
    Case(
        "alpaca, some inputs",
        lambda n: {"instruction": q(n), "input": "" if n % 2 else "in words", "output": out(n)},
        "completion=output,prompt=instruction",
        stops="instruction and input could each be the prompt",
    ),
    Case(
        "metamath",
        lambda n: {"query": q(n), "response": out(n), "type": "GSM_Rephrased", "original_question": "x" + q(n)},
        "completion=response,prompt=query",
    ),
    Case(
        "openmathinstruct",
        lambda n: {
            "problem": q(n),
            "generated_solution": out(n),
            "expected_answer": str(2 * n),
            "problem_source": "gsm8k",
        },
        "completion=generated_solution,reference=expected_answer,prompt=problem",
    ),
    Case(
        "nemo-skills",
        lambda n: {
            "problem": q(n),
            "expected_answer": str(2 * n),
            "generation": out(n),
            "predicted_answer": str(2 * n),
            "num_generated_tokens": 9,
        },
        "completion=generation,reference=expected_answer,prompt=problem",
    ),
    Case(
        "ragas",
        lambda n: {"user_input": q(n), "response": out(n), "reference": str(2 * n), "retrieved_contexts": ["x"]},
        "completion=response,reference=reference,prompt=user_input",
    ),
    Case(
        "deepeval",
        lambda n: {"input": q(n), "actual_output": out(n), "expected_output": str(2 * n), "context": None},
        "completion=actual_output,reference=expected_output,prompt=input",
    ),
    Case(
        "langsmith",
        lambda n: {"inputs": q(n), "outputs": out(n), "reference_outputs": str(2 * n)},
        "completion=outputs,reference=reference_outputs,prompt=inputs",
    ),
    Case(
        "verl rollout",
        lambda n: {"input": q(n), "output": out(n), "gts": str(2 * n), "score": 1.0, "step": 3},
        "completion=output,reference=gts,prompt=input,label=score,step=step",
    ),
    Case(
        "swe-bench",
        lambda n: {"instance_id": f"a__b-{n}", "model_patch": f"diff --git {n}", "model_name_or_path": "m"},
        "completion=model_patch,id=instance_id,model=model_name_or_path",
    ),
    Case(
        "human-eval",
        lambda n: {"task_id": f"HumanEval/{n}", "completion": f"    return {n}"},
        "completion=completion,id=task_id",
    ),
    Case(
        "evalplus",
        lambda n: {"task_id": f"HumanEval/{n}", "solution": f"def f(): return {n}"},
        "completion=solution,id=task_id",
    ),
    Case(
        "bigcodebench",
        lambda n: {"task_id": f"BigCodeBench/{n}", "solution": f"def f(): return {n}", "_identifier": f"x{n}"},
        "completion=solution,id=task_id",
    ),
    Case(
        "model answers",
        lambda n: {"question": q(n), "gold": str(2 * n), "model_answer": out(n), "correct": True},
        "completion=model_answer,reference=gold,prompt=question,label=correct",
    ),
    Case(
        "s1k",
        lambda n: {
            "solution": str(2 * n),
            "question": q(n),
            "cot_type": "math",
            "source_type": "x",
            "metadata": "{}",
            "thinking_trajectories": [out(n)],
            "attempt": out(n),
        },
        "completion=attempt,reference=solution,prompt=question",
    ),
    Case(
        "aqua",
        lambda n: {
            "question": q(n),
            "options": ["A)1", "B)2"],
            "rationale": THOUGHT,
            "correct": "AB"[n % 2],
            "response": out(n),
        },
        "completion=response,reference=correct,prompt=question",
    ),
    Case(
        "mmlu",
        lambda n: {"question": q(n), "choices": ["1", "2", "3", "4"], "answer": n % 4, "response": out(n)},
        "completion=response,reference=answer,prompt=question",
    ),
    Case(
        "arc",
        lambda n: {
            "id": f"M{n}",
            "question": q(n),
            "choices": {"text": ["1", "2"], "label": ["A", "B"]},
            "answerKey": "AB"[n % 2],
            "output": out(n),
        },
        "completion=output,reference=answerKey,prompt=question,id=id",
    ),
    Case(
        "a constant frame around the question",
        lambda n: {"prompt": "You are helpful.", "question": q(n), "response": out(n), "answer": "4"},
        "completion=response,reference=answer,prompt=question",
    ),
    Case(
        "several samples of one question",
        lambda n: {"prompt": q(1), "question": "1+1", "response": out(n), "answer": "2"},
        "completion=response,reference=answer,prompt=prompt",
    ),
    Case(
        "an empty second column",
        lambda n: {"question": q(n), "response": out(n), "generation": None, "gold": "4", "gt": ""},
        "completion=response,reference=gold,prompt=question",
    ),
    Case(
        "target is a link",
        lambda n: {"question": q(n), "response": out(n), "target": f"https://x.org/{n}"},
        "completion=response,prompt=question",
    ),
    Case(
        "ids and tokens",
        lambda n: {"prompt_id": f"p{n}", "prompt": q(n), "completion_tokens": 7, "completion": out(n)},
        "completion=completion,prompt=prompt,id=prompt_id,tokens=completion_tokens",
    ),
    Case(
        "pass and fail in words",
        lambda n: {"prompt": q(n), "completion": out(n), "result": "PASSED"},
        "completion=completion,prompt=prompt",
    ),
    Case(
        "a mark called pass",
        lambda n: {"prompt": q(n), "completion": out(n), "pass": n % 2 == 0},
        "completion=completion,prompt=prompt,label=pass",
    ),
    # Names written otherwise
    Case(
        "capitalised csv",
        lambda n: {"Question": q(n), "Answer": str(2 * n), "Response": out(n)},
        "completion=Response,reference=Answer,prompt=Question",
        ext="csv;",
    ),
    Case(
        "spaces and dashes",
        lambda n: {"Unnamed: 0": str(n), "Question": q(n), "Ground Truth": str(2 * n), "Model Output": out(n)},
        "completion=Model Output,reference=Ground Truth,prompt=Question",
        ext="csv,",
    ),
    Case(
        "dashes",
        lambda n: {"question-id": n, "question": q(n), "ground-truth": str(2 * n), "model-output": out(n)},
        "completion=model-output,reference=ground-truth,prompt=question,id=question-id",
    ),
    Case(
        "camel case",
        lambda n: {
            "taskId": n,
            "question": q(n),
            "groundTruth": str(2 * n),
            "modelOutput": out(n),
            "isCorrect": True,
            "finishReason": "stop",
        },
        "completion=modelOutput,reference=groundTruth,prompt=question,id=taskId,label=isCorrect,finish_reason=finishReason",
    ),
    Case(
        "dots",
        lambda n: {"model.output": out(n), "ref": str(2 * n), "QUESTION": q(n)},
        'completion=["model.output"],reference=ref,prompt=QUESTION',
    ),
    Case(
        "tsv of capitals",
        lambda n: {"ID": n, "PROMPT": q(n), "LLM Response": out(n), "Ref": str(2 * n)},
        "completion=LLM Response,reference=Ref,prompt=PROMPT,id=ID",
        ext="csv\t",
    ),
    Case(
        "chinese",
        lambda n: {"问题": q(n), "答案": str(2 * n), "回答": out(n)},
        "completion=回答,reference=答案,prompt=问题",
    ),
    Case(
        "chinese, more",
        lambda n: {"题目": q(n), "标准答案": str(2 * n), "模型输出": out(n), "是否正确": True},
        "completion=模型输出,reference=标准答案,prompt=题目,label=是否正确",
    ),
    Case(
        "exact before near",
        lambda n: {"Response": "HTTP", "response": out(n), "question": q(n)},
        "completion=response,prompt=question",
    ),
    Case(
        "two near ones",
        lambda n: {"Model Output": out(n), "model-output": out(n + 1), "question": q(n)},
        "completion=Model Output,prompt=question",
        stops="Model Output and model-output could each be the completion",
    ),
    # Lists
    Case(
        "best of n",
        lambda n: {"prompt": q(n), "samples": [out(n), out(n, "So ")], "answer": str(2 * n)},
        "completion=samples[],reference=answer,prompt=prompt",
    ),
    Case(
        "rejection sampling",
        lambda n: {"question": q(n), "gold": str(2 * n), "responses": [out(n), "no"], "scores": [1.0, 0.0]},
        "completion=responses[],reference=gold,prompt=question,label=scores[]",
    ),
    Case(
        "objects",
        lambda n: {
            "question": q(n),
            "answer": "4",
            "generations": [{"text": out(n), "model": "a"}, {"text": out(n), "model": "b"}],
        },
        "completion=generations[].text,reference=answer,prompt=question,model=generations[].model",
    ),
    Case(
        "camel case in objects",
        lambda n: {"question": q(n), "answer": "4", "responses": [{"modelOutput": out(n), "isCorrect": 1}]},
        "completion=responses[].modelOutput,reference=answer,prompt=question,label=responses[].isCorrect",
    ),
    Case(
        "openr1-math",
        lambda n: {
            "problem": q(n),
            "solution": THOUGHT,
            "answer": str(2 * n),
            "problem_type": "Algebra",
            "question_type": "math-word-problem",
            "source": "olympiads",
            "uuid": f"u{n}",
            "is_reasoning_complete": [True, True],
            "generations": [out(n, "<think>"), out(n)],
            "correctness_math_verify": [True, False],
            "correctness_llama": None,
            "finish_reasons": ["stop", "length"],
            "correctness_count": 1,
            "messages": [user(n), reply(n)],
        },
        "completion=generations[],reference=answer,prompt=problem,id=uuid,label=correctness_math_verify[],finish_reason=finish_reasons[]",
    ),
    Case(
        "livecodebench",
        lambda n: {
            "question_title": "t",
            "question_content": q(n),
            "platform": "x",
            "question_id": str(n),
            "difficulty": "easy",
            "output_list": [out(n)],
            "code_list": ["print()"],
            "graded_list": [True],
            "pass@1": 1.0,
            "metadata": ["{}"],
        },
        "completion=output_list[],prompt=question_content,id=question_id,label=graded_list[]",
    ),
    Case(
        "a list of scores of another length",
        lambda n: {"prompt": q(n), "responses": [out(n), "x"], "scores": [0.1] * 3},
        "completion=responses[],prompt=prompt",
    ),
    Case(
        "mt-bench, one turn",
        lambda n: {
            "question_id": n,
            "answer_id": f"a{n}",
            "model_id": "m",
            "choices": [{"index": 0, "turns": [out(n)]}],
            "tstamp": 1.5,
        },
        "completion=choices[].turns[0],id=question_id,model=model_id",
        stops="no field looks like a completion",
    ),
    Case(
        "mt-bench, two turns",
        lambda n: {"question_id": n, "model_id": "m", "choices": [{"index": 0, "turns": [out(n), out(n)]}]},
        "completion=choices[].turns[0],id=question_id,model=model_id",
        stops="no field looks like a completion",
    ),
    # Chats
    Case(
        "openai messages",
        lambda n: {"messages": [user(n), reply(n)], "answer": "4"},
        "completion=messages,reference=answer,prompt=messages",
    ),
    Case(
        "sharegpt",
        lambda n: {
            "id": f"s{n}",
            "conversations": [{"from": "human", "value": q(n)}, {"from": "gpt", "value": out(n)}],
        },
        "completion=conversations,prompt=conversations,id=id",
    ),
    Case(
        "openthoughts",
        lambda n: {
            "system": "You are",
            "conversations": [{"from": "user", "value": q(n)}, {"from": "assistant", "value": out(n)}],
        },
        "completion=conversations,prompt=conversations",
    ),
    Case(
        "trl conversational",
        lambda n: {"prompt": [user(n)], "completion": [reply(n)], "ground_truth": "4"},
        "completion=completion,reference=ground_truth,prompt=prompt",
    ),
    Case(
        "verl with responses",
        lambda n: {
            "data_source": "x",
            "prompt": [user(n)],
            "responses": [out(n), "no"],
            "reward_model": {"style": "rule", "ground_truth": "4"},
        },
        "completion=responses[],reference=reward_model.ground_truth,prompt=prompt",
    ),
    # Several models
    Case(
        "models side by side",
        lambda n: {
            "question": q(n),
            "answer": "4",
            "llama": {"text": out(n), "correct": 1},
            "qwen": {"text": "x", "correct": 0},
        },
        "completion=*.text,reference=answer,prompt=question,label=*.correct",
    ),
    Case(
        "models as plain columns",
        lambda n: {"question": q(n), "answer": "4", "llama": out(n, THOUGHT), "qwen": out(n)},
        "completion=llama,reference=answer,prompt=question",
        stops="llama and qwen could be, as several models",
    ),
    Case(
        "models as speaking columns",
        lambda n: {"question": q(n), "answer": "4", "llama_output": out(n, THOUGHT), "qwen_output": out(n)},
        "completion=llama_output,reference=answer,prompt=question",
        stops="llama_output and qwen_output could be",
    ),
    Case(
        "openthoughts metadata",
        lambda n: {
            "problem": q(n),
            "deepseek_reasoning": out(n, THOUGHT),
            "deepseek_solution": out(n),
            "ground_truth_solution": "4",
            "domain": "math",
        },
        "completion=deepseek_reasoning,reference=ground_truth_solution,prompt=problem",
        stops="deepseek_reasoning and deepseek_solution could be",
    ),
    Case(
        "odd spelling needs quotes",
        lambda n: {"question": q(n), "answer": "4", "Bob's, reply [1]": out(n), "Ann's $HOME reply": out(n)},
        'completion=["Bob\'s, reply [1]"],reference=answer,prompt=question',
        stops="could be, as several models",
    ),
    # Documents
    Case(
        "opencompass predictions",
        {
            str(n): {"origin_prompt": [{"role": "HUMAN", "prompt": q(n)}], "prediction": out(n), "gold": "4"}
            for n in range(4)
        },
        "completion=prediction,reference=gold,prompt=origin_prompt,id=id",
        ext="json",
    ),
    Case(
        "opencompass details",
        {
            "accuracy": 50.0,
            "details": {
                "type": "GEN",
                **{
                    str(n): {
                        "prompt": q(n),
                        "origin_prediction": out(n),
                        "predictions": "4",
                        "references": "4",
                        "correct": True,
                    }
                    for n in range(4)
                },
            },
        },
        "completion=origin_prediction,reference=references,prompt=prompt,id=id,label=correct",
        ext="json",
    ),
    Case(
        "evalplus results",
        {
            "date": "2024",
            "hash": "x",
            "eval": {
                f"HumanEval/{n}": [
                    {"task_id": f"HumanEval/{n}", "solution": f"def f{i}(): pass", "base_status": "pass"}
                    for i in (0, 1)
                ]
                for n in range(3)
            },
        },
        "completion=completions[].solution,id=id",
        ext="json",
    ),
    Case(
        "columns",
        {"question": [q(n) for n in range(4)], "answer": ["4"] * 4, "Response": [out(n) for n in range(4)]},
        "completion=Response,reference=answer,prompt=question",
        ext="json",
    ),
    Case(
        "id to list", {f"q{n}": [out(n), out(n, "so ")] for n in range(3)}, "completion=completions[],id=id", ext="json"
    ),
    Case(
        "rows in a key",
        {"model": "m", "results": [{"question": q(n), "answer": "4", "prediction": out(n)} for n in range(3)]},
        "completion=results[].prediction,reference=answer,prompt=question",
        ext="json",
    ),
    # No outputs
    Case(
        "gsm8k",
        lambda n: {"question": q(n), "answer": THOUGHT + "#### 4"},
        "",
        stops="does the file hold problems without model outputs",
    ),
    Case(
        "numinamath",
        lambda n: {
            "source": "x",
            "problem": q(n),
            "solution": THOUGHT + str(n),
            "messages": [user(n), {"role": "assistant", "content": THOUGHT + str(n)}],
        },
        "completion=messages,reference=solution,prompt=problem",
        stops="messages equals solution in all rows",
    ),
    Case(
        "dapo",
        lambda n: {
            "data_source": "math_dapo",
            "prompt": [user(n)],
            "ability": "MATH",
            "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
            "extra_info": {"index": f"u{n}"},
        },
        "",
        stops="without model outputs",
    ),
    Case(
        "skywork",
        lambda n: {
            "data_source": "train-math",
            "prompt": [user(n)],
            "ability": "math",
            "reward_model": {"ground_truth": '["4"]', "style": "rule"},
            "extra_info": {"index": n, "model_difficulty": {"m": 1}},
        },
        "",
        stops="without model outputs",
    ),
    Case(
        "math-500",
        lambda n: {
            "problem": q(n),
            "solution": THOUGHT,
            "answer": "4",
            "subject": f"s{n}",
            "level": n,
            "unique_id": f"test/{n}",
        },
        "",
        stops="without model outputs",
    ),
    Case(
        "mmlu problems",
        lambda n: {"question": q(n), "subject": "x", "choices": [str(n), "2", "3", "4"], "answer": n % 4},
        "",
        stops="without model outputs",
    ),
    Case(
        "prm800k",
        lambda n: {
            "labeler": f"l{n}",
            "timestamp": "t",
            "generation": None,
            "question": {"problem": q(n), "ground_truth_answer": "4"},
            "label": {"steps": [{"completions": [{"text": "x", "rating": 1}]}]},
        },
        "",
        stops="without model outputs",
    ),
    Case(
        "preferences",
        lambda n: {"prompt": q(n), "chosen": out(n), "rejected": "no idea " + str(n)},
        "completion=chosen,prompt=prompt",
        stops="pairs of preferences",
    ),
    Case(
        "ultrafeedback",
        lambda n: {
            "prompt": q(n),
            "prompt_id": f"x{n}",
            "chosen": [user(n), reply(n)],
            "rejected": [user(n), reply(n)],
            "messages": [user(n), reply(n)],
            "score_chosen": 8.0,
            "score_rejected": 4.0,
        },
        "completion=chosen,prompt=prompt,id=prompt_id",
        stops="pairs of preferences",
    ),
    Case(
        "mbpp",
        lambda n: {
            "text": "Write a function",
            "code": f"def f(): return {n}",
            "task_id": n,
            "test_list": ["assert f()"],
        },
        "completion=code,id=task_id",
        stops="code beside tests may be the program that is wanted",
    ),
    Case(
        "mbpp sanitized",
        lambda n: {
            "source_file": "x",
            "task_id": n,
            "prompt": q(n),
            "code": f"def f(): return {n}",
            "test_imports": [],
            "test_list": ["assert f()"],
        },
        "completion=code,prompt=prompt,id=task_id",
        stops="may be the program that is wanted",
    ),
    # Names that lie
    Case(
        "old ragas: the answer is the model's",
        lambda n: {"question": q(n), "contexts": ["x"], "answer": out(n), "ground_truth": "4"},
        "completion=answer,reference=ground_truth,prompt=question",
        stops="no field looks like a completion",
    ),
    Case(
        "output is the gold, answer the model's",
        lambda n: {"input": q(n), "output": "4", "answer": f"<think>{THOUGHT}</think>{n}"},
        "completion=answer,reference=output,prompt=input",
        stops="answer holds a model's thinking, output does not",
    ),
    Case(
        "a long answer and a short output",
        lambda n: {"prompt": q(n), "output": str(n), "answer": THOUGHT * 2 + str(n)},
        "completion=answer,reference=output,prompt=prompt",
        stops="answer is three times as long as output",
    ),
    Case(
        "the completion is the prompt",
        lambda n: {"prompt": q(n), "text": q(n), "answer": "4"},
        "completion=text,reference=answer,prompt=prompt",
        stops="text equals prompt in nearly all rows",
    ),
    Case(
        "text is the task",
        lambda n: {"text": q(n), "answer": "4"},
        "completion=text,reference=answer",
        stops="text may be the task",
    ),
    Case(
        "text is the question",
        lambda n: {"id": n, "text": f"What is {n} + 1?", "answer": "4"},
        "completion=text,reference=answer,id=id",
        stops="text may be the task",
    ),
    Case(
        "output is expected of input",
        lambda n: {"problem": q(n), "input": f"{n} 2", "output": f"{n}", "solution": f"print({n})"},
        "completion=output,reference=solution,prompt=problem",
        stops="output may be the expected output of input",
    ),
    Case(
        "response of a web service",
        lambda n: {
            "url": f"https://x.org/{n}",
            "prompt": q(n),
            "response": {"status_code": 200, "headers": {}, "content": out(n)},
        },
        "completion=response.content,prompt=prompt",
        stops="response looks like the response of a web service",
    ),
    Case(
        "a weak column that never changes",
        lambda n: {"prompt": q(n), "answer": str(n), "output": "see log"},
        "completion=output,reference=answer,prompt=prompt",
        stops="output is the same text in all",
        count=12,
    ),
    Case(
        "an extracted answer alone",
        lambda n: {"idx": n, "question": q(n), "gold": "4", "pred": str(n)},
        "completion=pred,reference=gold,prompt=question,id=idx",
        stops="no field looks like a completion",
    ),
    Case(
        "numbers alone",
        lambda n: {"question": q(n), "answer": n, "prediction": n + 1},
        "completion=prediction,reference=answer,prompt=question",
        stops="no field looks like a completion",
    ),
    Case(
        "code is a language",
        lambda n: {"prompt": q(n), "code": "en", "reply_text": out(n)},
        "completion=reply_text,prompt=prompt",
        stops="no field looks like a completion",
    ),
    Case(
        "lettered options",
        lambda n: {
            "question": q(n),
            "choices": [{"label": "A", "text": str(n)}, {"label": "B", "text": "x"}],
            "answerKey": "A",
        },
        "",
        stops="without model outputs",
    ),
    Case(
        "candidates",
        lambda n: {"question": q(n), "candidates": [out(n), "x"], "answer": "4"},
        "completion=candidates[],reference=answer,prompt=question",
        stops="no field looks like a completion",
    ),
    Case(
        "test cases",
        lambda n: {"fn_name": "f", "inputs": [str(n)], "outputs": [str(n)]},
        "completion=outputs[]",
        stops="may be the expected output of inputs",
    ),
    Case(
        "a date under a completion's name",
        lambda n: {"prompt": q(n), "generated": f"2024-01-0{n}", "output": out(n)},
        "completion=output,prompt=prompt",
        stops="output and generated could each be",
    ),
    Case(
        "a counter under a completion's name",
        lambda n: {"question": q(n), "Attempt": str(n), "Generation": str(n), "Text": out(n)},
        "completion=Text,prompt=question",
        ext="csv,",
    ),
    Case(
        "a model that is none",
        lambda n: {"model": f"Golf {n}", "prompt": q(n), "response": out(n)},
        "completion=response,prompt=prompt",
        count=12,
    ),
    Case(
        "dict of dicts, as pandas writes it",
        {
            "Question": {str(n): q(n) for n in range(4)},
            "Model Output": {str(n): out(n) for n in range(4)},
            "gold": {str(n): "4" for n in range(4)},
        },
        "completion=Model Output,reference=gold,prompt=Question",
        ext="json",
    ),
]


def write(case: Case, folder: Any) -> Any:
    rows = [case.rows(n) for n in range(1, case.count + 1)] if callable(case.rows) else case.rows
    if case.ext.startswith("csv"):
        text = io.StringIO()
        table = csv.writer(text, delimiter=case.ext[3:])
        table.writerow(rows[0])
        table.writerows(row.values() for row in rows)
        path = folder / ("a.tsv" if case.ext.endswith("\t") else "a.csv")
        path.write_text(text.getvalue(), encoding="utf-8")
        return path
    path = folder / f"a.{case.ext}"
    lines = [json.dumps(row) for row in rows] if case.ext == "jsonl" else [json.dumps(rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
def test_a_file_is_read_by_the_right_columns_or_stops(case, tmp_path):
    path = write(case, tmp_path)
    if not case.stops:
        records = read_generations(path, readers=PLAIN)
        assert records.map == FieldMap.parse([case.map]), records.map.arguments()
        assert list(records) and not records.bad
        return
    with pytest.raises(MapError) as caught:
        read_generations(path, readers=PLAIN)
    assert re.search(case.stops, str(caught.value)), str(caught.value)
    assert len(re.findall(r"^  (?:line|row) [0-9]+ ", str(caught.value), re.M)) == 3
    if not callable(case.rows):
        return
    found = guess([Row(n, case.rows(n)) for n in range(1, case.count + 1)], FieldMap())
    if not case.map:
        assert found.suggestion is None
        return
    assert found.suggestion is not None
    # As a shell hands it over.
    (argument,) = shlex.split(shlex.quote(found.suggestion.arguments()))
    records = read_generations(path, field_map=FieldMap.parse([argument]), readers=PLAIN)
    assert records.map == FieldMap.parse([case.map]), records.map.arguments()
    assert list(records) and not records.bad


def test_there_are_as_many_cases_as_shapes_that_people_have():
    assert len(CASES) >= 60
    assert len({case.name for case in CASES}) == len(CASES)
