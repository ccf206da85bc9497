"""What is asked of a lookup, from words or from fields of a request, with its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import IEEE, PRECISIONS
from tuner.devices.protocol import REGIMES
from tuner.errors import InputError, UnknownName
from tuner.lookup.asking import parse_key
from tuner.results.record import ProblemKey

#: Largest size of a dim in a request; kernels count elements in 32 bits.
LARGEST_DIM = 2**31 - 1
#: Characters of a text in a request.
LONGEST_TEXT = 200
#: Dims of a problem in a request.
MOST_DIMS = 16
#: Keys of a question.
KEYS = (
    "problem", "operation", "dims", "dtype", "layout", "precision", "epilogue", "regime", "device",
    "kernel", "confirmed",
)  # fmt: skip

#: Dims by place, or by name.
Dims = Sequence[int] | Mapping[str, int]


@dataclass(frozen=True)
class LookupRequest:
    """A question to a lookup.

    Attributes:
        problem: What is to be computed.
        device: A name, a uuid, or a device of the node that answers; empty for that node's own.
        regime: How time is taken.
        kernel: Only this kernel; any if empty.
        confirmed: True for champions only that won again in a fresh process, or were published.
    """

    problem: ProblemKey
    device: str = ""
    regime: str = "cold"
    kernel: str = ""
    confirmed: bool = False


def asked_of(told: Mapping[str, Any] | str, catalogue: Catalogue, defaults: Mapping[str, Any]) -> LookupRequest:
    """Reads a question.

    Args:
        told: `KEYS`, of which ``problem`` (words) or ``operation`` with ``dims`` is needed; a text is
            the words.
        catalogue: Operations as they are now.
        defaults: Values of keys that the question leaves out.

    Raises:
        InputError: A key is unknown, missing or wrong.
    """
    named = {"problem": told} if isinstance(told, str) else dict(told)
    unknown = [str(name) for name in named if name not in KEYS]
    if unknown:
        raise UnknownName("key of a question", unknown[0], KEYS)
    given = {**defaults, **{name: value for name, value in named.items() if value not in (None, "")}}
    words = given.pop("problem", None)
    text = {
        name: _text(name, given.get(name, "")) for name in KEYS if name not in ("problem", "dims", "confirmed")
    }
    regime = text["regime"] or "cold"
    if regime not in REGIMES:
        raise UnknownName("regime", regime, REGIMES)
    if words is not None:
        mixed = [
            name for name in ("operation", "dims", "dtype", "layout", "precision", "epilogue") if name in named
        ]
        if mixed:
            raise InputError(f"problem says all of a problem in words, got {mixed[0]} beside it; keep one")
        key = parse_key(_text("problem", words), catalogue)
    else:
        if not text["operation"]:
            rule = "a question names a problem in words, or an operation and its dims"
            raise InputError(f"{rule}, got no operation; add one, e.g. gemm")
        key = key_of(
            catalogue, text["operation"], _dims(given.get("dims")), text["dtype"], text["layout"],
            text["precision"], text["epilogue"],
        )  # fmt: skip
    if any(not 1 <= size <= LARGEST_DIM for _, size in key.shape):
        raise InputError(f"a dim is a whole number of 1 to {LARGEST_DIM}, got {dict(key.shape)}; correct it")
    return LookupRequest(
        key, text["device"], regime, text["kernel"], _flag("confirmed", given.get("confirmed", False))
    )


def key_of(
    catalogue: Catalogue,
    operation: str,
    dims: Dims,
    dtype: str = "",
    layout: str = "",
    precision: str = "",
    epilogue: str = "",
) -> ProblemKey:
    """The key of a problem.

    Args:
        catalogue: Operations as they are now.
        operation: Name. One that is not declared needs its dims by name, and its dtype.
        dims: By place, or by name.
        dtype: Element type; the operation's first if empty.
        layout: Layout; the operation's first if empty.
        precision: ``ieee`` or ``emulated``; ``ieee`` if empty.
        epilogue: Its parts, joined by ``+``; none if empty.

    Raises:
        InputError: They are no problem.
    """
    declared = catalogue.operations.get(operation)
    if declared is None:
        if isinstance(dims, Mapping) and dims and dtype and precision in ("", *PRECISIONS):
            text = Epilogue.read(epilogue).text
            return ProblemKey(operation, tuple(dims.items()), dtype, layout, precision or IEEE, text)
        raise UnknownName("operation", operation, catalogue.operations)
    if not isinstance(dims, Mapping):
        if len(dims) != len(declared.dims):
            wanted = " ".join(name.upper() for name in declared.dims)
            raise InputError(f"{operation} takes {wanted}: {len(declared.dims)} dims, got {len(dims)}")
        dims = dict(zip(declared.dims, dims, strict=True))
    return ProblemKey.of(declared.problem(dims, dtype, layout, precision, epilogue))


def _dims(told: Any) -> Dims:
    """Dims from a list, a mapping, or a text: ``4096,4096,4096`` or ``m=4096,n=4096,k=4096``."""
    if isinstance(told, str):
        text = told if "," in told else told.replace("x", ",")
        parts = [part.strip() for part in text.split(",") if part.strip()]
        named = all("=" in part for part in parts)
        told = dict(part.split("=", 1) for part in parts) if named else parts
    if isinstance(told, Mapping) and 0 < len(told) <= MOST_DIMS:
        return {_text("a dim's name", name): _whole(size) for name, size in told.items()}
    if isinstance(told, Sequence) and 0 < len(told) <= MOST_DIMS:
        return [_whole(size) for size in told]
    raise InputError(
        f"dims are whole numbers such as 4096,4096,4096, or m=4096,n=4096,k=4096, got {str(told)[:80]!r}; "
        "correct them"
    )


def _whole(told: Any) -> int:
    try:
        if isinstance(told, str) and len(told) <= 10:
            return int(told)
        if type(told) is int and abs(told) <= LARGEST_DIM:
            return told
    except ValueError:
        pass
    raise InputError(f"a dim is a whole number of 1 to {LARGEST_DIM}, got {str(told)[:40]!r}; correct it")


def _text(name: str, told: Any) -> str:
    if not isinstance(told, str) or len(told) > LONGEST_TEXT or not told.isprintable():
        raise InputError(
            f"{name} is a text of up to {LONGEST_TEXT} characters, got {str(told)[:40]!r}; correct it"
        )
    return told


def _flag(name: str, told: Any) -> bool:
    if told in (True, "true", "1"):
        return True
    if told in (False, "false", "0"):
        return False
    raise InputError(f"{name} is true or false, got {str(told)[:40]!r}; correct it")
