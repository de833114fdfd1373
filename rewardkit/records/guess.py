"""Guesses which field means what, from the names and values of the first rows.

A guess is shown to the user, never silent; two equally good candidates, none for the completion, or values that
contradict the names (see contradictions.py) are not decided here but reported (`Guess.why`), with what would settle it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from rewardkit.records import names
from rewardkit.records.chat import is_chat, is_message
from rewardkit.records.contradictions import Finding, contradictions, is_address
from rewardkit.records.fieldmap import ROLES, FieldMap
from rewardkit.records.jsonl import describe
from rewardkit.records.names import is_output, is_output_list, normal, spellings
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
        candidates: For each role in doubt, the paths that it could be, the likeliest first. A role whose doubt
            comes up only once an earlier one is settled is there too.
        suggestion: What was given, with each role in doubt settled by its first candidate: a map that is sure. None
            when the map is sure as it is, or when there is nothing to suggest.
        notes: What is odd about the values, though the map is sure; to be shown with it.
    """

    map: FieldMap
    guessed: tuple[str, ...]
    why: tuple[str, ...] = ()
    candidates: dict[str, tuple[str, ...]] = {}
    suggestion: FieldMap | None = None
    notes: tuple[str, ...] = ()

    @property
    def sure(self) -> bool:
        """Whether the map can be used without asking."""
        return not self.why


def guess(rows: Sequence[Row], given: FieldMap, unit: str = "line") -> Guess:
    """Return `given` filled up with guesses for the roles that it does not mention; `unit` is what rows are counted in.

    A guessed group means the rows of one model, step, prompt and reference; its path is that of the prompt.
    """
    fields, places = [row.fields for row in rows], [f"{unit} {row.line}" for row in rows]
    first = found = _Guesser(fields, given, places).run()
    settled, candidates = given, dict(found.candidates)
    for _ in ROLES:
        likeliest = {role: Path.parse(paths[0]) for role, paths in found.candidates.items() if paths}
        if found.sure or not likeliest.keys() - settled.keys():
            break
        settled = settled.over(likeliest)
        found = _Guesser(fields, settled, places).run()
        candidates.update({role: paths for role, paths in found.candidates.items() if role not in candidates})
    suggestion = settled if found.sure and not first.sure else None
    return msgspec.structs.replace(first, candidates=candidates, suggestion=suggestion)


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
        self._addresses: list[str] = []
        # Columns that somebody gave a meaning are nobody else's; what names the group may be the prompt, or the id.
        self.taken = {path.steps[0] for role, path in given.items() if path is not None and role != "group"}

    def run(self) -> Guess:
        layout = self._layout()
        if layout is not None:
            self.found.update({role: path for role, path in layout.items() if role not in self.given})
            self.taken |= {path.steps[0] for path in self.found.values() if path is not None}
        if "completion" not in self.given and "completion" not in self.found:
            self._completion()
        completion = self.given.get("completion") or self.found.get("completion")
        notes: list[str] = []
        if completion is not None:
            self._others(completion)
            notes = self._contradictions(trusted=layout is not None)
        guessed = tuple(role for role in self.found if role not in self.given)
        return Guess(self.given.over(self.found), guessed, tuple(self.why), self.candidates, None, tuple(notes))

    def _contradictions(self, *, trusted: bool) -> list[str]:
        """Put into doubt what values contradict; return what is only to be said."""
        fields = self.given.over(self.found)
        guessed = {role for role in self.found if role not in self.given}
        doubts, notes = (
            [],
            [f"{name} holds addresses, so it is not taken for the reference" for name in self._addresses],
        )
        finding: Finding
        for finding in contradictions(self.rows, fields, guessed, trusted=trusted):
            if finding.candidates:
                doubts.append(finding)
            else:
                notes.append(finding.why)
        for finding in doubts[:1]:  # one is enough to stop; the next may follow from it
            for role, paths in finding.candidates.items():
                self.candidates.setdefault(role, tuple(map(str, paths)))
            self.why.append(finding.why)
        return notes

    def _wanted(self, role: str) -> bool:
        return role not in self.given and role not in self.found

    def _values(self, name: str) -> list[Any]:
        return [fields[name] for fields in self.rows if fields.get(name) is not None]

    def _called(self, ranked: Iterable[str]) -> list[str]:
        """Return the columns with one of some names that nobody has taken, in the order of the names."""
        columns = [column for name in ranked for column in spellings(self.columns, name)]
        return [column for column in dict.fromkeys(columns) if column not in self.taken]

    def _layout(self) -> FieldMap | None:
        for layout in names.LAYOUTS:
            there = all(name in self.columns for name in layout.needed)
            alone = layout.only is None or layout.only.issuperset(self.columns)
            lists = all(isinstance(value, list) for name in layout.lists for value in self._values(name))
            if there and alone and lists:
                known = {role: Path.parse(path) for role, path in layout.paths.items()}
                return FieldMap({role: path for role, path in known.items() if path.steps[0] in self.columns})
        return None

    # The completion

    def _completion(self) -> None:
        star = self._side_by_side()
        for rank in names.COMPLETION:
            columns = [name for name in self._called(rank) if not self._is_task(name)]
            paths = {name: path for name in columns if (path := self._as_completion(name, rank)) is not None}
            distinct = self._distinct(list(paths))
            odd = [odd for name in columns if name not in paths and (odd := self._odd(name, rank)) is not None]
            if star is not None and (paths or odd) and rank not in names.STRONG:
                break
            if odd:
                why = "; ".join(f"{path} looks like the completion, but {what}" for path, what in odd)
                possible = [str(path) for path in (*(path for path, _ in odd), *map(paths.get, distinct))]
                self._doubt("completion", possible, why)
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
        self._no_completion()

    def _is_task(self, name: str) -> bool:
        """Whether a column `text` is the task: beside tests, where no other column is."""
        return normal(name) == "text" and names.has_tests(self.columns) and not self._called(names.flat(names.PROMPT))

    def _no_completion(self) -> None:
        """Say that no name speaks of a completion, and what else it could be."""
        spoken = [str(Path((name,))) for name in self._longest(self._speaks)]
        task = self._called(names.flat(names.PROMPT) + names.flat(names.REFERENCE))  # else it may be anything at all
        others = [str(Path((name,))) for name in self._longest(self._unknown_text)] if task else []
        possible = [*self._numbers(), *self._turns(), *spoken, *others, *self._answers()]
        self.candidates["completion"] = tuple(dict.fromkeys(possible))[:8]
        pair = [name for name in ("chosen", "rejected") if spellings(self.columns, name)]
        if len(pair) > 1:
            self.candidates["completion"] = tuple(str(Path((spellings(self.columns, name)[0],))) for name in pair)
            self.why.append("chosen and rejected are pairs of preferences; say which of the two to judge")
        elif len(spoken) > 1 or len(others) > 1:
            several = " and ".join((spoken + others)[:8])
            self.why.append(f"no field looks like a completion ({several} could be, as several models side by side)")
        else:
            self.why.append("no field looks like a completion (does the file hold problems without model outputs?)")

    def _longest(self, fits: Callable[[str], bool]) -> list[str]:
        found = [name for name in self.columns if name not in self.taken and fits(name)]
        return sorted(found, key=lambda name: -sum(len(v) for v in self._values(name) if isinstance(v, str)))

    def _numbers(self) -> list[str]:
        """Return columns of numbers under a completion's name, of answers cut out of one, and of candidates."""
        columns = self._called((*names.flat(names.STRONG), *names.WEAK, *names.ANSWERS))
        numbers = [name for name in columns if _mostly(_is_number, self._values(name))]
        extracted = [name for name in self._called(names.EXTRACTED) if _mostly(_is_answer, self._values(name))]
        options = [
            name for name in self._called(("candidates",)) if all(isinstance(v, list) for v in self._values(name))
        ]
        return [str(Path((name,))) for name in numbers + extracted] + [str(Path((name, EACH))) for name in options]

    def _turns(self) -> list[str]:
        """Return the turns of several, where each completion holds a list of them: choices[].turns[0]."""
        for name in self._called(names.flat(names.COMPLETION)):
            items = [i for v in self._values(name) if isinstance(v, list) for i in v if isinstance(i, dict)]
            turns = [item["turns"] for item in items if isinstance(item.get("turns"), list)]
            if items and len(turns) == len(items) and all(isinstance(t, str) for turn in turns for t in turn):
                return [str(Path((name, EACH, "turns", at))) for at in range(min(4, max(map(len, turns))))]
        return []

    def _answers(self) -> list[str]:
        """Return `answer` where a better name holds another reference: it may be the model's."""
        better = self._called(names.REFERENCE[0])
        return [str(Path((name,))) for name in self._called(("answer", "answers", "答案"))] if better else []

    def _as_completion(self, name: str, rank: tuple[str, ...]) -> Path | None:
        values = self._values(name)
        if not values:
            return Path((name,)) if rank is names.COMPLETION[0] else None
        if rank is names.CHATS:
            chats = all(map(is_chat, values)) and any(is_reply(message) for chat in values for message in chat)
            return Path((name,)) if chats else None
        if _means_something_else(normal(name), values):
            return None
        listed = [value for value in values if isinstance(value, list) and not is_chat(value)]
        if listed and len(listed) == len(values):
            if not all(is_output_list(value) for value in listed if value):
                return None
            return self._listed((name,), [item for value in listed for item in value])
        if all(isinstance(value, dict) for value in values):
            return self._inside((name,), values)
        return Path((name,)) if all(map(is_output, values)) else None

    def _speaks(self, name: str) -> bool:
        """Whether a column whose name is not known may hold completions: outputs, under a name that speaks of some."""
        spoken = any(word in normal(name) for word in names.COMPLETION_WORDS)
        return spoken and not _has_meaning(name) and _mostly(is_output, self._values(name))

    def _unknown_text(self, name: str) -> bool:
        """Whether a column holds texts that differ, under a name that says nothing."""
        if self._speaks(name) or _has_meaning(name) or normal(name) in names.EXTRACTED:
            return False
        values = self._values(name)
        texts = [value for value in values if isinstance(value, str) and value.strip() and not is_address(value)]
        if not values or 2 * len(texts) < len(values) or all(map(_is_mark, texts)):
            return False
        if 2 * sum(text.strip().endswith(("?", "？")) for text in texts) > len(texts):
            return False  # questions
        kinds = len(set(texts))
        few = len(texts) > 5 and 2 * kinds < len(texts) and sum(map(len, texts)) < 30 * len(texts)
        return not few and (kinds > 1 or len(texts) < 3)

    def _odd(self, name: str, rank: tuple[str, ...]) -> tuple[Path, str] | None:
        """Return path and odd value of a column whose name and most of whose values are a completion's."""
        every = ((fields.get(name), at) for fields, at in zip(self.rows, self.places, strict=True))
        cells = [(value, at) for value, at in every if value is not None]
        lists = [(value, at) for value, at in cells if isinstance(value, list) and not is_chat(value)]
        items = [(item, at) for value, at in lists for item in value if item is not None]
        path, holds = Path((name,)), "is"
        if rank is names.CHATS:
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

    def _inside(self, steps: tuple[Step, ...], objects: list[dict[str, Any]]) -> Path | None:
        """Return the path of the text inside objects that each stand for a completion, or hold a list of some."""
        if all(map(is_message, objects)):
            return Path(steps)
        keys = list(dict.fromkeys(key for item in objects for key in item))
        for key in (key for name in names.flat(names.ELEMENT) for key in spellings(keys, name)):
            values = [item[key] for item in objects if item.get(key) is not None]
            if 2 * len(values) > len(objects) and all(map(is_output, values)):
                return Path((*steps, key))
        for key in (key for name in names.INNER_LISTS for key in spellings(keys, name)):
            lists = [item[key] for item in objects if item.get(key) is not None]
            if 2 * len(lists) > len(objects) and all(map(is_output_list, lists)) and EACH not in steps:
                return self._listed((*steps, key), [item for value in lists for item in value])
        return None

    def _side_by_side(self) -> Path | None:
        """Return `*.solution` for two or more columns of objects with one of a completion's names in each."""
        objects = [
            name
            for name in self.columns
            if name not in self.taken and (values := self._values(name)) and all(isinstance(v, dict) for v in values)
        ]
        keys = list(dict.fromkeys(key for name in objects for value in self._values(name) for key in value))
        for key in (key for name in names.flat(names.ELEMENT) for key in spellings(keys, name)):
            having = [name for name in objects if all(key in value for value in self._values(name))]
            outputs = [value[key] for name in having for value in self._values(name) if value[key] is not None]
            if len(having) > 1 and outputs and all(map(is_output, outputs)):
                sets = [set(value) for name in having for value in self._values(name)]
                if all(other == sets[0] for other in sets):
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
        few = [n for n in names.flat(names.MODEL) if not self._is_unique(n)]
        self._first("model", (tuple(few),), lambda v: isinstance(v, str))
        if EACH in completion.steps:
            self._per_completion("model", names.MODEL[:3], completion, lambda v: isinstance(v, str))
        self._per_completion("tokens", names.TOKENS, completion, _is_integer)
        self._per_completion("finish_reason", names.FINISH, completion, lambda v: isinstance(v, str))
        self._per_completion("error", names.ERROR, completion, _is_error)
        self._group()

    def _is_unique(self, name: str) -> bool:
        """Whether a column differs in most of ten rows or more, so that it names no model."""
        return len(self.rows) >= 10 and any(2 * self._kinds(c) > len(self.rows) for c in spellings(self.columns, name))

    def _is_prompt(self, value: Any) -> bool:
        return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(_is_turn, value)))

    def _sample_role(self, role: str, ranks: names.Ranks, completion: Path, fits: Callable[[Any], bool]) -> None:
        if not self._wanted(role):
            return
        if role == "prompt" and self._is_conversation(completion):
            present = self._called(names.flat(names.PROMPT[:4]))
            if not any(_mostly(fits, self._values(name)) for name in present):
                self.found[role] = completion
                return
        for at, rank in enumerate(ranks):
            fitting = [name for name in self._called(rank) if _mostly(fits, self._values(name))]
            distinct = self._distinct(fitting)
            if len(distinct) > 1:
                self._doubt(
                    role, [str(Path((n,))) for n in distinct], f"{' and '.join(distinct)} could each be the {role}"
                )
                return
            if distinct and role == "prompt" and self._is_frame(distinct[0], ranks[at + 1 :]):
                continue
            if distinct:
                self._take(role, Path((distinct[0],)))
                return

    def _is_frame(self, name: str, later: names.Ranks) -> bool:
        """Whether a prompt is the same in all of several rows while a question differs: what is put around it."""
        if len(self.rows) < 3 or self._kinds(name) > 1:
            return False
        return any(
            self._kinds(other) > 1 and _mostly(self._is_prompt, self._values(other))
            for other in self._called(names.flat(later[:-1]))
        )

    def _kinds(self, name: str) -> int:
        return len({repr(fields.get(name)) for fields in self.rows})

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
        self._addresses = [
            name for name in self._called(names.flat(names.REFERENCE[1:])) if _mostly(is_address, self._values(name))
        ]
        self._sample_role("reference", names.REFERENCE[:1], completion, lambda value: True)
        if self._wanted("reference") and "reference" not in self.candidates:
            self._sample_role("reference", names.REFERENCE[1:-1], completion, lambda value: not is_address(value))
        for name in self._called(names.REFERENCE[-1]):
            values = self._values(name)
            mark = all(map(_is_mark, values)) or all(map(_is_mark_list, values))
            if self._wanted("reference") and "reference" not in self.candidates and values and not mark:
                self._take("reference", Path((name,)))

    def _label(self, completion: Path) -> None:
        """A label is a bool or a number in [0, 1]; it is looked for where the completion is, then in the row."""
        if not self._wanted("label"):
            return
        steps = completion.steps
        if EACH not in steps and steps[0] is not STAR:
            name = _best(names.LABEL, list(self.rows), self.taken)
            if name is not None:
                self._take("label", Path((name,)))
            return
        last = max(at for at, step in enumerate(steps) if step is EACH or step is STAR) + 1
        if last < len(steps):
            name = _best(names.LABEL, [item for fields in self.rows for item in walk_all(fields, steps[:last])])
            if name is not None:
                self.found["label"] = Path((*steps[:last], name))
                return
        if EACH in steps:
            self._beside("label", names.LABEL, completion, _is_mark)

    def _beside(self, role: str, ranks: names.Ranks, completion: Path, fits: Callable[[Any], bool]) -> None:
        """Take a column of lists as long as those of the completions, if there is one."""
        at = completion.steps.index(EACH)
        counts = [len(walk_all(fields, completion.steps[: at + 1])) for fields in self.rows]
        for name in self._called(names.flat(ranks)):
            lists = [(fields[name], count) for fields, count in zip(self.rows, counts, strict=True) if fields.get(name)]
            if not lists or not all(isinstance(value, list) and len(value) == count for value, count in lists):
                continue
            items = [item for value, _ in lists for item in value if item is not None]
            if items and all(map(fits, items)):
                self._take(role, Path((name, EACH)))
                return

    def _first(self, role: str, ranks: names.Ranks, fits: Callable[[Any], bool]) -> None:
        if not self._wanted(role):
            return
        for name in self._called(names.flat(ranks)):
            if self._fits(role, fits, self._values(name)):
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
        if EACH not in steps and steps[0] is not STAR:
            self._first(role, ranks, fits)
            return
        last = max(at for at, step in enumerate(steps) if step is EACH or step is STAR) + 1
        found = [item for fields in self.rows for item in walk_all(fields, steps[:last])]
        elements = [item for item in found if isinstance(item, dict)]
        keys = list(dict.fromkeys(key for item in elements for key in item))
        for key in (key for name in names.flat(ranks) for key in spellings(keys, name)):
            values = [item[key] for item in elements if item.get(key) is not None]
            if self._fits(role, fits, values):
                self.found[role] = Path((*steps[:last], key))
                return
        if EACH in steps and role != "error":
            self._beside(role, ranks, completion, fits)

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

    def _take(self, role: str, path: Path) -> None:
        self.found[role] = path
        self.taken |= {path.steps[0]}

    def _doubt(self, role: str, candidates: Iterable[str], why: str) -> None:
        self.candidates[role] = tuple(candidates)
        self.why.append(why)

    def _distinct(self, fitting: list[str]) -> list[str]:
        """Return the names without empty columns, and without those that equal an earlier one in every row."""
        kept: list[str] = []
        for name in [name for name in fitting if any(map(_filled, self._values(name)))] or fitting[:1]:
            values = [fields.get(name) for fields in self.rows]
            if not any(values == [fields.get(other) for fields in self.rows] for other in kept):
                kept.append(name)
        return kept


def _filled(value: Any) -> bool:
    return bool(value.strip()) if isinstance(value, str) else value not in ([], {})


def _has_meaning(name: str) -> bool:
    """Whether a column's name says that it is no completion."""
    known = normal(name)
    return known in names.OTHER or known in names.ABOUT or known.endswith(("_id", "_ids", "_url", "_path", "_type"))


def _is_turn(value: Any) -> bool:
    """Whether a value is a message, or something like one under other names."""
    return is_message(value) or (isinstance(value, dict) and "role" in value and len(value) > 1)


def _means_something_else(name: str, values: Sequence[Any]) -> bool:
    """Whether a column with a completion's name holds options, a counter or the name of a language."""
    if name in names.OPTIONS:
        return _options(values)
    if name in names.COUNTED:
        return all(isinstance(value, str) and value.strip().isdigit() for value in values)
    return name == "code" and _words(values)


def _options(values: Sequence[Any]) -> bool:
    """Whether values are the options of multiple-choice questions: lists of texts, or of texts with letters."""
    return all(isinstance(value, list) and all(map(_is_option, value)) for value in values)


def _is_option(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and _LETTERED.issuperset(value))


_LETTERED = frozenset(("label", "text", "key", "letter", "option", "id", "value", "content", "is_correct", "correct"))


def _words(values: Sequence[Any]) -> bool:
    """Whether values are names or numbers, such as a language or an error code, and no programs."""
    return len(values) > 2 and all(isinstance(v, str) and len(v) < 12 and v.isalnum() for v in values)


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


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_answer(value: Any) -> bool:
    return isinstance(value, str) or _is_number(value)


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
    keys = [key for key in dict.fromkeys(key for item in objects for key in item) if key not in taken]
    for rank in ranks:
        fitting = []
        for name in dict.fromkeys(key for wanted in rank for key in spellings(keys, wanted)):
            values = [item[name] for item in objects if item.get(name) is not None]
            if values and all(map(_is_mark, values)):
                fitting.append(name)
        if fitting:
            same = all([o.get(name) for o in objects] == [o.get(fitting[0]) for o in objects] for name in fitting)
            return fitting[0] if same else None
    return None
