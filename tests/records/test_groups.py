"""Group identity: by what a sample is, never by where it stands."""

from __future__ import annotations

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from rewardkit.records import FieldMap, group_key, groups, read_generations
from rewardkit.records.groups import Groups, named_group_key, sample_slot
from rewardkit.records.paths import MISSING


def read(tmp_path, rows, *maps, **options):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_generations(tmp_path / "a.jsonl", field_map=FieldMap.parse(maps), **options)


def row(id, prompt="p", answer="1", text="x", **more):
    return {"id": id, "prompt": prompt, "answer": answer, "completion": text, **more}


def test_a_group_spread_over_rows_counts_its_completions(tmp_path):
    records = read(tmp_path, [row(1), row(2), row(1), row(1, text="y"), row(2)])
    assert [(g.sample.id, g.start) for g in records] == [(1, 0), (2, 0), (1, 1), (1, 2), (2, 1)]
    assert records.duplicate_ids == 0


def test_one_id_with_another_prompt_or_gold_is_another_group(tmp_path):
    records = read(tmp_path, [row(1), row(1, prompt="q"), row(1, answer="2"), row(1), row(1, prompt="q")])
    generations = list(records)
    assert len({g.key for g in generations}) == 3
    assert [g.start for g in generations] == [0, 0, 0, 1, 1]
    assert records.duplicate_ids == 3


def test_ids_of_another_type_or_sign_are_other_ids(tmp_path):
    """Trap: hash(-1) == hash(-2) in CPython."""
    records = read(tmp_path, [row(1), row("1"), row(-1), row(-2), row("-1")], "id=id")
    assert len({g.key for g in records}) == 5
    assert records.duplicate_ids == 0


def test_steps_and_models_are_apart(tmp_path):
    rows = [row(1, step=1), row(1, step=2), row(1, step=1, model="m")]
    records = read(tmp_path, rows)
    assert len({g.key for g in records}) == 3
    assert records.duplicate_ids == 0


def test_without_an_id_the_content_names_the_sample(tmp_path):
    rows = [{"prompt": "p", "completion": "x", "answer": "1"}, {"prompt": "p", "completion": "y", "answer": "1"}]
    one, two = read(tmp_path, rows)
    assert one.sample.id == two.sample.id
    assert (one.key, two.start) == (two.key, 1)
    int(str(one.sample.id), 16)
    (again,) = read(tmp_path, rows[1:])
    assert (again.sample.id, again.key) == (one.sample.id, one.key)  # not by position


def test_a_named_group_field_decides(tmp_path):
    rows = [row(n, prompt=f"p{n}", uid=n // 2) for n in range(4)]
    for options in ({"group": "uid"}, {}):
        records = read(tmp_path, rows, *([] if options else ["group=uid"]), **options)
        generations = list(records)
        assert [g.start for g in generations] == [0, 1, 0, 1]
        assert len({g.key for g in generations}) == 2
        assert records.duplicate_ids == 0


def test_a_role_can_name_the_group(tmp_path):
    rows = [{"id": n, "question": "q", "completion": "x"} for n in range(2)]
    assert [g.start for g in read(tmp_path, rows, group="prompt")] == [0, 1]


def test_ids_of_rows_do_not_split_a_group(tmp_path):
    """Trap: a running number as `id` and eight rows a prompt would make eight groups of one."""
    records = read(tmp_path, [row(n, prompt=f"p{n // 4}") for n in range(12)])
    assert records.map["group"] == records.map["prompt"]
    assert len({g.key for g in records}) == 3
    assert "group" not in read(tmp_path, [row(n, prompt=f"p{n}") for n in range(12)]).map


def test_a_guessed_group_keeps_references_apart(tmp_path):
    """Trap: forty rows that all say "Solve the problem." hold two tasks, and not one."""
    rows = [row(n, prompt="Solve the problem.", answer=str(n % 2), text=str(n % 3)) for n in range(40)]
    records = read(tmp_path, rows)
    assert "group" in records.guessed
    generations = list(records)
    assert {(g.sample.reference, g.key) for g in generations} == {(str(n % 2), generations[n].key) for n in (0, 1)}
    assert [g.start for g in generations] == [n // 2 for n in range(40)]
    assert [g.sample.id for g in generations] == list(range(40))
    assert len({g.key for g in read(tmp_path, rows, group="prompt")}) == 2  # another gold is another task


def test_a_guessed_group_keeps_steps_and_models_apart(tmp_path):
    """Three steps of four prompts with four completions each are twelve groups of four."""
    rows = [row(n, prompt=f"p{n // 4 % 4}", step=n // 16) for n in range(48)]
    records = read(tmp_path, rows)
    assert "group" in records.guessed
    assert [g.start for g in records] == [0, 1, 2, 3] * 12
    assert len({g.key for g in records}) == 12
    rows = [row(n, prompt=f"p{n % 2}", model=f"m{n // 2 % 2}") for n in range(8)]
    assert [g.start for g in read(tmp_path, rows)] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_one_completion_a_step_is_no_group(tmp_path):
    rows = [row(n, prompt=f"p{n % 2}", step=n // 2) for n in range(8)]
    records = read(tmp_path, rows)
    assert "group" not in records.map
    assert len({g.key for g in records}) == 8


def test_a_guessed_group_of_lists_keeps_references_apart(tmp_path):
    rows = [{"id": n, "prompt": "p", "answer": n % 2, "completions": ["x", "y"]} for n in range(8)]
    records = read(tmp_path, rows)
    assert "group" in records.guessed
    assert [g.start for g in records] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_a_row_without_a_prompt_is_in_no_guessed_group(tmp_path):
    rows = [row(n, prompt=f"p{n % 2}" if n < 6 else None) for n in range(8)]
    assert [g.start for g in read(tmp_path, rows)] == [0, 0, 1, 1, 2, 2, 0, 0]


def test_a_named_group_lies_in_one_step_and_one_model(tmp_path):
    rows = [row(n, uid="u", step=n // 2, model="ab"[n // 4]) for n in range(8)]
    assert [g.start for g in read(tmp_path, rows, group="uid")] == [0, 1] * 4
    assert len({named_group_key(*about) for about in ((None, 1, "u"), (None, None, "u"), ("m", 1, "u"))}) == 3


def test_ids_and_steps_of_one_hash_are_apart(tmp_path):
    """Trap: in CPython 0 and 2**61-1 have one hash, -1 and -2 too: one would count as the other's duplicate."""
    ids = [0, 2**61 - 1, 2 * (2**61 - 1), -1, -2, 1, 2**61, "0", "-1", "1fffffffffffffff", 10**4000]
    records = read(tmp_path, [row(id, prompt=f"p{n}") for n, id in enumerate(ids)], "id=id")
    assert len({g.key for g in records}) == len(ids)
    assert records.duplicate_ids == 0
    compact = Groups()
    for key, step in enumerate((-1, -2, 0, 2**61 - 1, None), 1):
        assert compact.start(sample_slot(None, "a", step), key, 1) == 0
    assert compact.duplicate_ids == 0


def test_the_order_of_an_objects_fields_is_nothing():
    assert group_key(None, 1, None, "p", {"a": 1, "b": 2}) == group_key(None, 1, None, "p", {"b": 2, "a": 1})
    assert group_key(None, 1, None, "p", "1") != group_key(None, 1, None, "p", 1)


def test_keys_never_change():
    """Runs that are resumed, and files that are compared, hold keys written by earlier versions."""
    assert group_key(None, "q1", 3, "p", "4") == 0x638E23EC04E21236
    assert group_key("m", 1, None, [{"role": "user", "content": "é"}], None) == 0x991E67352CC76A33


@settings(max_examples=30)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 1), st.integers(1, 4)), max_size=60), st.integers(0, 20))
def test_counting_equals_a_plain_dictionary(tmp_path_factory, calls, few):
    """The compact tables against the obvious dictionary, with the change from one to the other at any moment."""
    before = groups._FEW
    groups._FEW = few
    try:
        compact, seen, sizes, duplicates = Groups(), {}, {}, 0
        for id, variant, count in calls:
            key = group_key(None, id, None, variant, None)
            assert compact.start(sample_slot(None, id, None), key, count) == sizes.get(key, 0)
            sizes[key] = sizes.get(key, 0) + count
            duplicates += seen.setdefault(id, key) != key
        assert compact.duplicate_ids == duplicates
    finally:
        groups._FEW = before


def test_the_tables_grow(monkeypatch):
    monkeypatch.setattr(groups, "_FEW", 10)
    monkeypatch.setattr(groups._Sizes, "_compact", _small_compact)
    compact = Groups()
    for repeat in range(3):
        for id in range(3000):
            assert compact.start(sample_slot(None, id, None), group_key(None, id, None, "", None), 2) == 2 * repeat


def _small_compact(self, few):
    self._few = None
    self._allot(16)
    for slot, (key, count) in few.items():
        self._add(slot or 1, key, count)


def test_identity_is_the_same_whatever_was_asked_before():
    """Trap: what is remembered of one row given to another that only looks like it."""
    rows = [
        (model, id, step, prompt, reference, group)
        for model in (None, "m")
        for id in ("1", 1, None)
        for step in (None, 1)
        for prompt in ("p", ["p"])
        for reference in ("1", 1, True, 1.0)
        for group in (None, MISSING, "g")
    ]
    used = Groups()
    for _ in range(2):
        for row in rows:
            assert used.identify(*row) == Groups().identify(*row)
    assert len({Groups().identify(*row)[1:] for row in rows if row[5] != "g"}) > 60
    assert used.duplicate_ids == 0


def test_what_is_remembered_is_bounded():
    used = Groups()
    for number in range(3 * groups._KEPT):
        used.identify(None, str(number), None, "p" * (20_000 if number % 2 else 1), "r", None)
    assert 0 < len(used._known) <= groups._KEPT
