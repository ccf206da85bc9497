"""Compilations that explode or do not end, of real CUDA sources. Needs NVRTC, and neither GPU nor driver."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from fixtures.fake_device import TOY

from tuner.declare import catalogue
from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.results.measurement import OUT_OF_MEMORY
from tuner.workers import compile_pool
from tuner.workers.compile_pool import Compiled, CompilePool

pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="NVRTC comes with the extras cuda12 and cuda13")

Make = Callable[..., CompilePool]
SOUND = 'extern "C" __global__ void toy(float* y) { y[threadIdx.x] = 1; }\n'
#: Each name stands for two of the one before it: a billion statements in the end.
DOUBLING = "\n".join(
    ["#define A0 x += x * y;", *(f"#define A{level + 1} A{level} A{level}" for level in range(30))]
)
ENDLESS = f'{DOUBLING}\nextern "C" __global__ void toy(float* p) {{ float x = p[0], y = x; A30 p[0] = x; }}\n'
#: A gibibyte of constants, which the compiler's back end cannot hold.
LARGE = '__device__ int table[1 << 28] = {1};\nextern "C" __global__ void toy(int* y) { y[0] = table[y[1]]; }'


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes pools whose workers are up."""
    pools: list[CompilePool] = []

    def made(size: int) -> CompilePool:
        problem = catalogue.from_file(TOY).operation("toy").problem({"n": 10})
        pools.append(CompilePool("cuda", "sm_90a", {**problem.to_json(), "origin": str(TOY)}, size))
        for warm in done(pools[-1], [SOUND] * size):
            assert warm.failure is None
        return pools[-1]

    yield made
    for pool in pools:
        pool.close()


def rendered(text: str) -> Rendered:
    return Rendered(text, "toy", "cuda", Launch((1,), (32,)))


def done(pool: CompilePool, texts: list[str]) -> list[Compiled]:
    for ticket, text in enumerate(texts):
        pool.submit(ticket, rendered(text))
    found: list[Compiled] = []
    while len(found) < len(texts):
        found += pool.ready()
        time.sleep(0.01)
    return sorted(found, key=lambda each: each.ticket)


def test_a_compilation_that_takes_all_memory_fails_alone(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_pool, "MEMORY_BYTES", 320 << 20)
    *exploding, sound = done(make(2), [ENDLESS, LARGE, SOUND])
    assert sound.compiled_config is not None
    for each in exploding:
        assert each.failure is not None
        assert each.failure.outcome.value == "COMPILE_FAILED"
        assert OUT_OF_MEMORY in each.failure.reason
