"""What `tuner.autotune` makes of a function under ``triton.jit``: Triton's autotuner with other answers."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from triton.runtime.autotuner import Autotuner, Config

from tuner.declare.language import languages
from tuner.devices.cuda.kind import nvml
from tuner.errors import TunerError
from tuner.python.decorators import KernelOptions, TunedFunction
from tuner.python.tuning import refuse_unknown
from tuner.triton.compiler import HOOK, RESET, RESTORED
from tuner.triton.jit import JitCode
from tuner.triton.language import OPTIONS

Configs = Sequence[Config] | Mapping[str, Sequence[Any]]
#: Options of Triton's that are not used here.
_UNUSED = ("warmup", "rep", "do_bench", "cache_results")
# To load these takes as long as all else of a process's first answer, and far less than to load Triton.
languages()
with contextlib.suppress(Exception):  # there is no driver
    nvml()


class TunedKernel(Autotuner):
    """A kernel under ``triton.jit`` that runs its champion; a call at a new key asks the database, or measures.

    Launches are Triton's own. `Autotuner` keeps the config of a key; which one that is comes from here.
    """

    def __init__(
        self, fn: Any, configs: Configs, key: Sequence[str], options: Mapping[str, Any], pruning: Any, hook: Any
    ) -> None:
        """Keeps what is to be tuned; nothing is measured before the first call."""
        super().__init__(fn, fn.arg_names, _configs(configs), list(key), None, None, prune_configs_by=pruning)
        kept = {name: value for name, value in options.items() if name not in _UNUSED}
        refuse_unknown(kept, [*KernelOptions.__annotations__, RESET, RESTORED])
        self._options, self._hook = {"on_miss": "measure", **kept}, hook
        self._places = [self.arg_names.index(name) for name in self.keys]
        self._last = max(self._places, default=-1)
        self._known: dict[Hashable, tuple[Config, dict[str, Any]]] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """As Triton's, which looks at each argument of each call: some 10 us."""
        if len(args) <= self._last:
            return super().run(*args, **kwargs)
        dtypes = [getattr(value, "dtype", None) for value in args]
        key = tuple(kwargs), *[args[at] for at in self._places], *dtypes
        if (known := self._known.get(key)) is not None:
            self.best_config, values = known
            return self.fn.run(*args, **kwargs, **values)
        result = super().run(*args, **kwargs)
        if self.best_config.pre_hook is None and not any(hasattr(one, "dtype") for one in kwargs.values()):
            self._known[key] = self.best_config, self.best_config.all_kwargs()
        return result

    def prune_configs(self, kwargs: dict[str, Any]) -> list[Config]:
        """The champion of those that the caller's own pruning leaves."""
        configs = super().prune_configs(kwargs)
        try:
            return [self._champion(configs, kwargs)] if len(configs) > 1 else configs
        except TunerError as error:
            warnings.warn(f"{error}; the first config runs", UserWarning, stacklevel=5)
            return configs[:1]

    def _champion(self, configs: Sequence[Config], kwargs: Mapping[str, Any]) -> Config:
        names, by_row = rows_of(configs)
        options = self._options | {
            "rows": list(by_row), "grid": kwargs["grid"], HOOK: _hooks_of(by_row, self._hook),
            "defaults": dict(zip(names, next(iter(by_row)), strict=True)),
            "restrictions": [f"({', '.join(names)},) in {sorted(by_row, key=str)}"],
        }  # fmt: skip
        values = [list(dict.fromkeys(column)) for column in zip(*by_row, strict=True)]
        code = JitCode(self.fn, "", dict(zip(names, values, strict=True)), options)
        given = {name: value for name, value in {**self.nargs, **kwargs}.items() if name in self.arg_names}
        config = TunedFunction(code).config_for(**given)
        return by_row[tuple(config[name] for name in names)]

    def _bench(self, *args: Any, config: Config, **meta: Any) -> list[float]:
        """Nothing is timed in this process."""
        return [0.0] * 3


def _configs(given: Configs) -> list[Config]:
    """Triton's configs, or those of all combinations of the parameters' values."""
    if not isinstance(given, Mapping):
        return [*given]
    rows = [dict(zip(given, row, strict=True)) for row in itertools.product(*given.values())]
    return [Config(row, **{name: row.pop(name) for name in OPTIONS if name in row}) for row in rows]


def _hooks_of(by_row: Mapping[tuple[Any, ...], Config], every: Any) -> list[tuple[Any, list[tuple[Any, ...]]]]:
    """Hooks, and the configs that have each; those of one code and the same values are one."""
    known: dict[Hashable, tuple[Any, list[tuple[Any, ...]]]] = {}
    for row, config in by_row.items():
        for hook in filter(None, (every, config.pre_hook)):
            values = [cell.cell_contents for cell in getattr(hook, "__closure__", None) or ()]
            known.setdefault((getattr(hook, "__code__", hook), repr(values)), (hook, []))[1].append(row)
    return [*known.values()]


def rows_of(configs: Sequence[Config]) -> tuple[list[str], dict[tuple[Any, ...], Config]]:
    """Names of all that any config sets, and the values of each; 0 stands for what one leaves open."""
    written = {config: config.all_kwargs() for config in configs}
    names = dict.fromkeys(name for values in written.values() for name in values)
    names.pop("num_ctas" if all(values.get("num_ctas") == 1 for values in written.values()) else "", None)
    return [*names], {tuple(values.get(name) or 0 for name in names): one for one, values in written.items()}
