"""The timings of a database's surveys, as a model is fitted to them."""

from __future__ import annotations

from collections.abc import Iterable

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.lookup.model.data import Timings
from tuner.results.surveyed import joined
from tuner.store import Store
from tuner.store.reading import Reader


def timings(
    store: Reader,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo | str,
    regime: str = "cold",
) -> Timings:
    """All that surveys timed of an operation on a kind of device, of kernels as they are now.

    Args:
        store: Where from.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        device: Where; a text is a uuid or a name.
        regime: How time was taken.

    Raises:
        NothingFound: Nothing of it was surveyed.
    """
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    found = joined(store.survey_parts(operation.name, device, regime), hashes)
    if not len(found.time_s):
        raise NothingFound(
            f"a model needs a survey, there is none of {operation.name} ({regime}) on "
            f"{device if isinstance(device, str) else device.name}; run `tuner survey {operation.name}`"
        )
    problems = [operation.problem(each.dims, each.dtype, each.layout) for each in found.problems]
    configs = [(kernel, Config(dict(config))) for kernel, config in found.configs]
    return Timings(
        problems, configs, found.problem, found.config, found.time_s, found.registers, found.provenance
    )


def from_database(
    url: str, operation: Operation, kernels: Iterable[Kernel], device: DeviceInfo, regime: str
) -> Timings:
    """Returns `timings` of a database.

    Raises:
        NothingFound: There is no database, or nothing of it was surveyed.
        StoreTrouble: The database cannot be read.
    """
    with Store.open(url, read_only=True) as store:
        return timings(store, operation, kernels, device, regime)
