"""The e-mail rubric: a table of cases by hand, what must hold for any text, and where columns and options come from."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rewardkit import Completion, Engine, Generation, Sample, parse, score
from rewardkit.errors import ColumnError, OptionError
from rewardkit.rewards.email import rewards
from rewardkit.rewards.email.greeting import is_person, name_words
from rewardkit.rewards.email.layout import has_phone, read_mail, split_quoted
from rewardkit.rewards.email.mail import from_html

CASES = [
    json.loads(line) for line in (Path(__file__).parents[1] / "cases" / "email.jsonl").read_text("utf-8").splitlines()
]
PARTS = ("email_keywords", "email_match", "email_too_long", "email_recipient", "email_signature")
IDEAL = "Dear Anna,\nyour refund is on its way.\n\nBest regards,\nTom Fisher\ntom@example.com"
ROW = {"keywords": ["refund"], "recipient": "Anna Smith", "max_words": 40}


def judge(part: str, text: str, reference: object = None, prompt: object = "", columns=None, **options: object):
    reward = getattr(rewards, part)
    reward = reward.with_options(**options) if options else reward
    (scored,) = score({"it": reward}, [Generation(Sample(0, prompt, reference, columns or {}), (Completion(text),))])
    return scored.scores["it"][0]


def judge_unchecked(case: dict):
    reward = getattr(rewards, case["part"])
    reward = reward.with_options(**case["options"]) if "options" in case else reward
    sample = Sample(0, "", case.get("reference"), case.get("columns", {}))
    with Engine({"it": reward}) as engine:
        (scored,) = engine.score_unchecked([Generation(sample, (Completion(case["text"]),))])
    return scored.scores["it"][0]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['part']}: {case['why']}")
def test_a_case_by_hand(case):
    found = judge_unchecked(case)
    assert (found.value, found.reason) == (case["value"], case.get("reason")), found.why
    assert case["detail"] in found.detail


def test_the_table_has_all_parts_and_says_why():
    assert {case["part"] for case in CASES} == {*PARTS, "email_set"}
    assert len(CASES) >= 40 and all(case["why"] for case in CASES)


# ----------------------------------------------------------------------------------------- columns and options


def test_a_column_goes_before_the_option_and_the_completions_own_before_the_rows():
    assert judge("email_recipient", "Dear Anna,", columns={"recipient": "Anna"}, recipient="Bob").value == 1
    assert judge("email_recipient", "Dear Bob,", columns={"recipient": None, "x": 1}, recipient="Bob").value == 1
    sample = Sample(0, metadata={"recipient": "Anna"})
    both = (Completion("Dear Bob,", metadata={"recipient": "Bob"}), Completion("Dear Bob,"))
    (scored,) = score(rewards.email_recipient, [Generation(sample, both)])
    assert [one.value for one in scored.scores["email_recipient"]] == [1, 0]


def test_only_what_a_row_has_to_say_is_a_column():
    row = {"keywords": ["a", "b"], "need": "any", "fold_accents": True, "recipient": "José"}
    assert judge("email_keywords", "Dear a,", columns=row).value == 0
    assert judge("email_recipient", "Dear Jose,", columns=row).value == 0


def test_a_missing_column_is_named_before_anything_is_scored_with_the_nearest():
    generation = Generation(Sample("q1", reference=IDEAL, metadata={"keyword": ["x"]}), (Completion(IDEAL),))
    with pytest.raises(ColumnError, match=r"email_keywords needs column 'keywords'.*did you mean keyword\?"):
        list(score(rewards.email_set, [generation]))
    assert rewards.email_keywords.needs == ("keywords",)
    assert rewards.email_keywords.with_options(keywords=["x"]).needs == ()
    assert rewards.email_too_long.needs == () and rewards.email_match.needs == ("reference",)


def test_a_row_without_the_column_abstains_and_others_are_scored():
    rows = [
        Generation(Sample(i, metadata=m), (Completion("Dear Anna,"),))
        for i, m in enumerate([{"recipient": "Anna"}, {}])
    ]
    found = [one.scores["email_recipient"][0] for one in score(rewards.email_recipient, rows)]
    assert [(one.value, one.reason) for one in found] == [(1, None), (None, "missing")]


@pytest.mark.parametrize(
    "formula",
    ["email_keywords(keywords='refund')", "email_too_long(max_words='5')", "email_recipient(recipient=5)",
     "email_signature(contact='yes')", "email_keywords(need='some')"],
)  # fmt: skip
def test_options_are_typed(formula):
    name, _, options = formula.partition("(")
    key, _, value = options.rstrip(")").partition("=")
    with pytest.raises(OptionError, match=key):
        getattr(rewards, name).with_options(**{key: int(value) if value.isdigit() else value.strip("'")})


def test_a_negative_limit_is_no_score():
    assert judge("email_too_long", "a b", columns={"max_words": -1}).reason == "bad_reference"
    with pytest.raises(OptionError, match="max_words"):
        judge("email_too_long", "a b", max_words=-1)


def test_parts_with_options_pickle_and_travel():
    kept = rewards.email_keywords.with_options(keywords=["a", "b"], need="any")
    assert pickle.loads(pickle.dumps(kept)) == kept and type(pickle.loads(pickle.dumps(kept))) is type(kept)
    assert pickle.loads(pickle.dumps(rewards.email_set)) == rewards.email_set
    assert parse("'rewardkit.rewards.email.rewards:email_keywords'(keywords=['a', 'b'], need='any')") == kept


def test_the_set_adds_up_its_parts():
    whole = judge("email_set", IDEAL, IDEAL, columns=ROW)
    assert [part.name for part in whole.parts] == list(PARTS)
    assert whole.value == sum(part.value for part in whole.parts) == 4


# -------------------------------------------------------------------------------------------------- the parts of a mail


@pytest.mark.parametrize(
    "line",
    [
        "On Mon, 5 May 2025 at 10:12, Anna Smith <a@x.org> wrote:",
        "Am Mo., 5. Mai 2025 um 10:12 Uhr schrieb Anna Smith <a@x.org>:",
        "Le lun. 5 mai 2025 à 10:12, Anna Smith <a@x.org> a écrit :",
        "El lun, 5 may 2025 a las 10:12, Anna Smith (<a@x.org>) escribió:",
        "Em seg., 5 de mai. de 2025 às 10:12, Anna Smith <a@x.org> escreveu:",
        "Il giorno lun 5 mag 2025 alle ore 10:12 Anna Smith <a@x.org> ha scritto:",
        "Op ma 5 mei 2025 om 10:12 schreef Anna Smith <a@x.org>:",
        "Den mån 5 maj 2025 kl 10:12 skrev Anna Smith <a@x.org>:",
        "W dniu 5.05.2025 o 10:12, Anna Smith pisze:",
        "Dne 5. 5. 2025 v 10:12 Anna Smith napsal(a):",
        "5 мая 2025 г., в 10:12, Anna Smith <a@x.org> написал(а):",
        "пн, 5 мая 2025 г. в 10:12, Anna Smith <a@x.org> пишет:",
        "Anna Smith <a@x.org> 于2025年5月5日周一 10:12写道：",
        "2025年5月5日(月) 10:12 Anna Smith <a@x.org> のメール:",
        "-----Original Message-----",
        "---------- Forwarded message ---------",
        "Begin forwarded message:",
    ],
)
def test_what_follows_an_attribution_is_quoted(line):
    own, quoted = split_quoted(["Yes.", "", line, "", "Where is it?"])
    assert own == ["Yes.", ""] and quoted[-1] == "Where is it?"


@pytest.mark.parametrize(
    ("line", "is_phone"),
    [
        ("+1 555 010 0199", True), ("(030) 1234-567", True), ("Tel.: 5550100", True), ("030/123 45 67", True),
        ("2024-02-29", False), ("29.02.2024", False), ("Order #1234567890", False), ("12345678", False),
        ("12,50", False), ("+1 555", False), ("1234 5678 9012 3456 7890", False),
    ],
)  # fmt: skip
def test_a_telephone_number_is_no_date_and_no_order(line, is_phone):
    assert has_phone(line) is is_phone


def test_html_becomes_lines_and_keeps_what_is_quoted_apart():
    text = "<style>p{}</style><p>Dear&nbsp;Anna,</p><!-- x --><div class='gmail_quote'>a<div>b</div></div><div>c</div>"
    assert from_html(text).split("\n") == ["Dear Anna,", "", "> a", "> b", "c"]


def test_a_fence_inside_an_email_is_no_email():
    mail = read_mail("Dear Anna,\nrun this:\n\n```\npip install x\n```\n\nBest,\nTom")
    assert mail.greeting is not None and "pip install x" in mail.body


# -------------------------------------------------------------------------------------------------------- properties

NAMES = st.lists(
    st.sampled_from(["anna", "ann", "smith", "müller", "van", "der", "berg", "li"]), min_size=1, max_size=3, unique=True
)


@given(NAMES, NAMES)
def test_whose_name_it_is_can_be_asked_both_ways(one, other):
    assert is_person(tuple(one), tuple(other)) == is_person(tuple(other), tuple(one))
    assert is_person(tuple(one), tuple(one))


TITLED = ["don", "ma", "al", "van", "le", "mary-ann", "mary", "ann", "smith"]


@given(*[st.lists(st.sampled_from(TITLED), min_size=1, max_size=3, unique=True)] * 2)
def test_titles_that_are_names_and_hyphens_can_be_asked_both_ways(one, other):
    assert is_person(tuple(one), tuple(other)) == is_person(tuple(other), tuple(one))


def test_words_of_the_wanted_name_are_never_dropped_from_the_given_one():
    assert name_words("Dr. Don Smith") == ("don", "smith") and name_words("Anna Smith, MA") == ("anna", "smith")
    assert name_words("Don Smith", own=("don", "smith")) == ("don", "smith")
    assert name_words("Don Juan", own=("juan", "perez")) == ("juan",)
    assert name_words("Ms. Ma", own=("anna",)) == ("ma",) and name_words("Dr.", own=("anna",)) == ()


@given(st.text("ab -'é.", max_size=12), st.text("ab -'é.", max_size=12))
def test_a_name_is_whole_words(one, other):
    """Two single words that differ never are one person, unless one is an initial."""
    first, second = name_words(one), name_words(other)
    if len(first) == len(second) == 1 and first != second:
        assert not is_person(first, second)


@given(st.text(max_size=60))
def test_quoting_a_text_makes_it_nobodys(text):
    quoted = "\n".join(f"> {line}" for line in text.splitlines() or [""])
    found = judge("email_keywords", f"Dear Anna,\nyes.\n\n{quoted}", columns={"keywords": ["refund"]})
    assert found.value == 0
    assert judge("email_signature", f"Dear Anna,\nyes.\n\n{quoted}").value == 0


PIECES = [
    "Dear Anna,", "Hi", "\n", "\n\n", "> ", "-- ", "Best regards,", "Tom Fisher", "+1 555 010 0199", "On 5 May wrote:",
    "```", "---", "<p>", "</p>", "<div", "<!--", "Subject: x", "To: ", "<think>", "</think>", "From: a", "=?utf-8?q?",
    "Here is your reply:", "Content-Type: multipart/mixed; boundary=b", "--b", "\x00", "\u202e", "🧮", "王先生",
    " ", "\ud800",
]  # fmt: skip


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_any_text_is_judged_and_the_parts_stay_in_their_bounds(text):
    bounds = {"email_too_long": {-1.0, 0.0}}
    for part in PARTS:
        found = judge(part, text, IDEAL, columns=ROW)
        assert found.value in bounds.get(part, {0.0, 1.0}), found.why
        if not text.strip():
            assert found.value == 0


@given(st.integers(0, 60), st.integers(0, 60))
def test_a_longer_email_never_loses_less(one, other):
    fewer, more = sorted((one, other))
    values = [
        judge("email_too_long", "Dear Anna,\n" + "word " * size, columns={"max_words": 30}).value
        for size in (fewer, more)
    ]
    assert values[0] >= values[1]


HOSTILE = [
    "<", "<!--", "<a ", "<p>", "</p>", "<blockquote>", "<a b='", "Thanks\n", "Thanks\n\n", "Best, Tom\n",
    "On \n", "> ", "```\n", "```email\n", "--\n", "-- \n", "---\n", "To: ", "To: a\n",
    "From: a\nTo: b\n", "=?utf-8?q?a?= ", "\"", "(", "Dear ", "Dear Anna, ", "Anna, ", "a@", "+1 ", "1-",
    "[", "{", "[a] ", "\n", " ", "a\n\n\n", "<answer>", "<think>", "X-a: b\n", "王", "|", "On 1 wrote",
    "Am ", "A.", "- ", " a\n",
]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_large_texts_of_anything_end(piece):
    """Linear time: each would take minutes in quadratic time, so no clock is asked."""
    for head in ("", "Dear Anna,\n", "To: a\nContent-Type: multipart/mixed; boundary=b\n\n--b\n"):
        text = head + piece * (99_000 // len(piece))
        for part in ("email_match", "email_signature"):  # each reads the e-mail once; the others share it
            assert judge(part, text, "x").state == "scored"


def test_a_megabyte_is_no_email():
    for part in PARTS:
        found = judge(part, "Dear Anna,\nrefund " + "x " * 500_000, IDEAL, columns=ROW)
        assert (found.value, found.reason) == (-1 if part == "email_too_long" else 0, "too_large")
    assert judge("email_recipient", "<think>" + "x" * 10**6 + "</think>Dear Anna,", columns=ROW).value == 1
