"""The faults of vLLM that the router makes up for, shown on vLLM alone: where one is gone, so can be the remedy."""

from __future__ import annotations

import hand_fed
import pytest
import torch
import vllm
from packaging.version import Version
from vllm.v1.engine.output_processor import OutputProcessor

pytestmark = pytest.mark.engine

RELEASE = Version(vllm.__version__.split("+")[0])
STREAM_INTERVAL_MENDED = Version("0.33.0")


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
    """An end of a pooling request without a tensor fails on an assertion, which ends the handler task."""
    with pytest.raises(AssertionError):
        alone(hand_fed.ended("a", reason))
