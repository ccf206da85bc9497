"""Everything that is kept as lines of JSON, and back. Reading returns exactly what was written.

Each line is self-contained: a champion's line includes its records. So files of lines can be joined, split and
sorted. NaN and infinities, which JSON cannot express, are texts. The database has the same lines, packed.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

from tuner.errors import InputError
from tuner.results import codec
from tuner.results.crowns import Crown
from tuner.results.record import Champion, Record, Retraction
from tuner.results.survey import Kept, SurveyPart
from tuner.version import __version__

#: Version of the line format; files of a higher version are refused. The second added retractions, the third
#: parts of surveys, the fourth the crown log.
FORMAT = 4
#: Key of a line -> what it holds.
KINDS: Mapping[str, type] = {
    "record": Record, "champion": Champion, "crown": Crown, "survey": SurveyPart, "retraction": Retraction,
}  # fmt: skip
_KEYS = {kind: key for key, kind in KINDS.items()}
#: A line unpacks to at most so many bytes: a damaged row must not fill the memory.
MOST_BYTES = 1 << 26
#: What lines have in common, which shortens packed ones to a third. It is part of the packed form: never change
#: it. Fields that came later only take a few bytes more.
_COMMON = (
    b'{"champion":{"record":{"problem":{"operation":"gemm","shape":[["m",4096],["n",4096],["k",4096]],"dtype":'
    b'"float64","layout":"nn"},"device":{"name":"AMD EPYC (AVX-512)","kind":"cpu","uuid":"","architecture":"'
    b'znver","driver":"Linux","runtime":"Numba ","memory_bytes":0,"compute_capability":0,"sm_count":0,'
    b'"warp_size":0,'
    b'"max_threads_per_block":0,"max_threads_per_sm":0,"shared_bytes_per_block":0,"shared_bytes_per_sm":0,'
    b'"registers_per_block":0,"registers_per_thread":0,"l2_bytes":0,"l1_bytes":0,"cores":0,"vector_bytes":0},'
    b'"baseline":null,"speedup":1.,"verdict":"faster","trials":{"total":,"measured":,"failed":},"pairs":[{"one":'
    b'"other":"ratio":"low":"high":"same"}],"crowned_at":"},{"retraction":{"of":"reason":"made_at":"}},{"survey":'
    b'"problems":[[["configs":"noise":[0.0,"reasons":{}},"kernel":"library","outcome":"WRONG_RESULT","reason":"'
    b'COMPILE_FAILED","reason":"PRUNED","reason":"{"record":{"problem":{"operation":"gemm","shape":[["m",1024],'
    b'["n",1024],["k",1024]],"dtype":"float32","layout":"nn"},"device":{"name":"NVIDIA H200","kind":"cuda",'
    b'"uuid":"GPU-","architecture":"sm_90","driver":"580.","runtime":"13.0","memory_bytes":150754820096,'
    b'"compute_capability":90,"sm_count":132,"warp_size":32,"max_threads_per_block":1024,"max_threads_per_sm":2048'
    b',"shared_bytes_per_block":232448,"shared_bytes_per_sm":233472,"registers_per_block":65536,'
    b'"registers_per_thread":255,"l2_bytes":62914560,"l1_bytes":0,"cores":0,"vector_bytes":0},"regime":"cold",'
    b'"role":"trial","kernel":"tiled","config":{"BM":64,"BN":64,"BK":8,"TM":4,"TN":4,"VECTOR":4,"PAD":true},'
    b'"source_hash":"","measurement":{"outcome":"MEASURED","reason":"","samples_s":[0.000],"error":{"max_rel":'
    b'"rms_rel":"bound_ratio":0.,"mean_rel":e-07},"compiled":{"registers":128,"spill_bytes":0,"shared_bytes":0,'
    b'"local_bytes":0,"binary_hash":"","compiler":"NVRTC 13.0","launch_hash":""},"stages_s":{"compile":0.,'
    b'"load":0.,"verify":0.,"time":0.},"circumstances":{"sm_clock_hz":1980000000.0,"temperature_c":40.0,'
    b'"power_w":,"throttle_reasons":0.0,"throttled":0.0,"occupancy":0.5,"load_1min":0.,"clock_hz":},"work":'
    b'{"flops":2147483648.0,"bytes":12582912.0},"versions":{"tuner":"0.2.0","python":"3.11","numpy":"2.","driver":'
    b'"580.","compiler":"NVRTC 13.0","verification":"2"},"study":"gemm 1024 x 1024 x 1024 float32 nn, cold",'
    b'"session":"","origin":"","id":"","measured_at":"2026-01-01T00:00:00.000000+00:00"}}'
)
#: First bytes of a packed line: zlib's header and the sum of `_COMMON`.
MAGIC = b"\x78\xf9" + zlib.adler32(_COMMON).to_bytes(4, "big")


def header(**more: str) -> str:
    """The first line of a file."""
    return _line({"tile_tuner": "records", "format": FORMAT, "made_by": __version__, **more})


def line_of(item: Kept) -> str:
    """Returns what is kept as a line, without the newline."""
    kind: Any = type(item)
    write, _ = codec.converters(kind)
    return _line({_KEYS[kind]: write(item)})


def parsed(line: str) -> Kept | None:
    """Reads a line; None for a header.

    Raises:
        ValueError: The line is invalid; the message says why.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"it is not JSON: {error}") from None
    try:
        for key, kind in KINDS.items():
            if key in data:
                _, read = codec.converters(kind)
                item: Kept = read(data[key])
                return item
        form = data["format"] if data["tile_tuner"] == "records" else 0
    except KeyError as error:
        raise ValueError(f"it lacks {error}") from None
    except (TypeError, AttributeError, ValueError, IndexError, OverflowError, InputError) as error:
        raise ValueError(f"it is no record: {error}") from None
    if form > FORMAT:
        raise ValueError(f"it begins a file of form {form}, and this version knows forms up to {FORMAT}")
    return None


def packed(item: Kept) -> bytes:
    """Returns what is kept as it lies in the database: a line with a sum of its own."""
    packing = zlib.compressobj(9, zdict=_COMMON)
    return packing.compress(line_of(item).encode()) + packing.flush()


def unpacked(data: bytes) -> Kept:
    """Reads the output of `packed`.

    Raises:
        ValueError: It is damaged.
    """
    unpacking = unpacker()
    try:
        text = unpacking.decompress(data, MOST_BYTES)
        item = parsed(text.decode()) if unpacking.eof else None
    except (zlib.error, TypeError, ValueError) as error:
        raise ValueError(f"stored data is damaged: {error}") from error
    if item is None:
        raise ValueError("stored data is damaged: it ends early")
    return item


def unpacker() -> Any:
    """Returns what unpacks one line."""
    return zlib.decompressobj(zdict=_COMMON)


def text_of(data: Any) -> str:
    """Returns JSON text, the same for equal data; converts NumPy's scalars."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), default=_plain)


def _line(data: Any) -> str:
    try:
        return json.dumps(data, separators=(",", ":"), default=_plain, allow_nan=False)
    except ValueError:
        return json.dumps(_named(data), separators=(",", ":"), default=_plain)


def _plain(scalar: Any) -> Any:
    """NumPy's scalars become Python's."""
    return scalar.item()


def _named(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, Mapping):
        return {key: _named(value) for key, value in data.items()}
    return [_named(value) for value in data] if isinstance(data, list | tuple) else data
