"""The faults of vLLM that the router makes up for, shown on vLLM alone: where one is gone, so can be the remedy."""

from __future__ import annotations

import os

import hand_fed
import pytest
import torch
import vllm
from packaging.version import Version
from vllm.v1.engine.output_processor import OutputProcessor

pytestmark = pytest.mark.engine

RELEASE = Version(vllm.__version__.split("+")[0])
STREAM_INTERVAL_MENDED = Version("0.33.0")
VOCABULARY_ASKED = Version("0.33.0")


def alone(output, **options):
    """What vLLM's own output processor makes of an output for its one pooling request."""
    processor = OutputProcessor(None, log_stats=False, **options)
    processor.add_request(hand_fed.request("a", hand_fed.unmarked()), None)
    return processor.process_outputs([output]).request_outputs


def test_stream_interval():
    """To 0.32 a stream interval above 1 fails on an assertion for pooling requests; 0.33 serves them."""
    output = hand_fed.answered("a", torch.ones(2))
    if RELEASE >= STREAM_INTERVAL_MENDED:
        assert alone(output, stream_interval=4)[0].outputs.data.tolist() == [1, 1]
    else:
        with pytest.raises(AssertionError):
            alone(output, stream_interval=4)


@pytest.mark.parametrize("reason", ["ABORT", "ERROR"])
def test_ends_without_a_tensor(reason):
    """An end of a pooling request without a tensor fails on an assertion, which ends the handler task.

    With our patches it ends with an empty tensor (``make test-patches``).
    """
    if "MMOUT_TEST_PATCHED" in os.environ:
        (ended,) = alone(hand_fed.ended("a", reason))
        assert ended.finished
        assert ended.outputs.data.numel() == 0
        return
    with pytest.raises(AssertionError):
        alone(hand_fed.ended("a", reason))


def test_the_token_of_a_model_without_a_vocabulary():
    """From 0.33 on every request of a folder without a vocabulary would be refused; a bound engine takes it."""
    from types import SimpleNamespace

    from vllm.exceptions import VLLMValidationError
    from vllm.renderers.base import BaseRenderer

    from vllm_mmout.engine.binding import rebase
    from vllm_mmout.engine.hooks.renderer import NoChat

    class Renderer(BaseRenderer):
        render_messages = render_messages_async = None

    renderer = object.__new__(Renderer)
    renderer.tokenizer, renderer.model_config = (
        None,
        SimpleNamespace(get_vocab_size=lambda: 0, is_multimodal_raw_input_only_model=True),
    )
    if RELEASE >= VOCABULARY_ASKED:
        with pytest.raises(VLLMValidationError, match="Token id 1 is out of vocabulary"):
            renderer.validate_token_ids([1])
    rebase(renderer, NoChat)
    renderer.validate_token_ids([1])
    renderer.model_config.is_multimodal_raw_input_only_model = False
    if RELEASE >= VOCABULARY_ASKED:  # of text the ids are looked at as before: they are indices of embeddings
        with pytest.raises(VLLMValidationError, match="Token id 1 is out of vocabulary"):
            renderer.validate_token_ids([1])
