"""Tests of the model alone, in plain PyTorch."""

import json

import pytest
import torch
from safetensors.torch import load_file

from green_cover.model import GreenCover
from green_cover.weights import GREEN_KINDS, SPECTRA, mixed_patches


@pytest.fixture(scope="module")
def model(folder):
    """Return the model with the weights that the command writes."""
    model = GreenCover(json.loads((folder / "config.json").read_text()))
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model.requires_grad_(False)


@pytest.mark.parametrize(("kind", "green"), [(kind, place < GREEN_KINDS) for place, kind in enumerate(SPECTRA)])
def test_a_field_of_one_kind_is_green_or_not(model, kind, green):
    """Pixels of plants are at least three quarters green; soil, water, concrete and cloud are below one quarter."""
    (share,) = model(torch.tensor(SPECTRA[kind]).reshape(1, 4, 1, 1)).flatten()
    assert share > 0.75 if green else share < 0.25


def test_mixed_pixels_are_in_between(model):
    """On patches that the model was not trained on, the root mean square error of the share is below ten percent."""
    pixels, cover = mixed_patches(32, torch.Generator().manual_seed(1))
    assert (model(pixels) - cover).square().mean().sqrt() < 0.1


@pytest.mark.parametrize("dtype", [torch.int16, torch.uint16])
def test_integers_are_reflectance_times_10000(model, dtype):
    """Integers give the same shares as the reflectances that they encode."""
    stored = torch.randint(0, 9000, (2, 4, 6, 7), generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(stored.to(dtype)), model(stored / 10_000))
