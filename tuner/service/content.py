"""What answers rest on beside the database: published results, models and kernels, by digest.

Published results and models are copied once into the cache, so that a snapshot can be answered after they have
changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tuner.declare.catalogue import kernels_folder
from tuner.devices.settings import cache_root
from tuner.store import models, tables
from tuner.store.models import StoredModel
from tuner.store.published import tuned_folder
from tuner.store.reading import Reader
from tuner.store.snapshots import positions
from tuner.version import __version__

#: Name, time of change and size of files.
_State = tuple[tuple[str, int, int], ...]


#: File with the models of the database, beside the copies of the published ones.
STORED = "stored-models.json"


def _told(found: Sequence[StoredModel]) -> bytes:
    """Models as text; empty without any."""
    if not found:
        return b""
    told = [each._replace(text=base64.b64encode(each.text).decode()) for each in found]  # type: ignore[arg-type]
    return json.dumps(sorted(told)).encode()


def stored_models(folder: Path) -> list[StoredModel]:
    """The models of the database, as they were when a folder of copies was made."""
    told = (folder / STORED).read_bytes() if (folder / STORED).is_file() else b""
    return [StoredModel._make((*named, base64.b64decode(text))) for *named, text in json.loads(told or b"[]")]


class Content:
    """Digests of files, which are read again only when one of them has changed."""

    def __init__(self, store: Reader, published: Path | None = None, kept: Path | None = None) -> None:
        """Names the folders.

        Args:
            store: The database, which has models, too.
            published: Folder of published results; the project's own when None.
            kept: Folder of the copies; one in the cache when None.
        """
        self._store = store
        self._models: tuple[int, bytes] = -1, b""
        self._published = published or tuned_folder()
        self._kept = kept or cache_root() / "service" / "published"
        self._known: dict[str, tuple[_State, str]] = {}

    def published(self) -> str:
        """Digest of the published results and models; they are copied where they are new."""
        files = sorted([*self._published.glob("*/*.json"), *self._published.glob("*/models/*.json")])
        newest = positions(self._store)[tables.models.name]
        if self._models[0] != newest:
            self._models = newest, _told(models.every(self._store))
        told = self._models[1]
        of_files = self._digest("published", self._published, files)
        digest = hashlib.sha256(of_files.encode() + told).hexdigest() if told else of_files
        if self.copy_of(digest) is None:
            self._copy(files, told, digest)
        return digest

    def code(self) -> str:
        """Version of tile-tuner, and a digest of the kernels' files."""
        folder = kernels_folder()
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")
        return f"{__version__}+{self._digest('code', folder, files)[:16]}"

    def copy_of(self, digest: str) -> Path | None:
        """Folder with the published results of a digest; None if there is no copy on this machine."""
        folder = self._kept / digest
        return folder if folder.is_dir() else None

    def _digest(self, name: str, folder: Path, files: Sequence[Path]) -> str:
        seen = [(path, path.stat()) for path in files]
        state = tuple((str(path), each.st_mtime_ns, each.st_size) for path, each in seen)
        if self._known.get(name, (None, ""))[0] != state:
            whole = hashlib.sha256()
            for path in files:
                told = path.read_bytes()
                whole.update(f"{path.relative_to(folder)}\0{len(told)}\0".encode() + told)
            self._known[name] = state, whole.hexdigest()
        return self._known[name][1]

    def _copy(self, files: Sequence[Path], told: bytes, digest: str) -> None:
        """Copies whole or not at all, whoever else does the same."""
        self._kept.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=self._kept, prefix=".new-"))
        try:
            for path in files:
                place = fresh / path.relative_to(self._published)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, place)
            (fresh / STORED).write_bytes(told)
            fresh.chmod(0o755)
            fresh.rename(self._kept / digest)
        except OSError:
            if self.copy_of(digest) is None:
                raise
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
