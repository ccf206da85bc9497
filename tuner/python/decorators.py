"""`tuner.kernel` and `tuner.cuda_kernel`: functions that are tuned at a first call, then run their champion."""

from __future__ import annotations

import operator
import threading
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import update_wrapper
from typing import Any, NamedTuple, Unpack

import numpy

from tuner.declare.catalogue import Catalogue
from tuner.declare.kernel import Kernel
from tuner.declare.language import source_language
from tuner.declare.problem import Problem
from tuner.devices.detect import DetectedDevice, find, kind_of
from tuner.errors import LockedByAnother, NothingFound
from tuner.lookup import Answer, answer
from tuner.lookup.asking import opened
from tuner.lookup.legality import default_among
from tuner.python import misses
from tuner.python.arrays import KEY_OF, is_array
from tuner.python.decisions import keep
from tuner.python.explaining import Explanation, explain_kernel
from tuner.python.misses import LIBRARY, MEASURE, POLICIES, checked, chosen
from tuner.python.own_kernel import NUMBERS, KernelCode
from tuner.python.running import ConfigRunner, Runs, device_of, view_of, views_of
from tuner.python.tuned import Tuned
from tuner.python.tuning import OwnOptions, refuse_unknown, run_shown
from tuner.results.objectives import KEEP
from tuner.results.record import ProblemKey
from tuner.study.locks import database_lock
from tuner.study.requests import StudyOptions, asked, database_url

#: Seconds of tuning at the first call of a tuned function, unless it or the process says another number.
SECONDS = 10.0
#: Times its seconds that such a call waits for others who use the device; seconds between two attempts.
WAITS, AGAIN_S = 3.0, 0.2


class KernelOptions(OwnOptions, total=False):
    """Options of `kernel` and `cuda_kernel` beside parameters: `OwnOptions`, and these.

    Attributes:
        on_miss: What a call at shapes without a champion does: ``library`` runs the first config, ``predict``
            the config that a lookup names, ``measure`` tunes. By default as `tuner.on_miss` says.
        seconds: Seconds of tuning, for ``measure``; by default those of `tuner.on_miss`, else 10.
        bits: Class of bits that calls keep to: ``keep``, ``library`` or its name. A champion of another class
            is a miss; what cannot be measured then raises NothingFound. By default ``measure`` keeps to that
            of `tuner.on_miss`.
        regime: How times are taken; ``cold`` by default.
        device: A device; by default the one that the arrays are on.
        db: URL of the database; by default that of ``TUNER_DB``, else ``studies.db`` in this folder.
    """

    on_miss: str
    seconds: float
    bits: str
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
    refuse_unknown(options, KernelOptions.__annotations__, kind)
    checked(options.get("on_miss") or chosen().how, "policy on_miss", POLICIES)


class PlacedKernel(NamedTuple):
    """A kernel of one's own for certain arguments.

    Attributes:
        catalogue: Has the kernel alone.
        problem: What it computes.
        device: Where the arguments are.
    """

    catalogue: Catalogue
    problem: Problem
    device: DetectedDevice

    @property
    def kernel(self) -> Kernel:
        """The kernel as it is declared."""
        [kernel] = self.catalogue.kernels
        return kernel


class TunedFunction:
    """A kernel that runs its champion; the first call with arrays of other shapes looks it up, or tunes.

    It takes what the plain function takes, parameters left out, and writes the same arrays.
    """

    def __init__(self, code: KernelCode) -> None:
        """Keeps the code; nothing is looked up before the first call."""
        self._code, self._options = code, code.options
        self._regime = self._options.get("regime") or "cold"
        self._free = [name in code.free for name in code.takes]
        self._calls: dict[Hashable, Callable[[Sequence[Any]], None]] = {}
        self._lock = threading.RLock()
        if code.function is not None:
            update_wrapper(self, code.function)

    def __call__(self, *arguments: Any, **by_name: Any) -> None:
        """Runs the champion for arrays and numbers like these."""
        values: Sequence[Any] = arguments
        if by_name or len(arguments) != len(self._free):
            values = list(self._code.named(*arguments, **by_name).values())
        key = self._key(values)
        if key is None:  # arrays of a library that shares its memory
            values = [
                view_of(name, value) if is_array(value) else value
                for name, value in zip(self._code.takes, values, strict=True)
            ]
            key = self._key(values)
        call = self._calls.get(key)
        if call is None:
            with self._lock:
                call = self._calls.get(key) or self._prepared(values)
                keep(self._calls, key, call)
        call(values)

    def _key(self, values: Sequence[Any]) -> Hashable | None:
        """All that the call may depend on; None for an array of another type than those that are known."""
        parts: list[Hashable] = []
        for value, free in zip(values, self._free, strict=True):
            kind: type = type(value)
            key = KEY_OF.get(kind)
            if key is not None:
                parts.append(key(value))
            elif isinstance(value, float | numpy.floating) or (free and isinstance(value, NUMBERS)):
                parts.append(kind)
            elif isinstance(value, NUMBERS):
                parts.append((kind, int(value)))
            else:
                return None
        return tuple(parts)

    def tune(self, *arguments: Any, progress: bool = True, **options: Unpack[StudyOptions]) -> Tuned:
        """Tunes for arrays and numbers like these; later calls run the champion.

        Args:
            arguments: What a call takes.
            progress: False to show none.
            options: See `tuner.study.requests.StudyOptions`.
        """
        result = self._tuned(self._placed(self._code.named(*arguments)), options, progress)
        with self._lock:
            self._calls.clear()
        return result

    def _tuned(self, placed: PlacedKernel, options: StudyOptions, progress: bool = False) -> Tuned:
        usual = StudyOptions(device=placed.device.spec, regime=self._regime, db=self._options.get("db") or "")
        return run_shown(asked(placed.catalogue, placed.problem, usual | options), progress)

    def explain(self, *arguments: Any) -> Explanation:
        """What a call with such arguments runs without tuning, and why.

        Raises:
            NothingFound: No config is legal.
        """
        placed = self._placed(self._code.named(*arguments))
        return explain_kernel(self._code.name, placed.problem, placed.device.info, self._answer(placed))

    def _answer(self, placed: PlacedKernel) -> Answer:
        with opened(self._options.get("db") or "") or nullcontext() as store:
            key = ProblemKey.of(placed.problem)
            return answer(store, key, placed.device.info, self._regime, None, placed.catalogue)

    def __repr__(self) -> str:
        parameters = ", ".join(
            f"{name}: {len(values)} values" for name, values in self._code.parameters.items()
        )
        return f"<tuned kernel {self._code.name}({', '.join(self._code.takes)}); {parameters}>"

    def config_for(self, *arguments: Any, **by_name: Any) -> Mapping[str, Any]:
        """The config that a call with such arguments runs, tuned now if the policy says so."""
        return self._config(self._placed(self._code.named(*arguments, **by_name)))

    def _placed(self, values: Mapping[str, Any]) -> PlacedKernel:
        catalogue, problem = self._code.problem(values, tie=True)
        device = self._options.get("device") or device_of(
            values.values(), source_language(self._code.target).kind
        )
        return PlacedKernel(catalogue, problem, find(device))

    def _prepared(self, values: Sequence[Any]) -> Callable[[Sequence[Any]], None]:
        """What runs for these arguments, and for others like them.

        Raises:
            InputError: An array does not lie as the kernel reads it; nothing was tuned.
        """
        placed = self._placed(dict(zip(self._code.takes, values, strict=True)))
        problem, device, kind = placed.problem, placed.device, kind_of(placed.device.target)
        places = [self._code.takes.index(tensor.name) for tensor in problem.tensors]
        passed = [values[at] for at in places]
        views = views_of(problem, passed, kind, not kind.is_host)
        runner = ConfigRunner(placed.kernel, problem, self._config(placed), device.info, device.spec)
        numbers = [self._code.takes.index(name) for name in runner.numbers]
        plain = all(map(operator.is_, views, passed))
        runs: dict[Hashable, Runs] = {}

        def call(given: Sequence[Any]) -> None:
            arrays = [given[at] for at in places]
            if not plain:
                arrays = views_of(problem, arrays, kind, not kind.is_host)
            key = tuple([given[at] for at in numbers])
            run = runs.get(key)
            if run is None:
                run = runner.run_for(arrays, dict(zip(runner.numbers, key, strict=True)))
                keep(runs, key, run)
            run(*arrays)

        return call

    def _config(self, placed: PlacedKernel) -> Mapping[str, Any]:
        """The champion's config, or what the policy says.

        Raises:
            NothingFound: No config is legal, or none is known to have the bits that are asked for.
        """
        known, bits = self._answer(placed), self._options.get("bits") or ""
        if known.keeps(bits) and not known.stale:
            return known.config
        how = self._options.get("on_miss") or chosen().how
        if how == MEASURE and (measured := self._measured(placed)) is not None:
            return measured
        if bits not in ("", KEEP):
            why = f"no config of {self._code.name} is known to have bits {bits!r} for {placed.problem}"
            raise NothingFound(f"{why}; give on_miss='measure', more seconds, or another class")
        default = default_among([placed.kernel], placed.problem, placed.device.info)
        if default is not None and (how == LIBRARY or known.stale):
            return default[1]
        return known.config

    def _measured(self, placed: PlacedKernel) -> Mapping[str, Any] | None:
        """The config that is fastest, found now; None where nothing could be measured, with a warning.

        Others who use the device are waited for. Where others measure the same on a board of the same model,
        their answer is taken: processes, and ranks on several boards, agree on one config.
        """
        usual = SECONDS if chosen().seconds == misses.SECONDS else chosen().seconds
        bits = self._options.get("bits") or chosen().bits
        options = StudyOptions(seconds=self._options.get("seconds") or usual, bits=bits)
        url, info = database_url(self._options.get("db") or ""), placed.device.info
        problem = replace(info, uuid=f"{info.name} {ProblemKey.of(placed.problem)}")
        until_s = time.monotonic() + WAITS * (options["seconds"] or usual)
        while True:
            try:
                with database_lock(url, problem, f"tune {self._code.name}"):
                    known = self._answer(placed)  # another process may have measured it meanwhile
                    keeps = known.keeps(bits) and not known.stale
                    return known.config if keeps else self._tuned(placed, options).config
            except (NothingFound, LockedByAnother) as nothing:
                if isinstance(nothing, NothingFound) or time.monotonic() > until_s:
                    warnings.warn(f"{nothing}; a config that is not tuned runs", UserWarning, stacklevel=6)
                    return None
            time.sleep(AGAIN_S)
