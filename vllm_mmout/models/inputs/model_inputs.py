"""Convert users' inputs to the tensors of a model's ``forward``, and the tensors to vLLM's input format."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.models.inputs.context import InputContext, dummy_of, processed, tokens_of
from vllm_mmout.models.inputs.engine_input import as_block_input, as_mm_input, as_tensor, raw_input
from vllm_mmout.models.inputs.input_forms import are_named_files, native
from vllm_mmout.models.inputs.keywords import Keywords
from vllm_mmout.models.inputs.make_mapper import AutoProcessorMapper, called, make_mapper, refuse_reading_options
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.models.kind import kind_of
from vllm_mmout.params import OF_MODELS, OF_STEPS, OutputParams
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.registry.input_registry import MapperChoice

if TYPE_CHECKING:
    import torch
    from vllm.inputs import MultiModalInput

    from vllm_mmout.models.inputs.raster_view import RasterView
    from vllm_mmout.models.inputs.shared_memory import SharedMemory


@dataclass(frozen=True, slots=True)
class Raw:
    """Wrapper of an input that is passed to the model's own input mapper unchanged, even if it is a dict."""

    value: Any


class ModelInputs:
    """Converter of inputs for one model. An input may be files, arrays, or a dict of tensors for ``forward``.

    Embeddings are tensors too, with a keyword such as ``image_embeds``. ``adapted`` is False for a model that is
    written for vLLM.
    """

    def __init__(self, model: type, context: InputContext, *, adapted: bool = True) -> None:
        from vllm_mmout.models.config import config_json  # imports transformers

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
        """Options in `OF_MODELS` and `OF_STEPS` that the model accepts."""
        self._specs: Mapping[str, TensorSpec] = getattr(self._mapper, "inputs", {})
        if adapted:
            self.keywords.check_declared(self._specs)

    def map(self, data: Any, params: OutputParams) -> MappedInput:
        """Convert one input to the arrays or CPU tensors that ``forward`` takes, without the batch axis."""
        opened = self.open(data, params)
        return opened if isinstance(opened, MappedInput) else self.whole(opened)

    def open(self, data: Any, params: OutputParams) -> MappedInput | RasterView:
        """Open a raster and return a view of it. Convert any other input to tensors.

        A raster is not converted yet, because a large raster must be cut into tiles first.
        """
        self.check_options(params)
        if raw := isinstance(data, Raw):
            data = data.value
        if self.registered.input_processor is not None:
            data = self._call_author(
                partial(processed, self.context, self.registered.input_processor, data), "input processor"
            )
        if raw:
            return self._checked_input(self._mapped(data, params))
        if _is_tensors(data) and not self._maps_bands_to_files(data) and not self._is_mapper_input(data):
            refuse_reading_options(params, "this input is tensors already")
            return self._checked_input(MappedInput(_without_batch_axis(data)))
        if self.rasters is not None:  # exceptions other than ours come from a file object of the caller
            return self.rasters.open(data, params)
        return self._checked_input(self._mapped(data, params))

    def check_options(self, params: OutputParams) -> None:
        """Raise OptionError if the request sets an option that this model does not support."""
        for option in (*OF_MODELS, *OF_STEPS):
            if getattr(params, option) is not None and option not in self.options:
                raise OptionError(
                    f"{option} is set, and model {self.keywords.model} does not take it; leave it out", param=option
                )

    @property
    def rasters(self) -> RasterMapper | None:
        """Input mapper that opens rasters to be cut into tiles. None if the model uses another type of mapper."""
        mapper = self._mapper
        plain = isinstance(mapper, RasterMapper) and type(mapper).__call__ is RasterMapper.__call__
        return mapper if plain else None

    @property
    def opens_files(self) -> bool:
        """True if strings in an input are file paths. False if they are data for the model's own input mapper."""
        first = getattr(self.registered.mapper, "function", None) is not None
        return first or getattr(
            self._mapper, "opens_files", isinstance(self._mapper, RasterMapper | AutoProcessorMapper)
        )

    @property
    def reads(self) -> frozenset[str]:
        """Names of the raster options, such as "bands", that the mapper accepts. Not used with a `RasterMapper`."""
        return getattr(self._mapper, "reads", frozenset())

    @property
    def fields(self) -> tuple[str, ...]:
        """Keys that a dict input may have, the required key first. Empty if the mapper takes other data."""
        return getattr(self._mapper, "fields", ())

    @property
    def words(self) -> tuple[str, ...]:
        """Keys of a dict input whose values are texts, such as prompts, and never file names."""
        return getattr(self._mapper, "words", ())

    @property
    def pictures(self) -> bool:
        """True if input files must be pictures or rasters, so that their headers are checked before they are read."""
        return getattr(self._mapper, "pictures", True)

    @property
    def takes(self) -> str:
        """Description of the inputs that the model takes, for error messages."""
        if isinstance(self._mapper, RasterMapper):
            return f"rasters of {len(self._mapper.bands)} bands ({', '.join(self._mapper.bands)})"
        return "pictures" if self.opens_files else "what its input mapper takes"

    def _maps_bands_to_files(self, data: Any) -> bool:
        """Return whether the keys of ``data`` are band names of a raster, and not argument names of ``forward``."""
        if (mapper := self.rasters) is None or not are_named_files(data):
            return False
        return set(data) <= set(mapper.modalities) or not set(data) & set(self.keywords.names)

    def _is_mapper_input(self, data: Any) -> bool:
        """Return whether ``data`` is a dict for the model's input mapper, and not a dict of tensors for ``forward``."""
        fields = self.fields
        if fields and isinstance(data, Mapping) and (fields[0] in data or set(data) <= set(fields)):
            return True
        own = self._mapper is not None and not isinstance(self._mapper, RasterMapper | AutoProcessorMapper)
        return own and isinstance(data, Mapping) and bool(data) and not set(data) & set(self.keywords.names)

    def whole(self, view: RasterView) -> MappedInput:
        """Convert an open raster that fits in one forward pass to tensors, and close it."""
        with view:
            return self._checked_input(view.mapper.whole(view))

    def tile(self, view: RasterView, pixels: NDArray[Any]) -> MappedInput:
        """Convert the pixels [bands, height, width] of one tile to tensors."""
        return self._checked_input(MappedInput(view.mapper.tensors(view, pixels)))

    @property
    def takes_blocks(self) -> bool:
        """True if one vLLM request may hold several tiles of a raster.

        This is only possible for models that need a single forward pass per input.
        """
        return self._adapted and self.kind is None

    def tiles(self, view: RasterView, planes: NDArray[Any]) -> Iterator[dict[str, Any]]:
        """Convert the pixels ``planes`` [tiles, bands, height, width] of several tiles to tensors.

        Yield the tensors by keyword, with the tiles on axis 0. If their shapes or dtypes differ, yield several dicts,
        in the order of ``planes``.
        """
        first = self._checked_tensors(view.mapper.tensors(view, planes[0]))
        if (tensors := view.mapper.block_tensors(planes)) is not None:
            yield dict(tensors)
            return
        mapped = [first, *(self._checked_tensors(view.mapper.tensors(view, pixels)) for pixels in planes[1:])]
        for _, alike in groupby(mapped, _stacking_key):
            tiles = list(alike)
            yield {name: _stacked([tile[name] for tile in tiles]) for name in tiles[0]}

    def render_block(
        self, tensors: Mapping[str, Any], count: int, memory: SharedMemory | None, engine: int
    ) -> MultiModalInput:
        """Convert a block of tiles to vLLM's input format. Each of the tensors has ``count`` tiles on axis 0.

        ``memory`` is shared with the worker of the engine that has the index ``engine``.
        """
        return as_block_input(tensors, self.keywords.names, count, memory=memory, engine=engine)

    def _checked_input(self, mapped: MappedInput) -> MappedInput:
        return MappedInput(self._checked_tensors(mapped.tensors), mapped.source)

    def _checked_tensors(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Check the names, shapes and dtypes of an input's tensors, and return them."""
        if self._adapted:
            self.keywords.check(tensors)
        return {keyword: self._checked(keyword, value) for keyword, value in tensors.items()}

    def tokens(self, mapped: MappedInput, params: OutputParams) -> int:
        """Return the number of prompt tokens of a request, which is the number of the model's forward passes."""
        if self.kind is None:
            return 1
        count = partial(self.kind.tokens_of, self.model, self._config, mapped, params)
        return int(self._call_author(count, "count_steps"))

    def render(self, mapped: MappedInput, tokens: int = 1) -> MultiModalInput:
        """Convert the tensors of one input to vLLM's input format."""
        if self._adapted:
            return as_mm_input(mapped.tensors, self.keywords.names, tokens)
        # A model written for vLLM has a field for each keyword, which vLLM batches itself.
        return raw_input({name: [as_tensor(value)] for name, value in mapped.tensors.items()})

    def max_tokens(self) -> int:
        """Return the maximum number of tokens of one input. This number counts towards vLLM's encoder budget."""
        return tokens_of(self.context, self.registered.max_tokens, self.model.__name__)

    def dummy(self) -> Any:
        """Return an input of the maximum size for vLLM's memory profiling, or None if that size is unknown."""
        if (factory := self.registered.dummy_data) is not None:
            return dummy_of(self.context, factory, self.model.__name__)
        if hasattr(self._mapper, "dummy"):
            return self._mapper.dummy()
        return {keyword: spec.zeros() for keyword, spec in self._specs.items()} or None

    def _call_author(self, call: Callable[[], Any], role: str) -> Any:
        """Call a function that the model's author wrote, such as the input mapper. Convert exceptions to InputError."""
        if isinstance(self._mapper, RasterMapper) and role == "input mapper":
            return call()  # its exceptions come from a file object of the caller
        return called(call, role, self.keywords.model)

    def _mapped(self, data: Any, params: OutputParams) -> MappedInput:
        mapped = self._call_author(partial(self._mapper, data, params), "input mapper")
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
            if tensor.dtype.kind not in "biufc" or tensor.dtype.char in "gG":  # g: long double, which torch lacks
                raise InputError(
                    f"{keyword} must be a tensor or an array of numbers, got {type(value).__name__} of {tensor.dtype}"
                )
        if keyword in self._specs:
            self._specs[keyword].check(keyword, tensor)
        if 0 in tensor.shape:
            raise InputError(f"{keyword} is empty: its shape is {list(tensor.shape)}")
        return tensor


def _is_tensors(data: Any) -> bool:
    """Return whether an input is a dict of tensors by keyword, or a ``BatchFeature`` of transformers."""
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


def _stacked(alike: Sequence[Any]) -> Any:
    if isinstance(alike[0], np.ndarray):
        return np.stack(alike)
    import torch

    return torch.stack([as_tensor(value) for value in alike])


def _stacking_key(tensors: Mapping[str, Any]) -> tuple[tuple[str, Any, str], ...]:
    """Return the names, shapes and dtypes of a tile's tensors. Tiles with equal keys can be stacked."""
    return tuple((name, tuple(tensor.shape), str(tensor.dtype)) for name, tensor in tensors.items())
