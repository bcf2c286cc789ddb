"""Define the record of a job, as stored and as sent to clients, and the open input files of a job."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from vllm_mmout.geo import is_address, printable_name
from vllm_mmout.serving.inputs.uploads import Upload

if TYPE_CHECKING:
    from vllm_mmout.serving.inputs.sources import Sources

PREFIX: Final = "scene_"
"""Prefix of the ids of jobs that process a scene."""
AUTO: Final = "auto"
"""Value of a video's size or length that leaves the choice to the model."""
VIDEO_PREFIX: Final = "video_"
"""Prefix of the ids of jobs that make a video."""


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """One class of a result, as shown in a legend: its name, colour and area."""

    id: int
    name: str | None
    color: Annotated[str, msgspec.Meta(pattern="^#[0-9a-f]{6}$")]
    """Colour of the class in the preview of the result, as #rrggbb."""
    pixels: int
    """Number of pixels of the class."""
    share: float
    """Fraction of the classified pixels that belong to the class, from 0 to 1."""
    area_m2: float | None
    """Area of the class in square metres, or None if it is not known."""


class OutputRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a job, as the server describes it to clients."""

    processor: str
    """Name of the output processor that made the result.

    If a request asks one processor for several kinds of output, this is the kind, such as "polygons"."""
    day: str | None = None
    """Day that the result shows, such as "2024-06-01". None if the job does not make a separate map of each day."""
    output_format: str
    media_type: str
    bytes: int
    size: str | None
    """Size in pixels as WIDTHxHEIGHT, or None if the result is not a grid of pixels."""
    classes: tuple[ClassRow, ...] | None
    """Classes of the result, or None if its pixels are not classes."""
    stored: str
    """Name of the result file in the result store. Clients can download the file at ``/v1/images/results/NAME``."""

    @property
    def query(self) -> dict[str, str]:
        """Query parameters that choose this result of the job."""
        return {"processor": self.processor} | ({} if self.day is None else {"day": self.day})

    @property
    def label(self) -> str:
        """Name that distinguishes this result from other results of the job, such as "areas-2024-06-01"."""
        return "-".join(self.query.values())


class SceneOutput(OutputRow, frozen=True, kw_only=True):
    """Result of a job as the database stores it. Clients see only the fields of `OutputRow`."""

    preview: str | None
    """Name of the preview file in the result store, or None if a preview was not made."""
    seconds: str | None = None
    """Length in seconds, if the result is a video."""
    assumed: tuple[str, ...] = ()
    """Sentences about defaults that were assumed because the input lacks metadata."""

    @property
    def files(self) -> list[str]:
        """Names of this result's files in the result store: the result itself, and the preview if it exists."""
        return [self.stored] if self.preview is None else [self.stored, self.preview]


class SceneError(msgspec.Struct, frozen=True):
    """The error of a failed job."""

    code: str
    message: str


class VideoSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Prompt, size and length that a client requested for a video. Responses about the job repeat them."""

    prompt: str = ""
    size: str = AUTO
    """Size in pixels as WIDTHxHEIGHT, or `AUTO`."""
    seconds: str = AUTO
    """Length of the video in seconds, such as "5", or `AUTO`."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """Requested form of a job's results in OGC API Processes. The fields choose files or JSON, and data or URLs."""

    document: bool = False
    """Whether the client wants one JSON document with all results, instead of files."""
    references: tuple[str, ...] = ()
    """Names (`OutputRow.processor`) of the results that are sent as URLs. All other results are sent as data."""


class SceneJob(msgspec.Struct, frozen=True, kw_only=True):
    """State of a job at one moment, as the database stores it. Times are in seconds since 1970."""

    id: str
    server: str
    """Name of the server that runs the job. Servers that share a results folder have different names."""
    model: str
    name: str
    """Name that the client gave to the input, such as "scene.tif"."""
    nbytes: int
    """Size of the uploaded files in bytes. The files are kept until the job ends."""
    created_at: float
    status: Literal["queued", "in_progress", "completed", "failed"] = "queued"
    tiles_done: int = 0
    tiles_total: int | None = None
    started_at: float | None = None
    completed_at: float | None = None
    """Time when the job completed or failed."""
    expires_at: float | None = None
    outputs: tuple[SceneOutput, ...] = ()
    """Results of the job. Empty until all results are computed."""
    error: SceneError | None = None
    request: str | None = None
    """Client's request as JSON, from which another server can restart the job.

    None if the request has uploaded files, or if the job has ended."""
    starts: int = 0
    """Number of times that a server has started the job."""
    video: VideoSettings | None = None
    """Settings of a video job, or None if the job processes a scene."""
    delivery: Delivery | None = None
    """Requested form of the results if the job was created through OGC API Processes. None for other jobs."""

    @property
    def finished(self) -> bool:
        """Whether the job has completed or failed. Its state then no longer changes."""
        return self.status in ("completed", "failed")

    def name_of(self, output: SceneOutput) -> str:
        """Return the name to show for a result: the day of the result, or the input's name if the day is unknown."""
        return output.day or self.name

    @property
    def stored(self) -> list[str]:
        """File names of all results and previews of the job in the result store."""
        return [name for output in self.outputs for name in output.files]

    def described(self) -> dict[str, Any]:
        """Return the JSON description of the job that the server sends to clients."""
        tiles = None if self.tiles_total is None else {"done": self.tiles_done, "total": self.tiles_total}
        times = {name: getattr(self, name) for name in ("created_at", "started_at", "completed_at", "expires_at")}
        return {
            "id": self.id,
            "object": "scene",
            "model": self.model,
            "name": self.name,
            "status": self.status,
            "progress": self.percent,
            "tiles": tiles,
            **{name: None if seconds is None else int(seconds) for name, seconds in times.items()},
            "outputs": [
                {name: output[name] for name in OutputRow.__struct_fields__}
                for output in (msgspec.to_builtins(self.outputs) if self.status == "completed" else ())
            ],
            "error": msgspec.to_builtins(self.error),
            "warnings": list(dict.fromkeys(text for output in self.outputs for text in output.assumed)),
        }

    @property
    def percent(self) -> int:
        """Progress of the job in percent. 100 means completed."""
        if self.status == "completed":
            return 100
        return min(99, 100 * self.tiles_done // self.tiles_total) if self.tiles_total else 0


@dataclass(frozen=True, slots=True)
class SceneInputs:
    """Uploaded files and URLs that a job takes as input. The uploaded files stay open until the job ends."""

    data: Any
    """Uploaded file or URL of the input, or a list of them. None if a video is made from text alone."""
    name: str
    """Name that the client gave to the first input file, such as "scene.tif"."""
    nbytes: int
    """Total size of the uploaded files in bytes."""
    held: ExitStack
    """Exit stack that closes the uploaded files of this input."""


def keep_inputs(images: Sequence[Upload | str], sources: Sources, *, skip_failed: bool = False) -> SceneInputs:
    """Check the input files of a request, and keep uploaded files open until the job ends. The call blocks.

    Uploaded files stay open without a name on disk, so that a server that is killed leaves no files behind. In return
    no other server can start such a job again, as it could a job whose inputs are URLs.

    Uploaded files and files on the server are opened once to check them. Data URLs are decoded. Other URLs are read
    only when the job runs. If ``skip_failed`` is True, a file that cannot be opened is left to the job, too.
    """
    with ExitStack() as held:
        kept_images: list[Upload | str] = []
        for image in images:
            if isinstance(image, Upload):
                held.callback(image.file.close)
            elif image[:5].lower() == "data:":
                file = held.enter_context(sources.open_text(image))
                image = Upload(file.name, file, file.seek(0, 2))  # noqa: PLW2901
            kept_images.append(image)
        with sources.opened([image for image in kept_images if not is_address(image)], skip_failed=skip_failed):
            pass
        nbytes = sum(image.size for image in kept_images if isinstance(image, Upload))
        return SceneInputs(
            kept_images[0] if len(kept_images) == 1 else kept_images, _name(kept_images[0]), nbytes, held.pop_all()
        )


def _name(image: Upload | str) -> str:
    try:
        name = image.name if isinstance(image, Upload) else unquote(urlsplit(image).path)
    except ValueError:
        name = ""
    return printable_name(name) or "scene"
