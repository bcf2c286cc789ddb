"""What a request has a model make is bounded before anything runs, by options and by keys of its input alike."""

from __future__ import annotations

import pytest

from vllm_mmout.params import OutputParams
from vllm_mmout.serving.errors import ApiError
from vllm_mmout.serving.options import ServingOptions
from vllm_mmout.serving.request.asked_limits import check_asked

pytestmark = pytest.mark.engine
LIMITS = ServingOptions(max_made_pixels=1 << 20, max_steps=100, max_seconds=5)
FIELDS = ("prompt", "width", "height", "num_frames", "num_inference_steps")


@pytest.mark.parametrize(
    ("params", "data", "says"),
    [
        ({"size": "1025x1024"}, "a", r"1025x1024, which is 1049600 pixels, .* 1048576 \(--mmout-max-made-pixels\)"),
        ({"num_inference_steps": 101}, "a", r"is 101, .* at most 100 steps \(--mmout-max-steps\)"),
        ({}, {"width": 1024, "height": 1025}, "1024x1025, which is 1049600 pixels"),
        ({}, {"height": 1025.0}, "1025.0x1025.0, which is"),
        ({}, {"num_inference_steps": 101}, r"is 101, .* \(--mmout-max-steps\)"),
        ({}, {"num_frames": 51}, r"is 51 frames, which are 5.1 s, .* at most 5 s \(--mmout-max-seconds\)"),
    ],
)
def test_more_than_the_limit_is_refused(params, data, says):
    """The error is a 400 that names the value, the limit and the flag."""
    with pytest.raises(ApiError, match=says) as refused:
        check_asked(OutputParams(**params), data, FIELDS, 10.0, LIMITS)
    assert refused.value.status == 400


def test_the_limit_itself_is_allowed():
    """Keys that the model's input mapper does not take are not checked."""
    params = OutputParams(size="1024x1024", num_inference_steps=100)
    check_asked(params, {"width": 1024, "height": 1024, "num_frames": 50, "prompt": "a"}, FIELDS, 10.0, LIMITS)
    check_asked(OutputParams(), {"width": 10**9}, ("prompt",), None, LIMITS)
