"""Call the functions that a generating model registers for pictures in prompts, and check their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.errors import InputError, ModelError, RegistrationError, raise_interrupt
from vllm_mmout.models.inputs.context import InputContext, dummy_of, tokens_of
from vllm_mmout.models.inputs.make_mapper import FolderImageProcessor, called
from vllm_mmout.models.inputs.placeholders import (
    RANGES_KEY,
    PicturePlaceholder,
    derived_places,
    image_token_of,
    stated_places,
)
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.registry.input_registry import IMAGE

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class ExpandedPrompt:
    """Prompt with placeholder tokens inserted for its pictures."""

    tokens: list[int]
    pictures: list[Any]
    """Pictures that the model's input processor returned. The model's input mapper converts them to tensors."""
    places: list[PicturePlaceholder]
    """Range of each picture's placeholder tokens in the prompt."""


class PictureInputs:
    """Wrapper that calls the functions a model registers for pictures in prompts, and checks their results.

    The model generates tokens. Its functions insert placeholder tokens for pictures into a prompt, and convert pictures
    to tensors. The wrapper raises an error if a function returns a result of the wrong form.
    """

    def __init__(self, model: type, context: InputContext) -> None:
        self._model = model.__name__
        self._context = context
        self._registered = MULTIMODAL_INPUT_REGISTRY.registered(model)
        self._image_token = image_token_of(context.model_config.hf_config)

    def check(self) -> None:
        """Check at engine start that the functions that the model has registered can serve requests.

        Raises:
            RegistrationError: a function is missing, has another form, or changes prompts without pictures.

        """
        choice = self._registered.mapper
        if choice is not None and choice.factory is not None:
            raise RegistrationError(
                f"model {self._model} generates, and its input mapper is registered by a factory for models of one"
                " forward; register a function (context, data) with register_image_input_mapper"
            )
        if self._registered.max_tokens is None:
            raise RegistrationError(
                f"model {self._model} generates, but the number of tokens of a picture is unknown; decorate it"
                " with @MULTIMODAL_REGISTRY.register_max_image_tokens(...)"
            )
        if self.max_tokens < 1:
            raise RegistrationError(
                f"register_max_image_tokens of {self._model} says {self.max_tokens}; a picture takes one token at least"
            )
        self._check_text()
        _ = self._mapper

    def _check_text(self) -> None:
        """Check that the input processor does not change a prompt of text alone. Raise RegistrationError if it does.

        vLLM does not call the processor for a prompt without pictures, so the change would be lost.
        """
        if (processor := self._registered.input_processor) is None:
            return
        prompt = [1, 2]
        try:
            inputs = processor(self._context, {"prompt_token_ids": list(prompt)})
            changed = list(inputs["prompt_token_ids"]) != prompt
        except BaseException as error:  # noqa: BLE001 - a failure without pictures does not matter
            raise_interrupt(error)
            return
        if changed:
            raise RegistrationError(
                f"the input processor of {self._model} changes a prompt without pictures, and vLLM takes such prompts"
                " as they are; let it return prompts without multi_modal_data unchanged"
            )

    @cached_property
    def max_tokens(self) -> int:
        """Maximum number of prompt tokens that one picture takes."""
        return tokens_of(self._context, self._registered.max_tokens, self._model)

    def expand(self, tokens: Sequence[int], pictures: Sequence[Any]) -> ExpandedPrompt:
        """Insert the pictures' placeholder tokens into a prompt, and find the position of each picture's tokens.

        Raises:
            InputError: the input processor raised, or the tokens in its prompt cannot be assigned to pictures.

        """
        before, count = list(tokens), len(pictures)
        after, kept, stated = self._processed(before, list(pictures))
        if stated is not None:
            places = stated_places(stated, after, count, self._image_token)
        else:
            places = derived_places(
                before,
                after,
                count,
                self._image_token,
                lambda index, prompt: self._processed(prompt, [pictures[index]])[0],
            )
        if (rows := max(place.rows for place in places)) > self.max_tokens:
            raise InputError(
                f"a picture takes {rows} tokens, and register_max_image_tokens of {self._model} says"
                f" {self.max_tokens} at most; give a smaller picture, or correct the number or the input processor"
            )
        return ExpandedPrompt(after, kept, places)

    def _processed(self, tokens: list[int], pictures: list[Any]) -> tuple[list[int], list[Any], Any]:
        """Pass a prompt's tokens and pictures to the model's registered input processor, and return its result.

        The result is the new tokens, the new pictures, and the positions of the pictures' tokens, or None for these.
        """
        if (processor := self._registered.input_processor) is None:
            return tokens, pictures, None
        data = pictures[0] if len(pictures) == 1 else list(pictures)
        inputs = {"prompt_token_ids": list(tokens), "multi_modal_data": {IMAGE: data}}
        result = called(partial(processor, self._context, inputs), "input processor", self._model)
        try:
            after = [int(token) for token in result["prompt_token_ids"]]
            returned = result["multi_modal_data"][IMAGE]
            stated = (result.get(RANGES_KEY) or {}).get(IMAGE)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"the input processor of {self._model} must give a dict with prompt_token_ids and"
                f' multi_modal_data={{"{IMAGE}": ...}}, got {_shown(result)}'
            ) from error
        kept = list(returned) if isinstance(returned, list | tuple) else [returned]
        if len(kept) != len(pictures):
            raise InputError(
                f"the input processor of {self._model} gave {len(kept)} pictures for {len(pictures)}; it must give one"
                " for each"
            )
        return after, kept, stated

    def tensors(self, picture: Any) -> dict[str, torch.Tensor]:
        """Convert one picture to tensors without a batch axis, as keyword arguments of ``embed_multimodal``.

        Raises:
            InputError: the mapper raised, or returned anything but tensors of one picture.

        """
        result = called(partial(self._mapper, self._context, picture), "input mapper", self._model)
        entries = dict(result.items()) if hasattr(result, "items") else {}
        if not entries:
            raise InputError(
                f"the input mapper of {self._model} must give tensors by keyword of embed_multimodal, got"
                f" {_shown(result)}"
            )
        return {name: self._without_axis(name, value) for name, value in entries.items()}

    def _without_axis(self, name: str, value: Any) -> torch.Tensor:
        """Remove axis 0 from the tensor of one picture, and convert floats to the model's dtype.

        Raise InputError if axis 0, the pictures, does not have the length 1.
        """
        import torch

        try:
            rows = len(value)
            row = torch.as_tensor(value[0] if rows == 1 else value)
        except (TypeError, ValueError, RuntimeError, IndexError, KeyError) as error:
            raise InputError(
                f"{name} of the input mapper of {self._model} must be a tensor or an array, got {_shown(value)}"
            ) from error
        if rows != 1:
            raise InputError(
                f"the input mapper of {self._model} gave {name} of {rows} rows for one picture; the first axis must be"
                " pictures, as of an image processor with return_tensors: tensor[None] adds it"
            )
        row = row.detach().cpu()
        dtype: Any = self._context.model_config.dtype
        return row.to(dtype) if row.is_floating_point() else row

    def dummy(self, count: int) -> list[Any]:
        """Return ``count`` pictures of the maximum size, for vLLM's memory profiling."""
        if (factory := self._registered.dummy_data) is not None:
            return [dummy_of(self._context, factory, self._model)] * count
        if isinstance(self._mapper, FolderImageProcessor):
            return [self._mapper.dummy()] * count
        raise ModelError(
            f"the largest picture of {self._model} is unknown, so that vLLM cannot measure its memory; decorate"
            " it with @INPUT_REGISTRY.register_dummy_data(...)"
        )

    @cached_property
    def _mapper(self) -> Any:
        """Registered input mapper. The default is the image processor in the model's folder."""
        choice = self._registered.mapper
        return FolderImageProcessor(self._context) if choice is None or choice.function is None else choice.function


def _shown(value: Any) -> str:
    """Describe the type and shape of a function's result, for an error message."""
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(str, value)) or 'nothing'}"
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"{type(value).__name__} {list(np.shape(value))}"
