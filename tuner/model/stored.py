"""Models as text: what is published beside the results, or kept in a database."""

from __future__ import annotations

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Operation
from tuner.declare.space import Config
from tuner.errors import InputError
from tuner.model import base85
from tuner.model.calibrate import Calibration
from tuner.model.evidence import Evidence
from tuner.model.fitted import Model
from tuner.model.forest import Forest
from tuner.model.network import Encoding, Network
from tuner.model.physics import Limits, Traits

#: Written into every model; one of a later format is refused.
FORMAT = 1
#: A model is at most so large, its data's provenance included.
MOST_BYTES = 1 << 20
#: Values that need no more than single precision.
SINGLE = (
    "leaves", "values", "places", "losses", "errors", "inputs", "summed", "library", "behind", "centre",
    "spread", "knots", "steps", "offsets",
)  # fmt: skip


def name_of(operation: Operation, dtype: str = "") -> str:
    """What the model of an operation in a dtype is called: as the operation, which other dtypes follow."""
    return " ".join([operation.name, *([dtype] if dtype not in ("", operation.dtypes[0]) else [])])


def to_bytes(model: Model) -> bytes:
    """A model as JSON text with a checksum.

    Raises:
        InputError: It would be larger than 1 MB.
    """
    body = {
        "format": FORMAT,
        "operation": model.operation,
        "device": model.device.to_json(),
        "provenance": dict(model.provenance),
        "limits": vars(model.limits),
        "configs": _packed_text(json.dumps([[kernel, dict(config)] for kernel, config in model.configs])),
        "parameters": _packed("parameters", model.parameters),
        "traits": [[*key, _arrays(of)] for key, of in model.traits.items()],
        "forest": _arrays(model.forest),
        "library": _arrays(model.library),
        "calibration": _arrays(model.calibration),
        "evidence": _arrays(model.evidence) if model.evidence is not None else None,
        "network": _arrays(model.network) if model.network is not None else None,
    }
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
    if len(text) > MOST_BYTES:
        raise InputError(f"a model takes {MOST_BYTES} bytes at the most, got {len(text)}; fit it again")
    try:
        body = json.loads(text)
        version, checksum = body["format"], body.pop("checksum")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError("a model is JSON with format and checksum, got other text; fit it again") from error
    if version != FORMAT:
        raise InputError(
            f"a model has format {FORMAT}, got {version!r}; update the tuner or fit the model again"
        )
    if checksum != _checksum(body):
        raise InputError("a model's checksum is that of its text, got another: it is damaged; fit it again")
    try:
        return _read(body)
    except (ValueError, KeyError, TypeError, IndexError, zlib.error) as error:
        raise InputError(f"a model has all its parts, got {error}; fit it again") from error


def _read(body: Mapping[str, Any]) -> Model:
    return Model(
        body["operation"], DeviceInfo.from_json(body["device"]), Limits(**body["limits"]),
        [(kernel, Config(config)) for kernel, config in _configs(body["configs"])],
        _unpacked(body["parameters"]),
        {(dtype, layout): Traits(**_unpacked_all(of)) for dtype, layout, of in body["traits"]},
        Forest(**_unpacked_all(body["forest"])), Forest(**_unpacked_all(body["library"])),
        Calibration(**_unpacked_all(body["calibration"])), body["provenance"],
        Evidence(**_unpacked_all(body["evidence"])) if body.get("evidence") else None,
        _network(body["network"]) if body.get("network") else None,
    )  # fmt: skip


def _network(kept: Mapping[str, Any]) -> Network:
    others = {name: value for name, value in kept.items() if name != "encoding"}
    return Network(Encoding(**_unpacked_all(kept["encoding"])), **_unpacked_all(others))


def _configs(kept: Any) -> Any:
    """Pairs of kernel and config; earlier versions wrote them as they are."""
    if not isinstance(kept, str):
        return kept
    return json.loads(zlib.decompressobj().decompress(base64.b64decode(kept), 16 * MOST_BYTES))


def _packed_text(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def _checksum(body: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


def _arrays(of: Forest | Traits | Calibration | Evidence | Network | Encoding) -> dict[str, Any]:
    return {name: _packed(name, getattr(of, name)) for name in of.__dataclass_fields__}


def _packed(name: str, value: Any) -> Any:
    """An array as dtype, shape and compressed bytes, columns one after the other; anything else as it is.

    Of numbers with a point all first bytes come first, then all second ones: they compress better.
    """
    if isinstance(value, Encoding):
        return _arrays(value)
    if not isinstance(value, np.ndarray):
        return value
    if value.dtype.kind == "i":
        most = abs(value).max(initial=0)
        kept = np.dtype(f"i{1 if most < 2**7 else 2 if most < 2**15 else 4}")
    else:
        kept = np.dtype(f"f{4 if name in SINGLE else 8}")
    data = np.ascontiguousarray(value.T.astype(kept)).tobytes()
    if kept.kind == "f":
        data = np.frombuffer(data, np.uint8).reshape(-1, kept.itemsize).T.tobytes()
    text = base85.written(zlib.compress(data, 9))
    return {"dtype": kept.str, "shape": list(value.shape), "text": text}


def _unpacked(value: Any) -> Any:
    if not isinstance(value, dict):
        return tuple(value) if isinstance(value, list) else value
    dtype, shape = np.dtype(value["dtype"]), value["shape"]
    if dtype.kind not in "if":
        raise ValueError(f"an array of {dtype}")
    room = int(np.prod(shape)) * dtype.itemsize
    if "data" in value:  # as earlier versions kept it
        found = np.frombuffer(_inflated(base64.b64decode(value["data"]), room), dtype)
    else:
        data = _inflated(base85.read(value["text"]), room)
        if dtype.kind == "f":
            data = np.frombuffer(data, np.uint8).reshape(dtype.itemsize, -1).T.tobytes()
        found = np.frombuffer(data, dtype)
    wide = np.int32 if dtype.kind == "i" else np.float64
    return np.ascontiguousarray(found.reshape(shape[::-1]).T.astype(wide))


def _inflated(kept: bytes, room: int) -> bytes:
    """What was compressed; one byte more than there is room for if that was more."""
    return zlib.decompressobj().decompress(kept, room + 1)


def _unpacked_all(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _unpacked(value) for name, value in values.items()}
