"""One process per database and device."""

import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from tuner.declare.hardware import DeviceInfo
from tuner.errors import EnvironmentTrouble, LockedByAnother
from tuner.study.locks import database_lock

GPU = DeviceInfo("NVIDIA H200", "cuda", uuid="GPU-1")
HOLDER = """
import os, sys
from tuner.declare.hardware import DeviceInfo
from tuner.study.locks import database_lock
with database_lock(sys.argv[1], DeviceInfo("NVIDIA H200", "cuda", uuid="GPU-1"), "tune gemm"):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/studies.db"


def test_the_second_process_is_told_who_holds_it_until_a_kill(url: str, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "studies.db")
    linked = f"sqlite:///{tmp_path}/link.db?mode=rw"
    command = [sys.executable, "-c", HOLDER, url]
    pipe = subprocess.PIPE
    root = Path(tuner.__file__).parent.parent
    with subprocess.Popen(command, cwd=root, stdin=pipe, stdout=pipe, text=True) as holder:
        pid = holder.stdout.readline().strip()
        with pytest.raises(LockedByAnother, match=rf"process {pid} of .*\(tune gemm, since 20.*NVIDIA H200"):
            database_lock(linked, GPU, "nightly").__enter__()
        holder.kill()
    with database_lock(url, GPU, "nightly"):
        pass


def test_a_folder_that_cannot_take_the_lock(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentTrouble, match="a lock file must be written beside the database"):
        database_lock(f"sqlite:///{tmp_path}/file/studies.db", GPU, "tune").__enter__()
