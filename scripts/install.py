"""Makes .venv hold the locked packages of a group, and the checkout itself; called by environment.sh.

    install.py GROUP FINGERPRINT         GROUP: run (what `tuner` needs), extras beside it (serve, serve+fleet)
                                         or test (and the development packages)

It uses the standard library alone, because it runs before anything is installed. If an installation is cut
short, the file .venv/installing remains and the next run starts again. Only one runs at a time.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
UNFINISHED = VENV / "installing"
CUDA_ERROR_NO_DEVICE = 100
#: Modules are compiled as they are first imported: most of what is installed never is.
PIP = [str(PYTHON), "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-compile"]
#: What the tests of tuner.torch run with.
TORCH = "torch==2.13.0"
#: Debian's packages whose programs tests run, and names of those.
PROGRAMS = {
    "chromium": ("chromium", "chromium-browser", "google-chrome"), "postgresql": ("initdb", "pg_lsclusters"),
    "systemd": ("systemd-analyze",),
}  # fmt: skip
#: pip settings of the user that would send packages elsewhere than into .venv.
DIVERTING = frozenset(
    ["PIP_USER", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_REQUIRE_VIRTUALENV", "PYTHONHOME", "PYTHONPATH"]
)
NO_NETWORK = re.compile(
    r"NewConnectionError|ConnectTimeout|name resolution|ProxyError|Network is unreachable|from versions: none|"
    r"Read timed out|ConnectionError|Max retries"
)


class InstallationError(Exception):
    """The environment cannot be made; the message says why and what to do."""


def say(text: str) -> None:
    """Prints a message for the user."""
    print(f"tile-tuner: {text}", file=sys.stderr, flush=True)


def driver_cuda_major() -> int:
    """Returns the CUDA major version that the NVIDIA driver supports; 0 without a driver or a GPU."""
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    for name in ("libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"):
        try:
            driver = ctypes.CDLL(name)
        except OSError:
            continue
        version = ctypes.c_int(0)
        if driver.cuInit(0) == CUDA_ERROR_NO_DEVICE or driver.cuDriverGetVersion(ctypes.byref(version)) != 0:
            return 0
        return version.value // 1000
    return 0


def gpu_group() -> str:
    """Returns which lock file of GPU packages this machine needs: cuda13, cuda12 or none ("")."""
    asked = os.environ.get("TUNER_CUDA", "auto")
    if asked not in ("auto", "none", "12", "13"):
        raise InstallationError(f"TUNER_CUDA is auto, none, 12 or 13, got {asked!r}; choose one of them")
    if asked != "auto":
        return "" if asked == "none" else f"cuda{asked}"
    major = driver_cuda_major()
    if 0 < major < 12:
        say(f"the NVIDIA driver supports CUDA {major}, 12 or newer is needed for the GPU; going on without it")
    return "" if major < 12 else f"cuda{min(major, 13)}"


def locks(group: str, gpu: str) -> list[str]:
    """Returns the names of the lock files to install."""
    if group == "test":  # kernels are compiled in the tests of a machine without a GPU, too
        return ["runtime", "dev", "triton", gpu or "nvrtc"]
    return ["runtime", *(extra for extra in group.split("+") if extra != "run"), *([gpu] if gpu else [])]


def run(command: list[str], what: str, lock: int) -> None:
    """Runs a command; shows its errors only when it fails, so that a good run stays quiet.

    The lock is handed down: it stays held until the command has ended, even where this process is killed.
    """
    environment = {name: value for name, value in os.environ.items() if name not in DIVERTING}
    # fmt: off
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=subprocess.PIPE,
        text=True, errors="replace", pass_fds=(lock,),
    )
    # fmt: on
    errors = process.communicate()[1]
    if process.returncode == 0:
        return
    sys.stderr.write("".join(line + "\n" for line in errors.splitlines()[-40:]))
    if NO_NETWORK.search(errors):
        raise InstallationError(
            f"{what} failed: no package index could be reached (its own words are above); connect this "
            "machine, or point pip at a mirror (PIP_INDEX_URL) or a folder of wheels (PIP_NO_INDEX=1 "
            "PIP_FIND_LINKS=FOLDER), and run this again"
        )
    raise InstallationError(f"{what} failed with exit code {process.returncode}; its own words are above")


def conflicting(gpu: str) -> bool:
    """Whether .venv holds CuPy for another CUDA major version than the wanted one; both cannot be installed."""
    other = {"cuda12": "cupy_cuda13x", "cuda13": "cupy_cuda12x", "nvrtc": "cupy_cuda12x"}.get(gpu)
    return bool(other) and any(VENV.glob(f"lib/python*/site-packages/{other}-*"))


def usable() -> bool:
    """Whether .venv has a Python that starts and has pip."""
    if not PYTHON.exists():
        return False
    return subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True, check=False).returncode == 0


def packages(names: list[str], lock: int) -> None:
    """Installs what lock files name; they name whatever that needs."""
    files = [part for name in names for part in ("-r", str(ROOT / "requirements" / f"{name}.lock"))]
    options = ("--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:")
    run([*PIP, *options, *files], "installing the packages", lock)


def install(group: str, lock: int) -> None:
    """Installs a group into .venv, made anew where it is missing, broken, half-made or for another CUDA."""
    names = locks(group, gpu_group())
    if VENV.exists() and (UNFINISHED.exists() or not usable() or conflicting(names[-1])):
        say("making .venv anew: it is unfinished, broken or for another CUDA version")
        shutil.rmtree(VENV)
    say(f"installing into .venv (requirements/: {', '.join(names)}), in silence; later runs start at once")
    if names[-1] in ("cuda12", "cuda13"):
        say(f"this includes the GPU packages for CUDA {names[-1][4:]}: more than a gigabyte to download")
    VENV.mkdir(exist_ok=True)
    UNFINISHED.touch()
    if not PYTHON.exists():
        run([sys.executable, "-m", "venv", str(VENV)], "making the virtual environment", lock)
    if group == "test":  # first, because it brings versions of its own of what the locks name
        pytorch(lock)
    # The others' locks name nothing that is in the first one: two processes install at a time.
    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(packages, part, lock) for part in (names[:1], names[1:]) if part]:
            done.result()
    run(
        [*PIP, "--quiet", "--no-deps", "--no-build-isolation", "--editable", str(ROOT)],
        "installing the checkout",
        lock,
    )


def programs() -> None:
    """Installs Debian's packages whose programs tests run, where they are missing and this user may."""
    missing = [package for package, names in PROGRAMS.items() if not any(map(shutil.which, names))]
    if not missing:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(f"the superuser of Debian may install {' '.join(missing)}: what needs them is not tested")
        return
    # At run level 1 a package starts no server of its own.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
    for command in (["update"], ["install", "-y", "--no-install-recommends", *missing]):
        done = subprocess.run(
            ["apt-get", *command], env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        if done.returncode:
            say(f"{' '.join(missing)} could not be installed: {done.stderr.strip().splitlines()[-1:]}")
            return


def pytorch(lock: int) -> None:
    """Installs PyTorch for its tests, where none is found: the build that the index has, so without a hash."""
    if not any(VENV.glob("lib/python*/site-packages/torch")):
        run([*PIP, "--quiet", "--only-binary=:all:", TORCH], "installing PyTorch", lock)


def complete(group: str, fingerprint: str) -> bool:
    """Whether a group is installed: another process may have installed it while this one waited."""
    stamp = VENV / f"installed-{group}"
    if UNFINISHED.exists() or not stamp.is_file() or not (VENV / "bin" / "tuner").exists():
        return False
    return stamp.read_text().strip() == fingerprint.strip() and usable()


def main(group: str, fingerprint: str) -> int:
    """Installs a group unless another process has just done so; returns the exit code."""
    started = time.monotonic()
    with (ROOT / ".venv.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another installation is under way here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        if not complete(group, fingerprint):
            beside = threading.Thread(target=programs)
            if group == "test":
                beside.start()
            install(group, lock.fileno())
            if group == "test":
                beside.join()
            (VENV / f"installed-{group}").write_text(f"{fingerprint.strip()}\n")
            UNFINISHED.unlink()
    say(f"ready after {time.monotonic() - started:.0f} s")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        say("installation interrupted; the next run does it again from the start")
        sys.exit(130)
    except InstallationError as error:
        say(str(error))
        sys.exit(3)
    except OSError as error:
        say(f"the checkout must be writable and its disk have room, for .venv: {error}")
        sys.exit(3)
