"""`rewardkit plan --model NAME`: hand what was said to the trainer's planner, and print its answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

import click

from rewardkit.targets import load_target
from rewardkit.training import PlanOptions

if TYPE_CHECKING:
    from rewardkit.training import Planner

PLANNER = "trainer_backend.plan.command:answer"
"""Text, since the core never imports the trainer. It plans for the backend `grpo`, and needs no torch."""

_EPILOG = """\b
Examples:
  rewardkit plan --model Qwen/Qwen2.5-1.5B-Instruct --context 20480
  rewardkit plan --model llama-3.1-8b --context 20480 --load-in-4bit --gpu 4090
  rewardkit plan --model runs/base --context 4096 --generations 16 --fit-in 12GB
  rewardkit plan --model qwen3-8b --context 8192 --engine vllm --json
"""


@click.command("plan", epilog=_EPILOG)
@click.option(
    "--model", required=True, metavar="DIR|NAME",
    help="A folder with config.json, the file, a model in the hub's cache, or a well-known name.",
)  # fmt: skip
@click.option(
    "--context", required=True, type=click.IntRange(2), metavar="N",
    help="Tokens of the longest row, prompt and completion.",
)  # fmt: skip
@click.option(
    "--generations", type=click.IntRange(2), default=8, show_default=True, metavar="G",
    help="Completions of a prompt; a step is one prompt.",
)  # fmt: skip
@click.option(
    "--prompt", type=click.IntRange(1), metavar="N",
    help="Tokens of the prompt in it. Default: 512, or a quarter of a small context.",
)  # fmt: skip
@click.option("--load-in-4bit", is_flag=True, help="Weights as NF4.")
@click.option("--rank", type=click.IntRange(1), metavar="R", help="Rank of the adapter. Default: 16.")
@click.option(
    "--dtype", type=click.Choice(["bfloat16", "float16", "float32"]), default="bfloat16", show_default=True,
    help="Of the weights.",
)  # fmt: skip
@click.option(
    "--engine", type=click.Choice(["transformers", "vllm"]), default="transformers", show_default=True,
    help="What samples.",
)  # fmt: skip
@click.option("--fit-in", metavar="GB", help="Memory to stay in, such as 12GB; exit code 1 when it is missed.")
@click.option("--gpu", metavar="CARD", help="A card, such as h100 or 4090. Default: h200, where rates were measured.")
@click.option("--cpu", is_flag=True, help="Plan for a CPU, and for the memory that is free here.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
def command(
    model: str,
    context: int,
    generations: int,
    prompt: int | None,
    load_in_4bit: bool,
    rank: int | None,
    dtype: str,
    engine: Literal["transformers", "vllm"],
    fit_in: str | None,
    gpu: str | None,
    cpu: bool,
    as_json: bool,
) -> int:
    """Say what memory and time GRPO with LoRA will take, without a GPU, weights or torch.

    Every term with its formula; which way of training is chosen and why; the peak of training and of sampling; an
    estimate of the time of an update; the longest context that fits. Where nothing fits: settings that would.
    docs/memory.md explains the table.
    """
    options = PlanOptions(
        model=model,
        context=context,
        generations=generations,
        prompt=prompt,
        load_in_4bit=load_in_4bit,
        rank=rank,
        dtype=dtype,
        engine=engine,
        fit_in=fit_in,
        gpu=gpu,
        cpu=cpu,
        json=as_json,
    )
    text, code = cast("Planner", load_target(PLANNER))(options)
    click.echo(text)
    return code
