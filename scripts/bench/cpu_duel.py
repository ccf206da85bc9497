"""Times a CPU kernel's config against NumPy, in alternation, in a process of its own; cpu_results starts it.

    python scripts/bench/cpu_duel.py '{"cores": 1, "operation": "gemm", "shape": [512, 512, 512], ...}'

Prints JSON: candidate -> median time of each round in seconds, and the BLAS that was found. It uses a bare loop
of calls, as a NumPy program has, and not the timing of the product, so that calls count as well.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

#: Seconds for which one candidate is called repeatedly in a round; a single call may take longer.
BATCH_S = 0.004
#: Threads of OpenBLAS spin for tens of milliseconds after a call: they must not slow the next candidate.
REST_S = 0.1
MAX_ROUNDS, LEAST_ROUNDS = 31, 5
#: A call that takes longer than this is not repeated before the first round, and has the fewest rounds.
LONG_S, ROUNDS_OF_LONG = 0.4, 3
#: The loop that measures the peak: elements for each core, and multiply-adds done to each.
ELEMENTS, STEPS = 2048, 4000
#: N of the products by which core types of OpenBLAS are compared.
SQUARE = 1024
Run = Callable[[], Any]


def bound(kernel: Any, problem: Any, config: dict[str, Any], arrays: list[Any]) -> Run:
    """A config of a kernel, compiled and bound to arrays."""
    from tuner.declare.kernel import render
    from tuner.declare.space import Config
    from tuner.devices.cpu.numba import load_module

    entry, dims = load_module(render(kernel, problem, Config(config))), tuple(problem.dims.values())
    entry(*arrays, *dims)
    return lambda: entry(*arrays, *dims)


def limit(name: str, config: dict[str, Any], dims: dict[str, int], dtype: str) -> Run:
    """A kernel that measures a limit of the device."""
    from tuner.declare.catalogue import from_file, kernels_folder

    catalogue = from_file(kernels_folder() / "limits" / f"{name}.py")
    (kernel,) = [each for each in catalogue.of(name, "cpu") if each.operation == name]
    problem = catalogue.operation(name).problem(dims, dtype)
    return bound(kernel, problem, config, filled(problem))


def filled(problem: Any) -> list[Any]:
    """Random inputs and cleared outputs; all is touched, so that no call asks the system for memory."""
    import numpy as np

    random = np.random.default_rng(7)
    return [
        np.zeros(each.shape, each.dtype)
        if each.output
        else random.standard_normal(each.shape, np.float64 if each.dtype == "float64" else np.float32)
        for each in problem.tensors
    ]


def candidates(asked: dict[str, Any]) -> tuple[dict[str, Run], float]:
    """Whom to time; and how far ours is from NumPy's result, as a fraction."""
    import numpy as np

    from tuner.declare.catalogue import builtin

    catalogue = builtin()
    operation = catalogue.operation(asked["operation"])
    shape = dict(zip(operation.dims, asked["shape"], strict=True))
    problem = operation.problem(shape, asked["dtype"], asked["layout"])
    (kernel,) = [each for each in catalogue.of(operation.name, "cpu") if each.name == asked["kernel"]]
    arrays = filled(problem)
    runs = {"ours": bound(kernel, problem, asked["config"], arrays)}
    first, *others = arrays
    ours = arrays[-1].copy()
    if operation.name == "transpose":
        out, turned = others[0], first.T
        runs["NumPy"] = lambda: np.copyto(out, turned)
        if first.shape == out.shape:
            runs["copy"] = lambda: np.copyto(out, first)
            for stream in (False, True):
                config = {"STREAM": stream, "THREADS": asked["cores"]}
                runs[f"copy {stream}"] = limit("copy", config, {"n": first.size}, asked["dtype"])
    else:
        second, out = others
        left = first.T if asked["layout"][0] == "t" else first
        right = second.T if asked["layout"] in ("nt", "tt") else second
        runs["NumPy"] = lambda: np.matmul(left, right, out=out)
        if operation.name == "gemv":
            config, dims = {"THREADS": asked["cores"]}, dict(zip(("parts", "n"), first.shape, strict=True))
            runs["read"] = limit("read", config, dims, asked["dtype"])
    runs["NumPy"]()
    return runs, float(np.abs(ours - arrays[-1]).max() / np.abs(arrays[-1]).max())


def peaks(asked: dict[str, Any]) -> dict[str, Run]:
    """Loops of multiply-adds in registers alone, for both dtypes."""
    dims = {"n": ELEMENTS * asked["cores"], "steps": STEPS}
    lanes_of = {"float32": (128, 256), "float64": (64, 128)}
    return {
        f"{dtype} {lanes}": limit("multiply_add", {"LANES": lanes, "THREADS": asked["cores"]}, dims, dtype)
        # A single register is a dependent chain: its rate gives the clock.
        for dtype, several in lanes_of.items()
        for lanes in (*several, asked["lanes"][dtype])
    }


def products(asked: dict[str, Any]) -> dict[str, Run]:
    """NumPy alone, to see what its BLAS makes of a core type."""
    import numpy as np

    a = np.ones((SQUARE, SQUARE), np.float32)
    c = np.empty_like(a)
    return {"NumPy": lambda: np.matmul(a, a, out=c)}


def timed(runs: dict[str, Run], seconds: float) -> dict[str, list[float]]:
    """Time of a call in each round, for each candidate; each round begins one further."""
    names, counts, least = list(runs), {}, LEAST_ROUNDS
    for name, run in runs.items():
        for _ in range(2):
            start = time.perf_counter()
            run()
            took_s = time.perf_counter() - start
            if took_s > LONG_S:
                break
        counts[name] = max(1, int(BATCH_S / max(took_s, 1e-7)))
        least = min(least, ROUNDS_OF_LONG if took_s > LONG_S else LEAST_ROUNDS)
    taken: dict[str, list[float]] = {name: [] for name in names}
    end = time.monotonic() + seconds
    for number in range(MAX_ROUNDS):
        for offset in range(len(names)):
            name = names[(number + offset) % len(names)]
            run, count = runs[name], counts[name]
            time.sleep(REST_S)
            if count > 1:
                run()
            start = time.perf_counter()
            for _ in range(count):
                run()
            taken[name].append((time.perf_counter() - start) / count)
        if time.monotonic() > end and number + 1 >= least:
            break
    return taken


def main() -> None:
    """Reads what is asked from the command line."""
    asked = json.loads(sys.argv[1])
    # Before NumPy is loaded: its BLAS starts as many threads as there are cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-asked["cores"] :])
    from tuner.devices.cpu.device import blas_versions

    alone = {"peaks": peaks, "products": products}.get(asked["operation"])
    runs, difference = (alone(asked), 0.0) if alone else candidates(asked)
    taken = timed(runs, asked["seconds"])
    medians = {name: statistics.median(samples) for name, samples in taken.items()}
    print(
        json.dumps({"times_s": taken, "medians_s": medians, "difference": difference, "blas": blas_versions()})
    )


if __name__ == "__main__":
    main()
