"""Pictures of a token model that come as events, by OpenAI's own client."""

from __future__ import annotations

import base64
import io

import numpy as np
import openai
import pytest
from asked_server import metric
from PIL import Image

pytestmark = pytest.mark.engine
GREY = 128


def pixels(event):
    """The picture of an event: [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(event.b64_json))).convert("RGB"))


def test_previews_have_the_rows_that_are_whole(drawing_client, leave):
    """At full size, the rest grey; then the picture that comes without events, and what was used."""
    asked = {"prompt": "held", "size": "16x16", "extra_body": {"seed": 4}}
    leave.touch()
    (entry,) = drawing_client.images.generate(**asked).data
    leave.unlink()
    events = []
    for event in drawing_client.images.generate(**asked, stream=True, partial_images=3):
        events.append(event)
        leave.touch()
    *previews, last = events
    assert [event.type for event in previews] == ["image_generation.partial_image"] * len(previews)
    assert [event.partial_image_index for event in previews] == list(range(len(previews)))
    assert 1 <= len(previews) <= 3
    whole = [0]
    for event in previews:
        picture = pixels(event)
        assert picture.shape == (16, 16, 3)
        whole.append(int((picture != GREY).any(axis=(1, 2)).sum()))
    assert whole == sorted(set(whole))
    assert whole[-1] < 16
    assert last.type == "image_generation.completed"
    assert last.b64_json == entry.b64_json
    assert last.usage.output_tokens == 8 * 9 + 1


def test_a_stream_without_previews(drawing_client):
    """Only the picture; one that ended early says so."""
    (last,) = drawing_client.images.generate(prompt="a lake", stream=True, extra_body={"max_tokens": 13})
    assert last.type == "image_generation.completed"
    assert last.partial is True


def test_no_picture_is_an_error(drawing_client, drawing_server):
    """With a status of its own: nothing was sent before."""
    with pytest.raises(openai.UnprocessableEntityError, match="gave no picture"):
        list(drawing_client.images.generate(prompt="nothing", stream=True, extra_body={"max_tokens": 13}))
    assert metric(drawing_server, "vllm:num_requests_running") == 0
