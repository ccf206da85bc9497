"""Search: which config to try next. The only package that imports Optuna."""

from tuner.search.budget import Budget
from tuner.search.pareto import front, front_value
from tuner.search.search import SAMPLERS, BackgroundSearch, Candidate, Known, Search, SearchOptions
from tuner.search.strategy import Observation

__all__ = [
    "SAMPLERS",
    "BackgroundSearch",
    "Budget",
    "Candidate",
    "Known",
    "Observation",
    "Search",
    "SearchOptions",
    "front",
    "front_value",
]
