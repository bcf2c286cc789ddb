"""``vllm-mmout serve``: vLLM's own command with our flags beside its own, and with our routes alone added."""

from __future__ import annotations

import importlib
import logging
import os
import pickle
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import engine_scripts
import foreign_plugins
import httpx
import pytest
from fastapi import FastAPI
from serving import COMMAND, START_S, served, stop
from text_service import text_app

from vllm_mmout import cli
from vllm_mmout.commands.serve import DESCRIPTION
from vllm_mmout.engine.hooks.endpoint_plugin import SWITCH
from vllm_mmout.errors import HookError, MMOutError
from vllm_mmout.serving.options import ServingOptions

pytestmark = pytest.mark.engine

OURS = "mmout_serving"
LOADED = f"Loaded endpoint plugin {OURS}"
DRIFTED = Path(engine_scripts.__file__).parent / "drifted"


@pytest.fixture
def launched(monkeypatch):
    """The arguments with which vLLM's command was called instead of a server being started, and what held then."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # as vLLM's parser does once a process, which a test must not do with what it has changed
    calls = []

    def cmd(args):
        folder = Path(args.mmout_results_dir)
        found = {"folder": folder, "environment": dict(os.environ)}
        if folder.is_dir():
            found["mode"] = stat.S_IMODE(folder.stat().st_mode)
        calls.append((pickle.loads(pickle.dumps(args)), found))  # noqa: S301 - as it goes to API servers

    monkeypatch.setattr(ServeSubcommand, "cmd", staticmethod(cmd))
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return calls


def serve(*arguments):
    return cli.main(["serve", *map(str, arguments)])


def only(launched):
    ((args, found),) = launched
    return args, found


def as_vllm_reads(arguments):
    """What vLLM's own command line makes of the arguments."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.logger import configure_logging_from_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    args = parser.parse_args(["serve", *map(str, arguments)])
    configure_logging_from_args(args)
    return vars(args)


def without_ours(args):
    return {name: value for name, value in vars(args).items() if not name.startswith("mmout_")}


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["org/model"],
        ["org/model", "-O3", "--model-impl", "transformers", "-tp", "2"],
        ["--port", "8123", "--", "org/model"],
        ["org/model", "--max_model_len=4k", "--no-enable-prefix-caching", "--host", "::1"],
        [
            "org/model",
            "--compilation-config.mode",
            "3",
            "--additional-config",
            '{"mmout": {"output_processor": "none"}}',
        ],
        ["s3://bucket/folder/model", "--load-format", "runai_streamer"],
        ["org/repository/model.gguf", "--served-model-name", "a", "b"],
        ["--model", "org/model", "--api-key", "run", "--enable-log-requests", "--log-level", "DEBUG"],
    ],
    ids=lambda arguments: " ".join(arguments)[:30] or "none",
)
def test_flags_of_vllm_pass_through(launched, arguments):
    """All arguments reach vLLM's command as its own command line reads them."""
    assert serve(*arguments) == 0
    args, _ = only(launched)
    assert without_ours(args) == as_vllm_reads(arguments)
    assert args.subparser == "serve"


def test_flags_of_a_file_pass_through(launched, tmp_path):
    """A file of arguments may hold vLLM's flags and ours; what stands on the command line wins."""
    file = tmp_path / "serve.yaml"
    file.write_text("model: org/model\nport: 8123\nmax-model-len: 77\nmmout-max-upload: 2M\nmmout-max-tiles: 9\n")
    arguments = ["--config", file, "--max-model-len", "78", "--mmout-max-tiles", "10"]
    assert serve(*arguments) == 0
    args, _ = only(launched)
    assert (args.model, args.port, args.max_model_len) == ("org/model", 8123, 78)
    options = ServingOptions.from_args(args)
    assert (options.max_upload, options.max_tiles, options.max_waiting) == (2 * 1024**2, 10, 64)


def test_embedded_models_go_by_their_name(launched, water_index):
    """The folder of an embedded model is served under the name that it was asked by; another name wins."""
    assert serve("water-index") == 0
    assert serve("water-index", "--served-model-name", "water") == 0
    assert serve(water_index) == 0
    assert [args.model_tag for args, _ in launched] == [water_index] * 3
    assert [args.served_model_name for args, _ in launched] == [["water-index"], ["water"], None]


def test_stored_results_get_a_folder_that_goes(launched, tmp_path):
    """Without a folder of the user's there is one of mode 0700 as long as the server runs; the user's stays."""
    assert serve("org/model") == 0
    args, found = only(launched)
    assert found["mode"] == 0o700
    assert not found["folder"].exists()
    launched.clear()
    assert serve("org/model", "--mmout-results-dir", tmp_path) == 0
    args, found = only(launched)
    assert ServingOptions.from_args(args).results_dir == str(tmp_path)
    assert tmp_path.is_dir()


def test_a_trace_is_begun_before_any_process(launched, tmp_path):
    """The engine is told of the file beside what it is told otherwise; the file is there, for all to append to."""
    file = tmp_path / "trace.json"
    others = ["--additional-config", '{"mmout": {"decode_threads": 2}}']
    assert serve("org/model", "--mmout-trace", file, *others) == 0
    args, _ = only(launched)
    assert args.additional_config == {"mmout": {"decode_threads": 2, "trace": str(file)}}
    assert file.read_text() == "[\n"


def test_the_folder_goes_when_the_server_fails(launched, monkeypatch):
    """Also where vLLM's command ends by an exception, which is vLLM's own to report."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    folders = []

    def fails(args):
        folders.append(Path(args.mmout_results_dir))
        assert folders[0].is_dir()
        raise RuntimeError("no memory")

    monkeypatch.setattr(ServeSubcommand, "cmd", staticmethod(fails))
    with pytest.raises(RuntimeError, match="no memory"):
        serve("org/model")
    assert not folders[0].exists()
    assert SWITCH not in os.environ


@pytest.mark.parametrize(
    ("before", "within"),
    [
        (None, None),
        ("other", "other,vllm_mmout"),
        ("", ",vllm_mmout"),
        ("a,vllm_mmout,b", "a,vllm_mmout,b"),
        ("vllm_mmout_too", "vllm_mmout_too,vllm_mmout"),
    ],
)
def test_the_list_of_plugins_lets_ours_in(launched, monkeypatch, before, within):
    """``VLLM_PLUGINS`` stays unset, or gets our general plugin; the environment is afterwards as it was."""
    if before is not None:
        monkeypatch.setenv("VLLM_PLUGINS", before)
    environment = dict(os.environ)
    assert serve("org/model") == 0
    _, found = only(launched)
    assert found["environment"].get("VLLM_PLUGINS") == within
    assert SWITCH in found["environment"]
    assert found["environment"]["VLLM_WORKER_MULTIPROC_METHOD"] == os.environ.get(
        "VLLM_WORKER_MULTIPROC_METHOD", "spawn"
    )
    assert dict(os.environ) == environment


def refused(launched, capsys, *arguments):
    """Status and last line of a refusal that started nothing."""
    try:
        status = serve(*arguments)
    except SystemExit as ended:
        status = ended.code
    assert launched == []
    return status, capsys.readouterr().err.splitlines()[-1]


def test_wrong_flags_are_refused(launched, capsys, tmp_path, monkeypatch):
    """Wrong values and unknown flags end with 2, other mistakes with 1; the last line says which."""
    prefix = "vllm-mmout serve: error: argument"
    for arguments, expected in {
        ("m", "--mmout-max-upload", "much"): f"{prefix} --mmout-max-upload: 'much' is no size; write a number",
        ("m", "--mmout-result-ttl", "soon"): f"{prefix} --mmout-result-ttl: invalid float value: 'soon'",
        ("m", "--mmout-max-tiles", "0"): "vllm-mmout: --mmout-max-tiles must be at least 1, got 0",
        ("m", "--no-such-flag"): "vllm-mmout: error: unrecognized arguments: --no-such-flag",
        ("m", "--port", "x"): f"{prefix} --port: invalid int value: 'x'",
        ("m", "--mmout-output-root", "/nowhere"): "vllm-mmout: --mmout-output-root must be a folder, got '/nowhere'",
        ("m", "--grpc"): "vllm-mmout: --grpc starts a server without HTTP routes; leave it out",
    }.items():
        status, line = refused(launched, capsys, *arguments)
        assert (status, line[: len(expected)]) == (2, expected)
    assert refused(launched, capsys, tmp_path)[1] == (
        f"vllm-mmout: the folder {tmp_path} holds no config.json; give the folder of a model"
    )
    status, line = refused(launched, capsys, tmp_path / "absent")
    assert (status, line) == (
        1,
        f"vllm-mmout: there is no model folder {tmp_path / 'absent'} (embedded models: water-index)",
    )
    assert refused(launched, capsys, "waterindex") == (
        1,
        "vllm-mmout: there is no embedded model 'waterindex'; did you mean 'water-index'?",
    )
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", "1")
    status, line = refused(launched, capsys, "m")
    assert (status, line.partition(";")[0]) == (
        2,
        "vllm-mmout: VLLM_USE_RUST_FRONTEND is set, and that server has none of our routes",
    )


def test_drift_ends_the_command(launched, capsys, monkeypatch):
    """Where a hook has no place to be, nothing is started."""
    from vllm_mmout.engine.hooks import install as hooks

    def install():
        raise HookError("vLLM differs")

    monkeypatch.setattr(hooks, "install", install)
    assert refused(launched, capsys, "org/model") == (1, "vllm-mmout: vLLM differs")


@pytest.mark.slow
def test_a_drifted_vllm_is_named():
    """A vLLM without what the hooks need is an error in one line that names it, before anything is started."""
    done = subprocess.run(
        [sys.executable, *COMMAND, "water-index"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(DRIFTED), os.environ["PYTHONPATH"]])},
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("vllm-mmout: vLLM ")
    assert "vllm.v1.worker.worker_base.WorkerWrapperBase.init_device" in last


@pytest.mark.usefixtures("parsers_afresh")
@pytest.mark.parametrize("arguments", [["--help=all"], ["m", "--help=all"]])
def test_all_flags_are_in_the_help(capsys, arguments):
    """The help of vLLM's parser lists vLLM's flags and ours."""
    with pytest.raises(SystemExit, match="0"):
        serve(*arguments)
    text = capsys.readouterr().out
    assert {"--max-model-len", "--uvicorn-log-level", "--mmout-max-upload"} <= set(text.split())


@pytest.fixture
def parsers_afresh(monkeypatch):
    """Parsers of vLLM that nobody has asked for a section: they keep it for all of them."""
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    monkeypatch.setattr(FlexibleArgumentParser, "_search_keyword", None)


def test_the_first_page_of_the_help_names_all_routes():
    """Each path of ours stands there as `/openapi.json` has it."""
    ours = {route.path for route in text_app().routes} - {route.path for route in FastAPI().routes}
    assert [path for path in sorted(ours) if path not in DESCRIPTION] == []


@pytest.mark.usefixtures("parsers_afresh")
def test_sections_and_flags_of_the_help(capsys):
    """Its search finds our group and our flags, and its first page tells how to call it."""
    pages = {}
    for arguments in (("m", "-h"), ("--help=vllm-mmout",), ("--help=max-tiles",)):
        with pytest.raises(SystemExit, match="0"):
            serve(*arguments)
        pages[arguments[-1]] = capsys.readouterr().out
    assert "--mmout-results-dir FOLDER" in pages["--help=vllm-mmout"]
    assert "--mmout-max-tiles N" in pages["--help=max-tiles"]
    assert "vllm-mmout serve --help=all" in pages["-h"]
    assert " vllm serve " not in pages["-h"]


def test_the_short_help_loads_no_engine():
    """It lists our routes and flags and says how vLLM's are listed, without vLLM."""
    code = "import sys\nfrom vllm_mmout.cli import main\nmain(['serve', '-h'])\nassert 'vllm' not in sys.modules\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for text in ("--mmout-max-upload", "--help=all", "/v1/images/edits", "MODEL"):
        assert text in done.stdout


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """Plugins of somebody else, installed."""
    monkeypatch.syspath_prepend(foreign_plugins.install(tmp_path / "site"))
    return tmp_path


@pytest.fixture
def loads():
    """Names of the endpoint plugins that a server would load, with our hook and without."""
    from vllm import envs, plugins

    from vllm_mmout.engine.hooks.wrappers import load_endpoint_plugins

    original = plugins.load_endpoint_plugins
    original = getattr(original, "__wrapped__", original)  # another test's hook
    envs.disable_envs_cache()

    def names(*, hooked):
        load = load_endpoint_plugins(original) if hooked else original
        return [plugin.name for plugin in load(("plugin",))]

    return names


ALLOWED = {
    None: [OURS],
    "": [OURS],
    "vllm_mmout": [OURS],
    "other": ["other", OURS],
    "third,vllm_mmout,other": ["other", "third", OURS],
    "mmout_serving,third": ["third", OURS],
}
"""``VLLM_PLUGINS`` of the user, and the endpoint plugins of a server of ours."""


@pytest.mark.parametrize("allowed", ALLOWED)
def test_others_are_loaded_as_without_us(foreign, loads, monkeypatch, allowed):
    """A server of ours loads what another would load, and ours once; a server of vLLM's is left as it is."""
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    if allowed is not None:
        monkeypatch.setenv("VLLM_PLUGINS", allowed)
    monkeypatch.delenv(SWITCH, raising=False)
    plain = loads(hooked=False)
    assert loads(hooked=True) == plain
    monkeypatch.setenv(SWITCH, "1")
    served = loads(hooked=True)
    assert sorted(served) == sorted(ALLOWED[allowed])
    assert [name for name in served if name != OURS] == [name for name in plain if name != OURS]
    assert os.environ.get("VLLM_PLUGINS") == allowed


def test_alone_it_is_loaded_without_a_warning(loads, monkeypatch, caplog):
    """Where ours is the only endpoint plugin, vLLM's warning of those that no list lets in is spared."""
    monkeypatch.setattr(logging.getLogger("vllm"), "propagate", True)
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    monkeypatch.setenv(SWITCH, "1")
    assert loads(hooked=True) == [OURS]
    assert "VLLM_PLUGINS is not set" not in caplog.text
    assert loads(hooked=False) == []
    assert "VLLM_PLUGINS is not set" in caplog.text


def test_without_the_entry_point_nothing_is_started(launched, capsys, monkeypatch):
    """A package that was updated and not installed again would give a server without our routes."""
    routes = importlib.import_module("vllm_mmout.engine.hooks.endpoint_plugin")
    monkeypatch.setattr(routes.importlib.metadata, "entry_points", lambda **_: ())
    status, line = refused(launched, capsys, "org/model")
    assert status == 1
    assert "mmout_serving of vllm.endpoint_plugins is not registered" in line
    with pytest.raises(MMOutError, match="install the package again"):
        routes.our_endpoint()


@pytest.fixture
def temporary():
    """A folder for temporary files with a path so short that vLLM's sockets may lie there."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("allowed", "count", "by"),
    [(None, 2, signal.SIGINT), ("other", 1, signal.SIGTERM)],
    ids=["two-servers-interrupted", "listed-terminated"],
)
def test_a_server_with_plugins_of_others(tmp_path, temporary, allowed, count, by):
    """Every API server has our routes and no other's that the user has not listed; the end leaves nothing."""
    loaded = tmp_path / "loaded"
    loaded.mkdir()
    environment = {
        "PYTHONPATH": os.pathsep.join([str(foreign_plugins.install(tmp_path / "site")), os.environ["PYTHONPATH"]]),
        "FOREIGN_LOADED": str(loaded),
        "TMPDIR": str(temporary),
        **({} if allowed is None else {"VLLM_PLUGINS": allowed}),
    }
    with served("water-index", "--api-server-count", str(count), environment=environment, fresh=True) as server:
        log = wait_for(server.log, LOADED, count)
        paths = set(httpx.get(f"{server.url}/openapi.json", trust_env=False).json()["paths"])
        models = httpx.get(f"{server.url}/v1/models", trust_env=False).json()["data"]
        (results,) = temporary.glob("mmout-results-*")
        assert stat.S_IMODE(results.stat().st_mode) == 0o700
        assert str(server.pid) in {file.name for file in loaded.iterdir()}
        status = stop(server.process, by)
    assert log.count(LOADED) == count
    assert {name for name, path in foreign_plugins.ROUTES.items() if path in paths} == set(filter(None, [allowed]))
    assert any(path.startswith("/v1/images/") for path in paths)
    assert [model["id"] for model in models] == ["water-index"]
    assert status == 0
    assert list(temporary.glob("mmout-results-*")) == []


def wait_for(log, text, count):
    """The log, once a text stands in it so often."""
    deadline = time.monotonic() + START_S
    while log.read_text(errors="replace").count(text) < count:
        assert time.monotonic() < deadline, log.read_text(errors="replace")
        time.sleep(0.1)
    return log.read_text(errors="replace")
