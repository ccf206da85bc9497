"""Launches of CUDA kernels: geometry, memory, runs that are several steps, operands packed beforehand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from tuner.declare.problem import Tensor
from tuner.errors import DeclarationError

#: For any element type, as part of a C++ source.
COPY_ROWS = Path(__file__).with_name("copy_rows.cuh").read_text(encoding="utf-8")
#: Threads of its blocks, along a row; and rows that each thread copies.
COPY_THREADS, ROWS_OF_THREAD = 256, 8
#: Largest number of blocks down the rows: the limit of a grid's second dimension.
MOST_BLOCKS_DOWN = 65_535
#: Type that is copied for an element of this many bytes.
UNSIGNED = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long"}


def copy_rows_source(element_bytes: int) -> str:
    """Returns a source with a kernel ``copied``, for elements of this size in bytes.

    It takes to, its row's elements, from, its row's elements, rows and columns; and, for blocks whose z is 1,
    the same of a second copy.
    """
    kind, names = UNSIGNED[element_bytes], ("to", "to_row", "from", "from_row", "rows", "columns")
    types = (f"{kind}*", "long long", f"const {kind}*", *["long long"] * 3)
    taken = ", ".join(f"{of} {name}{z}" for z in "01" for of, name in zip(types, names, strict=True))
    first, second = (", ".join(f"{name}{z}" for name in names) for z in "01")
    return (
        f'{COPY_ROWS}extern "C" __global__ void copied({taken}) '
        f"{{ if (blockIdx.z == 0) copy_piece({first}); else copy_piece({second}); }}"
    )


def copy_rows_grid(rows: int, columns: int) -> tuple[int, int]:
    """Returns the blocks along a row and down the rows."""
    return -(-columns // COPY_THREADS), min(-(-rows // ROWS_OF_THREAD), MOST_BLOCKS_DOWN)


#: ``CUtensorMapDataType`` by our dtypes: its name behind the prefix, and its number.
MAP_TYPES = {
    "uint8": ("UINT8", 0), "int32": ("INT32", 3), "int64": ("INT64", 5), "float16": ("FLOAT16", 6),
    "float32": ("FLOAT32", 7), "float64": ("FLOAT64", 8), "bfloat16": ("BFLOAT16", 9),
    "float8_e4m3fn": ("UINT8", 0), "float8_e5m2": ("UINT8", 0),
}  # fmt: skip
#: ``CUtensorMapSwizzle`` likewise, by bytes of the swizzled unit; 0 for none.
SWIZZLES = {0: ("NONE", 0), 32: ("32B", 1), 64: ("64B", 2), 128: ("128B", 3)}
#: ``CUtensorMapL2promotion`` by bytes that a miss brings into L2.
PROMOTIONS = {128: 2, 256: 3}
#: Elements of a box along one dimension (``cuTensorMapEncodeTiled``).
MOST_ELEMENTS = 256
#: Rows of a mapped tensor begin at multiples of this, as the tensor itself does.
ALIGNMENT_BYTES = 16


@dataclass(frozen=True)
class TensorMap:
    """Boxes of a tensor that a kernel copies to or from shared memory, as a kernel's argument.

    A step is given it by its name, as ``const __grid_constant__`` structure of 128 bytes that begins at a
    multiple of 64. What a box has beyond the tensor's edges is read as zeros, and not written. The tensor's
    rows have a multiple of 16 bytes: say so in a constraint.

    Attributes:
        name: By which steps are given it.
        tensor: Name of the tensor.
        box: Elements along each of the tensor's dims, at most 256.
        swizzle: 16-byte chunks are permuted within units of so many bytes: 32, 64, 128; 0: not at all.
        promotion: Bytes that a miss brings into L2, 128 or 256. Of a tensor whose rows begin amid lines of 128
            bytes it is 128: 5 % faster at 1000^3 in bfloat16 on an H200.
    """

    name: str
    tensor: str
    box: tuple[int, ...]
    swizzle: int = 0
    promotion: int = 256

    def __post_init__(self) -> None:
        for what, value, known in (
            ("swizzle", self.swizzle, SWIZZLES), ("promotion", self.promotion, PROMOTIONS),
        ):  # fmt: skip
            if value not in known:
                sizes = ", ".join(map(str, known))
                raise DeclarationError(f"{what} of map {self.name!r} is one of {sizes} bytes, got {value!r}")
        # Exports follow other sizes as expressions.
        known_sizes = [size for size in self.box if isinstance(size, int)]
        if not 1 <= len(self.box) <= 5 or not all(1 <= size <= MOST_ELEMENTS for size in known_sizes):
            raise DeclarationError(
                f"the box of tensor map {self.name!r} has 1 to {MOST_ELEMENTS} elements along each of up to "
                f"five dims, got {self.box!r}"
            )


#: A workspace, and another one within it, starts at a multiple of this.
WORKSPACE_ALIGNMENT = 256


def ceil_div(numerator: Any, denominator: Any) -> Any:
    """Rounds numerator / denominator up to a whole number; also for arrays."""
    return -(-numerator // denominator)


@dataclass(frozen=True)
class Padded:
    """A tensor that a CUDA kernel takes as a larger array, with zeros beyond the tensor's own elements.

    A run, and its measured time, includes copying an input in before the launch and an output out after it. The
    larger array is allocated once.

    Attributes:
        tensor: Name of a tensor of two dims.
        shape: Rows and columns of the larger array.
    """

    tensor: str
    shape: tuple[int, ...]

    @staticmethod
    def rows_of(tensors: Sequence[Tensor], columns: int, rows: int = 1) -> tuple[Padded, ...]:
        """Pads the tensors of two dims to multiples.

        Args:
            tensors: All tensors of the problem; those without two dims are passed over.
            columns: The length of every row becomes a multiple of this.
            rows: The number of rows becomes a multiple of this.
        """
        units = (rows, columns)
        return tuple(
            Padded(
                tensor.name,
                tuple(ceil_div(s, unit) * unit for s, unit in zip(tensor.shape, units, strict=True)),
            )
            for tensor in tensors
            if len(tensor.shape) == len(units)
        )


@dataclass(frozen=True)
class Pieces:
    """An input that a CUDA kernel takes in pieces through constant memory, one launch for each piece.

    Before each launch a piece is copied to the source's ``__constant__`` array. The kernel's last argument is
    an ``int``: the number of the tensor's elements before this piece.

    Attributes:
        symbol: Name of the ``__constant__`` array.
        tensor: Name of the input.
        elements: Size of the array; the last piece may have fewer.
    """

    symbol: str
    tensor: str
    elements: int


@dataclass(frozen=True)
class Workspace:
    """Device memory for a CUDA kernel's own use, passed as a pointer after all other arguments.

    Runs that may overlap need one each; runs on one stream never overlap.

    Attributes:
        bytes: Its size; it starts at a multiple of 256.
        zeroed_bytes: This many bytes, from the first on, are zero when the kernel starts. The kernel must leave
            them at zero (for example counters that its last block resets), because nothing writes them between
            runs.
        regions: (name, first byte) of parts that steps are given by name.
    """

    bytes: int
    zeroed_bytes: int = 0
    regions: tuple[tuple[str, int], ...] = ()

    def with_another(self, other: Workspace, name: str) -> Workspace:
        """This one with all of another one in it, as a region of that name.

        What begins with zeros stays in front: this one's, then the other's with all that belongs to it.
        """
        first = _aligned(self.zeroed_bytes)
        shift = _aligned(first + other.bytes - self.zeroed_bytes)
        moved = tuple((own, at + shift if at >= self.zeroed_bytes else at) for own, at in self.regions)
        return Workspace(self.bytes + shift, first + other.zeroed_bytes, (*moved, (name, first)))


def _aligned(size: Any) -> Any:
    return ceil_div(size, WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT


#: Dynamic shared memory that a launch may have without asking for more, in bytes: 48 KB (CUDA C++ Programming
#: Guide, compute capabilities), less what a kernel may have of static shared memory, which counts too.
UNASKED_SHARED_BYTES = 40 << 10


@dataclass(frozen=True)
class Step:
    """One launch of a kernel whose run is several.

    Attributes:
        entry: Function of the source that is launched.
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block, in bytes.
        arguments: What the function takes, in order: names of tensors, of scalars and of the workspace's
            regions; empty for a null pointer.
        early: True if it may start while the step before it ends (programmatic dependent launch, sm_90 and
            later). All its threads must wait (``griddepcontrol.wait``) before they read or write what any
            launch before touches. It starts earlier only if all blocks of the step before allow that
            (``griddepcontrol.launch_dependents``). A driver older than CUDA 12.3 starts it as any other.
    """

    entry: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    arguments: tuple[str, ...] = ()
    early: bool = False


@dataclass(frozen=True)
class Packing:
    """An input that can be packed once and used by many runs.

    Attributes:
        tensor: Name of the input.
        region: Region of the workspace that its packed form lies in; a run that is given it packed is given
            other memory there.
        bytes: Size of the packed form.
        step: Entry of the step that packs. It packs what it is given, and takes null pointers for all others:
            for the tensor where that is packed already; for other inputs, and their packings' regions, where
            the tensor alone is packed.
        form: What the packed form depends on beside the tensor: runs with the same form may share it.
    """

    tensor: str
    region: str
    bytes: int
    step: str
    form: str = ""


@dataclass(frozen=True)
class Launch:
    """Geometry of a CUDA launch, with its padding, pieces and workspace.

    Attributes:
        grid: Blocks in x, y, z.
        block: Threads in x, y, z.
        shared_bytes: Dynamic shared memory of a block, in bytes.
        padded: Tensors that the kernel takes as larger arrays.
        pieces: The input that passes through constant memory, or None.
        workspace: Device memory for the kernel's own use, or None.
        steps: The launches of a run, in order, if a run is several; each function is given what its step says.
            Grid, block and shared memory above are those of the step that does most of the work.
        counter: Name by which steps are given a 32-bit word to count in, which all runs of the process on a GPU
            share; exported kernels are given a null pointer instead. Empty if none counts.
        packings: Inputs that can be packed beforehand.
        maps: Tensor maps, which steps are given by name.
    """

    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int = 0
    padded: tuple[Padded, ...] = ()
    pieces: Pieces | None = None
    workspace: Workspace | None = None
    steps: tuple[Step, ...] = ()
    counter: str = ""
    packings: tuple[Packing, ...] = ()
    maps: tuple[TensorMap, ...] = ()

    def __post_init__(self) -> None:
        if self.steps and self.pieces:
            raise DeclarationError("a launch has steps or pieces, got both; leave one of them out")
        if self.steps and self.steps[0].early:
            raise DeclarationError(
                f"an early step follows another one, which it overlaps, and {self.steps[0].entry!r} is the "
                "first; leave early= out there"
            )
        if self.maps and (not self.steps or self.packings):
            raise DeclarationError(
                "tensor maps are arguments of steps, which pack no operands; declare the run with Launch.of, "
                "even if it is a single step"
            )

    @property
    def is_single(self) -> bool:
        """True if a run is one launch that takes the tensors as they are."""
        return not (self.padded or self.pieces or self.steps)

    @property
    def queued(self) -> int:
        """Launches that a run queues at the least: its steps, and a copy for each two padded tensors."""
        return max(1, len(self.steps)) + (len(self.padded) + 1) // 2 + (self.pieces is not None)

    @classmethod
    def of(cls, main: str, steps: Sequence[Step], workspace: Workspace | None = None, **more: Any) -> Launch:
        """A run of several launches.

        Args:
            main: Entry of the step that does most of the work.
            steps: The launches in order.
            workspace: Memory that they share.
            more: Further attributes by name.

        Raises:
            DeclarationError: No step has that entry.
        """
        largest = next((step for step in steps if step.entry == main), None)
        if largest is None:
            names = ", ".join(step.entry for step in steps)
            raise DeclarationError(f"main= is the entry of a step ({names}), got {main!r}; name one of them")
        geometry = largest.grid, largest.block, largest.shared_bytes
        return cls(*geometry, workspace=workspace, steps=tuple(steps), **more)

    def packed(self, packing: Packing) -> Launch:
        """A run that is given an input packed, in memory that lies elsewhere."""
        return self._without(packing, {packing.tensor})

    def packing_alone(self, packing: Packing) -> Launch:
        """A run that packs an input, and does no more."""
        others = [other for other in self.packings if other.tensor != packing.tensor]
        hidden = {self.counter, *(name for other in others for name in (other.tensor, other.region))}
        steps = [step for step in self._without(packing, hidden).steps if step.entry == packing.step]
        return replace(self, steps=tuple(replace(step, early=False) for step in steps), padded=())

    def _without(self, packing: Packing, hidden: Collection[str]) -> Launch:
        """The step that packs takes null pointers for some of its arguments."""
        steps = [
            replace(step, arguments=tuple("" if name in hidden else name for name in step.arguments))
            if step.entry == packing.step
            else step
            for step in self.steps
        ]
        return replace(self, steps=tuple(steps))


def hash_of_launch(constants: Mapping[str, Any], launch: Launch | None) -> str:
    """Hash of a rendered source's constants and launch, without fields that have their default values."""
    parts = {"constants": dict(constants), "launch": None if launch is None else _set_fields(launch)}
    # NumPy's scalars are written as Python's.
    text = json.dumps(parts, sort_keys=True, default=lambda value: value.item())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _set_fields(part: Any) -> Any:
    """Returns a launch, or a part of one, as plain data without the fields that have their default values."""
    if isinstance(part, tuple):
        return [_set_fields(member) for member in part]
    if not is_dataclass(part):
        return part
    values = {field: getattr(part, field.name) for field in fields(part)}
    return {field.name: _set_fields(value) for field, value in values.items() if value != field.default}
