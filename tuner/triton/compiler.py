"""Compiles Triton's kernels to cubins, which needs no GPU, and binds them to arrays."""

from __future__ import annotations

import atexit
import contextlib
import gc
import inspect
import io
import json
import linecache
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel, Rendered, render
from tuner.declare.problem import Problem
from tuner.devices.cuda.nvrtc import NvrtcCompiler, compiled_code, read_report
from tuner.devices.detect import kind_of
from tuner.devices.protocol import Arrays, Binary, CompileFailed, LaunchFailed, Run
from tuner.errors import DeviceTrouble
from tuner.extras import load, remedy
from tuner.results.measurement import CompileReport
from tuner.triton.language import LANGUAGE, OPTIONS, version

#: Arrays that are zeros, or hold what they held at first, whenever a run begins: a source may name some.
RESET, RESTORED = "reset_to_zero", "restore_value"
#: The function of a source that is called before each run, with its arguments by name.
HOOK = "pre_hook"
#: Dtype -> as Triton writes it.
TYPES = {
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64", "int32": "i32", "int64": "i64",
    "uint8": "u8",
}  # fmt: skip
# What is kept from the last collection, Triton tells at the end as leaks.
atexit.register(gc.unfreeze)
#: Whole numbers are compiled for whether they are multiples of this, as Triton's own launch does.
DIVISOR = 16


@lru_cache(maxsize=64)
def module_of(text: str) -> ModuleType:
    """A rendered source as a module.

    Raises:
        CompileFailed: Python refuses it.
    """
    name = f"<triton {abs(hash(text)):x}>"
    # Triton reads its functions' sources; a file of each config's would be left behind.
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module = ModuleType(name)
    try:
        exec(compile(text, name, "exec"), vars(module))
    except Exception as error:
        raise CompileFailed(f"{type(error).__name__}: {error}") from error
    return module


class TritonCompiler(NvrtcCompiler):
    """`tuner.devices.protocol.Compiler` for Triton's kernels, with the cache of those of CUDA C++."""

    def __init__(self) -> None:
        """Opens the cache.

        Raises:
            DeviceTrouble: Triton is not installed.
            EnvironmentTrouble: The cache cannot be written.
        """
        super().__init__()
        try:
            self._interprets = import_module("triton").knobs.runtime.interpret
        except ImportError as error:
            raise DeviceTrouble(f"Triton's kernels need Triton: {error}; {remedy('triton')}") from error

    def compile(self, rendered: Rendered, architecture: str, problem: Problem | None = None) -> Binary:
        """Compiles for the problem's dtypes, and for which of its numbers are 1 or multiples of 16.

        For Triton's interpreter there is nothing to compile.
        """
        assert problem is not None, "the machine code depends on the numbers"
        if self._interprets:
            called(rendered, problem)
            return Binary(b"", CompileReport(binary_hash=rendered.hash, compiler="Triton's interpreter"))
        compiled_as = json.dumps([_kinds(problem), [tensor.dtype for tensor in problem.tensors]])
        keyed = replace(rendered, options=(*rendered.options, compiled_as))
        binary = self.get(keyed, architecture, f"Triton {version()}")
        if binary is None:
            binary = _compiled(rendered, architecture, problem)
            self.put(keyed, architecture, binary)
        return binary


def called(rendered: Rendered, problem: Problem) -> tuple[Any, dict[str, str], dict[str, Any]]:
    """The function, its arguments with their dtypes, and its constants.

    Raises:
        CompileFailed: It is none of Triton's, or lacks a value.
    """
    known = vars(module_of(rendered.text))
    function: Any = known.get(rendered.entry)
    if not hasattr(function, "arg_names"):
        raise CompileFailed(f"the source has {rendered.entry!r} under triton.jit, found {function!r}")
    types = {tensor.name: f"*{TYPES[tensor.dtype]}" for tensor in problem.tensors}
    types |= {scalar.name: TYPES[scalar.dtype] for scalar in problem.scalars}
    signature = inspect.signature(function.fn).parameters.items()
    known = {name: one.default for name, one in signature if one.default is not one.empty} | known
    try:
        constants = {name: known[name] for name in function.arg_names if name not in types}
    except KeyError as error:
        raise CompileFailed(f"{rendered.entry} takes {error}, and nothing gives it") from None
    return function, {name: types[name] for name in function.arg_names if name in types}, constants


def _kinds(problem: Problem) -> dict[str, int]:
    """Whole numbers that Triton compiles for: 1 for the number 1, 16 for multiples of 16, else 0."""
    fixed = [scalar for scalar in problem.scalars if scalar.dtype.startswith("int") and not scalar.given]
    whole = {scalar.name: int(scalar.value) for scalar in fixed}
    return {name: 1 if value == 1 else 0 if value % DIVISOR else DIVISOR for name, value in whole.items()}


def _compiled(rendered: Rendered, architecture: str, problem: Problem) -> Binary:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function, types, constants = called(rendered, problem)
    known, kinds = vars(module_of(rendered.text)), dict.fromkeys(types, 0)
    kinds |= {tensor.name: DIVISOR for tensor in problem.tensors} | _kinds(problem)
    kinds |= {parameter.name: 0 for parameter in function.params if parameter.do_not_specialize}
    constants |= {name: 1 for name in types if kinds[name] == 1}
    signature = {name: "constexpr" if name in constants else types[name] for name in function.arg_names}
    attributes = {
        (place,): [["tt.divisibility", DIVISOR]]
        for place, name in enumerate(function.arg_names)
        if name not in constants and kinds[name] == DIVISOR
    }
    source = ASTSource(function, signature, constants, attributes)
    options = {name: known[name] for name in OPTIONS if known.get(name)}
    target = GPUTarget("cuda", int("".join(filter(str.isdigit, architecture))), 32)
    log = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, triton.knobs.cache.scope(), triton.knobs.nvidia.scope():
        triton.knobs.cache.dir, triton.knobs.nvidia.dump_ptxas_log = folder, True
        try:
            with contextlib.redirect_stdout(log):
                compiled = triton.compile(source, target=target, options=options)
        except Exception as error:  # of many kinds: Triton's, LLVM's, those of the kernel's own assertions
            raise CompileFailed(f"{type(error).__name__}: {error}\n{log.getvalue()}".strip()) from error
    about = compiled.metadata
    # A driver launches clusters of the shape that the code itself tells.
    untold = about.num_ctas > 1 and ".reqnctapercluster" not in compiled.asm["ptx"]
    if untold or about.launch_cooperative_grid or about.launch_pdl:
        raise CompileFailed("clusters of unknown shape, cooperative and dependent ones are not launched here")
    launch = {
        "arguments": [name for name in types if name not in constants], "threads": 32 * about.num_warps,
        "shared_bytes": about.shared, "scratch_bytes": about.global_scratch_size, "ctas": about.num_ctas,
        "kinds": {name: kinds[name] for name in types if not types[name].startswith("*")},
        **{what: list(known.get(what, ())) for what in (RESET, RESTORED)},
    }  # fmt: skip
    code = json.dumps(launch).encode() + b"\n" + compiled.asm["cubin"]
    report = read_report(log.getvalue(), code, rendered.entry)
    return Binary(code, replace(report, shared_bytes=about.shared, compiler=f"Triton {version()}"))


def launching(rendered: Rendered, problem: Problem) -> str:
    """A rendered source as a module that needs Triton alone; see `tuner.devices.protocol.Language.module`."""
    _, types, constants = called(rendered, problem)
    given = [f"{name}={name}" for name in (*constants, *OPTIONS) if name in vars(module_of(rendered.text))]
    assert rendered.launch is not None, "the declaration has a launch"
    call = f"{rendered.entry}[{rendered.launch.grid}]({', '.join([*types, *given])})"
    before = f"    {HOOK}({{**globals(), **locals()}})\n" if f"\ndef {HOOK}(" in rendered.text else ""
    return f"{rendered.text}\n\ndef run({', '.join(types)}):\n{before}    {call}\n"


def bound(rendered: Rendered, code: bytes, arrays: Arrays, device: DeviceInfo) -> Run:
    """A run on arrays; see `tuner.devices.protocol.Language.bind`.

    Code that was compiled for other numbers, such as multiples of 16, is compiled anew.
    """
    if not code:
        return _interpreted(rendered, arrays)
    about, now = json.loads(code.partition(b"\n")[0]), _kinds(arrays.problem)
    if any(kind not in (0, now.get(name)) for name, kind in about["kinds"].items()):
        code = compiled_code(rendered, device.architecture, arrays.problem)
    launched, cubin = LANGUAGE.loadable(rendered, code)
    run: Run = load("tuner.devices.cuda.launching:LoadedKernel")(launched, cubin, arrays, device)
    return _begun(_hooked(run, rendered, arrays), arrays, about[RESET], about[RESTORED])


def _hooked(run: Run, rendered: Rendered, arrays: Arrays) -> Run:
    """A run with its author's hook before it, which gets tensors of PyTorch on the same memory."""
    if f"\ndef {HOOK}(" not in rendered.text:
        return run
    import torch

    known = dict(vars(module_of(rendered.text)))
    known |= {scalar.name: scalar.value for scalar in arrays.problem.scalars}
    known |= {name: torch.from_dlpack(array) for name, array in arrays.arrays.items()}
    cupy = sys.modules.get("cupy")

    def whole() -> None:
        stream = cupy and torch.cuda.ExternalStream(cupy.cuda.get_current_stream().ptr)
        with torch.cuda.stream(stream):
            known[HOOK](known)
        run()

    return whole


def _begun(run: Run, arrays: Arrays, reset: Sequence[str], restored: Sequence[str]) -> Run:
    """A run with what comes before it: some arrays are zeros, or hold numbers that are always the same."""
    first: dict[str, Any] = dict.fromkeys(reset, 0)
    for name in restored:
        array, xp = arrays.arrays[name], sys.modules[type(arrays.arrays[name]).__module__.partition(".")[0]]
        numbers = numpy.random.default_rng(0).standard_normal(array.shape)
        first[name] = xp.asarray(numbers).astype(array.dtype)

    def whole() -> None:
        for name, values in first.items():
            arrays.arrays[name][...] = values
        run()

    return whole if first else run


def _interpreted(rendered: Rendered, arrays: Arrays) -> Run:
    """Triton's interpreter works on tensors of PyTorch: on the same memory."""
    import torch

    function, types, constants = called(rendered, arrays.problem)
    module, launch = vars(module_of(rendered.text)), rendered.launch
    assert launch is not None, "the declaration has a launch"
    values = {scalar.name: scalar.value for scalar in arrays.problem.scalars}
    values |= {name: torch.from_numpy(arrays.arrays[name]) for name in types if name not in values}
    run = _hooked(partial(function[launch.grid], **values, **constants), rendered, arrays)
    return _begun(run, arrays, module.get(RESET, ()), module.get(RESTORED, ()))


def by_first(kernel: Callable[[], Kernel]) -> Callable[..., dict[str, Any]]:
    """A reference of an operation: what its kernel's first config computes, in the kernel's own arithmetic."""

    def reference(xp: Any, p: Problem, arrays: Mapping[str, Any]) -> dict[str, Any]:
        own, fresh = kernel(), Arrays()
        info = DeviceInfo("", own.kind) if xp is numpy else kind_of(own.kind).describe(0)
        rendered = render(own, p, own.first_configs()[0])
        fresh.problem = p
        fresh.arrays = dict(arrays) | {one.name: xp.zeros_like(arrays[one.name]) for one in p.outputs}
        try:
            bound(rendered, compiled_code(rendered, info.architecture, p), fresh, info)()
        except CompileFailed as error:
            raise LaunchFailed(f"the first config says what is right, and does not compile: {error}") from error
        return {one.name: fresh.arrays[one.name].astype("float64") for one in p.outputs}

    return reference
