"""Read a user's input into a request that fits one forward pass, or into a scene that is cut into tiles."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.request.request import Request
from vllm_mmout.engine.request.results import AskedResult, asked_results
from vllm_mmout.engine.request.target import check_place, check_suffix, finishing, spare_the_input, target_of
from vllm_mmout.engine.scene.cutting import cut
from vllm_mmout.engine.scene.scene import Scene
from vllm_mmout.engine.trace import add_stage, seconds_on_files, tracing
from vllm_mmout.errors import InputError, OptionError
from vllm_mmout.geo import area_km2
from vllm_mmout.models.inputs.catalogued import with_catalogued
from vllm_mmout.models.inputs.input_forms import is_named, read_once
from vllm_mmout.models.inputs.input_picture import read_picture
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.outputs.input_picture import InputPicture
from vllm_mmout.outputs.partial_images import moments

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.request.target import Target
    from vllm_mmout.engine.scene.run import Run
    from vllm_mmout.geo import Georeference
    from vllm_mmout.models.inputs.model_inputs import ModelInputs
    from vllm_mmout.models.inputs.raster_view import RasterView
    from vllm_mmout.params import OutputParams


def prepare(binding: Binding, data: Any, request: Request, *, max_area: float | None = None) -> Request | Run:
    """Read an input, and map it to the tensors of its request. May block while it reads files.

    Args:
        binding: output processors and settings of the engine.
        data: the input. An input for an `OwnInputsProcessor` is not read.
        request: the request, whose params have been checked.
        max_area: largest area that the input may cover, in square kilometres, or None for no limit.

    Returns:
        The given request, ready to be sent, or a `Run` whose input is opened but not read. The caller must close the
        run.

    """
    began = time.monotonic()
    with tracing(binding.traced(request.request_id)):
        prepared = _prepared(binding, data, request, max_area)
        if binding.trace is not None and isinstance(prepared, Request):
            prepared.mark = {**prepared.mark, wire.TRACED: (prepared.request_id, None, 1)}
            mapping = began + seconds_on_files()
            add_stage("read", began, mapping)
            add_stage("map", mapping)
    return prepared


def _prepared(binding: Binding, data: Any, request: Request, max_area: float | None) -> Request | Run:
    """Read an input into ``request``. Return the request, or a `Run` if the input needs several engine requests."""
    params = request.params
    own = binding.own_inputs(params)
    if own is not None:
        name, processor = own
        run: Run = processor.request(name, data, request, binding.settings.decode_timeout_s)
        return run
    target = target_of(params, data)
    kinds = asked_results(binding, params) if isinstance(params.output, tuple) else ()
    if kinds:
        check_suffix(binding, params, target)
    inputs = binding.inputs
    if inputs is None or inputs.rasters is None:
        spare_the_input(binding, params, target, data)
    if inputs is None:
        request.prompt, request.mark = _renderable(data, params), wire.mark(params)
        request.finish = finishing(None, target, kinds=kinds)
        return request
    media = media_of(data, several=inputs.rasters is not None, fields=inputs.fields)
    if inputs.rasters is not None:
        media = with_catalogued(media)
        spare_the_input(binding, params, target, media)
    opened = inputs.open(media, params)
    if not isinstance(opened, MappedInput):
        try:
            check_area(opened.georeference, opened.size, max_area)
        except BaseException:
            opened.close()
            raise
        reopen = None if read_once(media) else partial(inputs.open, media, params)
        picture = _input_picture(inputs, media, params)
        scene = _scene(binding, opened, request, target, reopen, kinds=kinds, picture=picture)
        if scene is not None:
            return scene
        opened = inputs.whole(replace(opened, may_be_empty=request.may_be_empty))
    elif opened.source.size is not None:
        check_area(opened.source.georeference, opened.source.size, max_area)
    check_place(binding, params, target, opened.source.georeference, tiles=False)
    tokens = inputs.tokens(opened, params)
    request.prompt = inputs.render(opened, tokens)
    request.nbytes = sum(tensor.nbytes for tensor in opened.tensors.values())
    request.mark = wire.mark(params, reports=moments(params.partial_images, tokens))
    first_processor = binding.choice.pick(params.processor)[0]
    source = replace(opened.source, input_picture=_input_picture(inputs, media, params))
    request.finish = finishing(source, target, binding.model, first_processor, kinds=kinds)
    request.assumed = opened.source.assumed
    return request


def _scene(
    binding: Binding,
    view: RasterView,
    request: Request,
    target: Target | None,
    reopen: Any,
    *,
    kinds: Sequence[AskedResult],
    picture: InputPicture | None,
) -> Scene | None:
    """Return a `Scene` for an input that is too large for one forward pass, or None if the input fits.

    ``reopen`` opens the input again, or is None if it can be read only once. ``kinds`` are the requested kinds of
    output.
    """
    params = request.params
    try:
        grid = cut(binding, view.mapper, view.size, params)
        if grid is None:
            return None
        check_suffix(binding, params, target)
        check_place(binding, params, target, view.georeference, tiles=True)
        folder = None if target is None else target.folder_here
        scene = Scene(request, view, grid, binding, folder=folder, reopen=reopen, picture=picture)
        request.finish = finishing(None, target, kinds=kinds, placed_on=scene.source)
    except BaseException:
        view.close()
        raise
    return scene


def _input_picture(inputs: ModelInputs, media: Any, params: OutputParams) -> InputPicture | None:
    """Return a function that reads a picture of the input when needed, or None if the input lacks a path or address.

    Results do not keep the pixels of their inputs alive.
    """
    return InputPicture(partial(read_picture, partial(inputs.open, media, params))) if is_named(media) else None


def check_area(place: Georeference | None, size: tuple[int, int], most: float | None, what: str = "the input") -> None:
    """Raise InputError if an input covers more than ``most`` square kilometres. An input of unknown area is accepted.

    ``what`` is the name of the input in the message.
    """
    area = None if most is None else area_km2(place, size)
    if most is not None and area is not None and area > most:
        raise InputError(
            f"{what} covers {area:.4g} km² on the ground, and a request may have {most:g} km²; cut out a part with"
            " window=... or bbox=...; a server's limit is --mmout-max-area"
        )


_PROMPT_KEYS = frozenset({"multi_modal_data", "prompt", "prompt_token_ids", "prompt_embeds", "type"})
"""Keys of vLLM's prompt dict. A dict without any of these keys is the input itself, such as a dict of tensors."""


def media_of(data: Any, *, several: bool, fields: Sequence[str] = ()) -> Any:
    """Return the input in ``data`` if ``data`` is a prompt dict of vLLM. Return any other ``data`` unchanged.

    Args:
        data: input as the user gave it.
        several: whether a list is an input of several files, as raster models accept.
        fields: keyword arguments of the model, which may include "prompt".

    """
    keys = _PROMPT_KEYS & set(data) - set(fields) if isinstance(data, Mapping) else set()
    if not keys or (keys == {"type"} and isinstance(data["type"], str) and data["type"] == "Feature"):  # a STAC item
        return data
    media = data.get("multi_modal_data")
    if not isinstance(media, Mapping) or len(media) != 1:
        raise InputError(
            'a prompt dict must hold one input under "multi_modal_data", as {"multi_modal_data": {"image": ...}};'
            f" got the keys {', '.join(map(repr, data))}"
        )
    (value,) = media.values()
    if not isinstance(value, list | tuple):
        return value
    if several and (len(value) != 1 or isinstance(value[0], list | tuple)):
        return value
    if len(value) != 1:
        raise InputError(f"a request takes one input, got a list of {len(value)}; send a request for each")
    return value[0]


def _renderable(data: Any, params: OutputParams) -> Any:
    """Return a prompt that vLLM accepts, for a model without an input mapper. Raise if an option needs a mapper."""
    for option in params.reads:
        raise OptionError(
            f"{option} needs a model with an input mapper; this one's inputs are rendered by vLLM", param=option
        )
    if isinstance(data, Mapping):
        has_prompt = any(key in data for key in _PROMPT_KEYS - {"multi_modal_data"})
        return data if has_prompt else {**data, "prompt_token_ids": [1]}
    if isinstance(data, str):
        return data
    raise InputError(
        f'this model has no input mapper: give vLLM\'s prompt dict {{"multi_modal_data": ...}} or a text, got'
        f" {type(data).__name__}; or register a mapper with MULTIMODAL_INPUT_REGISTRY.register_input_mapper"
    )
