"""How files are fetched, as environment variables say it."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.geo.raster.remote.fetch_options import FetchOptions

RIGHT = [
    ({}, FetchOptions()),
    ({"MMOUT_FETCH_TIMEOUT": "", "MMOUT_FETCH_LIMIT": ""}, FetchOptions()),
    ({"MMOUT_FETCH_TIMEOUT": "2.5"}, FetchOptions(timeout=2.5)),
    ({"MMOUT_FETCH_RETRIES": "0"}, FetchOptions(retries=0)),
    ({"MMOUT_FETCH_LIMIT": "1000"}, FetchOptions(limit=1000)),
    ({"MMOUT_FETCH_LIMIT": "500M"}, FetchOptions(limit=500 * 2**20)),
    ({"MMOUT_FETCH_LIMIT": "4G"}, FetchOptions(limit=2**32)),
    ({"MMOUT_FETCH_LIMIT": "3 kib"}, FetchOptions(limit=3072)),
]
WRONG = {
    "MMOUT_FETCH_TIMEOUT": ["soon", "0", "-1", "nan", "inf", "1e9"],
    "MMOUT_FETCH_RETRIES": ["-1", "2.5", "many", "100", "²"],
    "MMOUT_FETCH_LIMIT": ["0", "-5", "4X", "G", "1.5G", "9" * 5000],
}


@pytest.mark.parametrize(("variables", "options"), RIGHT, ids=str)
def test_what_variables_say(variables, options):
    """Each has its default, sizes take a unit."""
    assert FetchOptions.from_environment(variables) == options


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_value_is_named(name, value):
    """With the variable, and what would do."""
    with pytest.raises(OptionError, match=f"{name} must be .*, such as .*, got "):
        FetchOptions.from_environment({name: value})


def test_variables_of_the_process_are_read_when_asked(monkeypatch):
    """Not when the module is imported."""
    monkeypatch.setenv("MMOUT_FETCH_RETRIES", "7")
    assert FetchOptions.from_environment().retries == 7
