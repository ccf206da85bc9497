"""Tuned kernels as functions: `matmul`, `gemv` and `transpose` on arrays, and `explain` for what they do.

They run the champion of the records, or the library where that was measured to be faster. They are attributes
of the package itself: ``tuner.matmul``.
"""

from tuner.python.decisions import CallableWarning as CallableWarning
from tuner.python.explaining import Explanation as Explanation
from tuner.python.functions import matmul as matmul
from tuner.python.misses import on_miss as on_miss
