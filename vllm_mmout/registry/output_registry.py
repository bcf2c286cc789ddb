"""`OutputRegistry`, which assigns output processors to models, by decorator or by architecture name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vllm_mmout.errors import RegistrationError
from vllm_mmout.registry.processor_names import InstalledProcessors
from vllm_mmout.registry.registration import ProcessorTarget, Registration, make_registration, with_added

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from vllm_mmout.processors.base import OutputProcessor

Model = TypeVar("Model", bound=type)

FACTORIES = "_output_processor_factories"
"""Name of the attribute of a model class that stores the output processors registered for it, by name."""


@dataclass(frozen=True, slots=True)
class EngineFunctions:
    """Functions of `vllm_mmout.engine` that `OutputRegistry` calls. They are set when vLLM loads the plugin."""

    create_output_processor: Callable[[OutputRegistry, ModelConfig | None, Any], OutputProcessor | type]
    """Implementation of `OutputRegistry.create_output_processor`. It creates the output processor of a model."""
    output_router: Callable[[VllmConfig, bool], Callable[..., Any] | None]
    """Implementation of `OutputRegistry.output_router`. It returns a function that creates the output processor of an
    engine. If the engine uses vLLM's own output processor, it returns None."""


class OutputRegistry:
    """Registry of the output processors of models, by model class or by architecture name.

    A registration by decorator is stored on the model class itself, and found through its base classes. A registration
    by architecture name is stored in this object.
    """

    _engine: ClassVar[EngineFunctions | None] = None
    """Functions of `vllm_mmout.engine`, or None until vLLM has loaded this package's plugin."""

    def __init__(self) -> None:
        self._architectures: dict[str, dict[str, Registration]] = {}
        self._installed = InstalledProcessors()

    @classmethod
    def connect(cls, engine: EngineFunctions) -> None:
        """Store the functions of `vllm_mmout.engine` that create output processors, for use by all registries.

        This package's plugin calls this when vLLM loads it.
        """
        cls._engine = engine

    def register_output_processor(
        self, processor: ProcessorTarget, *, name: str | None = None
    ) -> Callable[[Model], Model]:
        """Return a decorator that registers an output processor for a model class.

        The class is returned unchanged.

        Several decorators give a model several processors by name. The decorator that is applied first, on the lowest
        line, sets the default. A class with registrations of its own does not inherit those of its bases.

        Args:
            processor: a subclass of OutputProcessor, or its path "pkg.mod:Class", imported when a model needs it.
            name: name of the processor in requests; None for the class attribute ``name``, else the class' name.

        Raises:
            RegistrationError: it is not an output processor, or (on decorating) the model already has another output
                processor of that name.

        """

        def decorate(model: Model) -> Model:
            if not isinstance(model, type):
                raise RegistrationError(f"register_output_processor decorates a model class, got {model!r}")
            origin = f"@register_output_processor on {model.__name__}"
            new = make_registration(processor, name, origin)
            setattr(model, FACTORIES, with_added(vars(model).get(FACTORIES, {}), new, f"model {model.__name__}"))
            return model

        make_registration(processor, name, "")  # raises at the line of a wrong processor, before the class exists
        return decorate

    register_processor = register_output_processor

    def register(self, architecture: str, processor: ProcessorTarget, *, name: str | None = None) -> None:
        """Register an output processor for the models whose ``config.json`` names ``architecture``.

        Use it for classes that you do not own. The first registration of an architecture is its default; further
        registrations add names. Registrations here replace those of decorators on the model's class.

        Args:
            architecture: an entry of ``architectures`` in ``config.json``.
            processor: a subclass of OutputProcessor, or its path "pkg.mod:Class", imported when a model needs it.
            name: name of the processor in requests; None for the class attribute ``name``, else the class' name.

        Raises:
            RegistrationError: it is not an output processor, or the architecture already has another of that name.

        """
        if not isinstance(architecture, str) or not architecture:
            raise RegistrationError(f"architecture must be a name as in config.json, got {architecture!r}")
        new = make_registration(processor, name, f"register({architecture!r})")
        table = self._architectures.get(architecture, {})
        self._architectures[architecture] = with_added(table, new, f"architecture {architecture}")

    def of_architectures(self, architectures: Iterable[str]) -> Mapping[str, Registration]:
        """Return the output processors, by name, of the first architecture for which any are registered.

        The default processor comes first.
        """
        for architecture in architectures:
            if architecture in self._architectures:
                return dict(self._architectures[architecture])
        return {}

    def of_class(self, model: type | None) -> Mapping[str, Registration]:
        """Return a dict from names to the output processors that are registered on a model class.

        If there are none on the class itself, use its nearest base class that has any. The default processor comes
        first.
        """
        return dict(getattr(model, FACTORIES, {}))

    def architectures(self) -> dict[str, tuple[Registration, ...]]:
        """Return a dict from architecture names to tuples of output processors. The default processor comes first."""
        return {architecture: tuple(table.values()) for architecture, table in self._architectures.items()}

    def installed(self, name: str) -> Registration | None:
        """Return the installed output processor called ``name``, or None. Built-in processors count as installed.

        Raises:
            RegistrationError: several packages announce different classes under that name.

        """
        return self._installed.find(name)

    def known(self) -> dict[str, str]:
        """Return a dict from the names of all installed output processors to texts such as "pkg.mod:Class (origin)".

        Any model may use these processors.
        """
        return {
            name: ", ".join(str(entry) for entry in self._installed.everything() if entry.name == name)
            for name in self._installed.names()
        }

    def create_output_processor(
        self, model_config: ModelConfig | None = None, *, engine_table: Mapping[str, Any] | None = None
    ) -> OutputProcessor | type:
        """Create the output processor of a model from its configuration.

        Args:
            model_config: vLLM's configuration of the model; None returns the class for text models.
            engine_table: the value of ``additional_config["mmout"]``, or None if it is not set.

        Returns:
            An instance of the model's default processor. For a model without an output processor (text), vLLM's own
            class ``vllm.v1.engine.output_processor.OutputProcessor``. Never None.

        Raises:
            OptionError: an option is unknown, malformed or unused.
            RegistrationError: a processor cannot be found or imported, or VLLM_PLUGINS leaves out this package.

        """
        if self._engine is None:
            from vllm.plugins import load_general_plugins

            load_general_plugins()  # type: ignore[no-untyped-call]
        if self._engine is None:
            raise RegistrationError(
                "vLLM did not load the plugin vllm_mmout; add vllm_mmout to VLLM_PLUGINS, or unset it"
            )
        return self._engine.create_output_processor(self, model_config, engine_table)

    def output_router(self, vllm_config: VllmConfig, *, in_process: bool = False) -> Callable[..., Any] | None:
        """Return a function that creates an engine's output processor. Return None if the engine uses vLLM's class.

        A patched vLLM calls this.

        Args:
            vllm_config: configuration of the engine.
            in_process: whether the model runs in this process.

        Returns:
            A function with the parameters of vLLM's class ``vllm.v1.engine.output_processor.OutputProcessor``, which
            returns an instance of a subclass of it. None for a model without an output processor (text), and if the
            hooks are not installed.

        Raises:
            OptionError, RegistrationError: see `create_output_processor`.

        """
        return None if self._engine is None else self._engine.output_router(vllm_config, in_process)


MULTIMODAL_OUTPUT_REGISTRY = OutputRegistry()

register_output_processor = MULTIMODAL_OUTPUT_REGISTRY.register_output_processor
"""Decorator that gives a model class an output processor, see `OutputRegistry.register_output_processor`."""
