"""Write an evaluation dump with SkyRL's own function (Apache-2.0), taken from the package without importing the rest.

pip download --no-deps skyrl==0.3.0 && python -m zipfile -e skyrl-0.3.0-*.whl skyrl
python make.py skyrl             # writes openai_gsm8k.jsonl and aggregated_results.jsonl beside this script
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from types import SimpleNamespace

HERE = Path(__file__).resolve().parent
PENS = "<|im_start|>user\nAnn has 3 pens and buys 4. How many has she?<|im_end|>\n<|im_start|>assistant\n"


def functions(package: Path, *names: str) -> dict:
    source = (package / "skyrl/train/utils/trainer_utils.py").read_text()
    wanted = [node for node in ast.parse(source).body if getattr(node, "name", "") in names]
    for node in wanted:
        node.returns = None
        for argument in node.args.args:
            argument.annotation = None
    known = {"json": json, "logger": SimpleNamespace(info=print)}
    exec(compile(ast.Module(wanted, []), "trainer_utils.py", "exec"), known)
    return known


def main() -> None:
    known = functions(Path(sys.argv[1]), "dump_per_dataset_eval_results", "sanitize_data_source")
    replies = ["3 + 4 = 7\n#### 7<|im_end|>", "3 * 4 = 12\n#### 12<|im_end|>", "Let me think about pens,"]
    spec = {"reward_spec": {"method": "rule", "ground_truth": "7"}, "extra_info": {"index": 0, "split": "test"}}
    known["dump_per_dataset_eval_results"](
        HERE,
        SimpleNamespace(decode=lambda text: text),  # a tokenizer whose ids are the text
        {
            "prompt_token_ids": [PENS] * 3,
            "response_ids": replies,
            "rewards": [1.0, 0.0, [0.0, 0.0]],
            "stop_reasons": ["stop", "stop", "length"],
        },
        ["openai/gsm8k"] * 3,
        ["gsm8k"] * 3,
        [spec] * 3,
        {"eval/openai_gsm8k/avg_score": 0.333, "eval/all/avg_score": 0.333},
    )


main()
