"""Devices that measure kernels: CUDA GPUs and the CPU.

`protocol` defines what a device does. `detect` finds devices without loading a GPU library; only worker
processes open one. Each kind is a folder here, or in a folder that ``TUNER_DEVICES`` names: the fake one of
tests is in such a folder.
"""

import os

__path__ += filter(None, os.environ.get("TUNER_DEVICES", "").split(os.pathsep))
