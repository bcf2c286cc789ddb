"""Fixtures: real engines, made once a session."""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from multiprocessing.util import Finalize
from pathlib import Path
from weakref import WeakKeyDictionary

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
SUPPORT = TESTS / "support"

# Engines leave sockets and files behind in the folder for temporary files: one of our own, which goes with the tests.
TEMPORARY = tempfile.mkdtemp(prefix="mmout-tests-")
os.environ["TMPDIR"] = tempfile.tempdir = TEMPORARY
Finalize(None, shutil.rmtree, (TEMPORARY, True), exitpriority=-200)  # after the one in it of multiprocessing

# Engines start processes of their own: what they need must be in the environment before the first one.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(SUPPORT), os.environ.get("PYTHONPATH")]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("TORCH_COMPILE_DISABLE", "1")  # vLLM compiles how it ranks logprobs, half a minute in each run
os.environ.setdefault("OMP_NUM_THREADS", "1")  # two workers on two cores: more threads would wait for each other
sys.path[:0] = [str(SUPPORT), str(TESTS.parent / "scripts")]

import forked_python  # noqa: E402 - it stands in the folder above

# The first process of a run sets these; its workers inherit them.
os.environ.setdefault(forked_python.SOCKET, f"{TEMPORARY}/fork")
os.environ.setdefault(forked_python.OWNER, str(os.getpid()))

with suppress(ImportError):  # each client reads the certificates of the system, which takes 40 ms
    from httpx._transports import default as transports

    transports.create_ssl_context = cache(transports.create_ssl_context)

# A shell has what it starts in the background ignore Ctrl-C, which tests send to this process and to others.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

HAS_ENGINE = find_spec("vllm") is not None
NESTED = "PYTEST_CURRENT_TEST" in os.environ
"""Whether a test runs this pytest, and waits for it."""
settings.register_profile("base", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("base"), derandomize=True, print_blob=True, max_examples=50)
settings.register_profile("check", settings.get_profile("ci"), max_examples=5)
settings.register_profile("test", settings.get_profile("ci"), max_examples=15)
settings.register_profile("long", settings.get_profile("base"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "test"))


def pytest_configure(config: pytest.Config) -> None:
    """Have two workers start each engine once, where pytest-xdist is installed."""
    if config.pluginmanager.hasplugin("xdist"):
        from shared_engines import Plugin

        config.pluginmanager.register(Plugin(prepare=forked_python.start_server))
    if hasattr(config, "workerinput"):  # tests ask what of the folder for temporary files is open, their own among it
        config.option.basetemp = f"{TEMPORARY}/pytest"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Run a test with the marker ``timing`` while no other worker runs a test."""
    if NESTED:  # the test that runs this pytest holds the lock, so a test that must be alone would wait forever
        return (yield)
    alone = item.get_closest_marker("timing") is not None
    prefix = os.environ[forked_python.SOCKET]
    with Path(f"{prefix}.running").open("a") as running:
        with Path(f"{prefix}.next").open("a") as following:  # a test that waits to be alone keeps others from starting
            fcntl.flock(following, fcntl.LOCK_EX)
            fcntl.flock(running, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        return (yield)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Leave out, and say so, what would begin after ``MMOUT_TESTS_BEGIN_UNTIL``, seconds since 1970."""
    if time.time() > float(os.environ.get("MMOUT_TESTS_BEGIN_UNTIL", "inf")):
        pytest.skip("no time is left for it (MMOUT_TESTS_BEGIN_UNTIL)")


ALL_OF_ENGINES = re.compile(r"^pytestmark = (\[[^\]]*)?pytest\.mark\.engine", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out files and folders that are all about engines where none is installed: they could not be imported."""
    return True if not HAS_ENGINE and _all_of_engines(collection_path) else None


def _all_of_engines(path: Path) -> bool:
    files = [*path.rglob("test_*.py")] if path.is_dir() else [path]
    return bool(files) and all(ALL_OF_ENGINES.search(file.read_text()) for file in files)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Scale the examples of a property that sets their number itself: what it sets is the number for 50 in general."""
    function = getattr(item.obj, "__func__", item.obj) if isinstance(item, pytest.Function) else None
    own = getattr(function, "_hypothesis_internal_use_settings", None)
    if own is None or hasattr(function, "scaled_examples"):
        return
    general = settings.default.max_examples
    if own.max_examples != general:
        count = max(1, min(own.max_examples, 50) * general // 50)
        function._hypothesis_internal_use_settings = settings(own, max_examples=count)
    function.scaled_examples = True


def pytest_collection_finish() -> None:
    """Keep what was imported out of garbage collections, each of which would take up to half a second."""
    gc.collect()
    gc.freeze()
    gc.unfreeze = lambda: None  # vLLM calls it when an engine in this process ends
    _have_loggers_propagate()


def _have_loggers_propagate() -> None:
    """Have all loggers propagate, so that pytest captures what they log at the root.

    pytest adds two handlers to each logger that does not propagate, in each phase of each test. torch has 80 of them.
    """
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger) and not logger.propagate and logger.name.partition(".")[0] == "torch":
            logger.propagate = True


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real rasters beside the checkout."""
    folder = TESTS.parent.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real rasters: {folder} is absent")
    return folder


@pytest.fixture(scope="session")
def hls(shared_data: Path) -> Path:
    """A real scene of ten bands, 224 pixels square, float32, EPSG:32614."""
    return shared_data / "hls_10band_utm14n_224.tif"


@pytest.fixture(scope="session", autouse=True)
def holds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder through which tests and held steps speak; engine processes inherit its name."""
    folder = tmp_path_factory.mktemp("holds")
    os.environ["MMOUT_TEST_HOLDS"] = str(folder)
    return folder


@pytest.fixture(autouse=True)
def _own_environment() -> None:
    """Let a test set variables of the environment: an engine in this process keeps those that it started with."""
    envs = sys.modules.get("vllm.envs")
    if envs is not None:
        envs.disable_envs_cache()


@pytest.fixture
def compiling() -> Iterator[None]:
    """Have ``torch.compile`` compile in this process."""
    import torch._dynamo

    with torch._dynamo.config.patch(disable=False):
        yield


@pytest.fixture(scope="session")
def s3_address() -> Iterator[str]:
    """The address of the S3 server: one for all modules, as the package keeps what leads to a bucket by its name."""
    from buckets import started

    with started() as address:
        yield address


@pytest.fixture(scope="session")
def demo_scene():
    """The embedded scene and its truth, [6, 512, 512] and [512, 512]."""
    from scene_generator import Scene

    from vllm_mmout.geo import read_raster
    from vllm_mmout.models.embedded.scene import SCENE, embedded_truth

    return Scene(read_raster(SCENE).array, embedded_truth())


@pytest.fixture(scope="session")
def water_index() -> str:
    """The embedded model's folder."""
    from vllm_mmout import embedded_model

    return embedded_model("water-index")


def every_processor(**settings: object) -> dict[str, object]:
    """``additional_config`` that gives the embedded model all processors of the tests."""
    from processors_for_tests import ALL

    return {"mmout": {"output_processor": ALL, "decode_threads": 4, **settings}}


@pytest.fixture(scope="session")
def water_server():
    """A server of the embedded model, with the flags that a user gets by default."""
    from serving import served

    with served("water-index") as server:
        yield server


@pytest.fixture(scope="session")
def collector():
    """Takes OpenTelemetry's spans of `guarded_server`."""
    from spans_collected import Collector

    made = Collector()
    yield made
    made.close()


@pytest.fixture(scope="session")
def guarded_server(tmp_path_factory: pytest.TempPathFactory, collector):
    """A server with a key and small limits, which may fetch from this machine, and read files of one folder.

    The folder is ``local`` in the one that the fixture `guarded_folder` names, where its results lie too, in
    ``results``. Its spans go to `collector`.
    """
    from serving import served
    from spans_collected import ENVIRONMENT

    folder = tmp_path_factory.getbasetemp() / "guarded"
    (folder / "local").mkdir(parents=True)
    options = {
        "--api-key": "secret",
        "--mmout-max-waiting": 2,
        "--mmout-max-upload": "2M",
        "--mmout-max-area": 50,
        "--mmout-max-scenes": 2,
        "--mmout-max-scene-bytes": "1500k",
        "--mmout-max-results": "300k",
        "--mmout-results-dir": folder / "results",
        "--mmout-receive-timeout": 1,
        "--mmout-send-timeout": 1,
        "--allowed-media-domains": "127.0.0.1",
        "--allowed-local-media-path": folder / "local",
        "--otlp-traces-endpoint": collector.address,
        "--additional-config": json.dumps({"mmout": {"output_processor": ["segmentation", "tensor"]}}),
    }
    limits = {**ENVIRONMENT, "MMOUT_FETCH_TIMEOUT": "1", "MMOUT_FETCH_RETRIES": "0", "MMOUT_FETCH_LIMIT": "1M"}
    flags = [str(text) for option in options.items() for text in option]
    with served("water-index", *flags, environment=limits) as server:
        yield server


@pytest.fixture(scope="session")
def guarded_folder(guarded_server: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Holds the folders ``local`` and ``results`` of `guarded_server`."""
    return tmp_path_factory.getbasetemp() / "guarded"


@pytest.fixture(scope="session")
def llm(water_index: str):
    """An ``LLM`` of the embedded model with every processor of the tests, in this process."""
    from model_folders import engine_here
    from vllm.v1.engine.core_client import InprocClient

    llm = engine_here(water_index, additional_config=every_processor())
    assert isinstance(llm.llm_engine.engine_core, InprocClient)
    return llm


@pytest.fixture(scope="session")
def mp_llm(water_index: str):
    """The same in processes of its own."""
    from model_folders import engine_elsewhere
    from vllm.v1.engine.core_client import SyncMPClient

    llm = engine_elsewhere(water_index, additional_config=every_processor())
    assert isinstance(llm.llm_engine.engine_core, SyncMPClient)
    yield llm
    llm.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="session")
def make_async_llm(water_index: str):
    """Makes an ``AsyncLLM`` (its processes are its own); call it inside an event loop and shut it down there."""
    from model_folders import ENGINE
    from quick_engines import quick_engines
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    def make(**settings: object) -> AsyncLLM:
        arguments = AsyncEngineArgs(water_index, additional_config=every_processor(**settings), **ENGINE)
        with quick_engines():
            return AsyncLLM.from_engine_args(arguments)

    return make


@pytest.fixture
def sent(llm, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The requests that reached the engine's core while a test ran; that of a block of tiles once for each tile."""
    from vllm_mmout.models.inputs.engine_input import FIELD, tiles_of

    requests = []
    core = llm.llm_engine.engine_core
    original = core.add_request

    def add_request(request):
        values = request.mm_features[0].data[FIELD].data if request.mm_features else [None]
        requests.extend([request] * (tiles_of(values, ["pixel_values"]) or 1))
        return original(request)

    monkeypatch.setattr(core, "add_request", add_request)
    return requests


@pytest.fixture(autouse=True)
def _paces_of_this_test() -> Iterator[None]:
    """Scenes begin with small blocks of tiles in each test, whatever other tests ran on the same engine."""
    from vllm_mmout.engine.scene.pace import Paces

    kept: WeakKeyDictionary[Paces, dict[object, object]] = WeakKeyDictionary()
    of_test = property(lambda paces: kept.setdefault(paces, {}), kept.__setitem__)
    with pytest.MonkeyPatch.context() as patch:  # of its own: the fixture would be set up before those of the test
        patch.setattr(Paces, "_kept", of_test, raising=False)
        yield
