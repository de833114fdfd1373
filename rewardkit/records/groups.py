"""Which completions belong to one group.

The key of a group is a 64-bit hash of what it is about, never of where it stands, so a group may be spread over
rows, files and runs. Two rows with one id but another prompt or reference are two groups, and are counted. Models
and training steps are always apart.
"""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

import msgspec

from rewardkit.records.paths import MISSING
from rewardkit.records.text import clean

_encode = msgspec.json.Encoder(order="deterministic", enc_hook=repr).encode
_start_hash = hashlib.blake2b(digest_size=8).copy  # copying a fresh state is cheaper than making one


def digest(parts: list[Any]) -> bytes:
    """Return 8 bytes of hash of the JSON form of `parts`: 1 and "1" differ, an object's order does not count."""
    try:
        data = _encode(parts)
    except UnicodeEncodeError:
        data = _encode(clean(parts))
    state = _start_hash()
    state.update(data)
    return state.digest()


def group_key(model: str | None, id: str | int, step: int | None, prompt: Any, reference: Any) -> int:
    """Return the 64-bit identity of a group."""
    return int.from_bytes(digest([model, id, step, prompt, reference]))


def named_group_key(model: str | None, step: int | None, group: Any) -> int:
    """Return the identity of a group that a field of the file names."""
    return int.from_bytes(digest([model, "group", step, group]))


def sample_slot(model: str | None, id: str | int, step: int | None) -> int:
    """Return the 64-bit identity of a sample's name, whatever it asks."""
    return int.from_bytes(digest(["id", model, id, step]))


def slot_of(key: int, model: str | None, id: str | int, step: int | None, prompt: Any, reference: Any) -> int:
    """Return the slot of a generation that has its key: a group with a name of its own is no other task with its id."""
    return sample_slot(model, id, step) if key == group_key(model, id, step, prompt, reference) else key


def content_id(step: int | None, prompt: Any, reference: Any) -> str:
    """Return the id of a sample whose source has none: 16 hexadecimal digits."""
    return digest([step, prompt, reference]).hex()


class Groups:
    """Gives each generation its id, its key, and the place of its first completion within its group.

    Args:
        by_task: Where a row has a group, it is the one of its step, prompt and reference, whatever its id: what is
            meant when the group was guessed and not given.

    Attributes:
        duplicate_ids: Rows whose id was seen before with another prompt or reference.
    """

    def __init__(self, *, by_task: bool = False) -> None:
        self.duplicate_ids = 0
        self._by_task = by_task
        self._sizes = _Sizes()
        self._known: dict[str, tuple[tuple[Any, ...], tuple[str | int, int, int]]] = {}

    def place(
        self,
        model: str | None,
        id: str | int | None,
        step: int | None,
        prompt: Any,
        reference: Any,
        group: Any,
        count: int,
    ) -> tuple[str | int, int, int]:
        """Return id, key and start of `count` completions; `group` is MISSING or None where no field names it."""
        id, key, slot = self.identify(model, id, step, prompt, reference, group)
        return id, key, self.start(slot, key, count)

    def identify(
        self, model: str | None, id: str | int | None, step: int | None, prompt: Any, reference: Any, group: Any
    ) -> tuple[str | int, int, int]:
        """Return id, key and slot of a generation: the same in every process, and nothing is counted.

        The slot is the identity of what the source calls one sample; two keys in one slot are a duplicate id.
        """
        known = self._known.get(id) if type(id) is str else None  # the rows of one group are mostly near each other
        if known is not None and (group is None or group is MISSING) and known[0] == (model, step, prompt, reference):
            return known[1]
        if id is None:
            id = content_id(step, prompt, reference)
        if group is not MISSING and group is not None:
            if self._by_task:
                key = group_key(model, "", step, prompt, reference)
            else:
                key = named_group_key(model, step, group)
            return id, key, key
        if type(id) is not str or type(prompt) is not str or type(reference) is not str:
            return id, group_key(model, id, step, prompt, reference), sample_slot(model, id, step)
        found = (id, group_key(model, id, step, prompt, reference), sample_slot(model, id, step))
        if len(prompt) + len(reference) <= _KEPT_LENGTH:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[id] = (model, step, prompt, reference), found
        return found

    def start(self, slot: int, key: int, count: int) -> int:
        """Return how many completions of the group came before, and count `count` more."""
        start = self._sizes.add(slot, key, count)
        if start < 0:
            self.duplicate_ids += 1
            start = self._sizes.add(key, key, count)
        return start


_KEPT = 512  # rows whose identity is remembered, with at most so many characters each
_KEPT_LENGTH = 8192

_FEW = 100_000  # entries up to which a dict, which is faster, stays below 20 MB


class _Sizes:
    """Slot -> (key, count): a dict while there are few, then three arrays: 24 bytes a place against 200."""

    def __init__(self) -> None:
        self._few: dict[int, tuple[int, int]] | None = {}
        self._used = 0

    def add(self, slot: int, key: int, count: int) -> int:
        """Return the count so far and add to it; -1, and nothing added, when the slot holds another key."""
        few = self._few
        if few is None:
            return self._add(slot or 1, key, count)
        known = few.get(slot)
        if known is None:
            few[slot] = (key, count)
            if len(few) > _FEW:
                self._compact(few)
            return 0
        if known[0] != key:
            return -1
        few[slot] = (key, known[1] + count)
        return known[1]

    def _compact(self, few: dict[int, tuple[int, int]]) -> None:
        self._few = None
        self._allot(1 << 19)
        for slot, (key, count) in few.items():
            self._add(slot or 1, key, count)

    def _allot(self, size: int) -> None:
        self._mask = size - 1
        self._slots = array("Q", bytes(8 * size))
        self._keys = array("Q", bytes(8 * size))
        self._counts = array("L", bytes(array("L").itemsize * size))

    def _add(self, slot: int, key: int, count: int) -> int:
        slots, mask = self._slots, self._mask
        at = slot & mask
        while (found := slots[at]) and found != slot:
            at = (at + 1) & mask
        if found:
            if self._keys[at] != key:
                return -1
            before = self._counts[at]
            self._counts[at] = before + count
            return before
        slots[at], self._keys[at], self._counts[at] = slot, key, count
        self._used += 1
        if self._used * 4 > mask * 3:
            self._grow()
        return 0

    def _grow(self) -> None:
        old = zip(self._slots, self._keys, self._counts, strict=True)
        size = self._mask + 1
        self._allot(size * (4 if size < 1 << 21 else 2))
        slots, mask = self._slots, self._mask
        for slot, key, count in old:
            if slot:
                at = slot & mask
                while slots[at]:
                    at = (at + 1) & mask
                slots[at], self._keys[at], self._counts[at] = slot, key, count
