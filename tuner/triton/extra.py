"""What this package adds to the core: a language of kernels, and functions of that language as kernels."""

from tuner.extras import Extra

EXTRA = Extra(
    provides={"language": "tuner.triton.language:LANGUAGE", "function": "tuner.triton.jit:JitCode"},
)
