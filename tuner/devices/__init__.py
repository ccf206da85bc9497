"""Devices that measure kernels: CUDA GPUs, the CPU, and a fake one for tests.

`protocol` says what a device does, `detect` finds devices without loading a GPU library, and
`opening` makes one; only worker processes call it.
"""
