"""ExportedModel: the program of an archive, from an image as its file holds it to what the program gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_mmout.errors import InputError, ModelError
from vllm_mmout.models.inputs.mapper import MappedInput, RasterMapper, TensorSpec
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import each
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.archives.contents import contents_of
from vllm_mmout.wings.archives.folders import FILE, ORDER
from vllm_mmout.wings.archives.loading import network_of
from vllm_mmout.wings.archives.scaling import Scaling

_RASTER = "pixel_values"


@dataclass(frozen=True, slots=True)
class TensorsMapper:
    """Takes tensors by the names of the program's inputs, without the batch axis."""

    inputs: Mapping[str, TensorSpec]

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
    contents = contents_of(Path(config[FILE]))
    return TensorsMapper(
        {
            one.name: TensorSpec(tuple(size.fixed or (size.least, size.most) for size in one.sizes[1:]), (one.dtype,))
            for one in contents.inputs
        }
    )


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class ExportedModel(nn.Module):
    """Scales, brings axes and batches into the program's order and size, and runs it."""

    loads_itself = True

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        device = torch.get_default_device()
        self._contents, network = network_of(Path(config[FILE]), device)
        self._held = (network,)  # not as a module of this one, whose weights vLLM would make up
        self._order = tuple(config.get(ORDER, ()))
        self._scaling = Scaling.of(config.get("value_scaling"), len(config.get("bands", ())))
        batch = {one.sizes[0] for one in self._contents.inputs if one.sizes}
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

    def forward(self, **inputs: Tensor) -> Any:
        """Run the program.

        Args:
            inputs: ``pixel_values`` [n, bands, (frames,) height, width] of any dtype; or the program's own inputs.

        Returns:
            A tensor, or a dict of tensors, with the requests on axis 0.

        """
        given = [self._image(inputs[_RASTER])] if self._order else [inputs[one.name] for one in self._contents.inputs]
        count = len(given[0])
        step = min(self._batch.most, max(count, self._batch.least))
        outputs = [self._run([one[start : start + step] for one in given]) for start in range(0, count, step)]
        return outputs[0] if len(outputs) == 1 else each(lambda *parts: torch.cat(parts), *outputs)

    def _image(self, values: Tensor) -> Tensor:
        """One image, scaled, with the program's order of axes and dtype."""
        ours = ("batch", "channel", *(("time",) if "time" in self._order else ()), "height", "width")
        values = values if self._scaling is None else self._scaling(values)
        dtype: torch.dtype = getattr(torch, self._contents.inputs[0].dtype)
        return values.permute(*(ours.index(axis) for axis in self._order)).to(dtype)

    def _run(self, given: Sequence[Tensor]) -> Any:
        """A step; one with too few requests is filled up with its last."""
        count = len(given[0])
        lacking = max(self._batch.least - count, 0)
        if lacking:
            given = [torch.cat([one, one[-1:].expand(lacking, *one.shape[1:])]) for one in given]
        output = _named(self.compiled_part(*given))
        return each(itemgetter(slice(count)), output) if lacking else output


def _named(output: Any) -> Any:
    """A tensor; or of several a dict, numbered where they have no names."""
    if isinstance(output, list | tuple) and len(output) == 1:
        output = output[0]
    if isinstance(output, list | tuple):
        output = {str(number): one for number, one in enumerate(output)}
    return output
