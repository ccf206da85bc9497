"""Triton: its kernels tuned, checked and kept as any other, and `autotune` in the place of Triton's own.

Triton is needed only by those who tune its kernels. On a GPU it is a compiler here: the machine code that it
makes is loaded, verified, timed and launched as that of CUDA C++.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.errors import InputError


def autotune(
    configs: Sequence[Any] | Mapping[str, Sequence[Any]],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] = (),
    restore_value: Sequence[str] = (),
    pre_hook: object = None,
    post_hook: object = None,
    use_cuda_graph: bool = False,
    **options: Any,
) -> Callable[[Any], Any]:
    """Tunes a function under ``triton.jit`` as `triton.autotune` does, but keeps and checks what it measures.

    A call at a new key takes the champion of the database. Where there is none, the configs are compiled side
    by side and measured in processes of their own, on inputs like the call's; one that crashes, hangs or is
    wrong is a record. What is right says `reference`, else the first config.

    Args:
        configs: Triton's, or parameters with their values, all of which are combined.
        key: Names of arguments; other values of theirs are tuned for anew.
        prune_configs_by: As Triton's.
        reset_to_zero: Names of arrays that are zeros when a measured run begins.
        restore_value: Names of arrays that a run reads and changes.
        pre_hook: A function that is called before each measured run with all arguments by name, tensors of
            PyTorch among them. A config's own is called before each later launch, too.
        post_hook: Refused.
        use_cuda_graph: True to time replays of a graph, with warm caches.
        options: Those of `tuner.kernel`, such as ``seconds``, ``reference``, ``shapes``, ``numbers``, ``db``,
            and ``on_miss``, which is ``measure`` unless given. Triton's ``warmup``, ``rep``, ``do_bench`` and
            ``cache_results`` are taken and not used: measuring is this package's.

    Raises:
        InputError: There is a post_hook.
        UnknownName: There is no such option.
    """
    from tuner.triton.tuned_kernel import TunedKernel  # which needs Triton

    if post_hook is not None:
        raise InputError("a kernel has no post_hook, got one; use restore_value=, or triton.autotune")
    options |= {"regime": "hot-graph"} if use_cuda_graph else {}
    options |= {"reset_to_zero": reset_to_zero, "restore_value": restore_value}
    return lambda fn: TunedKernel(fn, configs, key, options, prune_configs_by, pre_hook)
