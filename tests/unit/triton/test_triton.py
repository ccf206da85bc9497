"""Kernels of Triton: compiled without a GPU, and tuned, answered and kept as its interpreter runs them."""

import json
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fixtures.commands import caller

import tuner
from tuner.declare.kernel import render
from tuner.declare.space import Config
from tuner.devices.detect import language_of
from tuner.devices.protocol import CompileFailed
from tuner.errors import InputError, UnknownName

FILE = Path(__file__).parents[2] / "fixtures" / "triton_kernels.py"
DECLARED = FILE.with_name("triton_twice.py")
PLAN = f"""
[defaults]
device = "interpreted"
[watch]
seconds = 0.1
[[problems]]
file = "{DECLARED}"
M = 1000
trials = 2
"""
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
torch: Any
triton: Any


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling needs Triton, the interpreter PyTorch's tensors."""
    global torch, triton
    torch, triton = pytest.importorskip("torch"), pytest.importorskip("triton")
    monkeypatch.setenv("TUNER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # or Triton warns that its default will change


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return SimpleNamespace(**runpy.run_path(str(FILE)))


def arrays(n: int = 1000) -> list[Any]:
    return [torch.arange(n, dtype=torch.float32), torch.zeros(n), n]


def autotuned(function: Any, configs: list[Any], **options: Any) -> Any:
    return tuner.autotune(configs, ["n"], device="interpreted", seconds=30, **options)(function)


def blocks(meta: dict[str, Any]) -> tuple[int, ...]:
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)


def declared(num_ctas: int = 1, **options: Any) -> tuple[Any, Any]:
    """The kernel `double` and its problem, as written down for workers."""
    from tuner.triton.jit import JitCode

    function = runpy.run_path(str(FILE))["double"]
    params = {"BLOCK": [64, 128], "num_warps": [2, 4], "num_ctas": [num_ctas]}
    code = JitCode(function, "", params, {"grid": "ceil_div(n, BLOCK)"})
    catalogue, problem = code.problem(code.named(*arrays(**options)))
    return catalogue.kernels[0], problem


def compiled(num_ctas: int = 1, **options: Any) -> Any:
    kernel, problem = declared(num_ctas, **options)
    rendered = render(kernel, problem, Config({"BLOCK": 64, "num_warps": 2, "num_ctas": num_ctas}))
    return rendered, language_of("triton").compiler().compile(rendered, "sm_90a", problem)


def launched_as(rendered: Any, binary: Any) -> Any:
    [step] = language_of("triton").loadable(rendered, binary.code)[0].launch.steps
    return step


def test_a_kernel_becomes_a_cubin_with_its_launch_on_a_machine_without_a_gpu() -> None:
    rendered, binary = compiled(n=1000)
    assert language_of("triton").loadable(rendered, binary.code)[1].startswith(b"\x7fELF")
    assert (binary.report.registers > 0, binary.report.spill_bytes) == (True, 0)
    step = launched_as(rendered, binary)
    assert (step.grid, step.block, step.arguments) == ((16,), (64,), ("x", "out", "n", "", ""))
    # A number that is 1 is no argument, and one that is a multiple of 16 is compiled for.
    assert launched_as(*compiled(n=1)).arguments[2] == ""
    assert compiled(n=1024)[1].report.binary_hash != binary.report.binary_hash
    assert launched_as(*compiled(2)).grid == (32,)  # a cluster for each program


def test_what_does_not_compile_is_told_in_tritons_words() -> None:
    kernel, problem = declared()
    rendered = render(kernel, problem, Config({"BLOCK": 63, "num_warps": 2, "num_ctas": 1}))
    with pytest.raises(CompileFailed, match="power of 2"):
        language_of("triton").compiler().compile(rendered, "sm_90a", problem)


def test_a_source_hash_covers_what_a_kernel_calls_but_no_comments() -> None:
    text = declared()[0].text
    hashes = {language_of("triton").measured_text(text.replace(*change)) for change in
              (("", ""), ("values * by", "values * by  # twice"), ("values * by", "by * values"))}  # fmt: skip
    assert len(hashes) == 2
    assert all(f"Triton {triton.__version__}" in measured for measured in hashes)


def test_tune_finds_a_config_that_is_right_and_exports_it(kernels: SimpleNamespace, tmp_path: Path) -> None:
    result = tuner.tune(
        kernels.double, arrays(), {"BLOCK": [256, 512], "WRONG": [0, 1]}, grid=blocks, device="interpreted",
        reference=lambda x: 2 * x, seconds=60, trials=4, progress=False,
    )  # fmt: skip
    assert result.config["WRONG"] == 0
    outcomes = {trial.measurement.outcome.name for trial in result.trials if trial.config["WRONG"]}
    assert outcomes == {"WRONG_RESULT"}
    x, out, n = arrays()
    runpy.run_path(str(result.export("source", tmp_path)[0]))["run"](x, out, n)  # needs Triton alone
    assert torch.equal(out, 2 * x)


def test_strides_of_one_stay_so_at_other_shapes(kernels: SimpleNamespace) -> None:
    x, out = torch.randn(5, 24), torch.zeros(5, 24)
    result = tuner.tune(
        kernels.copied, [x, out, *x.shape, *x.stride()], {"BLOCK": [1024]}, grid="m", device="interpreted",
        reference=lambda x: x, seconds=60, trials=1, progress=False,
    )  # fmt: skip
    assert result.champion is not None


def test_autotune_measures_once_and_another_process_has_its_answer(
    kernels: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = [
        triton.Config({"BLOCK": 64}),
        triton.Config({"BLOCK": 512}),
        triton.Config({"BLOCK": 1024, "WRONG": 1}),
    ]
    kernel = autotuned(kernels.double, configs)
    x, out, n = arrays()
    kernel[blocks](x, out, n)
    assert torch.equal(out, 2 * x)
    assert {row["outcome"] for row in tuner.records("double", role="trial")} >= {"MEASURED", "WRONG_RESULT"}
    monkeypatch.setattr("tuner.python.decorators.run_shown", lambda *_: pytest.fail("measured again"))
    other = autotuned(kernels.double, configs)
    other[blocks](x, out, n)
    assert other.best_config == kernel.best_config
    pruned = autotuned(
        kernels.double, configs, prune_configs_by={"early_config_prune": lambda all, *_, **__: all[:1]}
    )
    pruned[blocks](x, out, n)
    assert pruned.best_config == configs[0]


def zeroed(name: str) -> Any:
    return lambda args: args[name].zero_()


def cleared(args: dict[str, Any]) -> None:
    assert args["BLOCK"] == 512
    args["out"].zero_()


@pytest.mark.parametrize("how", ["restore_value", "reset_to_zero", "pre_hook"])
def test_an_array_that_is_read_and_written_is_restored_before_each_run(
    kernels: SimpleNamespace, how: str
) -> None:
    params: Any = {"BLOCK": [256, 512], "num_warps": [4]}
    if how == "pre_hook":
        hooks = {64: zeroed("out"), 256: zeroed("out"), 512: cleared}
        params = [triton.Config({"BLOCK": block}, num_warps=4, pre_hook=hook) for block, hook in hooks.items()]
    kernel = autotuned(kernels.add_to, params, **({} if how == "pre_hook" else {how: ["out"]}))
    x, out, n = arrays()
    for _ in range(3 if how == "pre_hook" else 1):  # of a config it is called before later launches, too
        kernel[blocks](x, out, n)
        assert torch.equal(out, x)
    trials = tuner.records("add_to", role="trial")
    assert {row["outcome"] for row in trials} <= {"MEASURED", "PRUNED"}
    assert {(row["config.BLOCK"], row["config.num_warps"]) for row in trials} >= {(256, 4), (512, 4)}


@pytest.mark.usefixtures("kernels")
def test_a_declared_kernel_goes_through_a_fleets_night_a_survey_a_watch_and_reports(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told, plan, problem = caller(capsys), tmp_path / "plan.toml", (str(DECLARED), "--set=M=1000")
    plan.write_text(PLAN)
    command = [sys.executable, "-m", "tuner"]
    night = [*command, "nightly", str(plan), "--cluster", "local", "--json", "--quiet"]
    report = json.loads(subprocess.check_output(night, text=True, timeout=300))
    assert [each["state"] for each in report["problems"]] == ["tuned"]
    assert [each["trials"] for each in report["fleet"]["workers"]] == [2]
    alone = ("--shapes", str(plan), "--only-shapes", "--no-fit", "--device", "interpreted", "--seconds", "60")
    survey = json.loads(told("survey", str(DECLARED), *alone, "--json")[1])
    assert (survey["outcomes"], survey["compiled"]) == ({"MEASURED": 2}, 2)
    code, out, err = told("watch", str(plan), "--json", "--quiet")
    assert (code, len(json.loads(out)["sentinels"])) == (0, 1), err
    assert "blocks BLOCK_SIZE_M=" in told("show", *problem)[1]
    assert "1 problems: 1 same" in told("compare", "device:Interpreted board", "driver:1.0")[1]
    export = [*command, "export", *problem, "--device=Interpreted board", "--format=source", f"-o{tmp_path}"]
    exported = subprocess.run(export, text=True, timeout=300, check=True, capture_output=True)
    assert exported.stderr == "", "Triton tells of no leaks"
    x, c, n = arrays()
    runpy.run_path(exported.stdout.strip())["run"](x, c, n)
    assert torch.equal(c, 2 * x)


def test_what_cannot_be_measured_is_refused(kernels: SimpleNamespace) -> None:
    config = triton.Config({"BLOCK": 64})
    with pytest.raises(InputError, match="a kernel has no post_hook, got one"):
        autotuned(kernels.double, [config], post_hook=print)
    with pytest.raises(UnknownName, match="unknown option 'secnds'"):
        autotuned(kernels.double, [config], secnds=3)
    with pytest.raises(InputError, match=r"an argument of tl.constexpr or an option .*got 'BLOK'"):
        tuner.tune(kernels.double, arrays(), {"BLOK": [64]}, grid=blocks, device="interpreted")
