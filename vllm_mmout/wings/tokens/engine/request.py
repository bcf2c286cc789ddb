"""TokenRequest: options of a request beyond sampling, which travel with its sampling params inside this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import Any

from vllm.sampling_params import SamplingParams

from vllm_mmout.engine.request.request import carrying
from vllm_mmout.params import OutputParams

KEY = "mmout"


@dataclass(slots=True)
class TokenRequest:
    """The options of one request beyond sampling."""

    params: OutputParams
    decode: bool = True
    """Whether media are decoded. If False, media tokens are still kept out of the text."""


PLAIN = OutputParams()


def with_request(sampling: SamplingParams, token_request: TokenRequest) -> SamplingParams:
    """Return a copy of sampling params that carries the other options of a request."""
    copied = sampling.clone()
    copied.extra_args = {**(sampling.extra_args or {}), KEY: token_request}
    return copied


@contextmanager
def sent_apart(params: Any) -> Iterator[Any]:
    """Yield a copy of params without our options, which are kept for the code that adds the request."""
    extra = getattr(params, "extra_args", None) or {}
    token_request = extra.get(KEY)
    if not isinstance(token_request, TokenRequest):
        yield params
        return
    sent = copy(params)
    sent.extra_args = {name: value for name, value in extra.items() if name != KEY} or None
    with carrying(token_request):
        yield sent
