"""`ExportedModel`: serves the exported program in a ``.pt2`` archive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from vllm.config import get_current_vllm_config

from vllm_mmout.engine.settings import OPTIONS_KEY
from vllm_mmout.errors import InputError, ModelError
from vllm_mmout.models.inputs.mapped_input import MappedInput
from vllm_mmout.models.inputs.mapper import RasterMapper
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import each
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.archives.contents import contents_of
from vllm_mmout.wings.archives.folders import FILE, ORDER
from vllm_mmout.wings.archives.loading import network_of
from vllm_mmout.wings.archives.operators import trusted_by
from vllm_mmout.wings.archives.scaling import BandScaling

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

_RASTER = "pixel_values"


@dataclass(frozen=True, slots=True)
class TensorsMapper:
    """Input mapper for programs whose input is not an image. Requests pass tensors without the batch axis."""

    inputs: Mapping[str, TensorSpec]
    dummy_shapes: Mapping[str, tuple[int, ...]]
    """Shape of the dummy tensor for each input."""

    def dummy(self) -> dict[str, NDArray[Any]]:
        """Return a dummy input of zeros in default shapes, because the largest possible shapes may be unlimited."""
        return {name: np.zeros(shape, self.inputs[name].dtypes[0]) for name, shape in self.dummy_shapes.items()}

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Map an array to the first input of the exported program. Raise InputError if ``data`` is not an array."""
        if not hasattr(data, "shape"):
            inputs = ", ".join(f"{name}: {spec}" for name, spec in self.inputs.items())
            raise InputError(f"the program takes tensors by name ({inputs}), got {type(data).__name__}")
        return MappedInput({next(iter(self.inputs)): data})

    @property
    def opens_files(self) -> bool:
        """Always False. True would mean that a string in an input is the path of a file to open.

        These models take only tensors.
        """
        return False


def mapper_of(config: Mapping[str, Any]) -> RasterMapper | TensorsMapper:
    """Return the input mapper of an exported program: for rasters if its only input is an image, else for tensors."""
    if ORDER in config:
        return RasterMapper.from_config(config)
    inputs = contents_of(Path(config[FILE])).inputs
    return TensorsMapper(
        {
            spec.name: TensorSpec(
                tuple(axis.fixed or (axis.least, axis.most) for axis in spec.axes[1:]),
                (spec.dtype.replace("bfloat16", "float32"),),  # numpy does not have bfloat16
            )
            for spec in inputs
        },
        {spec.name: tuple(axis.default_size for axis in spec.axes[1:]) for spec in inputs},
    )


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class ExportedModel(nn.Module):
    """Model class that runs the exported program in a ``.pt2`` archive.

    Inputs are first scaled, and their axis order and batch size are adapted to the program.
    """

    loads_itself = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        # Only the engine's settings may name trusted operators, never a model's folder.
        settings = get_current_vllm_config().additional_config
        trusted = trusted_by(settings.get(OPTIONS_KEY) if isinstance(settings, Mapping) else None)
        self._contents, network = network_of(Path(config[FILE]), torch.get_default_device(), trusted)
        # The tuple keeps the network from being a submodule, whose weights vLLM would fill with dummy values.
        self._held = (network,)
        self._order = tuple(config.get(ORDER, ()))
        self._scaling = BandScaling.of(config.get("value_scaling"), len(config.get("bands", ())))
        batch = {spec.axes[0] for spec in self._contents.inputs if spec.axes}
        if len(batch) != 1:
            raise ModelError(
                "the inputs of the program must share one batch axis, the first; export it with such an axis"
            )
        (self._batch,) = batch

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the argument names of `forward`: ``pixel_values`` for images, else the exported program's inputs."""
        return (_RASTER,) if ORDER in config else tuple(spec.name for spec in contents_of(Path(config[FILE])).inputs)

    @property
    def compiled_part(self) -> nn.Module:
        """Module that the engine compiles if the engine option ``compile`` is set."""
        return self._held[0]

    def forward(self, **inputs: Tensor) -> Raw:
        """Run the exported program on a batch.

        Args:
            inputs: ``pixel_values`` [n, bands, (frames,) height, width] of any dtype, or the program's inputs by name.

        Returns:
            A tensor, or a dict of tensors, with the requests on axis 0.

        """
        specs = self._contents.inputs
        tensors = [self._image(inputs[_RASTER])] if self._order else [inputs[spec.name] for spec in specs]
        tensors = [tensor.to(getattr(torch, spec.dtype)) for tensor, spec in zip(tensors, specs, strict=True)]
        count = len(tensors[0])
        step = min(self._batch.most, max(count, self._batch.least))
        outputs = [self._run([tensor[start : start + step] for tensor in tensors]) for start in range(0, count, step)]
        return outputs[0] if len(outputs) == 1 else each(lambda *parts: torch.cat(parts), *outputs)

    def _image(self, values: Tensor) -> Tensor:
        """Scale a batch of images, and permute its axes to the order that the exported program takes."""
        ours = ("batch", "channel", *(("time",) if "time" in self._order else ()), "height", "width")
        values = values if self._scaling is None else self._scaling(values)
        return values.permute(*(ours.index(axis) for axis in self._order))

    def _run(self, tensors: Sequence[Tensor]) -> Raw:
        """Run the exported program on a batch. If the batch is too small, pad it with copies of the last request."""
        count = len(tensors[0])
        lacking = max(self._batch.least - count, 0)
        if lacking:
            tensors = [torch.cat([tensor, tensor[-1:].expand(lacking, *tensor.shape[1:])]) for tensor in tensors]
        arguments = list(self._contents.arguments)
        for place, tensor in zip(self._contents.tensor_indices, tensors, strict=True):
            arguments[place] = tensor
        outputs = zip(self._contents.outputs, self.compiled_part(*arguments), strict=True)
        results = {name: output for name, output in outputs if isinstance(output, Tensor)}
        wrong = [name for name, tensor in results.items() if tensor.shape[:1] != (count + lacking,)]
        if wrong or not results:
            raise ModelError(
                f"the program's outputs must be tensors with the batch on axis 0; wrong: {', '.join(wrong) or 'all'};"
                " export the network again, with only such outputs"
            )
        named = results.get("", results)
        return each(itemgetter(slice(count)), named) if lacking else named
