"""Where results go: the files that ``-o`` means, and the formats that their suffixes mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vllm_mmout.commands.run import out_file
from vllm_mmout.errors import OptionError, SaveError
from vllm_mmout.geo import atomic_file
from vllm_mmout.outputs.formats import SENT, Format, format_named
from vllm_mmout.outputs.formats.geotiff import geotiff_sidecars
from vllm_mmout.wings.jobs.client.jobs import Output


@dataclass(frozen=True, slots=True)
class Target:
    """What ``-o`` names."""

    path: Path
    folder: bool
    """Whether results lie in it, under the name of their input."""

    @classmethod
    def of(cls, out: str) -> Target:
        """The target of a text."""
        return cls(Path(out), folder=out_file(out) is None)

    def output_format(self, asked: str | None) -> str | None:
        """The ``output_format`` to ask for, where a user has asked for one beside ``-o``; None: the usual one."""
        known = self._format()
        if asked is None and known is None and not self.folder:
            suffixes = ", ".join(suffix for form in SENT.values() for suffix in form.suffixes)
            raise OptionError(
                f"-o {self.path}: a server makes no {self.path.suffix.lower()} (known: {suffixes}); choose one of"
                " these, or name the format with --output-format"
            )
        if asked is not None and known is not None and format_named(asked) != known:
            raise OptionError(
                f"-o {self.path} names {known.name}, and --output-format is {asked}; leave --output-format out"
            )
        return asked if known is None else known.name

    def files(self, stem: str, outputs: Sequence[Output]) -> list[Path]:
        """The file of each result, as ``vllm-mmout run`` names them; ``stem`` is the input's, for a folder."""
        for output in outputs:
            self._check(output)
        ends = [f"-{output.processor}" if len(outputs) > 1 else "" for output in outputs]
        if not self.folder:
            return [self.path.with_stem(f"{self.path.stem}{end}") for end in ends]
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SaveError(f"cannot make the folder {self.path}: {error.strerror}") from error
        names = [f"{stem or 'scene'}{end}{_suffix(output)}" for end, output in zip(ends, outputs, strict=True)]
        return [self.path / name for name in names]

    def _format(self) -> Format | None:
        """What the suffix of a file means."""
        form = None if self.folder else format_named(self.path.suffix)
        return form if form is not None and form.name in SENT else None

    def _check(self, output: Output) -> None:
        known = self._format()
        made = output.output_format
        # Of polygons JSON is GeoJSON.
        if known is not None and made != known.name and (made, known.name) != ("geojson", "json"):
            raise OptionError(
                f"the result is {made}, and -o {self.path} names {known.name}; name a file that ends in"
                f" {_suffix(output)}"
            )


def place(part: Path, target: Path, output: Output) -> None:
    """Give a whole download its name, and a GeoTIFF the names of its classes in a file beside it."""
    sidecars = geotiff_sidecars(output.class_names) if output.output_format == "tiff" else None
    with atomic_file(target, sidecars) as hidden:
        part.replace(hidden)


def _suffix(output: Output) -> str:
    """The usual suffix of a result's format."""
    return SENT[output.output_format].suffixes[0] if output.output_format in SENT else ".bin"
