"""The main program of a worker process: answers requests from its channel until the channel closes.

Run as ``python -m tuner.workers.main FD ROLE SPEC``.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import os
import queue
import resource
import signal
import socket
import statistics
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import psutil

from tuner.declare import catalogue
from tuner.declare.catalogue import Catalogue
from tuner.declare.problem import Problem
from tuner.devices.cpu import load as cpu_load
from tuner.devices.detect import compiler_for, kind_of, open_device
from tuner.devices.protocol import CompileFailed, Compiler, LaunchFailed
from tuner.errors import InputError, TunerError
from tuner.results.measurement import OUT_OF_MEMORY, Measurement, memory_reason, noise
from tuner.results.sentinel import Terms
from tuner.workers.bench import Bench, CompiledConfig, launch_from, rendered_from
from tuner.workers.process import MEMORY_VARIABLE, Channel, ChannelBroken
from tuner.workers.workload import Workload

#: Linux: prctl option that sets the signal a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

#: Thresholds of the garbage collector in a compile worker (Python's own are 700, 10 and 10).
GARBAGE_THRESHOLDS = (100_000, 20, 20)

#: Gives the answer and its code, or answers one after the other.
Handler = Callable[[dict[str, Any], bytes], tuple[dict[str, Any] | Iterator[dict[str, Any]], bytes]]


@functools.cache
def _catalogue(origin: str) -> Catalogue:
    """What a file declares, or the package; read once, for reading it takes longer than many configs."""
    return catalogue.from_file(Path(origin)) if origin else catalogue.builtin()


def problem_from(data: dict[str, Any]) -> Problem:
    """Returns the problem that a message names; `origin` is the file of a user's own operation, or empty."""
    return (
        _catalogue(data.get("origin", ""))
        .operation(data["operation"])
        .problem(data["shape"], data["dtype"], data["layout"], data["precision"], data.get("epilogue", ""))
    )


def _compiled_configs_from(message: dict[str, Any], blob: bytes) -> list[CompiledConfig]:
    """Makes several compiled configs from a message and their code, one after the other."""
    offset, found = 0, []
    for each in message["compiled_configs"]:
        found.append(CompiledConfig.from_json(each, blob[offset : offset + each["code_bytes"]]))
        offset += each["code_bytes"]
    return found


class CompileHandlers:
    """Requests of a compile worker."""

    def __init__(self, spec: str) -> None:
        self._compiler_for: Callable[[str], Compiler] = functools.cache(functools.partial(compiler_for, spec))
        self._problems: dict[str, Problem] = {}

    def compile(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Compiles a rendered kernel; ``failed`` is the compiler's message if it refuses.

        ``spent`` means that the worker is better replaced, because it may hold the compiler's memory.
        """
        start = time.perf_counter()
        key = repr(message["problem"])
        if key not in self._problems:
            self._problems[key] = problem_from(message["problem"])
        rendered = rendered_from(message["rendered"])
        try:
            binary = self._compiler_for(rendered.target).compile(
                rendered, message["architecture"], self._problems[key]
            )
        except (CompileFailed, MemoryError) as failure:
            reason = memory_reason(failure) if isinstance(failure, MemoryError) else str(failure)
            seconds = time.perf_counter() - start
            return {"failed": reason, "spent": OUT_OF_MEMORY in reason, "compile_s": seconds}, b""
        seconds = time.perf_counter() - start
        return {"compiled": asdict(binary.report), "compile_s": seconds}, binary.code

    def hello(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Says that the worker is ready."""
        return {"ready": True}, b""


def _timing(found: Measurement | None) -> dict[str, Any] | None:
    """A timing as a survey keeps it; None where there is no library."""
    if found is None:
        return None
    told = {"outcome": found.outcome.value, "reason": found.reason if found.outcome.failed else ""}
    if not found.samples_s:
        return {**told, "time_s": 0.0, "noise": 0.0}
    return {**told, "time_s": statistics.median(found.samples_s), "noise": noise(found.samples_s)}


class DeviceHandlers:
    """Requests of a device worker."""

    def __init__(self, spec: str) -> None:
        self._device = open_device(spec)
        self._bench: Bench | None = None
        self._surveyed: dict[str, CompiledConfig] = {}
        self._generator: Any = None

    def hello(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Returns identity, versions and free memory of the device."""
        device = self._device
        info = device.info.to_json()
        return {"info": info, "versions": dict(device.versions), "free_bytes": device.free_bytes()}, b""

    def canary(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Runs the canary; ``unwell`` is the reason why the device does not work, empty if it does."""
        try:
            self._device.canary()
        except LaunchFailed as failure:
            return {"unwell": str(failure)}, b""
        return {"unwell": ""}, b""

    def prepare(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Makes a problem's arrays and reference."""
        start = time.perf_counter()
        problem = problem_from(message["problem"])
        # The arrays of the problem before go first: both need not fit.
        self._bench = None
        workload = Workload(self._device, problem, message["seed"])
        workload.draw_anew()
        self._device.synchronize()
        self._bench = Bench(self._device, workload, message["regime"], message.get("energy", False))
        if message.get("error_limit") is not None:
            self._bench.limit_error(message["error_limit"])
        return {"prepare_s": time.perf_counter() - start}, b""

    def rest(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Drops the problem's arrays, and gives their memory back."""
        self._bench = None
        self._surveyed.clear()
        return {"free_bytes": self._device.free_bytes()}, b""

    def measure(self, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Measures a compiled config."""
        bench = self._ready()
        measurement = bench.measure(
            CompiledConfig.from_json(message, blob), message["incumbent_s"], message["first_limit_s"]
        )
        return {"measurement": measurement.to_json(), "unwell": bench.unwell}, b""

    def verify(self, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Checks one compiled config at other shapes; ``wrong`` names the first at which it fails."""
        compiled_config = CompiledConfig.from_json(message, blob)
        for case in message["cases"]:
            problem = problem_from(case["problem"])
            rendered = replace(compiled_config.rendered, launch=launch_from(case["launch"]))
            bench = Bench(self._device, Workload(self._device, problem, message["seed"]), "hot")
            wrong = bench.verify(replace(compiled_config, rendered=rendered))
            if wrong:
                return {"wrong": f"at {problem}: {wrong}", "unwell": bench.unwell}, b""
        return {"wrong": "", "unwell": False}, b""

    def baseline(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Measures the library; ``measurement`` is None if there is none."""
        bench = self._ready()
        measurement = bench.measure_baseline()
        return {"measurement": measurement and measurement.to_json(), "unwell": bench.unwell}, b""

    def finals(self, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Times finalists in alternation with the library, whose measurements come last."""
        bench = self._ready()
        compiled_configs = _compiled_configs_from(message, blob)
        found = bench.finals(compiled_configs, message["budget_s"], message["threads"])
        return {"measurements": [each.to_json() for each in found], "unwell": bench.unwell}, b""

    def sentinel(self, message: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        """Times champion, the one before and the library in turns."""
        bench = self._ready()
        named = list(zip(message["names"], _compiled_configs_from(message, blob), strict=True))
        found = bench.sentinel(named, Terms(**message["terms"]))
        return {"turns": asdict(found), "unwell": bench.unwell}, b""

    def survey(self, message: dict[str, Any], blob: bytes) -> tuple[Iterator[dict[str, Any]], bytes]:
        """Times configs at one problem, an answer each; code comes with a config's first problem only."""
        offset = 0
        for each in message["new"]:
            code = blob[offset : offset + each["code_bytes"]]
            self._surveyed[each["key"]] = CompiledConfig.from_json(each, code)
            offset += each["code_bytes"]
        return self._timings(message), b""

    def _timings(self, message: dict[str, Any]) -> Iterator[dict[str, Any]]:
        problem = problem_from(message["problem"])
        self._bench = None
        if self._generator is None:
            self._generator = self._device.random(message["seed"])
        workload = Workload(
            self._device, problem, message["seed"], checked=bool(message["items"]), generator=self._generator
        )
        bench = Bench(self._device, workload, message["regime"], best_s=message["best_s"])
        yield {"prepared": True, "last": False}
        if message["library"]:
            yield {"timing": _timing(bench.survey_library()), "unwell": bench.unwell, "last": False}
        for each in message["items"]:
            found = self._surveyed[each["key"]]
            rendered = replace(found.rendered, launch=launch_from(each["launch"]))
            timed = bench.survey(replace(found, rendered=rendered))
            yield {"timing": _timing(timed), "unwell": bench.unwell, "last": False}
        yield {"best_s": bench.best_s, "last": True}

    def transfers(self, message: dict[str, Any], _: bytes) -> tuple[dict[str, Any], bytes]:
        """Times the copies and allocations that a run on host memory adds to the kernel's time."""
        return {"transfers_s": self._device.transfers_s(self._ready().workload.problem)}, b""

    def _ready(self) -> Bench:
        if self._bench is None:
            raise RuntimeError("prepare comes first")
        return self._bench


def serve(channel: Channel, handlers: CompileHandlers | DeviceHandlers) -> None:
    """Answers requests until the channel closes."""
    for message, blob in _requests(channel):
        handler: Handler = getattr(handlers, message["do"])
        try:
            reply, code = handler(message, blob)
            while isinstance(reply, Iterator):
                each = next(reply)
                channel.send(each)
                if each["last"]:
                    break
            else:
                channel.send(reply, code)
        except Exception as error:
            channel.send(_trouble(error))


def _requests(channel: Channel) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Requests as they come; the next one is read while one is answered, so that its sender need not wait."""
    waiting: queue.Queue[tuple[dict[str, Any], bytes] | None] = queue.Queue(1)

    def read() -> None:
        with suppress(ChannelBroken):
            while True:
                waiting.put(channel.receive())
        waiting.put(None)

    threading.Thread(target=read, name="requests", daemon=True).start()
    while (request := waiting.get()) is not None:
        yield request


def _trouble(error: Exception) -> dict[str, Any]:
    """What is answered where a request fails."""
    if isinstance(error, TunerError | LaunchFailed):
        return {"trouble": str(error), "bad_input": isinstance(error, InputError)}
    if isinstance(error, MemoryError):
        return {"trouble": memory_reason(error)}
    return {"trouble": f"unexpected in a worker:\n{traceback.format_exc()}"}


def limit_memory(role: str, spec: str) -> None:
    """Limits memory, so that a large allocation fails, alone and reported, before the machine runs out.

    GPU workers are not limited, because the driver maps far more memory than it uses.
    """
    asked = os.environ.get(MEMORY_VARIABLE)
    if asked is None and not (role == "device" and kind_of(spec).is_host):
        return
    held = psutil.Process().memory_info()
    limit = held.data + (cpu_load.free_bytes() if asked is None else int(asked))
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _collect_less_garbage() -> None:
    """Freezes imported objects and collects garbage less often, which saves a tenth of Numba's time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)


def main(arguments: list[str]) -> None:
    """Opens the device or compiler, then serves."""
    # Only the parent's end ends this process; the study handles Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    role, spec = arguments[1], arguments[2]
    with open("/proc/self/oom_score_adj", "w") as file:  # noqa: PTH123 - not a path of ours
        file.write("900")
    try:
        handlers: CompileHandlers | DeviceHandlers
        if role == "compile":
            os.nice(5)
            handlers = CompileHandlers(spec)
            _collect_less_garbage()
        else:
            handlers = DeviceHandlers(spec)
        limit_memory(role, spec)
    except (TunerError, ImportError, OSError) as error:
        channel.receive()
        channel.send({"trouble": f"{error}"})
        return
    serve(channel, handlers)


if __name__ == "__main__":
    main(sys.argv[1:])
