"""Products of PyTorch's models by tuned kernels: values, gradients, compiled, exported, prepared."""

import contextlib
import copy
import inspect
import pickle
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fixtures.callable_records import crowned

import tuner
from tuner.errors import InputError, UnknownName

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"
)


@pytest.fixture(scope="module", autouse=True)
def pytorch() -> None:
    """Loaded by the process that runs these tests, not by all that collect them: it takes seconds."""
    global torch, nn, functional, tuned, inductor, operators
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    import tuner.torch as tuned
    from tuner.torch import inductor, operators

    nn, functional = torch.nn, torch.nn.functional
    tuned.eager.library = lambda device: None  # test_eager.py has programs with the native part


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Has the operator call `tuner.matmul` on the CPU, and notes the calls; kernels are NumPy's product."""
    calls: list[tuple[Any, ...]] = []

    def product(
        a: Any, b: Any, out: Any = None, precision: str = "", bias: Any = None, activation: str = "",
        bits: str = "",
    ) -> Any:  # fmt: skip
        finish = "+".join([*["bias"] * (bias is not None), *filter(None, (activation, bits))])
        calls.append((tuple(a.shape), tuple(b.shape), precision, finish))
        a, b = a.detach(), b.detach()
        result = torch.from_numpy(a.numpy() @ b.numpy()) if a.dtype != torch.bfloat16 else a @ b
        result = result if bias is None else result + bias
        result = inductor.ACTIVATIONS[activation](result) if activation else result
        return result if out is None else out.copy_(result)

    tuner.clear_caches()
    monkeypatch.setattr(operators, "KERNELS_ON", {"cpu"})
    monkeypatch.setattr(operators, "tuned_product", product)
    return calls


def model() -> Any:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 4, bias=False))


def test_the_operator_keeps_pytorchs_own_rules() -> None:
    a, b, bias = (
        torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((3, 4), (4, 5), (5,))
    )
    for arguments in (
        (a, b, bias, ""),
        (a, b, None, "", "", "", "library"),
        (a, torch.randn(5, 4, dtype=torch.float64).t(), None, ""),
    ):
        torch.library.opcheck(torch.ops.tuner.product, arguments)
    stacks = torch.stack([a, a]).detach().requires_grad_(), torch.stack([b, b]).detach().requires_grad_()
    torch.library.opcheck(torch.ops.tuner.product, (*stacks, None, ""))
    assert torch.autograd.gradcheck(lambda *given: tuned.product(*given, None, ""), stacks)
    assert torch.autograd.gradcheck(lambda *given: tuned.product(*given, ""), (a, b, bias))
    assert torch.autograd.gradcheck(
        lambda a, b: tuned.product(a, b.t(), None, ""), (a, b.detach().t().requires_grad_())
    )


def test_values_and_gradients_are_those_of_pytorch(asked: list[tuple[Any, ...]]) -> None:
    net, x = model().double(), torch.randn(2, 3, 6, dtype=torch.float64, requires_grad=True)
    expected = net(x)
    wanted = torch.autograd.grad(expected.sum(), (x, *net.parameters()))
    state = {name: each.clone() for name, each in net.state_dict().items()}
    with tuned.use():
        result = net(x)
    torch.testing.assert_close(result, expected)
    for one, other in zip(torch.autograd.grad(result.sum(), (x, *net.parameters())), wanted, strict=True):
        torch.testing.assert_close(one, other)
        assert one.is_contiguous()
    # Each of two layers: the product, then those for its input's and its weight's gradient.
    assert len(asked) == 6
    assert asked[0] == ((6, 6), (6, 5), "", "bias")
    assert all(torch.equal(state[name], each) for name, each in net.state_dict().items())


def test_gradients_have_the_precision_and_the_bits_of_their_product(asked: list[tuple[Any, ...]]) -> None:
    layer = nn.Linear(4, 4)
    with tuned.use("emulated", bits="library"):
        result = layer(torch.randn(2, 4, requires_grad=True))
    result.sum().backward()
    finishes = "bias+library", "library", "library"
    assert [call[2:] for call in asked] == [("emulated", finish) for finish in finishes]
    with pytest.raises(UnknownName, match="precision"):
        tuned.use("exact")
    with pytest.raises(UnknownName, match="class of bits 'same'"):
        tuned.use(bits="same")


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(("precision", "dtype", "replaced"), [
    ("", "float32", False), ("ieee", "float32", False), ("emulated", "float32", True), ("", "bfloat16", True),
])  # fmt: skip
def test_products_that_may_be_in_tf32_are_left_to_pytorch_unless_emulated(
    precision: str, dtype: str, replaced: bool, compiled: bool, asked: list[tuple[Any, ...]]
) -> None:  # fmt: skip
    layer, x = nn.Linear(4, 5).to(getattr(torch, dtype)), torch.randn(2, 4).to(getattr(torch, dtype))
    run = torch.compile(layer, backend="eager") if compiled else layer
    for allowed in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(allowed)
        asked.clear()
        torch.compiler.reset()
        with tuned.use(precision), torch.no_grad():
            run(x)
        assert bool(asked) == (replaced or allowed == "highest")


def test_what_has_no_memory_of_its_own_or_is_no_tensor_is_left_to_pytorch() -> None:
    x, w = torch.randn(3, 2, 4), torch.randn(4, 5)
    with tuned.use():
        for _ in range(2):
            assert torch.func.vmap(lambda rows: rows @ w)(x).shape == (3, 2, 5)
            assert (torch.eye(4).to_sparse() @ w).equal(w)
        with pytest.raises(TypeError, match="unsupported operand type"):
            x @ 3


def test_what_kernels_do_not_do_is_left_to_pytorch(asked: list[tuple[Any, ...]]) -> None:
    x = torch.randn(2, 3, 4)
    with tuned.use():
        assert (torch.ones(2, 3, dtype=torch.int32) @ torch.ones(3, 2, dtype=torch.int32)).sum() == 12
        assert (torch.ones(0, 4) @ torch.ones(4, 5)).shape == (0, 5)
        assert torch.mv(x[0], x[0, 0]).shape == (3,)
        with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
            x[0] @ torch.ones(5, 4)
    assert asked == []


@pytest.mark.parametrize("product", [
    lambda a, b, bias: a @ b, lambda a, b, bias: torch.mm(a, b), lambda a, b, bias: a.matmul(b),
    lambda a, b, bias: torch.addmm(bias, a, b), lambda a, b, bias: functional.linear(a, b.t(), bias),
    lambda a, b, bias: torch.mm(a, b, out=torch.empty(3, 5)),
    lambda a, b, bias: torch.einsum("ij,jk->ik", a, b),
])  # fmt: skip
def test_every_way_to_multiply_matrices(product: Any, asked: list[tuple[Any, ...]]) -> None:
    a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
    with tuned.use():
        result = product(a, b, bias)
    torch.testing.assert_close(result, product(a, b, bias))
    assert len(asked) == 1


def test_two_stacks_are_one_product_in_training_compiled_and_in_a_plan(
    asked: list[tuple[Any, ...]], tmp_path: Path
) -> None:
    class Attention(nn.Module):
        def forward(self, q: Any) -> Any:
            return (q @ q.mT).softmax(-1).bmm(q)

    net, q = Attention(), torch.randn(2, 3, 4, requires_grad=True)
    wanted = net(q), *torch.autograd.grad(net(q).sum(), q)
    for run in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        asked.clear()
        with tuned.use():
            result = run(q)
        assert [call[:2] for call in asked] == [((2, 3, 4), (2, 4, 3)), ((2, 3, 3), (2, 3, 4))]
        torch.testing.assert_close((result, *torch.autograd.grad(result.sum(), q)), wanted)
    plan = tmp_path / "step.toml"
    first, *_ = tuned.prepare(net, q.detach(), plan=plan)
    assert (first.batch, first.m, first.n, first.k) == (2, 3, 3, 4)
    assert {
        "operation": "bmm",
        "shape": [2, 3, 3, 4],
        "dtype": "float32",
        "layout": "nt",
        "precision": "ieee",
    } in tomllib.loads(plan.read_text())["problems"]
    with tuned.use(), pytest.raises(RuntimeError, match="must be a"):
        torch.mm(q, q)


def test_rows_in_groups_and_stacks_that_repeat_matrices_are_replaced_with_gradients(
    monkeypatch: pytest.MonkeyPatch, asked: list[tuple[Any, ...]]
) -> None:
    def noted(*given: Any) -> Any:
        asked.append(tuple(given[0].shape))
        return tuner.grouped(*given)

    class Experts(nn.Module):
        def forward(self, x: Any, weights: Any, ends: Any) -> Any:
            grouped = tuned.grouped if torch.compiler.is_compiling() else torch._grouped_mm
            return grouped(x, weights.mT, ends) @ weights[:, None]

    monkeypatch.setattr(operators, "tuned_groups", noted)
    net, ends = Experts(), torch.tensor([3, 3, 9, 16], dtype=torch.int32)
    kind = {"dtype": torch.bfloat16, "requires_grad": True}
    x, weights = torch.randn(16, 64, **kind), torch.randn(4, 32, 64, **kind)
    wanted = net(x, weights, ends)
    gradients = torch.autograd.grad(wanted.sum(), (x, weights))
    for run in (net, torch.compile(net, fullgraph=True, backend="aot_eager")):
        asked.clear()
        with tuned.use():
            result = run(x, weights, ends)
        got = result, *torch.autograd.grad(result.sum(), (x, weights))
        torch.testing.assert_close(got, (wanted, *gradients), rtol=2e-2, atol=1.0)
        rows = [call for call in asked if len(call) == 2]
        assert rows == [(16, 64), (16, 32)], "those of the product, and of their gradient"
    torch.library.opcheck(torch.ops.tuner.grouped, (x, weights.mT, ends))
    with tuned.use(bits="library"), torch.no_grad():
        asked.clear()
        functional.grouped_mm(x, weights.mT, offs=ends)
    assert asked == []


@pytest.mark.usefixtures("own_records")
def test_products_of_8_bits_with_scales_are_replaced_and_in_a_plan(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Linear(nn.Module):
        def forward(self, x: Any, weight: Any, *more: Any) -> Any:
            return torch._scaled_mm(x, weight.t(), *more, out_dtype=torch.float32, use_fast_accum=True)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def compiled(x: Any, weight: Any, *more: Any) -> Any:
        return tuned.scaled_product(x, weight.t(), *more, torch.float32, "")

    monkeypatch.setattr(operators, "KERNELS_ON", {"cpu"})
    x, weight = (torch.randn(shape, 256).to(torch.float8_e4m3fn) for shape in (16, 32))
    of_a, of_b, bias = torch.rand(16, 2), torch.rand(2, 1), torch.rand(32)
    wide = of_a.repeat_interleave(128, 1), of_b.repeat_interleave(128, 0)
    with tuned.use():
        result = Linear()(x, weight, of_a, of_b, bias)
    torch.testing.assert_close(result, (x.float() * wide[0]) @ (weight.float().t() * wide[1]) + bias)
    torch.testing.assert_close(compiled(x, weight, of_a, of_b, bias), result)
    lines = torch.rand(16, 1), torch.rand(1, 32)
    arguments = x, weight.t(), *lines, None, torch.bfloat16, ""
    torch.library.opcheck(torch.ops.tuner.scaled_product, arguments, test_utils="test_faketensor")
    plan, other = tmp_path / "step.toml", x.to(torch.float8_e5m2)
    for given, words in ((x, "scale-line+to-float32"), (other, "a-e5m2+scale-line+to-float32")):
        (product,) = tuned.prepare(Linear(), given, weight, *lines, plan=plan)
        assert product == (16, 32, 256, "float8_e4m3fn", "nt", "", words, 0)
    with tuned.use(), pytest.raises((RuntimeError, ValueError), match="scale"):
        Linear()(x, weight, torch.rand(3), torch.rand(5))


def test_a_function_and_a_module_always_run_inside(asked: list[tuple[Any, ...]]) -> None:
    net, x = tuned.use("emulated")(model()), torch.randn(2, 6)
    with torch.no_grad():
        net(x[None])
    assert [(call[0], call[2]) for call in asked] == [((2, 6), "emulated"), ((2, 5), "emulated")]
    assert set(net.state_dict()) == set(model().state_dict())
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        asked.clear()
        with torch.no_grad():
            other[2].weight.zero_()
            assert not other(x).any(), "a copy has parameters of its own"
            assert net(x).any()
        assert [call[2] for call in asked] == ["emulated"] * 4
    assert inspect.signature(net.forward) == inspect.signature(model().forward)
    asked.clear()
    tuned.use()(lambda: x @ x.t())()
    assert len(asked) == 1
    x @ x.t()
    with tuned.use(), ThreadPoolExecutor(1) as other:
        assert other.submit(torch.mm, x, x.t()).result().shape == (2, 2)
        assert torch.overrides._len_torch_function_stack() == 0, "what is no product costs nothing"
    assert len(asked) == 1, "outside, and in other threads, nothing is replaced"
    with torch.no_grad(), tuned.use():
        for layer in [nn.Linear(6, 6), nn.Linear(6, 6, bias=False)] * 2:
            torch.testing.assert_close(
                layer(x), x @ layer.weight.t() + (layer.bias if layer.bias is not None else 0)
            )


def forked(a: "torch.Tensor", b: "torch.Tensor") -> "torch.Tensor":
    return torch.jit.wait(torch.jit.fork(torch.mm, a, b))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*is deprecated:DeprecationWarning")
def test_a_thread_that_a_block_makes_work_is_inside(asked: list[tuple[Any, ...]]) -> None:
    """Autograd's threads compute gradients of compiled programs; on a CPU TorchScript's tasks are like them."""
    run, x = torch.jit.script(forked), torch.randn(3, 3)
    with tuned.use("emulated"):
        run(x, x)
    run(x, x)
    assert [(call[0], call[2]) for call in asked] == [((3, 3), "emulated")]
    with tuned.use(), tuned.use("emulated"):
        run(x, x)
    assert len(asked) == 1, "of two blocks one does not know which"


def test_autocast_casts_as_pytorch_does(asked: list[tuple[Any, ...]]) -> None:
    net, x = model(), torch.randn(2, 6)
    with torch.autocast("cpu", torch.bfloat16):
        expected = net(x)
        with tuned.use("emulated"):
            result = net(x)
    assert (result.dtype, len(asked)) == (torch.bfloat16, 2)
    assert {call[2] for call in asked} == {""}, "precisions are of float32"
    torch.testing.assert_close(result, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("around", [False, True])
def test_compiled_programs_have_no_break_and_take_any_number_of_rows(
    dynamic: bool, around: bool, asked: list[tuple[Any, ...]]
) -> None:
    net = model() if around else tuned.use(bits="library")(model())
    compiled = torch.compile(net, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for rows in (3, 7):
        x = torch.randn(rows, 6)
        asked.clear()
        with tuned.use(bits="library") if around else contextlib.nullcontext():
            result = compiled(x)
        assert [call[3] for call in asked] == ["bias+library", "library"]
        torch.testing.assert_close(result, net(x))
        result.sum().backward()


@pytest.mark.usefixtures("own_records")
def test_compiled_inference_calls_kernels_where_they_are_the_answer_with_the_activation_behind(
    asked: list[tuple[Any, ...]],
) -> None:
    for epilogue in ("bias-col", "bias-col+gelu"):
        crowned(
            "gemm", {"m": 6, "n": 5, "k": 6}, "float32", "nt", {"THREADS": 1}, 2.0, "naive", epilogue=epilogue,
            bits="0123456789ab",
        )  # fmt: skip
    net, x = model(), torch.randn(2, 3, 6)

    def twice(x: Any) -> Any:
        y = net[0](x)
        return functional.gelu(y) + functional.relu(y) + functional.silu(y)  # which nothing can be part of

    with torch.no_grad():
        for run, finish in ((net, "bias+gelu+library"), (twice, "bias+library")):
            inside = tuned.use(bits="library")(lambda x, run=run: run(x))
            compiled = torch.compile(inside, fullgraph=True, dynamic=False)
            for stance in ("default", "fail_on_recompile"):
                asked.clear()
                with torch.compiler.set_stance(stance):
                    result = compiled(x)
                assert asked == [((6, 6), (6, 5), "", finish)], "PyTorch computes the second layer"
            torch.testing.assert_close(result, run(x))
    with pytest.raises(InputError, match="gelu is for products without gradients"):
        tuned.product(x[0], net[0].weight.t(), None, "", "gelu")


def test_inductor_times_our_product_among_its_own() -> None:
    given: list[Any] = []

    def our_product(a: Any, b: Any, out: Any = None) -> Any:
        given.append(tuple(a.shape))
        return tuner.matmul(a, b, out=out)

    a, b = torch.randn(16, 24), torch.randn(24, 8)
    choices = {"external_matmul": [our_product], "max_autotune_gemm_backends": "ATEN"}
    with torch._inductor.config.patch(**choices, max_autotune_gemm=True, force_disable_caches=True):
        result = torch.compile(lambda a, b: a @ b, fullgraph=True)(a, b)
    torch.testing.assert_close(result, a @ b)
    assert set(given) == {(16, 24)}


def test_a_bias_is_added_by_pytorchs_linear_layer_where_it_computes() -> None:
    a, b, bias = torch.randn(2, 3, 16), torch.randn(16, 8), nn.Parameter(torch.randn(8))
    for _ in range(2):  # prepared, and looked up
        got = tuner.matmul(a, b, bias=bias, activation="relu")
        assert torch.equal(got, functional.linear(a, b.t(), bias).relu())
    assert got.requires_grad


def test_a_result_is_written_where_it_belongs_also_over_a_bias_and_with_gradients() -> None:
    for kind in (torch.float32, torch.float64):
        a, b, whole = torch.randn(6, 4), torch.randn(4, 4), torch.randn(10, 4)
        for bias, out in ((torch.randn(4), torch.full((6, 4), torch.nan, dtype=kind)), (whole[0], whole[:6])):
            right = (a.double() @ b.double() + bias).to(out.dtype)
            assert tuner.matmul(a, b, out, bias=bias) is out
            torch.testing.assert_close(out, right, rtol=1e-5, atol=1e-5)
    weight, out = b.clone().requires_grad_(), torch.empty(6, 4)
    tuner.matmul(a, weight, out, bias=bias.clone()).sum().backward()
    torch.testing.assert_close(weight.grad, a.sum(0)[:, None].expand(4, 4))


def test_an_exported_program_has_the_operator(asked: list[tuple[Any, ...]]) -> None:
    net = tuned.use()(model())
    exported = torch.export.export(net, (torch.randn(3, 6),))
    assert str(exported.graph).count("tuner.product") == 2
    x = torch.randn(3, 6)
    torch.testing.assert_close(exported.module()(x), net(x))


def test_prepare_finds_the_products_of_a_step_and_changes_nothing(tmp_path: Path) -> None:
    net, x = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)), torch.randn(8, 6)
    state = {name: each.clone() for name, each in net.state_dict().items()}
    plan = tmp_path / "step.toml"
    products = tuned.prepare(net, x, precision="emulated", plan=plan, bits="library")
    assert products[0] == tuned.Product(5, 6, 8, "float32", "tn", "emulated")
    assert {(each.m, each.n, each.k) for each in products} == {
        (8, 5, 6), (8, 4, 5), (8, 5, 4), (4, 5, 8), (5, 6, 8)
    }  # fmt: skip
    assert all(torch.equal(state[name], each) for name, each in net.state_dict().items())
    assert all(each.grad is None for each in net.parameters())
    problems = tomllib.loads(plan.read_text())["problems"]
    assert problems[0]["shape"] == [5, 6, 8]
    assert (problems[0]["precision"], problems[0]["bits"]) == ("emulated", "library")
    net.eval()
    assert len(tuned.prepare(net, x, plan=plan)) == 2
