"""Which configs are legal for a problem on a device: nothing else is ever answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
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
        self._kept: dict[tuple[Any, ...], dict[bool, tuple[Flags, list[Constraint]]]] = {}

    def flags(self, problem: Problem, device: DeviceInfo, among: Flags | None = None) -> tuple[Flags, Flags]:
        """Which configs obey the constraints.

        Args:
            problem: What is to be computed.
            device: Where.
            among: Only these configs; all when None.

        Returns:
            Two flags a config: legal; and, beyond that, worth trying by the constraints that are for speed.
        """
        right = self.obeying(False, problem, device, self.fits if among is None else among)
        return right, self.obeying(True, problem, device, right)

    def obeying(self, for_speed: bool, problem: Problem, device: DeviceInfo, among: Flags) -> Flags:
        """Which of some configs obey the constraints that are for speed, or else those that are not."""
        settled, others = self._settled(problem, device)[for_speed]
        obeying: Flags = among & settled
        at = np.flatnonzero(obeying[self.fits])
        if len(at) and others:
            arrays = {name: values[at] for name, values in self.arrays.items()}
            left = np.ones(len(at), bool)
            try:
                for constraint in others:
                    left &= _obeyed(constraint, problem, device, arrays, len(at))
                    if not left.any():
                        break
            except DeclarationError:  # a rule that cannot be asked, for limits that are not known say
                left[:] = False
            obeying[obeying] = left
        return obeying

    def _settled(self, problem: Problem, device: DeviceInfo) -> Mapping[bool, tuple[Flags, list[Constraint]]]:
        """By whether they are for speed: which configs obey the constraints that read no shape, and the others.

        The first are asked once a dtype and layout on a device.
        """
        key = problem.dtype, problem.layout, problem.precision, problem.epilogue, device
        settled = self._kept.get(key)
        if settled is None:
            if len(self._kept) >= KEPT:
                self._kept.clear()
            settled = {speed: (self.fits.copy(), []) for speed in (False, True)}
            shapeless = SimpleNamespace(**{name: getattr(problem, name) for name in SHAPELESS})
            count = int(np.count_nonzero(self.fits))
            for constraint in self.kernel.constraints:
                flags, others = settled[constraint.for_speed]
                try:
                    flags[self.fits] &= _obeyed(constraint, shapeless, device, self.arrays, count)
                except DeclarationError:  # it reads more
                    others.append(constraint)
            self._kept[key] = settled
        return settled


def _obeyed(
    constraint: Constraint, problem: Any, device: DeviceInfo, arrays: Mapping[str, Any], count: int
) -> Flags:
    """Whether each of some configs obeys.

    Raises:
        DeclarationError: The rule cannot be asked.
    """
    return holds(partial(constraint.rule, problem, device), constraint.sentence, Columns(arrays), count)


def legal(
    kernel: Kernel, problem: Problem, device: DeviceInfo, configs: Sequence[Mapping[str, Any]]
) -> tuple[Flags, Flags]:
    """`Points.flags` of some configs."""
    return Points(kernel, configs).flags(problem, device)


def allows(kernel: Kernel, problem: Problem, device: DeviceInfo, config: Mapping[str, Any]) -> bool:
    """Whether one config is legal, asked without arrays: that is quicker."""
    with suppress(Exception):  # of a rule that cannot be asked
        return is_point(kernel.parameters, config) and kernel.allows(problem, device, Config(config))
    return False


def is_point(parameters: Sequence[Parameter], config: Mapping[str, Any]) -> bool:
    """Whether a config gives each parameter one of its values, and nothing else."""
    return len(config) == len(parameters) and all(
        parameter.name in config and config[parameter.name] in parameter.values for parameter in parameters
    )


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
