"""A night: the problems of a plan share what is left until a deadline, in slices."""

from tuner.nightly.items import NightItem
from tuner.nightly.night import Night

__all__ = ["Night", "NightItem"]
