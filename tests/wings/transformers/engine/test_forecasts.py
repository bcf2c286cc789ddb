"""Forecasts of series: what transformers' ``forward`` gives, or what its ``generate`` draws."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_folders import engine_here
from small_heads import saved

pytestmark = pytest.mark.engine
RANDOM = np.random.default_rng(8)
SIZES = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "num_time_features": 2, "num_parallel_samples": 3}
SIZES |= {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2]}
PATCHES = {"num_input_channels": 2, "context_length": 32, "patch_length": 8, "stride": 8, "d_model": 16}
PATCHES |= {"num_hidden_layers": 1, "num_attention_heads": 2, "ffn_dim": 16, "prediction_length": 5}


def network(architecture, entries):
    """Return a small model of transformers with random weights."""
    import transformers

    cls = getattr(transformers, architecture)
    torch.manual_seed(2)
    return cls(cls.config_class(**entries)).eval()


def past_and_future():
    """Return a request of a model that draws forecasts."""
    return {
        "past_values": RANDOM.normal(3, 1, 10).astype(np.float32),
        "past_time_features": RANDOM.normal(0, 1, (10, 2)).astype(np.float32),
        "past_observed_mask": np.ones(10, np.float32),
        "future_time_features": RANDOM.normal(0, 1, (4, 2)).astype(np.float32),
    }


def test_samples_of_a_forecast_are_drawn_by_transformers(tmp_path):
    """Each request draws from the same seed: its samples depend on no other request."""
    model = network("TimeSeriesTransformerForPrediction", SIZES)
    llm = engine_here(saved(tmp_path, model, None), max_num_seqs=4)
    requests = [past_and_future(), past_and_future()]
    for request, result in zip(requests, llm.generate(requests, use_tqdm=False), strict=True):
        torch.manual_seed(0)
        drawn = model.generate(**{name: torch.tensor(value)[None] for name, value in request.items()})
        assert result.outputs.array.shape == (3, 4)
        np.testing.assert_allclose(result.outputs.array, drawn.sequences[0], rtol=1e-5, atol=1e-5)
    (alone,) = llm.generate(requests[1:], use_tqdm=False)
    np.testing.assert_array_equal(alone.outputs.array, result.outputs.array)


def test_a_forecast_of_patches_is_what_transformers_gives(tmp_path):
    """An array is taken as ``past_values``, the first keyword."""
    model = network("PatchTSTForPrediction", PATCHES)
    llm = engine_here(saved(tmp_path, model, None))
    series = RANDOM.normal(0, 1, (32, 2)).astype(np.float32)
    (result,) = llm.generate([series], use_tqdm=False)
    with torch.inference_mode():
        expected = model(torch.tensor(series)[None]).prediction_outputs[0]
    np.testing.assert_allclose(result.outputs.arrays["prediction_outputs"], expected, rtol=1e-5, atol=1e-5)
