"""Models as text, as files beside the published results, and in a database.

A model is of one dtype, precision and epilogue: of the operation's first dtype, or of what its name tells.
A file is ``<device>/models/<name>.json``. Of two models of a name and device the one that was fitted last
answers.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.model.calibrate import Calibration
from tuner.model.forest import Forest, Network
from tuner.model.physics import DeviceRates, Traits
from tuner.model.predict import Model
from tuner.model.table import Evidence, ParameterOrder
from tuner.results.record import ProblemKey
from tuner.store.published import slug, tuned_folder

if TYPE_CHECKING:
    from tuner.store.reading import Reader

T = TypeVar("T")

#: Regime of a model that does not tell it.
COLD = "cold"

#: Written into every model; one of another format is refused.
FORMAT = 2
#: Arrays that need double precision; all others are kept in single.
DOUBLE = "thresholds", "parameters", "heights"


def name_of(operation: Operation, arithmetic: str = "") -> str:
    """What a model is called: as the operation, which other dtypes and precisions follow."""
    return " ".join([operation.name, *([arithmetic] if arithmetic not in ("", operation.dtypes[0]) else [])])


def arithmetic_of(operation: Operation, dtype: str, precision: str = "", epilogue: str = "") -> str:
    """Dtype, precision and epilogue as records have them (`ProblemKey.arithmetic`); the first dtype if empty.

    Raises:
        UnknownName: The operation has no such dtype, or there is no such precision or part of an epilogue.
        InputError: Precision or epilogue are not for it.
    """
    smallest = operation.problem(dict.fromkeys(operation.dims, 1), dtype, "", precision, epilogue)
    return ProblemKey.of(smallest).arithmetic


def to_bytes(model: Model) -> bytes:
    """A model as JSON text with a checksum."""
    configs = json.dumps([[kernel, dict(config)] for kernel, config in model.configs])
    arrays: dict[str, Any] = {"configs": np.frombuffer(configs.encode(), np.uint8)}
    arrays["parameters"] = _compact("parameters", model.parameters)
    parts = {" ".join(key): of for key, of in model.traits.items()}
    parts |= {name: getattr(model, name) for name in ("forest", "library", "calibration", "evidence")}
    for name, part in (parts | ({"network": model.network} if model.network else {})).items():
        arrays |= {f"{name}.{of.name}": _compact(of.name, getattr(part, of.name)) for of in fields(part)}
    with io.BytesIO() as packed:
        np.savez_compressed(packed, **arrays)
        data = base64.b64encode(packed.getvalue()).decode()
    body = {
        "format": FORMAT, "operation": model.operation, "device": model.device.to_json(),
        "provenance": dict(model.provenance), "limits": vars(model.limits), "order": list(model.order),
        "traits": [list(key) for key in model.traits], "arrays": data,
    }  # fmt: skip
    return json.dumps({"checksum": _checksum(body), **body}, sort_keys=True).encode()


def from_bytes(text: bytes) -> Model:
    """Reads what `to_bytes` wrote.

    Raises:
        InputError: The text is damaged, or of another version.
    """
    try:
        body = json.loads(text)
        version, checksum = body["format"], body.pop("checksum")
        if version == FORMAT and checksum == _checksum(body):
            return _read(body)
    except (ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(f"a model is JSON with all its parts, got {error!r}; fit it again") from error
    if version != FORMAT:
        raise InputError(
            f"a model has format {FORMAT}, got {version!r}; update the tuner or fit the model again"
        )
    raise InputError("a model's checksum is that of its text, got another: it is damaged; fit it again")


def _read(body: Mapping[str, Any]) -> Model:
    with np.load(io.BytesIO(base64.b64decode(body["arrays"]))) as packed:
        arrays = {name: _wide(packed[name]) for name in packed.files}
        configs = json.loads(packed["configs"].tobytes())
    return Model(
        body["operation"], DeviceInfo.from_json(body["device"]), DeviceRates(**body["limits"]),
        [(kernel, Config(config)) for kernel, config in configs], ParameterOrder(*body["order"]),
        arrays["parameters"],
        {(dtype, layout): _part(Traits, f"{dtype} {layout}", arrays) for dtype, layout in body["traits"]},
        _part(Forest, "forest", arrays), _part(Forest, "library", arrays),
        _part(Calibration, "calibration", arrays), _part(Evidence, "evidence", arrays), body["provenance"],
        _part(Network, "network", arrays) if "network.share" in arrays else None,
    )  # fmt: skip


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _compact(name: str, value: Any) -> Any:
    """A value as an array that takes little space, columns one after the other."""
    array = np.asarray(value)
    if array.dtype.kind == "i":
        most = abs(array).max(initial=0)
        kind = next(kind for kind in ("i1", "i2", "i4") if most <= np.iinfo(kind).max)
    else:
        kind = "f8" if name in DOUBLE or array.size <= 2 else "f4"
    return array.astype(kind, order="F")


def _wide(array: Any) -> Any:
    """An array as models reckon with it; a single value as a number."""
    wide = np.int32 if array.dtype.kind == "i" else np.float64
    return array.item() if not array.ndim else np.ascontiguousarray(array.astype(wide))


def _part(kind: type[T], name: str, arrays: Mapping[str, Any]) -> T:
    return kind(**{field.name: arrays[f"{name}.{field.name}"] for field in fields(kind)})  # type: ignore[arg-type]


def path_of(name: str, device: str, directory: Path | None = None) -> Path:
    """Where a model of a device lies.

    Args:
        name: What it is called (`name_of`).
        device: Name of the device.
        directory: Folder of published results; the project's own when None.
    """
    return (directory or tuned_folder()) / slug(device) / "models" / f"{slug(name)}.json"


def models(
    operation: str, regime: str = COLD, directory: Path | None = None, store: Reader | None = None,
    arithmetic: str = "",
) -> list[Model]:  # fmt: skip
    """The models of an operation, one for each device. Files are read once, and again when they change.

    Args:
        operation: Its name.
        regime: How the times that a model predicts were taken.
        directory: Folder of published results; the project's own when None.
        store: Has models of its own, of which damaged ones are left out; None without a database.
        arithmetic: What is to be predicted (`ProblemKey.arithmetic`). A device's model of the operation's first
            dtype stands in for one that there is not.

    Raises:
        InputError: A file cannot be read; the message names it.
        StoreTrouble: The database cannot be read.
    """
    by_device: dict[str, Model] = {}
    for name in dict.fromkeys([operation, f"{operation} {arithmetic}".strip()]):
        named: dict[str, Model] = {}
        for path in sorted((directory or tuned_folder()).glob(f"*/models/{slug(name)}.json")):
            status = path.stat()
            model = _of_file(path, status.st_mtime_ns, status.st_size)
            if (model.operation, regime_of(model)) == (operation, regime):
                named[model.device.name] = model
        latest: Mapping[str, tuple[str, bytes]] = {}
        if store is not None:
            from tuner.store import watched  # it loads the database's library

            latest = watched.models(store, name, regime)
        for device, (fitted_at, text) in latest.items():
            if device not in named or fitted_at > fitted_at_of(named[device]):
                with contextlib.suppress(InputError):  # a damaged one must not keep others from answering
                    named[device] = _of_text(text)
        by_device |= named
    return list(by_device.values())


def model_of(operation: str, regime: str, store: Reader | None, device: str, arithmetic: str) -> Model | None:
    """The model of a device; see `models`."""
    every = models(operation, regime, store=store, arithmetic=arithmetic)
    return next((model for model in every if model.device.name == device), None)


def fitted_at_of(model: Model) -> str:
    """When a model was fitted, or set right by drawn problems; ISO 8601, UTC; empty if it does not tell."""
    return str(model.provenance.get("calibrated_at") or model.provenance.get("fitted_at", ""))


def regime_of(model: Model) -> str:
    """How the times that a model predicts were taken."""
    return str(model.provenance.get("regime", COLD))


@functools.lru_cache(maxsize=16)
def _of_file(path: Path, changed_ns: int, size_bytes: int) -> Model:
    """The model of a file in one state."""
    try:
        return from_bytes(path.read_bytes())
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


#: The models of the latest texts in databases.
_of_text = functools.lru_cache(maxsize=16)(from_bytes)
