"""A reward and a preset."""

import re

from rewardkit import reward
from rewardkit_dates.iso_day import IsoDay


@reward(name="dates/mentions_year")
def mentions_year(completion, *, year: int = 2024):
    """1 when the year is mentioned."""
    return float(re.search(rf"\b{year}\b", completion) is not None)


iso_day_set = IsoDay() + 0.1 * mentions_year
