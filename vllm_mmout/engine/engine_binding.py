"""EngineBinding: one way of binding an engine, which output processors name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.engine.settings import EngineSettings
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry.choice import Choice


@dataclass(frozen=True)
class EngineBinding(ABC):
    """The processors and settings of one bound engine; a subclass is one way of binding, named by its processors."""

    model: str
    """Served name, for messages."""
    processors: Mapping[str, OutputProcessor]
    """This process's instances by name, the default first."""
    settings: EngineSettings
    choice: Choice

    generates: ClassVar[bool]
    """Whether it is for models that generate tokens, or for those that answer in one forward."""
    async_llm: ClassVar[str]
    """Class of a bound ``AsyncLLM``, as "module:Class"; those below likewise."""
    llm_engine: ClassVar[str]
    llm: ClassVar[str]
    output_processor: ClassVar[str]
    """Has ``setup(binding)`` and ``close()``."""

    @classmethod
    @abstractmethod
    def make(
        cls, vllm_config: VllmConfig, choice: Choice, config: Mapping[str, Any], model: str, *, in_process: bool
    ) -> Self:
        """Make it, before any process of the engine is started."""

    def started(self, engine: Any) -> Self:
        """The same with what an engine must be there for, an ``AsyncLLM`` or ``LLMEngine``."""
        return self

    @abstractmethod
    def async_runtime(self) -> Any:
        """What the bound ``AsyncLLM`` keeps as ``mmout``."""

    @abstractmethod
    def check_params(self, params: OutputParams) -> None:
        """Check what a request asks of this model."""
