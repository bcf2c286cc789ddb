"""ModelInputs: the input side of one model in one process, from what a user gives to the tensors of ``forward``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.context import InputContext, dummy_of, processed, tokens_of
from vllm_mmout.models.inputs.input_forms import are_named_files, native
from vllm_mmout.models.inputs.keywords import Keywords
from vllm_mmout.models.inputs.make_mapper import AutoProcessorMapper, called, make_mapper, refuse_reading_options
from vllm_mmout.models.inputs.mapper import MappedInput, RasterMapper
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.models.kind import kind_of
from vllm_mmout.params import OutputParams
from vllm_mmout.params_parts import OF_MODELS, OF_STEPS
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.registry.input_registry import IMAGE, MapperChoice

if TYPE_CHECKING:
    import torch
    from vllm.inputs import MultiModalInput

    from vllm_mmout.models.inputs.raster_view import RasterView


@dataclass(frozen=True, slots=True)
class Raw:
    """What the input mapper of an author gets as it is: a table too, whose keys are no keywords of ``forward``."""

    value: Any


class ModelInputs:
    """Maps inputs of one model, in any of the three forms: raw, tensors named as in ``forward``, embeddings.

    Embeddings are tensors too, of a keyword such as ``image_embeds``. A model that is not ``adapted`` is written for
    vLLM.
    """

    def __init__(self, model: type, context: InputContext, *, adapted: bool = True) -> None:
        from vllm_mmout.models.config import config_json  # with transformers

        self._adapted = adapted
        self.model = model
        self.context = context
        self._config = config_json(context.get_hf_config())
        self.keywords = Keywords.of(model, self._config)
        self.registered = MULTIMODAL_INPUT_REGISTRY.registered(model)
        self._mapper = make_mapper(self.keywords, self.registered.mapper or MapperChoice(), context)
        self.kind = kind_of(model) if adapted else None
        self.options = {*getattr(self._mapper, "options", ()), *getattr(model, "takes", ())}
        self.options |= set(self.kind.options if self.kind is not None else ())
        """Those of `OF_MODELS` and `OF_STEPS` that the model takes."""
        self._specs: Mapping[str, TensorSpec] = getattr(self._mapper, "inputs", {})
        if adapted:
            self.keywords.check_declared(self._specs)

    def map(self, data: Any, params: OutputParams) -> MappedInput:
        """Map one input to arrays or CPU tensors by keyword of ``forward``, without the batch axis."""
        opened = self.open(data, params)
        return opened if isinstance(opened, MappedInput) else self.whole(opened)

    def open(self, data: Any, params: OutputParams) -> MappedInput | RasterView:
        """Map one input; a raster for the raster mapper, which may be of any size, is only opened."""
        self.check_options(params)
        if raw := isinstance(data, Raw):
            data = data.value
        if self.registered.input_processor is not None:
            data = self._given(
                partial(processed, self.context, self.registered.input_processor, data), "input processor"
            )
        if raw:
            return self._checked_input(self._mapped(data, params))
        if _is_tensors(data) and not self._are_files(data) and not self._is_of_mapper(data):
            refuse_reading_options(params, "this input is tensors already")
            return self._checked_input(MappedInput(_without_batch_axis(data)))
        if self.rasters is not None:  # what else it raises is that of a file object of the caller's
            return self.rasters.open(data, params)
        return self._checked_input(self._mapped(data, params))

    def check_options(self, params: OutputParams) -> None:
        """Refuse options that only some models take, where this one is none of them."""
        for option in (*OF_MODELS, *OF_STEPS):
            if getattr(params, option) is not None and option not in self.options:
                raise OptionError(
                    f"{option} is set, and model {self.keywords.model} does not take it; leave it out", param=option
                )

    @property
    def rasters(self) -> RasterMapper | None:
        """The mapper of a model of rasters, which can be cut into tiles; not one with a ``__call__`` of its own."""
        mapper = self._mapper
        plain = isinstance(mapper, RasterMapper) and type(mapper).__call__ is RasterMapper.__call__
        return mapper if plain else None

    @property
    def opens_files(self) -> bool:
        """Whether an input is files, so that a text in it names one; a mapper of an author's own takes anything."""
        first = getattr(self.registered.mapper, "function", None) is not None
        return first or getattr(
            self._mapper, "opens_files", isinstance(self._mapper, RasterMapper | AutoProcessorMapper)
        )

    @property
    def fields(self) -> tuple[str, ...]:
        """The keys of a dict that is a request, the first one always there; none of most models."""
        return getattr(self._mapper, "fields", ())

    @property
    def words(self) -> tuple[str, ...]:
        """The keys of a dict whose texts name no file."""
        return getattr(self._mapper, "words", ())

    @property
    def pictures(self) -> bool:
        """Whether files are pictures or rasters, so that their headers can be checked."""
        return getattr(self._mapper, "pictures", True)

    @property
    def takes(self) -> str:
        """What the model takes, in words."""
        if isinstance(self._mapper, RasterMapper):
            return f"rasters of {len(self._mapper.bands)} bands ({', '.join(self._mapper.bands)})"
        return "pictures" if self.opens_files else "what its input mapper takes"

    def _are_files(self, data: Any) -> bool:
        """Whether a mapping is one of band names to files, of a raster; its keys are then no keywords of forward."""
        if (mapper := self.rasters) is None or not are_named_files(data):
            return False
        return set(data) <= set(mapper.modalities) or not set(data) & set(self.keywords.names)

    def _is_of_mapper(self, data: Any) -> bool:
        """Whether a dict is one that the mapper takes: of its fields, or without a keyword of forward."""
        fields = self.fields
        if fields and isinstance(data, Mapping) and (fields[0] in data or set(data) <= set(fields)):
            return True
        own = self._mapper is not None and not isinstance(self._mapper, RasterMapper | AutoProcessorMapper)
        return own and isinstance(data, Mapping) and bool(data) and not set(data) & set(self.keywords.names)

    def whole(self, view: RasterView) -> MappedInput:
        """Map an open raster that fits one forward, and close it."""
        with view:
            return self._checked_input(view.mapper.whole(view))

    def tile(self, view: RasterView, pixels: NDArray[Any]) -> MappedInput:
        """Map the pixels of one tile of a view, [bands, height, width]."""
        return self._checked_input(MappedInput(view.mapper.tensors(view, pixels)))

    def _checked_input(self, mapped: MappedInput) -> MappedInput:
        if self._adapted:
            self.keywords.check(mapped.tensors)
        tensors = {keyword: self._checked(keyword, value) for keyword, value in mapped.tensors.items()}
        return MappedInput(tensors, mapped.source)

    def tokens(self, mapped: MappedInput, params: OutputParams) -> int:
        """The prompt tokens that stand for a request: one, of an iterative model one a step."""
        if self.kind is None:
            return 1
        count = partial(self.kind.tokens_of, self.model, self._config, mapped, params)
        return int(self._given(count, "count_steps"))

    def render(self, mapped: MappedInput, tokens: int = 1) -> MultiModalInput:
        """What the engine takes."""
        if self._adapted:
            return as_mm_input(mapped.tensors, self.keywords.names, tokens)
        # A model that is written for vLLM has a field for each keyword, batched as vLLM does it.
        return _raw_input({name: [as_tensor(value)] for name, value in mapped.tensors.items()})

    def max_tokens(self) -> int:
        """The most tokens that one input takes of vLLM's encoder budget."""
        return tokens_of(self.context, self.registered.max_tokens, self.model.__name__)

    def dummy(self) -> Any:
        """An input of the largest size, None where nobody can say one."""
        if (factory := self.registered.dummy_data) is not None:
            return dummy_of(self.context, factory, self.model.__name__)
        if hasattr(self._mapper, "dummy"):
            return self._mapper.dummy()
        return {keyword: spec.zeros() for keyword, spec in self._specs.items()} or None

    def _given(self, call: Callable[[], Any], what: str) -> Any:
        """What an author's function gives; what it raises is an error of the input."""
        if isinstance(self._mapper, RasterMapper) and what == "input mapper":
            return call()  # its errors are those of the caller's file object
        return called(call, what, self.keywords.model)

    def _mapped(self, data: Any, params: OutputParams) -> MappedInput:
        mapped = self._given(partial(self._mapper, data, params), "input mapper")
        if isinstance(mapped, MappedInput):
            return mapped
        if not _is_tensors(mapped):
            raise InputError(
                f"the input mapper of {self.model.__name__} must give a MappedInput or a dict of tensors by keyword of"
                f" forward, got {type(mapped).__name__}"
            )
        return MappedInput(_without_batch_axis(mapped))

    def _checked(self, keyword: str, value: Any) -> np.ndarray[Any, Any] | torch.Tensor:
        import torch

        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else value
        if not isinstance(tensor, torch.Tensor):
            tensor = native(np.asarray(tensor))
            if tensor.dtype.kind not in "biufc" or tensor.dtype.char in "gG":  # g: long double, which torch has not
                raise InputError(
                    f"{keyword} must be a tensor or an array of numbers, got {type(value).__name__} of {tensor.dtype}"
                )
        if keyword in self._specs:
            self._specs[keyword].check(keyword, tensor)
        if 0 in tensor.shape:
            raise InputError(f"{keyword} is empty: its shape is {list(tensor.shape)}")
        return tensor


def _is_tensors(data: Any) -> bool:
    """Whether an input is tensors by keyword: a dict, or a ``BatchFeature``, which is none but has items."""
    return isinstance(data, Mapping) or (hasattr(data, "items") and hasattr(data, "convert_to_tensors"))


def _without_batch_axis(data: Any) -> dict[str, Any]:
    if not hasattr(data, "convert_to_tensors"):
        return dict(data)
    import torch

    features = {k: v if isinstance(v, torch.Tensor) else np.asarray(v) for k, v in data.items()}
    for key, value in features.items():
        if value.ndim == 0 or value.shape[0] != 1:
            raise InputError(f"{key} of a BatchFeature must have a batch axis of size 1, got {list(value.shape)}")
    return {key: value[0] for key, value in features.items()}


FIELD: Final = "tensors"
"""The one keyword under which a request's tensors travel."""

_ABSENT = np.empty(0, np.bool_)
"""Stands for a keyword that a request leaves out; an input of size 0 is refused before."""


def as_mm_input(tensors: Mapping[str, Any], keywords: Sequence[str], tokens: int = 1) -> MultiModalInput:
    """Render one input for the engine: no hashing, no processor run, no cache.

    The tensors go as one list, which vLLM leaves alone. Tensors it stacks, and fails, for all requests of the step,
    where they differ in dtype, or casts one to the dtype of another; of requests that differ in keywords it keeps the
    last ones only.
    """
    return _raw_input({FIELD: [[as_tensor(tensors.get(name, _ABSENT)) for name in keywords]]}, tokens)


def as_tensor(value: Any) -> torch.Tensor:
    """An array or tensor as a tensor; one that is read-only, turned round or of another byte order is copied."""
    import torch

    if isinstance(value, np.ndarray):
        value = np.require(native(value), requirements=["C", "W"])
    return torch.as_tensor(value)


def _raw_input(batch: dict[str, Any], tokens: int = 1) -> MultiModalInput:
    from vllm.inputs import mm_input
    from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange

    fields = {key: MultiModalFieldConfig.batched(IMAGE) for key in batch}
    return mm_input(
        prompt_token_ids=[1] * tokens,
        mm_kwargs=MultiModalKwargsItems.from_hf_inputs(cast("Any", batch), fields),
        mm_hashes={IMAGE: [uuid4().hex]},
        mm_placeholders={IMAGE: [PlaceholderRange(offset=0, length=0)]},
    )


def tensors_of(values: Sequence[torch.Tensor], keywords: Sequence[str]) -> dict[str, torch.Tensor]:
    """The tensors by keyword that one request brought, in the worker."""
    return {
        name: value
        for name, value in zip(keywords, values, strict=True)
        if str(value.dtype) != "torch.bool" or value.shape != _ABSENT.shape
    }
