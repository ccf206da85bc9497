"""The vector type of the CPU kernels: each operation, for each width and dtype."""

from types import ModuleType

import numba
import numpy as np
import pytest
from fences import loaded

from tuner.declare.folders import kernels_folder


@pytest.fixture(scope="module")
def vectors() -> ModuleType:
    return loaded(kernels_folder() / "vectors.numba.py")


@pytest.mark.parametrize("register_bytes", [16, 32, 64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_operation(vectors: ModuleType, register_bytes: int, dtype: type) -> None:
    lanes = register_bytes // np.dtype(dtype).itemsize
    v = vectors
    pointer, forward, load, store = v.pointer, v.forward, v.load, v.store
    load_first, store_first, broadcast, total = v.load_first, v.store_first, v.broadcast, v.total
    add, multiply, multiply_add, prefetch = v.add, v.multiply, v.multiply_add, v.prefetch

    @numba.njit
    def run(x, y, out, part, count):  # noqa: ANN001, ANN202
        left, right, to = load(pointer(x, 1), lanes), load(forward(pointer(y, 0), 3), lanes), pointer(out, 0)
        prefetch(to, lanes)
        store(to, add(left, right))
        store(forward(to, lanes), multiply(left, right))
        store(forward(to, 2 * lanes), multiply_add(left, right, left))
        store(forward(to, 3 * lanes), broadcast(x[1], lanes))
        store(forward(to, 4 * lanes), load_first(pointer(x, 1), count, lanes))
        store_first(pointer(part, 1), left, count)
        return total(left)

    random = np.random.default_rng(5)
    x, y = random.standard_normal((2, lanes + 3)).astype(dtype)
    left, right = x[1 : lanes + 1], y[3:]
    for count in range(lanes + 1):
        out, part = np.full((5, lanes), np.nan, dtype), np.full(lanes + 2, np.nan, dtype)
        summed = run(x, y, out.reshape(-1), part, count)
        np.testing.assert_array_equal(out[0], left + right)
        np.testing.assert_array_equal(out[1], left * right)
        # Rounded once or twice: both are right.
        np.testing.assert_allclose(out[2], left * right + left, rtol=1e-6 if dtype is np.float32 else 1e-14)
        np.testing.assert_array_equal(out[3], x[1])
        np.testing.assert_array_equal(out[4], np.where(np.arange(lanes) < count, left, 0))
        np.testing.assert_array_equal(part[1 : count + 1], left[:count])
        assert np.isnan(np.append(part[count + 1 :], part[0])).all()
        assert summed == pytest.approx(left.sum(dtype=np.float64), rel=1e-5, abs=1e-5)
