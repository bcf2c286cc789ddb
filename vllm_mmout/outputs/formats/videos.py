"""Videos: MP4 by PyAV (FFmpeg), animated pictures by Pillow, and frames as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from vllm_mmout.errors import SaveError
from vllm_mmout.outputs.formats.arrays import save_arrays
from vllm_mmout.outputs.formats.pictures import settings_of

if TYPE_CHECKING:
    from PIL.Image import Image

    from vllm_mmout.outputs.formats import Format
    from vllm_mmout.outputs.video import VideoOutput

_CODEC = "libx264"
_X264 = {"crf": "18", "preset": "medium"}
"""A loss that is hardly seen."""
_BT709 = 1
"""ITU-T H.273: colour primaries, transfer and matrix of BT.709."""
_TICKS = {"gif": 100, "webp": 1000}
"""Steps of a second in which the duration of a frame is counted."""


def write_mp4(output: VideoOutput, file: BinaryIO, form: Format) -> None:
    """Write H.264 with 8 bits and half the resolution of colours (4:2:0), which everything plays."""
    av = _av(form)
    frames = output.frames
    try:
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream(_CODEC, rate=output.rate, options=_X264)
            stream.height, stream.width = (side + side % 2 for side in frames.shape[1:3])
            stream.pix_fmt = "yuv420p"
            context = stream.codec_context
            context.colorspace, context.color_primaries, context.color_trc = (_BT709,) * 3
            context.color_range = av.video.reformatter.ColorRange.MPEG
            for frame in frames:
                container.mux(stream.encode(_in_yuv(av, frame)))
            container.mux(stream.encode())
    except (av.FFmpegError, ValueError) as error:  # ValueError: an FFmpeg that was built without the codec
        raise SaveError(
            f"FFmpeg writes no H.264 of {len(frames)} frames of {output.width} x {output.height}: {error}; save it as"
            " .webp or .npz"
        ) from error


def write_animation(output: VideoOutput, file: BinaryIO, form: Format, **options: Any) -> None:
    """Write an animated GIF or WebP that plays for ever; ``quality`` of WebP as of pictures."""
    first, *others = _pictures(output)
    try:
        first.save(
            file,
            format=form.name.upper(),
            save_all=True,
            append_images=others,
            duration=_durations(output, form),
            loop=0,
            **settings_of(form, options.get("quality")),
        )
    except (KeyError, OSError, ValueError) as error:  # KeyError: a Pillow that was built without it
        raise SaveError(
            f"{form.title} cannot hold a video of {output.width} x {output.height}: {error}; save it as .mp4 or .npz"
        ) from error


def write_npz(output: VideoOutput, file: BinaryIO, _form: Format) -> None:
    """Write ``frames`` and ``fps``, compressed."""
    save_arrays(file, {"frames": output.frames, "fps": np.asarray(output.fps)})


def _in_yuv(av: Any, frame: NDArray[np.uint8]) -> Any:
    """One frame as the encoder takes it, odd sides continued by their last row or column."""
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    reformatter = av.video.reformatter
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24").reformat(
        format="yuv420p",
        dst_colorspace=reformatter.Colorspace.ITU709,
        dst_color_range=reformatter.ColorRange.MPEG,
    )


def _pictures(output: VideoOutput) -> Iterator[Image]:
    from PIL import Image

    return (Image.fromarray(np.ascontiguousarray(frame)) for frame in output.frames)


def _durations(output: VideoOutput, form: Format) -> list[int]:
    """Milliseconds of each frame, of which none is too far from its time."""
    ticks = _TICKS[form.name]
    ends = [round(number * ticks / output.rate) for number in range(len(output.frames) + 1)]
    return [max(1, end - start) * 1000 // ticks for start, end in pairwise(ends)]


def _av(form: Format) -> Any:
    try:
        import av
        import av.video.reformatter
    except ImportError as error:
        raise SaveError(f"saving {form.name} needs PyAV; {form.install}, or save as .webp, .gif or .npz") from error
    return av
