"""VideoOutput: videos in every format, with PyAV, Pillow and NumPy as oracles."""

from __future__ import annotations

import base64
import re
from fractions import Fraction
from io import BytesIO

import numpy as np
import pytest
from PIL import Image, ImageSequence

from vllm_mmout.errors import InputError, SaveError
from vllm_mmout.outputs import ImageOutput, VideoOutput

av = pytest.importorskip("av", reason="the oracle is PyAV")


def moving(count: int, height: int, width: int) -> np.ndarray:
    """Smooth colours that change from frame to frame, uint8 [frames, height, width, 3]."""
    frame, row, col = np.mgrid[:count, :height, :width]
    waves = (np.sin(col / 9 + frame / 3), np.cos(row / 7), np.sin((row + col) / 11 - frame / 2))
    return ((np.stack(waves, -1) + 1) * 127.5).astype(np.uint8)


def decoded(data: bytes) -> tuple[np.ndarray, av.video.stream.VideoStream]:
    """The frames of a file, as FFmpeg reads them, and its one stream."""
    with av.open(BytesIO(data)) as container:
        (stream,) = container.streams
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]), stream


@pytest.mark.parametrize(("height", "width"), [(64, 96), (33, 48), (48, 33), (1, 1), (31, 77)])
def test_an_mp4_has_the_frames_in_their_colours(height: int, width: int) -> None:
    """All frames, in their order, at their rate, hardly changed; odd sides have their last row or column twice."""
    frames = moving(7, height, width)
    found, stream = decoded(VideoOutput(frames, 12.5).to_bytes("mp4"))
    assert found.shape == (7, height + height % 2, width + width % 2, 3)
    assert (stream.codec_context.name, stream.average_rate, stream.frames) == ("h264", Fraction(25, 2), 7)
    assert stream.codec_context.pix_fmt == "yuv420p"
    assert float(stream.duration * stream.time_base) == pytest.approx(7 / 12.5)
    expected = np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    wrong = np.abs(found[:, np.newaxis].astype(int) - expected).mean((2, 3, 4))
    assert np.diagonal(wrong).max() < 6
    assert min(height, width) == 1 or np.array_equal(wrong.argmin(1), range(7))


def test_colours_are_said_to_be_those_of_bt709() -> None:
    """A plain colour comes back as it was, also where a player goes by what the file says."""
    plain = np.full((2, 64, 64, 3), (200, 30, 90), np.uint8)
    found, stream = decoded(VideoOutput(plain, 24).to_bytes("mp4"))
    assert np.abs(found.astype(int) - plain).max() <= 3
    context = stream.codec_context
    assert (context.colorspace, context.color_primaries, context.color_trc, context.color_range) == (1, 1, 1, 1)


@pytest.mark.parametrize(
    ("fps", "rate"),
    [
        (24, Fraction(24)),
        (29.97, Fraction(30000, 1001)),
        (23.976, Fraction(24000, 1001)),
        (Fraction(60000, 1001), Fraction(60000, 1001)),
        (0.01, Fraction(1, 100)),
        (7.5, Fraction(15, 2)),
        (1000, Fraction(1000)),
    ],
)
def test_rates_are_taken_as_they_are_meant(fps: float, rate: Fraction) -> None:
    """Those of broadcasts are exact, however they are rounded."""
    output = VideoOutput(moving(3, 16, 16), fps)
    assert (output.rate, output.duration) == (rate, pytest.approx(3 / float(rate)))
    assert decoded(output.to_bytes("mp4"))[1].average_rate == rate


def test_an_animated_webp_is_played_as_a_picture() -> None:
    """Every frame for its time, over and over; the better the quality the larger."""
    frames = moving(6, 33, 48)
    output = VideoOutput(frames, 30)
    data = output.to_bytes("webp", quality=95)
    with Image.open(BytesIO(data)) as picture:
        found, times = zip(
            *((np.asarray(one.convert("RGB")), one.info["duration"]) for one in ImageSequence.Iterator(picture)),
            strict=True,
        )
        assert picture.info["loop"] == 0
    assert times == (33, 34, 33, 33, 34, 33)
    assert np.abs(np.stack(found).astype(int) - frames).mean() < 6
    assert len(data) > len(output.to_bytes("webp", quality=10))


def test_a_gif_has_each_frame_for_its_time() -> None:
    """In steps of 10 ms, of which none is far from the time that it stands for."""
    frames = moving(7, 24, 40)
    with Image.open(BytesIO(VideoOutput(frames, 16).to_bytes("gif"))) as picture:
        assert (picture.n_frames, picture.size, picture.info["loop"]) == (7, (40, 24), 0)
        shown = [(np.asarray(one.convert("RGB")), one.info["duration"]) for one in ImageSequence.Iterator(picture)]
    assert sum(time for _, time in shown) == pytest.approx(7 / 16 * 1000, abs=10)
    assert np.abs(np.stack([frame for frame, _ in shown]).astype(int) - frames).mean() < 12


def test_an_npz_holds_every_sample() -> None:
    """Nothing is lost of the frames and their rate."""
    frames = np.random.default_rng(1).integers(0, 256, (3, 5, 7, 3), np.uint8)
    with np.load(BytesIO(VideoOutput(frames, 23.976).to_bytes("npz"))) as arrays:
        np.testing.assert_array_equal(arrays["frames"], frames, strict=True)
        assert float(arrays["fps"]) == 23.976


def test_it_is_saved_by_the_suffix_of_a_name(tmp_path) -> None:
    """As all outputs are."""
    output = VideoOutput(moving(2, 16, 16), 8)
    for suffix in output.formats:
        assert output.save(tmp_path / f"video{suffix}").stat().st_size > 100
    with pytest.raises(SaveError, match=r"known: \.mp4, \.webp, \.npz, \.gif"):
        output.save(tmp_path / "video.avi")
    with pytest.raises(SaveError, match="mp4 has no quality; leave it out, or save as WebP"):
        output.to_bytes("mp4", quality=50)


def test_a_notebook_shows_a_player() -> None:
    """The bytes of the MP4 stand in the page."""
    output = VideoOutput(moving(3, 16, 24), 8)
    found = re.fullmatch(r'<video controls loop src="data:video/mp4;base64,([\w+/=]+)"></video>', output._repr_html_())
    assert found is not None
    assert decoded(base64.b64decode(found[1]))[0].shape == (3, 16, 24, 3)
    assert repr(output) == "VideoOutput(0.375 s, 24 x 16, 8 fps)"


def test_the_first_frame_is_a_picture() -> None:
    """As Pillow has it."""
    frames = moving(2, 5, 6)
    output = VideoOutput(frames, 8)
    np.testing.assert_array_equal(np.asarray(output.image), frames[0])
    assert (output.width, output.height, output.image.mode) == (6, 5, ImageOutput(frames[0]).mode)


@pytest.mark.parametrize(
    "frames",
    [
        np.zeros((2, 4, 4), np.uint8),
        np.zeros((2, 3, 4, 4), np.uint8),
        np.zeros((0, 4, 4, 3), np.uint8),
        np.zeros((2, 4, 4, 3), np.float32),
    ],
)
def test_other_arrays_are_refused(frames: np.ndarray) -> None:
    """An error says what is taken, and what was given."""
    with pytest.raises(InputError, match=r"uint8 \[frames, height, width, 3\], not empty; got (uint8|float32) \["):
        VideoOutput(frames, 8)


@pytest.mark.parametrize("fps", [0, -1, 1001, float("nan"), float("inf"), "8", True, None])
def test_other_rates_are_refused(fps: object) -> None:
    """A rate is a number within bounds."""
    with pytest.raises(InputError, match=r"fps must be a number of 0\.01 to 1000 frames a second"):
        VideoOutput(np.zeros((1, 2, 2, 3), np.uint8), fps)  # type: ignore[arg-type]


def test_without_pyav_an_mp4_says_what_to_install(monkeypatch) -> None:
    """And what can be saved without it, which works."""
    output = VideoOutput(moving(2, 16, 16), 8)
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    with pytest.raises(SaveError, match=r'needs PyAV; pip install "vllm-mmout\[video\]", or save as \.webp'):
        output.to_bytes("mp4")
    assert output.to_bytes("webp")[:4] == b"RIFF"


def test_what_h264_cannot_hold_is_said() -> None:
    """An error of the encoder's names the sizes, and no half of a file is left."""
    with pytest.raises(SaveError, match=r"cannot write H\.264 of 1 frames of 20000 x 2"):
        VideoOutput(np.zeros((1, 2, 20000, 3), np.uint8), 8).to_bytes("mp4")
