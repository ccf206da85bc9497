"""Records to and from files, so that databases of several nodes become one, and records of Kernel Tuner."""

from tuner.store.streams import Selection
from tuner.travel.files import Counts, export, merge, take
from tuner.travel.kernel_tuner import Cached, is_cache, records_of

__all__ = ["Cached", "Counts", "Selection", "export", "is_cache", "merge", "records_of", "take"]
