"""Files of kernels that the operator of a node allows jobs to name.

A declaration is Python that is executed, with the rights of whoever tunes it. So no such file ever comes with a
request: the operator puts it on the node and allows it, and what was allowed is checked before each use.
"""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterable
from pathlib import Path

from tuner.declare import catalogue
from tuner.errors import InputError
from tuner.store import Store, allowed
from tuner.store.allowed import Allowed
from tuner.store.reading import Reader

#: Files beside a kernel's source that it may include.
HEADERS = ("*.cuh", "*.h", "*.hpp")


def node() -> str:
    """Name of this machine."""
    return socket.gethostname()[:200]


def allow(store: Store, path: Path) -> Allowed:
    """Allows a file on this machine, as it is now. The file is executed, to find what belongs to it.

    Raises:
        InputError: It declares no kernel.
    """
    path = path.resolve()
    covers = _covered(path)
    file = Allowed(str(path), digest_of(covers), tuple(str(each) for each in covers))
    allowed.allow(store, node(), file)
    return file


def disallow(store: Store, path: Path) -> None:
    """Allows a file no more.

    Raises:
        NothingFound: It is not allowed.
    """
    allowed.disallow(store, node(), str(path.resolve()))


def files(store: Reader) -> list[Allowed]:
    """What is allowed on this machine."""
    return allowed.files(store, node())


def checked(store: Reader, text: str) -> Path:
    """The allowed file of a name, if it is still as it was allowed. Nothing is executed.

    Args:
        store: Where it is noted what is allowed.
        text: The path as `files` tells it, or the last part of it where no other file has that.

    Raises:
        InputError: It is not allowed, or has changed.
    """
    known = files(store)
    found = [each for each in known if text == each.path] or [
        each for each in known if text == Path(each.path).name
    ]
    if len(found) != 1:
        raise InputError(
            f"a job names a kernel file that the operator of this node has allowed, {text[:200]!r} is not; on "
            f"the node, run `tuner allow FILE`"
        )
    if digest_of(Path(each) for each in found[0].covers) != found[0].digest:
        raise InputError(
            f"{found[0].path}, or a file that it uses, has changed since it was allowed; on the node, read it "
            "and run `tuner allow FILE` again"
        )
    return Path(found[0].path)


def digest_of(covers: Iterable[Path]) -> str:
    """Digest over the names and contents of files; a missing one counts, too."""
    whole = hashlib.sha256()
    for path in covers:
        told = path.read_bytes() if path.is_file() else None
        size = -1 if told is None else len(told)
        whole.update(json.dumps([str(path), size]).encode() + (told or b""))
    return whole.hexdigest()


def _covered(path: Path) -> list[Path]:
    """The file, the modules that it may import from beside it, and the sources of its kernels."""
    found = catalogue.from_file(path)
    own = [kernel for kernel in found.kernels if kernel.declared_in == path]
    sources = {file.resolve() for kernel in own for file in (kernel.source, *kernel.includes)}
    beside = {each.resolve() for file in sources for form in HEADERS for each in file.parent.glob(form)}
    modules = {each.resolve() for each in path.parent.glob("_*.py")}
    return [path, *sorted((sources | beside | modules) - {path})]
