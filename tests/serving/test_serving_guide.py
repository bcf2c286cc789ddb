"""What docs/serving.md says of flags, fields, options, formats, errors and metrics is what the server has."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pytest

pytest.importorskip("vllm", reason="the server is vLLM's")

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from vllm_mmout.serving import errors
from vllm_mmout.serving.metrics import collectors
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.fields import FIELDS, OPTIONS
from vllm_mmout.serving.response.format_choice import accepted
from vllm_mmout.serving.response.result_files import MEDIA_TYPES
from vllm_mmout.wings.jobs.server.runner import unfinished_jobs

pytestmark = pytest.mark.engine
DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDE = (DOCS / "serving.md").read_text(encoding="utf-8")
FORMATS = (DOCS / "formats.md").read_text(encoding="utf-8")
SECTIONS = {part.partition("\n")[0].strip(): part for part in re.split(r"^## ", GUIDE, flags=re.MULTILINE)[1:]}
"""Heading -> text."""


def rows(section):
    """The cells of a table's rows, of which the first is code."""
    found = re.findall(r"^\| (`.+) \|$", SECTIONS[section], flags=re.MULTILINE)
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)] for row in found]


def names(cell):
    """What stands in a cell as code."""
    return re.findall(r"`([^`]+)`", cell)


def test_the_table_of_limits_has_every_flag_with_its_default():
    """A flag that nobody reads of protects nobody who needs another limit."""
    parser = argparse.ArgumentParser(add_help=False)
    ServingOptions.add_arguments(parser)
    defaults = {action.option_strings[0]: action.default for action in parser._actions}
    words = {"--mmout-results-dir": "a temporary folder", "--mmout-max-area": "any"}
    defaults = {one: words.get(one, "none") if said == argparse.SUPPRESS else said for one, said in defaults.items()}
    assert {names(flag)[0]: default.strip("`") for flag, default, _ in rows("Limits")} == defaults


def test_the_table_of_fields_and_the_list_of_options_have_every_field():
    """What a client may send stands in one of the two."""
    fields = {name for cells in rows("Fields") for name in names(cells[0])}
    listed = SECTIONS["Options of a request"].partition("What they mean")[0]
    options = [name for name in names(listed) if name != "OutputParams"]
    assert fields | set(options) == {"image", *FIELDS}
    assert options == list(OPTIONS)


@pytest.mark.parametrize("field", ["background", "response_format", "quality", "n"])
def test_a_field_of_a_choice_lists_it(field):
    """The values of a field are those that it may have."""
    (values,) = [cells[1] for cells in rows("Fields") if names(cells[0]) == [field]]
    assert names(values) == [str(choice) for choice in FIELDS[field].choices]


def test_what_can_be_asked_for_is_what_the_table_of_formats_lists():
    """The field by name, ``Accept`` by media type; the page of formats has a row of each, and sounds are no results."""
    cells = [row.split(" | ") for row in re.findall(r"^\| (`\w+` \|.+) \|$", FORMATS, flags=re.MULTILINE)]
    listed = {names(name)[0]: names(media_type)[0] for name, _, _, media_type, of, *_ in cells if of != "sounds"}
    assert tuple(listed) == FIELDS["output_format"].choices
    assert listed == MEDIA_TYPES
    for name, media_type in listed.items():
        assert accepted(media_type) == (None if name == "json" else name)


def test_the_table_of_errors_has_the_types_of_its_statuses():
    """A status and its type are those of an answer."""
    table = re.findall(r"^\| (\d+) \| `(\w+)` \|", SECTIONS["Errors"], flags=re.MULTILINE)
    assert len(table) == 15
    for status, kind in table:
        assert errors.ApiError(int(status), "").type == kind


def test_the_table_of_metrics_has_all_of_them():
    """Each metric stands there under the name and with the kind by which it is scraped."""
    made = collectors()
    registry = CollectorRegistry()
    for metric in [unfinished_jobs(), *(getattr(made, field) for field in made.__dataclass_fields__)]:
        registry.register(metric)
    scraped = {
        family.name + ("_total" if family.type == "counter" else ""): family.type
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        if not family.name.endswith("_created")
    }
    assert {names(name)[0]: kind for name, kind, _ in rows("Metrics")} == scraped
