"""What happens at a problem that nobody tuned: as the block says, else the process, else the environment."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from contextvars import ContextVar, Token
from dataclasses import dataclass
from functools import cache
from types import TracebackType

from tuner.errors import InputError, UnknownName

#: The environment variable that says what holds where nothing else does.
VARIABLE = "TUNER_ON_MISS"
#: The library runs; what the lookup predicts runs; its best configs are measured.
LIBRARY, PREDICT, MEASURE = POLICIES = ("library", "predict", "measure")
#: Seconds of timing at the most, unless said.
SECONDS = 2.0


@dataclass(frozen=True, eq=False)
class Policy:
    """What happens at a problem without an exact answer. Equal ones are one object, and quick keys.

    Attributes:
        how: One of `POLICIES`.
        seconds: Seconds of timing at the most, where it is measured.
        wait: True to wait until it has been measured.
    """

    how: str = PREDICT
    seconds: float = SECONDS
    wait: bool = False


_policy = cache(Policy)
#: The policy of the surrounding block; None where there is none.
CHOSEN: ContextVar[Policy | None] = ContextVar("on_miss", default=None)
#: Called where the process' own policy changes.
CHANGED: list[Callable[[], None]] = []
#: The process' own policy: None until it is set, or the environment was read.
_own: list[Policy | None] = [None]


def chosen() -> Policy:
    """The policy that holds here.

    Raises:
        UnknownName: The environment's is none.
    """
    surrounding = CHOSEN.get()
    if surrounding is not None:
        return surrounding
    own = _own[0]
    if own is None:
        own = _own[0] = _policy(_checked(os.environ.get(VARIABLE) or PREDICT, f"policy in {VARIABLE}"))
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
        self._policy = _policy(_checked(how, "policy"), float(seconds), bool(wait))
        self._before = _own[0]
        self._token: Token[Policy | None] | None = None
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


def _set(policy: Policy | None) -> None:
    changed = policy is not _own[0]
    _own[0] = policy
    if changed:
        for each in CHANGED:
            each()


def _checked(name: str, what: str) -> str:
    if name not in POLICIES:
        raise UnknownName(what, name, POLICIES)
    return name
