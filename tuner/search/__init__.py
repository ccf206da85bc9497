"""Search: which config to try next. The only package that imports Optuna."""

from tuner.search.budget import Budget
from tuner.search.search import SAMPLERS, Candidate, Known, Search, SearchOptions
from tuner.search.strategy import Observation
from tuner.search.tile import front, front_value

__all__ = [
    "SAMPLERS",
    "Budget",
    "Candidate",
    "Known",
    "Observation",
    "Search",
    "SearchOptions",
    "front",
    "front_value",
]
