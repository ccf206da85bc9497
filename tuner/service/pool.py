"""What a server offers to jobs: the devices of its machine, or a cluster."""

from __future__ import annotations

import importlib.util
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.errors import EnvironmentTrouble, InputError, NothingFound, UnknownName
from tuner.night.plan.items import asks_for
from tuner.store.jobs import Job

#: Device of a job that any device of the fleet may tune, or that its plan names itself.
ANY = "any"
#: Kinds of devices, which name all of a kind.
KINDS = ("cuda", "cpu")


def checked_name(text: str) -> str:
    """A cluster as it is named, with the path of a site's file in full.

    Raises:
        InputError: It is no cluster, or the file is not there.
        EnvironmentTrouble: The packages of a fleet are not installed.
    """
    if importlib.util.find_spec("distributed") is None:
        raise EnvironmentTrouble(
            "a fleet needs dask.distributed, which is not installed; `pip install 'tile-tuner[fleet]'`"
        )
    kind, _, rest = text.partition(":")
    if text == "local" or (kind in ("tcp", "tls") and rest.startswith("//")):
        return text
    if kind in ("slurm", "pbs") and Path(rest).is_file():
        return f"{kind}:{Path(rest).absolute()}"
    raise InputError(
        f"a cluster is local, tcp://HOST:8786, tls://HOST:8786, slurm:FILE.toml or pbs:FILE.toml, whose file "
        f"is there, got {text[:200]!r}; choose one of them"
    )


@dataclass(frozen=True)
class ClusterChoice:
    """The cluster that runs a server's jobs.

    Attributes:
        text: ``local``, ``tcp://HOST:8786``, ``tls://HOST:8786``, ``slurm:FILE.toml`` or ``pbs:FILE.toml``.
        found: The devices of a local cluster.
        tls: Files of certificate authority, certificate and key; empty without TLS.
    """

    text: str
    found: tuple[DetectedDevice, ...] = ()
    tls: tuple[Path, ...] = ()

    @property
    def is_local(self) -> bool:
        """True if it is made of this machine's devices."""
        return self.text == "local"

    @property
    def names(self) -> list[str]:
        """What a job may call its device, beside models and patterns of models."""
        specs = list(dict.fromkeys(each.spec for each in self.found))
        return [ANY, *(specs if self.is_local else KINDS)]

    def spec(self, text: str) -> str:
        """The device of a job, by kind, model, pattern of a model, or spec of a local device.

        Raises:
            InputError: A local cluster has no such device.
        """
        if text in ("", ANY):
            return ANY
        if self.is_local and not self.devices(text):
            named = ", ".join(each.info.name for each in self.found)
            raise InputError(
                f"the fleet of this machine has {named}, got the device {text[:80]!r}; name one of them"
            )
        return text

    def devices(self, spec: str) -> tuple[DetectedDevice, ...]:
        """The devices of a local cluster that a job may use."""
        exact = tuple(each for each in self.found if spec in (ANY, each.spec))
        return exact or tuple(each for each in self.found if asks_for((spec,), each.info))

    def targets(self, spec: str) -> tuple[str, ...]:
        """What kernels have to be for: one of these."""
        if self.is_local:
            return tuple(dict.fromkeys(each.target for each in self.devices(spec)))
        kind = spec.partition(":")[0].lower()
        return (kind,) if kind in KINDS else KINDS

    def check(self, db: str) -> None:
        """Refuses a cluster of several machines with a database that only one can write.

        Raises:
            InputError: The database is a SQLite file.
        """
        if not db.startswith("sqlite") or not self.has_other_machines:
            return
        raise InputError(
            f"a SQLite file is written by one machine alone, and workers of {self.text} may be on others; give "
            "--db postgresql://..., into which all of them can write"
        )

    @property
    def has_other_machines(self) -> bool:
        """True unless all workers are on this machine."""
        if self.is_local:
            return False
        host = urlsplit(self.text).hostname or "" if "://" in self.text else ""
        try:
            return not ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host != "localhost"

    def arguments(self, job: Job, folder: Path, left_s: float | None) -> list[str]:
        """The command of a job: a night on the cluster, for a problem one of that problem alone.

        Args:
            job: The job.
            folder: Its folder, with its plan.
            left_s: Seconds that it may still take; None for no limit.
        """
        by_plan = job.asked["kind"] == "plan"
        devices = [each.spec for each in self.devices(job.device)] if self.is_local else []
        if not self.is_local and by_plan and job.device != ANY:
            devices = [job.device]
        seconds = [f"--seconds={left_s:.3f}"] if left_s is not None and (by_plan or job.deadline) else []
        tls = [f"--tls-{name}={path}" for name, path in zip(("ca", "cert", "key"), self.tls, strict=False)]
        return [
            "nightly", str(folder / "plan.toml"), f"--cluster={self.text}", "--json", "--quiet", *tls, *seconds,
            *([] if by_plan else ["--again"]),
            *([f"--device={','.join(devices)}"] if devices else []),
        ]  # fmt: skip

    def plan_text(self, job: Job, left_s: float | None) -> str:
        """The plan of a job: its own, or one of its problem alone."""
        asked = job.asked
        if asked["kind"] == "plan":
            return str(asked["plan"])
        elsewhere = [job.device] if job.device != ANY and not self.is_local else []
        return _toml_of(asked["problem"], asked["trials"], left_s, elsewhere)


def _toml_of(
    problem: Mapping[str, Any], trials: int | None, seconds: float | None, devices: Sequence[str]
) -> str:
    """A plan of one problem; texts of JSON are texts of TOML, too."""
    told = {name: problem[name] for name in ("dtype", "layout", "precision", "regime", "kernels")}
    told |= {"file": problem["file"], "operation": problem["operation"]}
    told |= {"trials": trials, "seconds": seconds, "devices": list(devices)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in told.items() if value]
    sizes = ", ".join(f"{json.dumps(name)} = {size}" for name, size in problem["shape"].items())
    return "\n".join(["[[problems]]", *lines, f"set = {{{sizes}}}", ""])


@dataclass(frozen=True)
class DevicePool:
    """The devices that a node offers to jobs.

    Attributes:
        devices: Spec -> the devices of this machine that it names.
        cluster: The cluster that runs the jobs in their place; None without one.
    """

    devices: Mapping[str, tuple[DetectedDevice, ...]]
    cluster: ClusterChoice | None = None

    @classmethod
    def of(cls, found: Sequence[DetectedDevice], cluster: ClusterChoice | None = None) -> DevicePool:
        """Devices of this machine, each by its spec; ``cuda`` names all GPUs where they are of one kind."""
        named: dict[str, tuple[DetectedDevice, ...]] = {each.spec: (each,) for each in found}
        gpus = tuple(each for each in found if each.spec.startswith(f"{each.target}:"))
        if len(gpus) > 1 and len({each.info.name for each in gpus}) == 1:
            named[gpus[0].target] = gpus
        return cls(named, cluster)

    @property
    def names(self) -> list[str]:
        """What a job may call its device, at the least; the first is that of a job that names none."""
        return self.cluster.names if self.cluster is not None else list(self.devices)

    def targets(self, spec: str) -> tuple[str, ...]:
        """What kernels have to be for on a device: one of these."""
        return self.cluster.targets(spec) if self.cluster is not None else (self.devices[spec][0].target,)

    def device(self, text: str) -> DeviceInfo | str:
        """The device here of a spec or name, the first if empty; else the text: no name leads to a file."""
        for spec, found in self.devices.items():
            if text in ("", spec) or text.casefold() == found[0].info.name.casefold():
                return found[0].info
        return text

    def spec(self, text: str) -> str:
        """The spec of a device that is named by spec, name or uuid; the first if empty.

        Raises:
            UnknownName: It is not offered.
            NothingFound: No device is offered.
        """
        if self.cluster is not None:
            return self.cluster.spec(text)
        if not self.devices:
            raise NothingFound("this node offers no device to jobs; start it with --device SPEC")
        if not text:
            return next(iter(self.devices))
        for spec, found in self.devices.items():
            if text in (spec, found[0].info.uuid) or text.casefold() == found[0].info.name.casefold():
                return spec
        names = [*self.devices, *(found[0].info.name for found in self.devices.values())]
        raise UnknownName("device of this node", text[:200], names)
