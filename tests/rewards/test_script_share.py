"""`script_share`: letters by script, from nothing but the names of the Unicode database."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reward_cases import cases, check, judge

from rewardkit.errors import OptionError
from rewardkit.rewards.script_share import SCRIPTS, script_share

# Letters of each script, as ranges of the Unicode standard's Scripts.txt: an oracle without names.
RANGES = {
    "Latin": ("AZ", "az", "ÀÖ", "Øö", "Āʸ", "Ḁỿ"),
    "Greek": ("Αώ",),
    "Cyrillic": ("Ѐҁ", "Ҋӿ"),
    "Hebrew": ("את",),
    "Arabic": ("ؠؿ", "في"),
    "Devanagari": ("अह",),
    "Thai": ("กะ",),
    "Georgian": ("აჺ",),
    "Hiragana": ("ぁゖ",),
    "Katakana": ("ァヺ",),
    "Hangul": ("가힣",),
    "Han": ("一鿋", "㐀䶵", "𠀀𪛖"),
}
LETTERS = st.sampled_from(sorted(RANGES)).flatmap(
    lambda script: st.sampled_from(RANGES[script]).flatmap(
        lambda ends: st.tuples(st.just(script), st.characters(min_codepoint=ord(ends[0]), max_codepoint=ord(ends[1])))
    )
)


@cases("script_share")
def test_a_text_is_judged(case):
    check(script_share, case)


@given(
    st.lists(LETTERS.filter(lambda pair: pair[1].isalpha()), min_size=1, max_size=30), st.sampled_from(sorted(RANGES))
)
def test_shares_equal_those_of_the_ranges(pairs, script):
    text = "".join(letter for _, letter in pairs)
    mine = sum(owner == script for owner, _ in pairs)
    assert judge(script_share, text, options={"script": script}).value == pytest.approx(mine / len(pairs))


@given(st.text(max_size=60))
def test_shares_add_up_to_at_most_1(text):
    assert sum(judge(script_share, text, options={"script": script}).value for script in SCRIPTS) <= 1 + 1e-9


@given(st.text(alphabet=st.characters(exclude_categories=["L"]), max_size=40), st.text("абв", min_size=1, max_size=9))
def test_what_is_no_letter_makes_no_difference(rest, letters):
    text = "abc" + letters + rest
    assert judge(script_share, text).value == pytest.approx(3 / (3 + len(letters)))


@given(st.text(alphabet="aб1 ", max_size=40), st.floats(0.01, 1), st.floats(0.01, 1))
def test_a_lower_bar_never_earns_less(text, one, other):
    low, high = sorted((one, other))
    assert (
        judge(script_share, text, options={"at_least": low}).value
        >= judge(script_share, text, options={"at_least": high}).value
    )


@pytest.mark.parametrize("options", [{"at_least": 0}, {"at_least": 1.1}, {"at_least": -1.0}, {"script": "latin"}])
def test_impossible_options_are_an_error_not_a_score(options):
    with pytest.raises(OptionError, match=next(iter(options))):
        judge(script_share, "abc", options=options)


def test_every_script_is_documented_and_near_names_are_suggested():
    assert all(f'"{script}"' in str(script_share.__doc__) for script in SCRIPTS)
    with pytest.raises(OptionError, match="did you mean Cyrillic"):
        judge(script_share, "abc", options={"script": "cyrilic"})


def test_a_megabyte_ends():
    assert judge(script_share, "aб" * 500_000).value == 0.5
    assert judge(script_share, "".join(map(chr, range(0x4E00, 0x9FA5))) * 48, options={"script": "Han"}).value == 1.0
