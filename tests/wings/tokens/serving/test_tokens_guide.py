"""What docs/serving.md and ``/openapi.json`` say of models that generate tokens is what the server takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the server is vLLM's")

from vllm_mmout.wings.tokens.processors.prompt_template import FIELDS as PLACES
from vllm_mmout.wings.tokens.serving import fields
from vllm_mmout.wings.tokens.serving.fields import SAMPLING
from vllm_mmout.wings.tokens.serving.speech import RESPONSE_FORMATS

pytestmark = pytest.mark.engine
GUIDE = (Path(__file__).resolve().parents[4] / "docs" / "serving.md").read_text(encoding="utf-8")
TEXT = re.sub(r"^```.*?^```$", "", GUIDE, flags=re.MULTILINE | re.DOTALL)
"""Without its programs."""
SECTIONS = {part.partition("\n")[0].strip(): part for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)[1:]}


def names(text):
    """What stands there as code."""
    return re.findall(r"`([^`]+)`", text)


def table(section):
    """The fields of a table, with their values."""
    rows = re.findall(r"^\| (`.+?) \| (.*?) \|", SECTIONS[section], flags=re.MULTILINE)
    return {name: names(values) for fields, values in rows for name in names(fields)}


@pytest.mark.parametrize(
    ("section", "known", "also"),
    [("Pictures of texts", fields.IMAGES, set()), ("Speech", fields.SPEECH, {"voice"})],
)
def test_the_tables_have_every_field(section, known, also):
    """But those of sampling, which have a list, and those that are refused."""
    refused = {"stream", "partial_images"}
    assert set(table(section)) == {*known.options, *also} - SAMPLING.keys() - refused
    assert refused & set(known.options) <= set(names(SECTIONS[section]))


def test_the_list_of_sampling_fields_has_every_field():
    """In the order of their description."""
    listed = SECTIONS["Sampling"].partition("What is left out")[0]
    assert set(names(listed)) - {"extra_body"} == set(SAMPLING)


def test_formats_and_places_are_listed():
    """Of sounds, and of templates."""
    assert tuple(table("Speech")["response_format"]) == RESPONSE_FORMATS
    assert {f"{{{name}}}" for names_ in PLACES.values() for name in names_} <= set(names(SECTIONS["The prompt"]))
