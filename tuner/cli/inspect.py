"""``tuner devices``, ``kernels``, ``config`` and ``doctor``: inspect devices, kernels and this machine."""

import importlib.metadata
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import click

from tuner.cli.formatting import print_json, show, table
from tuner.cli.main import commands, option_names
from tuner.cli.options import OPERATION, data_options, json_option
from tuner.declare.catalogue import builtin, kernels_json
from tuner.devices import settings
from tuner.devices.detect import DetectedDevice, find, gpus, own_devices
from tuner.devices.device_lock import device_holder
from tuner.devices.machine_load import MachineWatch
from tuner.errors import DeviceTrouble, EnvironmentTrouble, NothingFound, TunerError, UnknownName
from tuner.extras import load
from tuner.workers.device_worker import DeviceWorker


@click.command()
@json_option
def devices(as_json: bool) -> None:
    """List the devices of this machine; commands use the first unless --device names another."""
    own = own_devices()
    rows = []
    for device in own:
        info, memory = device.info, f"{device.info.memory_bytes / 2**30:.0f} GiB"
        driver = f"{info.driver} {info.runtime}"
        rows.append((device.spec, info.name, info.architecture, memory, driver, info.uuid))
    columns = ("device", "name", "architecture", "memory", "driver", "uuid")
    show(as_json, [device.to_json() for device in own], "", columns, rows)


@click.command()
@click.argument("operation", required=False, shell_complete=OPERATION)
@json_option
def kernels(operation: str | None, as_json: bool) -> None:
    """List the kernels, with their parameters and constraints."""
    catalogue = builtin()
    if as_json:
        print_json(kernels_json(catalogue, operation or ""))
        return
    for kernel in catalogue.of(operation) if operation else catalogue.kernels:
        rows = ((parameter.name, " ".join(map(str, parameter.values))) for parameter in kernel.parameters)
        table(f"{kernel.operation} {kernel.target} {kernel.name}: {kernel.idea}", ("parameter", "values"), rows)
        for constraint in kernel.constraints:
            click.echo(f"  - {constraint.sentence}")
        click.echo()


@click.command()
@json_option
def config(as_json: bool) -> None:
    """Show the defaults that tuner.toml and the environment set here, and where they come from.

    A file holds names of options with their values: what stands above all tables holds for every command that
    has such an option, what stands in a table [tune] for that command. tuner.toml in this folder goes before
    the one in the user's config folder; the environment and the command line go before both.
    """
    known = settings.read()
    _check_known(known)
    keys = ("command", "option", "value", "from")
    rows = [("", "db", os.environ["TUNER_DB"], "TUNER_DB")] if os.environ.get("TUNER_DB") else []
    rows += [(*name, setting.value, str(setting.file)) for name, setting in sorted(known.items())]
    files = [{"path": str(file), "found": file.is_file()} for file in settings.files()]
    if as_json:
        print_json({"files": files, "values": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    for file in files:
        click.echo(f"{file['path']}: {'read' if file['found'] else 'not there'}")
    table("Defaults that are set", keys, [(command or "all", *rest) for command, *rest in rows])


def _check_known(known: Mapping[tuple[str, str], settings.Setting]) -> None:
    """Refuses tables and options that no command has.

    Raises:
        UnknownName: There is one; the message names the file.
    """
    options: dict[str, set[str]] = {}
    for name, command in commands().items():
        loaded = load(command.at)
        parts = loaded.commands.values() if isinstance(loaded, click.Group) else (loaded,)
        options[name] = set().union(*map(option_names, parts))
    for (of, option), setting in known.items():
        if of and of not in options:
            raise UnknownName(f"command in {setting.file}", of, options)
        if not of and option.replace("-", "_") not in set().union(*options.values()):
            raise UnknownName(f"option in {setting.file}", option, set().union(*options.values()))


@click.command()
@data_options
def doctor(db: str, as_json: bool) -> None:
    """Check this machine, and print a remedy for each problem."""
    made = list(checks(db))
    rows = ((check.state.replace("bad", "BAD"), check.what, check.said, check.remedy) for check in made)
    show(as_json, [check._asdict() for check in made], "", ("", "what", "found", "what to do"), rows)
    if any(check.state == "bad" for check in made):
        raise click.exceptions.Exit(3)


#: Free disk below this is worth a word.
LITTLE_DISK_BYTES = 1 << 30
#: Seconds for which a device is watched.
LOOK_S = 0.5
PACKAGES = ("tile-tuner", "numpy", "numba", "optuna", "SQLAlchemy", "cupy-cuda13x", "cupy-cuda12x")


class Check(NamedTuple):
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


def checks(url: str) -> Iterator[Check]:
    """All checks, one after the other."""
    yield Check("Python", "ok", platform.python_version())
    versions = {package.name: package.version for package in importlib.metadata.distributions()}
    there = [f"{name} {versions[name]}" for name in PACKAGES if name in versions]
    yield Check("packages", "ok", ", ".join(there))
    yield _gpu_driver()
    for device in [*gpus(), find("cpu")]:
        yield _load(device)
        yield _device(device)
    yield _database(url)
    yield _disk()


def _gpu_driver() -> Check:
    if boards := gpus():
        info = boards[0].info
        return Check("GPU driver", "ok", f"{info.driver}, up to {info.runtime}; {len(boards)} GPU(s)")
    if Path("/dev/nvidiactl").exists():
        return Check("GPU driver", "bad", "a GPU's device file, but NVML does not answer", "check `nvidia-smi`")
    return Check("GPU driver", "note", "no NVIDIA GPU found: CPU kernels only")


def _load(found: DetectedDevice) -> Check:
    """Whether others use the device: who holds its lock, and how busy it is for half a second."""
    what = f"{found.spec} load"
    try:
        holder = device_holder(found.info)
    except TunerError as error:
        return Check(what, "bad", str(error), "set TUNER_LOCKS")
    watch = MachineWatch([found])
    time.sleep(LOOK_S)
    others = "; ".join([*([f"{holder} works with it"] if holder else []), *watch.complaints()])
    remedy = "times taken now may be wrong: wait, or stop what is running"
    return Check(what, "note", others, remedy) if others else Check(what, "ok", "nothing else runs on it")


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
    return Check(found.spec, "ok", f"{worker.info.name}; {worker.free_bytes / 2**30:.1f} GiB free; {versions}")


def _database(url: str) -> Check:
    from tuner.store import Store, opening, retracting

    try:
        with Store.open(url, read_only=True) as store:
            said, ahead = f"{url}: {len(store.champions())} champion(s)", retracting.ahead(store)
    except NothingFound:
        said, ahead = f"{url}: made by the first run", None
    except TunerError as error:
        return Check("database", "bad", str(error), "choose another with --db")
    if opening.on_read_only_disk(url):
        said += "; its file system is read-only, so that nothing can be stored"
        return Check("database", "note", said, "to tune, choose another with --db")
    if ahead is not None:
        return Check("database", "note", f"{said}; {ahead}", retracting.AHEAD_REMEDY)
    return Check("database", "ok", said)


def _disk() -> Check:
    try:
        folder = settings.check_cache()
        free_bytes = shutil.disk_usage(folder).free
    except EnvironmentTrouble as error:
        return Check("cache", "bad", str(error), "set TUNER_CACHE, or free some room")
    state, remedy = ("ok", "") if free_bytes > LITTLE_DISK_BYTES else ("bad", "free some room")
    return Check("cache", state, f"{folder}: {free_bytes / 2**30:.1f} GiB free", remedy)
