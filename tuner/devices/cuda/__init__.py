"""NVIDIA's GPUs as devices, and CUDA C++ as their language."""
