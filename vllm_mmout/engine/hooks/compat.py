"""Where names of the installed vLLM are, told by what it has, never by its version."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any, Final

from vllm_mmout.errors import HookError

TESTED_RELEASES: Final = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""The newest release of each minor version, pinned: a test must not change by what is published."""
CHAT_TEMPLATE_ERROR = "ChatTemplateResolutionError"
CHAT_TEMPLATE_ERROR_HOMES = ("vllm.exceptions", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")
"""The modules that have defined it: from 0.33 on, in 0.32, and before; newest first, older ones may only hand it on."""


def vllm_version() -> str:
    """The version that vLLM says it is; the CPU build has no ``vllm`` distribution to ask."""
    import vllm

    return str(getattr(vllm, "__version__", "of unknown version"))


def is_tested() -> bool:
    """Return whether the installed vLLM is of a release that this version was tested with, whatever its build."""
    return vllm_version().split("+")[0] in TESTED_RELEASES


def chat_template_error() -> type[Exception]:
    """What vLLM raises where a model takes no chats, wherever this release defines it."""
    for home in CHAT_TEMPLATE_ERROR_HOMES:
        with suppress(ImportError):
            found: type[Exception] | None = getattr(importlib.import_module(home), CHAT_TEMPLATE_ERROR, None)
            if found is not None:
                return found
    raise HookError(
        f"vLLM {vllm_version()} has no {CHAT_TEMPLATE_ERROR} in {', '.join(CHAT_TEMPLATE_ERROR_HOMES)} (needed to:"
        " refuse chats to models without a tokenizer). Install a vLLM release that this version supports, or a newer"
        " vllm_mmout"
    )


def can_make_dummies() -> bool:
    """Whether a step of Model Runner V2 without inputs can be given some; not in 0.30, which warms up by such steps.

    There they have two tokens, too, where a request of ours may have one.
    """
    from vllm.multimodal.processing import BaseMultiModalProcessor

    return hasattr(BaseMultiModalProcessor, "get_dummy_mm_inputs")


def may_be_sent_again(error: BaseException | None) -> bool:
    """Whether nothing of a request was run and it may be sent again, as a paused engine says from 0.33 on."""
    kind: Any = getattr(importlib.import_module("vllm.exceptions"), "RetryableRequestError", ())
    return isinstance(error, kind)
