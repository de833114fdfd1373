"""What in a summary deserves a look, worst first: figures that are doubtful, and what to do about it.

Everything is derived from `summary.json`, so `show` and `merge` can say it again without scoring anything.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from typing import Any, NamedTuple

from rewardkit.display import visible
from rewardkit.report.text import counted
from rewardkit.stats import alike
from rewardkit.types import MACHINE_REASONS, REFERENCE_REASONS

MAX_NOTICES = 5
MAX_WARNINGS = 50

ENOUGH = 30
"""Lengths are compared from this many right and this many wrong completions on."""

SHORTER, LONGER = 0.8, 1.25
"""Ratios between these are no difference in length."""

SLOW = 1.0
"""Seconds from which on a reward that is slower than all others together is told of."""

RANKS = (
    "bad_rows", "suspect", "errors", "abstained", "constant", "constant_part", "label", "length", "never_solved",
    "no_spread", "duplicate_ids", "timeouts", "slow", "cut_off", "rows_left",
)  # fmt: skip
"""The codes, worst first."""


class Warned(NamedTuple):
    """One thing to look at.

    Attributes:
        code: One of `RANKS`.
        text: A sentence. Names in it are as in the file: print it through `visible`.
        rows: How many rows, completions, groups or problems it is about.
        command: What shows them, with RUN for the folder; "" for none.
    """

    code: str
    text: str
    rows: int
    command: str = ""


def warnings(summary: Mapping[str, Any], input_info: Mapping[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return what makes the figures doubtful as [{code, text, rows, command}], worst first, at most fifty.

    Args:
        summary: With `models`, as `Summary.to_dict` returns it.
        input_info: Of the input, each a number or a list: `bad_rows` that could not be read, `duplicate_ids`,
            `rows_left` that were not read (`--limit`). Other keys are passed over.
    """
    models = summary.get("models") or {}
    said = [(model, warned) for model, figures in models.items() for warned in _about_model(figures)]
    found = [*_about_input(input_info or {}), *_of_models(said, len(models)), *_about_time(models)]
    # Equal ones stay in the order of models and rewards.
    found.sort(key=lambda warned: (RANKS.index(warned.code), -warned.rows))
    return [warned._asdict() for warned in found[:MAX_WARNINGS]]


def notices(summary: Mapping[str, Any], input_info: Mapping[str, Any] | None = None) -> list[str]:
    """Return the texts of at most five warnings, worst first; see `worst`.

    Names in the sentences are as in the file: print them through `visible`.
    """
    return [warned["text"] for warned in worst(warnings(summary, input_info))]


def worst(found: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return at most five warnings in their order: the first of each code, then others while there is room."""
    found = list(found)
    seen: set[Any] = set()
    first: list[int] = []
    more: list[int] = []
    for at, warned in enumerate(found):
        (more if warned.get("code") in seen else first).append(at)
        seen.add(warned.get("code"))
    return [found[at] for at in sorted([*first, *more][:MAX_NOTICES])]


def how_many(value: object) -> int:
    """Return a number as it is, and the length of a list."""
    if isinstance(value, Sized):
        return len(value)
    return int(value) if isinstance(value, (int, float)) else 0


def _about_model(figures: Mapping[str, Any]) -> Iterator[Warned]:
    for reward, held in figures["rewards"].items():
        yield from _about_reward(reward, held)
        yield from _about_groups(reward, figures)
        yield from _about_length(reward, (figures.get("length") or {}).get(reward))
    yield from _about_labels(figures["label"] or {})
    yield from _about_cut(figures.get("cut_off"))


def _of_models(said: Iterable[tuple[str, Warned]], models: int) -> Iterator[Warned]:
    """Name the model where there are several; what is the same of all of them is said once."""
    by_text: dict[Warned, list[str]] = {}
    for model, warned in said:
        by_text.setdefault(warned, []).append(model)
    for warned, names in by_text.items():
        if models == 1:
            yield warned
        elif len(names) == models:
            yield warned._replace(text=f"all {models:,} models: {warned.text}", rows=warned.rows * models)
        else:
            yield from (warned._replace(text=f"{name}: {warned.text}") for name in names)


def _share(number: int, of: int, noun: str = "completion") -> str:
    return f"{number:,} of {counted(of, noun)}"


_ONE = {"are": "is", "have": "has", "were": "was"}
_MANY = {verb: verb for verb in _ONE}


def _about_input(info: Mapping[str, Any]) -> Iterator[Warned]:
    for code, text in (
        ("bad_rows", "{} of the input could not be read and {are} in no figure"),
        ("duplicate_ids", "{} {have} the id of another task; --group FIELD says which rows are one group"),
        ("rows_left", "{} of the input {were} not read"),
    ):
        number = how_many(info.get(code))
        if number:
            verbs = _ONE if number == 1 else _MANY
            yield Warned(code, text.format(counted(number, "row"), **verbs), number)


def _about_reward(name: str, held: Mapping[str, Any]) -> Iterator[Warned]:
    n, scored, reasons = held["n"], held["scored"], held["reasons"]
    examples = held.get("examples") or {}
    if held["errors"]:
        why = _reasons(reasons, examples, MACHINE_REASONS)
        yield Warned("errors", f"{name} ended in an error on {_share(held['errors'], n)}: {why}", held["errors"])
    if held["abstained"]:
        why = _reasons(reasons, examples, REFERENCE_REASONS)
        code = "abstained" if scored else "suspect"
        yield Warned(code, f"{name} could not judge {_share(held['abstained'], n)}: {why}", held["abstained"])
    late = {reason: reasons[reason] for reason in ("timeout", "deadline") if reason in reasons}
    if late:
        why = ", ".join(f"{reason} {count:,}" for reason, count in late.items())
        count = sum(late.values())
        yield Warned("timeouts", f"{name} gave 0 to {_share(count, n)} for taking too long: {why}", count)
    if scored > 1:
        yield from _about_constants(name, held)


def _reasons(reasons: Mapping[str, int], examples: Mapping[str, str], of: Collection[str]) -> str:
    """Return the reasons with their counts, and one text: that of the most frequent reason that has one."""
    kinds = [reason for reason in reasons if reason in of]
    text = next((examples[reason] for reason in kinds if reason in examples), "")
    said = ", ".join(f"{reason} {reasons[reason]:,}" for reason in kinds)
    return f"{said} ({visible(text, 100)})" if text else said


def _about_constants(name: str, held: Mapping[str, Any]) -> Iterator[Warned]:
    scored = held["scored"]
    if held["min"] == held["max"] == 0.0:
        text = f"{name} is 0 on all {scored:,} completions: suspect the grader or the reference before the model"
        yield Warned("suspect", text, scored)
    elif alike(held["min"], held["max"]):
        text = f"{name} is {held['max']:.3g} on all {scored:,} completions: nothing can be learned from it"
        yield Warned("constant", text, scored)
    for part, of in held["parts"].items():
        if of["scored"] > 1 and alike(of["min"], of["max"]) and of["weight"] != 0 and len(held["parts"]) > 1:
            text = f"{name}: its part {part} is {of['max']:.3g} on all {of['scored']:,} completions"
            yield Warned("constant_part", text, of["scored"])


def _about_groups(name: str, figures: Mapping[str, Any]) -> Iterator[Warned]:
    held, groups = figures["rewards"][name], figures["groups"]
    if not held["scored"] or alike(held["min"], held["max"]):
        return  # said as constant
    zero = groups["zero_signal"][name]
    if zero["of"] and 2 * zero["n"] > zero["of"]:
        they = "it teaches" if zero["of"] == 1 else "they teach"
        text = f"{name} has no spread in {_share(zero['n'], zero['of'], 'group')}: {they} GRPO nothing"
        yield Warned("no_spread", text, zero["n"])
    never = (groups.get("never_solved") or {}).get(name)
    if never and never["n"]:
        ids = [visible(str(id), 24) for id in never["ids"]]
        which = f": {', '.join(ids)}{', …' if never['n'] > len(ids) else ''}" if ids else ""
        text = f"{name}: {_share(never['n'], never['of'], 'problem')} never solved{which}"
        yield Warned("never_solved", text, never["n"], _show_group(never["ids"]))


def _show_group(ids: Iterable[str | int]) -> str:
    """Return the command that shows the first of some groups which can be typed."""
    for id in map(str, ids):
        if visible(id, 60) == id:
            return f"rewardkit show RUN --group {shlex.quote(id)}"
    return ""


def _about_length(name: str, held: Mapping[str, Any] | None) -> Iterator[Warned]:
    if not held or "right" not in held:
        return
    right, wrong = held["right"], held["wrong"]
    if min(right["n"], wrong["n"]) < ENOUGH or not right["mean_characters"]:
        return
    ratio = wrong["mean_characters"] / right["mean_characters"]
    if not SHORTER <= ratio <= LONGER:
        lengths = f"{wrong['mean_characters']:,.0f} against {right['mean_characters']:,.0f} characters"
        text = f"{name}: wrong answers are {ratio:.3g} times as long as right ones ({lengths}"
        yield Warned("length", f"{text}; {wrong['n']:,} and {right['n']:,} completions)", wrong["n"])


def _about_labels(compared: Mapping[str, Mapping[str, int]]) -> Iterator[Warned]:
    """Tell how far the reward that is closest to the label differs; the others may measure something else."""
    differ = sorted((held["n"] - held["agree"], name) for name, held in compared.items() if held["n"])
    if not differ or not differ[0][0]:
        return
    count, name = differ[0]
    held = compared[name]
    rejected = held.get("groups_rejected", 0)
    if rejected:
        which = f"all completions of {counted(rejected, 'group')} in which the file's label says that some are right"
        yield Warned("suspect", f"{name} fails {which}", rejected, "rewardkit show RUN --disagree")
    how = f" ({held['accepts']:,} only right here, {held['rejects']:,} only there)" if "accepts" in held else ""
    text = f"{name} differs from the file's label on {count:,} of {held['n']:,}{how}"
    yield Warned("label", text, count, "rewardkit show RUN --disagree")


def _about_cut(held: Mapping[str, int] | None) -> Iterator[Warned]:
    if held and held["n"]:
        were = "was" if held["of"] == 1 else "were"
        text = f"{_share(held['n'], held['of'])} {were} cut off by a length limit"
        yield Warned("cut_off", text, held["n"])


def _about_time(models: Mapping[str, Any]) -> Iterator[Warned]:
    """Tell of a reward that takes longer than all others together; with fewer than three one always does."""
    took: dict[str, float] = {}
    count: dict[str, int] = {}
    for figures in models.values():
        for reward, held in figures["rewards"].items():
            if held["seconds"]:
                took[reward] = took.get(reward, 0.0) + held["seconds"]["total"]
                count[reward] = count.get(reward, 0) + held["seconds"]["n"]
    if len(took) < 3:
        return
    name = max(took, key=took.__getitem__)
    others = sum(took.values()) - took[name]
    if took[name] >= SLOW and took[name] > others:
        text = f"{name} takes longer than all other rewards together: {took[name]:.3g} s against {others:.3g} s"
        yield Warned("slow", text, count[name])
