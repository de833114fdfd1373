"""`rewardkit judge_costs FILE`: what the runs in a ledger cost."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from rewardkit_judge.ledger import totals


@click.command("judge_costs")
@click.argument("ledger", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="One JSON object a run and model.")
def command(ledger: Path, as_json: bool) -> None:
    """Sum up a judge's ledger: calls, tokens and cost, a line a run and model."""
    for total in totals(ledger):
        if as_json:
            click.echo(json.dumps(asdict(total)))
            continue
        tokens = f"{total.prompt_tokens:,} + {total.completion_tokens:,} tokens"
        cost = f"cost {total.cost:.6f}" + (f", {total.unpriced:,} calls without a price" if total.unpriced else "")
        started, run, model = total.started[:19], total.run, total.model.encode("unicode_escape").decode()
        click.echo(f"{started}  run {run}  {model}  {total.calls:,} calls, {total.failed:,} failed  {tokens}  {cost}")
