"""How a kernel is launched, for people and programs that read JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.export.interface import Interface
from tuner.export.symbolic import in_python


def geometry(face: Interface, rendered: Rendered, architecture: str) -> dict[str, Any]:
    """How to launch: rules in the dims, in Python's notation, and what they give for the tuned problem."""
    launch, tuned = face.launch, rendered.launch
    assert launch is not None
    assert tuned is not None
    arrays = [
        {
            "name": each.name, "kind": "pointer", "dtype": each.tensor.dtype, "written": each.tensor.output,
            "shape": [in_python(size) for size in each.tensor.shape],
        }
        for each in face.arguments
    ]  # fmt: skip
    scalars = [
        {
            "name": each.name, "kind": "value", "dtype": each.dtype,
            "value": None if each.given else in_python(each.value),
        }
        for each in face.scalars
    ]  # fmt: skip
    return {
        "entry": rendered.entry,
        "architecture": architecture,
        "rules": {
            "about": "expressions in the dims; ceil_div(a, b) is the smallest whole number not below a / b; "
            "arrays are dense and row-major, at multiples of 16 bytes",
            "grid": [in_python(size) for size in launch.grid],
            "block": [in_python(size) for size in launch.block],
            "shared_bytes": in_python(launch.shared_bytes),
            **_beside_launch(launch),
            "must_hold": [in_python(assumption.condition) for assumption in face.assumptions],
        },
        "launch": asdict(tuned),
        "arguments": [*arrays, *scalars],
    }


def _beside_launch(launch: Launch) -> dict[str, Any]:
    """What belongs to a run beside one launch; nothing for most kernels."""
    found: dict[str, Any] = {}
    if launch.padded:
        found["padded"] = {
            "about": "the kernel takes these arrays as larger copies, with zeros beyond their own elements",
            **{each.tensor: [in_python(size) for size in each.shape] for each in launch.padded},
        }
    if launch.pieces:
        found["pieces"] = {
            "about": "a launch for each piece of the array: it is copied to the constant array first, and a "
            "last argument, a 32-bit int, says how many elements come before it",
            **asdict(launch.pieces),
        }
    if launch.steps:
        found["steps"] = {
            "about": "a run is these launches, in order; arguments are names of arrays, of scalars and of the "
            "workspace's regions (name: first byte), empty for a null pointer; counter, where it is named, is "
            "a 32-bit word of the caller's in which runs of the plain kernel are counted, or null; one that is "
            "early may start while the one before it ends "
            "(CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION), or after it",
            "counter": launch.counter,
            "regions": {name: in_python(first) for name, first in _regions(launch)},
            "launches": [
                {
                    "entry": step.entry, "grid": [in_python(size) for size in step.grid],
                    "block": [in_python(size) for size in step.block],
                    "shared_bytes": in_python(step.shared_bytes), "arguments": list(step.arguments),
                    "early": step.early,
                }
                for step in launch.steps
            ],
        }  # fmt: skip
    found |= _maps(launch)
    if launch.workspace:
        found["workspace"] = {
            "about": "memory of the kernel's own, its last argument: a pointer to so many bytes, of which the "
            "first zeroed_bytes are zeros before each launch",
            "bytes": in_python(launch.workspace.bytes),
            "zeroed_bytes": in_python(launch.workspace.zeroed_bytes),
        }
    return found


def _maps(launch: Launch) -> dict[str, Any]:
    """Tensor maps, where steps take some."""
    if not launch.maps:
        return {}
    about = (
        "tensor maps (cuTensorMapEncodeTiled) that steps are given by name: a dense tensor, the box that a "
        "copy takes, sizes in the order of the tensor, the swizzle in bytes, and the promotion in L2, which is "
        "128 where rows begin amid lines of 128 bytes"
    )
    maps = {
        each.name: {
            "tensor": each.tensor, "box": [in_python(size) for size in each.box], "swizzle": each.swizzle,
            "promotion": each.promotion,
        }
        for each in launch.maps
    }  # fmt: skip
    return {"maps": {"about": about, **maps}}


def _regions(launch: Launch) -> tuple[tuple[str, Any], ...]:
    return launch.workspace.regions if launch.workspace else ()
