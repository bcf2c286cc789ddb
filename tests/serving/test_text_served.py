"""A text model under ``vllm-mmout serve`` answers as under vLLM's server, byte for byte apart from ids and times."""

from __future__ import annotations

import re
import signal

import engine_scripts
import httpx
import openai
import pytest
from asked_server import stable
from processes import ONE_THREAD
from serving import served, stop

pytestmark = [pytest.mark.engine, pytest.mark.slow]

VLLMS_OWN = ("-m", "vllm.entrypoints.openai.api_server", "--model")
FLAGS = (
    "--max-model-len",
    "128",
    "--dtype",
    "float32",
    "--enforce-eager",
    "--seed",
    "0",
    "--served-model-name",
    "llama",
)
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"
MESSAGES = [{"role": "user", "content": "w1 w2 w3"}]
SAMPLED = {"model": "llama", "max_tokens": 12, "temperature": 1, "seed": 3, "ignore_eos": True}
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
REQUESTS = {
    "chat": ("/v1/chat/completions", {**SAMPLED, "messages": MESSAGES, "logprobs": True}),
    "chat, streamed": ("/v1/chat/completions", {**SAMPLED, **STREAMED, "messages": MESSAGES}),
    "chat, two answers": ("/v1/chat/completions", {**SAMPLED, "messages": MESSAGES, "n": 2}),
    "chat in text": ("/v1/chat/completions", {**SAMPLED, "messages": MESSAGES, "modalities": ["text"]}),
    "completion": ("/v1/completions", {**SAMPLED, "prompt": "w4 w5", "echo": True, "temperature": 0}),
    "completion, streamed": ("/v1/completions", {**SAMPLED, **STREAMED, "prompt": "w4 w5"}),
    "tokens": ("/tokenize", {"model": "llama", "prompt": "w6 w7"}),
    "unknown model": ("/v1/completions", {**SAMPLED, "prompt": "w4", "model": "no-such"}),
    "too long": ("/v1/completions", {**SAMPLED, "prompt": "w4 " * 200}),
    "no messages": ("/v1/chat/completions", SAMPLED),
    "a wrong type": ("/v1/completions", {**SAMPLED, "prompt": "w4", "max_tokens": "many"}),
    "pooling": ("/pooling", {"model": "llama", "input": "w1"}),
}
"""Each is answered 200, but those whose names say why not."""


def by_httpx(url):
    """Status, kind and bytes of the answer to each request."""
    with httpx.Client(base_url=url, timeout=120, trust_env=False) as client:
        answers = {name: client.post(path, json=body) for name, (path, body) in REQUESTS.items()}
    return {
        name: (answer.status_code, answer.headers["content-type"], stable(answer.content))
        for name, answer in answers.items()
    }


def by_openai(url):
    """What the client of OpenAI makes of answers, whole and streamed."""
    keywords = {"model": "llama", "messages": MESSAGES, "max_tokens": 12, "temperature": 0}
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", http_client=http) as client,
    ):
        whole = client.chat.completions.create(**keywords).choices[0].message.content
        stream = client.chat.completions.create(**keywords, stream=True)
        return whole, "".join(chunk.choices[0].delta.content or "" for chunk in stream)


def asked_for_pictures(url):
    """The answer to a chat that is to hold a picture."""
    body = {**SAMPLED, "messages": MESSAGES, "modalities": ["text", "image"]}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=120, trust_env=False)


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Of each server: its answers, and the exit status of its end; both start as users start them.

    The engine of one that is forked listens on the port too; where vLLM's server meets it there as it ends, it fails.
    """
    folder = tmp_path_factory.mktemp("llama")
    engine_scripts.make_llama(folder)
    template = folder / "template.jinja"
    template.write_text(TEMPLATE)

    def of(**start):
        flags = (*FLAGS, "--chat-template", str(template))
        with served(folder, *flags, environment=ONE_THREAD, fresh=True, **start) as server:
            pictures = asked_for_pictures(server.url)
            return by_httpx(server.url), by_openai(server.url), stop(server.process, signal.SIGTERM), pictures

    return {"ours": of(), "vllm's": of(command=VLLMS_OWN)}


@pytest.mark.parametrize("name", REQUESTS)
def test_answers_are_vllms_byte_for_byte(answers, name):
    """Status, kind and body are the same, streamed or whole, of errors too."""
    (ours, *_), (vllms, *_) = answers["ours"], answers["vllm's"]
    assert ours[name] == vllms[name]


def test_there_are_answers_to_compare(answers):
    """Those that should be are text of some length, with nothing but words of the model."""
    ours = answers["ours"][0]
    refused = {"unknown model": 404, "too long": 400, "no messages": 400, "a wrong type": 400, "pooling": 404}
    assert {name: status for name, (status, *_) in ours.items()} == {name: refused.get(name, 200) for name in REQUESTS}
    assert len(re.findall(rb"w\d+", ours["chat"][2])) >= 12
    for name in ("chat, streamed", "completion, streamed"):
        text, events = ours[name][2]
        assert 8 < len(text.split()) <= 12, "of twelve tokens, special ones are left out"
        assert [b"usage" in event for event in events[-3:]] == [True, False, False]  # data: [DONE], nothing
        assert b'"finish_reason":"length"' in events[-4]


def test_the_client_of_openai_reads_them(answers):
    """Its text is the same from both, and the same whole and streamed."""
    (_, ours, *_), (_, vllms, *_) = answers["ours"], answers["vllm's"]
    assert ours == vllms
    whole, streamed = ours
    assert 8 < len(whole.split()) <= 12
    assert streamed == whole


def test_a_chat_that_asks_for_pictures_is_refused(answers):
    """It is told so, and not answered with text alone as by vLLM's server."""
    ours, vllms = answers["ours"][3], answers["vllm's"][3]
    assert (ours.status_code, ours.json()["error"]["param"]) == (400, "modalities")
    assert (vllms.status_code, vllms.json()["choices"][0]["finish_reason"]) == (200, "length")


def test_it_ends_as_vllms(answers):
    """The exit status after a signal to end is that of vLLM's server."""
    assert answers["ours"][2] == answers["vllm's"][2]
