"""The maps of all real files of the shared data, as a table: a change of the rules must not change one unseen.

Readers of tools' own formats are left out, so that what is tested is the guess.
"""

from __future__ import annotations

import pytest

from rewardkit.errors import MapError
from rewardkit.records import FieldMap, read_generations
from rewardkit.records.csv_table import READER as CSV
from rewardkit.records.json_document import READER as DOCUMENT
from rewardkit.records.jsonl import READER as JSONL

PLAIN = {"jsonl": JSONL, "json": DOCUMENT, "csv": CSV}

MATH = "completion=code[],reference=gt,prompt=question,id=idx,label=score[]"
GYM = "reference=expected_answer,prompt=question,label=completions[].score"
TORTURE = "completion=completion,reference=answer,prompt=prompt,id=id,label=label"
GYM_TASKS = (
    "base_conversion",
    "chain_sum",
    "countdown",
    "fraction_simplification",
    "gsm_symbolic",
    "knights_knaves",
    "letter_counting",
    "polynomial_equations",
    "word_sorting",
)

MAPS = {
    "cruxeval/scored_codellama-7b_output.json": "completion=raw_generations[],id=id",
    "gsm8k/example_model_solutions.jsonl": (
        "completion=*.solution,reference=ground_truth,prompt=question,label=*.is_correct"
    ),
    "gsm8k_tora/tora-code-34b-v1.0.jsonl": "completion=code[],reference=gt,prompt=question,id=idx",
    "humaneval/example_samples.jsonl": "completion=completion,id=task_id",
    "humaneval_chat/samples.jsonl": "completion=completion,id=task_id",
    "humaneval_codegen16b/samples.jsonl": "completion=samples[],prompt=prompt,id=task_id",
    "mbpp_samples/samples.jsonl": "completion=completion,id=task_id",
    "math_groups8/qwen_math_cot_8x.jsonl": MATH,
    **{
        f"grpo_groups/amc23_step_{step}.json": (
            f"completion=categories[].datasets[].results[].completions[].full_model_response,{GYM}"
        )
        for step in (400, 800)
    },
    **{
        f"math_runs/qwen2.5-3b-{run}/{task}.jsonl": MATH
        for run in ("instruct", "rlft")
        for task in ("gsm8k", "amc23", "gaokao2023en", "aqua")
    },
    **{
        f"reasoning_gym/{model}/{task}.json": f"completion=results[].completions[].full_model_response,{GYM}"
        for model in ("deepseek-r1", "mistral-small-3.1-24b")
        for task in GYM_TASKS
    },
    **{
        f"torture/{name}": TORTURE
        for name in (
            "bad_lines.jsonl",
            "blank_lines.jsonl",
            "bom.jsonl",
            "crlf.jsonl",
            "duplicate_ids.jsonl",
            "gz.jsonl.gz",
            "huge_line.jsonl.gz",
            "missing_gold.jsonl",
            "nan_values.jsonl",
            "null_completion.jsonl",
            "ragged_groups.jsonl",
            "resultats été 1.jsonl",
            "rich_markup.jsonl",
        )
    },
    "torture/chat_completion.jsonl": "completion=completion,reference=answer,prompt=prompt,id=id",
}

STOPS = {
    "adjudicated/disagreements.jsonl": "no field looks like a completion",  # `pred` is not what is to be judged
    "cruxeval/cruxeval.jsonl": "output and code could each be the completion",
    "gsm8k/test.jsonl": "without model outputs",
    "gsm8k/train.jsonl": "without model outputs",
    "humaneval/HumanEval.jsonl.gz": "without model outputs",
    "humaneval/example_problem.jsonl": "without model outputs",
    "humaneval_chat/labels.jsonl": "without model outputs",
    "humaneval_codegen16b/labels.jsonl": "without model outputs",
    "math/math500_test.jsonl": "without model outputs",
    "math_runs/qwen2.5-3b-instruct/gsm8k.metrics.json": "without model outputs",
    "mbpp/mbpp.jsonl": "code beside tests may be the program that is wanted",
    "mbpp/mbpp_functions.jsonl": "without model outputs",
    "mbpp_samples/labels.jsonl": "without model outputs",
}


@pytest.mark.parametrize("name", MAPS)
def test_a_real_file_gets_its_map_and_no_note(name, shared):
    records = read_generations(shared(f"data/{name}"), readers=PLAIN)
    assert records.map == FieldMap.parse([MAPS[name]]), records.map.arguments()


@pytest.mark.parametrize("name", STOPS)
def test_a_real_file_without_outputs_stops(name, shared):
    with pytest.raises(MapError, match=STOPS[name]):
        read_generations(shared(f"data/{name}"), readers=PLAIN)
