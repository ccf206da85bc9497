"""What holds for calls: what happens at a problem that nobody tuned, and the precision of products.

Each is as the call says, else the surrounding block, else the process, else the environment.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import cache
from types import TracebackType

from tuner.declare.problem import EMULATED, IEEE, PRECISIONS
from tuner.errors import InputError, UnknownName

#: The environment variable that says what holds where nothing else does.
VARIABLE = "TUNER_ON_MISS"
#: The library runs; what the lookup predicts runs; its best configs are measured.
LIBRARY, PREDICT, MEASURE = POLICIES = ("library", "predict", "measure")
#: Seconds of timing at the most, unless said.
SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class CallPolicy:
    """What happens at a problem without an exact answer. Equal ones are one object, and quick keys.

    Attributes:
        how: One of `POLICIES`.
        seconds: Seconds of timing at the most, where it is measured.
        wait: True to wait until it has been measured.
    """

    how: str = PREDICT
    seconds: float = SECONDS
    wait: bool = False


_policy = cache(CallPolicy)
#: The policy of the surrounding block; None where there is none.
CHOSEN: ContextVar[CallPolicy | None] = ContextVar("on_miss", default=None)
#: Called where the process' own policy changes.
CHANGED: list[Callable[[], None]] = []
#: The process' own policy: None until it is set, or the environment was read.
_own: list[CallPolicy | None] = [None]


def chosen() -> CallPolicy:
    """The policy that holds here.

    Raises:
        UnknownName: The environment's is none.
    """
    surrounding = CHOSEN.get()
    if surrounding is not None:
        return surrounding
    own = _own[0]
    if own is None:
        own = _own[0] = _policy(checked(os.environ.get(VARIABLE) or PREDICT, f"policy in {VARIABLE}", POLICIES))
    return own


class on_miss:  # noqa: N801 - called as a function is
    """Sets what happens at a problem that nobody tuned on its device.

    ``tuner.on_miss("measure")`` holds for the process from then on; as a context manager, for the block, in the
    present thread (or asynchronous task).

    - ``library``: the library runs.
    - ``predict``, the default: what the lookup answers runs, a kernel where its gain outweighs the uncertainty.
    - ``measure``: the 8 most promising configs and the library are compiled, verified and timed in a process
      beside this one, which waits its turn for the device. Meanwhile calls go on as with ``predict``; later
      ones, of other processes too, find the result in the database.
    """

    def __init__(self, how: str, *, seconds: float = SECONDS, wait: bool = False) -> None:
        """Sets it.

        Args:
            how: ``library``, ``predict`` or ``measure``.
            seconds: Seconds of timing at the most, for ``measure``.
            wait: True to have the first call wait for the result, for ``measure``.

        Raises:
            UnknownName: No such policy.
            InputError: Seconds that are not above 0.
        """
        if not (seconds > 0 and math.isfinite(seconds)):
            raise InputError(f"on_miss: seconds are a number above 0, got {seconds!r}; leave them away for 2")
        self._policy = _policy(checked(how, "policy", POLICIES), float(seconds), bool(wait))
        self._before = _own[0]
        self._token: Token[CallPolicy | None] | None = None
        _set(self._policy)

    def __enter__(self) -> None:
        """Holds for the block alone."""
        _set(self._before)
        self._token = CHOSEN.set(self._policy)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None, "entered before"
        CHOSEN.reset(self._token)


def _set(policy: CallPolicy | None) -> None:
    changed = policy is not _own[0]
    _own[0] = policy
    if changed:
        for each in CHANGED:
            each()


def checked(name: str, what: str, known: Collection[str]) -> str:
    """A name that is one of those that are known.

    Raises:
        UnknownName: It is none.
    """
    if name not in known:
        raise UnknownName(what, name, known)
    return name


#: The environment variable that says what holds where nothing else does.
PRECISION_VARIABLE = "TUNER_PRECISION"
#: What calls that do not say it themselves are computed in; checked when a call is prepared.
PRECISION: ContextVar[str] = ContextVar("precision", default=os.environ.get(PRECISION_VARIABLE) or IEEE)
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
    token = PRECISION.set(checked(name, "precision", PRECISIONS))
    try:
        yield
    finally:
        PRECISION.reset(token)


def precision_of(asked: str) -> str:
    """The precision of a call.

    Args:
        asked: What the call says; empty where it says nothing.

    Raises:
        UnknownName: No such precision.
    """
    what = "precision" if asked else f"precision in {PRECISION_VARIABLE}"
    return checked(asked or PRECISION.get(), what, PRECISIONS)


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
