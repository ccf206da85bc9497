"""The models there are: in the database, and as files beside the published results.

A model is of one dtype: of the operation's first one, or of another that its name tells. A file is
``<device>/models/<name>.json``. Of two models of a name and device the one that was fitted last answers.
"""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.errors import InputError
from tuner.model.fitted import Model
from tuner.model.stored import MOST_BYTES, from_bytes
from tuner.store.published import tuned_folder
from tuner.store.published.form import slug

if TYPE_CHECKING:
    from tuner.store.reading import Reader

#: Regime of a model that does not tell it.
COLD = "cold"


def path_of(name: str, device: str, directory: Path | None = None) -> Path:
    """Where a model of a device lies.

    Args:
        name: What it is called (`tuner.model.stored.name_of`).
        device: Name of the device.
        directory: Folder of published results; the project's own when None.
    """
    return (directory or tuned_folder()) / slug(device) / "models" / f"{slug(name)}.json"


def model_files(directory: Path | None = None, name: str = "*") -> list[Path]:
    """The files of models, those of one name or of all."""
    return sorted((directory or tuned_folder()).glob(f"*/models/{name}.json"))


def models(
    operation: str,
    regime: str = COLD,
    directory: Path | None = None,
    store: Reader | None = None,
    dtype: str = "",
) -> list[Model]:
    """The models of an operation, one for each device. Files are read once, and again when they change.

    Args:
        operation: Its name.
        regime: How the times that a model predicts were taken.
        directory: Folder of published results; the project's own when None.
        store: Has models of its own, of which damaged ones are left out; None without a database.
        dtype: What is to be predicted. A device's model of another dtype stands in for one that there is not.

    Raises:
        InputError: A file cannot be read; the message names it.
        StoreTrouble: The database cannot be read.
    """
    found = _named(operation, operation, regime, directory, store)
    if dtype:
        found |= _named(f"{operation} {dtype}", operation, regime, directory, store)
    return list(found.values())


def _named(
    name: str, operation: str, regime: str, directory: Path | None, store: Reader | None
) -> dict[str, Model]:
    """The models of a name, by device."""
    found: dict[str, Model] = {}
    for path in model_files(directory, slug(name)):
        seen = path.stat()
        model = _read(path, seen.st_mtime_ns, seen.st_size)
        if (model.operation, regime_of(model)) == (operation, regime):
            found[model.device.name] = model
    if store is not None:
        from tuner.store.models import latest

        for device, (fitted_at, text) in latest(store, name, regime).items():
            if device not in found or fitted_at > fitted_at_of(found[device]):
                with contextlib.suppress(InputError):  # a damaged one must not keep others from answering
                    found[device] = _unpacked(text)
    return found


def fitted_at_of(model: Model) -> str:
    """When a model was fitted, or set right by drawn problems; ISO 8601, UTC; empty if it does not tell."""
    return str(model.provenance.get("calibrated_at") or model.provenance.get("fitted_at", ""))


def regime_of(model: Model) -> str:
    """How the times that a model predicts were taken."""
    return str(model.provenance.get("regime", COLD))


@functools.lru_cache(maxsize=16)
def _read(path: Path, changed_ns: int, size_bytes: int) -> Model:
    """The model of a file in one state."""
    if size_bytes > MOST_BYTES:
        raise InputError(
            f"{path}: a model takes {MOST_BYTES} bytes at the most, got {size_bytes}; fit it again"
        )
    try:
        return from_bytes(path.read_bytes())
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


@functools.lru_cache(maxsize=16)
def _unpacked(text: bytes) -> Model:
    """The model of a text in the database."""
    return from_bytes(text)
