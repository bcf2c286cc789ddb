"""Find the authentication token of a Ray cluster (Ray 2.60 or later), and explain refused connections.

https://docs.ray.io/en/latest/ray-security/token-auth.html. Ray looks for a token automatically only if it finds the
cluster without an address. With an address it sends a token only if RAY_AUTH_MODE=token was set before its import.

With RAY_AUTH_MODE=token a process also refuses calls without the token. A cluster without a token then cannot ask the
process whether it still uses its actors, and ends them before they start.
"""

from __future__ import annotations

import os
import re
import socket
from pathlib import Path
from typing import Final

from vllm_mmout.errors import MMOutError

MODE: Final = "RAY_AUTH_MODE"
_TOKEN: Final = "RAY_AUTH_TOKEN"  # noqa: S105 - the variable's name
_PATH: Final = "RAY_AUTH_TOKEN_PATH"
_FILE: Final = "~/.ray/auth_token"
_CONNECT_S: Final = 10
_CHECK_ALIVE: Final = "/ray.rpc.NodeInfoGcsService/CheckAlive"
"""Ray's gRPC method that returns the version of a cluster. `_is_open` calls the method without a token."""
_OF_TOKENS: Final = re.compile(r"\btoken|\bauth(?!or\b|ors\b)|authenticat", re.IGNORECASE)
"""Pattern that matches Ray's error messages about the cluster's authentication token."""


def token_source() -> str | None:
    """Return the name of the variable or file with this machine's Ray token. Return None if no token is found."""
    if os.environ.get(_TOKEN):
        return _TOKEN
    if path := os.environ.get(_PATH):
        return f"{_PATH} ({path})" if _has_text(Path(path)) else None
    return _FILE if _has_text(Path(_FILE).expanduser()) else None


def use_token(address: str) -> None:
    """Make Ray send this machine's token to the cluster, if the cluster requires a token.

    Call this before importing Ray. If RAY_AUTH_MODE is set, its value is kept.

    Raises:
        MMOutError: RAY_AUTH_MODE is ``token``, but the cluster uses no token.

    """
    mode = os.environ.get(MODE)
    if mode is None and token_source() is not None and not _is_open(address):
        os.environ[MODE] = "token"
    elif mode is not None and mode.lower() == "token" and _is_open(address):
        raise MMOutError(
            f"the cluster of Ray at {address} uses no token, and with {MODE}={mode} this process would refuse its"
            f" calls; unset {MODE}"
        )


def _is_open(address: str) -> bool:
    """Return whether the head of a cluster at ``HOST:PORT`` answers a call without a token."""
    if _host_and_port(address) is None:
        return False
    import grpc

    with grpc.insecure_channel(address, [("grpc.enable_http_proxy", 0)]) as channel:  # Ray uses no proxy either
        try:
            channel.unary_unary(_CHECK_ALIVE)(b"", timeout=_CONNECT_S)
        except grpc.RpcError:
            return False
    return True


def check_listening(address: str) -> None:
    """Raise MMOutError if nothing listens at ``HOST:PORT``. Ray itself would keep trying for minutes."""
    place = _host_and_port(address)
    if place is None:
        return  # the address has another form, which Ray checks itself
    try:
        socket.create_connection(place, _CONNECT_S).close()
    except (OSError, OverflowError) as error:
        why = getattr(error, "strerror", None) or error
        raise MMOutError(
            f"there is no cluster of Ray at {address}: {why}; start a cluster, or leave the address out"
        ) from error


def refusal(address: str | None, error: Exception) -> str:
    """Return an error message for a cluster that refused the connection, with advice about the token."""
    if address is None:
        return f"Ray cannot be started on this machine: {error}"
    if not isinstance(error, ConnectionError) and not _OF_TOKENS.search(str(error)):
        return (
            f"the cluster of Ray at {address} cannot be used: {_first_sentence(error)};"
            " correct the address, or mend the cluster"
        )
    mode, source = os.environ.get(MODE), token_source()
    if mode is not None and mode.lower() != "token":
        token = f"{MODE}={mode} keeps this process from sending one; set {MODE}=token"
    elif source is None:
        token = f"this machine has none; set {_TOKEN}, or {_PATH} to a file that holds it, or store it in {_FILE}"
    else:
        token = f"the token from {source} may be that of another cluster; set {_TOKEN} to the token of this one"
    return (
        f"the cluster of Ray at {address} does not answer this process: {_first_sentence(error)}. Clusters of Ray 2.60"
        f" and later ask for a token: {token}"
    )


def _host_and_port(address: str) -> tuple[str, int] | None:
    """Split a Ray cluster's address into (host, port). Return None for an address without a port, such as ``auto``.

    The address may begin with ``ray://``.
    """
    host, _, port = address.rpartition("://")[2].rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else None


def _first_sentence(error: Exception) -> str:
    return str(error).partition(". ")[0].rstrip(".\n")


def _has_text(path: Path) -> bool:
    try:
        return bool(path.read_text().strip())
    except (OSError, UnicodeDecodeError):
        return False
