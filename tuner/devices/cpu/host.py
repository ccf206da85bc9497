"""The host's memory available to this process; a container often gets only part of the machine."""

from __future__ import annotations

from pathlib import Path

import psutil

CGROUPS = Path("/sys/fs/cgroup")
#: Files with a control group's limit and its use, in versions 2 and 1 (Linux, "Control Group v2", "memory").
_FILES = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))


def memory_bytes() -> int:
    """Returns total memory in bytes: the machine's, or the control group's if that is less."""
    return min(int(psutil.virtual_memory().total), *(limit for limit, _ in _limits()))


def free_bytes() -> int:
    """Returns the bytes of memory available without swapping."""
    return min(int(psutil.virtual_memory().available), *(max(limit - used, 0) for limit, used in _limits()))


def _limits() -> list[tuple[int, int]]:
    """Returns limit and use of the control group; the limit is infinite if there is none."""
    found = [(1 << 62, 0)]
    for names in _FILES:
        try:
            limit, used = (int((CGROUPS / name).read_text()) for name in names)
        except (OSError, ValueError):  # "max" says that there is no limit
            continue
        found.append((limit, used))
    return found
