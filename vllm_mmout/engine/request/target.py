"""Save the results of a request to a file or folder. Check before the model runs that saving is possible."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from vllm_mmout.engine.request.request import Finish, as_it_is
from vllm_mmout.engine.request.results import AskedResult, asked_results, check_suffix_of, make_kinds
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import check_bucket, is_address, is_folder, place_of, same_file
from vllm_mmout.models.inputs.input_forms import name_of, paths_of
from vllm_mmout.outputs import RasterOutput, Source
from vllm_mmout.outputs.formats import FORMATS, other_suffix, suffix_of, with_end, written_suffix
from vllm_mmout.outputs.formats.geotiff import remove_saved
from vllm_mmout.wing import extensions

if TYPE_CHECKING:
    from vllm_mmout.engine.binding import Binding
    from vllm_mmout.geo import BucketPath, Georeference
    from vllm_mmout.params import OutputParams


_CATALOGUED_FORMAT: Final = "tiff"
"""Name of the only file format of results for which a catalogue record, such as a STAC item, can be written."""


@dataclass(frozen=True, slots=True)
class Target:
    """File or folder that a result is written to."""

    path: Path | BucketPath
    folder: bool
    """Whether ``path`` is a folder. A file in the folder is named after the input."""
    stem: str
    """Name of the input without its suffix."""
    describe: Callable[[str], None] | None = None
    """Function that writes a catalogue record of the saved file, such as a STAC item. None if the request wants no
    record."""

    @property
    def folder_here(self) -> Path | None:
        """Local folder of the result, or None if the result goes to a bucket."""
        folder = self.path if self.folder else self.path.parent
        return folder if isinstance(folder, Path) else None

    @property
    def suffix(self) -> str | None:
        """Suffix of the file that ``path`` names, or None if ``path`` is a folder.

        In a folder, the suffix of a file depends on the format of its result.
        """
        return None if self.folder else written_suffix(self.path)

    def file(self, formats: Iterable[str], processor_name: str | None = None) -> Path | BucketPath:
        """Return the path of the file that an output is written to.

        Args:
            formats: suffixes of the possible formats. A file in a folder gets the first suffix.
            processor_name: name of the processor to add to the file's name, or None if the result has only one output.

        """
        if processor_name is None and not self.folder:
            return self.path
        return self.named(processor_name, next(iter(formats)) if self.suffix is None else self.suffix)

    def named(self, name: str | None, suffix: str) -> Path | BucketPath:
        """Return the path of a result's file with the given suffix. If ``name`` is given, insert it before the suffix.

        For example, ``scene.tif`` becomes ``scene-classes.tif`` if ``name`` is "classes".
        """
        end = "" if name is None else f"-{name}"
        return self.path / f"{self.stem}{end}{suffix}" if self.folder else with_end(self.path, end, suffix)

    def file_of(self, result: AskedResult) -> Path | BucketPath:
        """Return the path of the file for a result."""
        several = result.is_kind or isinstance(result.params.processor, tuple)
        return self.named(result.name if several else None, result.suffix(self.suffix))


def check_targets(binding: Binding, requests: Iterable[tuple[Any, OutputParams]]) -> None:
    """Raise if two results of one ``generate`` call would be written to the same file."""
    seen = set()
    for data, params in requests:
        if params.path is None:
            continue
        target = Target(place_of(params.path), is_folder(params.path), name_of(data))
        files = [target.file_of(result) for result in asked_results(binding, params)]
        if params.stac_item:
            files += [
                file.with_suffix(".json") for file in files if file.suffix in FORMATS[_CATALOGUED_FORMAT].suffixes
            ]
        for file in files:
            if file in seen:
                raise OptionError(
                    f"path: several results of this call would be written to {file}; give each its own path, or name a"
                    " folder, with a / at its end, for inputs of different names"
                )
            seen.add(file)


def target_of(params: OutputParams, data: Any) -> Target | None:
    """Return the file or folder that a request's ``path`` names, or None without a path. Create a missing folder."""
    path = params.path
    if params.stac_item and path is None:
        raise OptionError("stac_item describes the file of a result; give its path too", param="stac_item")
    if path is None:
        return None
    describe = _record_writer(params, data) if params.stac_item else None
    target, folder = place_of(path), is_folder(path)
    if not isinstance(target, Path):
        check_bucket(target)
        return Target(target, folder, name_of(data), describe)
    parent = target if folder else target.parent
    if folder:
        try:
            parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(f"{path}: the folder cannot be made: {error.strerror}; choose another path") from error
    if not parent.is_dir():
        raise SaveError(f"{path}: the folder {parent} does not exist; make it first")
    return Target(target, folder, name_of(data), describe)


def _record_writer(params: OutputParams, data: Any) -> Callable[[str], None]:
    """Return a function that writes a catalogue record of the saved file, such as a STAC item."""
    writers = list(extensions("describe"))
    if not writers:
        raise OptionError("stac_item needs the package vllm_mmout.wings.stac, which is missing", param="stac_item")
    for writer in writers:
        writer.check()
    places = [data] if is_address(data) else paths_of(data)
    inputs = [str(place.absolute() if isinstance(place, Path) else place) for place in places]

    def describe(path: str) -> None:
        for writer in writers:
            writer.write(path, params, inputs)

    return describe


def spare_the_input(binding: Binding, params: OutputParams, target: Target | None, data: Any) -> None:
    """Raise SaveError if a result would overwrite its own input."""
    if target is None:
        return
    files = [target.file_of(result) for result in asked_results(binding, params)]
    files = [file for file in files if not isinstance(file, Path) or file.exists()]
    for source in paths_of(data) if files else ():
        if any(same_file(file, source) for file in files):
            raise SaveError(f"the result would be written over its own input {source}; choose another path or folder")


def finishing(
    source: Source | None,
    target: Target | None,
    model: str = "",
    first_processor: str = "",
    *,
    kinds: Sequence[AskedResult] = (),
    placed_on: Source | None = None,
) -> Finish:
    """Return a function that georeferences a decoded output and saves it to ``target``.

    The output gets the georeference and metadata of ``source``, which describes the input. Its metadata also stores
    ``model``, and the name of the processor. If the request has only one result, this is ``first_processor``. Without
    ``source`` the output is not georeferenced, and without ``target`` it is not saved.

    If the request asks for several ``kinds``, the function makes them of the output, and returns them by name.
    ``placed_on`` describes the input of an output that is georeferenced already.
    """
    if source is None and target is None and not kinds:
        return as_it_is

    def finish(output: Any, processor_name: str | None) -> Any:
        if source is not None:
            output = source.made_by(model, processor_name or first_processor).lay(output)
        if kinds:
            made = make_kinds(kinds, output, source or placed_on or Source())
            return made if target is None else _save_kinds(made, kinds, target)
        if target is not None:
            _save(output, target.file(getattr(output, "formats", {".npz": ""}), processor_name), target)
        return output

    return finish


def _save(output: Any, file: Path | BucketPath, target: Target) -> None:
    """Save an output. If ``target`` asks for a catalogue record and the output is a GeoTIFF, also write the record."""
    if not hasattr(output, "save"):
        raise SaveError(f"path: a {type(output).__name__} cannot be saved; leave path out and use the object")
    output.path = str(output.save(file))
    if target.describe is not None and suffix_of(file) in FORMATS[_CATALOGUED_FORMAT].suffixes:
        target.describe(output.path)


def _save_kinds(made: dict[str, Any], kinds: Sequence[AskedResult], target: Target) -> dict[str, Any]:
    """Save each kind of output to its own file. If a save fails, remove the files that were saved before."""
    saved: list[Any] = []
    try:
        # A raster is saved last: it may move to a bucket, where tracing polygons would be slow.
        for kind in sorted(kinds, key=lambda kind: isinstance(made[kind.name], RasterOutput)):
            _save(made[kind.name], target.file_of(kind), target)
            saved.append(made[kind.name])
    except BaseException:
        for output in saved:
            remove_saved(output.path)
        raise
    return made


def check_suffix(binding: Binding, params: OutputParams, target: Target | None) -> None:
    """Raise SaveError, before the model runs, if the results cannot be saved with the suffix of ``target``."""
    if target is not None and not target.folder:
        check_suffix_of(asked_results(binding, params), target.path, "; a folder ends with /")


def check_place(
    binding: Binding, params: OutputParams, target: Target | None, place: Georeference | None, *, tiles: bool
) -> None:
    """Raise, before the model runs, if the file of a result could not store ``place``, the input's georeference.

    Also raise if the file's format needs a missing package, or if a STAC item cannot be written for the results.

    Rasters of an input cut into `tiles` are joined in a GeoTIFF whatever the result's format is, so a GeoTIFF must be
    able to store the georeference then.
    """
    formats: list[str | None] = []
    for result in asked_results(binding, params):
        format_ = _checked_format(result, target, place)
        formats.append(format_)
        if params.stac_item and target is not None and format_ == _CATALOGUED_FORMAT:
            for writer in extensions("describe"):
                writer.spare(target.file_of(result))
        if place is not None and result.processor.modality == "raster" and (tiles or format_ == "tiff"):
            place.to_rasterio()
    if params.stac_item and _CATALOGUED_FORMAT not in formats and None not in formats:
        raise OptionError(
            f"stac_item describes GeoTIFFs, and the result is {', '.join(filter(None, formats))}; save it as .tif, or"
            " leave stac_item out",
            param="stac_item",
        )


def _checked_format(result: AskedResult, target: Target | None, place: Georeference | None) -> str | None:
    """Return the result's file format. Raise SaveError if the format cannot store ``place``, the georeference.

    Also raise SaveError if the format needs a missing package. Return None if ``target`` is None.
    """
    if target is None:
        return None
    formats = result.formats or {"": ""}
    format_ = formats.get(result.suffix(target.suffix).lower())
    if format_ is not None and format_ in FORMATS:
        FORMATS[format_].check_place(place, other_suffix(formats, format_))
    return format_
