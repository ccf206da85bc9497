"""What the first call of a tuned function runs: the champion, what a lookup answers, or what is tuned then."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tuner.callables import policy as policies
from tuner.callables.policy import POLICIES, chosen
from tuner.declare.catalogue import Catalogue, from_file
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound, UnknownName
from tuner.lookup import Answer, answer
from tuner.lookup.asking import opened, parse_key
from tuner.requests.launching import run_shown
from tuner.requests.studies import StudyOptions, asked

#: Seconds of tuning at the first call, unless the function or the process says another number.
SECONDS = 10.0


def policy(own: str | None) -> str:
    """What a call without a champion does: the function's own policy, else that of `tuner.on_miss`.

    Raises:
        UnknownName: There is no such policy.
    """
    how = own or chosen().how
    if how not in POLICIES:
        raise UnknownName("policy on_miss", how, POLICIES)
    return how


def seconds_of(own: float | None) -> float:
    """Seconds of tuning at a first call: the function's own, else those that `tuner.on_miss` was given."""
    process = chosen().seconds
    return own or (SECONDS if process == policies.SECONDS else process)


@dataclass(frozen=True)
class FirstCall:
    """How a function finds its configs.

    Attributes:
        db: URL of the database.
        regime: How times are taken.
        on_miss: The function's own policy; None to follow the process.
        seconds: Seconds of tuning, where it is tuned; None to follow the process.
    """

    db: str
    regime: str = "cold"
    on_miss: str | None = None
    seconds: float | None = None

    def config(self, problem: Problem, found: DetectedDevice) -> Mapping[str, Any]:
        """The champion's config, or what the policy says.

        Raises:
            NothingFound: No config is legal.
        """
        try:
            known: Answer | None = self.answer(problem, found)
        except NothingFound:
            known = None
        usable = known is not None and not known.stale
        if known is not None and usable and known.match == "exact":
            return known.config
        how = policy(self.on_miss)
        if how == "measure":
            told = StudyOptions(
                device=found.spec, regime=self.regime, db=self.db, seconds=seconds_of(self.seconds)
            )
            try:
                return run_shown(asked(declared_by(problem), problem, told), False).config
            except NothingFound as nothing:
                warnings.warn(f"{nothing}; its first config runs", UserWarning, stacklevel=5)
        if how != "library" and known is not None and usable:
            return known.config
        return first_config(problem, found)

    def answer(self, problem: Problem, found: DetectedDevice) -> Answer:
        """What a lookup answers.

        Raises:
            NothingFound: No config is legal.
        """
        store = opened(self.db)
        try:
            return answer(store, parse_key(problem), found.info, self.regime, None, declared_by(problem))
        finally:
            if store is not None:
                store.close()


def declared_by(problem: Problem) -> Catalogue:
    """The file that declares a problem's kernel."""
    assert problem.operation.origin is not None, "a kernel of one's own has a file"
    return from_file(problem.operation.origin)


def first_config(problem: Problem, found: DetectedDevice) -> Config:
    """The config that a person would try first.

    Raises:
        NothingFound: None is legal.
    """
    [own] = declared_by(problem).of(problem.operation.name)
    space = Space.build(own.parameters, own.constraints, problem, found.info)
    if not len(space):
        raise NothingFound(
            f"no config of {own.name} is legal for {problem} on {found.info.name}; relax a restriction"
        )
    return next((each for each in own.first_configs() if each in space), space[0])
