"""The timings of a database's surveys, as a model is fitted to them."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import NothingFound
from tuner.lookup.model.data import LIBRARY, Timings
from tuner.results.surveyed import joined
from tuner.store import Store
from tuner.store.reading import Reader


def timings(
    store: Reader,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo | str,
    regime: str = "cold",
    dtype: str = "",
) -> Timings:
    """All that surveys timed of an operation on a kind of device, of kernels as they are now.

    Args:
        store: Where from.
        operation: What was timed.
        kernels: Configs of other sources than theirs are left out.
        device: Where; a text is a uuid or a name.
        regime: How time was taken.
        dtype: Of the problems; the operation's first unless given.

    Raises:
        NothingFound: Nothing of it was surveyed.
    """
    dtype = dtype or operation.dtypes[0]
    hashes = {kernel.name: kernel.source_hash for kernel in kernels}
    found = joined(store.survey_parts(operation.name, device, regime), hashes)
    asked = np.array([each.dtype == dtype for each in found.problems], bool)
    rows = asked[found.problem] if len(asked) else np.zeros(0, bool)
    if not rows.any():
        raise NothingFound(
            f"a model needs a survey, there is none of {operation.name} ({dtype}, {regime}) on "
            f"{device if isinstance(device, str) else device.name}; run `tuner survey {operation.name}`"
        )
    problems, problem = np.unique(found.problem[rows], return_inverse=True)
    configs, config = np.unique(found.config[rows], return_inverse=True)
    library = int(configs[0] == LIBRARY)  # it has no place among the configs
    chosen = [found.configs[at] for at in configs[library:].tolist()]
    named = [found.problems[at] for at in problems.tolist()]
    return Timings(
        [operation.problem(each.dims, each.dtype, each.layout) for each in named],
        [(kernel, Config(dict(values))) for kernel, values in chosen], problem, config - library,
        found.time_s[rows], found.registers[configs[library:]], found.provenance,
    )  # fmt: skip


def from_database(
    url: str,
    operation: Operation,
    kernels: Iterable[Kernel],
    device: DeviceInfo | str,
    regime: str,
    dtype: str = "",
) -> Timings:
    """Returns `timings` of a database.

    Raises:
        NothingFound: There is no database, or nothing of it was surveyed.
        StoreTrouble: The database cannot be read.
    """
    with Store.open(url, read_only=True) as store:
        return timings(store, operation, kernels, device, regime, dtype)
