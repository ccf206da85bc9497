"""`tuner.kernel` and `tuner.cuda_kernel`: functions of one's own that run their champions."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping
from functools import update_wrapper
from typing import Any, Unpack

import numpy

from tuner.declare.kernel import Kernel
from tuner.declare.problem import Problem
from tuner.declare.space import Space
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import NothingFound
from tuner.lookup import Answer, answer
from tuner.lookup.answers import EXACT
from tuner.lookup.asking import opened, parse_key
from tuner.python import policy
from tuner.python.arrays import family_of, is_array
from tuner.python.own_kernel import KernelCode
from tuner.python.policy import LIBRARY, MEASURE, POLICIES, checked, chosen
from tuner.python.running import ConfigRunner, check, device_of, seen
from tuner.python.tuned import Tuned
from tuner.python.tuning import OwnOptions, refuse_unknown, resolved, run_shown
from tuner.study.requests import StudyOptions, asked, database_url

#: Seconds of tuning at the first call, unless the function or the process says another number.
SECONDS = 10.0


class KernelOptions(OwnOptions, total=False):
    """Options of `kernel` and `cuda_kernel` beside parameters: `OwnOptions`, and these.

    Attributes:
        on_miss: What a call at shapes without a champion does: ``library`` runs the first config, ``predict``
            the config that a lookup names, ``measure`` tunes. By default as `tuner.on_miss` says.
        seconds: Seconds of tuning, for ``measure``; by default those of `tuner.on_miss`, else 10.
        regime: How times are taken; ``cold`` by default.
        device: Fake devices for tests; by default the one that the arrays are on.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    on_miss: str
    seconds: float
    regime: str
    device: str
    db: str


def kernel(**options: Any) -> Callable[[Callable[..., Any]], TunedFunction]:
    """Makes a function that Numba can compile a tuned one.

    Names in capitals are parameters with their values, all others are `KernelOptions`::

        @tuner.kernel(BLOCK=[64, 256, 1024], on_miss="measure")
        def double(x, out, n, BLOCK=64):
            for start in range(0, n, BLOCK):
                for i in range(start, min(start + BLOCK, n)):
                    out[i] = 2 * x[i]

        double(x, out, x.size)

    Raises:
        InputError: The function has no parameters, or takes others.
        UnknownName: There is no such option.
    """
    params = {name: values for name, values in options.items() if name.isupper()}
    rest = {name: value for name, value in options.items() if name not in params}
    _check(rest, "option (parameters are in capitals)")
    return lambda function: TunedFunction(KernelCode(function, "", params, rest))


def cuda_kernel(
    source: str, name: str, params: Mapping[str, Any], **options: Unpack[KernelOptions]
) -> TunedFunction:
    """Makes a function of CUDA text a tuned one, to be called with what it takes: ``add(out, a, b, n)``.

    Args:
        source: CUDA C++ with a ``__global__`` function.
        name: Its name.
        params: Parameter -> its values.
        options: See `KernelOptions`; a launch needs ``grid`` and ``block``.

    Raises:
        DeclarationError: There is no such function in the source.
        UnknownName: There is no such option.
    """
    _check(options)
    return TunedFunction(KernelCode(source, name, params, options))


def _check(options: Mapping[str, Any], kind: str = "option") -> None:
    refuse_unknown(options, (*KernelOptions.__annotations__, *OwnOptions.__annotations__), kind)
    checked(options.get("on_miss") or chosen().how, "policy on_miss", POLICIES)


class TunedFunction:
    """A kernel that runs its champion; the first call with arrays of other shapes looks it up, or tunes.

    It takes what the plain function takes, parameters left out, and writes the same arrays.
    """

    def __init__(self, code: KernelCode) -> None:
        """Keeps the code; nothing is looked up before the first call."""
        self._code, self._options, self._free = code, code.options, code.free
        options = code.options
        self._db, self._regime = database_url(options.get("db") or ""), options.get("regime") or "cold"
        self._runners: dict[Hashable, ConfigRunner] = {}
        self._lock = threading.Lock()
        if code.function is not None:
            update_wrapper(self, code.function)

    def __call__(self, *arguments: Any, **by_name: Any) -> None:
        """Runs the champion for arrays and numbers like these."""
        values = self._named(arguments, by_name)
        keys: list[Any] = []
        for name, value in values.items():
            if is_array(value):
                value = values[name] = seen(name, value)
                family = family_of(value)
                keys.append(family.key(value) if family is not None else None)
            else:
                free = name in self._free or isinstance(value, float | numpy.floating)
                keys.append(type(value) if free else value)
        key = tuple(keys)
        runner = self._runners.get(key)
        if runner is None:
            with self._lock:
                runner = self._runners.get(key) or self._runners.setdefault(key, self._prepared(values))
        arrays = (values[tensor.name] for tensor in runner.problem.tensors)
        runner.run(*arrays, numbers={name: values[name] for name in runner.numbers})

    def tune(self, *arguments: Any, progress: bool = True, **options: Unpack[StudyOptions]) -> Tuned:
        """Tunes for arrays and numbers like these; later calls run the champion.

        Args:
            arguments: What a call takes.
            progress: False to show none.
            options: See `tuner.study.requests.StudyOptions`.
        """
        problem, _, device = self._declared(self._named(arguments, {}))
        result = self._tuned(problem, device, options, progress)
        with self._lock:
            self._runners.clear()
        return result

    def _tuned(
        self, problem: Problem, device: DetectedDevice, options: StudyOptions, progress: bool = False
    ) -> Tuned:
        own = StudyOptions(device=device.spec, regime=self._regime, db=self._db)
        return run_shown(asked(*resolved(problem), own | options), progress)

    def explain(self, *arguments: Any) -> Answer:
        """What a call with such arguments runs without tuning, as a lookup answers it.

        Raises:
            NothingFound: No config is legal.
        """
        problem, _, device = self._declared(self._named(arguments, {}))
        return self._answer(problem, device)

    def _answer(self, problem: Problem, device: DetectedDevice) -> Answer:
        store, (catalogue, _) = opened(self._db), resolved(problem)
        try:
            return answer(store, parse_key(problem), device.info, self._regime, None, catalogue)
        finally:
            if store is not None:
                store.close()

    def __repr__(self) -> str:
        parameters = ", ".join(
            f"{name}: {len(values)} values" for name, values in self._code.parameters.items()
        )
        return f"<tuned kernel {self._code.name}({', '.join(self._code.takes)}); {parameters}>"

    def _named(self, arguments: tuple[Any, ...], by_name: Mapping[str, Any]) -> dict[str, Any]:
        takes = self._code.takes
        if by_name or len(arguments) != len(takes):
            return self._code.named(*arguments, **by_name)
        return dict(zip(takes, arguments, strict=True))

    def _declared(self, values: Mapping[str, Any]) -> tuple[Problem, Kernel, DetectedDevice]:
        """The problem for these arguments, its kernel, and the device that they are on."""
        catalogue, problem = self._code.problem(values, tie=True)
        target = kind_of(self._code.target)
        at = target.first if target.is_host else device_of(values.values(), self._code.target)
        return problem, catalogue.kernels[-1], find(self._options.get("device") or at)

    def _prepared(self, values: Mapping[str, Any]) -> ConfigRunner:
        """What runs for these arguments, and for others like them.

        Raises:
            InputError: An array does not lie as the kernel reads it; nothing was tuned.
        """
        problem, kernel, device = self._declared(values)
        arrays = [values[tensor.name] for tensor in problem.tensors]
        check(problem.tensors, arrays, device.info.kind, not kind_of(device.target).is_host)
        config = self._config(problem, kernel, device)
        return ConfigRunner(kernel, problem, config, device.info, device.spec)

    def _config(self, problem: Problem, kernel: Kernel, device: DetectedDevice) -> Mapping[str, Any]:
        """The champion's config, or what the policy says.

        Raises:
            NothingFound: No config is legal.
        """
        try:
            known: Answer | None = self._answer(problem, device)
        except NothingFound:
            known = None
        if known is not None and known.stale:
            known = None
        if known is not None and known.match == EXACT:
            return known.config
        how, seconds = self._options.get("on_miss") or chosen().how, chosen().seconds
        if how == MEASURE:
            usual = SECONDS if seconds == policy.SECONDS else seconds
            try:
                return self._tuned(problem, device, {"seconds": self._options.get("seconds") or usual}).config
            except NothingFound as nothing:
                warnings.warn(f"{nothing}; its first config runs", UserWarning, stacklevel=4)
        return known.config if how != LIBRARY and known is not None else _first_config(problem, kernel, device)


def _first_config(problem: Problem, kernel: Kernel, device: DetectedDevice) -> Mapping[str, Any]:
    """The config that a person would try first.

    Raises:
        NothingFound: None is legal.
    """
    space = Space.build(kernel.parameters, kernel.constraints, problem, device.info)
    if not len(space):
        raise NothingFound(
            f"no config of {kernel.name} is legal for {problem} on {device.info.name}; relax a restriction"
        )
    return next((config for config in kernel.first_configs() if config in space), space[0])
