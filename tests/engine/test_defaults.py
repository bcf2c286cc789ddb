"""Engine arguments of our models: filled in where the user left vLLM's own default."""

from __future__ import annotations

import json
import shutil
from dataclasses import fields
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from vllm_mmout.engine.hooks.defaults import ALL_DEVICES, CPU, MAX_NUM_SEQS, fill_in
from vllm_mmout.errors import OptionError

pytestmark = pytest.mark.engine

CHOSEN = {
    "runner": "generate",
    "mm_processor_cache_gb": 1.5,
    "max_num_seqs": 7,
    "max_num_batched_tokens": 2,
    "dtype": "bfloat16",
}
"""Values of a user that are neither vLLM's default nor ours."""


WANTED = {
    **ALL_DEVICES,
    **CPU,
    "max_num_seqs": MAX_NUM_SEQS["cpu"],
    "max_num_batched_tokens": MAX_NUM_SEQS["cpu"],  # a request is one token
    "dtype": "float32",
}
"""What is filled in for the embedded model on a CPU."""


def arguments(model, **values):
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(model=str(model), **values)


OURS = {"model_type": "mmout", "architectures": ["WaterIndex"]}
"""The least that a folder of ours says."""


def values_of(engine_args):
    return {field.name: getattr(engine_args, field.name) for field in fields(engine_args)}


def changed(engine_args):
    """What filling in changes."""
    before = values_of(engine_args)
    fill_in(engine_args)
    after = values_of(engine_args)
    return {name: value for name, value in after.items() if value != before[name]}


@pytest.fixture
def folder(tmp_path):
    """Makes a model folder with this ``config.json``."""

    def make(config):
        (tmp_path / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
        return tmp_path

    return make


def test_our_models_get_defaults_that_work(water_index):
    """What the user left alone becomes what a single-pass model needs, the config's own dtype among it."""
    assert changed(arguments(water_index)) == WANTED


@pytest.mark.parametrize(
    "values", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}, {"quantization": "fp8"}]
)
def test_what_is_for_vllms_own_layers_is_refused(water_index, values):
    """The message says why, and what to do instead."""
    (name,) = values
    with pytest.raises(OptionError, match=f"^{name} is .* plain PyTorch.*; leave it out, or"):
        fill_in(arguments(water_index, **values))


def test_gpus_take_larger_batches(water_index, monkeypatch):
    """On a GPU sixteen inputs share a forward."""
    monkeypatch.setattr("vllm_mmout.engine.hooks.defaults._device", lambda: "gpu")
    assert changed(arguments(water_index))["max_num_seqs"] == 16


@pytest.mark.parametrize("name", CHOSEN)
def test_what_the_user_sets_wins(water_index, name):
    """A field that does not have vLLM's own default is the user's and stays; the others are filled in all the same."""
    filled = changed(arguments(water_index, **{name: CHOSEN[name]}))
    wanted = {key: value for key, value in WANTED.items() if key != name}
    if name == "max_num_seqs":
        wanted["max_num_batched_tokens"] = CHOSEN[name]
    assert filled == wanted


def test_filling_in_twice_is_filling_in_once(water_index):
    """A second config of the same arguments, which vLLM may make, finds them filled in."""
    engine_args = arguments(water_index)
    fill_in(engine_args)
    assert changed(engine_args) == {}


def test_dtype_of_older_configs(folder):
    """``torch_dtype``, the older name, is read too."""
    assert changed(arguments(folder({**OURS, "torch_dtype": "bfloat16"})))["dtype"] == "bfloat16"


def test_config_without_a_dtype(folder):
    """A config that names no dtype means float32, as PyTorch does; vLLM's own choice is float16."""
    assert changed(arguments(folder(OURS)))["dtype"] == "float32"


@pytest.mark.parametrize("model_type", [None, "vit", "mmouts"])
def test_a_folder_that_names_a_class_must_be_ours(folder, model_type):
    """With another model type vLLM would pass the class over; the error says what to write."""
    config = {"architectures": ["Net"], "mmout": {"model": "net:Net"}} | (
        {"model_type": model_type} if model_type else {}
    )
    engine_args = arguments(folder(OURS))
    folder(config)
    with pytest.raises(OptionError, match='write "model_type": "mmout"'):
        fill_in(engine_args)


def test_more_tokens_than_requests_are_refused(water_index):
    """VLLM's measurement of memory would fail on them in its own way, or end the device's context."""
    engine_args = arguments(water_index, max_num_batched_tokens=64, max_num_seqs=32)
    with pytest.raises(OptionError, match="max_num_batched_tokens is 64 and max_num_seqs is 32, but each request of"):
        fill_in(engine_args)


@pytest.mark.parametrize(
    "config",
    [{"model_type": "llama", "dtype": "float32"}, {}, [1, 2], "{ not json", ""],
    ids=["llama", "empty", "a list", "broken", "an empty file"],
)
def test_other_models_are_left_alone(folder, config):
    """Arguments of a model that is not ours stay as they are, whatever its config looks like."""
    assert changed(arguments(folder(config))) == {}


def test_folders_without_a_config(tmp_path):
    """A folder without ``config.json`` and a name that is nothing here are vLLM's to complain about."""
    (tmp_path / "model.gguf").touch()
    for model in (tmp_path, tmp_path / "model.gguf"):
        assert changed(arguments(model)) == {}
    engine_args = arguments(tmp_path)
    for model in ("nobody/nothing", "s3://bucket/model", "https://example.org/model"):
        engine_args.model = model  # a name that vLLM would look up when the arguments are made
        assert changed(engine_args) == {}


def test_models_of_the_hub_cache(tmp_path, monkeypatch, water_index):
    """A model given by its name is recognised by the config in the local cache, without a network."""
    repository = tmp_path / "models--us--flood"
    snapshot = repository / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    shutil.copy(f"{water_index}/config.json", snapshot)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    engine_args = arguments(tmp_path)
    engine_args.model = "us/flood"
    assert changed(engine_args)["runner"] == "pooling"


class _Hub(BaseHTTPRequestHandler):
    """A hub of one model, ``us/flood``, whose only file is its config."""

    config = b""

    def do_HEAD(self):
        self.send_response(200 if self.path == "/us/flood/resolve/main/config.json" else 404)
        for name, value in (("ETag", '"1"'), ("X-Repo-Commit", "abc"), ("Content-Length", str(len(self.config)))):
            self.send_header(name, value)
        self.end_headers()

    def do_GET(self):
        self.do_HEAD()
        self.wfile.write(self.config)

    def log_message(self, *args):
        """Keep the tests' output clean."""


def test_models_of_the_hub_that_are_not_cached_yet(tmp_path, monkeypatch, water_index):
    """The first use of a name fetches its config, as vLLM's next step would; a name that is unknown is left to vLLM."""
    monkeypatch.setattr(_Hub, "config", Path(water_index, "config.json").read_bytes())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
        monkeypatch.setattr(
            "huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE",
            f"http://127.0.0.1:{server.server_port}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        )
        engine_args = arguments(tmp_path)
        engine_args.model = "us/unknown"
        assert changed(engine_args) == {}
        engine_args.model = "us/flood"
        assert changed(engine_args)["runner"] == "pooling"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_vllms_config_has_them(water_index):
    """The wrapped ``create_engine_config`` brings them into the config that an engine is made of."""
    config = arguments(water_index).create_engine_config()
    assert config.model_config.runner_type == "pooling"
    assert str(config.model_config.dtype) == "torch.float32"
    assert config.scheduler_config.max_num_seqs == 4
    assert config.scheduler_config.policy == "priority"
