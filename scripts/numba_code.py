"""Prints hashes of the machine code of a rendered CPU kernel, by function; reads JSON [text, entry, case].

For scripts/equivalents: a process of its own for each, since LLVM's names count up within a process.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from typing import Any

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import Rendered
from tuner.devices.cpu.numba import ready


def functions_of(entry: Any) -> list[Any]:
    """The dispatchers of a kernel's module, in order of definition."""
    module = sys.modules[entry.__module__]
    return [each for each in vars(module).values() if hasattr(each, "inspect_asm")]


def main() -> None:
    """Compiles as the tuner does, and hashes each function's machine code without symbols and addresses."""
    text, entry, (shape, dtype, layout, _) = json.load(sys.stdin)
    operation = next(each for each in builtin().operations.values() if set(each.dims) == set(shape))
    # Without Numba's cache: a function loaded from it has no assembly to show.
    text = re.sub(r"cache=True", "cache=False", text)
    function = ready(Rendered(text, entry, "cpu"), operation.problem(shape, dtype, layout))
    codes = {}
    for each in functions_of(function):
        digest = hashlib.sha256()
        for code in each.inspect_asm().values():
            digest.update(re.sub(r"_ZN[\w.$]+|\b0x[0-9a-f]+\b|k[0-9a-f]{24}|\.L\w+|\d{12,}", "", code).encode())
        codes[each.py_func.__name__] = digest.hexdigest()
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
