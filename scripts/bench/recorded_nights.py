"""Reads recordings of nights."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import zstandard

from tuner.night.stored import Sentinel
from tuner.results import codec


def sentinels(folder: Path) -> Iterator[Sentinel]:
    """Every sentinel of the recordings in a folder, in the order recorded."""
    for path in sorted(folder.glob("*.jsonl.zst")):
        with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as plain:
            for line in io.TextIOWrapper(plain, encoding="utf-8"):
                yield codec.from_json(Sentinel, json.loads(line))
