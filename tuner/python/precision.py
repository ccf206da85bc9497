"""The precision of a product: as its call says, else the surrounding `precision`, else the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tuner.declare.problem import EMULATED, IEEE, PRECISIONS
from tuner.errors import InputError, UnknownName

#: The environment variable that says what holds where nothing else does.
VARIABLE = "TUNER_PRECISION"
#: What calls that do not say it themselves are computed in; checked when a call is prepared.
CHOSEN: ContextVar[str] = ContextVar("precision", default=os.environ.get(VARIABLE) or IEEE)
#: Dtypes of products that the emulated precision is for.
EMULATED_DTYPES = ("float32",)


@contextmanager
def precision(name: str) -> Iterator[None]:
    """Has products inside the ``with`` block computed in a precision, unless a call says another.

    It holds for the present thread (or asynchronous task). Products of other dtypes than float32 are not
    touched.

    Args:
        name: ``ieee``, products and sums in the dtype itself; or ``emulated``, any arithmetic that is as exact
            as the library's for the inputs at hand.

    Raises:
        UnknownName: No such precision.
    """
    token = CHOSEN.set(checked(name, "precision"))
    try:
        yield
    finally:
        CHOSEN.reset(token)


def chosen(asked: str) -> str:
    """The precision of a call.

    Args:
        asked: What the call says; empty where it says nothing.

    Raises:
        UnknownName: No such precision.
    """
    return checked(asked, "precision") if asked else checked(CHOSEN.get(), f"precision in {VARIABLE}")


def checked(name: str, what: str) -> str:
    """The name of a precision.

    Raises:
        UnknownName: It is none.
    """
    if name not in PRECISIONS:
        raise UnknownName(what, name, PRECISIONS)
    return name


def check_dtypes(asked: str, dtypes: set[str]) -> None:
    """Refuses a call that asks for the emulated precision itself, with arrays that it is not for.

    Raises:
        InputError: An array is not float32.
    """
    others = sorted(dtypes - set(EMULATED_DTYPES))
    if asked == EMULATED and others:
        raise InputError(
            f"matmul: precision {asked!r} is for float32, got {' and '.join(others)}; convert the arrays with "
            f".astype('float32'), or use precision {IEEE!r}"
        )
