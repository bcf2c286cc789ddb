"""InputRegistry: vLLM's own registry of multimodal inputs, and what a single-pass model says of its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final, TypeAlias, TypeVar

from vllm_mmout.errors import MMOutError, RegistrationError

Model = TypeVar("Model", bound=type)

InputMapperFactory: TypeAlias = Callable[[Mapping[str, Any]], Any]
"""Called with the model's ``config.json``, gives what turns raw data into the keyword tensors of ``forward``."""

MapperFunction: TypeAlias = Callable[[Any, Any], Any]
"""``(context, data)`` to the keyword tensors of ``forward``, as in vLLM's first registries."""

IMAGE: Final = "image"
"""vLLM's name for all that is neither text, sound nor video; the one kind of input of a single-pass model."""

REGISTERED = "_input_registrations"
"""Attribute of a model class that holds what was registered on it, by kind."""


@dataclass(frozen=True, slots=True)
class MapperChoice:
    """How raw data becomes tensors; neither of the two: the ``AutoProcessor`` of the model's folder."""

    factory: InputMapperFactory | None = None
    function: MapperFunction | None = None


@dataclass(frozen=True, slots=True)
class InputRegistration:
    """What was registered on a model class, or on the nearest of its bases that has it; None where nothing was."""

    mapper: MapperChoice | None = None
    max_tokens: Any = None
    dummy_data: Callable[..., Any] | None = None
    input_processor: Callable[..., Any] | None = None

    @property
    def decorators(self) -> list[str]:
        """The decorators that registered something."""
        found = [field.name for field in fields(self) if getattr(self, field.name) is not None]
        return [f"register_{'input_mapper' if name == 'mapper' else name}" for name in found]


class InputRegistry:
    """The input half: everything of vLLM's ``MULTIMODAL_REGISTRY``, and the decorators of a model's inputs.

    The decorators have the names of vLLM's first registries; each returns the class. A single-pass model with one of
    them is served under its own name. For a model that generates from pictures, they make up the processor that vLLM
    calls. What is not defined here is looked up on vLLM's registry, imported at first use. A model registered with
    either is known to both, as vLLM keeps its factory on the model's class.
    """

    def __init__(self) -> None:
        self._models: dict[str, dict[str, type]] = {}
        self._listeners: list[Callable[[type], None]] = []

    def register_input_mapper(
        self, mapper: InputMapperFactory | str, function: MapperFunction | None = None
    ) -> Callable[[Model], Model]:
        """Decorate a model class with its input mapper.

        Args:
            mapper: a class or function that makes the mapper from the model's ``config.json``. The mapper is called
                with a user's raw data and the request's `OutputParams`, from several threads, and gives a
                `MappedInput`, or the keyword tensors of ``forward`` as a dict, without the batch axis. The same one
                twice is a no-op, a subclass may have another one than its base. As in vLLM's first registry it may be
                "image", followed by the function of ``register_image_input_mapper``.
            function: only after "image".

        Raises:
            RegistrationError: it is not callable, or (on decorating) the class has another one already.

        """
        if isinstance(mapper, str):
            _check_kind(mapper)
            return self.register_image_input_mapper(function)
        return self._decorator("mapper", MapperChoice(factory=_callable(mapper, "an input mapper")))

    def register_image_input_mapper(self, mapper: MapperFunction | None = None) -> Callable[[Model], Model]:
        """Decorate a model class with an input mapper of the form of vLLM's first registries.

        Args:
            mapper: called with an `InputContext` and a user's raw data (a file comes opened, as a PIL image or an array
                [bands, height, width]); gives the keyword tensors of ``forward`` as a dict, without the batch axis. For
                a model that generates, it is called with one picture at a time, and gives the keyword tensors of
                ``embed_multimodal`` with an axis of pictures first. None: the ``AutoProcessor`` of the model's folder.

        Raises:
            RegistrationError: it is not callable, or (on decorating) the class has another one already.

        """
        function = None if mapper is None else _callable(mapper, "an input mapper")
        return self._decorator("mapper", MapperChoice(function=function))

    def register_max_tokens(self, max_tokens: int | Callable[[Any], int] | None = None) -> Callable[[Model], Model]:
        """Decorate a model class with the most tokens that one input takes of vLLM's encoder budget.

        Args:
            max_tokens: a number, or a function of an `InputContext` that gives it. vLLM asks at start-up. None, as
                without this decorator, is 0: a single-pass model has no placeholder tokens. A model that generates
                needs this decorator.

        Raises:
            RegistrationError: it is neither, or (on decorating) the class has another one already.

        """
        max_tokens = 0 if max_tokens is None else max_tokens
        if isinstance(max_tokens, bool) or not (isinstance(max_tokens, int) or callable(max_tokens)):
            raise RegistrationError(f"max tokens must be a number or a function (context), got {max_tokens!r}")
        return self._decorator("max_tokens", max_tokens)

    register_max_image_tokens = register_max_tokens

    def register_max_multimodal_tokens(
        self, kind: str, max_tokens: int | Callable[[Any], int] | None = None
    ) -> Callable[[Model], Model]:
        """As ``register_max_tokens``, with the kind of input, "image", first as in vLLM's first registry."""
        _check_kind(kind)
        return self.register_max_tokens(max_tokens)

    def register_dummy_data(self, factory: Callable[..., Any]) -> Callable[[Model], Model]:
        """Decorate a model class with the input by which it is tried and its memory measured at start-up.

        Args:
            factory: ``(context, seq_len, mm_counts)``, gives a `DummyData`, or a tuple or dict of the same, whose
                ``multi_modal_data["image"]`` is one raw or processed input of the largest size.

        Raises:
            RegistrationError: it is not callable, or (on decorating) the class has another one already.

        """
        return self._decorator("dummy_data", _callable(factory, "a dummy data factory"))

    def register_input_processor(self, processor: Callable[..., Any]) -> Callable[[Model], Model]:
        """Decorate a model class with a function that each request's input goes through before the mapper.

        Args:
            processor: ``(context, inputs)``, gives the inputs: ``{"prompt_token_ids": [1], "multi_modal_data":
                {"image": data}}`` with the data as the user gave it. For a model that generates, it gets prompts with
                pictures, and repeats the image token; ``data`` is one picture, or a list of several.

        Raises:
            RegistrationError: it is not callable, or (on decorating) the class has another one already.

        """
        return self._decorator("input_processor", _callable(processor, "an input processor"))

    def registered(self, model: type) -> InputRegistration:
        """What ``model`` carries, each kind from the nearest class of its bases that has it."""
        found: dict[str, Any] = {}
        for base in reversed(model.__mro__):
            found.update(vars(base).get(REGISTERED, {}))
        return InputRegistration(**found)

    def model(self, architecture: str) -> type | None:
        """The class decorated in this process whose name is ``architecture``, None without.

        Raises:
            RegistrationError: several are called so.

        """
        found = self._models.get(architecture, {})
        if len(found) > 1:
            raise RegistrationError(
                f"several models are called {architecture!r}: {', '.join(found)}; say which one in config.json:"
                f' "mmout": {{"model": "{next(iter(found))}"}}'
            )
        return next(iter(found.values()), None)

    def model_at(self, path: str) -> type | None:
        """The class decorated in this process that stands at "module:Class", None without."""
        return self._models.get(path.rpartition(":")[2].rpartition(".")[2], {}).get(path)

    def on_decorated(self, listener: Callable[[type], None]) -> None:
        """Call ``listener`` with each class decorated so far and from now on. Adding it again has no effect."""
        if listener in self._listeners:
            return
        self._listeners.append(listener)
        for model in [model for named in self._models.values() for model in named.values()]:
            listener(model)

    def models(self) -> list[str]:
        """Names of the classes decorated in this process."""
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
        """What vLLM's registry has under ``name``."""
        if name.startswith("__"):  # asked by copy, pickle and inspect: no reason to import vLLM
            raise AttributeError(f"InputRegistry has no attribute {name!r}")
        return getattr(_vllms(), name)


def _vllms() -> Any:
    """The registry of vLLM for multimodal inputs."""
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


def _callable(value: Any, what: str) -> Any:
    if not callable(value):
        raise RegistrationError(f"{what} must be callable, got {value!r}")
    return value


def _check_kind(kind: str) -> None:
    if kind != IMAGE:
        raise RegistrationError(f'the decorators are for inputs of the kind "{IMAGE}", got {kind!r}')


MULTIMODAL_INPUT_REGISTRY = InputRegistry()
