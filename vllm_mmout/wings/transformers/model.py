"""Run a model of the transformers library in vLLM, and return the output tensors of its head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
import transformers
from torch import Tensor, nn

from vllm_mmout.errors import ModelError
from vllm_mmout.models.author import load_strictly
from vllm_mmout.registry import MULTIMODAL_INPUT_REGISTRY
from vllm_mmout.wings.transformers.heads import described
from vllm_mmout.wings.transformers.inputs import PASSED, mapper_of
from vllm_mmout.wings.transformers.loading import keywords_of_network

_SEED: Final = 0
"""Random seed that is set before each request's forecast, so that results are reproducible."""
_REMEDY = 'Save them as transformers does: model.save_pretrained("FOLDER")'


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class TransformersModel(nn.Module):
    """Wrapper of a transformers model. It returns only the output tensors that the settings of its head name."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._head, table = described(config)
        entries = {key: value for key, value in config.items() if key not in ("model_type", "mmout", "transformers")}
        config_of_type: Any = transformers.AutoConfig.for_model(table["model_type"])
        network_class: Any = getattr(transformers, config["architectures"][0])
        self._not_of_requests: set[str] = set()
        self.network: nn.Module = network_class(type(config_of_type).from_dict(entries)).eval()

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Return the names of all input tensors, including the tensors that skip the network.

        The tensors that skip the network are used by the output processor.
        """
        return tuple(dict.fromkeys((*keywords_of_network(config["architectures"][0]), *PASSED)))

    @property
    def compiled_part(self) -> nn.Module:
        """Part that ``torch.compile`` compiles: the transformers model without this wrapper."""
        return self.network

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run the network, and return the output tensors that the head's settings name.

        The tensors in `PASSED` skip the network. They are returned unchanged, unless ``generate`` draws the results.
        """
        keywords = keywords_of_network(type(self.network).__name__)
        passed = {name: inputs.pop(name) for name in PASSED if name in inputs and name not in keywords}
        dtype = next(self.network.parameters()).dtype
        converted = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        if self._head.drawn:
            return self._sampled(converted)
        if not self._head.alone:
            return {**self._outputs_of_head(self.network(**converted), len(next(iter(inputs.values())))), **passed}
        rows = range(len(next(iter(inputs.values()))))
        outputs = [
            self._outputs_of_head(self.network(**{name: value[row] for name, value in converted.items()}))
            for row in rows
        ]
        return {**{name: torch.stack([output[name] for output in outputs]) for name in outputs[0]}, **passed}

    def _sampled(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Call the network's ``generate`` separately for each request. The results are drawn at random.

        The same random seed is set before each request, so that no result depends on the other requests of the batch.
        """
        first = next(iter(inputs.values()))
        outputs: list[dict[str, Tensor]] = []
        with torch.random.fork_rng([first.device] if first.is_cuda else []):
            for row in range(len(first)):
                torch.manual_seed(_SEED)
                drawn = self.network.generate(**{name: value[row : row + 1] for name, value in inputs.items()})  # type: ignore[operator]  # transformers' method
                outputs.append(self._outputs_of_head(drawn, 1))
        return {name: torch.cat([output[name] for output in outputs]) for name in outputs[0]}

    def _outputs_of_head(self, output: Any, count: int | None = None) -> dict[str, Tensor]:
        """Return the tensors of ``output`` that the head's settings name. Raise ModelError if all of them are missing.

        If the settings do not name tensors, all tensors are returned. Tensors without the batch axis are left out.

        ``count`` is the length of the batch axis, or None for an output of a single request without this axis.
        """
        names = self._head.outputs
        tensors = dict(_tensors(output))
        if count is not None:
            # An output for each layer has the number of layers on axis 0, which may equal the number of requests by
            # chance. Once its length differed, it is known not to belong to requests.
            self._not_of_requests |= {name for name, value in tensors.items() if value.shape[:1] != (count,)}
            tensors = {name: tensor for name, tensor in tensors.items() if name not in self._not_of_requests}
        kept = {name: tensor for name, tensor in tensors.items() if name in names} if names else tensors
        if not kept:
            raise ModelError(
                f"{type(self.network).__name__} gave {', '.join(tensors) or 'no tensors'} of its requests; its head"
                f" needs {' or '.join(names) or 'one'}"
            )
        return kept

    def load_from(self, stored: Mapping[str, Any]) -> None:
        """Load weights that ``save_pretrained`` has written."""
        load_strictly(self.network, stored, _REMEDY)


def _tensors(output: Any) -> list[tuple[str, Tensor]]:
    """Return the tensors of an output with their names. Tensors in a tuple are numbered: "feature_maps.0"."""
    items: list[tuple[str, Tensor]] = []
    for name, value in output.items():
        numbered = [(f"{name}.{number}", item) for number, item in enumerate(value)] if isinstance(value, tuple) else []
        items += numbered or [(name, value)]
    return [(name, value) for name, value in items if isinstance(value, torch.Tensor)]
