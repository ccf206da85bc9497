"""PyTorch: the products of a model by tuned kernels, in training, too, and under `torch.compile`.

::

    import tuner.torch

    with tuner.torch.use(precision="emulated"):  # FP32 on tensor cores, as exact as cuBLAS's SGEMM
        train()

PyTorch is needed only by those who import this module.
"""

from tuner.torch.blocks import use
from tuner.torch.operators import Product, grouped, product, scaled_product
from tuner.torch.preparing import prepare

__all__ = ["Product", "grouped", "prepare", "product", "scaled_product", "use"]
