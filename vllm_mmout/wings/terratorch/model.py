"""Run a TerraTorch network on images with the raw values stored in their files."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from vllm_mmout.errors import InputError, ModelError
from vllm_mmout.models.author import load_strictly
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.terratorch.config import DATES, LOCATION, RAW, Modality, TerratorchConfig
from vllm_mmout.wings.terratorch.mapper import TerratorchMapper
from vllm_mmout.wings.terratorch.network import REMEDY, build_network, encode_exactly, weights_of
from vllm_mmout.wings.terratorch.scaling import MEANS, STDS, no_scale
from vllm_mmout.wings.terratorch.standards import standards_of


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(TerratorchMapper.from_config)
class TerratorchModel(nn.Module):
    """Model that scales and standardises its input images, and runs a TerraTorch network on them.

    An input is either raw (``pixel_values_raw``), or already standardised (``pixel_values``). TerraTorch's own plugins
    send standardised inputs, which are floating point of any precision.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._config = TerratorchConfig.of(config)
        self.network = build_network(self._config)
        self._standards = standards_of(self._config)
        self._exact = encode_exactly(self.network)

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of the keyword arguments of ``forward`` for the model in a folder."""
        return TerratorchConfig.of(config).keywords

    @property
    def compiled_part(self) -> nn.Module:
        """The network, which torch.compile compiles.

        The scaling of the images is not compiled, because each new input dtype would trigger another compilation.
        """
        return self.network

    def forward(self, **inputs: Tensor) -> Tensor:
        """Standardise the images of a batch, and run the network on them.

        Args:
            inputs: for each image either ``NAME_raw`` [n, bands, (frames,) height, width] of integers or float32, or
                ``NAME``, standardised. Optional are ``location_coords`` [n, 2] (latitude and longitude in degrees),
                ``temporal_coords`` [n, frames, 2] (year, and day of the year from 0), and ``means`` and ``stds``
                [n, bands], which replace the data module's.

        Returns:
            The network's output, with the requests on axis 0.

        """
        dtype = next(self.network.parameters()).dtype
        images = {modality.name: self._image(modality, inputs, dtype) for modality in self._config.modalities}
        extras = {name: inputs[name] for name in self._config.extras if name in inputs}
        exact = torch.float32 if self._exact else dtype
        if LOCATION in extras:
            extras[LOCATION] = extras[LOCATION].reshape(-1, 2).to(exact)
        if DATES in extras:
            extras[DATES] = extras[DATES].reshape(len(extras[DATES]), -1, 2).to(exact)
        target = self._config.target
        output = self.network(images if target is None else images[target], **extras)
        return _tensor(output)

    def load_from(self, stored: Mapping[str, Any]) -> None:
        """Load the network's weights from ``stored``.

        ``stored`` is a TerraTorch checkpoint (``{"state_dict": ...}``), or a dict from weight name to weight.
        """
        load_strictly(self.network, weights_of(stored, self.network), REMEDY)

    def _image(self, modality: Modality, inputs: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
        raw = inputs.get(RAW.format(modality.name))
        if raw is None:
            if modality.name not in inputs:
                raise ModelError(f"the request has no {modality.name}; give {RAW.format(modality.name)}")
            return inputs[modality.name].to(dtype)
        standard = self._standards[modality.name]
        if standard.lacks_scale and not raw.is_floating_point() and MEANS not in inputs:
            raise InputError(no_scale(modality.name), param="scale")
        scale = None if raw.is_floating_point() else standard.scale
        mean, std = (
            _per_pixel(inputs.get(name, own), raw) for name, own in ((MEANS, standard.mean), (STDS, standard.std))
        )
        if raw.device.type != "cpu":
            return _standardised(raw, scale, mean, std).to(dtype)
        # Band by band: passing over a whole image in memory four times takes longer than the computation.
        images = torch.empty(raw.shape, dtype=dtype)
        mean, std = (numbers.expand(*raw.shape[:2], *numbers.shape[2:]) for numbers in (mean, std))
        for image, band in product(range(raw.shape[0]), range(raw.shape[1])):
            images[image, band] = _standardised(raw[image, band], scale, mean[image, band], std[image, band])
        return images


def _standardised(raw: Tensor, scale: float | None, mean: Tensor, std: Tensor) -> Tensor:
    """Return (raw * scale - mean) / std as a new float32 tensor. If ``scale`` is None, raw values are not scaled."""
    values = raw.to(torch.float32, copy=True)
    if scale is not None:
        values.mul_(scale)
    return values.sub_(mean).div_(std)


def _per_pixel(numbers: Tensor, images: Tensor) -> Tensor:
    """Append axes of length 1 to ``numbers``, so that statistics of each band broadcast over the pixels of ``images``.

    ``numbers`` is [n or 1, bands] or [n or 1, bands, frames]. ``images`` is [n, bands, height, width] or [n, bands,
    frames, height, width]. The returned tensor is float32, on the device of ``images``.
    """
    return numbers.float().to(images.device).reshape(*numbers.shape, *(1,) * (images.ndim - numbers.ndim))


def _tensor(output: Any) -> Tensor:
    """Return the result tensor from the output of a network. Raise ModelError if the output contains no such tensor.

    The output may be the tensor, a list that ends with the tensor, or an object with either as attribute ``output``.
    """
    output = getattr(output, "output", output)
    if isinstance(output, list | tuple) and output:
        output = output[-1]
    if not isinstance(output, Tensor):
        raise ModelError(
            f"the network returned a {type(output).__name__}; only networks that return one tensor are served"
        )
    return output
