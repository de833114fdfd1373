"""Write rollouts with verl's own dumping functions (Apache-2.0), taken from the package without importing the rest.

pip download --no-deps verl==0.9.1 && python -m zipfile -e verl-0.9.1-*.whl verl
python make.py verl              # writes 20.jsonl (v1 trainer) and old/20.jsonl (the older one) beside this script
"""

from __future__ import annotations

import ast
import json
import os
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ASK = "user\n{}\nassistant\n"
PENS, EGGS = ASK.format("Ann has 3 pens and buys 4. How many has she?"), ASK.format("12 eggs a box. How many in 3?")


def writer(package: Path, file: str):
    """Return the static method `_write_generations` of the only class in a file that has one."""
    source = (package / file).read_text()
    found = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == "_write_generations"]
    (function,) = found
    function.decorator_list = []
    names = {"os": os, "json": json, "np": np}
    exec(compile(ast.Module([function], []), file, "exec"), names)
    return names["_write_generations"]


def main() -> None:
    package = Path(sys.argv[1])
    new = writer(package, "verl/trainer/ppo/v1/trainer_base.py")
    rows = [  # two rollouts of one prompt, and one of another that its agent loop wrote in two parts
        (PENS, "3 + 4 = 7\n#### 7", "7", 1.0, "p1_0_0"),
        (PENS, "3 * 4 = 12\n#### 12", "7", 0.0, "p1_1_0"),
        (EGGS, "I will multiply.", "36", 0.0, "p2_0_0"),
        (EGGS + "I will multiply.\nuser\nGo on.\nassistant\n", "3 * 12 = 36\n#### 36", "36", 1.0, "p2_0_1"),
    ]
    inputs, outputs, golds, scores, uids = map(list, zip(*rows, strict=True))
    new(inputs, outputs, golds, scores, {"uid": uids}, str(HERE), 20)
    old = writer(package, "verl/trainer/ppo/ray_trainer.py")
    extra = {"acc": [True, False], "pred": ["7", "12"], "request_id": ["r1", "r2"]}
    old([PENS, PENS], outputs[:2], ["7", "7"], [1.0, -1.0], extra, str(HERE / "old"), 20)


main()
