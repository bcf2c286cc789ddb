"""Choose the files and formats of downloaded results from ``-o`` and ``--output-format``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_mmout.commands.run import out_file
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import atomic_file
from vllm_mmout.outputs import RasterSeries
from vllm_mmout.outputs.formats import SENT, Format, format_named, is_folder_suffix, suffix_of, with_end
from vllm_mmout.outputs.formats.geotiff import geotiff_sidecars
from vllm_mmout.outputs.formats.qgis_style import qgis_style
from vllm_mmout.wings.jobs.client.jobs import JobOutput


@dataclass(frozen=True, slots=True)
class DownloadTarget:
    """Destination of downloaded results: the file or folder that the argument ``-o`` names."""

    path: Path
    folder: bool
    """Whether `path` is a folder. The result files in a folder are named after the input or the day."""

    @classmethod
    def of(cls, out: str) -> DownloadTarget:
        """Create the target from ``out``, the file or folder that the command-line argument ``-o`` names."""
        return cls(Path(out), folder=out_file(out) is None)

    def output_format(self, requested: str | None) -> str | None:
        """Return the format to request from the server, or None for the server's default.

        Args:
            requested: the value of ``--output-format``, or None.

        Raises:
            OptionError: the suffix of the file is unknown, or contradicts ``requested``.

        """
        suffix_format = self._format()
        if is_folder_suffix(suffix_of(self.path)) and not self.folder:
            raise OptionError(f"-o {self.path}: servers send such a result as one zip file; name it {self.path}.zip")
        if requested is None and suffix_format is None and not self.folder:
            suffixes = ", ".join(
                suffix for form in SENT.values() for suffix in form.suffixes if suffix not in form.folders
            )
            raise OptionError(
                f"-o {self.path}: servers do not write {self.path.suffix.lower()} files (known: {suffixes}); choose one"
                " of these suffixes, or name the format with --output-format"
            )
        if requested is not None and suffix_format is not None and format_named(requested) != suffix_format:
            raise OptionError(
                f"-o {self.path} means {suffix_format.name}, but --output-format is {requested}; leave --output-format"
                " out"
            )
        return requested if suffix_format is None else suffix_format.name

    def check_days(self) -> None:
        """Raise OptionError for ``--each-day`` if the target is a file that can hold only one map."""
        if not self.folder and suffix_of(self.path) not in RasterSeries.formats:
            raise OptionError(
                f"-o {self.path} names a file of one map, and --each-day makes a map of each day; name a folder, with a"
                " / at its end, or a Zarr store (.zarr.zip)"
            )

    def files(self, stem: str, outputs: Sequence[JobOutput]) -> list[Path]:
        """Return the path of the file for each result. If ``-o`` names a folder, create the folder.

        If one of several results has the format of the file's suffix, the others get the suffix of their own format.

        Args:
            stem: the input's name without suffix, after which results in a folder are named. Maps of each day are
                named after their days.
            outputs: the results.

        Raises:
            OptionError: no result has the format of the target's suffix, or the target is a file and there is a map of
                each day.
            SaveError: the folder cannot be created.

        """
        several = len({output.processor for output in outputs}) > 1
        ends = [f"-{output.processor}" if several else "" for output in outputs]
        if not self.folder:
            if any(output.day is not None for output in outputs):
                raise OptionError(
                    f"-o {self.path} names one file, and the job made a map of each day; name a folder, with a / at its"
                    " end"
                )
            suffixes = self._suffixes(outputs)
            return [with_end(self.path, end, suffix) for end, suffix in zip(ends, suffixes, strict=True)]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(f"cannot make the folder {self.path}: {error.strerror}") from error
        stems = [output.day or stem or "scene" for output in outputs]
        names = [f"{own}{end}{_suffix(output)}" for own, end, output in zip(stems, ends, outputs, strict=True)]
        return [self.path / name for name in names]

    def _format(self) -> Format | None:
        """Return the format for the target file's suffix, or None for a folder or an unknown suffix."""
        form = None if self.folder else format_named(suffix_of(self.path))
        return form if form is not None and form.name in SENT else None

    def _suffixes(self, outputs: Sequence[JobOutput]) -> list[str | None]:
        """Return a file suffix such as ".png" for each result. None means the suffix of the path in ``-o``.

        An unknown suffix fits results of one format.
        """
        form = self._format()
        if form is None:
            same = len({output.output_format for output in outputs}) == 1
            return [None if same else _suffix(output) for output in outputs]
        # A file of GeoJSON may also end in .json.
        fitting = {form.name, "geojson"} if form.name == "json" else {form.name}
        suffixes = [None if output.output_format in fitting else _suffix(output) for output in outputs]
        if None not in suffixes:
            made = " and ".join(dict.fromkeys(output.output_format for output in outputs))
            raise OptionError(
                f"the result is {made}, but -o {self.path} means {form.name}; name a file that ends in"
                f" {' or '.join(dict.fromkeys(filter(None, suffixes)))}"
            )
        return suffixes


def place(part: Path, target: Path, output: JobOutput) -> None:
    """Rename the download ``part`` to ``target``, and write the sidecar files of a GeoTIFF result.

    The sidecar files hold the class names and colours.
    """
    sidecars = None
    if output.output_format == "tiff":
        style = qgis_style(output.class_names, output.palette) if output.classes else None
        sidecars = geotiff_sidecars(target, output.class_names, style)
    with atomic_file(target, sidecars) as hidden:
        part.replace(hidden)


def _suffix(output: JobOutput) -> str:
    """Return the file name suffix for a result's format, such as ".png"."""
    return SENT[output.output_format].suffixes[0] if output.output_format in SENT else ".bin"
