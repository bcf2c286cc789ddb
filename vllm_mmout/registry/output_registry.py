"""OutputRegistry: which output processors belong to which model, by decorator and by architecture name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from vllm_mmout.errors import RegistrationError
from vllm_mmout.importing import import_path
from vllm_mmout.registry.processor_names import InstalledProcessors
from vllm_mmout.registry.registration import ProcessorTarget, Registration, make_registration, with_added

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig

    from vllm_mmout.processors.base import OutputProcessor

MAKER = "vllm_mmout.engine.model_class:create_output_processor"
"""What makes an output processor of a model's configuration; named, since the engine stands on the registries."""

ROUTER = "vllm_mmout.engine.hooks.native:output_router"
"""What makes an engine's output processor for a patched vLLM; named, as above."""

Model = TypeVar("Model", bound=type)

FACTORIES = "_output_processor_factories"
"""Attribute of a model class that holds its registrations by name, as vLLM's own registry keeps its factory there."""


class OutputRegistry:
    """Output processors of models.

    A decorator's registration is kept on the model class itself and found through its bases; a registration by
    architecture name is kept here.
    """

    def __init__(self) -> None:
        self._architectures: dict[str, dict[str, Registration]] = {}
        self._installed = InstalledProcessors()

    def register_output_processor(
        self, processor: ProcessorTarget, *, name: str | None = None
    ) -> Callable[[Model], Model]:
        """Decorate a model class with an output processor; the class is returned unchanged.

        Several decorators give a model several processors by name. The one that is applied first, the lowest line, is
        the default. A class with registrations of its own does not see those of its bases.

        Args:
            processor: a subclass of OutputProcessor, or its path "pkg.mod:Class", imported when a model needs it.
            name: what requests call it; None: the class attribute ``name``, else the class' name.

        Raises:
            RegistrationError: it is no output processor, or (on decorating) the model has another one of that name.

        """

        def decorate(model: Model) -> Model:
            if not isinstance(model, type):
                raise RegistrationError(f"register_output_processor decorates a model class, got {model!r}")
            origin = f"@register_output_processor on {model.__name__}"
            new = make_registration(processor, name, origin)
            setattr(model, FACTORIES, with_added(vars(model).get(FACTORIES, {}), new, f"model {model.__name__}"))
            return model

        make_registration(processor, name, "")  # a wrong processor is an error of the line that names it
        return decorate

    register_processor = register_output_processor

    def register(self, architecture: str, processor: ProcessorTarget, *, name: str | None = None) -> None:
        """Give an output processor to the models whose ``config.json`` names ``architecture``.

        For classes that one does not own. The first registration of an architecture is its default, further ones add
        names; what is registered here hides what the class is decorated with.

        Args:
            architecture: an entry of ``architectures`` in ``config.json``.
            processor: a subclass of OutputProcessor, or its path "pkg.mod:Class", imported when a model needs it.
            name: what requests call it; None: the class attribute ``name``, else the class' name.

        Raises:
            RegistrationError: it is no output processor, or the architecture has another one of that name.

        """
        if not isinstance(architecture, str) or not architecture:
            raise RegistrationError(f"architecture must be a name as in config.json, got {architecture!r}")
        new = make_registration(processor, name, f"register({architecture!r})")
        table = self._architectures.get(architecture, {})
        self._architectures[architecture] = with_added(table, new, f"architecture {architecture}")

    def of_architectures(self, architectures: Iterable[str]) -> Mapping[str, Registration]:
        """The registrations of the first of ``architectures`` that has any, the default first; empty without."""
        for architecture in architectures:
            if architecture in self._architectures:
                return dict(self._architectures[architecture])
        return {}

    def of_class(self, model: type | None) -> Mapping[str, Registration]:
        """The registrations on ``model`` or the nearest of its bases that has any, the default first; empty without."""
        return dict(getattr(model, FACTORIES, {}))

    def architectures(self) -> dict[str, tuple[Registration, ...]]:
        """Architecture -> what was registered for it by name, the default first."""
        return {architecture: tuple(table.values()) for architecture, table in self._architectures.items()}

    def installed(self, name: str) -> Registration | None:
        """The built-in processor or that of an installed package that is called ``name``; None if there is none.

        Raises:
            RegistrationError: several packages announce different classes under that name.

        """
        return self._installed.find(name)

    def known(self) -> dict[str, str]:
        """Names that any model can be given -> where each comes from, "pkg.mod:Class (origin)"."""
        return {
            name: ", ".join(str(found) for found in self._installed.everything() if found.name == name)
            for name in self._installed.names()
        }

    def create_output_processor(
        self, model_config: ModelConfig | None = None, *, engine_table: Mapping[str, Any] | None = None
    ) -> OutputProcessor | type:
        """Make the output processor of a model.

        Args:
            model_config: vLLM's; None: of no model in particular, which gets the class of text models.
            engine_table: the value of ``additional_config["mmout"]``, None without.

        Returns:
            An instance of the model's default processor; for a model without one (text) vLLM's own class
            ``vllm.v1.engine.output_processor.OutputProcessor``. Never None.

        Raises:
            OptionError: an option is unknown, malformed or of no use.
            RegistrationError: a processor cannot be found or imported.

        """
        make: Any = import_path(MAKER, "maker of output processors")
        made: OutputProcessor | type = make(self, model_config, engine_table)
        return made

    def output_router(self, vllm_config: VllmConfig, *, in_process: bool = False) -> Callable[..., Any] | None:
        """What a patched vLLM asks before it starts an engine: who makes its output processor, None for vLLM itself.

        Args:
            vllm_config: of the engine.
            in_process: whether the model runs in this process.

        Returns:
            To be called as vLLM's class ``vllm.v1.engine.output_processor.OutputProcessor``, of which it makes a
            subclass; None for a model without an output processor (text), and where the hooks are not installed.

        Raises:
            OptionError, RegistrationError: as `create_output_processor`.

        """
        make: Any = import_path(ROUTER, "maker of routers")
        made: Callable[..., Any] | None = make(vllm_config, in_process=in_process)
        return made


MULTIMODAL_OUTPUT_REGISTRY = OutputRegistry()

register_output_processor = MULTIMODAL_OUTPUT_REGISTRY.register_output_processor
"""Decorator: give a model class an output processor, see `OutputRegistry.register_output_processor`."""
