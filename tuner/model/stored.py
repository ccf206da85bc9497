"""Models as text, as files beside the published results, and in a database.

A model is of one dtype: of the operation's first one, or of another that its name tells. A file is
``<device>/models/<name>.json``. Of two models of a name and device the one that was fitted last answers.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.model.calibrate import Calibration
from tuner.model.evidence import Evidence
from tuner.model.forest import Forest
from tuner.model.network import Encoding, Network
from tuner.model.physics import DeviceRates, Traits
from tuner.model.predict import Model
from tuner.store.published import slug, tuned_folder

if TYPE_CHECKING:
    from tuner.store.reading import Reader

#: Regime of a model that does not tell it.
COLD = "cold"

#: Written into every model; one of a later format is refused.
FORMAT = 1
#: A model is at most so large, its data's provenance included.
MOST_BYTES = 1 << 20
#: Parts of a model that are made of arrays.
PARTS = "forest", "library", "calibration", "evidence", "network"
#: Values that need double precision; all others are kept in single.
DOUBLE = "thresholds", "parameters"
#: What base 85 counts by its characters, and a digit at each place of five.
_DIGITS = np.zeros(256, np.uint64)
_DIGITS[list(b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~")] = range(
    85
)
_WORTH = 85 ** np.arange(4, -1, -1, dtype=np.uint64)


def name_of(operation: Operation, dtype: str = "") -> str:
    """What the model of an operation in a dtype is called: as the operation, which other dtypes follow."""
    return " ".join([operation.name, *([dtype] if dtype not in ("", operation.dtypes[0]) else [])])


def to_bytes(model: Model) -> bytes:
    """A model as JSON text with a checksum.

    Raises:
        InputError: It would be larger than 1 MB.
    """
    configs = json.dumps([[kernel, dict(config)] for kernel, config in model.configs])
    body = {
        "format": FORMAT, "operation": model.operation, "device": model.device.to_json(),
        "provenance": dict(model.provenance), "limits": vars(model.limits),
        "configs": base64.b64encode(zlib.compress(configs.encode(), 9)).decode(),
        "traits": [[*key, _packed("", of)] for key, of in model.traits.items()],
        **{name: _packed(name, getattr(model, name)) for name in ("parameters", *PARTS)},
    }  # fmt: skip
    text = json.dumps({"checksum": _checksum(body), **body}, sort_keys=True).encode()
    if len(text) > MOST_BYTES:
        raise InputError(
            f"a model takes {MOST_BYTES} bytes at the most, got {len(text)}; fit it to fewer configs"
        )
    return text


def from_bytes(text: bytes) -> Model:
    """Reads what `to_bytes` wrote.

    Raises:
        InputError: The text is damaged, or of a later version.
    """
    try:
        body = json.loads(text)
        version, checksum = body["format"], body.pop("checksum")
        if version == FORMAT and checksum == _checksum(body):
            return _read(body)
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error) as error:
        raise InputError(f"a model is JSON with all its parts, got {error!r}; fit it again") from error
    if version != FORMAT:
        raise InputError(
            f"a model has format {FORMAT}, got {version!r}; update the tuner or fit the model again"
        )
    raise InputError("a model's checksum is that of its text, got another: it is damaged; fit it again")


def _read(body: Mapping[str, Any]) -> Model:
    configs = json.loads(zlib.decompress(base64.b64decode(body["configs"])))
    parts = {name: _unpacked(body.get(name) if name == "network" else body[name]) for name in PARTS}
    if network := parts.pop("network"):
        network = Network(**{**network, "encoding": Encoding(**network["encoding"])})
    return Model(
        body["operation"], DeviceInfo.from_json(body["device"]), DeviceRates(**body["limits"]),
        [(kernel, Config(config)) for kernel, config in configs], _unpacked(body["parameters"]),
        {(dtype, layout): Traits(**_unpacked(of)) for dtype, layout, of in body["traits"]},
        Forest(**parts["forest"]), Forest(**parts["library"]), Calibration.read(**parts["calibration"]),
        Evidence(**parts["evidence"]), body["provenance"], network,
    )  # fmt: skip


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _packed(name: str, value: Any) -> Any:
    """An array as dtype, shape and compressed bytes, columns one after the other; else what JSON has.

    Of numbers with a point all first bytes come first, then all second ones: they compress better.
    """
    if hasattr(value, "__dataclass_fields__"):
        return {name: _packed(name, getattr(value, name)) for name in value.__dataclass_fields__}
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "i":
        most = abs(value).max(initial=0)
        kind = next(kind for kind in ("i1", "i2", "i4") if most <= np.iinfo(kind).max)
    else:
        kind = "f8" if name in DOUBLE else "f4"
    kept = np.dtype(kind)
    data = np.ascontiguousarray(value.T.astype(kept)).tobytes()
    if kept.kind == "f":
        data = np.frombuffer(data, np.uint8).reshape(-1, kept.itemsize).T.tobytes()
    text = base64.b85encode(zlib.compress(data, 9)).decode()
    return {"dtype": kept.str, "shape": list(value.shape), "text": text}


def _unpacked(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(value)
    if not isinstance(value, dict) or "dtype" not in value:
        return {name: _unpacked(part) for name, part in value.items()} if isinstance(value, dict) else value
    dtype, shape = np.dtype(value["dtype"]), value["shape"]
    if "data" in value:  # as earlier versions kept it
        data = zlib.decompress(base64.b64decode(value["data"]))
    else:
        data = zlib.decompress(_base85(value["text"]))
        if dtype.kind == "f":
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
    wide = np.int32 if dtype.kind == "i" else np.float64
    return np.ascontiguousarray(np.frombuffer(data, dtype).reshape(shape[::-1]).T.astype(wide))


def _base85(text: str) -> bytes:
    """What `base64.b85encode` wrote; the standard library takes a tenth of a second to read a megabyte."""
    missing = -len(text) % 5
    digits = _DIGITS[np.frombuffer(text.encode("ascii") + b"~" * missing, np.uint8)]
    data = (digits.reshape(-1, 5) @ _WORTH).astype(">u4").tobytes()
    return data[: len(data) - missing]


def path_of(name: str, device: str, directory: Path | None = None) -> Path:
    """Where a model of a device lies.

    Args:
        name: What it is called (`name_of`).
        device: Name of the device.
        directory: Folder of published results; the project's own when None.
    """
    return (directory or tuned_folder()) / slug(device) / "models" / f"{slug(name)}.json"


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
    by_device: dict[str, Model] = {}
    for name in dict.fromkeys([operation, f"{operation} {dtype}".strip()]):
        by_device |= _named(name, operation, regime, directory, store)
    return list(by_device.values())


def _named(
    name: str, operation: str, regime: str, directory: Path | None, store: Reader | None
) -> dict[str, Model]:
    """The models of a name, by device."""
    by_device: dict[str, Model] = {}
    for path in sorted((directory or tuned_folder()).glob(f"*/models/{slug(name)}.json")):
        status = path.stat()
        model = _of_file(path, status.st_mtime_ns, status.st_size)
        if (model.operation, regime_of(model)) == (operation, regime):
            by_device[model.device.name] = model
    if store is not None:
        from tuner.store.watched import models as latest

        for device, (fitted_at, text) in latest(store, name, regime).items():
            if device not in by_device or fitted_at > fitted_at_of(by_device[device]):
                with contextlib.suppress(InputError):  # a damaged one must not keep others from answering
                    by_device[device] = _of_text(text)
    return by_device


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
