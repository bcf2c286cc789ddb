"""From one user's input to what the engine takes, and back: how its output is laid on it and written."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine import wire
from vllm_mmout.engine.request.request import Finish, Request, as_it_is
from vllm_mmout.engine.scene.scene import Scene, cut
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.geo import area_km2, check_bucket, is_folder, place_of, same_file
from vllm_mmout.models.inputs.input_forms import name_of, paths_of, read_once
from vllm_mmout.models.inputs.mapper import MappedInput
from vllm_mmout.outputs.base import unknown_suffix
from vllm_mmout.outputs.formats import FORMATS, other_suffix
from vllm_mmout.outputs.partial_images import moments
from vllm_mmout.processors.base import formats_for
from vllm_mmout.stopwatch import FILES, Stopwatch

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.engine.scene.run import Run
    from vllm_mmout.geo import BucketPath, Georeference
    from vllm_mmout.models.inputs.raster_view import RasterView
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.params import OutputParams


def prepare(binding: Binding, data: Any, request: Request, *, max_area: float | None = None) -> Request | Run:
    """Read and map one input into its request; may block on files.

    Args:
        binding: the engine's.
        data: the input. An input of an `OwnInputsProcessor` is not read.
        request: the request, whose params have been checked.
        max_area: limit of the ground that the input covers, in square kilometres; None for any.

    Returns:
        The same request, ready to be sent; or a `Run`, whose input is only opened, and which is to be closed.

    """
    if request.traced is None:
        return _prepared(binding, data, request, max_area)
    watch = Stopwatch()
    began, token = time.monotonic(), FILES.set(watch)
    try:
        prepared = _prepared(binding, data, request, max_area)
    finally:
        FILES.reset(token)
    if isinstance(prepared, Request):
        request.traced.stage("map", request.traced.stage("read", began, began + watch.take()))
    return prepared


def _prepared(binding: Binding, data: Any, request: Request, max_area: float | None) -> Request | Run:
    params = request.params
    own = binding.own_inputs(params)
    if own is not None:
        name, processor = own
        run: Run = processor.request(name, data, request, binding.settings.decode_timeout_s)
        return run
    target = _target(params.path, data)
    _spare_the_input(binding, params, target, data)
    inputs = binding.inputs
    if inputs is None:
        request.prompt, request.mark = _renderable(data, params), wire.mark(params)
        request.finish = _finish(None, target)
        return request
    media = _media(data, several=inputs.rasters is not None, fields=inputs.fields)
    opened = inputs.open(media, params)
    if not isinstance(opened, MappedInput):
        try:
            _check_area(opened.georeference, opened.size, max_area)
        except BaseException:
            opened.close()
            raise
        reopen = None if read_once(media) else partial(inputs.open, media, params)
        scene = _scene(binding, opened, request, target, reopen)
        if scene is not None:
            return scene
        opened = inputs.whole(opened)
    elif opened.source.size is not None:
        _check_area(opened.source.georeference, opened.source.size, max_area)
    _check_place(binding, params, target, opened.source.georeference, tiles=False)
    tokens = inputs.tokens(opened, params)
    request.prompt = inputs.render(opened, tokens)
    request.nbytes = sum(tensor.nbytes for tensor in opened.tensors.values())
    request.mark = wire.mark(params, reports=moments(params.partial_images, tokens))
    request.finish = _finish(opened.source, target, binding.model, binding.choice.pick(params.processor)[0])
    request.assumed = opened.source.assumed
    return request


def _scene(binding: Binding, view: RasterView, request: Request, target: Target | None, reopen: Any) -> Scene | None:
    """Return the input as tiles, or None if it fits one forward."""
    params = request.params
    try:
        grid = cut(binding, view, params)
        if grid is None:
            return None
        _check_suffix(binding, params, target)
        _check_place(binding, params, target, view.georeference, tiles=True)
        request.finish = _finish(None, target)
        folder = None if target is None else target.folder_here
        return Scene(request, view, grid, binding, folder=folder, reopen=reopen)
    except BaseException:
        view.close()
        raise


def _check_area(place: Georeference | None, size: tuple[int, int], most: float | None) -> None:
    """Refuse an input of too many square kilometres; one without a place, or whose area nobody can tell, has none."""
    area = None if most is None else area_km2(place, size)
    if most is not None and area is not None and area > most:
        raise InputError(
            f"the input covers {area:.4g} km² on the ground, and a request may have {most:g} km²; cut out a part with"
            " window=... or bbox=...; a server's limit is --mmout-max-area"
        )


def _check_suffix(binding: Binding, params: OutputParams, target: Target | None) -> None:
    """Refuse a file name whose suffix is no format before a scene is run, not after."""
    if target is None or target.folder:
        return
    for name in binding.choice.pick(params.processor):
        formats = formats_for(binding.processors[name], params)
        if formats is not None and target.path.suffix.lower() not in formats:
            raise unknown_suffix(target.path, formats, "; a folder ends with /")


def _check_place(
    binding: Binding, params: OutputParams, target: Target | None, place: Georeference | None, *, tiles: bool
) -> None:
    """Refuse what cannot hold an input's place, or needs a package, before the model runs.

    Rasters of ``tiles`` are joined in a GeoTIFF, whether or not one is asked for.
    """
    for name in binding.choice.pick(params.processor):
        processor = binding.processors[name]
        format_ = _checked_format(formats_for(binding.processors[name], params), target, place)
        if place is not None and processor.modality == "raster" and (tiles or format_ == "tiff"):
            place.to_rasterio()


def _checked_format(formats: Mapping[str, str] | None, target: Target | None, place: Georeference | None) -> str | None:
    """Refuse a format that cannot hold a place, or needs a package; the name of the format otherwise."""
    if target is None:
        return None
    formats = formats or {"": ""}
    suffix = next(iter(formats)) if target.folder else target.path.suffix.lower()  # the usual one
    format_ = formats.get(suffix)
    if format_ is not None and format_ in FORMATS:
        FORMATS[format_].check_place(place, other_suffix(formats, format_))
    return format_


_PROMPT_KEYS = frozenset({"multi_modal_data", "prompt", "prompt_token_ids", "prompt_embeds", "type"})
"""What tells vLLM's prompt dict."""


def _media(data: Any, *, several: bool, fields: Sequence[str] = ()) -> Any:
    """The picture, raster or tensors inside vLLM's prompt dict; anything else, tensors by keyword too, as it is.

    ``several``: whether a list is one input of several files, as models of rasters take it. ``fields``: the model's own
    names, among which may be "prompt".
    """
    if not isinstance(data, Mapping) or not _PROMPT_KEYS & set(data) - set(fields):
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
        raise InputError(f"a request takes one input, got a list of {len(value)}; send one request each")
    return value[0]


def _renderable(data: Any, params: OutputParams) -> Any:
    """The prompt of a model without an input mapper, which vLLM renders."""
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


@dataclass(frozen=True, slots=True)
class Target:
    """Where a result is written."""

    path: Path | BucketPath
    folder: bool
    """Whether ``path`` is a folder; the file is then named after the input."""
    stem: str

    @property
    def folder_here(self) -> Path | None:
        """The folder on this machine where the result will lie; None of one in a bucket."""
        folder = self.path if self.folder else self.path.parent
        return folder if isinstance(folder, Path) else None

    def file(self, formats: Iterable[str], pick: str | None = None) -> Path | BucketPath:
        """The file of one output, whose usual suffix is the first of its formats."""
        if self.folder:
            return self.path / f"{self.stem}{'' if pick is None else f'-{pick}'}{next(iter(formats))}"
        return self.path if pick is None else self.path.with_name(f"{self.path.stem}-{pick}{self.path.suffix}")


def check_targets(requests: Iterable[tuple[Any, OutputParams]]) -> None:
    """Check that no two requests of one call write to one file."""
    seen = set()
    for data, params in requests:
        if params.path is None:
            continue
        place = place_of(params.path)
        file = place / name_of(data) if is_folder(params.path) else place
        if file in seen:
            raise OptionError(
                f"path: several results of this call would be written to {file}; give each its own path, or name a"
                " folder, with a / at its end, for inputs of different names"
            )
        seen.add(file)


def _target(path: str | None, data: Any) -> Target | None:
    if path is None:
        return None
    target, folder = place_of(path), is_folder(path)
    if not isinstance(target, Path):
        check_bucket(target)
        return Target(target, folder, name_of(data))
    parent = target if folder else target.parent
    if folder:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(f"{path}: the folder cannot be made: {error.strerror}; choose another path") from error
    if not parent.is_dir():
        raise SaveError(f"{path}: the folder {parent} does not exist; make it first")
    return Target(target, folder, name_of(data))


def _spare_the_input(binding: Binding, params: OutputParams, target: Target | None, data: Any) -> None:
    """Refuse to write a result over a file that it is made of."""
    if target is None or isinstance(params.processor, tuple):
        return  # with several picks their names are part of the file's
    (name,) = binding.choice.pick(params.processor)
    file = target.file(formats_for(binding.processors[name], params) or {"": ""})
    for source in paths_of(data) if not isinstance(file, Path) or file.is_file() else ():
        if same_file(file, source):
            raise SaveError(f"the result would be written over its own input {source}; choose another path or folder")


def _finish(source: Source | None, target: Target | None, model: str = "", first_pick: str = "") -> Finish:
    """Lays an output on its input where there is one, and writes it where asked."""
    if source is None and target is None:
        return as_it_is

    def finish(output: Any, pick: str | None) -> Any:
        if source is not None:
            output = source.made_by(model, pick or first_pick).lay(output)
        if target is not None:
            if not hasattr(output, "save"):
                raise SaveError(f"path: a {type(output).__name__} cannot be saved; leave path out and use the object")
            output.path = str(output.save(target.file(getattr(output, "formats", {".npz": ""}), pick)))
        return output

    return finish
