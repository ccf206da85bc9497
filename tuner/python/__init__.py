"""Tuned kernels as functions: `matmul`, `gemv` and `transpose` on arrays, and `explain` for what they do.

They run the champion of the records, or the library where that was measured to be faster. They are attributes
of the package itself: ``tuner.matmul``.
"""

from tuner.python.decisions import CallableWarning
from tuner.python.explaining import Explanation, explain
from tuner.python.functions import Packed, clear_caches, fallbacks, gemv, matmul, pack, transpose
from tuner.python.misses import on_miss
from tuner.python.requests import precision

__all__ = [
    "CallableWarning",
    "Explanation",
    "Packed",
    "clear_caches",
    "explain",
    "fallbacks",
    "gemv",
    "matmul",
    "on_miss",
    "pack",
    "precision",
    "transpose",
]
