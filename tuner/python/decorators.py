"""`tuner.kernel` and `tuner.cuda_kernel`: functions of one's own that run their champions."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import update_wrapper
from typing import Any, Unpack

import numpy

from tuner.declare.catalogue import Catalogue, from_file
from tuner.declare.problem import Problem
from tuner.declare.space import Config, Space
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import NothingFound, UnknownName
from tuner.lookup import Answer, answer
from tuner.lookup.asking import opened, parse_key
from tuner.python import policy as policies
from tuner.python.code import KernelCode, read_code
from tuner.python.own_kernel import free_numbers, own_problem
from tuner.python.policy import POLICIES, chosen
from tuner.python.running import ConfigRunner, check, device_of, is_array, key_of, named, seen
from tuner.python.tuned import Tuned
from tuner.python.tuning import OwnOptions, refuse_unknown, run_shown, tune_problem
from tuner.study.requests import StudyOptions, asked, database_url

#: Seconds of tuning at the first call, unless the function or the process says another number.
SECONDS = 10.0


def policy(own: str | None) -> str:
    """What a call without a champion does: the function's own policy, else that of `tuner.on_miss`.

    Raises:
        UnknownName: There is no such policy.
    """
    how = own or chosen().how
    if how not in POLICIES:
        raise UnknownName("policy on_miss", how, POLICIES)
    return how


def seconds_of(own: float | None) -> float:
    """Seconds of tuning at a first call: the function's own, else those that `tuner.on_miss` was given."""
    process = chosen().seconds
    return own or (SECONDS if process == policies.SECONDS else process)


@dataclass(frozen=True)
class FirstCall:
    """How a function finds its configs.

    Attributes:
        db: URL of the database.
        regime: How times are taken.
        on_miss: The function's own policy; None to follow the process.
        seconds: Seconds of tuning, where it is tuned; None to follow the process.
    """

    db: str
    regime: str = "cold"
    on_miss: str | None = None
    seconds: float | None = None

    def config(self, problem: Problem, found: DetectedDevice) -> Mapping[str, Any]:
        """The champion's config, or what the policy says.

        Raises:
            NothingFound: No config is legal.
        """
        try:
            known: Answer | None = self.answer(problem, found)
        except NothingFound:
            known = None
        usable = known is not None and not known.stale
        if known is not None and usable and known.match == "exact":
            return known.config
        how = policy(self.on_miss)
        if how == "measure":
            told = StudyOptions(
                device=found.spec, regime=self.regime, db=self.db, seconds=seconds_of(self.seconds)
            )
            try:
                return run_shown(asked(declared_by(problem), problem, told), False).config
            except NothingFound as nothing:
                warnings.warn(f"{nothing}; its first config runs", UserWarning, stacklevel=5)
        if how != "library" and known is not None and usable:
            return known.config
        return first_config(problem, found)

    def answer(self, problem: Problem, found: DetectedDevice) -> Answer:
        """What a lookup answers.

        Raises:
            NothingFound: No config is legal.
        """
        store = opened(self.db)
        try:
            return answer(store, parse_key(problem), found.info, self.regime, None, declared_by(problem))
        finally:
            if store is not None:
                store.close()


def declared_by(problem: Problem) -> Catalogue:
    """The file that declares a problem's kernel."""
    assert problem.operation.origin is not None, "a kernel of one's own has a file"
    return from_file(problem.operation.origin)


def first_config(problem: Problem, found: DetectedDevice) -> Config:
    """The config that a person would try first.

    Raises:
        NothingFound: None is legal.
    """
    [own] = declared_by(problem).of(problem.operation.name)
    space = Space.build(own.parameters, own.constraints, problem, found.info)
    if not len(space):
        raise NothingFound(
            f"no config of {own.name} is legal for {problem} on {found.info.name}; relax a restriction"
        )
    return next((each for each in own.first_configs() if each in space), space[0])


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
    refuse_unknown(rest, _KNOWN, "option (parameters are in capitals)")
    policy(rest.get("on_miss"))

    def decorate(function: Callable[..., Any]) -> TunedFunction:
        return TunedFunction(read_code(function, "", params), rest)

    return decorate


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
    refuse_unknown(options, _KNOWN)
    policy(options.get("on_miss"))
    return TunedFunction(read_code(source, name, params), dict(options))


_KNOWN = tuple(KernelOptions.__annotations__) + tuple(OwnOptions.__annotations__)


class TunedFunction:
    """A kernel that runs its champion; the first call with arrays of other shapes looks it up, or tunes.

    It takes what the plain function takes, parameters left out, and writes the same arrays.
    """

    def __init__(self, code: KernelCode, options: Mapping[str, Any]) -> None:
        """Keeps code and options; nothing is looked up before the first call."""
        self._code, self._options, self._free = code, dict(options), free_numbers(code, options)
        self._first = FirstCall(
            database_url(options.get("db") or ""), options.get("regime") or "cold", options.get("on_miss"),
            options.get("seconds"),
        )  # fmt: skip
        self._runners: dict[Hashable, ConfigRunner] = {}
        self._lock = threading.Lock()
        if code.function is not None:
            update_wrapper(self, code.function)

    def __call__(self, *arguments: Any, **by_name: Any) -> None:
        """Runs the champion for arrays and numbers like these."""
        values = {
            name: seen(name, each) if is_array(each) else each
            for name, each in self._named(arguments, by_name).items()
        }
        key = tuple(
            type(each) if name in self._free or isinstance(each, float | numpy.floating) else key_of(each)
            for name, each in values.items()
        )
        runner = self._runners.get(key)
        if runner is None:
            with self._lock:
                runner = self._runners.get(key) or self._runners.setdefault(key, self._prepared(values))
        arrays = (values[each.name] for each in runner.problem.tensors)
        runner.run(*arrays, numbers={name: values[name] for name in runner.numbers})

    def tune(self, *arguments: Any, progress: bool = True, **options: Unpack[StudyOptions]) -> Tuned:
        """Tunes for arrays and numbers like these; later calls run the champion.

        Args:
            arguments: What a call takes.
            progress: False to show none.
            options: See `tuner.study.requests.StudyOptions`.
        """
        values = self._named(arguments, {})
        problem, found = self._declared(values)
        told = StudyOptions(device=found.spec, regime=self._first.regime, db=self._first.db) | options
        result = tune_problem(problem, told, progress)
        with self._lock:
            self._runners.clear()
        return result

    def explain(self, *arguments: Any) -> Answer:
        """What a call with such arguments runs without tuning, as a lookup answers it.

        Raises:
            NothingFound: No config is legal.
        """
        problem, found = self._declared(self._named(arguments, {}))
        return self._first.answer(problem, found)

    def __repr__(self) -> str:
        parameters = ", ".join(
            f"{name}: {len(values)} values" for name, values in self._code.parameters.items()
        )
        return f"<tuned kernel {self._code.name}({', '.join(self._code.takes)}); {parameters}>"

    def _named(self, arguments: tuple[Any, ...], by_name: Mapping[str, Any]) -> dict[str, Any]:
        if by_name:
            in_order = dict(zip(self._code.takes, arguments, strict=False))
            return named({**in_order, **by_name}, self._code.takes, self._code.name)
        return named(arguments, self._code.takes, self._code.name)

    def _declared(self, values: Mapping[str, Any]) -> tuple[Problem, DetectedDevice]:
        """The problem for these arguments, and the device that they are on."""
        _, problem = own_problem(self._code, values, self._options)
        target = self._code.target
        at = kind_of(target).first if kind_of(target).is_host else device_of(values.values(), target)
        return problem, find(self._options.get("device") or at)

    def _prepared(self, values: Mapping[str, Any]) -> ConfigRunner:
        """What runs for these arguments, and for others like them.

        Raises:
            InputError: An array does not lie as the kernel reads it; nothing was tuned.
        """
        problem, found = self._declared(values)
        tensors = problem.tensors
        check(
            tensors, [values[each.name] for each in tensors], found.info.kind, not kind_of(found.target).is_host
        )
        config = self._first.config(problem, found)
        [declared_kernel] = declared_by(problem).of(problem.operation.name)
        return ConfigRunner(declared_kernel, problem, config, found.info, found.spec)
