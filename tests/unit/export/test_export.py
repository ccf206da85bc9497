"""Exports of any format: what is written, what it tells, and what is refused."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fixtures.exported import CATALOGUE, GPU, GXX, champion, gemm, imported, own, run_on_host

from tuner.declare.hardware import DeviceInfo
from tuner.errors import InputError
from tuner.export import FORMATS, export
from tuner.lookup import Answer


@pytest.mark.parametrize("format", list(FORMATS))
def test_each_format_says_where_it_comes_from(format: str, tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("naive", "cuda")
    measurement = replace(crowned.record.measurement, bits="0123456789ab")
    crowned = replace(crowned, record=replace(crowned.record, measurement=measurement))
    paths = export(Answer(crowned), kernel, problem, format, tmp_path / "new" / "folder")
    told = "".join(path.read_text() for path in paths if path.suffix != ".cubin")
    told = told.replace('\\"', '"')
    versions = "580.1", "0.1.0", "NVRTC 13.0"
    for part in ("NVIDIA H200", "0123456789ab", crowned.record.id, crowned.record.measured_at, *versions):
        assert part in told
    assert sorted(path.name for path in (tmp_path / "new" / "folder").iterdir()) == sorted(
        p.name for p in paths
    )


def test_a_change_of_the_source_and_a_faster_library_are_told(tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("naive", "cuda")
    text = export(crowned, kernel, problem, "source", tmp_path)[0].read_text()
    assert "beside cuBLAS 130100: 0.012 TFLOPS, speed-up 0.950; the library was faster" in text
    assert "has changed" not in text
    changed = champion(kernel, problem, dict(crowned.record.config), source_hash="before")
    text = export(changed, kernel, problem, "source", tmp_path)[0].read_text()
    assert f"The source has changed since it was measured, to {kernel.source_hash}: tune again." in text


def test_the_record_describes_itself(tmp_path: Path) -> None:
    crowned, kernel, problem = gemm("naive", "cuda", "nt")
    told = json.loads(export(crowned, kernel, problem, "json", tmp_path)[0].read_text())
    assert told["shape"] == {"m": 300, "n": 200, "k": 100}
    assert (told["layout"], told["config"]) == ("nt", dict(crowned.record.config))
    assert told["measurement"]["samples_s"] == [1e-3, 2e-3, 1e-3]
    assert told["baseline"]["versions"] == {"library": "cuBLAS 130100"}
    assert DeviceInfo.from_json(told["device"]) == GPU
    assert all(key.split(".")[0] in told for key in told["about"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", ["register_tiled", "triton_tiled"])
def test_a_binary_says_how_to_launch_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "triton_tiled":
        pytest.importorskip("triton")
        monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # or Triton warns that its default will change
    cubin, described = export(*gemm(name, "cuda", "nt", (1024, 2048, 512)), "binary", tmp_path)
    assert cubin.read_bytes()[:4] == b"\x7fELF"
    told = json.loads(described.read_text())
    assert (told["cubin"], told["entry"], told["architecture"]) == (cubin.name, "gemm", "sm_90a")
    dims = {"m": 1024, "n": 2048, "k": 512}
    names = {**dims, "ceil_div": lambda a, b: -(-a // b)}
    rules = told["rules"]
    assert [eval(str(rule), names) for rule in rules["grid"]] == told["launch"]["grid"]
    assert [eval(str(rule), names) for rule in rules["block"]] == told["launch"]["block"]
    assert eval(str(rules["shared_bytes"]), names) == told["launch"]["shared_bytes"]
    assert all(eval(str(rule), names) for rule in rules["must_hold"])
    # Triton's code is for what divides the sizes.
    others = {**names, "m": 1030}
    assert all(eval(str(rule), others) for rule in rules["must_hold"]) == (name == "register_tiled")
    assert [each["name"] for each in told["arguments"]] == ["a", "b", "c", "m", "n", "k"]
    shapes = [[eval(str(size), names) for size in each["shape"]] for each in told["arguments"][:3]]
    assert shapes == [[1024, 512], [2048, 512], [1024, 2048]]
    assert [eval(str(each["value"]), names) for each in told["arguments"][3:]] == [*dims.values()]


@pytest.mark.parametrize(("target", "format", "folder", "message"), [
    ("cpu", "pyton", "", "unknown export format 'pyton'; did you mean python"),
    ("cpu", "binary", "", "got the cpu kernel 'naive'; choose source, python or json"),
    ("cpu", "python", "file", r"needs a folder that can be written, got .*file \(.*; choose another"),
])  # fmt: skip
def test_what_cannot_be_exported(target: str, format: str, folder: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=message):
        export(*gemm("naive", target), format, tmp_path / folder)


def test_a_full_disk_leaves_no_half_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="No space left on device"):
        export(*gemm("naive", "cpu"), "python", tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_config_of_another_kernel_or_time_is_refused(tmp_path: Path) -> None:
    crowned, _, problem = gemm("naive", "cuda")
    other = gemm("register_tiled", "cuda")[1]
    with pytest.raises(InputError, match=r"kernel 'register_tiled' has parameters BM, .*; tune again"):
        export(crowned, other, problem, "source", tmp_path)
    crowned, kernel, problem = own(tmp_path, "cuda", (100, 3, 3))
    with pytest.raises(InputError, match="copies are in pairs: the champion's config breaks this rule"):
        export(crowned, kernel, problem, "source", tmp_path)


# --- Exports of products with an epilogue take its operands and factors

ALL = "alpha+beta+bias-col+gelu+residual"


def exported(name: str, target: str, epilogue: str, form: str, folder: Path, **config: object) -> Path:
    (kernel,), dtype = CATALOGUE.of("gemm", target, (name,)), "bfloat16" if name == "wgmma_tma" else ""
    problem = CATALOGUE.operation("gemm").problem({"m": 67, "n": 45, "k": 33}, dtype, epilogue=epilogue)
    case = champion(kernel, problem, {**kernel.default_config(), **config}), kernel, problem
    return export(*case, form, folder)[0]


def test_a_python_module_takes_them_by_name(tmp_path: Path) -> None:
    module = imported(exported("naive", "cpu", ALL, "python", tmp_path, THREADS=1))
    rng = np.random.default_rng(0)
    a, b, c, r = (rng.standard_normal(s).astype("f4") for s in ((9, 4), (4, 6), (9, 6), (9, 6)))
    bias = rng.standard_normal(6).astype("f4")
    x = 3.0 * (a.astype(float) @ b) - 2.0 * c + bias
    wanted = 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) + r
    assert np.abs(module.matmul(a, b, c, bias, r, alpha=3.0, beta=-2.0) - wanted).max() < 1e-5


@GXX
@pytest.mark.parametrize("epilogue", [ALL, "bias-row+gelu-tanh", "silu"])
def test_a_cuda_source_checks_itself_with_it(epilogue: str, tmp_path: Path) -> None:
    path = exported("naive", "cuda", epilogue, "source", tmp_path)
    # The host's maths has these by other names.
    path.write_text(f"#include <cmath>\n{path.read_text()}")
    code, told = run_on_host(path)
    assert (code, told.endswith("PASSED\n")) == (0, True), told


def test_the_signature_has_operands_before_the_result_and_factors_last(tmp_path: Path) -> None:
    text = exported(
        "wgmma_tma", "cuda", "beta+bias-col+gelu", "source", tmp_path, BORDER="pad", STORE="registers"
    ).read_text()
    taken = text[text.index("cudaError_t launch_matmul(") :].partition(")")[0]
    assert [word.split()[-1].lstrip("*") for word in taken.partition("(")[2].split(",")] == [
        "a", "b", "c_in", "bias", "c", "m", "n", "k", "beta", "0",
    ]  # fmt: skip
