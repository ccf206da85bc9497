"""Which configs are legal for a problem on a device: nothing else is ever answered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.declare.enumeration import Columns, holds, value_array
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Constraint, Parameter, Space
from tuner.devices.detect import kind_of
from tuner.errors import DeclarationError

Flags = NDArray[np.bool_]

#: What a problem tells whatever its shape.
SHAPELESS = ("operation", "dtype", "layout", "precision", "epilogue")
#: Dtypes and layouts, and devices, of which is kept what holds at any shape.
KEPT = 64


def completed(device: DeviceInfo, known: Sequence[DeviceInfo]) -> DeviceInfo:
    """A device with the limits that are missing: a GPU tells its limits only to the process that opens it.

    Args:
        device: As far as it is known.
        known: Devices in full. One of the same name gives what is missing; for a GPU, what is missing then
            comes from the weakest of its architecture, except the number of multiprocessors, and at last from
            what every GPU has.
    """
    same = [other for other in known if (other.kind, other.name) == (device.kind, device.name)]
    for other in reversed(same):
        device = _filled(device, other.to_json())
    least = kind_of(device.kind).least_limits
    alike = [
        other for other in known if other.kind == device.kind and other.architecture == device.architecture
    ]
    if device.architecture and alike:
        weakest = {name: min(getattr(other, name) for other in alike) for name in least}
        device = _filled(device, weakest)
    return _filled(device, least)


def _filled(device: DeviceInfo, data: Mapping[str, Any]) -> DeviceInfo:
    missing = {name: value for name, value in data.items() if value and not getattr(device, name)}
    return replace(device, **missing)


class Points:
    """Configs of one kernel, ready to be checked for any problem and device.

    Attributes:
        kernel: Declares parameters and constraints.
        fits: Per config: whether it is a point of the kernel's parameters.
        arrays: Parameter -> values of the configs that are.
    """

    def __init__(self, kernel: Kernel, configs: Sequence[Mapping[str, Any]]) -> None:
        """Takes configs.

        Args:
            kernel: Declares parameters and constraints.
            configs: Any mappings; what is not a point of the kernel's parameters is not legal.
        """
        self.kernel = kernel
        every = [dict(config.items()) for config in configs]
        self.fits = np.array([is_point(kernel.parameters, config) for config in every], dtype=bool)
        points = [config for config, fits in zip(every, self.fits, strict=True) if fits]
        self.arrays = {
            each.name: value_array([config[each.name] for config in points]) for each in kernel.parameters
        }
        self._kept: dict[tuple[Any, ...], _AnyShape | None] = {}

    def flags(self, problem: Problem, device: DeviceInfo, among: Flags | None = None) -> tuple[Flags, Flags]:
        """Which configs obey the constraints.

        Args:
            problem: What is to be computed.
            device: Where.
            among: Only these configs; all when None.

        Returns:
            Two flags a config: legal; and, beyond that, worth trying by the constraints that are for speed.
        """
        right, fast = np.zeros((2, len(self.fits)), bool)
        anywhere = self._at_any_shape(problem, device)
        asked = anywhere.right if among is None else anywhere.right & among[self.fits]
        at = np.flatnonzero(asked)
        if len(at):
            arrays = {name: each[at] for name, each in self.arrays.items()}
            these_right, these_fast = np.ones(len(at), bool), anywhere.fast[at]
            for constraint in anywhere.left:
                obeyed = _obeyed(constraint, problem, device, arrays, len(at))
                these_fast &= obeyed
                if not constraint.for_speed:
                    these_right &= obeyed
            places = np.flatnonzero(self.fits)[at]
            right[places], fast[places] = these_right, these_fast & these_right
        return right, fast

    def _at_any_shape(self, problem: Problem, device: DeviceInfo) -> _AnyShape:
        """What holds at any shape, told apart once for each dtype and layout on a device."""
        key = problem.dtype, problem.layout, problem.precision, problem.epilogue, device
        flags = self._kept.get(key)
        if flags is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            again = key in self._kept  # what is asked once is not asked twice
            flags = self._told_apart(problem, device, self.kernel.constraints if again else ())
            self._kept[key] = flags if again else None
        return flags

    def _told_apart(self, problem: Problem, device: DeviceInfo, constraints: Sequence[Constraint]) -> _AnyShape:
        """Asks those of some constraints that read no shape; all others are left."""
        count = int(np.count_nonzero(self.fits))
        right, fast = np.ones((2, count), bool)
        settled = []
        for constraint in constraints if count else ():
            watched = _Watched(problem)
            obeyed = _obeyed(constraint, watched, device, self.arrays, count)
            if not watched.seen:
                settled.append(constraint)
                fast &= obeyed
                if not constraint.for_speed:
                    right &= obeyed
        left = tuple(constraint for constraint in self.kernel.constraints if constraint not in settled)
        return _AnyShape(right, fast, left)


@dataclass(frozen=True)
class _AnyShape:
    """Flags of the configs that are points, by constraints that read no shape; and the other constraints."""

    right: Flags
    fast: Flags
    left: tuple[Constraint, ...]


class _Watched:
    """A problem that remembers whether anything of its shape was read."""

    def __init__(self, problem: Problem) -> None:
        self._problem, self.seen = problem, False

    def __getattr__(self, name: str) -> Any:
        self.seen = self.seen or name not in SHAPELESS
        return getattr(self._problem, name)


def _obeyed(
    constraint: Constraint,
    problem: Problem | _Watched,
    device: DeviceInfo,
    arrays: Mapping[str, Any],
    count: int,
) -> Flags:
    """Whether each obeys; none does where the rule cannot be asked, for limits that are not known say."""
    try:
        rule = partial(constraint.rule, problem, device)
        return holds(rule, constraint.sentence, Columns(arrays), count)
    except DeclarationError:
        if isinstance(problem, _Watched):  # a rule may ask for a problem itself
            problem.seen = True
        return np.zeros(count, bool)


def legal(
    kernel: Kernel, problem: Problem, device: DeviceInfo, configs: Sequence[Mapping[str, Any]]
) -> tuple[Flags, Flags]:
    """`Points.flags` of some configs."""
    return Points(kernel, configs).flags(problem, device)


def is_point(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> bool:
    """Whether a config gives each parameter one of its values, and nothing else."""
    return len(config) == len(parameters) and all(
        parameter.name in config and config[parameter.name] in parameter.values for parameter in parameters
    )


class Choices:
    """Configs of several kernels to choose from, as their kernels are declared now."""

    def __init__(self, configs: Sequence[tuple[str, Mapping[str, Any]]], kernels: Iterable[Kernel]) -> None:
        """Takes configs.

        Args:
            configs: Kernel and config.
            kernels: Configs of a kernel that is missing, or that are not points of its parameters any more, are
                never legal.
        """
        self._configs = configs
        self._kernels = {each.name: each for each in kernels}
        self._points: list[tuple[NDArray[np.int64], Points]] = []
        for name, kernel in self._kernels.items():
            numbers = np.array([at for at, (of, _) in enumerate(configs) if of == name], np.int64)
            if len(numbers):
                self._points.append((numbers, Points(kernel, [configs[at][1] for at in numbers])))

    def legal(self, problem: Problem, device: DeviceInfo, among: Flags | None = None) -> NDArray[np.int64]:
        """Numbers of the configs that obey all constraints; where none does, of those that are legal.

        Args:
            problem: What is to be computed.
            device: Where.
            among: Per config: whether it is asked about; all when None.
        """
        right, fast = np.zeros((2, len(self._configs)), bool)
        for numbers, points in self._points:
            some = None if among is None else among[numbers]
            if some is None or some.any():
                right[numbers], fast[numbers] = points.flags(problem, device, some)
        return np.flatnonzero(fast if fast.any() else right)

    def named(self, number: int) -> tuple[str, Config]:
        """A legal config, with its parameters in its kernel's order, in which files do not keep them."""
        name, config = self._configs[number]
        return name, Config(
            {parameter.name: config[parameter.name] for parameter in self._kernels[name].parameters}
        )

    @cached_property
    def points(self) -> Mapping[str, NDArray[np.int64]]:
        """By kernel the numbers of its configs that are points of its parameters as they are now."""
        return {points.kernel.name: numbers[points.fits] for numbers, points in self._points}


def default_among(
    kernels: Sequence[Kernel], problem: Problem, device: DeviceInfo
) -> tuple[Kernel, Config] | None:
    """The default of the last kernel that has one worth trying here; else of the last that has a legal one.

    Args:
        kernels: In the order of the ladder; one that is meant for other shapes says so by constraints that
            are for speed.
        problem: What is to be computed.
        device: Where.
    """
    merely_right: tuple[Kernel, Config] | None = None
    for kernel in reversed(kernels):
        config = _default_of(kernel, problem, device)
        if config is not None and legal(kernel, problem, device, [config])[1][0]:
            return kernel, config
        if config is not None:
            merely_right = merely_right or (kernel, config)
    return merely_right


def _default_of(kernel: Kernel, problem: Problem, device: DeviceInfo) -> Config | None:
    """The first of a kernel's declared starts that is legal here, those worth trying first.

    Without one, the first legal config of its space; None where there is none.
    """
    starts = list(kernel.first_configs()) if kernel.parameters else [Config({})]
    right, fast = legal(kernel, problem, device, starts)
    for flags in (fast, right):
        if flags.any():
            return starts[int(np.argmax(flags))]
    binding = [constraint for constraint in kernel.constraints if not constraint.for_speed]
    for constraints in (kernel.constraints, binding):
        try:
            space = Space.build(kernel.parameters, constraints, problem, device, limit=200_000)
        except DeclarationError:
            return None
        if len(space):
            first: Config = space[0]
            return first
    return None
