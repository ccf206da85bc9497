"""Measures answers at drawn problems: each is answered, tuned for a while, and timed in turn."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice
from tuner.errors import NothingFound
from tuner.lookup.answers import Answer
from tuner.store import Store
from tuner.study.drawn import Drawn
from tuner.study.drawn_timing import compared
from tuner.study.opening import open_study
from tuner.study.progress import Request
from tuner.workers.crew import Crew


def measured(
    problems: Sequence[Problem],
    answers: Sequence[Callable[[Problem, Crew], Answer]],
    catalogue: Catalogue,
    device: DetectedDevice,
    seconds: float,
    regime: str = "cold",
    seed: int = 0,
) -> Iterator[tuple[Drawn, ...]]:
    """Answers each problem, tunes it for a while, and times answers, champion and library in turn.

    The studies' records are thrown away, so that the problems remain ones that nobody tuned.

    Args:
        problems: The problems.
        answers: Ways to look a problem up; the device's workers are at hand, open or not.
        catalogue: Kernels.
        device: Where.
        seconds: Of each study.
        regime: How time is taken.
        seed: Of the searches.

    Returns:
        A case for each way to look up, problem by problem.

    Raises:
        DeviceTrouble: The device stays unwell.
        Interrupted: SIGINT or SIGTERM came.
    """
    with tempfile.TemporaryDirectory() as folder, closing(Crew((device,))) as crew:
        for number, problem in enumerate(problems):
            found = [answer(problem, crew) for answer in answers]
            operation = problem.operation.name
            request = Request(
                problem, catalogue.of(operation, device.target, dtype=problem.dtype), (device,), regime,
                seconds,
                seed=seed + number,
            )  # fmt: skip
            with Store.open(f"sqlite:///{Path(folder) / f'{number}.db'}") as store:
                try:
                    with open_study(request, store, crew=crew) as study:
                        yield compared(study, found)
                except NothingFound as error:
                    yield tuple(
                        Drawn(problem, each.to_json(), None, None, None, why=str(error)) for each in found
                    )
