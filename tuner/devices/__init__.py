"""Devices that measure kernels: CUDA GPUs, the CPU, and a fake one for tests.

`protocol` defines what a device does. `detect` finds devices without loading a GPU library. `opening` opens
one; only worker processes call it.
"""
