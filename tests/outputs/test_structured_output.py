"""StructuredOutput: typed fields that become JSON, and a picture over the input."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vllm_mmout.errors import SaveError

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.outputs import Source, StructuredOutput


class Count(StructuredOutput):
    ships: int
    areas: tuple[float, ...] = ()


class Framed(StructuredOutput):
    """Draws a red line along the upper edge."""

    def draw(self, picture: Image.Image) -> Image.Image:
        picture.paste((255, 0, 0), (0, 0, picture.width, 1))
        return picture


def grey() -> Image.Image:
    return Image.new("RGB", (120, 80), (90, 90, 90))


def test_fields_are_checked_and_written_as_json(tmp_path: Path) -> None:
    """The file holds the fields; neither the path nor the input is one."""
    output = Count(ships=3, areas=(1.5,)).placed(Source(size=(80, 120), picture=grey))
    output.path = "somewhere"
    assert json.loads(output.save(tmp_path / "count.json").read_text()) == {"ships": 3, "areas": [1.5]}
    assert Count.model_validate_json(output.to_bytes()).ships == 3
    assert output.path == "somewhere"
    assert Count(ships=1).path is None
    assert set(Count.model_json_schema()["properties"]) == {"ships", "areas"}
    with pytest.raises(ValueError, match="valid integer"):
        Count(ships="many")


def test_the_input_is_no_part_of_the_result() -> None:
    """Results are equal by their fields wherever they lie; placing one leaves the original as it was."""
    output = Count(ships=3)
    placed = output.placed(Source(picture=grey))
    assert placed == output == output.placed(Source(size=(3, 4)))
    assert placed != Count(ships=4).placed(Source(picture=grey))
    assert repr(placed) == repr(output) == "Count(ships=3, areas=())"
    assert (output._repr_png_(), type(placed._repr_png_())) == (None, bytes)


def test_copies_lie_on_the_same_input() -> None:
    """A copy and a pickled result still know their input."""
    placed = Count(ships=3).placed(Source(size=(80, 120), picture=grey))
    for copy in (placed.model_copy(update={"ships": 4}), pickle.loads(pickle.dumps(placed))):  # noqa: S301 - our own
        assert copy.image.size == (120, 80)


def test_the_fields_are_a_caption_by_default() -> None:
    """The picture is the input's, with text in its lower left corner; the input's own picture stays clean."""
    shared = grey()
    image = Count(ships=3).placed(Source(picture=lambda: shared)).image
    assert (image.mode, image.size) == ("RGB", (120, 80))
    changed = (np.asarray(image) != np.asarray(shared)).any(axis=2)
    assert changed[-20:, :40].any()
    assert not changed[:40].any()
    assert shared.tobytes() == grey().tobytes()


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "I;16"])
def test_pictures_of_any_kind_become_rgb(mode: str) -> None:
    """A picture of the input in another mode is drawn upon in colour."""
    image = Framed().placed(Source(picture=lambda: Image.new(mode, (8, 8)))).image
    assert image.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(image)[0], [[255, 0, 0]] * 8)


@pytest.mark.parametrize(("suffix", "name"), [("png", "PNG"), ("jpg", "JPEG"), ("jpeg", "JPEG"), ("webp", "WEBP")])
def test_pictures_are_saved_in_the_format_of_the_suffix(tmp_path: Path, suffix: str, name: str) -> None:
    """Pillow reads back what `draw` drew; notebooks show the same."""
    output = Framed().placed(Source(picture=grey))
    with Image.open(output.save(tmp_path / f"a.{suffix}")) as image:
        assert (image.format, image.size) == (name, (120, 80))
        image.load()
    if name == "PNG":
        assert image.tobytes() == output.image.tobytes() == Image.open(BytesIO(output._repr_png_())).tobytes()
    elif name == "JPEG":
        assert len(output.to_bytes("jpeg", quality=10)) < len(output.to_bytes("jpeg", quality=95))


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (Count(ships=1), "it has no input"),
        (Count(ships=1).placed(Source(size=(3, 4))), "its input has no picture"),
    ],
)
def test_without_a_picture_the_error_says_what_to_do(tmp_path: Path, output: Count, why: str) -> None:
    """Image and files of pictures name what is missing and the ways out; nothing is written."""
    words = rf"this Count cannot be drawn: {why}; give it an input with placed\(Source\(picture=...\)\), or save it as"
    with pytest.raises(SaveError, match=words):
        _ = output.image
    with pytest.raises(SaveError, match=words):
        output.save(tmp_path / "a.png")
    assert list(tmp_path.iterdir()) == []
    assert output._repr_png_() is None


def test_other_formats_are_refused(tmp_path: Path) -> None:
    """An unknown suffix, format or option is an error that lists the known ones; nothing is written."""
    with pytest.raises(SaveError, match=r"suffix '\.txt' is unknown \(known: \.json, \.png, \.webp, \.jpg, \.jpeg.*\)"):
        Count(ships=1).save(tmp_path / "a.txt")
    with pytest.raises(SaveError, match=r"Count cannot be written as 'xml' \(known: json, png, webp, jpeg.*\)"):
        Count(ships=1).to_bytes("xml")
    with pytest.raises(SaveError, match="json takes no options, got indent"):
        Count(ships=1).save(tmp_path / "a.json", indent=3)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.heavy
def test_without_pydantic_the_error_names_it() -> None:
    """Only structured outputs ask for pydantic, and say where it comes from."""
    code = (
        "import sys; sys.modules['pydantic'] = None\n"
        "from vllm_mmout.outputs import ImageOutput, RasterOutput, Source, TensorOutput\n"
        "for name in ('StructuredOutput', 'ClassificationOutput', 'DetectionOutput'):\n"
        "    try: exec(f'from vllm_mmout.outputs import {name}')\n"
        "    except ModuleNotFoundError as error: print(error, error.name)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = result.stdout.splitlines()
    assert len(lines) == 3
    for line in lines:
        assert line.startswith("StructuredOutput needs pydantic, which comes with the engine; pip install")
        assert line.endswith("pydantic")
