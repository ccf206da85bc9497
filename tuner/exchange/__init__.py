"""Records to and from files, records of Kernel Tuner, and recorded spaces, on which searches are replayed."""

from tuner.exchange.files import Counts, export, merge, take
from tuner.exchange.kernel_tuner import Cached, is_cache, records_of
from tuner.store.streams import Selection

__all__ = ["Cached", "Counts", "Selection", "export", "is_cache", "merge", "records_of", "take"]
