"""ExportedModel: the program of an archive, from an image as its file holds it to what the program gives."""

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
from vllm_mmout.models.inputs.mapper import MappedInput, RasterMapper
from vllm_mmout.models.inputs.tensor_spec import TensorSpec
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import each
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.archives.contents import contents_of
from vllm_mmout.wings.archives.folders import FILE, ORDER
from vllm_mmout.wings.archives.loading import network_of
from vllm_mmout.wings.archives.operators import trusted_by
from vllm_mmout.wings.archives.scaling import Scaling

if TYPE_CHECKING:
    from vllm_mmout.processors.base import Raw

_RASTER = "pixel_values"


@dataclass(frozen=True, slots=True)
class TensorsMapper:
    """Takes tensors by the names of the program's inputs, without the batch axis."""

    inputs: Mapping[str, TensorSpec]
    usual: Mapping[str, tuple[int, ...]]
    """Their shapes in a first forward."""

    def dummy(self) -> dict[str, NDArray[Any]]:
        """An input of a usual size: some axes have no bounds."""
        return {name: np.zeros(shape, self.inputs[name].dtypes[0]) for name, shape in self.usual.items()}

    def __call__(self, data: Any, params: OutputParams) -> MappedInput:
        """Map one input that is no dict: an array of the first name."""
        if not hasattr(data, "shape"):
            told = ", ".join(f"{name}: {spec}" for name, spec in self.inputs.items())
            raise InputError(f"the program takes tensors by name ({told}), got {type(data).__name__}")
        return MappedInput({next(iter(self.inputs)): data})

    @property
    def opens_files(self) -> bool:
        """No text names a file."""
        return False


def mapper_of(config: Mapping[str, Any]) -> RasterMapper | TensorsMapper:
    """The input mapper of an archive: of rasters where it takes one image, else of tensors."""
    if ORDER in config:
        return RasterMapper.from_config(config)
    inputs = contents_of(Path(config[FILE])).inputs
    return TensorsMapper(
        {
            one.name: TensorSpec(
                tuple(axis.fixed or (axis.least, axis.most) for axis in one.axes[1:]),
                (one.dtype.replace("bfloat16", "float32"),),  # which numpy has not
            )
            for one in inputs
        },
        {one.name: tuple(axis.usual for axis in one.axes[1:]) for one in inputs},
    )


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class ExportedModel(nn.Module):
    """Scales, brings axes and batches into the program's order and size, and runs it."""

    loads_itself = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        settings = get_current_vllm_config().additional_config  # no folder says what is trusted
        trusted = trusted_by(settings.get(OPTIONS_KEY) if isinstance(settings, Mapping) else None)
        self._contents, network = network_of(Path(config[FILE]), torch.get_default_device(), trusted)
        self._held = (network,)  # not as a module of this one, whose weights vLLM would make up
        self._order = tuple(config.get(ORDER, ()))
        self._scaling = Scaling.of(config.get("value_scaling"), len(config.get("bands", ())))
        batch = {one.axes[0] for one in self._contents.inputs if one.axes}
        if len(batch) != 1:
            raise ModelError("the inputs of the program must have one batch axis, which is the first; export it so")
        (self._batch,) = batch

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The names of the program's inputs; of an image ours."""
        return (_RASTER,) if ORDER in config else tuple(one.name for one in contents_of(Path(config[FILE])).inputs)

    @property
    def compiled_part(self) -> nn.Module:
        """What is compiled."""
        return self._held[0]

    def forward(self, **inputs: Tensor) -> Raw:
        """Run the program.

        Args:
            inputs: ``pixel_values`` [n, bands, (frames,) height, width] of any dtype; or the program's own inputs.

        Returns:
            A tensor, or a dict of tensors, with the requests on axis 0.

        """
        taken = self._contents.inputs
        given = [self._image(inputs[_RASTER])] if self._order else [inputs[one.name] for one in taken]
        given = [tensor.to(getattr(torch, one.dtype)) for tensor, one in zip(given, taken, strict=True)]
        count = len(given[0])
        step = min(self._batch.most, max(count, self._batch.least))
        outputs = [self._run([one[start : start + step] for one in given]) for start in range(0, count, step)]
        return outputs[0] if len(outputs) == 1 else each(lambda *parts: torch.cat(parts), *outputs)

    def _image(self, values: Tensor) -> Tensor:
        """One image, scaled, with the program's order of axes."""
        ours = ("batch", "channel", *(("time",) if "time" in self._order else ()), "height", "width")
        values = values if self._scaling is None else self._scaling(values)
        return values.permute(*(ours.index(axis) for axis in self._order))

    def _run(self, given: Sequence[Tensor]) -> Raw:
        """A step; one with too few requests is filled up with its last."""
        count = len(given[0])
        lacking = max(self._batch.least - count, 0)
        if lacking:
            given = [torch.cat([one, one[-1:].expand(lacking, *one.shape[1:])]) for one in given]
        arguments = list(self._contents.arguments)
        for place, tensor in zip(self._contents.places, given, strict=True):
            arguments[place] = tensor
        outputs = zip(self._contents.outputs, self.compiled_part(*arguments), strict=True)
        found = {name: one for name, one in outputs if isinstance(one, Tensor)}
        wrong = [name for name, one in found.items() if one.shape[:1] != (count + lacking,)]
        if wrong or not found:
            raise ModelError(
                f"the program's outputs must be tensors with the batch on axis 0, and {', '.join(wrong) or 'none'} is"
                " otherwise; export the network so that it gives what is wanted"
            )
        named = found.get("", found)
        return each(itemgetter(slice(count)), named) if lacking else named
