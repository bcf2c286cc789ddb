"""The header Accept: which format it asks for."""

from __future__ import annotations

import pytest

from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.response.format_choice import PICTURE, accepted
from vllm_mmout.serving.response.result_files import MEDIA_TYPES

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        " ",
        "*/*",
        "application/json",
        "application/*",
        "text/event-stream",
        "application/json, image/tiff",
        "image/tiff;q=0.5, application/json",
        "image/tiff;q=0, */*",
        "Application/JSON; charset=utf-8",
        "text/html, */*;q=0.1",
        "image/tiff;q=high, */*",
        "image/tiff;q=7, */*",
    ],
)
def test_what_takes_json_gets_json(header):
    """Clients that name JSON first, everything, or no known format that they want, get the JSON answer."""
    assert accepted(header) is None


@pytest.mark.parametrize("name", [name for name in MEDIA_TYPES if name != "json"])
def test_each_format_is_asked_for_by_its_media_type(name):
    """A media type of ours alone asks for its format."""
    assert accepted(MEDIA_TYPES[name]) == name


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("image/tiff, application/json", "tiff"),
        ("IMAGE/TIFF; application=geotiff", "tiff"),
        ("image/png;q=0.3, image/webp;q=0.9, */*;q=0.1", "webp"),
        ("image/png;q=0.001", "png"),
        ("text/html, image/webp;q=1.000", "webp"),
        ("image/jpg", "jpeg"),
        ("image/*", PICTURE),
        ("image/*, image/webp", "webp"),
        ("*/*, image/tiff", "tiff"),
        ("image/jpeg ; q = 0.5 , image/png; q=0.4", "jpeg"),
        (",, image/png,", "png"),
    ],
)
def test_the_most_wanted_counts(header, name):
    """The highest weight wins; of equal ones the more precise, then the first."""
    assert accepted(header) == name


@pytest.mark.parametrize("header", ["text/html", "image/bmp", "image/png;q=0", "nonsense", ";", "image/tiff;q=-1"])
def test_what_cannot_be_served_is_refused(header):
    """A client that wants none of our formats is told which there are."""
    with pytest.raises(ApiError, match=r"Accept asks for .*application/json, image/png") as raised:
        accepted(header)
    assert raised.value.status == 406
    assert raised.value.param == "Accept"


def test_a_long_header_is_not_given_back_whole():
    """The error quotes the beginning of the header."""
    with pytest.raises(ApiError) as raised:
        accepted("x" * 100_000)
    assert len(raised.value.message) < 1000
