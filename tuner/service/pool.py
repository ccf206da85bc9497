"""What a node offers to jobs: the devices of its machine or a cluster, and the kernel files allowed there."""

import hashlib
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tuner.declare import catalogue
from tuner.declare.hardware import DeviceInfo
from tuner.devices.detect import DetectedDevice
from tuner.errors import InputError, NothingFound, UnknownName
from tuner.night.plan import asks_for
from tuner.results.record import utc_now
from tuner.store import Store, tables
from tuner.store.reading import Reader

#: Device of a job that any device of the fleet may tune, or that its plan names itself.
ANY = "any"
#: Kinds of devices, which name all of a kind.
KINDS = ("cuda", "cpu")
#: A cluster of this machine's devices.
LOCAL = "local"
#: Endings of files that a kernel may be made of.
SOURCES = (".py", ".cu", ".cuh", ".h", ".hpp")


# --- devices -------------------------------------------


@dataclass(frozen=True)
class DevicePool:
    """The devices that a node offers to jobs.

    Attributes:
        devices: The devices of this machine, by their specs.
        cluster: What runs the jobs in their place, as for `tuner nightly`; empty without one.
        tls: Options of `tuner nightly` with the cluster's certificates.
    """

    devices: Mapping[str, DetectedDevice]
    cluster: str = ""
    tls: tuple[str, ...] = ()

    @property
    def is_elsewhere(self) -> bool:
        """True if jobs run on devices that are not known here."""
        return self.cluster not in ("", LOCAL)

    @property
    def names(self) -> list[str]:
        """What a job may call its device, at the least; the first is that of a job that names none."""
        own = list(KINDS if self.is_elsewhere else self.devices)
        return [ANY, *own] if self.cluster else own

    def named(self, spec: str) -> list[DetectedDevice]:
        """The devices of this machine that a job may use, by the spec that it is stored with."""
        if not self.cluster or spec in self.devices:
            return [self.devices[spec]] if spec in self.devices else []
        return [device for device in self.devices.values() if spec == ANY or asks_for((spec,), device.info)]

    def options(self, spec: str) -> list[str]:
        """The options of `tuner nightly` that say where a job runs."""
        named = [device.spec for device in self.named(spec)] if self.cluster == LOCAL else [spec]
        where = [f"--device={','.join(named)}"] if named != [ANY] else []
        return [*where, f"--cluster={self.cluster}", *self.tls] if self.cluster else where

    def _here(self, text: str) -> DetectedDevice | None:
        """The device of this machine of a spec, name or uuid, the first if empty; None if there is none."""
        for spec, device in self.devices.items():
            if text in ("", spec, device.info.uuid) or text.casefold() == device.info.name.casefold():
                return device
        return None

    def naming(self, text: str) -> DeviceInfo | str:
        """The device here of a spec or name, the first if empty; else the text: no name leads to a file."""
        here = self._here(text)
        return here.info if here else text

    def spec_of(self, name: str) -> str:
        """The spec of the first device of a model, for a link or a form; empty where jobs cannot use one."""
        here = self._here(name)
        return name if self.is_elsewhere else here.spec if here else ""

    def spec(self, text: str) -> str:
        """The spec of a device that is named by spec, name or uuid; the first if empty.

        On a cluster it is a kind, a model, or a pattern of a model.

        Raises:
            UnknownName: It is not offered.
            NothingFound: No device is offered.
        """
        if self.cluster and (self.is_elsewhere or text in ("", ANY) or self.named(text)):
            return text or ANY
        if not self.devices:
            raise NothingFound("this node offers no device to jobs; start it with --device SPEC")
        if not self.cluster and (here := self._here(text)):
            return here.spec
        names = [*self.devices, *(device.info.name for device in self.devices.values())]
        raise UnknownName("device of this node", text[:200], names)


# --- kernel files --------------------------------------


def node() -> str:
    """Name of this machine."""
    return socket.gethostname()[:200]


def _place(path: Path) -> dict[str, str]:
    return {"node": node(), "path": str(path)}


def allow(store: Store, path: Path) -> Sequence[str]:
    """Allows a file on this machine, as it is now. The file is executed, to find what belongs to it.

    Returns:
        The files that it is allowed with: all sources in the folders of its declaration and of its kernels.

    Raises:
        InputError: It declares no kernel.
    """
    path = path.resolve()
    sources = [kernel.source for kernel in catalogue.from_file(path).kernels]
    own = [file for of in sources if of.declared_in == path for file in (of.file, *of.includes)]
    beside = (file for folder in {file.resolve().parent for file in (path, *own)} for file in folder.iterdir())
    covers = sorted(str(file) for file in beside if file.suffix in SOURCES)
    row = {"digest": _digest(covers), "covers": covers, "allowed_at": utc_now(), **_place(path)}
    with store.writing() as connection:
        connection.execute(sa.delete(tables.allowed_files).filter_by(**_place(path)))
        connection.execute(sa.insert(tables.allowed_files).values(**row))
    return covers


def disallow(store: Store, path: Path) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    with store.writing() as connection:
        gone = connection.execute(sa.delete(tables.allowed_files).filter_by(**_place(path.resolve())))
    if not gone.rowcount:
        raise NothingFound(f"{path} is not allowed here; `tuner allow --list` shows what is")


def allowed_json(store: Reader) -> list[dict[str, Any]]:
    """What is allowed on this machine, by path."""
    here = sa.select(tables.allowed_files).filter_by(node=node()).order_by(tables.allowed_files.c.path)
    names = ("digest", "covers", "allowed_at")
    return [{"file": row.path, **{name: getattr(row, name) for name in names}} for row in store.rows(here)]


def check_allowed(store: Reader, path: str) -> None:
    """Refuses a file that is not allowed, or not as it was. Nothing is executed.

    Raises:
        InputError: It is not allowed, or has changed.
    """
    allowed = next((file for file in allowed_json(store) if file["file"] == path), None)
    if allowed is None:
        raise InputError(
            f"a job names a kernel file by its whole path, and the operator of this node has allowed it, "
            f"{path[:200]!r} is not; on the node, run `tuner allow FILE`"
        )
    if _digest(allowed["covers"]) != allowed["digest"]:
        raise InputError(
            f"{path}, or a source beside it, has changed since it was allowed; on the node, read it and run "
            "`tuner allow FILE` again"
        )


def _digest(covers: Iterable[str]) -> str:
    """Digest over the names and contents of files; a missing one counts, too."""
    contents = [Path(path).read_bytes() if Path(path).is_file() else b"" for path in covers]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    return hashlib.sha256(json.dumps([*zip(covers, digests, strict=True)]).encode()).hexdigest()
