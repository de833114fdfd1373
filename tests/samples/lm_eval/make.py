"""Run lm-evaluation-harness on three sums with a model whose answers are written here, and keep the files it logs.

pip install lm-eval==0.4.13 torch datasets        # MIT
python make.py                                    # writes samples_*.jsonl beside this script
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import lm_eval
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

HERE = Path(__file__).resolve().parent
DOCS = [
    {"question": "Ann has 3 pens and buys 4. How many has she?", "answer": "She has 3 + 4 = 7 pens.\n#### 7"},
    {"question": "A box holds 12 eggs. How many do 3 hold?", "answer": "3 * 12 = 36.\n#### 36"},
    {"question": "Tom had 1,200 and spent 150. What is left?", "answer": "1200 - 150 = 1050.\n#### 1050"},
]
# The second answer is right, but only the flexible filter sees it; the third is wrong.
ANSWERS = ["3 + 4 = 7.\n#### 7", "Three boxes hold 36 eggs", "1200 - 150 = 1150\n#### 1150"]

GENERATE = """
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_target: "{{{{answer}}}}"
repeats: {repeats}
generation_kwargs: {{until: ["Question:"], do_sample: false, temperature: 0.0}}
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    ignore_case: true
    regexes_to_ignore: [",", "\\\\$", "(?s).*#### ", "\\\\.$"]
filter_list:
  - name: strict-match
    filter:
      - {{function: regex, regex_pattern: "#### (\\\\-?[0-9\\\\.\\\\,]+)"}}
      - {{function: take_first}}
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: "(-?[$0-9.,]{{2,}})|(-?[0-9]+)"}}
      - {{function: take_first}}
"""
CHOOSE = """
task: choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["7", "36", "1050"]
doc_to_target: 0
"""


@register_model("written")
class Written(LM):
    """A model whose answers are given."""

    def generate_until(self, requests, disable_tqdm=False):
        return [ANSWERS[request.doc_id] for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(-float(request.idx + 1), False) for request in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        return [-1.0 for _ in requests]


def run(folder: Path, name: str, text: str) -> None:
    (folder / "task.yaml").write_text(text)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    task = "choices" if "choices" in text else "sums"
    results = lm_eval.simple_evaluate(
        model=Written(),
        tasks=[task],
        task_manager=manager,
        log_samples=True,
        evaluation_tracker=tracker,
        bootstrap_iters=0,
    )
    tracker.save_results_aggregated(results={}, samples=results["samples"])
    tracker.save_results_samples(task_name=task, samples=results["samples"][task])
    (written,) = (folder / "out").rglob("samples_*.jsonl")
    shutil.copy(written, HERE / name)
    shutil.rmtree(folder / "out")


def main() -> None:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        data = folder / "docs.jsonl"
        data.write_text("".join(json.dumps(doc) + "\n" for doc in DOCS))
        run(folder, "samples_sums.jsonl", GENERATE.format(data=data, repeats=1))
        run(folder, "samples_sums_repeats.jsonl", GENERATE.format(data=data, repeats=2))
        run(folder, "samples_choices.jsonl", CHOOSE.format(data=data))


main()
