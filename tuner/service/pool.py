"""What a node offers to jobs: the devices of its machine or a cluster, and the kernel files allowed there."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
#: Files beside a kernel's source that it may include.
HEADERS = ("*.cuh", "*.h", "*.hpp")


# --- devices -------------------------------------------


@dataclass(frozen=True)
class DevicePool:
    """The devices that a node offers to jobs.

    Attributes:
        devices: Spec -> the devices of this machine that it names.
        cluster: What runs the jobs in their place, as `checked_cluster` reads it; empty without one.
        tls: Files of the cluster's certificate authority, certificate and key; empty without TLS.
    """

    devices: Mapping[str, tuple[DetectedDevice, ...]]
    cluster: str = ""
    tls: tuple[Path, ...] = ()

    @classmethod
    def of(cls, found: Sequence[DetectedDevice], cluster: str = "", tls: tuple[Path, ...] = ()) -> DevicePool:
        """Devices of this machine, each by its spec; ``cuda`` names all GPUs where they are of one kind."""
        named: dict[str, tuple[DetectedDevice, ...]] = {device.spec: (device,) for device in found}
        gpus = tuple(device for device in found if device.spec.startswith(f"{device.target}:"))
        if not cluster and len(gpus) > 1 and len({gpu.info.name for gpu in gpus}) == 1:
            named[gpus[0].target] = gpus
        return cls(named, cluster, tls)

    @property
    def is_elsewhere(self) -> bool:
        """True if jobs run on devices that are not known here."""
        return self.cluster not in ("", LOCAL)

    @property
    def names(self) -> list[str]:
        """What a job may call its device, at the least; the first is that of a job that names none."""
        own = list(KINDS if self.is_elsewhere else self.devices)
        return [ANY, *own] if self.cluster else own

    def named(self, spec: str) -> tuple[DetectedDevice, ...]:
        """The devices of this machine that a job may use, by the spec that it is stored with."""
        if not self.cluster or spec in self.devices:
            return self.devices.get(spec, ())
        found = [device for (device,) in self.devices.values()]
        return tuple(device for device in found if spec == ANY or asks_for((spec,), device.info))

    def targets(self, spec: str) -> set[str]:
        """What kernels have to be for on a device; empty on a cluster, whose night finds devices for them."""
        return set() if self.cluster else {device.target for device in self.named(spec)}

    def _here(self, text: str) -> tuple[str, DeviceInfo] | None:
        """Spec and device of this machine by spec, name or uuid, the first if empty; None if there is none."""
        for spec, (device, *_) in self.devices.items():
            if text in ("", spec, device.info.uuid) or text.casefold() == device.info.name.casefold():
                return spec, device.info
        return None

    def naming(self, text: str) -> DeviceInfo | str:
        """The device here of a spec or name, the first if empty; else the text: no name leads to a file."""
        here = self._here(text)
        return here[1] if here else text

    def spec_of(self, name: str) -> str:
        """The spec of the first device of a model, for a link or a form; empty where jobs cannot use one."""
        here = self._here(name)
        return name if self.is_elsewhere else here[0] if here else ""

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
            return here[0]
        names = [*self.devices, *(found[0].info.name for found in self.devices.values())]
        raise UnknownName("device of this node", text[:200], names)


def checked_cluster(text: str, tls: Sequence[Path | None], db: str) -> tuple[str, tuple[Path, ...]]:
    """A cluster as it is named, with the path of a site's file in full, and its TLS files.

    Args:
        text: ``local``, ``tcp://HOST:8786``, ``tls://HOST:8786``, ``slurm:FILE.toml`` or ``pbs:FILE.toml``;
            empty for none.
        tls: Files of certificate authority, certificate and key.
        db: The database that its workers write.

    Raises:
        InputError: It is no cluster, the files are incomplete, or only one machine can write the database.
    """
    files = tuple(path.absolute() for path in tls if path is not None)
    if len(files) not in (0, len(tls)) or (files and not text):
        raise InputError(
            f"--tls-ca, --tls-cert and --tls-key belong to --cluster, all three, got {len(files)} with "
            f"--cluster {text[:200] or 'left out'}; give all of them, or none"
        )
    kind, _, rest = text.partition(":")
    if kind in ("slurm", "pbs") and Path(rest).is_file():
        text = f"{kind}:{Path(rest).absolute()}"
    elif text not in ("", LOCAL) and not (kind in ("tcp", "tls") and rest.startswith("//")):
        raise InputError(
            f"a cluster is local, tcp://HOST:8786, tls://HOST:8786, slurm:FILE.toml or pbs:FILE.toml, whose "
            f"file is there, got {text[:200]!r}; choose one of them"
        )
    if db.startswith("sqlite") and text not in ("", LOCAL) and not is_loopback(urlsplit(text).hostname or ""):
        raise InputError(
            f"a SQLite file is written by one machine alone, and workers of {text} may be on others; give "
            "--db postgresql://..., into which all of them can write"
        )
    return text, files


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- kernel files --------------------------------------


def node() -> str:
    """Name of this machine."""
    return socket.gethostname()[:200]


def allow(store: Store, path: Path) -> sa.Row[Any]:
    """Allows a file on this machine, as it is now. The file is executed, to find what belongs to it.

    Returns:
        Its row: ``path``; ``digest``, SHA-256 over all files that it is made of; ``covers``, these files;
        ``allowed_at``, ISO 8601, UTC.

    Raises:
        InputError: It declares no kernel.
    """
    path = path.resolve()
    own = [kernel for kernel in catalogue.from_file(path).kernels if kernel.source.declared_in == path]
    sources = {file.resolve() for kernel in own for file in (kernel.source.file, *kernel.source.includes)}
    beside = {header.resolve() for file in sources for form in HEADERS for header in file.parent.glob(form)}
    modules = {module.resolve() for module in path.parent.glob("_*.py")}
    covers = list(map(str, [path, *sorted((sources | beside | modules) - {path})]))
    row = {"digest": _digest(covers), "covers": covers, "allowed_at": utc_now(), **_place(path)}
    with store.writing() as connection:
        connection.execute(sa.delete(tables.allowed_files).filter_by(**_place(path)))
        insert = sa.insert(tables.allowed_files).values(**row)
        return connection.execute(insert.returning(tables.allowed_files)).one()


def disallow(store: Store, path: Path) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    with store.writing() as connection:
        gone = connection.execute(sa.delete(tables.allowed_files).filter_by(**_place(path.resolve())))
    if not gone.rowcount:
        raise NothingFound(f"{path} is not allowed here; `tuner allow --list` shows what is")


def _place(path: Path) -> dict[str, str]:
    return {"node": node(), "path": str(path)}


def allowed_files(store: Reader) -> Sequence[sa.Row[Any]]:
    """The rows of what is allowed on this machine, by path."""
    here = sa.select(tables.allowed_files).filter_by(node=node()).order_by(tables.allowed_files.c.path)
    with store.reading() as connection:
        return connection.execute(here).all()


def allowed_json(store: Reader) -> list[dict[str, Any]]:
    """What is allowed on this machine."""
    names = ("digest", "covers", "allowed_at")
    return [{"file": row.path, **{name: getattr(row, name) for name in names}} for row in allowed_files(store)]


def allowed_file(store: Reader, text: str) -> Path:
    """The allowed file of a name, if it is still as it was allowed. Nothing is executed.

    Args:
        store: Where it is noted what is allowed.
        text: Its path, or the last part of it where no other file has that.

    Raises:
        InputError: It is not allowed, or has changed.
    """
    files = allowed_files(store)
    by_name = [file for file in files if text == Path(file.path).name]
    named = [file for file in files if text == file.path] or by_name
    if len(named) != 1:
        raise InputError(
            f"a job names a kernel file that the operator of this node has allowed, {text[:200]!r} is not; on "
            f"the node, run `tuner allow FILE`"
        )
    if _digest(named[0].covers) != named[0].digest:
        raise InputError(
            f"{named[0].path}, or a file that it uses, has changed since it was allowed; on the node, read it "
            "and run `tuner allow FILE` again"
        )
    return Path(named[0].path)


def _digest(covers: Iterable[str]) -> str:
    """Digest over the names and contents of files; a missing one counts, too."""
    whole = hashlib.sha256()
    for path in covers:
        content = Path(path).read_bytes() if Path(path).is_file() else None
        size = -1 if content is None else len(content)
        whole.update(json.dumps([path, size]).encode() + (content or b""))
    return whole.hexdigest()
