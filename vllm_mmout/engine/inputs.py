"""From one user's input to what the engine takes, and back: how its output is laid on it and written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.decode import Finish, as_it_is
from vllm_mmout.engine.scene import Scene, cut
from vllm_mmout.errors import InputError, OptionError, SaveError
from vllm_mmout.models.mapper import MappedInput
from vllm_mmout.outputs.raster import RasterOutput

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.models.raster_view import RasterView
    from vllm_mmout.outputs.source import Source
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class Prepared:
    """One request, ready for admission."""

    prompt: Any
    """A pre-rendered ``mm_input``, or a prompt that vLLM renders."""
    nbytes: int
    """Bytes of input that travel."""
    finish: Finish


def prepare(binding: Binding, data: Any, params: OutputParams) -> Prepared | Scene:
    """Read and map one input; may block on files. A scene is only opened, and is to be closed.

    Args:
        binding: the engine's.
        data: a form of input that ``generate`` takes.
        params: the request's.

    Raises:
        InputError: the input cannot be read, or the model cannot take it.
        OptionError: the params ask for what this model has not.

    """
    binding.check_params(params)
    target = _target(params.path, data)
    _spare_the_input(binding, params, target, data)
    inputs = binding.inputs
    if inputs is None:
        return Prepared(_renderable(data, params), 0, _finish(None, target))
    media = _media(data)
    opened = inputs.open(media, params)
    if not isinstance(opened, MappedInput):
        once = hasattr(media, "read") and not hasattr(media, "getbands")  # a file object of the caller's
        reopen = None if once else partial(inputs.open, media, params)
        scene = _scene(binding, opened, params, target, reopen)
        if scene is not None:
            return scene
        opened = inputs.whole(opened)
    nbytes = sum(tensor.nbytes for tensor in opened.tensors.values())
    names = binding.choice.pick(params.processor)
    finish = _finish(opened.source, target, binding.model, names[0])
    return Prepared(inputs.render(opened), nbytes, finish)


def _scene(
    binding: Binding, view: RasterView, params: OutputParams, target: Target | None, reopen: Any
) -> Scene | None:
    """The input as tiles; None where it fits one forward."""
    try:
        grid = cut(binding, view, params)
        if grid is None:
            return None
        _check_suffix(binding, params, target)
        folder = None if target is None else target.path if target.folder else target.path.parent
        return Scene(view, grid, params, binding, _finish(None, target), folder, reopen)
    except BaseException:
        view.close()
        raise


def _check_suffix(binding: Binding, params: OutputParams, target: Target | None) -> None:
    """Refuse a file name whose suffix is no format before a scene is run, not after."""
    if target is None or target.folder:
        return
    rasters = [name for name in binding.choice.pick(params.processor) if binding.processors[name].modality == "raster"]
    if rasters and target.path.suffix.lower() not in RasterOutput.formats:
        suffix = f"suffix {target.path.suffix!r}" if target.path.suffix else "no suffix"
        known = ", ".join(RasterOutput.formats)
        raise SaveError(f"cannot save {target.path}: {suffix} tells the format (known: {known}; a folder ends with /)")


_PROMPT_KEYS = frozenset({"multi_modal_data", "prompt", "prompt_token_ids", "prompt_embeds", "type"})
"""What tells vLLM's prompt dict."""


def _media(data: Any) -> Any:
    """The picture, raster or tensors inside vLLM's prompt dict; anything else, tensors by keyword too, as it is."""
    if not isinstance(data, Mapping) or not _PROMPT_KEYS & set(data):
        return data
    media = data.get("multi_modal_data")
    if not isinstance(media, Mapping) or len(media) != 1:
        raise InputError(
            'a prompt dict must hold one input under "multi_modal_data", as {"multi_modal_data": {"image": ...}};'
            f" got the keys {', '.join(map(repr, data))}"
        )
    (value,) = media.values()
    if isinstance(value, list | tuple):
        if len(value) != 1:
            raise InputError(f"a request takes one input, got a list of {len(value)}; send one request each")
        (value,) = value
    return value


def _renderable(data: Any, params: OutputParams) -> Any:
    """The prompt of a model without an input mapper, which vLLM renders."""
    for option in params.reads:
        raise OptionError(f"{option} needs a model with an input mapper; this one's inputs are rendered by vLLM")
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

    path: Path
    folder: bool
    """Whether ``path`` is a folder; the file is then named after the input."""
    stem: str


def check_targets(requests: Iterable[tuple[Any, OutputParams]]) -> None:
    """Check that no two requests of one call write to one file.

    Args:
        requests: input and params of each.

    Raises:
        OptionError: two would; the file is named.

    """
    seen = set()
    for data, params in requests:
        if params.path is None:
            continue
        place = Path(params.path)
        file = place / _stem(data) if params.path.endswith(os.sep) or place.is_dir() else place
        if file in seen:
            raise OptionError(
                f"path: several results of this call would be written to {file}; give each its own path, or name a"
                " folder, with a / at its end, for inputs of different names"
            )
        seen.add(file)


def _stem(data: Any) -> str:
    """What a result in a folder is called: as its input's file, "output" for an input without a name."""
    return (Path(data).stem if isinstance(data, str | os.PathLike) else "") or "output"


def _target(path: str | None, data: Any) -> Target | None:
    if path is None:
        return None
    target = Path(path)
    folder = target.is_dir() or path.endswith(os.sep)
    parent = target if folder else target.parent
    if folder:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(f"{path}: the folder cannot be made: {error.strerror}; choose another path") from error
    if not parent.is_dir():
        raise SaveError(f"{path}: the folder {parent} does not exist; make it first")
    return Target(target, folder, _stem(data))


_USUAL = {"raster": ".tif", "image": ".png"}
"""Suffix that a result gets in a folder, by its processor's modality, where inputs have it too."""


def _spare_the_input(binding: Binding, params: OutputParams, target: Target | None, data: Any) -> None:
    """Refuse to write a result over the file that it is made of."""
    if target is None or not isinstance(data, str | os.PathLike) or isinstance(params.processor, tuple):
        return  # with several picks their names are part of the file's
    (name,) = binding.choice.pick(params.processor)
    suffix = _USUAL.get(binding.processors[name].modality, "")
    file, source = target.path / f"{target.stem}{suffix}" if target.folder else target.path, Path(data)
    if file.is_file() and source.is_file() and file.samefile(source):
        raise SaveError(f"the result would be written over its own input {source}; choose another path or folder")


def _finish(source: Source | None, target: Target | None, model: str = "", first_pick: str = "") -> Finish:
    """Lays an output on its input where there is one, and writes it where asked."""
    if source is None and target is None:
        return as_it_is

    def finish(output: Any, pick: str | None) -> Any:
        if source is not None and hasattr(output, "placed"):
            output = output.placed(source.made_by(model, pick or first_pick))
        if target is not None:
            if not hasattr(output, "save"):
                raise SaveError(f"path: a {type(output).__name__} cannot be saved; leave path out and use the object")
            output.path = str(output.save(_file(target, pick, output)))
        return output

    return finish


def _file(target: Target, pick: str | None, output: Any) -> Path:
    if target.folder:
        name = target.stem if pick is None else f"{target.stem}-{pick}"
        return target.path / f"{name}{next(iter(getattr(output, 'formats', {'.npz': ''})))}"  # the usual suffix first
    if pick is None:
        return target.path
    return target.path.with_name(f"{target.path.stem}-{pick}{target.path.suffix}")
