"""Questions to a lookup, from words or from fields of a request, with their bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tuner.declare.catalogue import Catalogue
from tuner.declare.epilogue import Epilogue
from tuner.declare.problem import IEEE, PRECISIONS, Operation
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
#: Keys of a problem, which words may tell instead, and of a question.
PROBLEM_KEYS = ("operation", "dims", "dtype", "layout", "precision", "epilogue")
KEYS = ("problem", *PROBLEM_KEYS, "regime", "device", "kernel", "confirmed")

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


def read_question(
    question: Mapping[str, Any] | str, catalogue: Catalogue, defaults: Mapping[str, Any] | None = None
) -> LookupRequest:
    """Reads a question.

    Args:
        question: `KEYS`, of which ``problem`` (words) or ``operation`` with ``dims`` is needed; a text is
            the words.
        catalogue: Operations as they are now.
        defaults: Values of keys that the question leaves out.

    Raises:
        InputError: A key is unknown, missing or wrong.
    """
    named = {"problem": question} if isinstance(question, str) else dict(question)
    for name in named:
        if name not in KEYS:
            raise UnknownName("key of a question", str(name), KEYS)
    values = {**(defaults or {}), **{name: value for name, value in named.items() if value not in (None, "")}}
    text = {name: _text(name, values.get(name, "")) for name in KEYS if name not in ("dims", "confirmed")}
    regime, confirmed = text["regime"] or "cold", values.get("confirmed", False)
    if regime not in REGIMES:
        raise UnknownName("regime", regime, REGIMES)
    if confirmed not in (True, False, "true", "false", "1", "0"):
        raise InputError(f"confirmed is true or false, got {str(confirmed)[:40]!r}; correct it")
    if text["problem"]:
        if mixed := [name for name in PROBLEM_KEYS if name in named]:
            raise InputError(f"problem says all of a problem in words, got {mixed[0]} beside it; keep one")
        key = parse_key(text["problem"], catalogue)
    elif text["operation"]:
        key = _key(catalogue, _dims(values.get("dims")), text)
    else:
        rule = "a question names a problem in words, or an operation and its dims"
        raise InputError(f"{rule}, got no operation; add one, e.g. gemm")
    check_dims(key.dims)
    return LookupRequest(key, text["device"], regime, text["kernel"], confirmed in (True, "true", "1"))


def _key(catalogue: Catalogue, dims: Dims, text: Mapping[str, str]) -> ProblemKey:
    """The key of a problem; one of an operation that is not declared needs its dims by name, and its dtype."""
    told = [text[name] for name in ("dtype", "layout", "precision", "epilogue")]
    declared = catalogue.operations.get(text["operation"])
    if declared is not None:
        return ProblemKey.of(declared.problem(named_dims(declared, dims), *told))
    dtype, layout, precision, epilogue = told
    if isinstance(dims, Mapping) and dims and dtype and precision in ("", *PRECISIONS):
        parts = Epilogue.read(epilogue).text
        return ProblemKey(text["operation"], tuple(dims.items()), dtype, layout, precision or IEEE, parts)
    raise UnknownName("operation", text["operation"], catalogue.operations)


def named_dims(operation: Operation, dims: Dims) -> Mapping[str, int]:
    """Dims by name.

    Raises:
        InputError: The operation has more or fewer.
    """
    if isinstance(dims, Mapping):
        return dims
    if len(dims) != len(operation.dims):
        names = " ".join(name.upper() for name in operation.dims)
        raise InputError(f"{operation.name} takes {names}: {len(operation.dims)} dims, got {len(dims)}")
    return dict(zip(operation.dims, dims, strict=True))


def check_dims(dims: Mapping[str, int]) -> None:
    """Refuses dims that no kernel counts.

    Raises:
        InputError: One is too small or too large.
    """
    if any(not 1 <= size <= LARGEST_DIM for size in dims.values()):
        raise InputError(
            f"a dim is a whole number of 1 to {LARGEST_DIM}, got {str(dict(dims))[:200]}; correct it"
        )


def _dims(dims: Any) -> Dims:
    """Dims from a list, a mapping, or a text: ``4096,4096,4096`` or ``m=4096,n=4096,k=4096``."""
    if isinstance(dims, str):
        text = dims if "," in dims else dims.replace("x", ",")
        parts = [part.strip() for part in text.split(",") if part.strip()]
        named = all("=" in part for part in parts)
        dims = dict(part.split("=", 1) for part in parts) if named else parts
    if isinstance(dims, Mapping) and 0 < len(dims) <= MOST_DIMS:
        return {_text("a dim's name", name): _whole(size) for name, size in dims.items()}
    if isinstance(dims, Sequence) and 0 < len(dims) <= MOST_DIMS:
        return [_whole(size) for size in dims]
    raise InputError(
        f"dims are whole numbers such as 4096,4096,4096, or m=4096,n=4096,k=4096, got {str(dims)[:80]!r}; "
        "correct them"
    )


def _whole(size: Any) -> int:
    text = str(size)
    if len(text) > 10 or not text.removeprefix("-").isdecimal():
        raise InputError(f"a dim is a whole number of 1 to {LARGEST_DIM}, got {text[:40]!r}; correct it")
    return int(text)


def _text(name: str, text: Any) -> str:
    if not isinstance(text, str) or len(text) > LONGEST_TEXT or not text.isprintable():
        raise InputError(
            f"{name} is a text of up to {LONGEST_TEXT} characters, got {str(text)[:40]!r}; correct it"
        )
    return text
