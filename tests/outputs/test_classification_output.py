"""ClassificationOutput: the best classes, in JSON and on the picture."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pydantic", reason="pydantic comes with the engine")

from vllm_mmout.outputs import ClassificationOutput, Source
from vllm_mmout.outputs.rendering import default_palette

CLASSES = [{"id": 3, "label": "forest", "score": 0.75}, {"id": 1, "label": "water", "score": 0.25}]


def test_json_has_the_best_class_and_all() -> None:
    """The best label and its score stand beside the list; what is read back is equal."""
    output = ClassificationOutput(classes=CLASSES)
    assert json.loads(output.to_bytes()) == {"label": "forest", "score": 0.75, "classes": CLASSES}
    assert ClassificationOutput.model_validate_json(output.to_bytes()) == output


def test_no_class_is_a_result() -> None:
    """Without a class there is no label, no score and no caption."""
    output = ClassificationOutput(classes=[]).placed(Source(picture=lambda: Image.new("RGB", (64, 64), "grey")))
    assert json.loads(output.to_bytes()) == {"label": None, "score": None, "classes": []}
    assert output.image.getcolors() == [(4096, (128, 128, 128))]


@pytest.mark.parametrize("side", [64, 512])
def test_the_picture_shows_the_classes_in_their_colours(side: int) -> None:
    """Each class has a line with a square of its colour in the default palette."""
    output = ClassificationOutput(classes=CLASSES)
    pixels = np.asarray(output.placed(Source(picture=lambda: Image.new("RGB", (side, side), "grey"))).image)
    squares = [(pixels == default_palette(4)[number]).all(axis=2) for number in (3, 1)]
    assert all(square.sum() >= 9 for square in squares)
    assert np.nonzero(squares[0])[0].max() < np.nonzero(squares[1])[0].min()
