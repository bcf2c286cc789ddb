"""Differences between vLLM releases. They are detected by the names in vLLM's modules, not by the version number."""

from __future__ import annotations

import importlib
from contextlib import suppress
from typing import Any, Final

from vllm_mmout.errors import HookError

TESTED_RELEASES: Final = ("0.30.0", "0.31.0", "0.32.0", "0.33.0")
"""vLLM releases that this package is tested with: the latest release of each minor version."""
CHAT_TEMPLATE_ERROR = "ChatTemplateResolutionError"
CHAT_TEMPLATE_ERROR_MODULES = ("vllm.exceptions", "vllm.renderers.chat_utils", "vllm.entrypoints.chat_utils")
"""Modules that may define vLLM's ``ChatTemplateResolutionError``. They are tried in this order, newest vLLM first.

The first is for vLLM 0.33 and later, the second for 0.32, the third for older releases. Newer releases may still import
the error in the older modules.
"""


def vllm_version() -> str:
    """Return ``vllm.__version__``, the version of the installed vLLM.

    The version is not read from package metadata, because vLLM's CPU build is a package with another name.
    """
    import vllm

    return str(getattr(vllm, "__version__", "of unknown version"))


def is_tested() -> bool:
    """Return whether this package was tested with the installed vLLM release. The build (CUDA, CPU) is ignored."""
    return vllm_version().split("+")[0] in TESTED_RELEASES


def chat_template_error() -> type[Exception]:
    """Return the error class that vLLM raises if a model does not accept chat messages.

    Raises:
        HookError: no module of this vLLM defines the error.

    """
    for home in CHAT_TEMPLATE_ERROR_MODULES:
        with suppress(ImportError):
            kind: type[Exception] | None = getattr(importlib.import_module(home), CHAT_TEMPLATE_ERROR, None)
            if kind is not None:
                return kind
    raise HookError(
        f"vLLM {vllm_version()} has no {CHAT_TEMPLATE_ERROR} in {', '.join(CHAT_TEMPLATE_ERROR_MODULES)} (needed to:"
        " refuse chats to models without a tokenizer). Install a vLLM release that this version supports, or a newer"
        " vllm_mmout"
    )


def can_make_dummies() -> bool:
    """Return whether vLLM can build dummy inputs. Model Runner V2 uses dummy inputs before requests arrive.

    vLLM 0.30 cannot build dummy inputs. Its warm-up steps have requests of two tokens, and our requests may have only
    one token.
    """
    from vllm.multimodal.processing import BaseMultiModalProcessor

    return hasattr(BaseMultiModalProcessor, "get_dummy_mm_inputs")


def may_be_sent_again(error: BaseException | None) -> bool:
    """Return whether ``error`` lets the failed request be sent again, because the engine did not run the request.

    A paused engine raises such an error since vLLM 0.33.
    """
    kind: Any = getattr(importlib.import_module("vllm.exceptions"), "RetryableRequestError", ())
    return isinstance(error, kind)
