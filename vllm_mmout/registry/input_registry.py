"""`InputRegistry`: vLLM's registry of multimodal inputs, with decorators for models of a single forward pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias, TypeVar

from vllm_mmout.errors import MMOutError, RegistrationError

Model = TypeVar("Model", bound=type)

InputMapperFactory: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""Function that takes the model's ``config.json`` and returns an input mapper. A mapper converts a user's input to
keyword arguments of the model's ``forward``."""

MapperFunction: TypeAlias = Callable[[Any, Any], Any]
"""Input mapper of the form that early releases of vLLM used. It is a function of ``(context, data)`` that returns
keyword arguments of the model's ``forward``."""

IMAGE: Final = "image"
"""vLLM's name for the modality of pictures. This package uses the name for all inputs of single-pass models, even for
rasters."""

REGISTERED = "_input_registrations"
"""Name of the attribute that this registry's decorators set on a model class to store the registered values."""


@dataclass(frozen=True, slots=True)
class MapperChoice:
    """Input mapper of a model class: either a factory that makes the mapper, or a function that is the mapper.

    If both fields are None, the model's ``AutoProcessor`` is used.
    """

    factory: InputMapperFactory | None = None
    function: MapperFunction | None = None


@dataclass(frozen=True, slots=True)
class InputRegistration:
    """Functions and values that decorators registered for a model class or its base classes.

    Fields without a registered value are None.
    """

    mapper: MapperChoice | None = None
    max_tokens: Any = None
    dummy_data: Callable[..., Any] | None = None
    input_processor: Callable[..., Any] | None = None

    @property
    def decorators(self) -> list[str]:
        """Names of the decorators that were applied to the model class."""
        names = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return [f"register_{'input_mapper' if name == 'mapper' else name}" for name in names]


class InputRegistry:
    """Registry of model inputs: vLLM's ``MULTIMODAL_REGISTRY`` with decorators for the inputs of a model class.

    The decorators have the names that they had in early releases of vLLM. Each returns the class. A single-pass model
    with such a decorator is served under its own name. For a model that generates from pictures, they make up the
    processor that vLLM calls. Attributes that are not defined here are looked up on vLLM's registry, which is
    imported on first use. vLLM keeps its factory on the model's class, so a model registered with either registry is
    known to both.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, type]] = {}
        self._listeners: list[Callable[[type], None]] = []

    def register_input_mapper(
        self, mapper: InputMapperFactory | str, function: MapperFunction | None = None
    ) -> Callable[[Model], Model]:
        """Return a decorator that registers the input mapper of a model class.

        Args:
            mapper: a class or function that makes the mapper from the model's ``config.json``. The mapper is called
                with a user's raw data and the request's `OutputParams`, from several threads. It returns a
                `MappedInput`, or a dict of keyword arguments of ``forward``, without the batch axis. Registering the
                same mapper twice has no effect; a subclass may have another mapper than its base. As in vLLM's first
                registry, ``mapper`` may be "image", followed by the function of ``register_image_input_mapper``.
            function: the mapper function; only after "image".

        Raises:
            RegistrationError: the mapper is not callable, or (on decorating) the class already has another mapper.

        """
        if isinstance(mapper, str):
            _check_kind(mapper)
            return self.register_image_input_mapper(function)
        return self._decorator("mapper", MapperChoice(factory=_callable(mapper, "an input mapper")))

    def register_image_input_mapper(self, mapper: MapperFunction | None = None) -> Callable[[Model], Model]:
        """Return a decorator that registers an input mapper ``(context, data)``, as used by early vLLM releases.

        Args:
            mapper: called with an `InputContext` and a user's raw data (a file arrives opened, as a PIL image or an
                array [bands, height, width]); returns a dict of keyword arguments of ``forward``, without the batch
                axis. For a model that generates, it is called with one picture at a time, and returns keyword
                arguments of ``embed_multimodal`` with an axis of pictures first. None selects the ``AutoProcessor`` of
                the model's folder.

        Raises:
            RegistrationError: the mapper is not callable, or (on decorating) the class already has another mapper.

        """
        function = None if mapper is None else _callable(mapper, "an input mapper")
        return self._decorator("mapper", MapperChoice(function=function))

    def register_max_tokens(self, max_tokens: int | Callable[[Any], int] | None = None) -> Callable[[Model], Model]:
        """Return a decorator that registers the maximum number of encoder tokens that one input of the model uses.

        Args:
            max_tokens: a number, or a function of an `InputContext` that returns it. vLLM asks for it at start-up. None
                means 0, as does leaving out the decorator: a single-pass model has no placeholder tokens. A model that
                generates needs this decorator.

        Raises:
            RegistrationError: it is neither, or (on decorating) the class already has another value.

        """
        max_tokens = 0 if max_tokens is None else max_tokens
        if isinstance(max_tokens, bool) or not (isinstance(max_tokens, int) or callable(max_tokens)):
            raise RegistrationError(f"max tokens must be a number or a function (context), got {max_tokens!r}")
        return self._decorator("max_tokens", max_tokens)

    register_max_image_tokens = register_max_tokens

    def register_max_multimodal_tokens(
        self, kind: str, max_tokens: int | Callable[[Any], int] | None = None
    ) -> Callable[[Model], Model]:
        """Return a decorator that registers the maximum number of encoder tokens. ``kind`` must be "image".

        vLLM's former registry had a decorator with these arguments.
        """
        _check_kind(kind)
        return self.register_max_tokens(max_tokens)

    def register_dummy_data(self, factory: Callable[..., Any]) -> Callable[[Model], Model]:
        """Return a decorator that registers a function which makes dummy inputs for a model class.

        Dummy inputs are used for the trial run and for memory profiling at start-up.

        Args:
            factory: a function ``(context, seq_len, mm_counts)`` that returns a `DummyData`, or its fields as a tuple
                or dict; its ``multi_modal_data["image"]`` is one raw or processed input of the largest size.

        Raises:
            RegistrationError: the factory is not callable, or (on decorating) the class already has another factory.

        """
        return self._decorator("dummy_data", _callable(factory, "a dummy data factory"))

    def register_input_processor(self, processor: Callable[..., Any]) -> Callable[[Model], Model]:
        """Return a decorator that registers the input processor of a model class.

        An input processor changes each input before the input mapper receives the input.

        Args:
            processor: a function ``(context, inputs)`` that returns the inputs: ``{"prompt_token_ids": [1],
                "multi_modal_data": {"image": data}}``, with the data as passed by the user. For a model that generates,
                it receives prompts with pictures, and repeats the image token; ``data`` is one picture, or a list.

        Raises:
            RegistrationError: it is not callable, or (on decorating) the class already has another input processor.

        """
        return self._decorator("input_processor", _callable(processor, "an input processor"))

    def registered(self, model: type) -> InputRegistration:
        """Return the functions and values that decorators registered for ``model`` or its base classes.

        The nearest class that has a function or value sets it.
        """
        registrations: dict[str, Any] = {}
        for base in reversed(model.__mro__):
            registrations.update(vars(base).get(REGISTERED, {}))
        return InputRegistration(**registrations)

    def model(self, architecture: str) -> type | None:
        """Return the model class with the name ``architecture``. Return None if no such class is registered.

        Raises:
            RegistrationError: several decorated classes have that name.

        """
        models = self._models.get(architecture, {})
        if len(models) > 1:
            raise RegistrationError(
                f"several models are called {architecture!r}: {', '.join(models)}; say which one in config.json:"
                f' "mmout": {{"model": "{next(iter(models))}"}}'
            )
        return next(iter(models.values()), None)

    def model_at(self, path: str) -> type | None:
        """Return the model class with the path "module:Class". Return None if no such class is registered."""
        return self._models.get(path.rpartition(":")[2].rpartition(".")[2], {}).get(path)

    def on_decorated(self, listener: Callable[[type], None]) -> None:
        """Call ``listener`` for each model class that this registry has decorated, and for each that it will decorate.

        A listener is added only once.
        """
        if listener in self._listeners:
            return
        self._listeners.append(listener)
        for model in [model for models_by_path in self._models.values() for model in models_by_path.values()]:
            listener(model)

    def models(self) -> list[str]:
        """Return the names of all model classes that have a decorator of this registry."""
        return list(self._models)

    def _decorator(self, kind: str, value: Any) -> Callable[[Model], Model]:
        def decorate(model: Model) -> Model:
            if not isinstance(model, type):
                raise RegistrationError(f"a model class is decorated with its {kind.replace('_', ' ')}, got {model!r}")
            own = vars(model).get(REGISTERED, {})
            if kind in own and own[kind] != value:
                raise RegistrationError(
                    f"model {model.__name__} has a registered {kind.replace('_', ' ')} already: {own[kind]!r}; cannot"
                    f" register {value!r}; remove one of the two"
                )
            setattr(model, REGISTERED, {**own, kind: value})
            self._models.setdefault(model.__name__, {})[f"{model.__module__}:{model.__qualname__}"] = model
            for listener in self._listeners:
                listener(model)
            return model

        return decorate

    def __getattr__(self, name: str) -> Any:
        """Return the attribute ``name`` of vLLM's own registry of multimodal inputs."""
        if name.startswith("__"):  # copy, pickle and inspect look these up: not a reason to import vLLM
            raise AttributeError(f"InputRegistry has no attribute {name!r}")
        return getattr(_vllms(), name)


def _vllms() -> Any:
    """Return vLLM's registry of multimodal inputs. Raise MMOutError if vLLM is not installed."""
    try:
        from vllm.multimodal import MULTIMODAL_REGISTRY
    except ModuleNotFoundError as error:
        if error.name != "vllm":
            raise
        raise MMOutError(
            "this part of the input registry is vLLM's, which is not installed;"
            ' pip install "vllm-mmout[gpu]" or "vllm-mmout[cpu]"'
        ) from error
    return MULTIMODAL_REGISTRY


def _callable(value: Any, role: str) -> Any:
    if not callable(value):
        raise RegistrationError(f"{role} must be callable, got {value!r}")
    return value


def _check_kind(kind: str) -> None:
    if kind != IMAGE:
        raise RegistrationError(f'the decorators are for inputs of the kind "{IMAGE}", got {kind!r}')


MULTIMODAL_INPUT_REGISTRY = InputRegistry()
