"""A real GPU keeps the contract of devices."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
from contracts.device_suite import DeviceContract

from tuner.declare.kernel import Rendered
from tuner.declare.launch import Launch
from tuner.devices import comparing
from tuner.devices.cuda.nvrtc import NvrtcCompiler, compile_cubin
from tuner.devices.protocol import REGIMES, Compiler, Device, LaunchFailed
from tuner.workers.workload import Workload


class TestCudaDevice(DeviceContract):
    regimes = REGIMES

    @classmethod
    def open(cls) -> Device:
        from tuner.devices.cuda.device import CudaDevice

        return CudaDevice()

    @classmethod
    def compiler(cls) -> Compiler:
        return NvrtcCompiler()

    @classmethod
    def failing(cls, rendered: Rendered) -> Rendered:
        return replace(rendered, launch=Launch((1,), (4096,)))

    @classmethod
    def cheating(cls, rendered: Rendered, how: str) -> Rendered:
        honest = "y[i] = x[i] * x[i] + REAL(1);"
        assert honest in rendered.text
        memory = "__device__ REAL kept[8192];\n__device__ int known[8192];\n"
        changed = {
            "writes_input": f"{{ {honest} if (i == n / 2) const_cast<REAL*>(x)[i] = 0; }}",
            "stale": f"{{ if (!known[i]) {{ {honest} kept[i] = y[i]; known[i] = 1; }} y[i] = kept[i]; }}",
        }
        text = rendered.text.replace(honest, changed[how])
        return replace(rendered, text=text.replace('extern "C"', f'{memory}extern "C"'))

    def test_it_knows_its_limits(self, device: Device) -> None:
        info = device.info
        assert info.compute_capability >= 70
        assert info.architecture.startswith("sm_")
        assert info.max_threads_per_block >= 1024
        assert info.warp_size == 32
        assert info.shared_bytes_per_block >= 48 << 10
        assert info.l2_bytes > 0
        assert info.sm_count > 0

    def test_what_is_no_cubin_is_not_loaded(
        self, device: Device, rendered: Rendered, workload: Workload
    ) -> None:
        with pytest.raises(LaunchFailed, match="cannot be loaded"):
            device.load(rendered, b"rubbish" * 100, workload)
        device.canary()

    def test_a_cubin_for_another_architecture_is_not_loaded(
        self, device: Device, rendered: Rendered, workload: Workload
    ) -> None:
        other = "sm_80" if device.info.compute_capability != 80 else "sm_120a"
        cubin, _ = compile_cubin(rendered.text, other)
        with pytest.raises(LaunchFailed, match="cannot be loaded"):
            device.load(rendered, cubin, workload)
        device.canary()

    def test_more_shared_memory_than_there_is_is_not_launched(
        self, device: Device, rendered: Rendered, workload: Workload
    ) -> None:
        code = self.compiled(device, rendered, workload).code
        assert rendered.launch is not None
        greedy = replace(rendered, launch=replace(rendered.launch, shared_bytes=1 << 24))
        with pytest.raises(LaunchFailed, match="cannot be"):
            self.load_and_run(device, greedy, code, workload)
        device.canary()

    @pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int32"])
    @pytest.mark.parametrize("count", [1, 1000, 3_000_001])
    def test_it_compares_as_numpy_does(self, device: Device, dtype: str, count: int) -> None:
        rng = np.random.default_rng(count)
        values = rng.integers(-99, 99, count).astype(np.float64)
        output = (values + (0 if dtype == "int32" else 0.25)).astype(dtype)
        output[count // 2] += 3
        wanted = comparing.differences(np, output, values, 1e-3, 0.5)
        xp = device.xp
        found = comparing.differences(xp, xp.asarray(output), xp.asarray(values), 1e-3, 0.5)
        assert astuple(found) == pytest.approx(astuple(wanted), rel=1e-9)
        if dtype != "int32":
            output[-1] = np.nan
            found = comparing.differences(xp, xp.asarray(output), xp.asarray(values), 1e-3, 0.5)
            assert math.isnan(found.largest)
            assert math.isnan(found.ratio)

    @pytest.mark.parametrize("offset", [0, 1, 16])
    def test_it_finds_any_byte_that_differs(self, device: Device, offset: int) -> None:
        one = device.xp.zeros(1 << 20, dtype="uint8")[offset:]
        for at in (0, 17, 12_345, one.size - 1):
            other = one.copy()
            other[at] = 1
            pairs = [(one, one), (one, other), (other, other)]
            assert comparing.unequal(device.xp, pairs) == [False, True, False]

    @pytest.mark.parametrize(("dtype", "first"), [("uint8", 0), ("uint8", 1), ("uint16", 8), ("uint64", 3)])
    def test_a_sum_of_memory_changes_with_any_bit(self, device: Device, dtype: str, first: int) -> None:
        one = device.xp.asarray(np.random.default_rng(first).integers(0, 200, 100_003).astype(dtype))[first:]
        bits = 8 * one.itemsize
        changed = []
        for at, bit in ((0, 0), (17, bits - 1), (12_345, bits // 2), (one.size - 1, 1)):
            changed.append(one.copy())
            changed[-1][at] ^= one.dtype.type(1 << bit)
        known, again, *others = comparing.checksums(device.xp, [one, one, *changed])
        assert known == again
        assert known not in others
        assert len(set(others)) == len(others)
