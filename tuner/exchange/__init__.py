"""Records to and from files, so that databases of several nodes become one, and records of Kernel Tuner."""

from tuner.exchange.files import Counts, export, merge, take
from tuner.exchange.kernel_tuner import Cached, is_cache, records_of
from tuner.store.streams import Selection

__all__ = ["Cached", "Counts", "Selection", "export", "is_cache", "merge", "records_of", "take"]
