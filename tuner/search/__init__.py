"""Search: which config to try next. The only package that imports Optuna."""

from tuner.search.history import Observation
from tuner.search.search import Candidate, Search

__all__ = ["Candidate", "Observation", "Search"]
