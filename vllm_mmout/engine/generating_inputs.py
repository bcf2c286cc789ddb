"""vLLM's multimodal processor for models that generate tokens from pictures.

It calls the functions that a model's author has registered to insert image tokens and to convert pictures to tensors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from vllm.inputs import MultiModalDataDict, MultiModalInput, mm_input
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.image import convert_image_mode, normalize_image
from vllm.multimodal.inputs import MultiModalFieldConfig, MultiModalKwargsItems, PlaceholderRange
from vllm.multimodal.parse import ModalityDataItems, MultiModalDataItems, MultiModalDataParser, ProcessorBatchItems
from vllm.multimodal.processing import (
    BaseDummyInputsBuilder,
    BaseMultiModalProcessor,
    BaseProcessingInfo,
    InputProcessingContext,
    ProcessorInputs,
    PromptReplacement,
    PromptUpdate,
    TimingContext,
)

from vllm_mmout.engine.hooks.client_errors import as_client_error
from vllm_mmout.errors import HookError, InputError, MMOutError, OptionError
from vllm_mmout.models.inputs.context import InputContext
from vllm_mmout.models.inputs.picture_inputs import PictureInputs
from vllm_mmout.models.inputs.placeholders import PicturePlaceholder
from vllm_mmout.registry.input_registry import IMAGE

if TYPE_CHECKING:
    from vllm.config.multimodal import MultiModalDummyOptions


def register(model: type) -> None:
    """Register `PictureProcessor` with vLLM as the image processor of a model class."""
    info: Any = partial(PictureInfo, model)
    decorate: Any = MULTIMODAL_REGISTRY.register_processor(PictureProcessor, info=info, dummy_inputs=PictureDummyInputs)
    decorate(model)


def is_registered(model: type) -> bool:
    """Return whether `PictureProcessor` is registered with vLLM as the image processor of a model class."""
    factories = getattr(model, "_processor_factory", None)
    return getattr(factories, "processor", None) is PictureProcessor


def check_release() -> None:
    """Raise HookError if vLLM is older than 0.31. Older releases have another interface for multimodal processors."""
    if not hasattr(BaseMultiModalProcessor, "get_dummy_mm_inputs"):
        raise HookError(
            "decorators of the inputs of a model that generates need vLLM 0.31 or newer; upgrade it, or register a"
            " processor with @MULTIMODAL_REGISTRY.register_processor(...)"
        )


class _PictureParser(MultiModalDataParser):
    """vLLM data parser that leaves pictures unchanged. The model's registered input mapper converts them to tensors."""

    def _parse_image_data(self, data: Any) -> ModalityDataItems[Any, Any] | None:
        if data is None:
            return None
        if isinstance(data, list | tuple) or getattr(data, "ndim", 0) == 4:  # an array of 4 axes holds several pictures
            return ProcessorBatchItems(list(data), IMAGE)
        return ProcessorBatchItems([data], IMAGE)


class PictureInfo(BaseProcessingInfo):
    """Limits that vLLM reads: how many pictures a prompt may have, and how many tokens a picture may take."""

    def __init__(self, model: type, ctx: InputProcessingContext) -> None:
        super().__init__(ctx)
        self.inputs = PictureInputs(model, InputContext(ctx.model_config))

    def get_data_parser(self) -> MultiModalDataParser:
        """Return a parser that leaves pictures unchanged."""
        return _PictureParser()

    def get_supported_mm_limits(self) -> Mapping[str, int | None]:
        """Return None: the number of pictures in a prompt is limited only by ``limit_mm_per_prompt``."""
        return {IMAGE: None}

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> Mapping[str, int]:
        """Return the largest number of prompt tokens that a picture takes, as {"image": number}.

        The number is registered for the model with ``register_max_image_tokens``.
        """
        return {IMAGE: self.inputs.max_tokens}


class PictureDummyInputs(BaseDummyInputsBuilder[PictureInfo]):
    """Builder of dummy pictures of the largest size, which vLLM uses to measure the memory that the model needs."""

    def get_dummy_text(self, mm_counts: Mapping[str, int]) -> str:
        """Return an empty text. The dummy inputs are made of token ids, and need no text."""
        return ""

    def get_dummy_mm_data(
        self, seq_len: int, mm_counts: Mapping[str, int], mm_options: MultiModalDummyOptions
    ) -> MultiModalDataDict:
        """Return ``mm_counts["image"]`` dummy pictures of the largest size."""
        return {IMAGE: self.info.inputs.dummy(mm_counts.get(IMAGE, 0))}


class PictureProcessor(BaseMultiModalProcessor[PictureInfo]):
    """vLLM's multimodal processor for pictures in prompts.

    Functions of the model's author insert the image tokens, and convert the pictures to tensors.
    """

    requires_tokenizer = False

    def apply(self, inputs: ProcessorInputs, timing_ctx: TimingContext) -> MultiModalInput:
        """Process a prompt with pictures. Return the token ids with image tokens, and the pictures as tensors.

        The result also has the positions of the image tokens.
        """
        pictures = [_normalized(picture) for picture in _pictures(inputs.mm_data_items)]
        if not pictures:
            return mm_input(inputs.prompt, mm_kwargs=MultiModalKwargsItems(), mm_hashes={}, mm_placeholders={})
        try:
            self._refuse_options(inputs)
            if any(picture is None for picture in pictures):
                raise InputError(
                    "a picture is given only by its multi_modal_uuids, but the model's input processor needs the"
                    " picture itself; give it in multi_modal_data"
                )
            expanded = self.info.inputs.expand(inputs.prompt, pictures)
            named = replace(inputs, mm_uuid_items=_kept_uuids(inputs, pictures, expanded.pictures))
            return self._rendered(named, expanded.tokens, expanded.pictures, expanded.places, timing_ctx)
        except MMOutError as error:
            raise as_client_error(error) from error.__cause__

    def get_dummy_mm_inputs(
        self, mm_counts: Mapping[str, int], *, cache: Any = None, scheduler_config: Any = None
    ) -> MultiModalInput:
        """Build the input that needs the most memory: the largest pictures with the most tokens."""
        length = self.info.ctx.model_config.max_model_len
        options: Any = {}
        pictures: Any = self.dummy_inputs.get_dummy_mm_data(length, mm_counts, options)[IMAGE]
        most = self.info.inputs.max_tokens
        places = [PicturePlaceholder(most * number, (True,) * most) for number in range(len(pictures))]
        inputs = ProcessorInputs([], MultiModalDataItems(), cache=cache)
        return self._rendered(inputs, [0] * (most * len(pictures)), pictures, places, TimingContext(enabled=False))

    def _rendered(
        self,
        inputs: ProcessorInputs,
        tokens: list[int],
        pictures: Sequence[Any],
        places: Sequence[PicturePlaceholder],
        timing_ctx: TimingContext,
    ) -> MultiModalInput:
        """Build vLLM's input from token ids, pictures, and the position of each picture's tokens in the prompt.

        Only pictures that are not in vLLM's cache are mapped to tensors.
        """
        items = MultiModalDataItems({IMAGE: ProcessorBatchItems(list(pictures), IMAGE)})
        processed = self._cached_apply_hf_processor(replace(inputs, mm_data_items=items), timing_ctx)
        return mm_input(
            prompt_token_ids=tokens,
            mm_kwargs=processed.kwargs,
            mm_hashes=processed.hashes,
            mm_placeholders={IMAGE: [_range(place) for place in places]},
        )

    def _refuse_options(self, inputs: ProcessorInputs) -> None:
        if options := self.info.ctx.get_merged_mm_kwargs(inputs.hf_processor_mm_kwargs):
            raise OptionError(
                f"mm_processor_kwargs ({', '.join(options)}) cannot be used: the functions registered on this model"
                " take no options; leave them out",
                param="mm_processor_kwargs",
            )

    def _apply_hf_processor_main(self, mm_items: MultiModalDataItems, *args: Any, **kwargs: Any) -> Any:
        rows = [self.info.inputs.tensors(picture) for picture in _pictures(mm_items)]
        names = {name for row in rows for name in row}
        for row in rows:
            if missing := names - row.keys():
                raise InputError(
                    f"the input mapper gave {', '.join(sorted(missing))} for some pictures of the prompt and not for"
                    " others; it must give the same keywords for each"
                )
        return {name: [row[name] for row in rows] for name in sorted(names)}

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        return {key: MultiModalFieldConfig.batched(IMAGE) for key in hf_inputs}

    def _get_prompt_updates(self, *args: Any, **kwargs: Any) -> Sequence[PromptUpdate]:
        """Return a dummy prompt update, because vLLM requires one. `apply` has already inserted the image tokens."""
        return [PromptReplacement(modality=IMAGE, target=[], replacement=[])]


def _pictures(items: MultiModalDataItems) -> list[Any]:
    return items[IMAGE].get_all() if IMAGE in items else []


def _kept_uuids(inputs: ProcessorInputs, originals: Sequence[Any], processed: Sequence[Any]) -> Any:
    """Return the client's UUIDs of the pictures, except UUIDs of pictures that the input processor replaced.

    The replaced pictures have None in place of the UUID, which identifies only the client's own picture. Return None if
    the client gave no UUIDs.
    """
    uuids = (inputs.mm_uuid_items or {}).get(IMAGE)
    if uuids is None:
        return None
    return {IMAGE: [uuid if old is new else None for uuid, old, new in zip(uuids, originals, processed, strict=True)]}


def _normalized(picture: Any) -> Any:
    """Return a PIL image upright and in RGB, as vLLM passes images to processors. Return other data unchanged."""
    from PIL.Image import Image

    return convert_image_mode(normalize_image(picture), "RGB") if isinstance(picture, Image) else picture


def _range(place: PicturePlaceholder) -> PlaceholderRange:
    """Convert the position of a picture's tokens in the prompt to vLLM's `PlaceholderRange`."""
    mask = None if all(place.embedded) else torch.tensor(place.embedded)
    return PlaceholderRange(offset=place.offset, length=len(place.embedded), is_embed=mask)
