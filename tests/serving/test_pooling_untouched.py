"""What of ``POST /pooling`` is vLLM's own answers as vLLM does: raw requests, IO Processor plugins, text models."""

from __future__ import annotations

import json
import os
import re

import engine_scripts
import httpx
import pooled_plugin
import pytest
from processes import ONE_THREAD
from serving import COMMAND, served

pytestmark = [pytest.mark.engine, pytest.mark.slow]

VLLMS_OWN = ("-m", "vllm.entrypoints.openai.api_server", "--model")
FLAGS = ("--max-model-len", "64", "--dtype", "float32", "--enforce-eager", "--served-model-name", "llama")
EMBEDS = ("--runner", "pooling", "--convert", "embed")
BOUND = ("--additional-config", json.dumps({"mmout": {"output_processor": "tensor"}}))
JSON = {"Content-Type": "application/json"}
REQUESTS = {
    "text": ("/pooling", {"model": "llama", "input": "w1 w2 w3"}),
    "several, base64": ("/pooling", {"model": "llama", "input": ["w1", "w2 w3"], "encoding_format": "base64"}),
    "tokens, as bytes": ("/pooling", {"model": "llama", "input": [5, 6, 7], "encoding_format": "bytes"}),
    "the word data": ("/pooling", {"model": "llama", "input": '"data"', "user": "data"}),
    "embedding": ("/v1/embeddings", {"model": "llama", "input": "w1 w2 w3"}),
    "unknown model": ("/pooling", {"model": "no-such", "input": "w1"}),
    "too long": ("/pooling", {"model": "llama", "input": "w1 " * 100}),
    "nothing": ("/pooling", {}),
}
BROKEN = {"broken": (b'{"input": ', JSON), "no JSON": (b'{"input": "w1"}', {"Content-Type": "text/plain"})}


def stable(content):
    """A body without what differs from one answer of the same server to the next."""
    content = re.sub(rb'"(id|request_id)":\s*"[^"]*"', b"", content)
    return re.sub(rb'"created":\s*\d+', b"", content)


def answers_of(folder, *flags, command=COMMAND):
    """Status, kind and body of the answer to each request, and to data."""
    with (
        served(folder, *FLAGS, *EMBEDS, *flags, environment=ONE_THREAD, command=command) as server,
        httpx.Client(base_url=server.url, timeout=120, trust_env=False) as client,
    ):
        found = {name: client.post(path, json=body) for name, (path, body) in REQUESTS.items()}
        found |= {name: client.post("/pooling", content=body, headers=kind) for name, (body, kind) in BROKEN.items()}
        data = client.post("/pooling", json={"model": "llama", "data": "w1 w2"})
        image = client.post("/v1/images/generations", json={"prompt": "w1 w2 w3", "output_format": "json"})
    same = {
        name: (answer.status_code, answer.headers["content-type"], stable(answer.content))
        for name, answer in found.items()
    }
    return same, data, image


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A small text model."""
    return engine_scripts.make_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def vllms(llama):
    """The answers of vLLM's server."""
    return answers_of(llama, command=VLLMS_OWN)


def test_a_text_models_pooling_is_vllms(llama, vllms):
    """Bit for bit, errors too, of vectors and of ``data``; images are refused with the field ``model``."""
    same, data, image = answers_of(llama)
    assert same == vllms[0]
    assert {name: status for name, (status, *_) in same.items() if status == 200}.keys() == {
        "text",
        "several, base64",
        "tokens, as bytes",
        "the word data",
        "embedding",
    }
    assert (data.status_code, stable(data.content)) == (vllms[1].status_code, stable(vllms[1].content))
    assert image.status_code == 400
    assert image.json()["error"]["param"] == "model"


def test_raw_requests_of_a_model_with_a_processor_are_vllms(llama, vllms):
    """Without data they give the same bits; a text of a generation is decoded from the same vector."""
    same, _, image = answers_of(llama, *BOUND)
    for name in same:
        assert same[name] == vllms[0][name], name
    assert image.status_code == 200, image.text


def test_a_plugins_data_is_its_own(tmp_path, water_index):
    """A model with an IO Processor plugin of vLLM's keeps it: its data, its answers, its errors."""
    path = os.pathsep.join([str(pooled_plugin.install(tmp_path / "package")), os.environ["PYTHONPATH"]])
    flags = ("--io-processor-plugin", pooled_plugin.NAME)
    with served("water-index", *flags, environment={"PYTHONPATH": path}) as server:
        url = f"{server.url}/pooling"
        answer = httpx.post(url, json={"data": {"number": 3}}, timeout=60)
        assert answer.status_code == 200, answer.text
        assert answer.json()["data"] == {"plugins": True, "shape": [2, 4, 4], "tensor": True}
        refused = httpx.post(url, json={"data": {"no": 3}}, timeout=60)
        assert refused.status_code == 400
        assert "data has no number" in refused.text
