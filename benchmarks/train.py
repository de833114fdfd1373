"""TRL's GRPO against ours: the spoken sums of examples/train_smollm2.toml, the same settings for both.

    python benchmarks/train.py MODEL_DIR --seeds 0,1,2,3,4 --steps 20 --out runs.jsonl
    python benchmarks/train.py MODEL_DIR --seeds 5 --who trl --steps 20 --out runs.jsonl      # one piece more
    python benchmarks/train.py MODEL_DIR --seeds 0 --who trl,ours,vllm --out gpu.jsonl        # a GPU, if there is one
    python benchmarks/train.py --table runs.jsonl

MODEL_DIR is SmolLM2-135M-Instruct (`python -m trainer_backend.model.smollm2` makes it). Each run is a process of its
own, the two trainers take turns, and a run that FILE has already is not repeated. Needs trl 1.16 beside `[train]`.

On a CPU TRL is tuned, so that the bar is higher than what it gives untouched: its head gets a contiguous input (torch's
CPU linear is slow on the strided slice that prefill hands it), it scores completion tokens only, as it does on a GPU,
nothing is checkpointed or logged, and both trainers get the same allocator settings. Both train in the type that the
device computes faster in; `--dtype` overrides. "vllm" is ours with vLLM as its sampler.

A run is one line: for each step its wall and CPU time, the time since training began, mean reward, share of right
answers, and share of groups without spread, counted here from the rewards themselves (`dead`) and as the trainer logs
it (`said_dead`). Loading is apart (`start`). Held-out prompts are not part of it; `rewardkit train` measures those.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

BEGAN = time.perf_counter()
ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "examples" / "spoken_sums" / "train.jsonl"
GROUP, PROMPTS, TOKENS, RATE = 8, 4, 20, 3e-4
MARKS = (0.5, 0.8, 0.95)
WINDOW = 5  # steps that a reward is averaged over
ANSWER = re.compile(r"<answer>\s*(-?\d+)\s*</answer>")
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "20000000000"}
SETTINGS: Mapping[str, Any] = {  # of both trainers, by the same names
    "learning_rate": RATE,
    "lr_scheduler_type": "constant",
    "per_device_train_batch_size": GROUP * PROMPTS,
    "num_generations": GROUP,
    "max_completion_length": TOKENS,
    "temperature": 1.0,
    "beta": 0.0,
    "loss_type": "dapo",
    "scale_rewards": "group",
}
NAMES = {"trl": "TRL", "ours": "rewardkit", "vllm": "rewardkit, vLLM"}


# ------------------------------------------------------------------------------------------------- what both are given


def problems() -> list[dict[str, Any]]:
    """Return the rows that are trained on."""
    rows = map(json.loads, DATA.read_text(encoding="utf-8").splitlines())
    return [{name: row[name] for name in ("prompt", "equation", "answer")} for row in rows]


def points(completion: str, equation: str, answer: int) -> float:
    """Return 0.2 for the form and 1 for the right answer; the same rule as examples/spoken_sums/reward.py."""
    found = ANSWER.search(completion)
    if found is None:
        return 0.0
    formed = completion.strip() == f"{equation} = <answer>{found[1]}</answer>"
    return 0.2 * formed + 1.0 * (int(found[1]) == answer)


class Diary:
    """Rewards as they are given, and a line for each step."""

    def __init__(self) -> None:
        self.given: list[float] = []
        self.rows: list[dict[str, Any]] = []
        self.began = self.last = self.cpu = 0.0

    def reward(
        self, completions: Sequence[str], equation: Sequence[str], answer: Sequence[int], **_: Any
    ) -> list[float]:
        """The reward function of both trainers, called the way TRL calls one. Whole groups come in."""
        found = [points(*one) for one in zip(completions, equation, answer, strict=True)]
        self.given += found
        return found

    def begin(self, when: float | None = None) -> None:
        """Training begins now, or began at a time of the same clock."""
        self.began = self.last = time.perf_counter() if when is None else when
        self.cpu = time.process_time() if when is None else 0.0

    def step(self) -> None:
        """A step has ended now."""
        now, groups = time.perf_counter(), [self.given[at : at + GROUP] for at in range(0, len(self.given), GROUP)]
        if len(self.given) != GROUP * PROMPTS:
            raise SystemExit(f"step {len(self.rows) + 1} scored {len(self.given)} completions, not {GROUP * PROMPTS}")
        self.rows.append(
            {
                "step": len(self.rows) + 1,
                "wall": round(now - self.last, 3),
                "since": round(now - self.began, 3),
                "cpu": round(time.process_time() - self.cpu, 3) if self.cpu else None,
                "reward": round(statistics.fmean(self.given), 4),
                "right": round(statistics.fmean(value >= 1 for value in self.given), 4),
                "dead": round(statistics.fmean(max(group) == min(group) for group in groups), 4),
            }
        )
        self.given, self.last, self.cpu = [], now, time.process_time()


def faster_type() -> str:
    """Return the type that this GPU or CPU multiplies matrices faster in."""
    import torch

    if torch.cuda.is_available():
        return "bfloat16"
    flags = Path("/proc/cpuinfo")
    known = flags.read_text(encoding="utf-8").split() if flags.exists() else []
    return "bfloat16" if {"avx512_bf16", "amx_bf16"}.intersection(known) else "float32"


# ------------------------------------------------------------------------------------------------------------- the two


def run_trl(model_dir: str, seed: int, steps: int, dtype: str, folder: str, diary: Diary) -> list[float]:
    """Train with TRL; return the share of dead groups as it says it, by step."""
    import torch
    import trl.trainer.utils
    from datasets import Dataset
    from peft import LoraConfig
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=getattr(torch, dtype))
    tokenizer = AutoTokenizer.from_pretrained(model_dir, padding_side="left")
    cpu = not torch.cuda.is_available()
    if cpu:
        model.lm_head.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(),))
        trl.trainer.utils._use_triton = lambda device: True  # asked only for whether to leave out what is not scored

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            diary.begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            diary.step()

    settings = GRPOConfig(
        output_dir=folder,
        seed=seed,
        max_steps=steps,
        **SETTINGS,
        top_p=1.0,
        top_k=0,
        bf16=dtype == "bfloat16",
        use_cpu=cpu,
        gradient_checkpointing=False,
        dataloader_pin_memory=not cpu,
        save_strategy="no",
        logging_steps=1,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        processing_class=tokenizer,
        reward_funcs=diary.reward,
        args=settings,
        train_dataset=Dataset.from_list(problems()),
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[Clock()],
    )
    trainer.train()
    return [line["frac_reward_zero_std"] for line in trainer.state.log_history if "frac_reward_zero_std" in line]


def run_vllm(model_dir: str, seed: int, steps: int, dtype: str, folder: str, diary: Diary) -> list[float]:
    """Train with rewardkit and vLLM."""
    return run_ours(model_dir, seed, steps, dtype, folder, diary, engine="vllm")


def run_ours(
    model_dir: str, seed: int, steps: int, dtype: str, folder: str, diary: Diary, engine: str = "transformers"
) -> list[float]:
    """Train with rewardkit; return the share of dead groups as it says it, by step."""
    from trainer_backend import GRPOConfig, GRPOTrainer

    said = []

    def clock(step: int, metrics: Mapping[str, float]) -> None:
        if step == 1:  # it loads and prepares within train(), which TRL does before
            diary.begin(time.perf_counter() - metrics["time/step"])
        diary.step()
        said.append(metrics["frac_reward_zero_std"])

    settings = GRPOConfig(
        model=model_dir,
        dtype=dtype,
        engine=engine,
        dir=folder,
        seed=seed,
        max_steps=steps,
        **SETTINGS,
        r=16,
        lora_alpha=32,
        target_modules="all-linear",
        save_steps=steps,
    )
    trainer = GRPOTrainer(reward_funcs=diary.reward, args=settings, train_dataset=problems(), callbacks=[clock])
    trainer.train(overwrite=True)
    return said


RUNS: Mapping[str, Callable[[str, int, int, str, str, Diary], list[float]]] = {
    "trl": run_trl,
    "ours": run_ours,
    "vllm": run_vllm,
}


def run_one(given: argparse.Namespace) -> None:
    """Do one run in this process, and print it as one line of JSON."""
    import torch

    torch.set_num_threads(given.threads)
    dtype, diary = given.dtype or faster_type(), Diary()
    with tempfile.TemporaryDirectory() as folder:
        said = RUNS[given.run](given.model, given.seed, given.steps, dtype, folder, diary)
    for row, share in zip(diary.rows, said, strict=True):
        row["said_dead"] = round(share, 4)
    line = {
        "who": given.run,
        "seed": given.seed,
        "steps": given.steps,
        "threads": given.threads,
        "dtype": dtype,
        "start": round(diary.began - BEGAN, 2),
        "load": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "peak_gb": round(torch.cuda.max_memory_allocated() / 1e9, 3) if torch.cuda.is_available() else None,
        "rows": diary.rows,
    }
    print(json.dumps(line), flush=True)


# --------------------------------------------------------------------------------------------------------- many and all


def run_all(given: argparse.Namespace) -> None:
    """Run what is asked for and not in the file yet, each in a process, the trainers in turn."""
    out = Path(given.out)
    done = {(one["who"], one["seed"], one["steps"]) for one in lines(out)} if out.exists() else set()
    who = given.who.split(",")
    for at, seed in enumerate(int(text) for text in given.seeds.split(",")):
        for one in who if at % 2 == 0 else reversed(who):  # neither always goes first
            if (one, seed, given.steps) in done:
                continue
            command = [sys.executable, __file__, given.model, "--run", one, "--seed", str(seed)]
            command += ["--steps", str(given.steps), "--threads", str(given.threads)]
            command += ["--dtype", given.dtype] if given.dtype else []
            path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
            room = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": path, **({} if given.plain else ALLOCATOR)}
            done_process = subprocess.run(command, env=room, stdout=subprocess.PIPE, text=True, check=False)
            found = [line for line in done_process.stdout.splitlines() if line.startswith('{"who"')]
            if done_process.returncode or not found:
                raise SystemExit(f"{NAMES[one]}, seed {seed}: exit code {done_process.returncode}")
            with out.open("a", encoding="utf-8") as file:
                file.write(found[-1] + "\n")
            rows = json.loads(found[-1])["rows"]
            print(f"{NAMES[one]:11} seed {seed}: {rows[-1]['since']:6.1f} s, last {rows[-1]['reward']:.3f}", flush=True)


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the runs of a file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def reached(run: Mapping[str, Any], mark: float) -> float | None:
    """Return the seconds of training until the mean reward of the last five steps is `mark`; None: never."""
    rows = run["rows"]
    for at in range(WINDOW, len(rows) + 1):
        if statistics.fmean(row["reward"] for row in rows[at - WINDOW : at]) >= mark:
            return float(rows[at - 1]["since"])
    return None


def seconds_a_step(run: Mapping[str, Any], clock: str = "wall") -> float:
    """Return the mean wall or CPU time of a step, the first left out."""
    return statistics.fmean(row[clock] for row in run["rows"][1:])


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return the median and the range of values."""
    if not values:
        return "-"
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures of all runs, a column for each trainer: median and range over seeds."""
    columns = {who: [run for run in runs if run["who"] == who] for who in NAMES if any(r["who"] == who for r in runs)}
    figures: list[tuple[str, Callable[[Sequence[Mapping[str, Any]]], str]]] = [
        ("seeds", lambda found: ", ".join(str(run["seed"]) for run in found)),
        (
            "steps, type, threads",
            lambda found: "; ".join(sorted({"{steps}, {dtype}, {threads}".format(**run) for run in found})),
        ),
        ("seconds a step after the first", lambda found: spread([seconds_a_step(run) for run in found])),
        ("CPU seconds a step after the first", lambda found: spread([seconds_a_step(run, "cpu") for run in found])),
        ("seconds of all steps", lambda found: spread([run["rows"][-1]["since"] for run in found], ".0f")),
        ("seconds before the first (imports, loading)", lambda found: spread([run["start"] for run in found], ".0f")),
    ]
    for mark in MARKS:
        figures.append((f"seconds until the {WINDOW}-step mean reward is {mark:g}", _until(mark)))
    figures += [
        (
            "peak of torch's device memory, GB",
            lambda found: spread([run["peak_gb"] for run in found if run.get("peak_gb")]),
        ),
        (f"reward, mean of the last {WINDOW} steps", _last("reward")),
        ("the same, share right", _last("right")),
        ("groups without spread, steps 11 on", _from_eleven("dead")),
        ("the same, as the trainer says it", _from_eleven("said_dead")),
    ]
    rows = [["", *(NAMES[who] for who in columns)]]
    rows += [[name, *(figure(found) for found in columns.values())] for name, figure in figures]
    text = ["| " + " | ".join(row) + " |" for row in rows]
    text.insert(1, "| --- " * len(rows[0]) + "|")
    if len(columns) > 1:
        text.append(_overlap(columns))
    return "\n".join(text)


def _settings(run: Mapping[str, Any]) -> str:
    return f"{run['steps']}, {run['dtype']}, {run['threads']}"


def _until(mark: float) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    def told(found: Sequence[Mapping[str, Any]]) -> str:
        times = [when for run in found if (when := reached(run, mark)) is not None]
        missed = f", {len(found) - len(times)} never" if len(times) < len(found) else ""
        return spread(times, ".1f") + missed

    return told


def _last(name: str) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    return lambda found: spread([_mean(run["rows"][-WINDOW:], name) for run in found], ".3f")


def _from_eleven(name: str) -> Callable[[Sequence[Mapping[str, Any]]], str]:
    return lambda found: spread([_mean(run["rows"][10:], name) for run in found if len(run["rows"]) > 10])


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return statistics.fmean(row[name] for row in rows)


def _overlap(columns: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    ends = {who: [_mean(run["rows"][-WINDOW:], "reward") for run in found] for who, found in columns.items()}
    apart = max(map(min, ends.values())) > min(map(max, ends.values()))
    return f"\nThe ranges of the final reward {'do not overlap' if apart else 'overlap'}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", help="folder of SmolLM2-135M-Instruct")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--who", default="trl,ours")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="else what the device is faster in")
    parser.add_argument("--plain", action="store_true", help="without the allocator settings, for both")
    parser.add_argument("--out", default="train.jsonl", help="lines are appended to it")
    parser.add_argument("--table", type=Path, metavar="FILE", help="print the figures of FILE, run nothing")
    parser.add_argument("--run", choices=list(RUNS), help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.table is not None:
        print(table(lines(given.table)))
    elif given.model is None:
        parser.error("MODEL_DIR is missing")
    elif given.run is not None:
        run_one(given)
    else:
        run_all(given)


if __name__ == "__main__":
    main()
