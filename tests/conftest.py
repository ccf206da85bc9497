"""What all tests share: none of them reads or writes the user's own caches and database."""

import gc
import importlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fixtures import postgres
from hypothesis import HealthCheck, settings
from threadpoolctl import threadpool_limits

# Read where the package is loaded, which the conftest.py of a folder may do.
os.environ["TUNER_DEVICES"] = str(Path(__file__).with_name("fixtures") / "devices")
pytest.register_assert_rewrite("contracts.device_suite")

# What a test holds for does not depend on how busy the machine is: no example has a deadline, and slow drawing
# is no failure. A test that suppresses a health check of its own names `too_slow` again. Examples are the same
# in every run, as searches are: what fails, fails again.
settings.register_profile(
    "any machine", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")


def pytest_configure(config: pytest.Config) -> None:
    """Machine code is kept from run to run under .pytest_cache, so that a second run is quicker."""
    kept = getattr(config, "cache", None)
    os.environ["TUNER_CACHE"] = str(kept.mkdir("tuner")) if kept else tempfile.mkdtemp()
    os.environ.pop("TUNER_DB", None)
    os.environ["TUNER_CONFIG"] = os.devnull  # no defaults of whoever runs the tests
    # Tests do not wait for those who measure on this machine, and those who measure not for tests.
    os.environ["TUNER_LOCKS"] = tempfile.mkdtemp(prefix="tuner-locks-")
    # A shell starts what runs in the background with Ctrl-C ignored, and processes would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Pages and notebooks come first: as the last ones they would keep one process busy for a minute."""
    items.sort(key=lambda item: item.path.name != "test_docs.py")


def pytest_collection_finish() -> None:
    """What was loaded stays: no later collection of garbage walks through it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that the test runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Any]:
    """An empty database in a file."""
    from tuner.store import Store

    with Store.open(f"sqlite:///{tmp_path}/studies.db") as opened:
        yield opened


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """URL of the database ``postgres`` of a PostgreSQL server that ends with the tests."""
    try:
        with postgres.server() as url:
            yield url
    except postgres.NoServerError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def blank(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A database of the present schema without records; copying it is quicker than making it."""
    from tuner.store import Store

    path = tmp_path_factory.mktemp("blank") / "studies.db"
    Store.open(f"sqlite:///{path}").close()
    return path.read_bytes()


@pytest.fixture
def own_records(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: bytes) -> Iterator[None]:
    """Nothing is known of earlier tests, and the database is this test's own."""
    import tuner

    (tmp_path / "studies.db").write_bytes(blank)
    monkeypatch.setenv("TUNER_DB", f"sqlite:///{tmp_path}/studies.db")
    tuner.clear_caches()
    yield
    tuner.clear_caches()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that calls were prepared for, in order."""
    from tuner.python import calls

    names: list[str] = []
    prepare = calls.kernel_call

    def noted(request: Any, decision: Any) -> Any:
        names.append(decision.kernel.name)
        return prepare(request, decision)

    monkeypatch.setattr(calls, "kernel_call", noted)
    return names


@pytest.fixture(scope="session")
def blank_on_server(postgresql: str) -> postgres.Databases:
    """The same on a server, where the empty database is a template for others."""
    from tuner.store import Store

    databases = postgres.Databases(postgresql)
    Store.open(databases.fresh()).close()
    return databases


@pytest.fixture(params=["sqlite", "postgresql"])
def either_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database without records in a file, then one on a server."""
    if request.param == "postgresql":
        databases = request.getfixturevalue("blank_on_server")
        return databases.fresh(databases.first)
    (tmp_path / "studies.db").write_bytes(request.getfixturevalue("blank"))
    return f"sqlite:///{tmp_path / 'studies.db'}"


@pytest.fixture
def either_store(either_url: str) -> Iterator[Any]:
    """The same, opened."""
    from tuner.store import Store

    with Store.open(either_url) as opened:
        yield opened


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """Most matrices are small: threads of BLAS only wait for each other, long where a core is taken.

    Processes that tests start have one from the beginning: others spin for as long as the imports take.
    """
    with threadpool_limits(1, "blas"), pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="session", autouse=True)
def one_seed() -> Iterator[None]:
    """Searches that are given no seed have this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("secrets.randbits", lambda bits: 1)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_compile_worker() -> Iterator[None]:
    """Studies of this process have one: to start another takes longer than what most tests compile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tuner.workers.compile_pool.WORKERS_PER_DEVICE", 1)
        yield


@pytest.fixture
def one_tree_thread() -> Iterator[None]:
    """LightGBM has one thread: tests of kernels ask OpenMP for more than there are cores, and they spin."""
    importlib.import_module("lightgbm")  # limits hold for libraries that are loaded
    with threadpool_limits(1, "openmp"):
        yield


@pytest.fixture
def few_trees(one_tree_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits have few trees: enough to see that there is a model."""
    from fixtures.model_survey import FEW_TREES

    for name, growth in zip(("OF_CONFIGS", "OF_LIBRARY"), FEW_TREES, strict=True):
        monkeypatch.setattr(f"tuner.model.fit.{name}", growth)
