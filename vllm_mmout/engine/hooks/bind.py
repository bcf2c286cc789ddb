"""Make vLLM's engines return decoded results. The class of each engine object is replaced with a subclass.

vLLM's own classes stay unchanged.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.binding import log_binding, rebase, resolve_choice
from vllm_mmout.engine.hooks.compat import can_make_dummies
from vllm_mmout.engine.model_class import config_of
from vllm_mmout.engine.settings import EngineSettings
from vllm_mmout.errors import MMOutError
from vllm_mmout.importing import import_path
from vllm_mmout.models.announced_classes import serve_announced
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.engine.binding import EngineBinding


def bind_async_llm(engine: Any, binding: EngineBinding) -> None:
    """Make a started ``AsyncLLM`` return results that are decoded by the output processors in ``binding``."""
    binding = _bind_shared_objects(engine, binding, engine.shutdown)
    _rebase(engine, binding.async_llm)
    engine.mmout_bound()
    for extension in extensions("engine"):
        extension.bind_async_llm(engine)
    log_binding(binding)


def bind_llm_engine(engine: Any, binding: EngineBinding) -> None:
    """Make a started ``LLMEngine`` return results that are decoded by the output processors in ``binding``."""
    from vllm_mmout.engine.request.interrupts import Interrupts
    from vllm_mmout.engine.request.llm_engine import bind_client

    engine.mmout = Interrupts()
    bind_client(engine.engine_core)
    binding = _bind_shared_objects(engine, binding, engine.engine_core.shutdown)
    _rebase(engine, binding.llm_engine)
    log_binding(binding)


def bind_llm(llm: Any) -> None:
    """Make ``generate`` of an ``LLM`` return decoded results if its engine has output processors."""
    binding = getattr(llm.llm_engine.output_processor, "binding", None)
    # A text engine runs none of our code, so vLLM itself refuses `OutputParams` there.
    if binding is None:
        return
    _rebase(llm, binding.llm)
    for extension in extensions("engine"):
        extension.bind_llm(llm)


def bind_worker(worker: Any, vllm_config: VllmConfig) -> None:
    """Make a worker process run the output processors of its model, if the model has any.

    The worker's ``load_model`` then wraps the model's pooler.
    """
    serve_announced()
    choice = resolve_choice(vllm_config)
    if choice is None or vllm_config.model_config.runner_type != "pooling":  # tokens are decoded in the frontend
        return
    from vllm_mmout.engine.worker.bound import BoundWorker

    if vllm_config.use_v2_model_runner:
        from vllm_mmout.engine.worker.inputs_to_device import serve_by_v2

        serve_by_v2(vllm_config)
    worker.mmout = choice.create(config_of(vllm_config.model_config))
    settings = EngineSettings.from_mapping(choice.settings)
    worker.compile, worker.trace = settings.compile, settings.trace
    rebase(worker, BoundWorker)


def _bind_shared_objects(engine: Any, binding: EngineBinding, shut_down: Callable[[], None]) -> EngineBinding:
    """Replace the classes of objects that ``AsyncLLM`` and ``LLMEngine`` both have, such as the output processor.

    The new classes are subclasses of the old classes. Return ``binding``, completed with facts that only the started
    engine knows. If that fails, ``shut_down`` is called and the error is raised.
    """
    try:
        binding = binding.started(engine)
    except BaseException:
        shut_down()
        raise
    if not binding.generates and engine.renderer.tokenizer is None:
        from vllm_mmout.engine.hooks.renderer import NoChat

        rebase(engine.renderer, NoChat)
    _rebase(engine.output_processor, binding.output_processor)
    engine.output_processor.setup(binding)
    closing = weakref.finalize(engine, engine.output_processor.close)
    closing.atexit = False  # a thread that wakes during the interpreter's shutdown may abort the process
    return binding


def _rebase(obj: Any, path: str) -> None:
    cls: Any = import_path(path, "class of a bound engine")
    rebase(obj, cls)


def v1_only_features(vllm_config: VllmConfig) -> list[str]:
    """Return vLLM's names of the features that a model needs and that only Model Runner V1 has.

    The list is empty for an engine with output processors if vLLM can build dummy inputs.
    """
    model_config = vllm_config.model_config
    if model_config is None or not model_config.is_multimodal_raw_input_only_model:
        return []
    try:
        bound = resolve_choice(vllm_config) is not None
    except MMOutError:  # the engine's constructor raises it again
        return []
    return [] if bound and can_make_dummies() else ["models with raw multimodal inputs"]
