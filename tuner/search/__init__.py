"""Search: which config to try next. Optuna is imported here, and where the service shows studies by it."""

from tuner.search.search import SAMPLERS as SAMPLERS
from tuner.search.search import Candidate as Candidate
from tuner.search.search import Search as Search
from tuner.search.search import SearchOptions as SearchOptions
from tuner.search.strategy import Known as Known
from tuner.search.strategy import Observation as Observation
from tuner.search.tile import front as front
from tuner.search.tile import front_value as front_value
