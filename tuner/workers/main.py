"""The main program of a worker process: answers requests from its channel until the channel closes.

Run as ``python -m tuner.workers.main FD ROLE SPEC``.
"""

import ctypes
import functools
import gc
import os
import queue
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import psutil

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.devices.detect import kind_of
from tuner.devices.machine_load import memory_bytes
from tuner.devices.protocol import CompileFailed, LaunchFailed, language_of
from tuner.errors import InputError, TunerError
from tuner.results import codec
from tuner.results.measurement import OUT_OF_MEMORY, Measurement, memory_reason
from tuner.workers.bench import Bench, CompiledConfig, fresh_seed, problem_from
from tuner.workers.process import MEMORY_VARIABLE, Channel, ChannelBroken, called
from tuner.workers.workload import Workload

#: Linux: prctl option that sets the signal a process gets when its parent ends.
PR_SET_PDEATHSIG = 1

#: Thresholds of the garbage collector in a compile worker (Python's own are 700, 10 and 10).
GARBAGE_THRESHOLDS = (100_000, 20, 20)

Answer = dict[str, Any]


class CompileHandlers:
    """Requests of a compile worker."""

    def __init__(self, spec: str) -> None:
        self._compiler_for = functools.cache(lambda target: kind_of(spec).compiler(language_of(target), spec))
        with suppress(TunerError):  # the compiler of most kernels opens before the first is there
            self._compiler_for(kind_of(spec).name)

    def compile(self, message: dict[str, Any]) -> Answer:
        """Compiles a rendered kernel; ``failed`` is the compiler's message if it refuses.

        ``spent`` means that the worker is better replaced, because it may hold the compiler's memory.
        """
        start = time.perf_counter()
        rendered = codec.from_json(Rendered, message["rendered"])
        try:
            compiler, problem = self._compiler_for(rendered.target), problem_from(message["problem"])
            binary = compiler.compile(rendered, message["architecture"], problem)
            answer: dict[str, Any] = {"binary": codec.to_json(binary)}
        except (CompileFailed, MemoryError) as failure:
            reason = memory_reason(failure) if isinstance(failure, MemoryError) else str(failure)
            answer = {"failed": reason, "spent": OUT_OF_MEMORY in reason}
        return {**answer, "compile_s": time.perf_counter() - start}

    def hello(self, message: dict[str, Any]) -> Answer:
        """Says that the worker is ready."""
        return {"ready": True}


class DeviceHandlers:
    """Requests of a device worker."""

    def __init__(self, spec: str) -> None:
        self._device = kind_of(spec).open(spec)
        self._bench: Bench | None = None
        self._surveyed: dict[str, CompiledConfig] = {}
        self._generator: Any = None

    def hello(self, message: dict[str, Any]) -> Answer:
        """Returns identity, versions and free memory of the device."""
        device = self._device
        info = device.info.to_json()
        return {"info": info, "versions": dict(device.versions), "free_bytes": device.free_bytes()}

    def canary(self, message: dict[str, Any]) -> Answer:
        """Runs the canary; ``unwell`` is the reason why the device does not work, empty if it does."""
        try:
            self._device.canary()
        except LaunchFailed as failure:
            return {"unwell": str(failure)}
        return {"unwell": ""}

    def prepare(self, message: dict[str, Any]) -> Answer:
        """Makes a problem's arrays.

        ``references`` is the number of draws of the inputs that get a reference now: for a survey one, or none
        if the library alone is to be timed. ``how`` has further arguments of `Bench`.
        """
        problem, seed = problem_from(message["problem"]), fresh_seed()
        # The arrays of the problem before go first: both need not fit.
        self._bench = None
        self._generator = self._generator or self._device.random(seed)
        workload = Workload(self._device, problem, seed, message["references"] > 0, self._generator)
        if message["references"] > 1:
            workload.draw_anew()
            self._device.synchronize()
        self._bench = Bench(self._device, workload, message["regime"], **message.get("how", {}))
        if message.get("error_limit") is not None:
            self._bench.limit_error(message["error_limit"])
        return {"unwell": self._bench.unwell}

    def rest(self, message: dict[str, Any]) -> Answer:
        """Drops the problem's arrays, and gives their memory back."""
        self._bench = None
        self._surveyed.clear()
        return {"free_bytes": self._device.free_bytes()}

    def call(self, message: dict[str, Any]) -> Answer:
        """Calls a method of the bench; see `tuner.workers.process.call_of`."""
        return {"result": called(self._ready(), message), "unwell": self._ready().unwell}

    def survey(self, message: dict[str, Any]) -> Answer:
        """Times a config for a survey, or the library, which has no source.

        With a problem's first config comes the problem, with a source's first one the source and its code.
        """
        if "problem" in message:
            self.prepare(message)
        if "config" in message:
            self._surveyed[message["key"]] = codec.from_json(CompiledConfig, message["config"])
        known = self._surveyed[message["key"]]
        launch = message["launch"] and codec.from_json(Launch, message["launch"])
        config = replace(known, rendered=replace(known.rendered, launch=launch))
        measured = self._ready().survey(config if known.rendered.text else None)
        # A survey keeps no more of it.
        brief = Measurement(measured.outcome, measured.reason, measured.samples_s)
        return {"result": codec.to_json(brief), "unwell": self._ready().unwell}

    def transfers(self, message: dict[str, Any]) -> Answer:
        """Times the copies and allocations that a run on host memory adds to the kernel's time."""
        return {"transfers_s": self._device.transfers_s(self._ready().workload.problem)}

    def _ready(self) -> Bench:
        if self._bench is None:
            raise RuntimeError("prepare comes first")
        return self._bench


def serve(channel: Channel, handlers: CompileHandlers | DeviceHandlers) -> None:
    """Answers requests until the channel closes."""
    for message in _requests(channel):
        handler: Callable[[dict[str, Any]], Answer] = getattr(handlers, message["do"])
        begun_s = time.perf_counter()
        try:
            answer = handler(message)
            channel.send({**answer, "clock_s": time.perf_counter() - begun_s})
        except Exception as error:
            channel.send(_trouble(error))


def _requests(channel: Channel) -> Iterator[dict[str, Any]]:
    """Requests as they come; others are read while one is answered, so that their sender need not wait."""
    waiting: queue.Queue[dict[str, Any] | None] = queue.Queue()

    def read() -> None:
        with suppress(ChannelBroken):
            while True:
                waiting.put(channel.receive())
        waiting.put(None)

    threading.Thread(target=read, name="requests", daemon=True).start()
    yield from iter(waiting.get, None)


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
    share = os.environ.get(MEMORY_VARIABLE)
    if share is None and not (role == "device" and kind_of(spec).is_host):
        return
    held = psutil.Process().memory_info()
    limit = held.data + (memory_bytes()[1] if share is None else int(share))
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
