"""Inputs given by addresses that nobody can understand."""

from __future__ import annotations

import pytest

from vllm_mmout.errors import InputError
from vllm_mmout.models.inputs.input_forms import name_of, paths_of
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.params import OutputParams


@pytest.mark.parametrize(
    "address", ["http://me:secret@[::1/a.tif", "https://me:secret@h\u2100st/a.tif", "file://[x/a.tif", "//[x/a.tif"]
)
def test_an_input_of_no_address_is_refused(address):
    """As any input that cannot be opened, and without the password that it may hold."""
    with pytest.raises(InputError) as caught:
        RasterMapper("FloodNet", ("red",), 64)(address, OutputParams())
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("address", ["http://me:secret@[::1/a.tif", "https://me:secret@h\u2100st/a.tif"])
def test_its_result_has_a_name(address):
    """What a result is called, and which files it must spare, is found out before the input is opened."""
    assert name_of(address) == "a"
    assert paths_of(address) == []
