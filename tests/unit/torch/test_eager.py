"""Products of eager programs that native code runs once Python has: what is kept, and what ends it."""

import subprocess
import sys

import pytest

#: A program of its own, since what PyTorch's dispatcher was taught stays: kernels run on the CPU, by NumPy.
PROGRAM = """
import ctypes, gc, threading
import numpy, torch, tuner, tuner.torch as tuned
from tuner.torch import operators
from tuner.devices.cuda import native

WORD = ctypes.c_uint64
launched, by_python = [], []

def words(address, count): return list((WORD * count).from_address(address))

def launch(config, function, arguments, extra):
    (m, k), n = shapes[function], 5
    a, b, *bias, c = (words(at, 1)[0] for at in words(arguments, runs[m, k].tensors))
    def numbers(at, *shape):
        return numpy.frombuffer((ctypes.c_float * (shape[0] * shape[1])).from_address(at), "f4").reshape(shape)
    numbers(c, m, n)[:] = numbers(a, m, k) @ numbers(b, k, n) + (numbers(*bias, 1, n) if bias else 0)
    launched.append((m, k))
    return status[0]

class Run:
    def __init__(self, function, tensors): self.function, self.tensors = function, tensors
    def again(self):
        places = tuple(map(native.TensorAddress, range(self.tensors)))
        made = native.KernelLaunch(self.function, (1, 1, 1), (1, 1, 1), 0, places)
        return native.NativeRun([made], self.tensors, [ctypes.cast(launching, ctypes.c_void_p).value] * 3)

launching = ctypes.CFUNCTYPE(ctypes.c_int, *[WORD] * 4)(launch)
shapes, runs, status = [], {}, [0]

def product(a, b, out=None, bias=None, **how):
    by_python.append(tuple(a.shape))
    result = torch.addmm(torch.zeros(b.shape[1]) if bias is None else bias, a, b)
    result = result if out is None else out.copy_(result)
    tensors = [one for one in (a, b, bias, result) if one is not None]
    if kernels and len(tensors) == read:
        if tuple(a.shape) not in runs:
            shapes.append(tuple(a.shape))
            runs[tuple(a.shape)] = Run(len(shapes) - 1, read)
        addresses = [one.data_ptr() for one in tensors]
        for note in native.NOTED:
            note(runs[tuple(a.shape)], 0, tuple(addresses))
    return result

operators.KERNELS_ON, operators.tuned_product, kernels = {"cpu"}, product, True
read = 4
a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)

def check(a, b, bias, launches, asked, **how):
    launched.clear(); by_python.clear()
    right = a.double().numpy() @ b.detach().double().numpy() + bias.double().numpy()
    result = torch.addmm(bias, a, b, **how)
    torch.testing.assert_close(result.detach().double(), torch.from_numpy(right), rtol=2e-2, atol=5e-2)
    assert (len(launched), len(by_python)) == (launches, asked), (launched, by_python)
    return result
"""

CASES = {
    "a kernel is launched, without Python, at the addresses and into the result of each call": """
with tuned.use():
    check(a, b, bias, 0, 1)
    for _ in range(3):
        a, b, bias = torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)
        result = check(a, b, bias, 1, 0)
        torch.testing.assert_close(result, torch.from_numpy(a.numpy() @ b.numpy() + bias.numpy()))
    layer, x = torch.nn.Linear(4, 5), torch.randn(2, 2, 4)
    with torch.no_grad():
        for launches in (0, 1):
            launched.clear()
            got = layer(x)
            assert (len(launched), tuple(got.shape)) == (launches, (2, 2, 5))
""",
    "PyTorch's own product is run where nothing was launched": """
with tuned.use():
    kernels = False
    check(a, b, bias, 0, 1)
    check(a, b, bias, 0, 0)
    check(a.double(), b.double(), bias.double(), 0, 1)
    check(a[:2], b, bias, 0, 1)
    check(torch.randn(4, 3).t(), b, bias, 0, 1)
    for asked in (1, 0):
        weight = torch.randn(4, 5, requires_grad=True)
        check(a.repeat(2, 1), weight, bias, 0, asked).sum().backward()
        torch.testing.assert_close(weight.grad, 2 * a.sum(0)[:, None].expand(4, 5))
check(a, b, bias, 0, 0)
""",
    "PyTorch's own product learns where it is as good as what is launched": """
from types import SimpleNamespace
from tuner.torch import blocks

blocks.decision_of = lambda *of: decision
decision = SimpleNamespace(in_graphs=False, kernel="its own", is_miss=False)
weight = b.clone().requires_grad_()
with tuned.use():
    check(a, b, bias, 0, 1)
    check(a, b, bias, 1, 0)
    check(a, weight, bias, 0, 0).sum().backward()
    torch.testing.assert_close(weight.grad, a.sum(0)[:, None].expand(4, 5))
    decision = SimpleNamespace(in_graphs=None, kernel=None, is_miss=False)  # the library, by a call of its own
    a, weight = a.repeat(2, 1), b.clone().requires_grad_()
    check(a, b, bias, 0, 1)
    check(a, weight, bias, 0, 0).sum().backward()
""",
    "what is out of the ordinary goes to Python": """
weight = b.clone().requires_grad_()
with tuned.use():
    for asked in (1, 0):
        check(a, b, bias, 1 - asked, asked)
    check(a, weight, bias, 0, 1).sum().backward()
    with torch.no_grad():
        check(a, weight, bias, 1, 0)
    with torch.autocast("cpu", torch.bfloat16):
        check(a, b, bias, 0, 1)
    whole = torch.randn(20)
    check(whole[:12].view(3, 4), b, bias, 0, 1, out=torch.empty(3, 5))
    check(whole[:12].view(3, 4), b, bias, 1, 0, out=torch.empty(3, 5))
    check(whole[:12].view(3, 4), b, bias, 0, 1, out=whole[4:19].view(3, 5))
    for wrong in (torch.randn(5, 5), torch.randn(4, 5).double()):
        try:
            torch.addmm(bias, a, wrong)
        except RuntimeError as error:
            assert "shapes" in str(error) or "dtype" in str(error), error
        else:
            raise AssertionError("it fits nothing")
    check(a, b, bias, 1, 0)
    status[0] = 700
    check(a, b, bias, 1, 1)
""",
    "other records, another block and another policy have it asked anew": """
for held in ({}, {"bits": "library"}, {"precision": "emulated"}):
    with tuned.use(**held):
        check(a, b, bias, 0, 1)
with tuned.use():
    check(a, b, bias, 1, 0)
    tuner.clear_caches()
    check(a, b, bias, 0, 1)
    check(a, b, bias, 1, 0)
    with tuner.on_miss("library"):
        for _ in range(2):
            check(a, b, bias, 0, 1)
    check(a, b, bias, 0, 1)
    check(a, b, bias, 0, 1)
    check(a, b, bias, 1, 0)
    with tuned.use("emulated"):
        for _ in range(2):
            check(a, b, bias, 0, 1)
    check(a, b, bias, 1, 0)
    entered, leave = threading.Event(), threading.Event()
    def other():
        with tuned.use("emulated"):
            entered.set(); leave.wait()
    thread = threading.Thread(target=other); thread.start(); entered.wait()
    check(a, b, bias, 0, 1)
    leave.set(); thread.join()
    check(a, b, bias, 1, 0)
    runs.clear(); gc.collect()
    check(a, b, bias, 0, 1)
check(a, b, bias, 0, 0)
""",
    "calls of tuner.matmul outside of a block": """
from tuner.python import arrays

read = 3
def multiplied(a, b, launches, asked, **how):
    launched.clear(); by_python.clear()
    right = a.detach().double().numpy() @ b.detach().double().numpy()
    result = tuner.matmul(a, b, **how)
    torch.testing.assert_close(result.detach().double(), torch.from_numpy(right), rtol=2e-2, atol=5e-2)
    assert (len(launched), len(by_python)) == (launches, asked), (launched, by_python)
    return result

tuner.matmul(b, torch.ones(5, 1))
arrays.FOUND_OF[torch.Tensor] = lambda kept, *of: product  # what Python runs
multiplied(a, b, 0, 1)
for _ in range(2):
    a, b, out = torch.randn(3, 4), torch.randn(4, 5), torch.empty(3, 5)
    multiplied(a, b, 1, 0)
    multiplied(a, b, _, 1 - _, out=out)
multiplied(a, b, 0, 1, precision="emulated")
multiplied(a, b, 1, 0)
with tuner.precision("emulated"):
    multiplied(a, b, 1, 0)
for _ in range(2):
    by_python.clear()
    with tuned.use("emulated"):
        result = tuner.matmul(a, b)
    torch.testing.assert_close(result, a @ b)
    assert by_python, "its library is the block's"
multiplied(a, b, 1, 0)
whole = torch.randn(20)
multiplied(whole[:12].view(3, 4), b, 0, 1, out=whole[4:19].view(3, 5))
multiplied(a, b.clone().requires_grad_(), 0, 1)
entered, leave = threading.Event(), threading.Event()
def other():
    with tuned.use():
        entered.set(); leave.wait()
thread = threading.Thread(target=other, daemon=True); thread.start(); entered.wait()
multiplied(a, b, 1, 0)
leave.set(); thread.join()
kernels = False
for asked in (1, 0):
    multiplied(a[:2], b, 0, asked)
    multiplied(a[:2], b, 0, asked, out=torch.full((2, 5), torch.nan))
del arrays.FOUND_OF[torch.Tensor]
weight = b.clone().requires_grad_()
tuner.matmul(a, weight).sum().backward()
torch.testing.assert_close(weight.grad, a.sum(0)[:, None].expand(4, 5))
for wrong in (torch.randn(5, 5), b.numpy(), None):
    try:
        tuner.matmul(a, wrong)
    except (TypeError, ValueError) as error:
        assert "matmul" in str(error), error
    else:
        raise AssertionError("it fits nothing")
stack = torch.randn(2, 3, 4)
torch.testing.assert_close(torch.vmap(lambda one: tuner.matmul(one, b))(stack), stack @ b)
torch.testing.assert_close(tuner.matmul(a.int(), b.int()), a.int() @ b.int())
for _ in range(2):
    square = torch.randn(4, 4)
    right = square @ square
    torch.testing.assert_close(tuner.matmul(square, square, out=square), right)
""",
    "threads never get each other's precision": """
import random, sys, time
from tuner.python import arrays, functions
from tuner.python.requests import PRECISION

MARK, wrong, native_calls = {"ieee": 0, "emulated": 1000}, [], []
def launch(config, function, arguments, extra):
    a, b, c = (
        numpy.frombuffer((ctypes.c_float * 16).from_address(words(at, 1)[0]), "f4").reshape(4, 4)
        for at in words(arguments, 3)
    )
    c[:] = a @ b + function
    native_calls.append(function)
    return 0

launching = ctypes.CFUNCTYPE(ctypes.c_int, *[WORD] * 4)(launch)
runs = {precision: Run(mark, 3) for precision, mark in MARK.items()}
def product(a, b, out=None, precision="", **how):
    precision = precision or PRECISION.get()
    result = torch.from_numpy(a.numpy() @ b.numpy()) + MARK[precision]
    result = result if out is None else out.copy_(result)
    for note in [*native.NOTED]:
        note(runs[precision], 0, (a.data_ptr(), b.data_ptr(), result.data_ptr()))
    return result

operators.tuned_product = product
tuner.matmul(b, torch.ones(5, 1))
of = {id(kept): precision for precision, kept in functions._matmul.items()}
arrays.FOUND_OF[torch.Tensor] = lambda kept, *given: lambda a, b, out: product(a, b, out, of[id(kept)])

def work(number):
    chance, end = random.Random(number), time.monotonic() + 4
    while time.monotonic() < end:
        a, b, precision = torch.randn(4, 4), torch.randn(4, 4), chance.choice([*MARK])
        out = chance.choice([None, torch.full((4, 4), torch.nan)])
        if chance.random() < 0.7:
            result = tuner.matmul(a, b, out=out, precision=precision)
        else:
            with tuned.use(precision):
                result = torch.matmul(a, b, out=out)
        off = abs(result.numpy() - a.numpy() @ b.numpy() - MARK[precision]).max()
        if not off < 1e-2:
            wrong.append((precision, off))

sys.setswitchinterval(1e-5)
threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert not wrong, wrong[:5]
assert {*native_calls} == {*MARK.values()}
""",
    "without a C++ compiler a warning says so, and Python runs products": """
import os, tempfile, warnings

with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    os.environ.update(CXX="/no/compiler", TUNER_CACHE=folder)
    with tuned.use():
        for _ in range(2):
            check(a, b, bias, 0, 1)
    torch.testing.assert_close(tuner.matmul(a, b), a @ b)
assert sum("products take longer" in str(each.message) for each in said) == 1, said
""",
    "threads may come inside at the same time": """
from concurrent.futures import ThreadPoolExecutor
barrier, kernels = threading.Barrier(4), False
def inside(number):
    barrier.wait()
    with tuned.use():
        result = torch.addmm(bias, a, b)
    return tuner.matmul(a, b) + bias - result
with ThreadPoolExecutor(4) as pool:
    for off in pool.map(inside, range(4)):
        assert off.abs().max() < 1e-5, off
""",
    "a program with tuner.matmul, or with a block in it, is compiled without a break": """
def called(a, b): return tuner.matmul(a, b, precision="emulated").relu()
def inside(a, b):
    with tuned.use("emulated"):
        return (a @ b).relu()
for number, program in enumerate((called, inside), 1):
    torch.testing.assert_close(torch.compile(program, fullgraph=True, dynamic=True)(a, b), (a @ b).relu())
    assert by_python == [(3, 4)] * number, by_python
operators.tuned_product = tuner.matmul
weight = b.clone().requires_grad_()
for _ in range(2):
    result = torch.compile(called, fullgraph=True)(a, weight)
    torch.testing.assert_close(result, (a @ b).relu())
    (of_weight,) = torch.autograd.grad(result.sum(), weight)
    torch.testing.assert_close(of_weight, a.t() @ (a @ b > 0).float())
""",
}


#: Each case in a process of its own, which takes over what the program above it has loaded.
ALL = """
import os, sys, traceback
for name, case in CASES.items():
    child = os.fork()
    if not child:
        try:
            exec(case)
        except BaseException:
            print(name, traceback.format_exc(), file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("failed:", name, flush=True)
"""


def test_products_that_python_ran_once() -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    command = [sys.executable, "-W", "ignore", "-c", f"{PROGRAM}\nCASES = {CASES!r}\n{ALL}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr[-4000:]
