"""Results that come with the project: reviewed text files, read without a database.

``configs/tuned/<device>/<operation>.json`` holds one block for each problem: the champion, the library measured
beside it, and the runners-up. `publish` writes them from a store; `champions`, `entries` and `devices` read
them.
"""

from tuner.store.published.form import Published, RunnerUp, standing
from tuner.store.published.writing import champions, devices, entries, publish, tuned_folder

__all__ = [
    "Published", "RunnerUp", "champions", "devices", "entries", "publish", "standing", "tuned_folder",
]  # fmt: skip
