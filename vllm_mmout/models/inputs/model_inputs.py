"""ModelInputs: the input side of one model in one process, from what a user gives to the tensors of ``forward``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vllm_mmout.errors import InputError, MMOutError, OptionError, RegistrationError
from vllm_mmout.models.config import config_json
from vllm_mmout.models.forward_inputs import InputSpecs, Keywords
from vllm_mmout.models.inputs.input_forms import Raw, are_named_files
from vllm_mmout.models.inputs.make_mapper import AutoProcessorMapper, failed, make_mapper, refuse_reading_options
from vllm_mmout.models.inputs.mapper import MappedInput, RasterMapper
from vllm_mmout.params import OutputParams
from vllm_mmout.params_parts import OF_MODELS
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.registry.inputs import IMAGE, MapperChoice

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from vllm.inputs import MultiModalInput

    from vllm_mmout.models.inputs.context import InputContext
    from vllm_mmout.models.inputs.raster_view import RasterView


class ModelInputs:
    """Maps inputs of one model, in any of the three forms: raw, tensors named as in ``forward``, embeddings.

    Embeddings are tensors too: a model that takes them has a keyword for them, such as ``image_embeds``. A model that
    is written for vLLM is not ``adapted``: vLLM runs it itself.
    """

    def __init__(self, model: type, context: InputContext, *, adapted: bool = True) -> None:
        self._adapted = adapted
        self.model = model
        self.context = context
        self.keywords = Keywords.of(model, config_json(context.get_hf_config()))
        self.registered = MULTIMODAL_INPUT_REGISTRY.registered(model)
        self._mapper = make_mapper(self.keywords, self.registered.mapper or MapperChoice(), context)
        self._specs: InputSpecs = getattr(self._mapper, "inputs", {})
        if adapted:
            self.keywords.check_declared(self._specs)

    def map(self, data: Any, params: OutputParams) -> MappedInput:
        """Map one input to arrays or CPU tensors by keyword of ``forward``, without the batch axis."""
        opened = self.open(data, params)
        return opened if isinstance(opened, MappedInput) else self.whole(opened)

    def open(self, data: Any, params: OutputParams) -> MappedInput | RasterView:
        """Map one input; a raster for the raster mapper, which may be of any size, is only opened."""
        for option in OF_MODELS:
            if getattr(params, option) is not None and option not in getattr(self._mapper, "options", ()):
                raise OptionError(
                    f"{option} is set, and model {self.keywords.model} does not take it; leave it out", param=option
                )
        raw = isinstance(data, Raw)
        data = data.value if isinstance(data, Raw) else data
        if self.registered.input_processor is not None:
            data = self._processed(data)
        if raw:
            return self._checked_input(self._mapped(data, params))
        if _is_tensors(data) and not self._are_files(data):
            refuse_reading_options(params, "this input is tensors already")
            return self._checked_input(MappedInput(_without_batch_axis(data)))
        if self.rasters is not None:  # what else it raises is that of a file object of the caller's
            return self.rasters.open(data, params)
        return self._checked_input(self._mapped(data, params))

    @property
    def rasters(self) -> RasterMapper | None:
        """The mapper of a model of rasters, which can be cut into tiles; None for any other model.

        A subclass that maps in a way of its own (``__call__``) is called, and gets whole inputs only.
        """
        mapper = self._mapper
        plain = isinstance(mapper, RasterMapper) and type(mapper).__call__ is RasterMapper.__call__
        return mapper if plain else None

    @property
    def opens_files(self) -> bool:
        """Whether an input is files, so that a text in it names one; a mapper of an author's own takes anything."""
        choice = self.registered.mapper
        first = choice is not None and choice.function is not None
        return first or isinstance(self._mapper, RasterMapper | AutoProcessorMapper)

    @property
    def takes(self) -> str:
        """What the model takes, in words."""
        mapper = self._mapper
        if isinstance(mapper, RasterMapper):
            return f"rasters of {len(mapper.bands)} bands ({', '.join(mapper.bands)})"
        return "pictures" if self.opens_files else "what its input mapper takes"

    def _are_files(self, data: Any) -> bool:
        """Whether a mapping is one of band names to files, of a raster; its keys are then no keywords of forward."""
        mapper = self.rasters
        if mapper is None or not are_named_files(data):
            return False
        return set(data) <= set(mapper.modalities) or not set(data) & set(self.keywords.names)

    def whole(self, view: RasterView) -> MappedInput:
        """Map an open raster that fits one forward, and close it."""
        with view:
            return self._checked_input(self._mapper.whole(view))

    def tile(self, view: RasterView, pixels: NDArray[Any]) -> MappedInput:
        """Map the pixels of one tile of a view, [bands, height, width]."""
        return self._checked_input(MappedInput(self._mapper.tensors(view, pixels)))

    def _checked_input(self, mapped: MappedInput) -> MappedInput:
        if self._adapted:
            self.keywords.check(mapped.tensors)
        tensors = {keyword: self._checked(keyword, value) for keyword, value in mapped.tensors.items()}
        return MappedInput(tensors, mapped.source)

    def render(self, mapped: MappedInput) -> MultiModalInput:
        """What the engine takes."""
        from vllm_mmout.models.forward_inputs import as_keyword_input, as_mm_input

        if self._adapted:
            return as_mm_input(mapped.tensors, self.keywords.names)
        return as_keyword_input(mapped.tensors)

    def max_tokens(self) -> int:
        """The most tokens that one input takes of vLLM's encoder budget."""
        registered = self.registered.max_tokens
        value = registered(self.context) if callable(registered) else registered or 0
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise RegistrationError(f"max tokens of {self.model.__name__} must be a number from 0 on, got {value!r}")
        return value

    def dummy(self) -> Any:
        """An input of the largest size, None where nobody can say one."""
        factory = self.registered.dummy_data
        if factory is not None:
            return self._dummy_of(factory)
        if hasattr(self._mapper, "dummy"):
            return self._mapper.dummy()
        return {keyword: spec.zeros() for keyword, spec in self._specs.items()} or None

    def _dummy_of(self, factory: Callable[..., Any]) -> Any:
        made = factory(self.context, self.context.model_config.max_model_len, {IMAGE: 1})
        for part in made if isinstance(made, tuple) else (made,):
            inputs = part.get("multi_modal_data", part) if isinstance(part, Mapping) else None
            if isinstance(inputs, Mapping):
                data = inputs.get(IMAGE, inputs)
                return data[0] if isinstance(data, list) and len(data) == 1 else data
        raise RegistrationError(
            f'the dummy data of {self.model.__name__} must be DummyData with multi_modal_data={{"{IMAGE}": ...}},'
            f" got {made!r}"
        )

    def _processed(self, data: Any) -> Any:
        processor = self.registered.input_processor
        inputs = {"prompt_token_ids": [1], "multi_modal_data": {IMAGE: data}}
        try:
            given = processor(self.context, inputs)  # type: ignore[misc]  # the caller has seen that there is one
            return given["multi_modal_data"][IMAGE]
        except MMOutError:
            raise
        except Exception as error:
            raise InputError(failed("input processor", self.keywords.model, error)) from error

    def _mapped(self, data: Any, params: OutputParams) -> MappedInput:
        try:
            mapped = self._mapper(data, params)
        except MMOutError:
            raise
        except Exception as error:
            if isinstance(self._mapper, RasterMapper):  # that of a file object of the caller's
                raise
            raise InputError(failed("input mapper", self.keywords.model, error)) from error
        if isinstance(mapped, MappedInput):
            return mapped
        if not _is_tensors(mapped):
            raise InputError(
                f"the input mapper of {self.model.__name__} must give a MappedInput or a dict of tensors by keyword of"
                f" forward, got {type(mapped).__name__}"
            )
        return MappedInput(_without_batch_axis(mapped))

    def _checked(self, keyword: str, value: Any) -> np.ndarray[Any, Any] | torch.Tensor:
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else value
        if not isinstance(tensor, torch.Tensor):
            tensor = np.asarray(tensor)
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
    features = {k: v if isinstance(v, torch.Tensor) else np.asarray(v) for k, v in data.items()}
    for key, value in features.items():
        if value.ndim == 0 or value.shape[0] != 1:
            raise InputError(f"{key} of a BatchFeature must have a batch axis of size 1, got {list(value.shape)}")
    return {key: value[0] for key, value in features.items()}
