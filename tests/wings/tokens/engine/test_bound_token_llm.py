"""``LLM`` on a bound engine that generates tokens: its methods stand above vLLM's."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

LLM = pytest.importorskip("vllm").LLM

from vllm_mmout.engine.binding import rebase  # noqa: E402
from vllm_mmout.engine.request.interrupts import Interrupts  # noqa: E402
from vllm_mmout.wings.tokens.engine.llm import BoundTokenLLM  # noqa: E402

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("method", ["generate", "chat", "wait_for_completion"])
def test_a_class_that_is_derived_from_a_bound_one_is_no_endless_loop(monkeypatch, method):
    """What stands above calls vLLM's method in the end."""
    answer = SimpleNamespace()
    monkeypatch.setattr(LLM, method, lambda self, *args, **kwargs: [answer])
    llm = object.__new__(type("UsersLLM", (LLM,), {}))
    rebase(llm, BoundTokenLLM)
    llm.__class__ = type("Derived", (type(llm),), {})
    llm.llm_engine = SimpleNamespace(
        output_processor=SimpleNamespace(binding=None), mmout=Interrupts(), wake=lambda: None
    )
    assert getattr(llm, method)([]) == [answer]
