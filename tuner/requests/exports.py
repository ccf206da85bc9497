"""Writes the files of an export that a server sent."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

from tuner.errors import EnvironmentTrouble

#: Names of exported files.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,200}")


def written(data: bytes, headers: Mapping[str, str], folder: Path) -> list[Path]:
    """Checks what was sent against its digest, and writes it.

    Args:
        data: A file, or a zip of several.
        headers: Of the response: ``repr-digest`` and ``content-disposition``.
        folder: Where to write.

    Raises:
        EnvironmentTrouble: What came is not what was sent, or names a place outside of the folder.
        InputError: The folder cannot be written.
    """
    from tuner.export import write_file

    told = re.search(r"sha-256=:([A-Za-z0-9+/=]+):", headers.get("repr-digest") or "")
    if told is None or base64.b64decode(told[1]) != hashlib.sha256(data).digest():
        raise EnvironmentTrouble("the export arrived damaged: its digest is not the one told; fetch it again")
    named = re.search(r'filename="([^"]+)"', headers.get("content-disposition") or "")
    name = named[1] if named else ""
    files = {name: data}
    if name.endswith(".zip"):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            files = {each: archive.read(each) for each in archive.namelist()}
    for each in files:
        if not _NAME.fullmatch(each):
            raise EnvironmentTrouble(f"a file of an export has a plain name, got {each!r}; it is not written")
    return [write_file(folder, each, content) for each, content in files.items()]
