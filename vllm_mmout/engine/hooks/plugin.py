"""The ``vllm.general_plugins`` entry point, run by vLLM in the frontend, the engine core and every worker."""

from __future__ import annotations

import logging

from vllm_mmout.errors import HookError

_drift: HookError | None = None


def load() -> None:
    """Install the hooks and register what this package brings; a raise here would stop every text model.

    Where vLLM has drifted the error is kept, one line is logged and nothing is installed. The error is raised by
    ``install()``, by the command line, and by the first engine whose model needs a processor. A decorated class of
    others gets vLLM's own refusal of ``generate``: nothing is installed that could say more.
    """
    global _drift  # noqa: PLW0603 - the plugin's one piece of state, for the process
    from vllm_mmout.engine.hooks.install import install, is_core, is_frontend
    from vllm_mmout.engine.model_class import process_pictures
    from vllm_mmout.models.announced import serve_announced
    from vllm_mmout.models.config import register_config
    from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY

    try:
        install(frontend=is_frontend(), core=is_core())
    except HookError as error:
        _drift = error
        logging.getLogger("vllm.mmout").error("%s", error)  # noqa: TRY400 - the message says it all
        register_config(error)
        return
    register_config()
    serve_announced()
    MULTIMODAL_INPUT_REGISTRY.on_decorated(process_pictures)


def drift() -> HookError | None:
    """Why no hook is installed, if vLLM has drifted."""
    return _drift
