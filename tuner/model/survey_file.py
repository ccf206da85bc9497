"""Surveys kept as arrays in a NumPy file.

The file has ``shape``, ``config`` and ``time_s``, one value a timing: the number of its problem, of its config
(-1: the library), and seconds. ``shapes`` is a JSON text of lists of dims followed by the layout, ``configs``
one of pairs of a kernel's name and its config. ``provenance``, a JSON object, may tell where it was made.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tuner.declare.problem import Operation
from tuner.errors import InputError, TunerError
from tuner.model.table import Timings, from_arrays


def read_survey(path: Path, operation: Operation, dtype: str, provenance: Mapping[str, Any]) -> Timings:
    """Reads a survey.

    Args:
        path: The file.
        operation: What was timed.
        dtype: Of all problems; the operation's first when empty.
        provenance: Is added to the file's own, with its name and hash.

    Raises:
        InputError: It is not of this form.
    """
    try:
        with np.load(path, allow_pickle=False) as data:
            found = from_arrays(data, operation, dtype)
            own = json.loads(str(data["provenance"])) if "provenance" in data else {}
        digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    except TunerError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"a survey is a NumPy file of shape, config, time_s, shapes and configs, {path} is not: {error}; "
            "name another one"
        ) from error
    return replace(found, provenance={**own, **provenance, "survey": path.name, "survey_sha256": digest})
