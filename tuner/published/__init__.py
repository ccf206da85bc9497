"""Results that come with the project: reviewed text files, read without a database.

``configs/tuned/<device>/<operation>.json`` holds one block for each problem: the champion, the library measured
beside it, and the runners-up. `publish` writes them from a store; `champions`, `entries` and `devices` read
them.
"""

from tuner.published.form import Published, RunnerUp
from tuner.published.reading import champions, devices, entries, tuned_folder
from tuner.published.standing import standing
from tuner.published.writing import publish

__all__ = [
    "Published", "RunnerUp", "champions", "devices", "entries", "publish", "standing", "tuned_folder",
]  # fmt: skip
