"""Output file or folder of a request, and the checks of it before the model runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.engine.request.request import Finish, as_it_is
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import check_bucket, is_folder, place_of, same_file
from vllm_mmout.models.inputs.input_forms import name_of, paths_of
from vllm_mmout.outputs.base import unknown_suffix
from vllm_mmout.outputs.formats import FORMATS, other_suffix
from vllm_mmout.processors.base import formats_for

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.geo import BucketPath, Georeference
    from vllm_mmout.outputs.base import Source
    from vllm_mmout.params import OutputParams


@dataclass(frozen=True, slots=True)
class Target:
    """File or folder that a result is written to."""

    path: Path | BucketPath
    folder: bool
    """Whether ``path`` is a folder. The file in the folder is named after the input."""
    stem: str
    """Name of the input without its suffix."""

    @property
    def folder_here(self) -> Path | None:
        """Local folder of the result, or None if the result goes to a bucket."""
        folder = self.path if self.folder else self.path.parent
        return folder if isinstance(folder, Path) else None

    def file(self, formats: Iterable[str], pick: str | None = None) -> Path | BucketPath:
        """Return the path of the file for an output.

        Args:
            formats: suffixes of the possible formats. A file in a folder gets the first suffix.
            pick: name of the processor to add to the file's name, or None if the result has only one output.

        """
        if self.folder:
            return self.path / f"{self.stem}{'' if pick is None else f'-{pick}'}{next(iter(formats))}"
        return self.path if pick is None else self.path.with_name(f"{self.path.stem}-{pick}{self.path.suffix}")


def check_targets(requests: Iterable[tuple[Any, OutputParams]]) -> None:
    """Raise if two requests of one call would write to the same file."""
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


def target_of(path: str | None, data: Any) -> Target | None:
    """Return the file or folder for a result, or None if ``path`` is None. A missing folder is created."""
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


def spare_the_input(binding: Binding, params: OutputParams, target: Target | None, data: Any) -> None:
    """Raise SaveError if the result would overwrite its own input."""
    if target is None or isinstance(params.processor, tuple):
        return  # with several processors each file's name has the name of its processor
    (name,) = binding.choice.pick(params.processor)
    file = target.file(formats_for(binding.processors[name], params) or {"": ""})
    for source in paths_of(data) if not isinstance(file, Path) or file.is_file() else ():
        if same_file(file, source):
            raise SaveError(f"the result would be written over its own input {source}; choose another path or folder")


def finishing(source: Source | None, target: Target | None, model: str = "", first_pick: str = "") -> Finish:
    """Return a function that georeferences an output like ``source`` and saves it to ``target``, if they are given."""
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


def check_suffix(binding: Binding, params: OutputParams, target: Target | None) -> None:
    """Raise if the result cannot be saved with the suffix of ``target``. Called before the model runs on a scene."""
    if target is None or target.folder:
        return
    for name in binding.choice.pick(params.processor):
        formats = formats_for(binding.processors[name], params)
        if formats is not None and target.path.suffix.lower() not in formats:
            raise unknown_suffix(target.path, formats, "; a folder ends with /")


def check_place(
    binding: Binding, params: OutputParams, target: Target | None, place: Georeference | None, *, tiles: bool
) -> None:
    """Raise if the result's format cannot store the georeference ``place``, or needs a package that is missing.

    Called before the model runs. Rasters of an input cut into `tiles` are joined in a GeoTIFF whatever the result's
    format is, so a GeoTIFF must be able to store the georeference then.
    """
    for name in binding.choice.pick(params.processor):
        processor = binding.processors[name]
        format_ = _checked_format(formats_for(binding.processors[name], params), target, place)
        if place is not None and processor.modality == "raster" and (tiles or format_ == "tiff"):
            place.to_rasterio()


def _checked_format(formats: Mapping[str, str] | None, target: Target | None, place: Georeference | None) -> str | None:
    """Return the name of the result's format. Raise if the format cannot store `place`, or needs a missing package."""
    if target is None:
        return None
    formats = formats or {"": ""}
    suffix = next(iter(formats)) if target.folder else target.path.suffix.lower()  # a folder uses the default format
    format_ = formats.get(suffix)
    if format_ is not None and format_ in FORMATS:
        FORMATS[format_].check_place(place, other_suffix(formats, format_))
    return format_
