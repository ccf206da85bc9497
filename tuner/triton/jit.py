"""Functions under ``triton.jit`` as kernels of a user's own, written down with all that they use."""

from __future__ import annotations

import ast
import copy
import inspect
import itertools
import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from tuner.declare import own_source
from tuner.declare.own import OwnKernel, Reference
from tuner.declare.problem import INT32_MAX
from tuner.declare.shapes import KernelArgument
from tuner.errors import InputError
from tuner.python.arrays import is_array
from tuner.python.own_kernel import NUMBERS, KernelCode
from tuner.triton.compiler import HOOK, RESET, RESTORED
from tuner.triton.language import OPTIONS


class _FirstConfig(Reference):
    """What the first config computes is right."""

    @property
    def call(self) -> str:
        """See the base."""
        return "tuner.triton.compiler.by_first(lambda: KERNEL.declared(pathlib.Path(__file__)))"


class JitModule(own_source.Module):
    """A module of functions under ``triton.jit``."""

    def add_jit(self, function: Any, name: str, node: ast.FunctionDef, free: Sequence[str] = ()) -> None:
        """Writes a function down under a name, after what it uses. Its `free` numbers may have any value."""
        node.name, node.decorator_list, node.returns = name, [], None
        free = [*(getattr(function, "do_not_specialize", None) or ()), *free]
        self.add_node(node, function.fn, f"@triton.jit(do_not_specialize={free})" if free else "@triton.jit")

    def take(self, value: Any, name: str) -> bool:
        """Writes functions and constants of Triton's down, too."""
        if type(value).__name__ == "constexpr":
            self.lines.append(f"{name} = triton.language.constexpr({value.value!r})")
        elif JitCode.reads(value) and not value.fn.__module__.startswith("triton."):
            self.add_jit(value, name, own_source.definition(value.fn))
        else:
            return super().take(value, name)
        return True


class JitCode(KernelCode):
    """A function under ``triton.jit`` before it has arguments.

    Its parameters are arguments of ``tl.constexpr`` and Triton's options; other such arguments, and those that
    are None, are constants of the source. Beside the options of `KernelCode` it has ``rows``, the values of the
    only configs; ``reset_to_zero`` and ``restore_value``, names of arrays; its ``grid`` may be a function, too.
    """

    @staticmethod
    def reads(what: object) -> bool:
        """True for a function of Triton's, also under its interpreter."""
        return type(what).__module__.startswith("triton.runtime.") and hasattr(what, "fn")

    def _read_function(self, function: Any, name: str) -> tuple[str, ...]:
        while hasattr(function, "configs"):  # triton.autotune
            function = function.fn
        if not inspect.isfunction(function.fn):
            raise InputError(f"a kernel is under triton.jit, got {function}; put triton.heuristics outermost")
        self.name = self._title = name or function.fn.__name__
        self.target, self.text, self.function = "triton", "", function
        signature = inspect.signature(function.fn).parameters
        self._constants = {one.name for one in signature.values() if "constexpr" in str(one.annotation)}
        self._usual = {one.name: one.default for one in signature.values() if one.default is not one.empty}
        self.takes = tuple(argument for argument in signature if argument not in self.parameters)
        self.defaults = {name: values[0] for name, values in self.parameters.items()} | self.defaults
        self._node = own_source.definition(function.fn)
        self._written = _written(self._node) & set(self.takes)
        return tuple(self._written)

    def _check_used(self) -> None:
        known = (*sorted(self._constants), *OPTIONS)
        for name in self.parameters:
            if name not in known:
                raise InputError(
                    f"a parameter of {self.name} is an argument of tl.constexpr or an option of Triton's "
                    f"({', '.join(known)}), got {name!r}; correct its name, or leave it out"
                )

    def named(self, *arguments: Any, **by_name: Any) -> dict[str, Any]:
        """Arguments by name; those left out are as the function says."""
        usual = {name: value for name, value in self._usual.items() if name in self.takes[len(arguments) :]}
        return super().named(*arguments, **usual | by_name)

    def declaration(self, values: Mapping[str, Any], tie: bool = True) -> OwnKernel:
        """See the base. Equal sizes, such as strides, are one unless `shapes` tells them apart."""
        lengths = {size for value in values.values() if is_array(value) for size in value.shape}
        self._fixed = {
            name: value
            for name, value in values.items()
            if name in self._constants or not _is_argument(value) or _is_unit_stride(value, lengths)
        }
        unusual = [item for item in self._fixed.items() if item[1] != self._usual.get(item[0], self)]
        self.name = re.sub(r"\W+", "_", "_".join(map(str, [self._title, *itertools.chain(*unusual)])))
        self._values = values
        rest = {name: _dense(value) for name, value in values.items() if name not in self._fixed}
        self._signature = {name: _number(name, value) for name, value in rest.items() if not is_array(value)}
        if not self.options.get("outputs"):
            self.outputs = tuple(name for name in rest if name in self._written and is_array(rest[name]))
        own = super().declaration(rest, True)
        known_for = [f"{name} == {size}" for name, size in own.sizes.sizes.items()]
        rules = own.rules + (tuple(known_for) if callable(self.options.get("grid")) else ())
        # Kernels sum 16-bit products in float32.
        terms = self.options.get("terms") or (1 if own.dtype.endswith("16") else max(own.sizes.sizes.values()))
        return replace(own, rules=rules, terms=str(terms))

    def _source(self, given: Sequence[KernelArgument]) -> str:
        module = JitModule(frozenset(self.parameters))
        module.add_jit(self.function, self.name, copy.deepcopy(self._node), self.free)
        calls, row = [], f"({', '.join(self.parameters)},)"
        for number, (hook, rows) in enumerate(self.options.get(HOOK, ())):
            module.add(hook, f"{HOOK}_{number}")
            where = f"{row} in {rows} and " if len(rows) < len(self.options["rows"]) else ""
            calls.append(f"    {where}{HOOK}_{number}(args)")
        more = {name: tuple(self.options[name]) for name in (RESET, RESTORED) if self.options.get(name)}
        lines = [f"{name} = {value!r}" for name, value in (self._fixed | more).items()]
        lines += [f"\n\ndef {HOOK}(args):", *calls] if calls else []
        return "\n".join(["import triton", "import triton.language", module.text, *lines, ""])

    def _itself(self) -> Reference:
        return _FirstConfig("import tuner.triton.compiler", "first", ())

    def _launch(self, sizes: Mapping[str, int]) -> dict[str, tuple[str, ...]]:
        grid = self.options.get("grid")
        if grid is None:
            raise InputError('a launch has a grid, got none; give e.g. grid="ceil_div(n, BLOCK)"')
        texts = self._table(grid) if callable(grid) else (grid,) if isinstance(grid, str) else grid
        warps = "num_warps" if "num_warps" in self.parameters else 4
        return {"grid": tuple(map(str, texts)), "block": (f"32 * {warps}",)}

    def _table(self, grid: Any) -> list[str]:
        """A function of the arguments and the config as expressions: what it gives for each config."""
        rows = self.options.get("rows") or itertools.product(*self.parameters.values())
        configs = {row: dict(zip(self.parameters, row, strict=True)) for row in rows}
        grids = {row: grid({**self._values, **config}) for row, config in configs.items()}
        axes = zip(*grids.values(), strict=True)
        tables = [dict(zip(grids, map(int, blocks), strict=True)) for blocks in axes]
        return [f"{table}[({', '.join(self.parameters)},)]" for table in tables]


def _is_argument(value: Any) -> bool:
    """True for an array or a number, False for what Triton takes for a constant."""
    return is_array(value) or (isinstance(value, NUMBERS) and not isinstance(value, bool))


def _is_unit_stride(value: Any, lengths: Set[int]) -> bool:
    """True for a 1 that is no size of an array: as a dim of the problem it would be other than 1 elsewhere."""
    return isinstance(value, int) and value == 1 and 1 not in lengths


def _number(name: str, value: Any) -> KernelArgument:
    """A number as Triton passes it: 32 bits where they do."""
    if isinstance(value, float):
        return KernelArgument(name, "float32", None)
    return KernelArgument(name, "int32" if abs(int(value)) <= INT32_MAX else "int64", None)


def _dense(value: Any) -> Any:
    """An array as all the memory that it spans, if it has gaps or another order: a kernel gets its strides."""
    if not hasattr(value, "is_contiguous") or value.is_contiguous():
        return value
    span = 1 + sum((size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True))
    return value.as_strided((span,), (1,))


def _written(node: ast.FunctionDef) -> set[str]:
    """Names that lead to what a function stores, or changes atomically."""
    flows: dict[str, set[str]] = {}
    reached: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Assign | ast.AugAssign | ast.AnnAssign) and part.value is not None:
            for target in part.targets if isinstance(part, ast.Assign) else [part.target]:
                for name in _names(target):
                    flows.setdefault(name, set()).update(_names(part.value))
        elif isinstance(part, ast.Call) and re.match("store$|atomic_", getattr(part.func, "attr", "")):
            pointer = [*part.args[:1], *(word.value for word in part.keywords if word.arg == "pointer")]
            reached |= _names(part.func).union(*map(_names, pointer))
    while more := set().union(*(flows.get(name, set()) for name in reached)) - reached:
        reached |= more
    return reached


def _names(node: ast.AST) -> set[str]:
    """Names in an expression, but for what it loads."""
    if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "load":
        return set()
    own = {node.id} if isinstance(node, ast.Name) else set()
    return own.union(*map(_names, ast.iter_child_nodes(node)))
