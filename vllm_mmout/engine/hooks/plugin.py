"""The ``vllm.general_plugins`` entry point, run by vLLM in the frontend, the engine core and every worker."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import HookError
from vllm_mmout.registry.output_registry import EngineFunctions, OutputRegistry

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def load() -> None:
    """Install the hooks, and register this package's classes. If vLLM has changed, log an error instead of raising it.

    Text models then still start. No hook is installed, and the error is kept. ``install()``, the command line and the
    first engine of a model that needs a processor raise it. The ``generate`` of a decorated class from another
    package raises vLLM's own error then, since no hook can add to the message.
    """
    from vllm_mmout.engine.hooks.install import install, is_core, is_frontend
    from vllm_mmout.engine.model_class import create_output_processor, process_pictures
    from vllm_mmout.models.announced_classes import serve_announced
    from vllm_mmout.models.config import register_config
    from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY

    OutputRegistry.connect(EngineFunctions(create_output_processor, _output_router))
    try:
        install(frontend=is_frontend(), core=is_core())
    except HookError as error:
        logging.getLogger("vllm.mmout").error("%s", error)  # noqa: TRY400 - the message needs no traceback
        register_config(error)
        return
    register_config()
    serve_announced()
    MULTIMODAL_INPUT_REGISTRY.on_decorated(process_pictures)


def _output_router(vllm_config: VllmConfig, in_process: bool) -> Callable[..., Any] | None:  # noqa: FBT001
    from vllm_mmout.engine.hooks.native import output_router  # needed on a patched vLLM only

    return output_router(vllm_config, in_process=in_process)
