"""``tuner devices``, ``tuner kernels`` and ``tuner doctor``: inspect devices, kernels and this machine."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from tuner.cli.formatting import print_json, table
from tuner.cli.options import OPERATION, database_option, json_option
from tuner.declare.catalogue import builtin, kernels_json
from tuner.devices.detect import DetectedDevice, find, gpus, own_devices
from tuner.devices.device_lock import device_holder
from tuner.devices.machine_load import MachineWatch
from tuner.devices.settings import check_cache
from tuner.errors import DeviceTrouble, EnvironmentTrouble, NothingFound, TunerError
from tuner.lookup.asking import DEFAULT_DATABASE
from tuner.workers.device_worker import DeviceWorker


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices of this machine; commands use the first unless --device names another."""
    found = own_devices()
    if as_json:
        print_json([device.to_json() for device in found])
        return
    rows = [
        (
            each.spec, each.info.name, each.info.architecture, f"{each.info.memory_bytes / 2**30:.0f} GiB",
            " ".join((each.info.driver, each.info.runtime)), each.info.uuid,
        )
        for each in found
    ]  # fmt: skip
    table("", ("device", "name", "architecture", "memory", "driver", "uuid"), rows)


@click.command()
@click.argument("operation", required=False, shell_complete=OPERATION)
@json_option
def kernels(operation: str | None, as_json: bool) -> None:
    """List the kernels, with their parameters and constraints."""
    catalogue = builtin()
    found = catalogue.of(operation) if operation else catalogue.kernels
    if as_json:
        print_json(kernels_json(catalogue, operation or ""))
        return
    for kernel in found:
        rows = [(each.name, " ".join(map(str, each.values))) for each in kernel.parameters]
        table(f"{kernel.operation} {kernel.target} {kernel.name}: {kernel.idea}", ("parameter", "values"), rows)
        for constraint in kernel.constraints:
            click.echo(f"  - {constraint.sentence}")
        click.echo()


@click.command()
@database_option
@json_option
def doctor(db: str, as_json: bool) -> None:
    """Check this machine, and print a remedy for each problem."""
    found = list(checks(db or DEFAULT_DATABASE))
    if as_json:
        print_json([each.to_json() for each in found])
    else:
        marks = {"ok": "ok", "note": "note", "bad": "BAD"}
        rows = [(marks[each.state], each.what, each.said, each.remedy) for each in found]
        table("", ("", "what", "found", "what to do"), rows)
    if any(each.state == "bad" for each in found):
        raise click.exceptions.Exit(3)


#: Free disk below this is worth a word.
LITTLE_DISK_BYTES = 1 << 30
#: Seconds for which a CPU is watched.
LOOK_S = 0.5
PACKAGES = ("tile-tuner", "numpy", "numba", "optuna", "SQLAlchemy", "cupy-cuda13x", "cupy-cuda12x")


@dataclass(frozen=True)
class Check:
    """The result of one check.

    Attributes:
        what: Name of the check.
        state: ``ok``, ``note`` (works, but worth knowing) or ``bad``.
        said: What was found.
        remedy: What to do; empty if nothing is needed.
    """

    what: str
    state: str
    said: str
    remedy: str = ""

    def to_json(self) -> dict[str, str]:
        """The check as a JSON object."""
        return asdict(self)


def checks(url: str) -> Iterator[Check]:
    """All checks, one after the other."""
    yield Check("Python", "ok", platform.python_version())
    yield _packages()
    yield from _gpu_driver()
    for found in [*gpus(), find("cpu")]:
        yield _load(found)
        yield _device(found)
    yield _database(url)
    yield _disk()


def _packages() -> Check:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return Check("packages", "ok", ", ".join(found))


def _gpu_driver() -> Iterator[Check]:
    found = gpus()
    if found:
        info = found[0].info
        yield Check("GPU driver", "ok", f"{info.driver}, up to {info.runtime}; {len(found)} GPU(s)")
    elif Path("/dev/nvidiactl").exists():
        yield Check("GPU driver", "bad", "a GPU's device file, but NVML does not answer", "check `nvidia-smi`")
    else:
        yield Check("GPU driver", "note", "no NVIDIA GPU found: CPU kernels only")


def _load(found: DetectedDevice) -> Check:
    """Whether others use the device: who holds its lock, and how busy it is for half a second."""
    what = f"{found.spec} load"
    try:
        holder = device_holder(found.info)
    except TunerError as error:
        return Check(what, "bad", str(error), "set TUNER_LOCKS")
    watch = MachineWatch([found])
    if watch.cores:
        time.sleep(LOOK_S)
    told = [*([f"{holder} works with it"] if holder else []), *watch.complaints()]
    if told:
        return Check(
            what, "note", "; ".join(told), "times taken now may be wrong: wait, or stop what is running"
        )
    return Check(what, "ok", "nothing else runs on it")


def _device(found: DetectedDevice) -> Check:
    """Opens the device in a worker, as a study does."""
    worker = DeviceWorker(found)
    try:
        worker.open()
    except DeviceTrouble as error:
        return Check(found.spec, "bad", str(error), "install the extra cuda13 or cuda12, or use --device cpu")
    except EnvironmentTrouble as error:
        return Check(found.spec, "bad", str(error), "see cache, below")
    finally:
        worker.close()
    versions = ", ".join(f"{name} {version}" for name, version in worker.versions.items())
    free = f"{worker.free_bytes / 2**30:.1f} GiB free"
    core = worker.versions.get("blas_core_type", "")
    if worker.info.vector_bytes == 64 and core == "Haswell":
        remedy = "for NumPy's own sake set OPENBLAS_CORETYPE=SkylakeX"
        return Check(found.spec, "note", f"{worker.info.name}; NumPy's BLAS runs AVX2 here; {versions}", remedy)
    return Check(found.spec, "ok", f"{worker.info.name}; {free}; {versions}")


def _database(url: str) -> Check:
    from tuner.store import Store, retracting

    try:
        with Store.open(url, read_only=True) as store:
            count, ahead = len(store.champions()), retracting.ahead(store)
    except NothingFound:
        return Check("database", "ok", f"{url}: made by the first run")
    except TunerError as error:
        return Check("database", "bad", str(error), "choose another with --db")
    if ahead is not None:
        return Check("database", "note", f"{url}: {count} champion(s); {ahead}", retracting.AHEAD_REMEDY)
    return Check("database", "ok", f"{url}: {count} champion(s)")


def _disk() -> Check:
    try:
        folder = check_cache()
        free = shutil.disk_usage(folder).free
    except EnvironmentTrouble as error:
        return Check("cache", "bad", str(error), "set TUNER_CACHE, or free some room")
    state = "ok" if free > LITTLE_DISK_BYTES else "bad"
    return Check(
        "cache", state, f"{folder}: {free / 2**30:.1f} GiB free", "" if state == "ok" else "free some room"
    )
