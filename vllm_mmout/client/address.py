"""The address of a server, and the key that it is asked with."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from vllm_mmout.errors import OptionError
from vllm_mmout.raster.remote.address import shown

KEYS = ("VLLM_API_KEY", "OPENAI_API_KEY")
"""Variables that may hold the key; the first that is set counts. A server of vLLM reads the first one too."""


def server_address(text: str) -> str:
    """The address below which a server's routes lie.

    Args:
        text: as a user gives it, with or without ``/v1`` at its end.

    Returns:
        The address without a slash at its end.

    Raises:
        OptionError: it is none.

    """
    wrong = f"--server {shown(text)} must be the address of a server, as http://localhost:8000"
    try:
        parts = urlsplit(text.strip())
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of what is no port, or no IPv6 address
        raise OptionError(wrong, param="server") from None
    if not known or parts.query or parts.fragment:
        raise OptionError(wrong, param="server")
    if parts.username is not None:
        raise OptionError(
            f"--server {shown(text)} holds a user or a password; give the server's key by --api-key", param="server"
        )
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def api_key(given: str | None, environment: Mapping[str, str]) -> str | None:
    """The key of a server.

    Args:
        given: on the command line.
        environment: variables, of which one may hold it.

    Raises:
        OptionError: it has characters that no header can hold.

    """
    key = next((key for key in (given, *map(environment.get, KEYS)) if key), None)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise OptionError("the API key has characters that cannot be sent; see how it is quoted", param="api_key")
    return key
