"""What configs do at a problem, from declarations."""

import numpy as np
import pytest
from fixtures.lookup_records import BOARD, CPU

from tuner.declare.catalogue import builtin
from tuner.declare.hardware import DeviceInfo
from tuner.declare.kernel import Kernel
from tuner.declare.space import Config
from tuner.model.physics import DeviceRates, config_features, library_features, problem_features, traits

KNOWN = DeviceRates(50e12, 3e12, 3e-6)


def first_configs(target: str, operation: str) -> tuple[dict[str, Kernel], list[tuple[str, Config]]]:
    kernels = {each.name: each for each in builtin().of(operation, target)}
    return kernels, [(name, config) for name, each in kernels.items() for config in each.first_configs()]


@pytest.mark.parametrize("operation", ["gemm", "gemv", "transpose"])
@pytest.mark.parametrize(("target", "device"), [("cuda", BOARD), ("cpu", CPU)])
def test_every_built_in_kernel_has_finite_features_at_any_shape(
    operation: str, target: str, device: DeviceInfo
) -> None:
    kernels, configs = first_configs(target, operation)
    declared = builtin().operations[operation]
    for layout in declared.layouts:
        like = declared.problem(dict.fromkeys(declared.dims, 64), layout=layout)
        of = traits(kernels, configs, like)
        for sizes in ((1, 1, 1), (16384, 3, 65536), (777, 4096, 17)):
            problem = declared.problem(dict(zip(declared.dims, sizes, strict=False)), layout=layout)
            features, estimate = config_features(problem, device, of, KNOWN)
            assert np.isfinite(features).all()
            assert np.isfinite(estimate).all()
            assert np.isfinite(problem_features(problem, KNOWN)).all()
            assert np.isfinite(library_features(problem, device, KNOWN)).all()
