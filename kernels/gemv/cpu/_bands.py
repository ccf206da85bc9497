"""Rules that gemv kernels for CPUs share: threads take bands of BLOCK elements of y."""

from tuner import Constraint
from tuner.declare.rules import below_multiple

#: Elements of the narrowest band.
LEAST_BAND = 16


def band_within_rows() -> Constraint:
    """A band does not reach far beyond y."""
    return below_multiple(
        "a band has less than twice the rows of A, or the fewest",
        lambda p, c: c.BLOCK, LEAST_BAND, lambda p, c: p.m,
    )  # fmt: skip
