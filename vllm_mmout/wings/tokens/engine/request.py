"""Attach options that vLLM does not know to the sampling params of a request."""

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
    """Options of one request that vLLM's sampling params cannot hold."""

    params: OutputParams
    decode: bool = True
    """Whether to decode pictures and sounds. If False, their tokens are only left out of the text."""


PLAIN = OutputParams()


def with_request(sampling: SamplingParams, token_request: TokenRequest) -> SamplingParams:
    """Return a copy of the sampling params that also holds ``token_request``, the options unknown to vLLM."""
    copied = sampling.clone()
    copied.extra_args = {**(sampling.extra_args or {}), KEY: token_request}
    return copied


@contextmanager
def without_own_options(params: Any) -> Iterator[Any]:
    """Yield a copy of sampling params without this package's options, to be sent to the engine process.

    Inside the context, `ticket` returns these options.
    """
    extra = getattr(params, "extra_args", None) or {}
    token_request = extra.get(KEY)
    if not isinstance(token_request, TokenRequest):
        yield params
        return
    sent = copy(params)
    sent.extra_args = {name: value for name, value in extra.items() if name != KEY} or None
    with carrying(token_request):
        yield sent
