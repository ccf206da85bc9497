"""`tuner.tune` and `tuner.cuda_kernel` on a real GPU, with arrays of NumPy, CuPy and PyTorch.

One command runs it on a machine with a GPU: ``./scripts/test tests/gpu/test_python_gpu.py``. Parts that need
PyTorch or a second GPU are skipped without, and say so.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fixtures.exported import imported
from fixtures.fake_device import ROOT

import tuner
from tuner.errors import InputError, NothingFound
from tuner.python import decorators
from tuner.python.tuned import Tuned

cp = pytest.importorskip("cupy")
#: Where programs of these tests find the package, and what this process finds beside it.
PATHS = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
SIZE = 100_000
SCALE = """
__global__ void scale(float *out, const float *x, float alpha, int n) {
    for (int item = 0; item < ITEMS; ++item) {
        int i = (blockIdx.x * ITEMS + item) * BLOCK + threadIdx.x;
        if (i < n) out[i] = alpha * x[i];
    }
}
"""
PARAMS = {"BLOCK": [64, 128, 256, 512], "ITEMS": [1, 2, 4]}
LAUNCH = {"grid": "ceil_div(n, BLOCK * ITEMS)", "block": "BLOCK"}


def scaled(x: Any, alpha: float) -> Any:
    return alpha * x


def tuned(arguments: list[Any], source: str = SCALE, params: Any = None, **options: Any) -> Tuned:
    told = {"reference": scaled, "seconds": 10, "trials": 6, "progress": False, **LAUNCH} | options
    return tuner.tune(source, "scale", arguments, params or PARAMS, **told)


def arrays(library: str, device: int = 0) -> tuple[Any, Any, Callable[[Any], Any]]:
    """An output and an input of a library, and what brings an array of it to the host."""
    host = np.random.default_rng(1).random(SIZE, dtype="float32")
    if library == "NumPy":
        return np.zeros_like(host), host, np.asarray
    if library == "PyTorch":
        torch = pytest.importorskip("torch", reason="PyTorch is not installed")
        x = torch.from_numpy(host).to(f"cuda:{device}")
        return torch.zeros_like(x), x, lambda array: array.cpu().numpy()
    with cp.cuda.Device(device):
        x = cp.asarray(host)
        return cp.zeros_like(x), x, cp.asnumpy


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    """The kernel, tuned on arrays of CuPy."""
    out, x, _ = arrays("CuPy")
    database = tmp_path_factory.mktemp("tuned") / "studies.db"
    return tuned([out, x, 2.5, SIZE], db=f"sqlite:///{database}")


def test_a_study_has_a_champion_that_is_right(found: Tuned) -> None:
    assert found.champion is not None
    assert found.record.device.kind == "cuda"
    assert found.record.measurement.error is not None
    assert {each.measurement.outcome.value for each in found.trials} <= {"MEASURED", "PRUNED"}
    assert "float64, on fresh random inputs" in found.explain()


@pytest.mark.parametrize("library", ["CuPy", "PyTorch", "NumPy"])
def test_the_champion_runs_on_arrays_of(library: str, found: Tuned) -> None:
    out, x, host = arrays(library)
    made = found(x)
    assert type(made) is type(x)
    np.testing.assert_array_equal(host(made), np.float32(2.5) * host(x))
    assert found(x, out=out) is out
    np.testing.assert_array_equal(host(out), np.float32(2.5) * host(x))
    np.testing.assert_array_equal(host(found(x, alpha=-1.0)), -host(x))


@pytest.mark.parametrize("library", ["CuPy", "PyTorch"])
def test_arrays_of_a_library_are_what_one_tunes_with(library: str, here: Path) -> None:
    out, x, host = arrays(library)
    result = tuned([out, x, 2.5, SIZE])
    assert result.asked.request.found[0].spec == "cuda:0"
    np.testing.assert_array_equal(host(result(x)), np.float32(2.5) * host(x))


def test_it_runs_behind_what_is_queued_on_the_callers_stream(found: Tuned) -> None:
    _, x, _ = arrays("CuPy")
    stream = cp.cuda.Stream(non_blocking=True)
    found(x)
    for turn in range(5):
        with stream:
            big = cp.random.default_rng(turn).standard_normal((3000, 3000))
            for _ in range(3):
                big = big @ big / 3000
            filled = cp.full(SIZE, float(turn), cp.float32)
            got = found(filled)
        stream.synchronize()
        assert float(got.min()) == float(got.max()) == 2.5 * turn


def test_it_runs_on_pytorchs_stream(found: Tuned) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    stream = torch.cuda.Stream()
    _, x, _ = arrays("PyTorch")
    found(x)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        filled = torch.full((SIZE,), 3.0, device="cuda")
        got = found(filled)
    stream.synchronize()
    assert bool((got == 7.5).all())
    with pytest.raises(InputError, match=r"x carries gradients, .* pass x.detach\(\)"):
        found(x.requires_grad_())


def test_threads_may_run_it_at_once(found: Tuned) -> None:
    def work(number: int) -> None:
        with cp.cuda.Stream(non_blocking=True) as stream:
            for turn in range(50):
                x = cp.full(SIZE, float(number + turn), cp.float32)
                got = found(x, alpha=float(number))
                stream.synchronize()
                assert float(got[0]) == float(got[-1]) == number * (number + turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(1, 5)))


def test_arrays_that_do_not_lie_as_they_must_are_refused_and_the_gpu_works_on(found: Tuned) -> None:
    _, x, _ = arrays("CuPy")
    longer = cp.zeros(2 * SIZE + 1, cp.float32)
    for given, message in (
        (longer[: 2 * SIZE : 2], "row by row without gaps"),
        (longer[1 : SIZE + 1], "begins at a multiple of 16 bytes"),
        (longer[:5], "got float32 of shape"),
        (longer[:SIZE].astype(cp.float64), "got float64"),
    ):
        with pytest.raises(InputError, match=message):
            found(given)
    assert float(found(x)[0]) == float(np.float32(2.5) * x[0])


def test_a_second_gpu_runs_what_lies_on_it(found: Tuned, here: Path) -> None:
    if cp.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("needs two GPUs")
    out, x, host = arrays("CuPy", 1)
    made = found(x)
    assert made.device.id == 1
    np.testing.assert_array_equal(host(made), np.float32(2.5) * host(x))
    with pytest.raises(InputError, match="all arrays of a call lie on one device"):
        found(x, out=cp.zeros(SIZE, cp.float32))
    result = tuned([out, x, 2.5, SIZE])
    assert result.asked.request.found[0].spec == "cuda:1"


@pytest.mark.parametrize(("source", "params", "message"), [
    (SCALE.replace("if (i < n) ", ""), {"BLOCK": [512], "ITEMS": [4]}, "wrote outside of out"),
    (SCALE.replace("out[i] =", "out[i + (1L << 40)] ="), PARAMS, "launch failed: .*illegal"),
])  # fmt: skip
def test_a_wrong_kernel_is_told_and_this_process_keeps_its_gpu(
    source: str, params: Any, message: str, here: Path
) -> None:
    out, x, _ = arrays("CuPy")
    result = tuned([out, x, 2.5, SIZE], source, params, trials=2)
    with pytest.raises(NothingFound, match=message):
        _ = result.config
    assert float(x.sum()) > 0


@pytest.mark.parametrize("library", ["CuPy", "PyTorch"])
def test_a_decorated_source_tunes_at_its_first_call_and_looks_up_in_the_next_program(
    library: str, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studies: list[object] = []
    plain = decorators.run_shown
    monkeypatch.setattr(decorators, "run_shown", lambda *told: studies.append(told) or plain(*told))
    out, x, host = arrays(library)

    def decorated() -> Any:
        return tuner.cuda_kernel(
            SCALE, "scale", PARAMS, reference=scaled, on_miss="measure", seconds=5, **LAUNCH
        )

    function = decorated()
    for alpha in (2.5, 4.0):
        function(out, x, alpha, SIZE)
        np.testing.assert_array_equal(host(out), np.float32(alpha) * host(x))
    assert len(studies) == 1
    again = decorated()
    again(out, x, 0.5, SIZE)
    np.testing.assert_array_equal(host(out), np.float32(0.5) * host(x))
    assert len(studies) == 1
    assert again.explain(out, x, 0.5, SIZE).match == "exact"


INTERRUPTED = """
import sys
sys.path.insert(0, {tests!r})
import cupy as cp, tuner
from gpu.test_python_gpu import LAUNCH, SCALE, scaled
x = cp.ones(1 << 20, "float32")
told = []
def report(now):
    if now.trials >= 3 and not told: told.append(print("go", flush=True))
params = {{"BLOCK": list(range(32, 1025, 32)), "ITEMS": [1, 2, 3, 4]}}
found = tuner.tune(
    SCALE, "scale", [cp.zeros_like(x), x, 2.5, x.size], params,
    reference=scaled, seconds=300, progress=report, **LAUNCH,
)
print(found.interrupted, found.champion, len(found.trials) >= 3, float(found(x)[0]))
"""


def test_ctrl_c_keeps_what_there_is_and_it_runs(here: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED.format(tests=str(ROOT / "tests"))],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": PATHS},
    )  # fmt: skip
    assert process.stdout.readline() == "go\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert out.splitlines()[-1:] == ["True None True 2.5"], err


@pytest.mark.parametrize("form", ["python", "source", "binary", "json"])
def test_the_champion_is_exported(form: str, found: Tuned, tmp_path: Path) -> None:
    (path, *_) = found.export(form, tmp_path)
    assert path.stat().st_size > 0
    if form == "python":
        _, x, _ = arrays("CuPy")
        assert "tuner" not in re.findall(r"^(?:import|from) (\w+)", path.read_text(), re.MULTILINE)
        cp.testing.assert_array_equal(imported(path).scale(x), cp.float32(2.5) * x)


def test_the_samples_of_the_pages_run_on_the_gpu(here: Path) -> None:
    for page in ("own-kernels.md", "kernel-tuner-users.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8").replace("seconds=20", "seconds=10, trials=3")
        blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        own = [each for each in blocks if "import tune_kernel" not in each]
        cuda = [each for each in own if "SOURCE" in each or each.startswith("# tile-tuner")]
        script = "\n".join(["import numpy as np\nimport tuner", *cuda, "print('done')"])
        (here / "page.py").write_text(script, encoding="utf-8")
        done = subprocess.run(
            [sys.executable, "page.py"], capture_output=True, text=True, check=False,
            env=os.environ | {"PYTHONPATH": PATHS},
        )  # fmt: skip
        assert done.stdout.endswith("done\n"), (page, done.stderr[-2000:])
