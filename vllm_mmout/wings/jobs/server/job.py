"""SceneJob: what is known of a job, as the database keeps it and as clients are told; and its input, until it ends."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from vllm_mmout.geo import is_address, printable_name
from vllm_mmout.serving.inputs.sources import Upload

if TYPE_CHECKING:
    from vllm_mmout.serving.inputs.sources import Sources

PREFIX: Final = "scene_"
"""What the id of a job begins with."""
AUTO: Final = "auto"
"""What a client left to the model."""
VIDEO_PREFIX: Final = "video_"
"""The same of one that makes a video."""


class ClassRow(msgspec.Struct, frozen=True, kw_only=True):
    """One class of a result: its place in the legend, and how much it covers."""

    id: int
    name: str | None
    color: Annotated[str, msgspec.Meta(pattern="^#[0-9a-f]{6}$")]
    """As in the picture of the result."""
    pixels: int
    share: float
    """Of all pixels that have a class, from 0 to 1."""
    area_m2: float | None


class OutputRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result of a job, as clients are told of it."""

    processor: str
    output_format: str
    media_type: str
    bytes: int
    size: str | None
    """Width x height."""
    classes: tuple[ClassRow, ...] | None


class SceneOutput(OutputRow, frozen=True, kw_only=True):
    """One result of a job, with what it is called in the store."""

    stored: str
    """Its name in the store of results."""
    preview: str | None
    """That of its picture; None where it has none."""
    seconds: str | None = None
    """How long a video is."""
    assumed: tuple[str, ...] = ()
    """What was assumed about the input, in sentences."""

    @property
    def files(self) -> list[str]:
        """The names of both."""
        return [self.stored] if self.preview is None else [self.stored, self.preview]


class SceneError(msgspec.Struct, frozen=True):
    """Why a job failed."""

    code: str
    message: str


class VideoAsked(msgspec.Struct, frozen=True, kw_only=True):
    """What a client asked of a video, as it is told again."""

    prompt: str = ""
    size: str = AUTO
    """WIDTHxHEIGHT, or `AUTO`."""
    seconds: str = AUTO
    """A number, or `AUTO`."""


class SceneJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job, at one moment. Times are in seconds since 1970."""

    id: str
    server: str
    """The server that runs it, by its name in `ResultsFolder`."""
    model: str
    name: str
    """The client's name for its input."""
    nbytes: int
    """Bytes of its input that the server holds until it ends."""
    created_at: float
    status: Literal["queued", "in_progress", "completed", "failed"] = "queued"
    tiles_done: int = 0
    tiles_total: int | None = None
    started_at: float | None = None
    completed_at: float | None = None
    """When it was completed, or failed."""
    expires_at: float | None = None
    outputs: tuple[SceneOutput, ...] = ()
    """Of one that is not completed: those that are being stored."""
    error: SceneError | None = None
    request: str | None = None
    """The `KeptRequest` of one that another server can start again, as JSON; until it is finished."""
    starts: int = 0
    """How often a server has begun to run it."""
    video: VideoAsked | None = None
    """None: it makes no video, but is of a scene."""

    @property
    def finished(self) -> bool:
        """Whether it will not change any more."""
        return self.status in ("completed", "failed")

    @property
    def stored(self) -> list[str]:
        """The names of its results, and of their pictures, in the store."""
        return [name for output in self.outputs for name in output.files]

    def described(self) -> dict[str, Any]:
        """The job as clients are told of it."""
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
        """How much is done; 100 only when it is completed."""
        if self.status == "completed":
            return 100
        return min(99, 100 * self.tiles_done // self.tiles_total) if self.tiles_total else 0


@dataclass(frozen=True, slots=True)
class SceneInputs:
    """The input of a job that waits."""

    data: Any
    """A file or an address, or a list of them."""
    name: str
    """What the client calls the first one."""
    nbytes: int
    """Bytes that are held."""
    held: ExitStack
    """Closes the files."""


def keep_inputs(images: Sequence[Upload | str], sources: Sources) -> SceneInputs:
    """Keep what a request holds; blocks.

    Files wait open and without a name on disk, so that nothing is left of a server that is killed; the price is that no
    other server can start such jobs again, as it can those of addresses.

    What it holds itself is checked, data URLs are decoded. Addresses are read when the job runs; those of files are
    looked at before as well.
    """
    with ExitStack() as held:
        kept: list[Upload | str] = []
        for image in images:
            if isinstance(image, Upload):
                held.callback(image.file.close)
            elif image[:5].lower() == "data:":
                file = held.enter_context(sources.open_text(image))
                image = Upload(file.name, file, file.seek(0, 2))  # noqa: PLW2901
            kept.append(image)
        with sources.opened([image for image in kept if not is_address(image)]):
            pass
        nbytes = sum(image.size for image in kept if isinstance(image, Upload))
        return SceneInputs(kept[0] if len(kept) == 1 else kept, _name(kept[0]), nbytes, held.pop_all())


def _name(image: Upload | str) -> str:
    try:
        name = image.name if isinstance(image, Upload) else unquote(urlsplit(image).path)
    except ValueError:
        name = ""
    return printable_name(name) or "scene"
