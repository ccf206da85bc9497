"""The ladder: its order, its figures, its limits, its plans; climbed on a fake board."""

import json
from pathlib import Path

import pytest
from fixtures.commands import Told, told
from fixtures.fake_device import BOARD, TOY, write_device
from fixtures.fake_gpu import H200
from fixtures.records import record, square

from tuner.declare.catalogue import builtin
from tuner.declare.folders import configs_folder
from tuner.declare.hardware import DeviceInfo
from tuner.declare.problem import Problem
from tuner.declare.space import Config
from tuner.errors import PlanError, UnknownName
from tuner.report.ladder import declared_config
from tuner.report.ladder_plan import ladder_of, read_ladder_plan
from tuner.report.ladder_result import DeviceLimits, Ladder, Rung
from tuner.results.measurement import Error, Measurement, Outcome

CATALOGUE = builtin()
PLANS = sorted(configs_folder().glob("ladder-*.toml"))
__all__ = ["told"]


def problem(operation: str, *sizes: int, dtype: str = "", layout: str = "") -> Problem:
    declared = CATALOGUE.operation(operation)
    return declared.problem(dict(zip(declared.dims, sizes, strict=True)), dtype, layout)


# ---- what is climbed


@pytest.mark.parametrize(("operation", "target", "first"), [
    ("gemm", "cuda", "naive row_shared tiled register_tiled"), ("gemm", "cpu", "naive vectorised blocked"),
    ("gemv", "cuda", "row_per_thread coalesced constant shared shuffle streaming"),
    ("transpose", "cuda", "naive shared_tile padded_tile unrolled swizzled"),
])  # fmt: skip
def test_kernels_come_in_ladder_order(operation: str, target: str, first: str) -> None:
    of = problem(operation, *[9] * len(CATALOGUE.operation(operation).dims))
    names = [step.kernel for step in ladder_of(CATALOGUE, of, target, ()).steps]
    assert " ".join(names).startswith(first)


def test_beyond_ieee_steps_are_what_ladders_show_and_kernels_of_the_precision() -> None:
    gemm = CATALOGUE.operation("gemm")
    emulated = gemm.problem({"m": 512, "n": 512, "k": 512}, precision="emulated")
    names = [step.kernel for step in ladder_of(CATALOGUE, emulated, "cuda", ()).steps]
    assert names == ["one_product", "three_products", "promoted", "double_sums", "emulated"]
    chosen = ladder_of(CATALOGUE, emulated, "cuda", ("one_product", "warp_tiled")).steps
    assert [step.kernel for step in chosen] == ["one_product", "warp_tiled"]
    with pytest.raises(UnknownName, match="unknown cuda kernel of gemm 'one_product'"):
        ladder_of(CATALOGUE, problem("gemm", 512, 512, 512), "cuda", ("one_product",))


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_shipped_plans_are_legal_step_by_step(path: Path) -> None:
    plan = read_ladder_plan(path, CATALOGUE)
    cpu = DeviceInfo("c", "cpu", cores=2, vector_bytes=64, l2_bytes=1 << 25)
    assert plan.classic
    plan.shapes = plan.shapes[:1]
    for section in plan.sections:
        for step in section.steps:
            device = H200 if plan.target == "cuda" else cpu
            config = declared_config(plan.kernel(step.kernel), step.config, section.problem, device)
            assert config.items() >= step.config.items()
    # Compilers unroll published loops without a pragma.
    assert all(step.config.get("UNROLL", 4) >= 4 for step in plan.steps if step.published)


MISTAKES = [
    ("", "has a shape, and a step or a sweep"),
    ("speed = 3", "speed: extra inputs are not permitted; docs/ladder.md lists"),
    ("steps = [{kernel = 'naiv'}]", "unknown kernel 'naiv'; did you mean naive"),
    ("steps = [{kernel = 'naive', config = {BLOCK_X = 5}}]", "BLOCK_X = 5; choose among"),
    ("steps = [{kernel = 'naive', published = [{ms = 3}]}]", "gemm takes M N K: 3 dims, got 0"),
    ("steps = [{kernel = 'naive', published = [{shape = [1, 2, 3], mss = 3}]}]", "'mss'; did you mean ms"),
    ("[[sweeps]]\nkernel = 'tiled'\nparameter = 'BLOCK'\nvalues = [8]\nshapes = [[1, 1, 1]]\n"
     "published_ms = [[1, 2]]", "a figure for each value"),
    ("steps = [", "cannot be read as a ladder plan"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[message[:20] for _, message in MISTAKES])
def test_a_mistake_in_a_plan_is_told(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text(f"operation = 'gemm'\ntarget = 'cuda'\nshapes = [[1, 2, 3]]\n{text}")
    with pytest.raises(PlanError, match=message):
        read_ladder_plan(path, CATALOGUE)


def test_a_config_that_is_not_legal_gives_way_to_the_nearest() -> None:
    (kernel,) = CATALOGUE.of("gemm", "cuda", ("register_tiled",))
    odd = problem("gemm", 1001, 1001, 1001)
    config = declared_config(kernel, {"BM": 64}, odd, H200)
    wanted = {**kernel.default_config(), "BM": 64}
    changed = {name for name in wanted if wanted[name] != config[name]}
    assert "VECTOR" in changed  # 1001 is odd
    assert len(changed) <= 2


# ---- figures


def measured(*samples_s: float) -> Measurement:
    return Measurement(Outcome.MEASURED, samples_s=samples_s, error=Error(1e-6, 2e-7, 0.1, 1e-7))


def climbed(*times_s: float) -> Ladder:
    """A ladder of transpose on these times, with a library of 2 ms."""
    asked = problem("transpose", 1000, 1000)
    plan = ladder_of(CATALOGUE, asked, "cuda", ())
    ladder = Ladder(plan, H200, {}, "cold", DeviceLimits(1000.0, 800.0, 0.0))
    (section,) = plan.sections
    for step, time_s in zip(plan.steps, times_s, strict=False):
        found = measured(time_s, time_s, time_s) if time_s else Measurement(Outcome.TIMED_OUT, "too slow")
        kernel = plan.kernel(step.kernel)
        ladder.rungs.append(Rung(section, step, kernel, kernel.default_config() or Config(), found))
    ladder.libraries[asked] = record(square(1000), kernel="cuBLAS", measurement=measured(2e-3, 2e-3, 2e-3))
    return ladder


def test_rows_compare_with_the_step_before_the_first_the_library_and_the_limit() -> None:
    first, second, third = climbed(8e-3, 0.0, 2e-3).rows()
    assert (first["step_speedup"], first["total_speedup"], first["of_library"]) == (1.0, 1.0, 0.25)
    assert first["gbps"] == pytest.approx(1.0)
    assert first["of_limit"] == pytest.approx(1 / 800)
    assert (second["outcome"], second["time_s"], second["step_speedup"]) == ("TIMED_OUT", None, None)
    assert (third["step_speedup"], third["total_speedup"], third["of_library"]) == (4.0, 4.0, 1.0)
    assert third["error"] == {"max_rel": 1e-6, "mean_rel": 1e-7, "rms_rel": 2e-7}

    ladder = climbed(4e-3, 5e-3, 4.99e-3)
    (text,) = ladder.slower_texts(ladder.sections[0])
    assert text.startswith("shared_tile is slower than the step before: ")


def test_the_roof_is_the_slower_of_moving_and_computing() -> None:
    limits = DeviceLimits(read_gbps=2000.0, copy_gbps=1000.0, tflops=10.0)
    square, thin = problem("gemm", 4096, 4096, 4096), problem("gemv", 4096, 4096)
    copy = problem("transpose", 64, 64)
    assert limits.least_s(square) == pytest.approx(2 * 4096**3 / 10e12)
    assert limits.least_s(thin) == pytest.approx(thin.work.bytes / 2000e9)
    assert limits.least_s(copy) == pytest.approx(copy.work.bytes / 1000e9)
    assert DeviceLimits().least_s(square) == 0.0


# ---- on a fake board


@pytest.fixture
def board(here: Path) -> str:
    names = ("max_threads_per_sm", "warp_size", "shared_bytes_per_block", "shared_bytes_per_sm")
    info = {name: getattr(H200, name) for name in (*names, "registers_per_thread", "compute_capability")}
    info |= {"memory_bytes": 1 << 34, "sm_count": 2, "registers_per_block": BOARD["registers_per_block"]}
    return write_device(here / "board.json", info=info, free_bytes=1 << 28, baseline_s=1e-3)


CONTRACT = {
    "kernel", "config", "time_s", "tflops", "gbps", "step_speedup", "total_speedup", "of_library", "of_limit",
    "noise", "error",
}  # fmt: skip


def test_climbing_keeps_the_contract_and_writes_a_page(told: Told, board: str, here: Path) -> None:
    arguments = ("ladder", "transpose", "64", "96", "--device", board, "--classic", "--json", "-o", "page")
    code, out, err = told(*arguments)
    assert code == 0, err
    rows = json.loads(out)
    assert [row["kernel"] for row in rows] == ["naive", "shared_tile", "padded_tile", "unrolled", "swizzled"]
    assert all(row.keys() >= CONTRACT for row in rows)
    assert [row["config"] for row in rows][3] == {"TILE": 32, "ROWS": 8}
    for row in rows:
        assert row["gbps"] == pytest.approx(64 * 96 * 8 / row["time_s"] / 1e9)
        assert row["of_library"] == pytest.approx(1e-3 / row["time_s"], rel=0.05)
        assert row["of_limit"] > 0
        assert (row["published"] is None) == (row["kernel"] == "swizzled")
    assert "step 5 of 5, swizzled" in err
    page = (here / "page" / "index.html").read_text()
    for text in ("Plotly.newPlot", "<td>naive\n", 'id="ladder-64-96"'):
        assert text in page
    assert "<script src=" not in page


def test_steps_are_tuned_and_no_champion_is_crowned(told: Told, board: str, here: Path) -> None:
    arguments = ("64", "--device", board, "--quiet")
    code, out, err = told("ladder", str(TOY), *arguments, "--seconds", "4", "--json")
    assert code == 0, err
    (row,) = json.loads(out)
    assert row["trials"] > 1
    assert err == ""
    code, out, _ = told("best", str(TOY), *arguments[:-1], "--json")
    assert (code, json.loads(out)["provisional"]) == (0, True)


def test_a_plan_is_climbed_and_shown(told: Told, board: str, here: Path) -> None:
    text = (configs_folder() / "ladder-gemv.toml").read_text().replace("16384, 16384", "64, 64")
    sweep = "kernel = 'shuffle'\nparameter = 'BLOCK'\nvalues = [64, 128]\nshapes = [[32, 32]]\n"
    (here / "gemv.toml").write_text(f"{text}\n[[sweeps]]\n{sweep}")
    code, out, err = told("ladder", "gemv.toml", "--device", board, "--quiet", "--end-to-end")
    assert code == 0, err
    for text in ("over BLOCK", "gemv 64 x 64 float32 n", "gemv 64 x 64 float32 t", "cuBLAS", "Limits measured"):
        assert text in out
    for arguments, message in (
        (("64", "--device", board), "says itself what to measure"),
        (("--device", "cpu"), "is for cuda, got --device cpu"),
    ):
        code, _, err = told("ladder", "gemv.toml", *arguments)
        assert (code, message in err) == (2, True)
