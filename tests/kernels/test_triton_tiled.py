"""triton_tiled as Triton's interpreter runs it, and what it is where Triton is not installed."""

from pathlib import Path

import pytest
from fixtures.devices.interpreted.kind import InterpretedDevice
from gpu_models import H200
from products import LAYOUTS, gemm, kernel_of
from sampling import space

from tuner.declare.catalogue import builtin
from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.detect import language_of
from tuner.lookup.legality import default_among
from tuner.triton import language
from tuner.workers.workload import Workload

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
#: Fewer rows of tiles than a group has, and a group that is not whole.
CONFIGS = [
    Config({"BM": 64, "BN": 16, "BK": 16, "GROUP": 8, "num_warps": 1, "num_stages": 2}),
    Config({"BM": 16, "BN": 32, "BK": 64, "GROUP": 8, "num_warps": 2, "num_stages": 3}),
]


@pytest.fixture
def interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path))
    monkeypatch.setenv("TRITON_INTERPRET", "1")


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])  # the interpreter multiplies the bits of bfloat16
def test_its_results_are_right_beyond_every_edge(layout: str, dtype: str) -> None:
    problem, device, kernel = gemm(147, 61, 29, layout, dtype), InterpretedDevice(), kernel_of("triton_tiled")
    workload = Workload(device, problem, seed=1)
    for config in CONFIGS:
        rendered = render(kernel, problem, config)
        code = language_of("triton").compiler().compile(rendered, "sm_90", problem).code
        workload.poison()
        device.load(rendered, code, workload)()
        assert workload.check()[1] == ""


def choices() -> list[tuple[bool, object]]:
    """Whether there are configs of it; and what is used without a record, in float32 and bfloat16."""
    found: list[tuple[bool, object]] = []
    for problem in (gemm(4096, 4096, 4096, dtype=dtype) for dtype in ("float32", "bfloat16")):
        kernels = builtin().of("gemm", "cuda")  # declared anew: whether Triton is there is asked again
        (tiled,) = (each for each in kernels if each.name == "triton_tiled")
        default = default_among(kernels, problem, H200)
        found.append((len(space(tiled, problem)) > 0, (default[0].name, default[1])))
    return found


@pytest.mark.skipif(not language.version(), reason="it is there where Triton is installed")
def test_without_triton_no_config_is_legal_and_nothing_else_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    there, defaults = zip(*choices(), strict=True)
    assert all(there)
    monkeypatch.setattr(language, "version", lambda: "")
    assert choices() == [(False, default) for default in defaults]
