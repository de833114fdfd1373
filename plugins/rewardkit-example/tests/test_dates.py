from hypothesis import given
from hypothesis import strategies as st

from rewardkit import parse, read_generations, score, score_text
from rewardkit.testing import assert_contract, completions, generations, samples
from rewardkit_example.daylog import READER
from rewardkit_example.days import IsoDay, dated


def test_contracts():
    assert_contract(
        IsoDay(),
        accepts=[("on 2024-02-29", "2024-02-29"), ("2024-01-01, no: 2024-02-29", {"day": "2024-02-29"})],
        rejects=[("on 2024-02-28", "2024-02-29"), ("on 2024-02-30", "2024-02-29"), ("", "2024-02-29")],
    )
    assert_contract(dated, accepts=[("on 2024-02-29", None)], rejects=[("soon", None)])


@given(st.dates(), st.dates(), st.integers(0, 400))
def test_within_days_is_the_distance(day, other, within):
    judged = score_text(IsoDay(within_days=within), f"On {day}.", reference=f"{other}")
    assert judged.value == (abs((day - other).days) <= within)


@given(generations(samples(reference=st.dates().map(str)), completions()))
def test_whatever_a_model_writes_is_scored(generation):
    (scored,) = score({"day": IsoDay(), "dated": dated}, [generation])
    for right, any_date in zip(scored.scores["day"], scored.scores["dated"], strict=True):
        assert right.state == any_date.state == "scored"
        assert right.value <= any_date.value


def test_everything_is_registered(tmp_path):
    assert parse("'dates/iso_day'(within_days=2)") == IsoDay(within_days=2)
    assert parse("'dates/day_set'") == IsoDay() + 0.1 * dated
    file = tmp_path / "chat.daylog"
    file.write_text("Leap day? => 2024-02-29 => It is 2024-02-29.\nhalf a line\n", encoding="utf-8")
    (generation,) = read_generations(file, readers={"dates/daylog": READER})
    assert (generation.sample.reference, generation.completions[0].text) == ("2024-02-29", "It is 2024-02-29.")
