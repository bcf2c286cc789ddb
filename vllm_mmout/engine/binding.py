"""Output processors and settings of one engine, and the classes that replace vLLM's own in that engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.engine.model_class import check_inputs_of_generating, choose, config_of, model_inputs, short_name
from vllm_mmout.engine.scene.pace import Paces
from vllm_mmout.engine.settings import OPTIONS_KEY, EngineSettings
from vllm_mmout.engine.trace import Trace, Traced
from vllm_mmout.errors import OptionError, RegistrationError
from vllm_mmout.importing import import_path
from vllm_mmout.log import logger
from vllm_mmout.models.inputs.shared_memory import SharedMemory
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.base import OwnInputsProcessor, check_output
from vllm_mmout.registry import MULTIMODAL_OUTPUT_REGISTRY
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from vllm_mmout.models.inputs.model_inputs import ModelInputs
    from vllm_mmout.processors.base import OutputProcessor
    from vllm_mmout.registry.choice import Choice


@dataclass(frozen=True)
class EngineBinding(ABC):
    """Abstract base class that holds the output processors and settings of one engine.

    A subclass also names the classes that replace vLLM's ``AsyncLLM`` and others. See `OutputProcessor.binding`.
    """

    model: str
    """Name under which the model is served, for log and error messages."""
    processors: Mapping[str, OutputProcessor]
    """Output processors of this process by name. The first is the default."""
    settings: EngineSettings
    choice: Choice
    """Selected output processors, with their options and the name of the setting that selected them."""

    generates: ClassVar[bool]
    """Whether the model generates tokens instead of answering in one forward pass."""
    async_llm: ClassVar[str]
    """Import path ("module:Class") of an ``AsyncLLM`` subclass. The method ``mmout_bound`` is run after start-up."""
    llm_engine: ClassVar[str]
    """Import path ("module:Class") of the subclass of vLLM's ``LLMEngine`` that the engine uses."""
    llm: ClassVar[str]
    """Import path ("module:Class") of the subclass of vLLM's ``LLM`` that the engine uses."""
    output_processor: ClassVar[str]
    """Import path ("module:Class") of an ``OutputProcessor`` subclass that has the methods ``setup`` and ``close``."""

    @classmethod
    @abstractmethod
    def make(
        cls, vllm_config: VllmConfig, choice: Choice, config: Mapping[str, Any], model: str, *, in_process: bool
    ) -> Self:
        """Create the output processors and settings of an engine that is about to start, from ``vllm_config``."""

    def started(self, engine: Any) -> Self:
        """Return the binding after adding values that are known only once ``engine`` has started."""
        return self

    @abstractmethod
    def check_params(self, params: OutputParams) -> None:
        """Raise an error if an option of a request does not fit the engine's model."""


@dataclass(frozen=True)
class Binding(EngineBinding):
    """Output processors and settings of an engine whose model answers in a single forward pass."""

    inputs: ModelInputs | None
    """Mapper that converts a request's data to keyword arguments of ``forward``, or None if vLLM builds the inputs."""
    raw_input: bool
    """Whether ``forward`` takes only tensors and no token ids, so that a request without tensors crashes the engine."""
    max_num_seqs: int
    """Largest number of requests that an engine processes in one step."""
    max_in_flight: int
    """Maximum number of unfinished requests per engine. A request is unfinished until its result is delivered."""
    max_tiles: int
    """Largest number of tiles in memory per engine. A tile counts until its output is part of the scene's result."""
    engines: int = 1
    """Number of engines that this frontend sends requests to, more than 1 with data parallelism."""
    first_engine: int = 0
    """Index of the data-parallel engine that gets this frontend's first tiles. It differs between frontends."""
    trace: Trace | None = None
    """Writer of the trace file, which records when each stage of a request ran. None if the engine is not traced."""
    memory: SharedMemory | None = None
    """Shared memory through which workers on this machine get tiles. None if tiles are sent without shared memory."""
    paces: Paces = field(default_factory=Paces)
    """Measured time and output size per tile. Scenes with equal options, tile sizes and dtypes share a measurement."""

    generates: ClassVar[bool] = False
    async_llm: ClassVar[str] = "vllm_mmout.engine.request.async_llm:BoundAsyncLLM"
    llm_engine: ClassVar[str] = "vllm_mmout.engine.request.llm_engine:BoundLLMEngine"
    llm: ClassVar[str] = "vllm_mmout.engine.request.llm:BoundLLM"
    output_processor: ClassVar[str] = "vllm_mmout.engine.request.output_router:RoutedOutputProcessor"

    @classmethod
    def make(
        cls, vllm_config: VllmConfig, choice: Choice, config: Mapping[str, Any], model: str, *, in_process: bool
    ) -> Self:
        """Create the output processors and settings of an engine that is about to start, from ``vllm_config``."""
        settings = EngineSettings.from_mapping(choice.settings)
        if settings.trace is not None and vllm_config.parallel_config._api_process_count == 1:  # noqa: SLF001 - in the hook table
            Trace.begin(settings.trace)  # with several API servers, the process that starts them creates the file
        processors = choice.create(config)
        for processor in processors.values():
            if isinstance(processor, OwnInputsProcessor):
                processor.load()
        model_config = vllm_config.model_config
        requests = vllm_config.scheduler_config.max_num_seqs
        return cls(
            model=model,
            processors=processors,
            settings=settings,
            choice=choice,
            inputs=model_inputs(model_config, in_process=in_process),
            raw_input=model_config.is_multimodal_raw_input_only_model,
            max_num_seqs=requests,
            max_in_flight=settings.max_in_flight or max(16, 4 * requests),
            max_tiles=settings.max_tiles or max(2 * requests, 512),
            trace=None if settings.trace is None else Trace(settings.trace),
        )

    def started(self, engine: Any) -> Self:
        """Return a copy of this binding with the engine count, shared memory and prompt renderer of ``engine``."""
        from vllm.platforms import current_platform

        processors = dict(self.processors)
        for name, processor in self.processors.items():
            if isinstance(processor, OwnInputsProcessor):
                processors[name] = processor.started(engine.vllm_config, engine.renderer)
        client = engine.engine_core
        engines = len(getattr(client, "core_engines", "1"))  # the client of an engine in this process lacks the list
        first = getattr(client, "client_index", 0) % engines
        takes_blocks = self.inputs is not None and self.inputs.takes_blocks
        on_gpu = not current_platform.is_cpu()
        nbytes = self.settings.max_tile_bytes
        memory = SharedMemory.of_engines(engines, nbytes, bands_last=on_gpu) if takes_blocks else None
        return replace(self, processors=processors, engines=engines, first_engine=first, memory=memory)

    def traced(self, request_id: str, tile: int | None = None, tiles: int = 1) -> Traced | None:
        """Return an object that records a request's times in the trace file, or None if tracing is off.

        If only a block of its tiles is recorded, ``tile`` is the index of the first, and ``tiles`` the number of tiles.
        """
        return None if self.trace is None else Traced(self.trace, request_id, tile, tiles)

    def own_inputs(self, params: OutputParams) -> tuple[str, OwnInputsProcessor] | None:
        """Return (name, processor) if the requested processor makes the model's inputs itself. Else return None."""
        for name in self.choice.pick(params.processor):
            processor = self.processors[name]
            if isinstance(processor, OwnInputsProcessor):
                return name, processor
        return None

    def check_params(self, params: OutputParams) -> None:
        """Raise an error if an option of a request does not fit the engine's model."""
        for name in ("sampling", "grid", "chunk_seconds"):
            if getattr(params, name) is not None:
                raise OptionError(
                    f"{name} is for models that generate tokens, and {self.model} answers in one forward; leave it out",
                    param=name,
                )
        self._check_own_inputs(params)
        for name in self.choice.pick(params.processor):
            check_output(name, self.processors[name], params.output)

    def _check_own_inputs(self, params: OutputParams) -> None:
        own = self.own_inputs(params)
        if own is None:
            return
        name, processor = own
        others = [repr(pick) for pick in self.choice.pick(params.processor) if pick != name]
        if others:
            raise OptionError(
                f"output processor {name!r} makes the model's inputs itself; ask for it alone, not together with"
                f" {', '.join(others)}",
                param="processor",
            )
        plain = OutputParams()
        for option in OutputParams.__struct_fields__:
            if option not in processor.honours and getattr(params, option) != getattr(plain, option):
                raise OptionError(
                    f"{option} is not for {name!r}, which reads its input and makes its result itself; leave it out, or"
                    " give the equivalent in the data of the request",
                    param=option,
                )


def resolve_choice(vllm_config: VllmConfig) -> Choice | None:
    """Return the output processors selected for a model, or None for a text model."""
    additional = vllm_config.additional_config
    table = additional.get(OPTIONS_KEY) if isinstance(additional, Mapping) else None
    return choose(MULTIMODAL_OUTPUT_REGISTRY, vllm_config.model_config, table)


def make_binding(vllm_config: VllmConfig, *, in_process: bool = False) -> EngineBinding | None:
    """Create the output processors and settings of an engine before it starts. Return None for a text model."""
    choice = resolve_choice(vllm_config)
    model_config = vllm_config.model_config
    if model_config.runner_type == "generate":
        check_inputs_of_generating(model_config)
    if choice is None:
        return None
    served = model_config.served_model_name
    name = short_name(served if isinstance(served, str) else model_config.model)
    kind = _binding_class(choice, model_config.model, generates=model_config.runner_type == "generate")
    _check_trace(choice, config_of(model_config), name, kind)
    return kind.make(vllm_config, choice, config_of(model_config), name, in_process=in_process)


def _check_trace(choice: Choice, config: Mapping[str, Any], model: str, kind: type[EngineBinding]) -> None:
    """Raise OptionError if ``config.json`` sets "trace", or if a trace is requested for a model that generates tokens.

    A model's folder must not choose which file is written, and the trace of a generating model would stay empty.
    """
    table = config.get(OPTIONS_KEY)
    if isinstance(table, Mapping) and "trace" in table:
        raise OptionError('config.json sets "trace", which only the engine argument may set; remove it', param="trace")
    if kind.generates and choice.settings.get("trace") is not None:
        raise OptionError(
            f"trace is for models that answer in one forward, and {model} generates tokens; leave it out", param="trace"
        )


def check_extensions(vllm_config: VllmConfig, *, bound: bool) -> None:
    """Call each extension package's ``check_engine``, which raises if the package cannot work with the engine.

    If an extension package cannot be imported, the error is only logged for a text model, which then still starts.
    """
    try:
        wings = list(extensions("engine"))
    except RegistrationError as error:
        if bound:
            raise
        logger.error("%s", error)
        return
    for extension in wings:
        extension.check_engine(vllm_config, bound=bound)


def _binding_class(choice: Choice, model: str, *, generates: bool) -> type[EngineBinding]:
    """Return the `EngineBinding` subclass that all output processors in ``choice`` require.

    Raises:
        OptionError: a processor needs generated tokens and the model answers in one forward, or the reverse.
        RegistrationError: the processors require different classes.
    """
    kinds: dict[type[EngineBinding], str] = {}
    for name, processor in choice.processors.items():
        kind: Any = import_path(processor.binding, "binding") if processor.binding else Binding
        if kind.generates and not generates:
            raise OptionError(
                f"output processor {name!r} ({choice.chosen_by}) decodes generated tokens, and the model answers in one"
                ' forward: name a processor of tensors, or start a model that generates with runner="generate"'
            )
        if generates and not kind.generates:
            raise OptionError(
                f"model {model} generates tokens, and output processor {name!r} ({choice.chosen_by}) takes the tensors"
                ' of models that answer in one forward: start it with runner="pooling", name a processor of tokens, or'
                ' set additional_config={"mmout": {"output_processor": "none"}}'
            )
        kinds.setdefault(kind, name)
    if len(kinds) > 1:
        raise RegistrationError(
            f"output processors {' and '.join(map(repr, kinds.values()))} ({choice.chosen_by}) bind an engine in"
            " different ways; name one of them"
        )
    return next(iter(kinds))


def log_binding(binding: EngineBinding) -> None:
    """Log which output processors an engine uses, and which setting selected them."""
    logger.info(
        "vllm_mmout: model %s answers through %s, chosen by %s; the engine is bound",
        binding.model,
        ", ".join(f"{name} ({type(processor).__qualname__})" for name, processor in binding.processors.items()),
        binding.choice.chosen_by,
    )


def rebase(obj: Any, ours: Any) -> None:
    """Change the class of a vLLM object to one that inherits from ``ours`` and from the object's present class."""
    if not isinstance(obj, ours):
        theirs: Any = type(obj)
        obj.__class__ = rebased(ours, theirs)


@cache
def rebased(ours: Any, theirs: Any) -> Any:
    """Return a class that inherits from ``ours``, then ``theirs``. It is created once for each pair and cached."""
    return ours if issubclass(ours, theirs) else type(theirs)(ours.__name__, (ours, theirs), {})
