# Sourced by the scripts beside it: finds the checkout, and makes sure that .venv holds the packages they need.
#
# If nothing must be installed, this takes a few milliseconds: a stamp in .venv names the lock files that it was
# made from. install.py does everything else.
#
#   TUNER_CUDA=auto|none|12|13    GPU packages: those for the driver found (auto), none, or a CUDA version's

root=$(cd -- "${BASH_SOURCE[0]%/*}/.." && pwd -P)

# fingerprint GROUP: everything that an installation depends on. The driver is identified by files that can be read
# without starting a process; install.py queries the driver itself.
fingerprint() {
    local driver=none
    if [[ -r /proc/driver/nvidia/version ]]; then
        read -r driver </proc/driver/nvidia/version
    elif [[ -e /dev/nvidiactl || -e /dev/dxg ]]; then
        driver=present
    fi
    {
        printf '%s\n' "$1" "$root" "$driver" "${TUNER_CUDA:-auto}"
        cat -- "$root"/requirements/*.lock "$root/pyproject.toml" "$root/scripts/install.py"
    } | sha256sum
}

# find_python: prints the first Python that can make the environment; says what is missing if there is none.
find_python() {
    local candidate missing trouble=""
    for candidate in python3.13 python3.12 python3.11 python3 python3.14; do
        missing=$("$candidate" - 2>/dev/null <<'PROBE'
import sys
missing = [] if sys.version_info >= (3, 11) else ["3.11 (it is %d.%d)" % sys.version_info[:2]]
for module in ("venv", "ensurepip", "ssl", "sqlite3", "ctypes", "fcntl"):
    try:
        __import__(module)
    except ImportError:
        missing.append("module " + module)
print(" and ".join(missing) or "nothing")
PROBE
        ) || continue
        if [[ $missing == nothing ]]; then
            command -v "$candidate"
            return 0
        fi
        trouble+="${trouble:+, }$(command -v "$candidate") without $missing"
    done
    echo "tile-tuner: Python 3.11 or newer with venv and pip is needed, found ${trouble:-none};
install one that has them (on Debian and Ubuntu: the packages python3 and python3-venv) and run this again" >&2
    return 3
}

# prepare GROUP: makes .venv hold the packages of GROUP: `run`, `test`, or extras of pyproject.toml joined by +, such as
# serve+fleet. Messages go to stderr.
prepare() {
    local wanted python stamp="$root/.venv/installed-$1" have=""
    wanted=$(fingerprint "$1")
    if [[ -x $root/.venv/bin/python && -x $root/.venv/bin/tuner && -f $stamp ]]; then
        read -r have <"$stamp" || true
        [[ $have == "$wanted" && ! -e $root/.venv/installing ]] && return 0
    fi
    python=$(find_python) || exit 3
    "$python" "$root/scripts/install.py" "$1" "$wanted" >&2 || exit $?
}
