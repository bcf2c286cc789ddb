"""The text of ``vllm-mmout info`` about the scaling of an image processor of transformers."""

from __future__ import annotations

from types import SimpleNamespace

from vllm_mmout.models.inputs.picture_scaling import picture_scaling


def test_the_formula_is_that_of_the_processor():
    """Rescaling and normalisation appear only where the processor does them."""
    scales = {"do_rescale": True, "rescale_factor": 1 / 255}
    statistics = {"do_normalize": True, "image_mean": [0.5], "image_std": (0.1, 0.2, 0.3)}
    assert picture_scaling(SimpleNamespace()) == ("value",) * 3
    assert picture_scaling(SimpleNamespace(**scales)) == ("value * 0.00392157",) * 3
    both = picture_scaling(SimpleNamespace(**scales, **statistics))
    assert both[1:] == ("(value * 0.00392157 - 0.5) / 0.2", "(value * 0.00392157 - 0.5) / 0.3")
