"""The token of a cluster of Ray, and what is said where a cluster does not answer."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from unittest import mock

import pytest

from vllm_mmout.errors import MMOutError
from vllm_mmout.wings.ray.cluster_token import check_listening, refusal, token_source, use_token


@pytest.fixture(autouse=True)
def home(tmp_path):
    """A home, and an environment, without a token."""
    (tmp_path / ".ray").mkdir()
    with mock.patch.dict(os.environ, {"HOME": str(tmp_path)}):  # what `use_token` sets is undone, too
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(name, None)
        yield tmp_path


def test_a_token_is_found_where_ray_finds_it(home, monkeypatch):
    """The variable comes first, then the file that a variable names, then the user's file. Empty ones are skipped."""
    assert token_source() is None
    (home / ".ray/auth_token").write_text("\n")
    assert token_source() is None
    (home / ".ray/auth_token").write_text("secret\n")
    assert token_source() == "~/.ray/auth_token"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(home / "token"))
    assert token_source() is None
    (home / "token").write_text("secret")
    assert token_source() == f"RAY_AUTH_TOKEN_PATH ({home}/token)"
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert token_source() == "RAY_AUTH_TOKEN"


@contextmanager
def head(*, answers):
    """Run a gRPC server that answers like the head of a cluster without a token, or refuses like one with a token."""
    grpc = pytest.importorskip("grpc")

    class Head(grpc.GenericRpcHandler):
        def service(self, details):
            def call(request, context):
                return b"" if answers else context.abort(grpc.StatusCode.UNAUTHENTICATED, "InvalidAuthToken")

            return grpc.unary_unary_rpc_method_handler(call) if details.method.endswith("/CheckAlive") else None

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool, [Head()])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield f"127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.mark.parametrize(
    ("token", "mode", "expected"),
    [("secret", None, "token"), (None, None, None), ("secret", "disabled", "disabled"), (None, "token", "token")],
)
def test_ray_is_told_to_send_a_token_that_is_there(token, mode, expected):
    """A value of RAY_AUTH_MODE that is set already is kept."""
    os.environ |= {name: value for name, value in (("RAY_AUTH_TOKEN", token), ("RAY_AUTH_MODE", mode)) if value}
    with head(answers=False) as address:
        use_token(address)
    assert os.environ.get("RAY_AUTH_MODE") == expected


def test_no_token_is_used_for_a_cluster_without_one(monkeypatch):
    """Ray would refuse the cluster's calls and lose all actors, so a RAY_AUTH_MODE that asks for this is an error."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with head(answers=True) as address:
        use_token(address)
        assert "RAY_AUTH_MODE" not in os.environ
        os.environ["RAY_AUTH_MODE"] = "token"
        with pytest.raises(MMOutError, match=rf"at {address} uses no token, .* its calls; unset RAY_AUTH_MODE"):
            use_token(address)


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "127.0.0.1:99999"])
def test_a_token_is_used_if_the_cluster_cannot_be_asked(address, monkeypatch):
    """Ray itself reports what is wrong with the address."""
    pytest.importorskip("grpc")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    use_token(address)
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_what_is_said_of_a_cluster_that_does_not_answer(home, monkeypatch):
    """The message says whether the token is at fault, and where to put one."""
    error = ConnectionError("Failed to connect to Ray cluster at 10.0.0.1:6379")
    said = refusal("10.0.0.1:6379", error)
    assert said.startswith("the cluster of Ray at 10.0.0.1:6379 does not answer this process: Failed to connect")
    assert "this machine has none; set RAY_AUTH_TOKEN, or RAY_AUTH_TOKEN_PATH to a file that holds it" in said
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    assert "the token from RAY_AUTH_TOKEN may be that of another cluster" in refusal("10.0.0.1:6379", error)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    assert "RAY_AUTH_MODE=disabled keeps this process from sending one" in refusal("10.0.0.1:6379", error)


def test_other_errors_of_a_cluster_do_not_blame_the_token(home):
    """The first sentence of Ray's error is shown, and what to do."""
    error = RuntimeError("Version mismatch: the cluster was started with Ray 2.40. Upgrade it")
    said = refusal("10.0.0.1:6379", error)
    assert said.startswith("the cluster of Ray at 10.0.0.1:6379 cannot be used: Version mismatch: the cluster was")
    assert said.endswith("with Ray 2.40; correct the address, or mend the cluster")


def test_an_address_at_which_nothing_listens_is_told_at_once():
    """The error does not mention a token. Addresses of other forms are left to Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        check_listening(address)
        check_listening(f"ray://{address}")
    for unheard in (address, f"ray://{address}"):
        with pytest.raises(
            MMOutError, match=rf"there is no cluster of Ray at {unheard}: Connection refused; start a cluster"
        ):
            check_listening(unheard)
    check_listening("auto")


CLUSTER = """
import sys
from ray_nodes import nodes
with nodes(0) as made:
    print(made.address, flush=True)
    sys.stdin.read()
"""
DRIVER = """
import sys
from vllm_mmout.wings.ray.cluster_token import use_token
use_token(sys.argv[1])
import ray
from vllm_mmout.wings.ray.cluster import Cluster

class Actor:
    def answer(self):
        return "done"

with Cluster(sys.argv[1]).connected():
    actor = ray.remote(num_cpus=0)(Actor).remote()
    print(ray.get(actor.answer.remote()), file=sys.__stdout__)
"""
PYTHON = [sys.executable, "-W", "ignore", "-c"]


@contextmanager
def cluster(environment):
    """Run a cluster as a process with environment variables of its own, and yield its address."""
    pytest.importorskip("ray.data")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([*PYTHON, CLUSTER], env=environment, **pipes) as process:
        yield process.stdout.readline().strip()
        process.stdin.close()


def driver(address, environment):
    """Run an actor on a cluster, from a process with environment variables of its own. Return output and errors."""
    command = [*PYTHON, DRIVER, address]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return done.stdout, done.stderr


@pytest.mark.slow
def test_a_cluster_that_asks_for_a_token(home):
    """An address suffices where the token is stored; without it the error says that it is the token."""
    (home / "token").write_text("a" * 64)
    token = {**os.environ, "RAY_AUTH_TOKEN_PATH": str(home / "token")}
    with cluster({**token, "RAY_AUTH_MODE": "token"}) as address:
        assert driver(address, token)[0] == "done\n"
        errors = driver(address, dict(os.environ))[1]
        assert "later ask for a token: this machine has none; set RAY_AUTH_TOKEN" in errors


@pytest.mark.slow
def test_a_cluster_without_a_token(home):
    """Its actors run although the machine of the command has a token."""
    (home / ".ray/auth_token").write_text("a" * 64)
    with cluster({**os.environ, "RAY_AUTH_MODE": "disabled"}) as address:
        output, errors = driver(address, dict(os.environ))
        assert output == "done\n", errors
