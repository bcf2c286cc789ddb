"""Call an installed IO Processor plugin by the older or the newer version of vLLM's plugin interface."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

from vllm import envs
from vllm.plugins.io_processors.interface import IOProcessor
from vllm.pooling_params import PoolingParams
from vllm.renderers.inputs.preprocess import parse_model_prompt, prompt_to_seq
from vllm.utils.import_utils import resolve_obj_by_qualname

from vllm_mmout.errors import RegistrationError, type_and_message
from vllm_mmout.wings.io_plugins.foreign.plugin_entry_points import find_plugin, origin_of

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from vllm.config import VllmConfig
    from vllm.inputs import EngineInput
    from vllm.outputs import PoolingRequestOutput
    from vllm.renderers import BaseRenderer

TASK: Final = "plugin"
"""Pooling task of a plugin's requests if the plugin does not set a task."""


def plugin_class(name: str) -> type:
    """Import the class of the plugin called ``name``. Raise RegistrationError if this fails."""
    point = find_plugin(name)
    if envs.VLLM_PLUGINS is not None and name not in envs.VLLM_PLUGINS:
        raise RegistrationError(
            f"IO plugin {name!r} is installed, but VLLM_PLUGINS allows only {', '.join(envs.VLLM_PLUGINS)}; add it"
            " there"
        )
    label = f"IO plugin {name!r} ({origin_of(point)})"
    try:
        path = point.load()()
        kind = None if path is None else resolve_obj_by_qualname(path)
    except (Exception, SystemExit) as error:
        raise RegistrationError(f"{label} cannot be imported: {type_and_message(error)}") from error
    if not isinstance(kind, type):
        raise RegistrationError(f"{label} must name a class that can be used here, got {kind!r}")
    return kind


class RequestIds:
    """Set of the ids of running requests. A request whose id is already in use gets a suffix that makes it unique."""

    def __init__(self) -> None:
        self._used: set[str] = set()
        self._lock = threading.Lock()

    def take(self, prefix: str) -> str:
        """Reserve and return an unused id that begins with ``prefix``."""
        with self._lock:
            name = prefix
            while not name or name in self._used:
                name = f"{prefix}-{uuid4().hex}" if prefix else uuid4().hex
            self._used.add(name)
            return name

    def release(self, name: str) -> None:
        """Make the id ``name`` available again."""
        with self._lock:
            self._used.discard(name)


@dataclass(frozen=True, slots=True)
class Plugin:
    """Instance of an IO Processor plugin that all requests of an engine share. Several threads call its methods."""

    name: str
    instance: Any
    renderer: BaseRenderer
    ids: RequestIds = field(default_factory=RequestIds)
    """Ids of the plugin's running requests."""

    @classmethod
    def create(cls, name: str, kind: type, vllm_config: VllmConfig, renderer: BaseRenderer) -> Plugin:
        """Create the plugin's instance for an engine. Raise RegistrationError if the plugin's constructor fails."""
        try:
            return cls(name, _instance(kind, vllm_config, renderer), renderer)
        except (Exception, SystemExit) as error:
            raise RegistrationError(
                f"IO plugin {name!r} cannot be created for this model: {type_and_message(error)}; it may be for another"
                " model"
            ) from error

    @property
    def output_to_response(self) -> Callable[[Any], Any] | None:
        """Plugin's method that converts a result to an HTTP response. None if the plugin does not have this method.

        The method belongs to an older version of vLLM's plugin interface.
        """
        return self.instance.output_to_response if self._implements("output_to_response") else None

    def parse(self, data: Any) -> Any:
        """Let the plugin check and parse the data of a request."""
        method = (
            "parse_data" if self._implements("parse_data") or not self._implements("parse_request") else "parse_request"
        )
        return getattr(self.instance, method)(data)

    def prompts(self, parsed: Any, request_id: str) -> list[Any]:
        """Create the model's prompts from parsed data with the plugin's ``pre_process``."""
        return list(prompt_to_seq(self._call_sync_or_async("pre_process", parsed, request_id, key="prompt")))

    def pooling_params(self) -> PoolingParams:
        """Ask the plugin for the pooling params of its prompts. Raise TypeError if they are not `PoolingParams`."""
        old = self._implements("validate_or_generate_params") and not self._implements("merge_pooling_params")
        params = self.instance.validate_or_generate_params() if old else self.instance.merge_pooling_params()
        if not isinstance(params, PoolingParams):
            raise TypeError(f"its params must be PoolingParams, got {type(params).__name__}")
        params = params.clone()  # the plugin may return the same object each time
        if params.task is None:
            params.task = TASK
        return params

    def rendered(self, prompt: Any) -> EngineInput:
        """Convert a prompt to an engine input in vLLM's renderer thread, and wait for the engine input."""
        parsed = prompt if isinstance(prompt, bytes) else parse_model_prompt(self.renderer.model_config, prompt)
        # Skip the cache: its two halves must see the same requests, and a request may be aborted before it is sent.
        executor: Executor = self.renderer._executor  # noqa: SLF001 - the renderer has no public access to it
        (rendered,) = executor.submit(self.renderer.render_cmpl, [parsed], skip_mm_cache=True).result()
        return cast("EngineInput", rendered)

    def result(self, outputs: Sequence[PoolingRequestOutput[Any]], request_id: str) -> Any:
        """Create the result with the plugin's ``post_process``. ``outputs`` are in the order of the prompts."""
        return self._call_sync_or_async("post_process", outputs, request_id, key="model_output", convert=_each)

    def _call_sync_or_async(
        self, method: str, value: Any, request_id: str, *, key: str, convert: Callable[[Any], Any] = lambda value: value
    ) -> Any:
        """Call a plugin's ``method``, or its asynchronous variant if the plugin has only that.

        ``key`` is the name of the argument for ``value``. The asynchronous variant gets ``convert(value)``.
        """
        other = f"{method}_async"
        asynchronous = self._implements(other)
        if self._implements(method) or not asynchronous:
            try:
                return getattr(self.instance, method)(**{key: value}, request_id=request_id)
            except NotImplementedError:
                if not asynchronous:
                    raise
        call = getattr(self.instance, other)(**{key: convert(value)}, request_id=request_id)
        return asyncio.run(cast("Coroutine[Any, Any, Any]", call))

    def _implements(self, method: str) -> bool:
        """Return whether the plugin's class overrides a method of vLLM's base class."""
        for kind in type(self.instance).__mro__:
            if method in vars(kind):
                return kind is not IOProcessor and not getattr(vars(kind)[method], "__isabstractmethod__", False)
        return False


async def _each(outputs: Sequence[Any]) -> AsyncGenerator[tuple[int, Any], None]:
    for entry in enumerate(outputs):
        yield entry


class _OldIOProcessor(IOProcessor):  # type: ignore[type-arg]
    """Base class for older plugins. Their constructors call ``IOProcessor.__init__`` with the config alone."""

    def __init__(self, vllm_config: VllmConfig, renderer: BaseRenderer | None = None) -> None:
        super().__init__(vllm_config, cast("BaseRenderer", renderer))


def _instance(kind: type, vllm_config: VllmConfig, renderer: BaseRenderer) -> Any:
    """Create an instance of a plugin class. Older plugins take only the config, newer plugins also the renderer."""
    try:
        inspect.signature(kind).bind(vllm_config, renderer)
    except TypeError:
        old = issubclass(kind, IOProcessor)
        return (type(kind.__name__, (kind, _OldIOProcessor), {}) if old else kind)(vllm_config)
    return kind(vllm_config, renderer)
