"""The engine under test is the one that was asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import vllm

pytestmark = pytest.mark.engine


def test_vllm_is_the_one_asked_for(version, sources):
    """The tests run on the sources of the release, or on the installed engine, and on nothing of the other."""
    place = Path(vllm.__file__).resolve().parent
    if not sources:
        assert version == "installed"
        assert "site-packages" in place.parts
        return
    assert vllm.__version__.split("+")[0] == version
    assert list(map(Path, vllm.__path__)) == [Path(sources, "vllm")]
