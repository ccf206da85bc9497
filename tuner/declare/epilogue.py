"""Epilogues: what is done to a product's sums before they are stored.

An element of the result is ``activation(alpha * sum + beta * c_in + bias) + residual``; parts that are not
declared are left out. The order is cuBLASLt's, to which the residual sum is added. ``gelu`` is the exact one,
by erf, as ``gelu`` of PyTorch; ``gelu-tanh`` is its approximation by tanh, as cuBLASLt's GELU and PyTorch's
``approximate="tanh"``.

Operands of 8 bits have scales, too, and their result's dtype is a choice. Both are words of the epilogue.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tuner.errors import InputError, UnknownName

#: Activations, and by how much an error of what they are applied to grows at the most, against the result's
#: rms: the largest slope over the least ratio of the rms after to that before, of normal numbers of any size
#: (relu 1 / 0.707, gelu 1.129 / 0.5, silu 1.1 / 0.5).
ACTIVATIONS: Mapping[str, float] = {"relu": 1.42, "gelu": 2.26, "gelu-tanh": 2.26, "silu": 2.2}
#: Biases: an element for each row of the result, or for each column.
ROW, COLUMN = BIASES = ("bias-row", "bias-col")
ALPHA, BETA, RESIDUAL = "alpha", "beta", "residual"
#: Dtypes of 8 bits, by NumPy's and PyTorch's name: e4m3 has no infinity, and 448 is its largest number.
FLOAT8_DTYPES = ("float8_e4m3fn",)
#: A dtype of 8 bits that one operand of a product of such may have: fewer digits, and more reach.
E5M2 = "float8_e5m2"
#: What says which.
MIXED = ("a-e5m2", "b-e5m2")
#: Scales of operands of 8 bits, in float32: one for each operand; one for each row of A and column of B; one
#: for 1 x 128 elements of A and 128 x 128 of B.
SCALES = BY_TENSOR, BY_LINE, BY_BLOCK = ("scale-tensor", "scale-line", "scale-block")
#: Elements along the sides of a block.
SCALE_BLOCK = 128
#: Dtypes that a result of such operands may have; the first where nothing is said.
RESULTS: Mapping[str, str] = {"": "bfloat16", "to-float16": "float16", "to-float32": "float32"}
#: All words, in the order in which they are applied and written.
WORDS = (*MIXED, *SCALES, ALPHA, BETA, *BIASES, *ACTIVATIONS, RESIDUAL, *filter(None, RESULTS))
#: Name of the matrix that beta multiplies.
C_IN = "c_in"
#: Roundings of an element beside those of its sum: a factor, sums of four, a function of two or three ulp.
ROUNDINGS = 8.0
#: The approximation of GELU: sqrt(2 / pi), and the cube's factor (Hendrycks and Gimpel 2016).
TANH_SCALE, TANH_CUBE = math.sqrt(2.0 / math.pi), 0.044715


@dataclass(frozen=True)
class Epilogue:
    """What is done to a product's sums; nothing by default.

    Attributes:
        alpha: The sum is multiplied by a number.
        beta: A number times the matrix `C_IN` is added.
        bias: ``bias-row``, ``bias-col`` or empty.
        activation: One of `ACTIVATIONS` or empty.
        residual: A matrix is added last.
        scale: One of `SCALES` or empty.
        result: One of `RESULTS` or empty.
        mixed: One of `MIXED` or empty.
    """

    alpha: bool = False
    beta: bool = False
    bias: str = ""
    activation: str = ""
    residual: bool = False
    scale: str = ""
    result: str = ""
    mixed: str = ""

    @classmethod
    def read(cls, text: str) -> Epilogue:
        """Reads words joined by ``+``, in any order.

        Raises:
            UnknownName: No such word.
            InputError: A word that is there twice; two biases or activations.
        """
        return _read(text)

    @property
    def text(self) -> str:
        """The words in their order, joined by ``+``: the one text that names it."""
        there = {self.bias, self.activation, self.scale, self.result, self.mixed}
        there |= {word for word in (ALPHA, BETA, RESIDUAL) if getattr(self, word)}
        return "+".join(word for word in WORDS if word in there)

    def __bool__(self) -> bool:
        return self != Epilogue()

    @property
    def unscaled(self) -> Epilogue:
        """What is done to sums that are scaled already, before they are rounded."""
        return replace(self, scale="", result="", mixed="")

    def dtype(self, operands: str) -> str:
        """The result's dtype, for operands of a dtype."""
        return RESULTS[self.result] if operands in FLOAT8_DTYPES else operands

    def operand_dtype(self, operand: str, dtype: str) -> str:
        """The dtype of ``a`` or ``b``, in a product of a dtype."""
        return E5M2 if self.mixed == f"{operand}-e5m2" else dtype

    @property
    def operands(self) -> tuple[str, ...]:
        """Names of the further inputs, in a kernel's order."""
        scales = {"scale_a": self.scale, "scale_b": self.scale}
        named = scales | {C_IN: self.beta, "bias": self.bias, RESIDUAL: self.residual}
        return tuple(name for name, there in named.items() if there)

    @property
    def factors(self) -> tuple[str, ...]:
        """Names of the further scalars, in a kernel's order."""
        return tuple(word for word in (ALPHA, BETA) if getattr(self, word))

    def shape_of(self, operand: str, m: Any, n: Any) -> tuple[Any, ...]:
        """Shape of a further input, for a result of m rows and n columns."""
        if operand == "bias":
            return (m,) if self.bias == ROW else (n,)
        return m, n

    def of(self, xp: Any, sums: Any, given: Mapping[str, Any]) -> Any:
        """The result of a product's sums.

        Args:
            xp: numpy or cupy.
            sums: (m, n) array; everything is computed in its dtype, and it may be written.
            given: The further inputs and scalars by name.

        Returns:
            (m, n) array of the same dtype, which may be the same array.
        """
        dtype = sums.dtype
        kind = dtype.type
        if self.alpha:
            sums *= kind(given[ALPHA])
        if self.beta:
            sums += kind(given[BETA]) * given[C_IN].astype(dtype, copy=False)
        if self.bias:
            bias = given["bias"].astype(dtype, copy=False)
            sums += bias[:, None] if self.bias == ROW else bias
        result = activated(xp, sums, self.activation)
        if self.residual:
            result += given[RESIDUAL].astype(dtype, copy=False)
        return result

    @property
    def in_cublas(self) -> tuple[Epilogue, Epilogue]:
        """What one call of cuBLASLt applies, and what is left for a kernel behind it.

        cuBLASLt (13) computes ``activation(alpha * sum + beta * C + bias)`` for row-major results with a bias
        for each column, relu and the approximate GELU. Where nothing comes between, C may be the residual.
        """
        bias = self.bias if self.bias == COLUMN else ""
        biased = bias == self.bias
        if biased and self.residual and not self.beta and not self.activation:
            return self, Epilogue()
        own = self.scale, self.result, self.mixed
        activation = self.activation if biased and self.activation in ("relu", "gelu-tanh") else ""
        rest = "" if biased else self.bias, "" if activation else self.activation, self.residual
        return Epilogue(self.alpha, self.beta, bias, activation, False, *own), Epilogue(False, False, *rest)

    @property
    def growth(self) -> float:
        """By how much errors of the sums grow at the most; see `ACTIVATIONS`."""
        return ACTIVATIONS.get(self.activation, 1.0)

    @property
    def flops(self) -> int:
        """Operations for each element; a function counts as one."""
        return 2 * self.alpha + 2 * self.beta + bool(self.bias) + bool(self.activation) + self.residual


@cache
def _read(text: str) -> Epilogue:
    words = [word.strip() for word in text.split("+")] if text.strip() else []
    for word in words:
        if word not in WORDS:
            raise UnknownName("part of an epilogue", word, WORDS)
    kinds = [[word for word in words if word in kind] for kind in (BIASES, ACTIVATIONS, SCALES, RESULTS, MIXED)]
    if len(set(words)) < len(words) or max(map(len, kinds)) > 1:
        raise InputError(
            "an epilogue has each part once, at most one bias and one activation, one kind of scales, one "
            f"dtype of the result and one operand that is e5m2, got {text!r}; leave the others out"
        )
    bias, activation, *own = map("".join, kinds)
    return Epilogue(ALPHA in words, BETA in words, bias, activation, RESIDUAL in words, *own)


def activated(xp: Any, values: Any, activation: str) -> Any:
    """An activation of each element, in the dtype of the values.

    Args:
        xp: numpy or cupy.
        values: Floating-point array.
        activation: One of `ACTIVATIONS`, or empty for none.
    """
    kind = values.dtype.type
    if activation == "relu":
        return xp.maximum(values, kind(0))
    if activation == "gelu":
        return values * (_erf(xp)(values * kind(math.sqrt(0.5))) + kind(1)) * kind(0.5)
    if activation == "gelu-tanh":
        inner = kind(TANH_SCALE) * (values + kind(TANH_CUBE) * values * values * values)
        return values * (xp.tanh(inner) + kind(1)) * kind(0.5)
    if activation == "silu":
        # By tanh, since exp overflows.
        return values * (xp.tanh(values * kind(0.5)) + kind(1)) * kind(0.5)
    return values


def _erf(xp: Any) -> Any:
    module = "scipy.special" if xp.__name__ == "numpy" else "cupyx.scipy.special"
    return importlib.import_module(module).erf
