"""One process at a time times on a device of this machine."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.fake_device import ROOT

from tuner.declare.hardware import DeviceInfo
from tuner.devices import device_lock as locks
from tuner.devices.cpu.kind import cache_groups
from tuner.devices.device_lock import device_holder, device_lock, lock_files, lock_folder
from tuner.errors import EnvironmentTrouble, LockedByAnother

GPU = DeviceInfo("NVIDIA H200", "cuda", uuid="GPU-1")
HOLDER = """
import os, sys
from tuner.devices.device_lock import device_lock
from tuner.declare.hardware import DeviceInfo
with device_lock(DeviceInfo("NVIDIA H200", "cuda", uuid="GPU-1"), "tune gemm"):
    print(os.getpid(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The locks of each test are its own."""
    monkeypatch.setenv("TUNER_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


def test_the_second_process_is_told_who_holds_a_device_until_a_kill() -> None:
    pipe, command = subprocess.PIPE, [sys.executable, "-c", HOLDER]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as holder:
        pid = holder.stdout.readline().strip()
        told = rf"process {pid} of user \S+ on \S+ \(tune gemm, since 20"
        with pytest.raises(LockedByAnother, match=f"{told}.*works with NVIDIA H200.*wait for it, or stop it"):
            device_lock(GPU, "nightly").__enter__()
        assert f"process {pid} of user" in device_holder(GPU)
        with pytest.raises(LockedByAnother, match="one process at a time times on a device"):
            device_lock(GPU, "nightly", wait_s=0.3).__enter__()
        holder.send_signal(signal.SIGKILL)
    with device_lock(GPU, "nightly", wait_s=5):
        assert "(nightly, since" in device_holder(GPU)
    assert device_holder(GPU) == ""


def test_cores_behind_other_caches_have_other_locks(tmp_path: Path) -> None:
    for core in range(8):
        levels = {"1": str(core), "3": "0-3" if core < 4 else "4,5,6-7", "2": str(core)}
        for number, (level, cores) in enumerate(levels.items()):
            index = tmp_path / f"cpu{core}" / "cache" / f"index{number}"
            index.mkdir(parents=True)
            (index / "level").write_text(level)
            (index / "shared_cpu_list").write_text(f"{cores}\n")
    groups = [cache_groups(cores, tmp_path) for cores in ({1, 2}, {6}, {3, 4}, {99})]
    assert groups == [[0], [4], [0, 4], [0]]


def test_every_user_may_take_the_lock_whatever_the_umask() -> None:
    before = os.umask(0o077)
    try:
        with device_lock(GPU, "first"):
            pass
    finally:
        os.umask(before)
    assert lock_files(GPU)[0].stat().st_mode & 0o777 == 0o666
    with device_lock(GPU, "first"), device_lock(DeviceInfo("NVIDIA H200", "cuda"), "beside it"):
        lock_files(GPU)[0].write_text("[1, ")
        assert device_holder(GPU) == "another process"


def test_the_folder_is_one_that_all_users_share(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("TUNER_LOCKS")
    private, shared = tmp_path / "private", tmp_path / "shared"
    private.mkdir(mode=0o755)
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setattr(locks, "SHARED_FOLDERS", (tmp_path / "none", private, shared))
    assert lock_folder() == shared
    monkeypatch.setattr(locks, "SHARED_FOLDERS", (private,))
    with pytest.raises(EnvironmentTrouble, match=r"none of \S+private is one; set TUNER_LOCKS to a folder"):
        lock_folder()


def test_a_folder_or_file_that_cannot_be_used_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    lock_files(GPU)[0].mkdir()
    with pytest.raises(EnvironmentTrouble, match=r"tile-tuner-GPU-1\.lock is not .*set TUNER_LOCKS"):
        device_lock(GPU, "first").__enter__()
    (folder / "file").write_text("")
    monkeypatch.setenv("TUNER_LOCKS", str(folder / "file" / "below"))
    with pytest.raises(EnvironmentTrouble, match="TUNER_LOCKS names the folder of device locks, and"):
        device_lock(GPU, "first").__enter__()
