"""Measures a device's limits by small kernels: reading, copying, multiply-adds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tuner.declare.catalogue import from_file
from tuner.declare.folders import kernels_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.problem import DTYPE_BYTES, Problem
from tuner.declare.space import Config
from tuner.devices.detect import kind_of
from tuner.errors import TunerError
from tuner.report.ladder_attempts import first_configs, measured, pinned_space
from tuner.report.rungs import Limits, lessons
from tuner.store import Store
from tuner.study.session import Recorder, Session, TimingConditions
from tuner.workers.device_worker import Crew

#: Largest size in bytes of the array that is read or copied on a GPU.
GPU_BYTES = 1 << 30
#: On a CPU the size is this multiple of the last-level cache, within these bounds.
CACHES, CPU_LEAST_BYTES, CPU_MOST_BYTES = 4, 64 << 20, 256 << 20
#: The array and its checks take this multiple of its bytes.
ROOM = 16
#: Multiply-adds for each number, and numbers for each thread that a device can hold.
STEPS, NUMBERS = 16_384, 8
#: Number of numbers for each core of a CPU.
NUMBERS_OF_A_CORE = 1 << 14


def limit_problem(name: str, dims: Mapping[str, int], dtype: str) -> tuple[Problem, tuple[Kernel, ...], str]:
    """Returns a problem of a file in ``kernels/limits``, its kernels, and the file."""
    path = kernels_folder() / "limits" / f"{name}.py"
    found = from_file(path)
    operation = found.operation(name)
    return operation.problem(dims, dtype), found.kernels, str(path.resolve())


def measure_limits(crew: Crew, store: Store, dtype: str) -> Limits:
    """Measures a device's limits.

    Args:
        crew: The device's workers, open.
        store: A session needs one; nothing is stored in it.
        dtype: Element type; a limit that cannot be measured in it is 0.
    """
    info = crew.devices[0].info
    size = array_bytes(info, crew.devices[0].free_bytes)
    elements = size // DTYPE_BYTES[dtype]
    parts = 1 << 8 if kind_of(info.kind).is_host else 1 << 12
    numbers = NUMBERS * info.sm_count * info.max_threads_per_sm
    wanted = {
        "read": {"parts": parts, "n": elements // parts},
        "copy": {"n": elements},
        "multiply_add": {"n": numbers or NUMBERS_OF_A_CORE * max(info.cores, 1), "steps": STEPS},
    }
    rates: dict[str, float] = {}
    for name, dims in wanted.items():
        try:
            problem, kernels, _ = limit_problem(name, dims, dtype)
        except TunerError:  # this dtype has no such limit: integers are not multiplied and added
            continue
        time_s = _best_s(crew, store, problem, kernels)
        if time_s is not None:
            work = problem.work
            rates[name] = (work.flops * 1e-12 if name == "multiply_add" else work.bytes * 1e-9) / time_s
    return Limits(rates.get("read", 0.0), rates.get("copy", 0.0), rates.get("multiply_add", 0.0))


def array_bytes(info: DeviceInfo, free_bytes: int) -> int:
    """Bytes of the array that is read or copied: far beyond any cache, and a whole number of KiB."""
    wanted = GPU_BYTES
    if kind_of(info.kind).is_host:
        wanted = min(max(CACHES * info.l2_bytes, CPU_LEAST_BYTES), CPU_MOST_BYTES)
    return max(min(wanted, free_bytes // ROOM), 1 << 20) >> 15 << 15


def _best_s(crew: Crew, store: Store, problem: Problem, kernels: tuple[Kernel, ...]) -> float | None:
    """Returns the shortest median over the declared first configs; None if none can be measured."""
    worker = crew.devices[0]
    recorder = Recorder(store, problem, worker.info, "cold", worker.versions, f"limit {problem}")
    times = []
    with Session(crew, problem, recorder, TimingConditions()) as session:
        session.prepare()
        for kernel in kernels:
            if kernel.target == worker.info.kind:
                for config in _configs(kernel, problem, worker.info):
                    times.append(measured(session, kernel, config)[1].time_s)
    return min((each for each in times if each), default=None)


def _configs(kernel: Kernel, problem: Problem, info: DeviceInfo) -> list[Config]:
    """Returns the declared configs; on a CPU, each with one thread and with one thread for each core."""
    pins: list[dict[str, Any]] = [{}]
    if kernel.threads:
        threads = 1 << (max(info.cores, 1).bit_length() - 1)
        pins = [{kernel.threads: each} for each in dict.fromkeys((1, threads))]
    configs = [
        config
        for pin in pins
        for config in first_configs(kernel, pin, pinned_space(kernel, pin, problem, info))
    ]
    return list(dict.fromkeys(configs))


def further_library(problem: Problem, kind: str) -> tuple[str, dict[str, Any]] | None:
    """Returns the further library that ``configs/lessons.toml`` names: its name, and how to prepare it."""
    file = lessons().get(problem.operation.name, {}).get(kind, {}).get("further_library", "")
    if not file or problem.operation.origin:
        return None
    alike, _, origin = limit_problem(file, problem.dims, problem.dtype)
    baseline = alike.operation.baselines.get(kind)
    return (baseline.named(problem), {**alike.to_json(), "origin": origin}) if baseline else None
