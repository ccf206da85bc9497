"""Functions of one's own that run their champions, and a config on a caller's arrays."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy
import pytest
from fixtures.fake_device import BOARD
from fixtures.fake_gpu import H200, CupyArray, Log, Shared, TorchTensor, aligned, install, on_gpu
from fixtures.own_kernels import PARAMS, VECTOR_ADD, add_arguments, double, gather, plain_device
from numba import njit, prange

import tuner
from tuner.devices.detect import find
from tuner.errors import DeclarationError, InputError, NothingFound, UnknownName
from tuner.lookup.asking import default_database
from tuner.python import decorators
from tuner.python.own_kernel import KernelCode
from tuner.python.running import ConfigRunner
from tuner.python.tuning import resolved
from tuner.store import Store
from tuner.study.locks import occupied


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Configs that were run; a fake board runs nothing in this process."""
    found: list[dict[str, Any]] = []

    class Ran(ConfigRunner):
        def __init__(self, kernel: Any, problem: Any, config: Any, *where: Any) -> None:
            super().__init__(kernel, problem, config, *where)
            self._config = dict(config)

        def run_for(self, arrays: Any, numbers: Any) -> Any:
            return lambda *given: found.append(self._config | {"shapes": [each.shape for each in given]})

    monkeypatch.setattr("tuner.python.decorators.ConfigRunner", Ran)
    return found


def adder(here: Path, rules: Sequence[Any] = (), **options: Any) -> tuner.TunedFunction:
    device = plain_device(here / "device.json", rules=[*rules])
    return tuner.cuda_kernel(
        VECTOR_ADD, "vector_add", PARAMS, problem_size="n", reference=numpy.add, device=device, **options
    )


def test_a_call_at_a_new_shape_follows_the_policy_and_later_ones_run_the_champion(
    here: Path, ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = adder(here)
    with tuner.on_miss("library"):
        add(*add_arguments(500))
    assert ran.pop() == {"block_size_x": 32, "shapes": [(500,)] * 3}
    tuned = add.tune(*add_arguments(500), trials=20, progress=False)
    best = tuned.config["block_size_x"]
    assert best != 32
    add(*add_arguments(500))
    assert ran.pop()["block_size_x"] == best
    told = add.explain(*add_arguments(500))
    assert (told.use, told.match, told.config) == ("kernel", "exact", {"block_size_x": best})
    assert f"config        block_size_x={best}" in repr(told)
    studies, plain = list[object](), decorators.run_shown
    # In a process of its own, as it were, and at another shape.
    monkeypatch.setattr(decorators, "run_shown", lambda *given: studies.append(given) or plain(*given))
    again = adder(here, seconds=60)
    again(*add_arguments(500))
    assert (ran.pop()["block_size_x"], studies) == (best, [])
    with tuner.on_miss("measure"):
        again(*add_arguments(700))
    again(*add_arguments(700))
    assert len(studies) == 1
    assert ran.pop() == ran.pop()


def test_a_champion_of_other_bits_is_a_miss(here: Path, ran: list[dict[str, Any]]) -> None:
    fast = {"where": {"block_size_x": 256}, "latency_s": 1e-5, "error_rel": 3e-7}
    others = {"where": {}, "latency_s": 1e-3, "error_rel": 1e-7}
    add, arguments = adder(here, rules=[fast, others]), add_arguments(500)
    assert add.tune(*arguments, trials=20, progress=False).config["block_size_x"] == 256
    with Store.open(default_database()) as store:
        trials = [trial.measurement.bits for trial in store.records() if trial.config != {"block_size_x": 256}]
    other = next(filter(None, trials))
    with pytest.raises(NothingFound, match="no config of vector_add is known to have bits"):
        adder(here, rules=[fast, others], bits=other, on_miss="library")(*arguments)
    for bits, kept in (("keep", True), (other, False)):
        adder(here, rules=[fast, others], bits=bits, on_miss="measure", seconds=60)(*arguments)
        assert (ran.pop()["block_size_x"] == 256) is kept


def test_a_device_that_others_use_is_waited_for_and_then_the_first_config_runs(
    here: Path, ran: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    add = adder(here, on_miss="measure", seconds=60)
    held = find(f"fake:{here / 'device.json'}")
    with occupied(f"sqlite:///{here}/other.db", (held,), "another study"):
        monkeypatch.setattr(decorators, "WAITS", 0.005)
        with pytest.warns(UserWarning, match="another study.*; a config that is not tuned runs"):
            add(*add_arguments(500))
    assert ran.pop()["block_size_x"] == 32
    monkeypatch.setattr(decorators, "WAITS", 3.0)
    with ThreadPoolExecutor(1) as pool, occupied(f"sqlite:///{here}/other.db", (held,), "another study"):
        pool.submit(add, *add_arguments(600))
        time.sleep(0.3)
    assert ran.pop()["block_size_x"] != 32, "it was measured"


def test_boards_of_a_model_that_meet_at_a_problem_run_one_config(here: Path, ran: list[dict[str, Any]]) -> None:
    boards = [
        plain_device(here / f"{best}.json", info=BOARD | {"uuid": f"FAKE-{best}"},
                     rules=[{"where": {"block_size_x": best}, "latency_s": 1e-4}])
        for best in (64, 256)
    ]  # fmt: skip
    more: Any = {"problem_size": "n", "reference": numpy.add, "on_miss": "measure", "seconds": 20}
    adds = [tuner.cuda_kernel(VECTOR_ADD, "vector_add", PARAMS, device=board, **more) for board in boards]
    with ThreadPoolExecutor(2) as pool:
        assert len(list(pool.map(lambda add: add(*add_arguments(500)), adds))) == 2
    assert ran[0] == ran[1]
    assert ran[0]["block_size_x"] in (64, 256), "it was measured"


def turn(a: Any, out: Any, rows: int, cols: int, BLOCK: int = 4) -> None:
    for start in range(0, rows, BLOCK):
        for i in range(start, min(start + BLOCK, rows)):
            for j in range(cols):
                out[j, i] = a[i, j]


def test_sizes_that_are_equal_are_one_and_no_call_raises(here: Path) -> None:
    turned = tuner.kernel(BLOCK=[4, 8], on_miss="library")(turn)
    for shape in ((5, 5), (5, 7), (6, 6)):
        a, out = numpy.random.random(shape).astype("float32"), numpy.zeros(shape[::-1], "float32")
        turned(a, out, *shape)
        assert (out == a.T).all()
    assert turned.explain(out, out, 6, 6).problem == "turn 6 float32"
    told = tuner.kernel(BLOCK=[4], shapes={"a": "rows cols", "out": "cols rows"}, on_miss="library")(turn)
    assert told.explain(out, out, 6, 6).problem == "turn 6 x 6 float32"


PACKAGE = Path(tuner.__file__).parent


def walk(call: Any) -> list[str]:
    """Files of the package whose functions a call runs, one for each."""
    files: list[str] = []

    def note(frame: Any, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE) and frame.f_code.co_name != "<listcomp>":
            files.append(f"{path.parent.name}/{path.name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return files


def test_a_second_call_only_runs(here: Path, monkeypatch: pytest.MonkeyPatch, runner: ConfigRunner) -> None:
    tuned = tuner.kernel(BLOCK=[16, 64], on_miss="library", numbers="step")(fill)
    x, out = numpy.arange(100, dtype="float64"), numpy.zeros(100)
    tuned(x, out, 2.0, 1)
    # The call, its key, and what was prepared: two functions. Keys of arrays are read in C.
    walked = sorted(walk(lambda: tuned(x, out, 2.0, 1)))
    assert walked == ["python/decorators.py"] * 3 + ["python/running.py"]
    found = numpy.arange(60, dtype="float32"), numpy.zeros(60, "float32")
    runner(*found)
    walked = walk(lambda: runner(*found))
    assert set(walked) == {"python/arrays.py", "python/running.py"}
    assert len(walked) <= 12
    for name in ("KernelCode.problem", "answer", "views_of", "ConfigRunner.__init__"):
        monkeypatch.setattr(f"tuner.python.decorators.{name}", lambda *_: pytest.fail("asked again"))
    monkeypatch.setattr(tuned, "_lock", None)
    tuned(x, out, 3.0, step=2)
    assert (out == 3 * x + 2).all()
    assert repr(tuned) == "<tuned kernel fill(x, out, alpha, step); BLOCK: 2 values>"
    monkeypatch.undo()  # every second number of an array is another case, and no other result
    tuned(x[::2], out[:50], 2.0, 1)
    assert (out[:50] == 2 * x[::2] + 1).all()


def fill(x: Any, out: Any, alpha: float, step: int, BLOCK: int = 64) -> None:
    for start in range(0, x.size, BLOCK):
        for i in range(start, min(start + BLOCK, x.size)):
            out[i] = alpha * x[i] + step


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_cuda_text_runs_on_the_arrays_of_a_gpu(here: Path, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    log = install(monkeypatch)
    add = adder(here, on_miss="library")
    c, a, b, n = add_arguments(500)
    arrays = [kind(on_gpu(each)) for each in (c, a, b)]
    for _ in range(2):
        add(*arrays, n)
    assert (arrays[0].host == a + b).all()
    assert log.runs == ["vector_add 500 float32"] * 2
    # A part of an array is refused before anything is tuned, even where one like it has run before.
    gaps = kind(aligned((1000,), "float32")[::2])
    with pytest.raises(InputError, match="a lies in memory row by row without gaps"):
        add(arrays[0], gaps, arrays[2], n)
    with pytest.raises(InputError, match="a begins at a multiple of 16 bytes"):
        add(arrays[0], kind(on_gpu(a, 4)), arrays[2], n)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: tuner.kernel(tile=[1])(double), UnknownName, r"option \(parameters are in capitals\) 'tile'"),
        (lambda: tuner.kernel(BLOCK=[1], on_miss="g")(double), UnknownName, "unknown policy on_miss 'g'"),
        (lambda: tuner.kernel(BLOCK=[1])(double)(1, 2), InputError, "double takes 3 arguments"),
    ],
)
def test_what_is_wrong_is_told(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()


SCALE = """
__global__ void scale(float *out, const float *x, float alpha, int step, int n) {
    int i = blockIdx.x * block_size_x + threadIdx.x;
    if (i < n) out[i] = alpha * x[i];
}
"""


@pytest.fixture(scope="module")
def runner() -> ConfigRunner:
    x = numpy.arange(60, dtype="float32")
    catalogue, problem = resolved(double, "", [x, x.copy(), 60], {"BLOCK": [16]})
    return ConfigRunner(catalogue.of("double")[0], problem, {"BLOCK": 16}, find("cpu").info)


def on_board(spec: str = "") -> ConfigRunner:
    """A kernel for a GPU that is made of the host's memory, tuned with an alpha of 2 at step 1."""
    x = numpy.ones(60, "float32")
    options = {"problem_size": "n", "reference": lambda x, alpha: alpha * x, "numbers": ["step"]}
    arguments = [x, x.copy(), 2.0, 1, 60]
    catalogue, problem = resolved(SCALE, "scale", arguments, {"block_size_x": [32]}, **options)
    return ConfigRunner(catalogue.of("scale")[0], problem, {"block_size_x": 32}, H200, spec)


def ramp(beyond: int = 0) -> Any:
    return on_gpu(numpy.arange(60, dtype="float32"), beyond)


def test_outputs_are_made_or_taken(runner: ConfigRunner, gpu: Log) -> None:
    x = numpy.arange(60, dtype="float32")
    assert (runner(x) == 2 * x).all()
    out = numpy.zeros_like(x)
    assert runner(x, out=out) is out
    assert (runner(x, out) == 2 * x).all()
    x.flags.writeable = False
    assert (runner(x) == 2 * x).all()
    host = TorchTensor(ramp(), "cpu")
    made = runner(host)
    assert (type(made), made.device, (made.host == 2 * host.host).all()) == (TorchTensor, "cpu", True)


@pytest.mark.parametrize("kind", [CupyArray, TorchTensor])
def test_arrays_of_a_gpu_stay_there_and_numbers_may_differ_from_call_to_call(kind: Any, gpu: Log) -> None:
    run, x = on_board(), kind(ramp())
    made = run(x)
    assert type(made) is kind
    assert (made.host == 2 * x.host).all()
    out = kind(ramp())
    assert run(x, out=out) is out
    assert (out.host == 2 * x.host).all()
    run(x, alpha=3.5, step=9)
    assert gpu.runs == ["scale 60 float32"] * 3
    # On the stream of the library that the arrays are of.
    assert gpu.streams == ([77] * 3 if kind is TorchTensor else [])
    assert gpu.scalars == [(2.0, 1, 60)] * 2 + [(3.5, 9, 60)]
    assert [type(each).__name__ for each in gpu.scalars[2]] == ["float32", "int32", "int32"]


def test_they_run_where_they_lie_and_other_libraries_get_their_own_back(gpu: Log) -> None:
    run = on_board("cuda:1")
    assert run(CupyArray(ramp(), 1)).device_id == 1
    assert run(TorchTensor(ramp(), "cuda:1")).device == "cuda:1"
    assert CupyArray.current == 0
    shared = run(Shared(ramp()))
    assert type(shared) is Shared
    assert (shared.host == 2 * ramp()).all()
    # Arrays of NumPy are copied to the GPU and back.
    x, out = numpy.arange(60, dtype="float32"), numpy.zeros(60, "float32")
    assert run(x, out=out) is out
    assert (out == 2 * x).all()
    assert gpu.devices == [1, 0, 1]


ONES = numpy.ones(60, "float32")
FIXED = numpy.frombuffer(bytes(240), "float32")
X = CupyArray(ramp())


@pytest.mark.parametrize(
    ("arrays", "outputs", "message"),
    [
        ((ONES,), {"n": 3}, "got 1 arrays, and n by name"),
        ((numpy.ones(61, "float32"),), {}, r"x is float32 of shape \(60,\), got float32 of shape \(61,\)"),
        ((numpy.ones(120, "float32")[::2],), {}, "row by row without gaps"),
        (([1.0] * 60,), {}, "x is an array, got list"),
        ((ONES, FIXED), {}, "out is written .* read-only"),
        ((X,), {}, "one device, the CPU, .* got x of CuPy on cuda:0"),
    ],
)
def test_others_are_refused(runner: ConfigRunner, arrays: Any, outputs: Any, message: str, gpu: Log) -> None:
    with pytest.raises(InputError, match=message):
        runner(*arrays, **outputs)


@pytest.mark.parametrize(
    ("x", "out", "message"),
    [
        (TorchTensor(ramp(), requires_grad=True), {}, r"x carries gradients, .* pass x.detach\(\)"),
        (CupyArray(ramp(beyond=4)), {}, "x begins at a multiple of 16 bytes"),
        (
            X,
            {"out": CupyArray(ramp(), 1)},
            "lie on one device .* got out of CuPy on cuda:1, x of CuPy on cuda:0",
        ),
        (X, {"out": TorchTensor(ramp())}, "are of one library, got out of PyTorch .*, x of CuPy"),
        (X, {"out": ONES}, "got out of NumPy on cpu, x of CuPy on cuda:0; bring them"),
    ],
)
def test_other_arrays_of_a_gpu_are_refused(x: Any, out: Any, message: str, gpu: Log) -> None:
    with pytest.raises(InputError, match=message):
        on_board()(x, **out)
    assert gpu.runs == []


# --- what is found out of a text or function ----------------------------------------


def own(what: Any, arguments: Any, name: str = "", params: Any = None, **options: Any) -> Any:
    code = KernelCode(what, name, params or PARAMS, options)
    declaration = code.declaration(code.bound(arguments))
    declaration.text()  # where expressions are read
    return declaration


def of_double(arguments: Any = None, params: Any = None, **options: Any) -> Any:
    x = numpy.ones(100, "float32")
    return own(double, arguments or [x, x.copy(), 100], "", params or {"BLOCK": [32, 64]}, **options)


def of_add(arguments: Any = None, params: Any = None, name: str = "vector_add", **options: Any) -> Any:
    options = {"reference": numpy.add, "problem_size": 1000} | options
    return own(VECTOR_ADD, arguments or add_arguments(), name, params, **options)


def of_pair(**options: Any) -> Any:
    return own(two_outputs, [numpy.ones(3)] * 3, params={"CHUNK": [1]}, **options)


def test_a_function_becomes_a_source_of_its_own() -> None:
    found = of_double()
    assert (found.name, found.target, found.dtype) == ("double", "cpu", "float32")
    assert [(each.name, each.output) for each in found.tensors] == [("x", False), ("out", True)]
    assert "def double(x, out, n):" in found.source
    assert "@numba.njit(nogil=True, parallel=False, cache=True)" in found.source
    # Without a reference it is held against itself in float64, at its first config.
    assert (found.reference.name, found.defaults) == ("its_own_result", {"BLOCK": 64})


@njit(fastmath=True)
def in_parallel(n: int, out: Any, x: Any) -> None:
    for i in prange(n):
        for j in range(UNROLL):  # noqa: F821
            out[i] = x[i] + j


def test_threads_order_and_global_parameters() -> None:
    x = numpy.ones(64)
    found = own(in_parallel, [64, x, x], params={"UNROLL": [1, 2], "THREADS": [1, 2]}, reference=numpy.abs)
    for part in ("parallel=THREADS > 1", "fastmath=True", "in_parallel(out, x, n):", "_in_parallel(n, out, x)"):
        assert part in found.source
    assert (found.threads, found.library.title) == ("THREADS", "NumPy")


def test_cuda_launches_are_told_or_follow_kernel_tuners_names() -> None:
    assert of_add().launch == {"block": ("block_size_x",), "grid": ("ceil_div(n, (block_size_x))",)}
    grid = of_add(problem_size=("n", 3), grid_div_x=["block_size_x", 4], grid_div_y=[]).launch["grid"]
    assert grid == ("ceil_div(n, (block_size_x) * (4))", "ceil_div(3, 1)")
    told = of_add(params={"B": numpy.array([32, 64])}, grid="ceil_div(n, B)", block="B", shared_bytes=64)
    assert told.launch == {"grid": ("ceil_div(n, B)",), "block": ("B",), "shared_bytes": ("64",)}
    assert told.parameters == {"B": (32, 64)}


def test_given_numbers_are_kept_where_they_are_needed() -> None:
    places = numpy.arange(5)
    arguments = [numpy.ones(9, "float32"), places, numpy.ones(5, "float32")]
    params = {"CHUNK": [1]}
    assert list(own(gather, arguments, params=params).arrays) == ["places"]
    assert list(own(gather, arguments, params=params, inputs="resampled").arrays) == ["table", "places"]
    fixed = own(gather, arguments, params=params, answer=numpy.ones(5))
    assert (list(fixed.arrays), fixed.inputs) == (["answer:out", "table", "places"], "given")


def two_outputs(x: Any, low: Any, high: Any, CHUNK: int = 1) -> None:
    for i in range(x.size):
        low[i], high[i] = x[i] - CHUNK, x[i] + CHUNK


def rows(x: Any, sums: Any, CHUNK: int = 1) -> None:
    for i in range(len(x)):
        sums[i][0] = CHUNK * 0
        sums[i][1] += x[i]


def test_arrays_whose_elements_are_set_are_outputs() -> None:
    pair = of_pair(restrictions="CHUNK > 0", reference=two_sides)
    assert (pair.outputs, pair.rules) == (("low", "high"), ("CHUNK > 0",))
    nested = own(rows, [numpy.ones(3), numpy.ones((3, 2))], params={"CHUNK": [1]}, reference=lambda x: x)
    assert nested.outputs == ("sums",)


def two_sides(x: Any) -> Any:
    return x - 1, x + 1


def silent(x: Any, CHUNK: int = 1) -> None:
    x.sum(CHUNK)


THREE, FOUR = numpy.ones(3), add_arguments(4)
SILENT = {"what": silent, "arguments": [THREE], "params": {"CHUNK": [1]}}


@pytest.mark.parametrize(("call", "options", "message"), [
    (of_add, {"name": ""}, "CUDA text goes with the name of its function"),
    (of_add, {"arguments": [numpy.ones(4), *FOUR[1:]]}, "c is an array of float32 .* an array of float64"),
    (of_add, {"arguments": [*FOUR[:3], 2.5]}, "n is a number of int32 .* got a number of float64"),
    (of_add, {"reference": None}, "compared with what is right, and nothing tells that"),
    (of_add, {"problem_size": None}, "a launch has a grid .* and a block"),
    (of_add, {"params": {"B": [32]}, "grid": "n // B"}, "a launch has a grid .* and a block"),
    (of_double, {"outputs": "n"}, r"outputs= names arrays \(x, out\), got 'n'"),
    (of_double, {"params": {"BLOK": [1]}}, r"the parameter 'BLOK' \(in capitals there: BLOCK\)"),
    (of_double, {"reference": THREE}, "an array goes to answer="),
    (of_double, {"reference": lambda p, q, r, s: p}, r"takes the kernel's inputs \(x\)"),
    (of_double, {"arguments": ["a", 1, 2]}, "an argument is an array .* x is str"),
    (of_double, {"arguments": [numpy.ones(3, "int8"), THREE, 3]}, "x is int8; convert it"),
    (of_double, {"restrictions": [abs]}, "a restriction is an expression of Python, got '<built-in"),
    (of_pair, {"answer": THREE}, "answer= has an array for each of low, high; give them by name"),
    (own, SILENT, "a kernel writes an array, and nothing tells which of x; name it by outputs="),
])  # fmt: skip
def test_what_is_open_or_wrong_is_told(call: Any, options: Any, message: str) -> None:
    with pytest.raises((InputError, DeclarationError, UnknownName), match=message):
        call(**options)
