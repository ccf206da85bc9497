"""`tuner.torch` on a GPU: layers run tuned kernels, with right gradients, compiled and in CUDA graphs."""

import contextlib
import functools
from pathlib import Path
from typing import Any

import pytest
from fixtures.callable_records import crowned

import tuner
from tuner.python import functions
from tuner.python.decisions import device_info

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.fixture(scope="module", autouse=True)
def pytorch() -> None:
    """Loaded where these tests run: it takes seconds."""
    global torch, nn, tuned, blocks, operators
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tuner.torch as tuned
    from tuner.torch import blocks, operators

    nn = torch.nn


@pytest.fixture(autouse=True)
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")
    tuner.clear_caches()


def gradients(net: Any, x: Any, **surroundings: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    loss = net(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, (x, *net.parameters()))]


@pytest.mark.parametrize("compiled", [False, True])
def test_a_step_in_emulated_precision_is_as_exact_as_plain_fp32(compiled: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(1024, 2048), nn.GELU(), nn.Linear(2048, 512)).cuda()
    x = torch.randn(4, 512, 1024, device="cuda")
    right = gradients(net.double(), x.double())
    net.float()
    plain = gradients(net, x)
    with tuner.on_miss("measure", seconds=1, wait=True), tuned.use("emulated"):
        got = gradients(net, x)
    if compiled:
        inside = torch.compile(tuned.use("emulated")(nn.Sequential(*net)), fullgraph=True)
        got = gradients(inside, x)
    for one, beside, exact in zip(got, plain, right, strict=True):
        error, of_plain = ((each.double() - exact).norm() / exact.norm() for each in (one, beside))
        assert error <= 2 * of_plain + 1e-6


def test_a_layer_of_three_axes_runs_a_kernel_in_a_graph() -> None:
    layer, x = nn.Linear(512, 512).cuda().bfloat16(), torch.randn(8, 64, 512, device="cuda").bfloat16()
    with torch.no_grad(), tuned.use():
        expected = layer(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = layer(x)
        result.zero_()
        graph.replay()
        torch.cuda.synchronize()
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize(("precision", "dtype"), [("", "float32"), ("emulated", "float32"), ("", "bfloat16")])
@pytest.mark.parametrize("inside", [False, True])
def test_later_calls_of_an_eager_program_are_right_without_python(
    inside: bool, precision: str, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    multiply = torch.mm if inside else functools.partial(tuner.matmul, precision=precision)

    def product() -> None:
        a, b = torch.randn(2, 2048, 2048, device="cuda").to(getattr(torch, dtype))
        right, got = a.double() @ b.double(), torch.full_like(a, torch.nan)
        multiply(a, b, out=got)
        for each in (got, multiply(a, b)):
            assert (each.double() - right).norm() <= (1e-6 if dtype == "float32" else 5e-3) * right.norm()

    with torch.no_grad(), tuned.use(precision) if inside else contextlib.nullcontext():
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                product()
                with monkeypatch.context() as patched:
                    patched.setattr(operators, "tuned_product", None)
                    patched.setattr(functions, "FOUND_OF", {})
                    patched.setattr(functions, "_first", None)
                    product()


def test_an_out_that_overlaps_an_operand_is_right_whatever_runs() -> None:
    for shape in ((3, 257, 256), (257, 256)):
        stack = torch.randn(shape, device="cuda")
        a, out = stack[..., :256, :], stack[..., 1:, :]
        expected = a.double() @ a.double()
        tuner.matmul(a, a, out=out)
        torch.testing.assert_close(out.double(), expected, rtol=1e-5, atol=1e-3)


def test_compiled_inference_has_the_activation_in_the_kernel() -> None:
    champion = {"layout": "nt", "kernel": "half_tiled", "device": device_info("cuda:0"), "dtype": "bfloat16"}
    for epilogue in ("bias-col", "bias-col+gelu"):
        crowned("gemm", {"m": 512, "n": 1024, "k": 512}, epilogue=epilogue, **champion)
    net, x = nn.Sequential(nn.Linear(512, 1024), nn.GELU()).cuda().bfloat16(), torch.randn(2, 256, 512).cuda()
    for mode in ("default", "reduce-overhead"):
        with torch.no_grad(), blocks.collected() as collected:
            inside = tuned.use()(lambda x: net(x))
            run = torch.compile(inside, mode=mode, fullgraph=True, dynamic=False)
            for _ in range(3):
                result = run(x.bfloat16())
        assert [each.epilogue for each in collected] == ["bias-col+gelu"]
        torch.testing.assert_close(result.float(), net.float()(x), rtol=2e-2, atol=2e-2)
        net.bfloat16()


def test_prepare_tunes_the_products_of_a_step() -> None:
    net, x = nn.Linear(512, 1024).cuda(), torch.randn(256, 512, device="cuda")
    products = tuned.prepare(net, x, precision="emulated", seconds=1)
    assert len(products) == 2
    for of in products:
        words = f"gemm {of.m} {of.n} {of.k} {of.dtype} {of.layout} emulated {of.epilogue}"
        assert tuner.best(words.strip(), "cuda:0").match == "exact", words
