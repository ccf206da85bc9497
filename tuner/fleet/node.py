"""What Dask calls on a worker: functions by name, with plain data.

`KEEPER` is set by `tuner.fleet.worker` when the worker starts. A process that has none refuses: it is a Dask
worker that somebody else started.
"""

from __future__ import annotations

from typing import Any

from tuner.errors import EnvironmentTrouble
from tuner.fleet.keeper import Keeper
from tuner.fleet.orders import Answer, Greeting, Order, Report, WatchOrder
from tuner.results.sentinel import Sentinel

#: Topic of the messages about progress.
PROGRESS = "tile-tuner-progress"
#: The device of this worker.
KEEPER: Keeper | None = None


def keeper() -> Keeper:
    """The device of this worker.

    Raises:
        EnvironmentTrouble: The process is no worker of ours.
    """
    if KEEPER is None:
        raise EnvironmentTrouble("a worker is started by `tuner worker`, this one was not; start it so")
    return KEEPER


def greet(greeting: Greeting) -> Report:
    """See `Keeper.greet`."""
    return keeper().greet(greeting)


def time(order: WatchOrder) -> list[list[Sentinel]]:
    """See `Keeper.time`."""
    return keeper().time(order)


def work(order: Order) -> Answer:
    """Does a piece of work, and tells of its progress meanwhile."""
    from distributed import get_worker

    worker = get_worker()

    def told(progress: dict[str, Any]) -> None:
        worker.log_event(PROGRESS, {"claim": order.claim, "night": order.night, **progress})

    return keeper().work(order, told)


async def stop(why: str, claim: int | None = None) -> bool:
    """See `Keeper.stop`; called beside the task, on the worker's event loop.

    It is a coroutine, so that Dask need not wait for it: a worker that is frozen would never answer.
    """
    return KEEPER is not None and KEEPER.stop(why, claim)
