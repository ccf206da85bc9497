"""The folder of this machine's user where caches lie."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_root() -> Path:
    """Where caches lie; ``TUNER_CACHE`` moves them."""
    return Path(os.environ.get("TUNER_CACHE") or platformdirs.user_cache_dir("tile-tuner"))
