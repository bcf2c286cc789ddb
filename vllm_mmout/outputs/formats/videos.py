"""Write videos as MP4 (with PyAV), as animated GIF or WebP (with Pillow), or as .npz with all frames."""

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
"""Options of the x264 encoder. They make the loss of quality hardly visible."""
_BT709 = 1
"""Code of the colour standard BT.709 (ITU-T H.273), for the colour primaries, transfer function and matrix of MP4."""
_TICKS = {"gif": 100, "webp": 1000}
"""Maps formats to clock ticks per second. The duration of a frame is a whole number of ticks."""


def write_mp4(output: VideoOutput, file: BinaryIO, form: Format) -> None:
    """Write a video as an MP4 file with H.264, 8 bits per sample and 4:2:0 chroma subsampling, for any player."""
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
    except (av.FFmpegError, ValueError) as error:  # ValueError if FFmpeg was built without the codec
        raise SaveError(
            f"FFmpeg cannot write H.264 of {len(frames)} frames of {output.width} x {output.height}: {error}; save it"
            " as .webp or .npz"
        ) from error


def write_animation(output: VideoOutput, file: BinaryIO, form: Format, **options: Any) -> None:
    """Write an animated GIF or WebP that loops forever. WebP has the option ``quality``, 1 to 100, by default 90."""
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
    except (KeyError, OSError, ValueError) as error:  # KeyError if Pillow was built without the format
        raise SaveError(
            f"{form.title} cannot hold a video of {output.width} x {output.height}: {error}; save it as .mp4 or .npz"
        ) from error


def write_npz(output: VideoOutput, file: BinaryIO, _form: Format) -> None:
    """Write the frames and the frame rate of a video to a compressed .npz file."""
    save_arrays(file, {"frames": output.frames, "fps": np.asarray(output.fps)})


def _in_yuv(av: Any, frame: NDArray[np.uint8]) -> Any:
    """Convert a frame to YUV 4:2:0 for the encoder. An odd side is made even by repeating its last row or column."""
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
    """Return the duration of each frame in milliseconds.

    The end times of frames are rounded, not the durations. Thus rounding errors do not add up.
    """
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
