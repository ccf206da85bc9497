"""A fake device, described by a JSON file with latencies and faults, for tests and rehearsals.

The file holds ``info`` (fields of `DeviceInfo`) and ``rules``, a list whose first match applies. Each rule has
``where`` (config values that must match, possibly none) and ``latency_s`` or ``fault``, or both. A fault with
``after`` occurs only after that many good runs; one with ``only_at`` only if the first dim has that value.
``power_w`` of a rule is the power of its configs, ``first_s`` the real duration of their first run,
``error_rel`` the relative error of their outputs, ``traits`` what is known before they run (``occupancy``).
``baseline_error_rel`` is ``error_rel`` of the library. Beside or instead of rules, ``landscape_seed`` gives
every config a latency of its own, between ``base_s`` and ten times that. The file's ``power_w`` applies to
configs without one; if both are missing, the device reports no power. ``idle`` names parameters that do not
change the machine code. ``baseline_s`` is the library's time, or an object of its times by number of threads.
A rule's ``samples_s`` are told as they stand, in turns.
``noise`` is the relative standard deviation of samples and ``pace`` the fraction of each latency that a run
really waits.

Faults: ``compile_failed``, ``compile_hang``, ``compile_crash``, ``compile_memory``, ``launch_failed``,
``unwell``, ``wrong_result``, ``unwritten``, ``out_of_bounds``, ``writes_input`` (one element), ``stale``
(returns its first result again), ``spoils`` (overwrites the references), ``out_of_memory``, ``hang``,
``crash``, ``killed``, ``rubbish``, ``exit``.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy

from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Rendered
from tuner.declare.problem import Problem
from tuner.devices.protocol import GUARD_BYTES, Arrays, Binary, CompileFailed, Device, LaunchFailed, Run
from tuner.errors import DeviceTrouble
from tuner.results.measurement import CompileReport


def read_info(path: str) -> DeviceInfo:
    """Reads the device's identity from the file.

    Raises:
        DeviceTrouble: It cannot be read.
    """
    return DeviceInfo.from_json(_read(path)["info"])


def _read(path: str) -> dict[str, Any]:
    try:
        data: dict[str, Any] = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise DeviceTrouble(f"a fake device is a JSON file, cannot read {path!r}: {error}") from error
    if "info" not in data:
        raise DeviceTrouble(f"a fake device's file has the key info, {path!r} has {', '.join(data)}")
    return data


def _rule(data: Mapping[str, Any], rendered: Rendered) -> Mapping[str, Any]:
    """The first rule that the constants at the top of a rendered kernel match."""
    lines = re.findall(r"^(?:#define (\w+) (\S+)|(\w+) = (\S+))$", rendered.text, re.MULTILINE)
    constants = {(c or python): value or other for c, value, python, other in lines}
    for rule in data.get("rules", ()):
        if all(constants.get(name) == str(value) for name, value in rule.get("where", {}).items()):
            return dict(rule)
    if "landscape_seed" in data:
        text = f"{data['landscape_seed']}{sorted(constants.items())}{rendered.entry}"
        share = int(hashlib.sha256(text.encode()).hexdigest()[:8], 16) / 2**32
        return {"latency_s": data.get("base_s", 1e-3) * (1 + 9 * share)}
    return {"fault": "launch_failed"}


def _perform(fault: str) -> None:
    """Performs what a fault does to its process."""
    match fault.removeprefix("compile_"):
        case "failed":
            raise CompileFailed("kernel.cu(1): error: injected by the fake device")
        case "launch_failed":
            raise LaunchFailed("injected by the fake device")
        case "unwell":
            raise LaunchFailed("an illegal memory access was encountered (fake)", device_unwell=True)
        case "hang":
            time.sleep(3600)
        case "memory" | "out_of_memory":
            bytearray(1 << 62)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os._exit(7)
        case "rubbish":
            os.write(int(os.environ.get("TUNER_CHANNEL_FD", "2")), b"rubbish" * 100)
            os._exit(0)


class FakeCompiler:
    """`Compiler` of the fake device: the binary is the source."""

    def __init__(self, path: str) -> None:
        self._data = _read(path)

    def compile(self, rendered: Rendered, architecture: str, problem: Problem) -> Binary:
        """Fails, hangs or crashes if the table says so; see the protocol."""
        fault = _rule(self._data, rendered).get("fault", "")
        if fault.startswith("compile_"):
            _perform(fault)
        code = rendered.text
        for name in self._data.get("idle", ()):
            code = re.sub(rf"^#define {name} .*$", "", code, flags=re.MULTILINE)
        digest = hashlib.sha256(code.encode()).hexdigest()[:24]
        report = CompileReport(registers=32, binary_hash=digest, compiler="fake 1")
        return Binary(rendered.text.encode(), report)


class FakeRun:
    """One config on the fake device."""

    def __init__(self, rule: Mapping[str, Any], arrays: Arrays) -> None:
        self.latency_s = float(rule.get("latency_s", 1e-3))
        self.power_w: float | None = rule.get("power_w")
        self.traits = {name: float(value) for name, value in rule.get("traits", {}).items()}
        self.told_s = itertools.cycle([float(sample) for sample in rule.get("samples_s", ())])
        self._rule, self._arrays = rule, arrays
        is_here = rule.get("only_at") in (None, arrays.problem.shape[0][1])
        self._fault = rule.get("fault", "") if is_here else ""
        self._runs = 0
        self._first: dict[str, Any] = {}

    def __call__(self) -> None:
        """Writes the correct output, or performs the rule's fault."""
        if self._runs == 0:
            time.sleep(self._rule.get("first_s", 0.0))
        self._runs += 1
        fault = self._fault if self._runs > self._rule.get("after", 0) else ""
        _perform("" if fault.startswith("compile_") else fault)
        if fault != "unwritten":
            self._write(fault)

    def _write(self, fault: str) -> None:
        if fault == "writes_input":
            self._arrays.arrays[self._arrays.problem.inputs[0].name].reshape(-1)[-1] += 1
        for name, reference in self._arrays.references.items():
            target = self._arrays.arrays[name]
            right = reference * (1 + self._rule.get("error_rel", 0.0))
            first = self._first.setdefault(name, right)
            target[...] = {"stale": first, "wrong_result": reference + 1}.get(fault, right)
            if fault == "spoils":
                reference.reshape(-1)[0] += 1
            if fault == "out_of_bounds":
                whole = target.base
                while whole.base is not None:
                    whole = whole.base
                whole[-GUARD_BYTES] = 0


class FakeDevice(Device):
    """A device of a file."""

    xp = numpy

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.info = DeviceInfo.from_json(data["info"])
        self.versions = {"compiler": "fake 1", "driver": self.info.driver or "fake"}
        self._data = data
        self._random = random.Random(data.get("landscape_seed", 0))

    @classmethod
    def from_file(cls, path: str) -> FakeDevice:
        """Reads the file; see `read_info` for its errors."""
        return cls(_read(path))

    def free_bytes(self) -> int:
        """Free memory, from the file."""
        return int(self._data.get("free_bytes", self.info.memory_bytes or 1 << 34))

    def load(self, rendered: Rendered, code: bytes, arrays: Arrays) -> Run:
        """Looks the config up; see the protocol."""
        if code != rendered.text.encode():
            raise LaunchFailed("not a binary of the fake compiler")
        return FakeRun(_rule(self._data, rendered), arrays)

    def library(self, arrays: Arrays, threads: int = 0) -> Run | None:
        """Returns a library that takes ``baseline_s``, if the file has it and the operation has a baseline."""
        times = self._data.get("baseline_s")
        if times is None or self.info.kind not in arrays.problem.operation.baselines:
            return None
        rule: dict[str, Any] = {"error_rel": self._data.get("baseline_error_rel", 0.0)}
        if isinstance(times, Mapping):
            threads = threads or max(int(count) for count in times)
            rule |= {"latency_s": times.get(str(threads)), "traits": {"threads": threads}}
        else:
            rule["latency_s"] = None if threads else times
        return None if rule["latency_s"] is None else FakeRun(rule, arrays)

    def samples_s(self, run: Run, count: int, regime: str, before: Run | None = None) -> list[float]:
        """The table's latency with noise; see the protocol."""
        assert isinstance(run, FakeRun)
        for _ in range(count):
            if before is not None:
                before()
            run()
        time.sleep(count * run.latency_s * self._data.get("pace", 0.0))
        sigma = self._data.get("noise", 0.001)
        told = itertools.islice(run.told_s, count)
        return list(told) or [run.latency_s * max(self._random.gauss(1, sigma), 0.5) for _ in range(count)]

    def circumstances(self, run: Run) -> Mapping[str, float]:
        """Returns a steady clock, and the traits of a run from the table."""
        assert isinstance(run, FakeRun)
        return {"sm_clock_hz": 1e9, **run.traits}

    def power_w(self, run: Run) -> float | None:
        """Returns the power of the config, or else of the device, without waiting."""
        assert isinstance(run, FakeRun)
        run()
        power_w: float | None = self._data.get("power_w") if run.power_w is None else run.power_w
        return power_w

    def canary(self) -> None:
        """Fails if the file says that the device is dead."""
        if self._data.get("dead"):
            raise LaunchFailed("the device is unwell (fake)", device_unwell=True)
