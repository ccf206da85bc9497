"""JSON as it is sent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def told_as_json(data: Any) -> str:
    """Compact JSON; what it has no words for, NaN and infinities, is null."""
    try:
        return json.dumps(data, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(finite(data), separators=(",", ":"))


def finite(data: Any) -> Any:
    """The same data with null for every number that is not finite."""
    if isinstance(data, float) and not math.isfinite(data):
        return None
    if isinstance(data, Mapping):
        return {key: finite(value) for key, value in data.items()}
    return [finite(value) for value in data] if isinstance(data, list | tuple) else data
