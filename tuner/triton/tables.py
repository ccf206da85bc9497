"""Configs in the files that others read: tables by M of vLLM and SGLang, lists of Triton's, Helion's configs.

Formats as of vLLM 13cb3e4 and 007d500, SGLang 7386515, Helion 08f5f8e and Triton 3.9.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tuner.cli import options as cli
from tuner.declare.catalogue import from_file
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import Operation, Problem
from tuner.declare.space import Config
from tuner.errors import InputError, NothingFound
from tuner.lookup.answers import EXACT, Answer
from tuner.results.measurement import Measurement, Outcome
from tuner.results.record import Champion, ProblemKey, Record, Role
from tuner.store.kernel_tuner import IMPORTED, text_of
from tuner.triton.language import OPTIONS, version
from tuner.version import __version__

#: What the kernels of both servers take, and what a config may set beside it.
TILES = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M")
BESIDE = ("num_warps", "num_stages", "SPLIT_K")
#: Dtype -> as file names say it. FP8 is stored as bytes; 16 bits go without saying.
DTYPES = {"float16": "", "bfloat16": "", "float32": ",dtype=float32", "uint8": ",dtype=fp8_w8a8"}
#: Elements of B that share a scale, unless the dims ``group_n`` and ``group_k`` say otherwise.
GROUP = 128


@dataclass(frozen=True)
class ConfigTable:
    """The champions of one kernel at all M that are tuned.

    Attributes:
        problem: One of the problems.
        kernel: The kernel as it is declared.
        champions: M -> its champion; 0 where the operation has no M.
    """

    problem: Problem
    kernel: Kernel
    champions: Mapping[int, Champion]

    @property
    def configs(self) -> dict[int, dict[str, Any]]:
        """M -> config."""
        return {m: dict(champion.record.config) for m, champion in self.champions.items()}

    @property
    def device(self) -> DeviceInfo:
        """Where they were measured."""
        return next(iter(self.champions.values())).record.device

    def name(self, space: str = "") -> str:
        """Name of a server's file: fused experts where the problem has a dim E, else FP8 with scales of blocks.

        Raises:
            InputError: The server has no such file.
        """
        names = {parameter.name for parameter in self.kernel.parameters}
        if not set(TILES) <= names or names - {*TILES, *BESIDE}:
            raise InputError(
                f"the servers' kernels take {', '.join(TILES)}, and {', '.join(BESIDE)}, got "
                f"{', '.join(sorted(names))} of {self.kernel.name}; rename them, or choose --format triton"
            )
        dims, dtype = {dim.lower(): size for dim, size in self.problem.shape}, self.problem.dtype
        is_experts, by_block = "e" in dims, "e" not in dims or "group_k" in dims
        if not {"m", "n", "k"} <= dims.keys() or dtype not in DTYPES or not (is_experts or dtype == "uint8"):
            raise InputError(
                "the servers' tables are of fused experts (dims M, N, K, E), or of products in FP8 (M, N, K, "
                f"dtype uint8), got {self.problem}; choose --format triton"
            )
        device = re.sub(r"[\s/]+", "_", self.device.name)
        if is_experts and not space and "H200" in device.split("_"):
            device = "NVIDIA_H200"  # as vLLM calls the whole family
        groups = f"[{dims.get('group_n', GROUP)},{space}{dims.get('group_k', GROUP)}]"
        shape = f"E={dims['e']},N={dims['n']}" if is_experts else f"N={dims['n']},K={dims['k']}"
        return f"{shape},device_name={device}{DTYPES[dtype]}{f',block_shape={groups}' if by_block else ''}.json"


def _vllm(table: ConfigTable) -> dict[str, str]:
    return {table.name(): json.dumps(table.configs, indent=4) + "\n"}


def _sglang(table: ConfigTable) -> dict[str, str]:
    """Tables of experts lie in a folder by Triton's version."""
    name, by_folder = table.name(" "), dict[str, dict[int, Any]]()
    for m, config in table.configs.items():
        compiled = _triton_of(table.champions[m]).replace(".", "_")
        folder = f"configs/triton_{compiled}/" if name.startswith("E=") else ""
        by_folder.setdefault(folder, {})[m] = config
    return {folder + name: json.dumps(rows, indent=4) + "\n" for folder, rows in by_folder.items()}


def _triton_of(champion: Champion) -> str:
    """Version of Triton that compiled it."""
    report = champion.record.measurement.compiled
    compiled = re.search(r"Triton (\d[\w.]*)", report.compiler if report else "")
    return compiled[1] if compiled else version()


def _triton(table: ConfigTable) -> dict[str, str]:
    """A module with ``CONFIGS``, each once, with the M that it is best at."""
    at: dict[Config, list[str]] = {}
    for m, row in table.configs.items():
        at.setdefault(Config(row), []).append(f"M={m}" if m else str(table.problem))
    lines = ["import triton", "", "CONFIGS = ["]
    for config, places in at.items():
        values = {name: value for name, value in config.items() if name not in OPTIONS}
        options = "".join(f", {name}={config[name]}" for name in OPTIONS if config.get(name))
        lines.append(f"    triton.Config({values}{options}),  # {', '.join(places)}")
    return {f"{table.kernel.name}_configs.py": "\n".join([*lines, "]", ""])}


def _helion(table: ConfigTable) -> dict[str, str]:
    """A file for each M, as ``helion.Config.load`` reads it."""
    made = {}
    for m, config in table.configs.items():
        tiles = [config.pop(name) for name in TILES[:3] if name in config]
        groups = [config.pop(name) for name in TILES[3:] if name in config]
        ours = {"block_sizes": tiles} | ({"l2_groupings": groups} if groups else {}) | config
        made[f"{table.kernel.name}{f',M={m}' if m else ''}.json"] = json.dumps(ours, indent=2)
    return made


#: Format -> what makes its files: name -> content.
FORMATS: Mapping[str, Callable[[ConfigTable], dict[str, str]]] = {
    "vllm": _vllm, "sglang": _sglang, "triton": _triton, "helion": _helion,
}  # fmt: skip


def exported(
    form: str, kernels: Sequence[Kernel], problem: Problem, known: Iterable[Champion],
    answer: Callable[[Problem], Answer],
) -> dict[str, bytes]:  # fmt: skip
    """The files of a format, and their provenance.

    Args:
        form: One of `FORMATS`.
        kernels: The operation's.
        problem: One of the table's problems; its M does not count.
        known: Champions of the operation on the device.
        answer: Answers a problem from the records.

    Raises:
        NothingFound: None of the table's problems is tuned, or several kernels are champions.
        InputError: The format has no file for such a kernel.
    """
    dim, key = _m_of(problem.operation), ProblemKey.of(problem)
    sizes = {one.record.problem.dims.get(dim, 0) for one in known if _is_row(one.record.problem, key, dim)}
    answers = {m: answer(problem.at({**problem.dims, dim: m} if dim else problem.dims)) for m in sorted(sizes)}
    champions = {m: one.champion for m, one in answers.items() if one.match == EXACT and one.champion}
    named = {champion.record.kernel for champion in champions.values()}
    if len(named) != 1:
        given = ", ".join(sorted(named)) or f"nothing tuned for {problem}"
        raise NothingFound(f"a table is of one tuned kernel, got {given}; tune one, or choose by --kernel")
    table = ConfigTable(problem, next(kernel for kernel in kernels if kernel.name in named), champions)
    made, why = FORMATS[form](table), {m: answers[m].stale_reason for m in champions}
    told = json.dumps({"files": list(made), **_provenance(table, why)}, indent=2) + "\n"
    made[f"{next(iter(made)).rpartition('.')[0]}.provenance.json"] = told
    return {name: text.encode() for name, text in made.items()}


def _m_of(operation: Operation) -> str:
    return next((dim for dim in operation.dims if dim.lower() == "m"), "")


def _is_row(of: ProblemKey, key: ProblemKey, dim: str) -> bool:
    same = of.dims.keys() == key.dims.keys() and (of.arithmetic, of.layout) == (key.arithmetic, key.layout)
    return same and all(size == key.dims[name] for name, size in of.shape if name != dim)


def _default(kernel: Kernel) -> Config:
    return next(iter(kernel.first_configs()), Config({}))


def _provenance(table: ConfigTable, stale: Mapping[int, str]) -> dict[str, Any]:
    """Where each row comes from, and how it compares with the default and the other finalists."""
    default, rows = _default(table.kernel), dict[str, Any]()
    for m, champion in table.champions.items():
        record, pairs = champion.record, {pair.other: pair.to_json() for pair in champion.own_pairs}
        rows[str(m)] = {
            "config": dict(record.config), "record_id": record.id, "champion_id": champion.id,
            "measured_at": record.measured_at, "versions": {**record.versions, "triton": _triton_of(champion)},
            "source_hash": record.source_hash, "stale": stale[m], "regime": record.regime,
            "time_s": record.measurement.time_s, "noise": record.measurement.noise,
            "is_default": Config(record.config) == default,
            "beside_default": pairs.get(f"{table.kernel.name} {default}"), "pairs": list(pairs.values()),
        }  # fmt: skip
    return {
        "format": "tile-tuner table", "version": 1, "exported_by": f"tile-tuner {__version__}",
        "about": "pairs: finals timed in alternation; ratio: time(other) / time(config), with its interval",
        "problem": table.problem.to_json(), "kernel": table.kernel.name, "default": dict(default),
        "device": table.device.to_json(), "rows": rows,
    }  # fmt: skip


# --- import --------------------------------------------


def read(path: Path) -> dict[int, list[dict[str, Any]]] | None:
    """M -> its configs; 0 for a file that names none. None for a file of another kind.

    Raises:
        InputError: The file cannot be read.
    """
    text, data = text_of(path), {}
    if path.suffix == ".py":
        return {0: _listed(text, path)}
    with contextlib.suppress(ValueError):  # a cache of Kernel Tuner's may be incomplete
        data = json.loads(text)
    if "block_sizes" in data:
        named = dict(zip(TILES, [*data.pop("block_sizes"), *data.pop("l2_groupings", ())], strict=False))
        return {0: [named | data]}
    rows = {m: data[m] for m in data if m != "triton_version"} if isinstance(data, dict) else {}
    is_table = rows and all(m.isdigit() and isinstance(config, dict) for m, config in rows.items())
    return {int(m): [config] for m, config in rows.items()} if is_table else None


def _listed(text: str, path: Path) -> list[dict[str, Any]]:
    """Configs of a module: calls of ``triton.Config`` with literal arguments. Nothing is executed."""
    try:
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        return [
            {word.arg or "": ast.literal_eval(word.value) for word in call.keywords}
            | (ast.literal_eval(call.args[0]) if call.args else {})
            for call in calls
            if ast.unparse(call.func).endswith("Config")
        ]
    except (SyntaxError, ValueError, TypeError) as error:
        raise InputError(f"configs of Triton's are literals in a module, {path} has others: {error}") from error


def records_of(
    path: Path, rows: Mapping[int, Sequence[Mapping[str, Any]]], kernel_file: Path, kernel: str,
    sets: Sequence[str], dtype: str, layout: str, device: str,
) -> list[Record]:  # fmt: skip
    """Configs as records that nobody has measured yet: studies of the kernel try them first.

    Args:
        path: The file; its name may tell the device, N, K and E.
        rows: What `read` gave.
        kernel_file: Declares the kernel.
        kernel: Its name; the last one of the file if empty.
        sets: ``name=size``, as the command line has it.
        dtype: The operation's first if empty.
        layout: Likewise.
        device: Name of the device; the file's if empty.

    Raises:
        InputError: The problem is not told whole, or a config has what the kernel has not.
    """
    catalogue = from_file(kernel_file)
    declared = catalogue.of(catalogue.kernels[-1].operation, only=(kernel,) if kernel else ())[-1]
    operation = catalogue.operation(declared.operation)
    told = dict(re.findall(r"(\w+)=([^,=]+?)(?=,\w+=|,|\.json$|$)", path.name))
    named = {dim: int(told[dim.upper()]) for dim in operation.dims if told.get(dim.upper(), "").isdigit()}
    where = device or told.get("device_name", "").replace("_", " ")
    if not where:
        raise InputError(f"a config is of a device, and {path.name} names none; name it with --device")
    shape, dim, made = named | cli.read_shape(operation, (), sets), _m_of(operation), []
    for m, configs in rows.items():
        problem = operation.problem({**shape, dim: m} if m else shape, dtype, layout)
        for config in configs:
            made.append(_unmeasured(path, declared, problem, DeviceInfo(where, "cuda"), config))
    return made


def _unmeasured(
    path: Path, kernel: Kernel, problem: Problem, device: DeviceInfo, config: Mapping[str, Any]
) -> Record:
    names = [parameter.name for parameter in kernel.parameters]
    whole, key = {**_default(kernel), **config}, ProblemKey.of(problem)
    if whole.keys() != set(names):
        raise InputError(
            f"a config sets the parameters of {kernel.name}, {', '.join(names)}, got {', '.join(whole)} from "
            f"{path.name}; declare the same"
        )
    whole = {name: whole[name] for name in names}
    return Record(
        key, device, "cold", Role.TRIAL, kernel.name, whole, kernel.source_hash,
        Measurement(Outcome.PRUNED, reason=f"from {path.name}, not measured"), asdict(problem.work),
        {"imported_from": path.name}, f"{IMPORTED} {key.operation}",
        origin=str(problem.operation.origin or ""),
        id=str(uuid.uuid5(uuid.NAMESPACE_URL, f"{path.name} {key} {device.name} {kernel.source_hash} {whole}")),
    )  # fmt: skip
