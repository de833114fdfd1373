"""Names -> entries: order, owners, what is refused, and what a failed lookup says."""

from __future__ import annotations

import pytest

from rewardkit.errors import PluginError, UnknownName
from rewardkit.registry import Entry, Kind, Owner, Registry

OURS = Owner("", "rewardkit", "0.1.0")
DATES = Owner("dates", "rewardkit-dates", "1.2")
RIVAL = Owner("dates", "other-dates", "3")


def entry(name: str, kind: Kind = "reward", owner: Owner = OURS, target: str = "package.module:thing") -> Entry:
    return Entry(kind, name, target, "One line", owner)


def registry_of(*entries: Entry) -> Registry:
    registry = Registry()
    for one in entries:
        registry.add(one)
    return registry


def refused(registry: Registry, one: Entry) -> str:
    with pytest.raises(PluginError) as caught:
        registry.add(one)
    return str(caught.value)


def test_order_is_ours_first_then_namespace_kind_name() -> None:
    registry = registry_of(
        entry("zoo/a", owner=Owner("zoo", "z", "1")),
        entry("b"),
        entry("dates/x", owner=DATES),
        entry("a", "verifier"),
        entry("a", "reader"),
        entry("a2"),
    )
    found = [(one.kind, one.name) for one in registry.entries()]
    assert found == [
        ("reader", "a"), ("reward", "a2"), ("reward", "b"), ("verifier", "a"), ("reward", "dates/x"),
        ("reward", "zoo/a"),
    ]  # fmt: skip
    assert [one.name for one in registry.entries("verifier", "reward")] == ["a2", "b", "a", "dates/x", "zoo/a"]


def test_verifiers_and_rewards_share_one_namespace_and_both_are_found_as_either() -> None:
    registry = registry_of(entry("gsm8k", "verifier"), entry("brief"))
    assert registry.get("reward", "gsm8k").kind == "verifier"
    assert registry.get("verifier", "brief").kind == "reward"
    assert "twice" in refused(registry, entry("gsm8k", "reward"))


def test_readers_backends_and_commands_have_names_of_their_own() -> None:
    registry = registry_of(*(entry("json", kind) for kind in ("verifier", "reader", "backend", "command")))
    assert registry.get("reader", "json").kind == "reader"
    with pytest.raises(UnknownName, match="there is no backend named 'jsonl'; did you mean json"):
        registry.get("backend", "jsonl")


def test_two_owners_of_one_name_are_both_named_when_it_is_claimed_and_when_it_is_used() -> None:
    registry = registry_of(entry("dates/day", owner=DATES))
    text = "'dates/day' is registered twice: by rewardkit-dates 1.2 and by other-dates 3; uninstall one of them"
    assert refused(registry, entry("dates/day", "verifier", RIVAL)) == text
    for kind in ("reward", "verifier"):
        with pytest.raises(PluginError) as caught:
            registry.get(kind, "dates/day")
        assert str(caught.value) == text


def test_the_other_names_of_a_rival_stay_usable() -> None:
    registry = registry_of(entry("dates/day", owner=DATES), entry("dates/month", owner=RIVAL))
    assert registry.get("reward", "dates/month").owner == RIVAL


def test_one_owner_that_registers_a_name_twice_is_not_told_to_uninstall_one_of_two() -> None:
    registry = registry_of(entry("dates/day", owner=DATES))
    assert refused(registry, entry("dates/day", owner=DATES)) == "rewardkit-dates 1.2: it registers 'day' twice"
    assert registry.get("reward", "dates/day").owner == DATES


def test_commands_clash_by_what_is_typed_and_ours_cannot_be_taken() -> None:
    registry = registry_of(entry("list", "command"), entry("dates/report", "command", DATES))
    text = refused(registry, entry("zoo/report", "command", Owner("zoo", "z", "1")))
    assert text == "command 'report' is registered twice: by rewardkit-dates 1.2 and by z 1; uninstall one of them"
    with pytest.raises(PluginError, match="twice"):
        registry.get("command", "report")
    assert "twice" in refused(registry, entry("dates/list", "command", DATES))
    assert registry.get("command", "list").owner == OURS


@pytest.mark.parametrize("name", ["Upper", "a-b", "1st", "", "naïve", "a b", "a\n", "_a", "a.b", "ａ", "x" + "\0"])
def test_malformed_names_are_refused_with_their_owner(name: str) -> None:
    text = refused(Registry(), entry(f"dates/{name}", owner=DATES))
    assert text.startswith("rewardkit-dates 1.2: ") and "[a-z][a-z0-9_]*" in text


@pytest.mark.parametrize("name", ["dates/other/day", "other/day", "day", "/day"])
def test_nobody_registers_a_name_in_a_namespace_that_is_not_theirs(name: str) -> None:
    assert "outside of its namespace 'dates'" in refused(Registry(), entry(name, owner=DATES))
    if "/" in name:
        assert "outside of its namespace" in refused(Registry(), entry(name))


@pytest.mark.parametrize(
    "target",
    ["", "module", ":thing", "module:", "a..b:c", "a.:b", "a:b:c", "a b:c", "a:b()", "1a:b", "a:b\n", "file.py:thing",
     "/abs/file.py:thing", "../x:y", None, 5, ("a", "b")],
)  # fmt: skip
def test_malformed_targets_are_refused(target: object) -> None:
    text = refused(Registry(), entry("a", target=target))  # type: ignore[arg-type]
    assert "'package.module:attribute'" in text and repr(target) in text


@pytest.mark.parametrize("target", ["a:b", "a.b.c:d.e", "_a1:B_2", "naïve:größe"])
def test_import_strings_are_taken(target: str) -> None:
    assert registry_of(entry("a", target=target)).by_target(target) is not None


def test_a_summary_is_text() -> None:
    one = Entry("reward", "a", "m:t", None, OURS)  # type: ignore[arg-type]
    assert "the summary of 'a' is one line of text, got None" in refused(Registry(), one)


def test_removing_an_owner_leaves_the_others() -> None:
    registry = registry_of(entry("dates/a", owner=DATES), entry("dates/b", owner=RIVAL), entry("c"))
    registry.remove(DATES)
    assert [one.name for one in registry.entries()] == ["c", "dates/b"]


def test_an_unknown_name_comes_with_the_nearest_or_with_all() -> None:
    registry = registry_of(entry("gsm8k"), entry("numeric"), entry("jsonl", "reader"))
    with pytest.raises(UnknownName) as near:
        registry.get("reward", "gsmk8")
    assert str(near.value) == "there is no reward named 'gsmk8'; did you mean gsm8k? `rewardkit list` shows all"
    with pytest.raises(UnknownName) as far:
        registry.get("reward", "zzz")
    assert str(far.value) == "there is no reward named 'zzz'; known are gsm8k, numeric"
    with pytest.raises(UnknownName, match="known are none"):
        Registry().get("reward", "a")


def test_a_name_of_a_broken_plugin_says_why_and_all_reasons_are_kept() -> None:
    registry = registry_of(entry("dates/ok", owner=RIVAL))
    registry.mark_broken("dates", "needs the module 'x'")
    registry.mark_broken("dates", "a second reason")
    with pytest.raises(PluginError) as caught:
        registry.get("reward", "dates/day")
    assert str(caught.value) == (
        "'dates/day' belongs to plugin 'dates', which does not load: needs the module 'x'; a second reason"
    )
    assert registry.get("reward", "dates/ok").owner == RIVAL
    with pytest.raises(UnknownName):
        registry.get("reward", "day")


def test_by_target_knows_nothing_of_what_has_no_target() -> None:
    registry = registry_of(entry("a", target="m:x"))
    assert registry.by_target(None) is None
    assert registry.by_target("m:y") is None
    found = registry.by_target("m:x")
    assert found is not None and found.name == "a"
