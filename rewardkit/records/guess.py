"""Guesses which field means what, from the names and values of the first rows.

A guess is shown to the user, never silent; two equally good candidates, or none for the completion, are not
decided here but reported (`Guess.why`), with rows to look at and the flag that settles it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rewardkit.records import names
from rewardkit.records.chat import is_chat, is_message
from rewardkit.records.fieldmap import FieldMap
from rewardkit.records.jsonl import describe
from rewardkit.records.names import is_output, is_output_list
from rewardkit.records.paths import EACH, STAR, Path, Step, walk_all
from rewardkit.records.rows import Row
from rewardkit.records.text import shorten, visible
from rewardkit.types import is_reply

Rows = Sequence[Mapping[str, Any]]


class Guess(msgspec.Struct, frozen=True):
    """A map filled up by guessing.

    Attributes:
        map: What was given, and what was guessed for the rest.
        guessed: The roles that were guessed.
        why: What could not be decided; empty when the map is sure.
        candidates: For each role in doubt, the paths that it could be.
    """

    map: FieldMap
    guessed: tuple[str, ...]
    why: tuple[str, ...] = ()
    candidates: dict[str, tuple[str, ...]] = {}

    @property
    def sure(self) -> bool:
        """Whether the map can be used without asking."""
        return not self.why


def guess(rows: Sequence[Row], given: FieldMap, unit: str = "line") -> Guess:
    """Return `given` filled up with guesses for the roles that it does not mention; `unit` is what rows are counted in.

    A guessed group means the rows of one model, step, prompt and reference; its path is that of the prompt.
    """
    return _Guesser([row.fields for row in rows], given, [f"{unit} {row.line}" for row in rows]).run()


def models_of(rows: Sequence[Row], completion: Path | None) -> list[str]:
    """Return the columns that a completion path's `*` stands for, in the order of the file."""
    if completion is None or completion.steps[0] is not STAR:
        return []
    found: dict[str, None] = {}
    for row in rows:
        for name, value in row.fields.items():
            if isinstance(value, dict) and completion.steps[1] in value:
                found[name] = None
    return list(found)


def show_rows(rows: Sequence[Row], unit: str, count: int = 3) -> str:
    """Return the first rows as text for a message, one a line, values shortened and control characters spelled out."""
    lines = []
    for row in rows[:count]:
        cells = [f"{visible(shorten(name, 30))}: {_value(value)}" for name, value in row.fields.items()]
        lines.append(f"  {unit} {row.line}  " + shorten("  ".join(cells), 400))
    return "\n".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return describe(value)
    return visible(shorten(value, 32)) if isinstance(value, str) else describe(value).removeprefix("the number ")


class _Guesser:
    def __init__(self, rows: Rows, given: FieldMap, places: Sequence[str]) -> None:
        self.rows = rows
        self.given = given
        self.places = places
        self.columns = list(dict.fromkeys(name for fields in rows for name in fields))
        self.found: dict[str, Path | None] = {}
        self.why: list[str] = []
        self.candidates: dict[str, tuple[str, ...]] = {}
        # Columns that somebody gave a meaning are nobody else's.
        self.taken = {path.steps[0] for path in given.values() if path is not None}

    def run(self) -> Guess:
        layout = self._layout()
        if layout is not None:
            self.found.update({role: path for role, path in layout.items() if role not in self.given})
        if "completion" not in self.given and "completion" not in self.found:
            self._completion()
        completion = self.given.get("completion") or self.found.get("completion")
        if completion is not None:
            self._others(completion)
        guessed = tuple(role for role in self.found if role not in self.given)
        return Guess(self.given.over(self.found), guessed, tuple(self.why), self.candidates)

    def _wanted(self, role: str) -> bool:
        return role not in self.given and role not in self.found

    def _values(self, name: str) -> list[Any]:
        return [fields[name] for fields in self.rows if fields.get(name) is not None]

    def _layout(self) -> FieldMap | None:
        for needed, paths in names.LAYOUTS:
            if all(name in self.columns for name in needed) and all(isinstance(v, list) for v in self._values("code")):
                known = {role: Path.parse(path) for role, path in paths.items()}
                return FieldMap({role: path for role, path in known.items() if path.steps[0] in self.columns})
        return None

    # The completion

    def _completion(self) -> None:
        self.candidates.pop("completion", None)
        star = self._side_by_side()
        for rank in names.COMPLETION:
            paths = {name: path for name in rank if (path := self._as_completion(name)) is not None}
            distinct = self._distinct(list(paths))
            odd = [odd for name in rank if name not in paths and (odd := self._odd(name)) is not None]
            if star is not None and (paths or odd) and rank not in names.COMPLETION[:3]:
                break
            if odd:
                why = "; ".join(f"{path} looks like the completion, but {what}" for path, what in odd)
                self._doubt(
                    "completion", [str(path) for path in (*(path for path, _ in odd), *map(paths.get, distinct))], why
                )
                return
            if len(distinct) > 1 or (star is not None and distinct):
                several = [str(paths[name]) for name in distinct] + ([str(star)] if star else [])
                self._doubt("completion", several, f"{' and '.join(several)} could each be the completion")
                return
            if distinct:
                self.found["completion"] = paths[distinct[0]]
                return
        if star is not None:
            self.found["completion"] = star
            return
        self.why.append("no field looks like a completion (does the file hold problems without model outputs?)")
        possible = [name for name in self.columns if name not in self.taken and self._plausible(name)]
        possible.sort(key=lambda name: -sum(len(v) for v in self._values(name) if isinstance(v, str)))
        self.candidates["completion"] = tuple(str(Path((name,))) for name in possible[:8])

    def _as_completion(self, name: str) -> Path | None:
        if name not in self.columns or name in self.taken:
            return None
        values = self._values(name)
        if not values:
            return Path((name,)) if name in names.COMPLETION[0] else None
        if name in names.COMPLETION[-1]:
            chats = all(map(is_chat, values)) and any(is_reply(message) for chat in values for message in chat)
            return Path((name,)) if chats else None
        listed = [value for value in values if isinstance(value, list) and not is_chat(value)]
        if listed and len(listed) == len(values):
            if not all(is_output_list(value) for value in listed if value):
                return None
            return self._listed((name,), [item for value in listed for item in value])
        if all(isinstance(value, dict) for value in values):
            return self._inside((name,), values)
        return Path((name,)) if all(map(is_output, values)) else None

    def _plausible(self, name: str) -> bool:
        """Whether a column whose name is not known may hold completions: outputs, under a name that speaks of some."""
        spoken = any(word in name.lower() for word in names.COMPLETION_WORDS)
        return spoken and name not in names.OTHER and _mostly(is_output, self._values(name))

    def _odd(self, name: str) -> tuple[Path, str] | None:
        """Return path and odd value of a column whose name and most of whose values are a completion's."""
        if name not in self.columns or name in self.taken:
            return None
        every = ((fields.get(name), at) for fields, at in zip(self.rows, self.places, strict=True))
        cells = [(value, at) for value, at in every if value is not None]
        lists = [(value, at) for value, at in cells if isinstance(value, list) and not is_chat(value)]
        items = [(item, at) for value, at in lists for item in value if item is not None]
        path, holds = Path((name,)), "is"
        if name in names.COMPLETION[-1]:
            odd = _odd_one(is_chat, cells)
        elif len(lists) == len(cells):
            path, holds = Path((name, EACH)), "holds"
            odd = _odd_one(is_output, items)
        elif 2 * len(lists) > len(cells):
            path = Path((name, EACH))
            odd = _odd_one(lambda value: isinstance(value, list), cells)
        else:
            odd = _odd_one(is_output, cells)
        return None if odd is None else (path, f"in {odd[1]} it {holds} {describe(odd[0])}")

    def _listed(self, steps: tuple[Step, ...], items: list[Any]) -> Path | None:
        objects = [item for item in items if isinstance(item, dict)]
        if objects and len(objects) == len([item for item in items if item is not None]):
            return self._inside((*steps, EACH), objects)
        return Path((*steps, EACH))

    @staticmethod
    def _inside(steps: tuple[Step, ...], objects: list[dict[str, Any]]) -> Path | None:
        if all(map(is_message, objects)):
            return Path(steps)
        for name in names.flat(names.ELEMENT):
            values = [item[name] for item in objects if item.get(name) is not None]
            if 2 * len(values) > len(objects) and all(map(is_output, values)):
                return Path((*steps, name))
        return None

    def _side_by_side(self) -> Path | None:
        """Return `*.solution` for two or more columns of objects with one of a completion's names in each."""
        objects = [
            name
            for name in self.columns
            if name not in self.taken and (values := self._values(name)) and all(isinstance(v, dict) for v in values)
        ]
        for key in names.flat(names.ELEMENT):
            having = [name for name in objects if all(key in value for value in self._values(name))]
            outputs = [value[key] for name in having for value in self._values(name) if value[key] is not None]
            if len(having) > 1 and outputs and all(map(is_output, outputs)):
                keys = [set(value) for name in having for value in self._values(name)]
                if all(other == keys[0] for other in keys):
                    return Path((STAR, key))
        return None

    # The other roles

    def _others(self, completion: Path) -> None:
        self.taken |= {completion.steps[0]}
        self._sample_role("prompt", names.PROMPT, completion, self._is_prompt)
        self._reference(completion)
        self._label(completion)
        self._first("id", names.ID, lambda v: not isinstance(v, list))
        self._first("step", names.STEP, _is_step)
        self._first("model", names.MODEL, lambda v: isinstance(v, str))
        self._per_completion("tokens", names.TOKENS, completion, _is_integer)
        self._per_completion("finish_reason", names.FINISH, completion, lambda v: isinstance(v, str))
        self._per_completion("error", names.ERROR, completion, _is_error)
        self._group()

    def _is_prompt(self, value: Any) -> bool:
        return isinstance(value, str) or is_chat(value)

    def _sample_role(self, role: str, ranks: names.Ranks, completion: Path, fits: Callable[[Any], bool]) -> None:
        if not self._wanted(role):
            return
        if role == "prompt" and self._is_conversation(completion):
            present = [name for name in names.flat(names.PROMPT[:3]) if name in self.columns and name not in self.taken]
            if not any(_mostly(fits, self._values(name)) for name in present):
                self.found[role] = completion
                return
        for rank in ranks:
            fitting = [
                name
                for name in rank
                if name in self.columns and name not in self.taken and _mostly(fits, self._values(name))
            ]
            distinct = self._distinct(fitting)
            if len(distinct) > 1:
                self._doubt(role, distinct, f"{' and '.join(distinct)} could each be the {role}")
                return
            if distinct:
                self._take(role, Path((distinct[0],)))
                return

    def _is_conversation(self, completion: Path) -> bool:
        values = [value for fields in self.rows for value in walk_all(fields, completion.steps) if value is not None]
        chats = [value for value in values if is_chat(value)]
        return bool(chats) and len(chats) == len(values) and any(not is_reply(chat[0]) for chat in chats)

    def _reference(self, completion: Path) -> None:
        if not self._wanted("reference"):
            return
        for steps in names.NESTED_REFERENCE:
            if steps[0] not in self.taken and any(walk_all(fields, steps) for fields in self.rows):
                self._take("reference", Path(steps))
                return
        self._sample_role("reference", names.REFERENCE[:-1], completion, lambda v: True)
        if self._wanted("reference") and "reference" not in self.candidates and self._free("label"):
            values = self._values("label")
            if values and not all(map(_is_mark, values)):
                self._take("reference", Path(("label",)))

    def _label(self, completion: Path) -> None:
        """A label is a bool or a number in [0, 1]; it is looked for where the completion is, then in the row."""
        if not self._wanted("label"):
            return
        steps = completion.steps
        if EACH in steps or steps[0] is STAR:
            last = max(at for at, step in enumerate(steps) if step is EACH or step is STAR) + 1
            if last < len(steps):
                elements = [item for fields in self.rows for item in walk_all(fields, steps[:last])]
                name = _best(names.LABEL, elements)
                if name is not None:
                    self.found["label"] = Path((*steps[:last], name))
                    return
            for name in names.flat(names.LABEL):
                values = self._values(name) if self._free(name) else []
                if EACH in steps and values and all(map(_is_mark_list, values)):
                    self._take("label", Path((name, EACH)))
                    return
            return
        name = _best(names.LABEL, list(self.rows), self.taken)
        if name is not None:
            self._take("label", Path((name,)))

    def _first(self, role: str, ranks: names.Ranks, fits: Callable[[Any], bool]) -> None:
        if not self._wanted(role):
            return
        for name in names.flat(ranks):
            if self._free(name) and self._fits(role, fits, self._values(name)):
                self._take(role, Path((name,)))
                return

    @staticmethod
    def _fits(role: str, fits: Callable[[Any], bool], values: list[Any]) -> bool:
        """Whether values can be a role's: most fit, so that one odd value does not take away the role in silence."""
        return _mostly(fits, values) or (role == "error" and not values)  # errors may come after the first rows

    def _per_completion(self, role: str, ranks: names.Ranks, completion: Path, fits: Callable[[Any], bool]) -> None:
        if not self._wanted(role):
            return
        steps = completion.steps
        if EACH in steps or steps[0] is STAR:
            last = max(at for at, step in enumerate(steps) if step is EACH or step is STAR) + 1
            elements = [
                item for fields in self.rows for item in walk_all(fields, steps[:last]) if isinstance(item, dict)
            ]
            for name in names.flat(ranks):
                values = [item[name] for item in elements if item.get(name) is not None]
                if any(name in item for item in elements) and self._fits(role, fits, values):
                    self.found[role] = Path((*steps[:last], name))
                    return
            return
        self._first(role, ranks, fits)

    def _group(self) -> None:
        """Ids that name rows, not tasks: when each row has its own id but prompts repeat, the prompt is the group."""
        id, prompt = self._path("id"), self._path("prompt")
        if not self._wanted("group") or id is None or prompt is None or "id" in self.given or len(self.rows) < 4:
            return
        ids = [repr(walk_all(fields, id.steps)) for fields in self.rows]
        about = [path for role in ("model", "step", "prompt", "reference") if (path := self._path(role)) is not None]
        tasks = [repr([walk_all(fields, path.steps) for path in about]) for fields in self.rows]
        if len(set(ids)) == len(ids) and 2 * len(set(tasks)) <= len(tasks) and EACH not in prompt.steps:
            self.found["group"] = prompt

    def _path(self, role: str) -> Path | None:
        return self.given[role] if role in self.given else self.found.get(role)

    def _free(self, name: str) -> bool:
        return name in self.columns and name not in self.taken

    def _take(self, role: str, path: Path) -> None:
        self.found[role] = path
        self.taken |= {path.steps[0]}

    def _doubt(self, role: str, candidates: Iterable[str], why: str) -> None:
        self.candidates[role] = tuple(candidates)
        self.why.append(why)

    def _distinct(self, fitting: list[str]) -> list[str]:
        """Return the names without those whose values equal an earlier one's in every row."""
        kept: list[str] = []
        for name in fitting:
            values = [fields.get(name) for fields in self.rows]
            if not any(values == [fields.get(other) for fields in self.rows] for other in kept):
                kept.append(name)
        return kept


def _is_mark(value: Any) -> bool:
    """Whether a value can be a label: a bool, a number in [0, 1], or one of these as text."""
    if isinstance(value, str):
        text = value.strip().lower()
        if text in ("true", "false"):
            return True
        try:
            value = float(text) if len(text) < 30 else None
        except ValueError:
            return False
    return isinstance(value, (bool, int, float)) and 0 <= value <= 1


def _is_mark_list(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(item is None or _is_mark(item) for item in value)


def _mostly(fits: Callable[[Any], bool], values: Sequence[Any]) -> bool:
    """Whether there are values, and at least half of them fit."""
    return bool(values) and 2 * sum(map(fits, values)) >= len(values)


def _odd_one(fits: Callable[[Any], bool], cells: Sequence[tuple[Any, str]]) -> tuple[Any, str] | None:
    """Return the first value that does not fit, and its place, where at least half of them do."""
    odd = [cell for cell in cells if not fits(cell[0])]
    return odd[0] if odd and 2 * len(odd) <= len(cells) else None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_step(value: Any) -> bool:
    if isinstance(value, str):
        return value.isascii() and value.isdigit()
    return _is_integer(value) or (isinstance(value, float) and value.is_integer())


def _is_error(value: Any) -> bool:
    return isinstance(value, (str, int, dict, list)) or value in (0.0, 1.0)


def _best(ranks: names.Ranks, elements: Sequence[Any], taken: Iterable[Step] = ()) -> str | None:
    """Return the first name, best rank first, whose values are all labels; None when two of one rank differ."""
    objects = [element for element in elements if isinstance(element, Mapping)]
    for rank in ranks:
        fitting = []
        for name in rank:
            values = [item[name] for item in objects if item.get(name) is not None and name not in taken]
            if values and all(map(_is_mark, values)):
                fitting.append(name)
        if fitting:
            same = all([o.get(name) for o in objects] == [o.get(fitting[0]) for o in objects] for name in fitting)
            return fitting[0] if same else None
    return None
