"""Pictures of a growing scene that nobody can give."""

from __future__ import annotations

import pytest
from scenes_for_tests import generate, pixels

from vllm_mmout import OutputParams
from vllm_mmout.errors import OptionError

pytestmark = pytest.mark.engine


def test_a_synchronous_engine_has_no_pictures(llm):
    """It says who has."""
    with pytest.raises(OptionError, match=r"AsyncLLM\.generate and the server; leave partial_images=2 out") as raised:
        generate(llm, pixels(), partial_images=2)
    assert raised.value.param == "partial_images"


@pytest.mark.parametrize("wrong", [-1, 4, True, 1.5, "2", None])
def test_numbers_of_pictures_that_cannot_be(wrong):
    """0 to 3, as in OpenAI's interface."""
    with pytest.raises(OptionError, match="partial_images") as raised:
        OutputParams(partial_images=wrong)
    assert raised.value.param == "partial_images"


def test_clients_may_ask_for_pictures():
    """By name, from the network too."""
    assert OutputParams.from_mapping({"partial_images": 3}).partial_images == 3
