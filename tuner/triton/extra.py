"""What this package adds to the core: a language of kernels, functions of it as kernels, and tables of configs."""

from tuner.extras import Extra

EXTRA = Extra(
    provides={
        "language": "tuner.triton.language:LANGUAGE", "function": "tuner.triton.jit:JitCode",
        "tables": "tuner.triton.tables",
    },
)  # fmt: skip
