"""The CPU as a device, and Numba as its language."""
