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
from tuner.errors import InputError, TunerError
from tuner.python.decorators import KernelOptions, TunedFunction
from tuner.python.tuning import refuse_unknown
from tuner.triton.compiler import HOOK, RESET, RESTORED
from tuner.triton.jit import JitCode
from tuner.triton.language import OPTIONS

Configs = Sequence[Config] | Mapping[str, Sequence[Any]]
_TRITONS = ("prune_configs_by", "use_cuda_graph", "hooks")
# To load these takes as long as all else of a process's first answer, and far less than to load Triton.
languages()
with contextlib.suppress(Exception):  # there is no driver
    nvml()


class TunedKernel(Autotuner):
    """A kernel under ``triton.jit`` that runs its champion; a call at a new key asks the database, or measures.

    Launches are Triton's own. `Autotuner` keeps the config of a key; which one that is comes from here.
    """

    def __init__(self, fn: Any, configs: Configs, key: Sequence[str], options: Mapping[str, Any]) -> None:
        """Keeps what is to be tuned; nothing is measured before the first call."""
        pruning = options.get("prune_configs_by")
        super().__init__(fn, fn.arg_names, _configs(configs), list(key), None, None, prune_configs_by=pruning)
        self._hook, post_hook = options["hooks"]
        if post_hook:
            raise InputError("a kernel has no post_hook, got one; use restore_value=, or triton.autotune")
        cold = "hot-graph" if options.get("use_cuda_graph") else "cold"
        kept = {name: value for name, value in options.items() if name not in _TRITONS}
        refuse_unknown(kept, [*KernelOptions.__annotations__, RESET, RESTORED])
        self._options = {"on_miss": "measure", "regime": cold, **kept}
        self._places = [self.arg_names.index(name) for name in self.keys]
        #: Types of arguments, and names of those given by name -> places of tensors.
        self._tensors: dict[Hashable, list[int]] = {}
        self._known: dict[Hashable, tuple[Config, dict[str, Any]]] = {}

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """As Triton's, which looks at each argument of each call: some 10 us."""
        kinds = (*map(type, args), *kwargs)
        tensors = self._tensors.get(kinds)
        if tensors is not None and (known := self._known.get(self._key(kinds, tensors, args))) is not None:
            self.best_config, values = known
            return self.fn.run(*args, **kwargs, **values)
        result = super().run(*args, **kwargs)
        is_plain = not any(hasattr(value, "dtype") for value in kwargs.values())
        if is_plain and self.best_config.pre_hook is None and max(self._places, default=0) < len(args):
            tensors = self._tensors[kinds] = [at for at, value in enumerate(args) if hasattr(value, "dtype")]
            self._known[self._key(kinds, tensors, args)] = self.best_config, self.best_config.all_kwargs()
        return result

    def _key(self, kinds: Hashable, tensors: Sequence[int], args: Sequence[Any]) -> Hashable:
        return kinds, *[args[at] for at in self._places], *[args[at].dtype for at in tensors]

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
