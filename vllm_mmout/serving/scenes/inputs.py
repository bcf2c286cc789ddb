"""What a job keeps of its request until its turn comes: files, checked as far as that goes without the model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote, urlsplit

from vllm_mmout.raster.remote.address import is_address
from vllm_mmout.serving.named_file import printable
from vllm_mmout.serving.uploads import Upload

if TYPE_CHECKING:
    from vllm_mmout.serving.sources import Sources

_UNNAMED: Final = "scene"


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


def kept(images: Sequence[Upload | str], sources: Sources) -> SceneInputs:
    """Keep what a request holds; blocks.

    What it holds itself is checked, data URLs are decoded. Addresses are read when the job runs; those of files are
    looked at before as well.

    Args:
        images: of the request. Uploads stay its caller's until this returns.
        sources: what the server reads.

    Raises:
        InputError: a file is no image, or too large a one, or a text is no address that the server reads.

    """
    with ExitStack() as held:
        found: list[Upload | str] = []
        for image in images:
            if isinstance(image, Upload):
                held.callback(image.file.close)
                found.append(image)
            elif image[:5].lower() == "data:":
                file = held.enter_context(sources.open_text(image))
                size = file.seek(0, 2)
                found.append(Upload(file.name, file, size))
            else:
                found.append(image)
        uploads = [image for image in found if isinstance(image, Upload)]
        with sources.opened([image for image in found if not is_address(image)]):
            pass
        data = found[0] if len(found) == 1 else found
        nbytes = sum(upload.size for upload in uploads)
        return SceneInputs(data, _name(found[0]), nbytes, held.pop_all())


def _name(image: Upload | str) -> str:
    if isinstance(image, Upload):
        return printable(image.name) or _UNNAMED
    try:
        return printable(unquote(urlsplit(image).path)) or _UNNAMED
    except ValueError:
        return _UNNAMED
