"""`rewardkit compare A B`: two runs on the same problems, or two rewards on the same completions."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import click
import msgspec

from rewardkit.display import visible
from rewardkit.errors import InputError, UsageError, nearest
from rewardkit.plugins import readers
from rewardkit.records import encode_json
from rewardkit.report.comparison import (
    Change,
    Comparison,
    Joined,
    Side,
    common_rewards,
    compare,
    in_words,
    join,
    name_of,
    render,
    render_agreement,
)
from rewardkit.report.terminal import is_terminal
from rewardkit.saved import (
    SavedRun,
    ScoredRow,
    chosen_rows,
    open_model,
    open_texts,
    prompt_key,
    prompt_keys,
    read_side,
    reward_pair,
)

SCHEMA = "rewardkit.comparison/1"
_LOOKED_AT = 200  # generations of either input looked at for whether equal ids ask the same

_EPILOG = """\b
Examples:
  rewardkit compare runs/base-1f3a09c2 runs/rl-9b20c1de
  rewardkit compare runs/base-1f3a09c2 runs/rl-9b20c1de -r gsm8k --fail-on-loss
  rewardkit compare runs/side-by-side-77ab01c2:llama runs/side-by-side-77ab01c2:qwen
  rewardkit compare runs/base-1f3a09c2 --rewards gsm8k,numeric
"""


@click.command("compare", epilog=_EPILOG)
@click.argument("a", metavar="A")
@click.argument("b", metavar="[B]", required=False)
@click.option(
    "-r", "--reward", "rewards", multiple=True, metavar="NAME|NAME_A,NAME_B",
    help="Which reward to compare, or one of A with another of B. Default: all that both have.",
)  # fmt: skip
@click.option("--rewards", "two", metavar="X,Y", help="Compare two rewards of one run.")
@click.option("--limit", type=click.IntRange(0), default=5, show_default=True, help="Changed completions to list.")
@click.option("--fail-on-loss", is_flag=True, help="Exit code 1 when the whole interval of a difference is below 0.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparison as JSON.")
def command(
    a: str, b: str | None, rewards: tuple[str, ...], two: str | None, limit: int, fail_on_loss: bool, as_json: bool
) -> int:
    """Compare run B with run A on the problems that both have scored.

    A and B are run folders (RUN:MODEL is one model of a run). The difference is B - A: its mean over problems, the
    95 % interval, problems won, lost and tied, and the sign test. Rewards on the same completions also get their 2 x 2
    table, agreement and Cohen's kappa.
    """
    if two is not None:
        if b is not None:
            raise UsageError("--rewards compares two rewards of one run; for two runs, give -r NAME_A,NAME_B")
        rewards = (*rewards, two)
    elif b is None and not rewards:
        raise UsageError("one run alone needs two rewards to compare: --rewards X,Y; or give a second run")
    report = _Report(*_opened(a, b), list(rewards), limit)
    report.make()
    if as_json:
        click.echo(msgspec.json.format(encode_json(report.to_dict()), indent=1).decode())
        for note in report.notes:
            click.echo(f"rewardkit: {visible(note, 400)}", err=True)
    else:
        width = shutil.get_terminal_size((120, 24)).columns if is_terminal(sys.stdout) else 160
        for line in report.lines(width):
            click.echo(line)
    return _exit_code(report, fail_on_loss)


def _opened(a: str, b: str | None) -> tuple[SavedRun, str | None, SavedRun, str | None]:
    run_a, model_a = open_model(a)
    return (run_a, model_a, *((run_a, model_a) if b is None else open_model(b)))


@dataclass
class _Pair:
    """One model of A against one of B: how they were joined, and what came out for each reward."""

    joined: Joined
    comparisons: list[Comparison]


@dataclass
class _Report:
    """Reads both runs, compares, and says what came out."""

    run_a: SavedRun
    model_a: str | None
    run_b: SavedRun
    model_b: str | None
    asked: list[str]
    limit: int
    notes: list[str] = field(default_factory=list)
    pairs: list[_Pair] = field(default_factory=list)
    rows_a: dict[int, ScoredRow] = field(default_factory=dict)
    rows_b: dict[int, ScoredRow] = field(default_factory=dict)

    @property
    def same_input(self) -> bool:
        """Whether both have scored the same completions."""
        known = self.run_a.input_identity
        return self.run_a is self.run_b or (known is not None and known == self.run_b.input_identity)

    def make(self) -> None:
        """Read and compare.

        Raises:
            InputError: The runs have no problem in common.
            UsageError: A run lacks a reward or model that was asked for.
        """
        for run in (self.run_a, self.run_b)[: 1 if self.run_a is self.run_b else 2]:
            if not run.finished:
                self.notes.append(f"{run.name} is unfinished: only what it has scored so far is compared")
        names = self._rewards()
        side_a = read_side(self.run_a, list(dict.fromkeys(x for x, _ in names)))
        if self.run_a is self.run_b:
            for name in (y for _, y in names if y not in side_a.values):
                side_a.values[name] = read_side(self.run_a, [name]).values[name]
            side_b = side_a
        else:
            side_b = read_side(self.run_b, list(dict.fromkeys(y for _, y in names)))
        self._warn_of_other_hashes(names)
        for model_a, model_b in self._models(side_a, side_b):
            self._compare(side_a, side_b, model_a, model_b, names)
        changes = [one for pair in self.pairs for found in pair.comparisons for one in (*found.won, *found.lost)]
        self.rows_a = chosen_rows(self.run_a, (one.row_a for one in changes))
        self.rows_b = chosen_rows(self.run_b, (one.row_b for one in changes))

    def _rewards(self) -> list[tuple[str, str]]:
        if self.asked:
            names = [reward_pair(text, self.run_a.rewards, self.run_b.rewards) for text in self.asked]
            if self.run_a is self.run_b and self.model_a == self.model_b:
                same = next((x for x, y in names if x == y), None)
                if same is not None:
                    raise UsageError(f"{same!r} compared with itself is always tied; give two rewards: --rewards X,Y")
            return list(dict.fromkeys(names))
        shared = common_rewards(self.run_a.rewards, self.run_b.rewards)
        if not shared:
            raise UsageError(
                f"the runs have no reward in common: A has {', '.join(self.run_a.rewards)}, B has "
                f"{', '.join(self.run_b.rewards)}; -r NAME_A,NAME_B compares one with the other"
            )
        return [(name, name) for name in shared]

    def _warn_of_other_hashes(self, names: Sequence[tuple[str, str]]) -> None:
        hashes_a, hashes_b = self.run_a.config.get("hash", {}), self.run_b.config.get("hash", {})
        for x, y in names:
            if x == y and x in hashes_a and y in hashes_b and hashes_a[x] != hashes_b[y]:
                self.notes.append(f"{x} is not the same reward in A and B: its code, version or options differ")

    def _models(self, side_a: Side, side_b: Side) -> list[tuple[str | None, str | None]]:
        found_a = _models_of(side_a, self.model_a, "A", self.run_a)
        found_b = _models_of(side_b, self.model_b, "B", self.run_b)
        if self.model_a is None and self.model_b is None:
            shared = [model for model in found_a if model in found_b]
            if shared:
                for letter, models in (("A", found_a), ("B", found_b)):
                    alone = [_model(model) for model in models if model not in shared]
                    if alone:
                        self.notes.append(f"only {letter} has the model{'s' * (len(alone) > 1)} {', '.join(alone)}")
                return [(model, model) for model in shared]
        if len(found_a) == len(found_b) == 1:
            return [(found_a[0], found_b[0])]
        for model in found_a if len(found_b) == 1 else []:
            if model == found_b[0]:
                return [(model, model)]
        for model in found_b if len(found_a) == 1 else []:
            if model == found_a[0]:
                return [(model, model)]
        raise UsageError(
            f"which model is compared with which? A has {_listed(found_a)}, B has {_listed(found_b)}; write RUN:MODEL"
        )

    def _compare(
        self,
        side_a: Side,
        side_b: Side,
        model_a: str | None,
        model_b: str | None,
        names: Sequence[tuple[str, str]],
    ) -> None:
        prompts = _Prompts(self, side_a, side_b)
        joined = join(side_a, side_b, model_a, model_b, prompts)
        if joined is None:
            raise InputError(self._nothing_in_common(prompts.why_not))
        if joined.by == "id":
            self._check_tasks(joined, same_model=model_a == model_b)
        if joined.ambiguous:
            self.notes.append(f"{joined.ambiguous:,} ids name more than one problem and are left out")
        found = []
        for x, y in names:
            one = Comparison(model_a, model_b, x, y)
            found.append(compare(joined, side_a.values[x], side_b.values[y], one, changes=self.limit))
        self.pairs.append(_Pair(joined, found))

    def _nothing_in_common(self, why_not: str) -> str:
        some = []
        for run in (self.run_a, self.run_b):
            ids = [visible(repr(row.records[0].id), 40) for row, _ in zip(run.rows(), range(3), strict=False)]
            some.append(", ".join(ids) or "none yet")
        hint = f" (prompts cannot be compared: {why_not})" if why_not else ""
        return f"the runs have no problem in common{hint}: ids of A are such as {some[0]}; of B {some[1]}"

    def _check_tasks(self, joined: Joined, *, same_model: bool) -> None:
        """Say where equal ids stand for other tasks; ids that only count from 0 prove nothing."""
        problems = len(set(joined.problem_a))
        if same_model:
            if joined.other_task:
                self.notes.append(
                    f"joined by id: {joined.other_task:,} of {problems:,} problems differ in prompt, reference or step"
                )
            return
        try:
            prompts_a, prompts_b = _first_prompts(self.run_a), _first_prompts(self.run_b)
        except InputError:
            return
        shared = prompts_a.keys() & prompts_b.keys()
        other = sum(prompts_a[key].isdisjoint(prompts_b[key]) for key in shared)
        if other:
            self.notes.append(f"joined by id: {other:,} of the first {len(shared):,} problems have another prompt")

    # ---------------------------------------------------------------------------------------------------------- output

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as JSON values."""
        return {
            "schema": SCHEMA,
            "a": self.run_a.name,
            "b": self.run_b.name,
            "same_input": self.same_input,
            "notes": self.notes,
            "models": [self._pair_dict(pair) for pair in self.pairs],
        }

    def _pair_dict(self, pair: _Pair) -> dict[str, Any]:
        joined = pair.joined
        first = pair.comparisons[0]
        return {
            "a": first.model_a,
            "b": first.model_b,
            "joined_by": joined.by,
            "paired_by": "completion" if joined.pairwise else "problem mean",
            "only_a": {"problems": joined.only_a[0], "completions": joined.only_a[1]},
            "only_b": {"problems": joined.only_b[0], "completions": joined.only_b[1]},
            "ambiguous_ids": joined.ambiguous,
            "rewards": [self._comparison_dict(one, joined) for one in pair.comparisons],
        }

    def _comparison_dict(self, one: Comparison, joined: Joined) -> dict[str, Any]:
        held = {name: value for name, value in one.to_dict().items() if name not in ("model_a", "model_b")}
        for name, changes in (("won", one.won), ("lost", one.lost)):
            held[name] = [self._change_dict(change, joined) for change in changes]
        return held

    def _change_dict(self, change: Change, joined: Joined) -> dict[str, Any]:
        a, b = self.rows_a[change.row_a].records[0], self.rows_b[change.row_b].records[0]
        held: dict[str, Any] = {"id": a.id, "a": change.a, "b": change.b}
        if b.id != a.id:
            held["id_b"] = b.id
        return held | ({"index": a.index} if joined.pairwise else {})

    def lines(self, width: int) -> list[str]:
        """Return what is printed."""
        lines = [f"A  {visible(self.run_a.name, 300)}", f"B  {visible(self.run_b.name, 300)}"]
        lines += [f"!  {visible(note, 400)}" for note in self.notes]
        for pair in self.pairs:
            lines += ["", *self._joined_lines(pair), *render(pair.comparisons, width=width)]
            for one in pair.comparisons:
                lines += self._left_out(one)
            for one in pair.comparisons:
                if self.same_input and one.model_a == one.model_b:
                    lines += ["", *render_agreement(one)]
                lines += self._changed(one, pair.joined)
        return lines

    def _joined_lines(self, pair: _Pair) -> list[str]:
        joined, first = pair.joined, pair.comparisons[0]
        problems = sum(1 for _ in _distinct(joined.problem_a))
        how = {"group": "id, prompt and reference", "id": "id", "prompt": "prompt"}[joined.by]
        paired = "completion by completion" if joined.pairwise else "by the mean of each problem, as the counts differ"
        head = f"{problems:,} problem{'s' * (problems != 1)} in both, joined by {how}, paired {paired}"
        if first.model_a != first.model_b:
            head = f"{_model(first.model_a)} and {_model(first.model_b)}: {head}"
        elif first.model_a is not None:
            head = f"{_model(first.model_a)}: {head}"
        lines = [head]
        for letter, (count, completions) in (("A", joined.only_a), ("B", joined.only_b)):
            if count:
                lines.append(f"only in {letter}: {count:,} problem{'s' * (count != 1)} ({completions:,} completions)")
        return lines

    @staticmethod
    def _left_out(one: Comparison) -> list[str]:
        if not one.unscored_a and not one.unscored_b:
            return []
        text = f"not scored and left out: {one.unscored_a:,} completions of A, {one.unscored_b:,} of B"
        whole = f"; {one.unscored_problems:,} whole problems" if one.unscored_problems else ""
        return [f"  {name_of(one)}: {text}{whole}"]

    def _changed(self, one: Comparison, joined: Joined) -> list[str]:
        if not one.won and not one.lost:
            return []
        what = f"{'completion' if joined.pairwise else 'problem'}{'s' * (one.rose != 1)}"
        lines = ["", f"  {name_of(one)}: {one.rose:,} {what} rose, {one.fell:,} fell"]
        for word, changes in (("rose", one.won), ("fell", one.lost)):
            for change in changes:
                a, b = self.rows_a[change.row_a].records[0], self.rows_b[change.row_b].records[0]
                other = f" ({visible(repr(b.id), 60)} in B)" if b.id != a.id else ""
                index = f"   index {a.index}" if joined.pairwise else ""
                lines.append(
                    f"    {word}  id {visible(repr(a.id), 60)}{other}{index}   {change.a:.6g} -> {change.b:.6g}"
                )
        return lines


class _Prompts:
    """Fills in the hashes of prompts when they are asked for, and keeps why that did not work."""

    def __init__(self, report: _Report, side_a: Side, side_b: Side) -> None:
        self.report = report
        self.sides = (side_a, side_b)
        self.why_not = ""

    def __call__(self) -> bool:
        try:
            for side, run in zip(self.sides, (self.report.run_a, self.report.run_b), strict=True):
                if not side.prompts:
                    side.prompts = prompt_keys(run, readers())
        except InputError as problem:
            self.why_not = str(problem)
        return not self.why_not


def _first_prompts(run: SavedRun) -> Mapping[object, set[int]]:
    records = open_texts(run, readers())
    found: dict[object, set[int]] = {}
    for generation, _ in zip(records, range(_LOOKED_AT), strict=False):
        id = generation.sample.id
        found.setdefault((type(id), id), set()).add(prompt_key(generation))
    return found


def _distinct(items: Sequence[int]) -> Any:
    previous = None
    for item in items:
        if item != previous:
            yield item
        previous = item


def _models_of(side: Side, wanted: str | None, letter: str, run: SavedRun) -> list[str | None]:
    if wanted is None:
        if not side.names:
            raise InputError(f"{run.name} has no scores")
        return side.names
    if wanted not in side.names:
        names = [name for name in side.names if name is not None]
        raise UsageError(
            f"{letter} has no model {wanted!r}{nearest(wanted, names) or ';'} it has {_listed(side.names)}"
        )
    return [wanted]


def _model(name: str | None) -> str:
    return "no model" if name is None else visible(name, 60)


def _listed(models: Sequence[str | None]) -> str:
    return ", ".join(map(_model, models[:10])) + (f" and {len(models) - 10} more" if len(models) > 10 else "")


def _exit_code(report: _Report, fail_on_loss: bool) -> int:
    if not fail_on_loss:
        return 0
    code = 0
    for pair in report.pairs:
        for one in pair.comparisons:
            if one.verdict == "lower":
                click.echo(f"rewardkit: a loss: {visible(name_of(one, True), 200)}: {in_words(one)}", err=True)
                code = 1
            elif one.verdict in ("too few problems", "nothing scored"):
                why = f"{in_words(one)}, so --fail-on-loss cannot tell"
                click.echo(f"rewardkit: {visible(name_of(one, True), 200)}: {why}", err=True)
    return code
