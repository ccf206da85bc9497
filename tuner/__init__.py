"""Autotuning of parameterised compute kernels: search, measure, store, look up, export.

Importing this package loads no GPU, SQL or Optuna code; each of those loads where it is first needed.
"""

__version__ = "0.1.0"
