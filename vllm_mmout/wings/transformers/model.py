"""TransformersModel: a model of transformers with the head that its folder names."""

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
"""Seed of the samples of a forecast, set before each request."""
_REMEDY = 'Save them as transformers does: model.save_pretrained("FOLDER")'


@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(mapper_of)
class TransformersModel(nn.Module):
    """Holds the model of transformers; gives the tensors of its output that its head is about."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        self._head, said = described(config)
        entries = {key: value for key, value in config.items() if key not in ("model_type", "mmout", "transformers")}
        known: Any = transformers.AutoConfig.for_model(said["model_type"])
        made: Any = getattr(transformers, config["architectures"][0])
        self._not_of_requests: set[str] = set()
        self.network: nn.Module = made(type(known).from_dict(entries)).eval()

    @classmethod
    def keywords_of(cls, config: Mapping[str, Any]) -> tuple[str, ...]:
        """The keywords of the network's ``forward``, and those that go past it."""
        return tuple(dict.fromkeys((*keywords_of_network(config["architectures"][0]), *PASSED)))

    @property
    def compiled_part(self) -> nn.Module:
        """What is compiled."""
        return self.network

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run the network; of its output the head's tensors, and what goes past it as it came."""
        known = keywords_of_network(type(self.network).__name__)
        passed = {name: inputs.pop(name) for name in PASSED if name in inputs and name not in known}
        dtype = next(self.network.parameters()).dtype
        given = {name: value.to(dtype) if value.is_floating_point() else value for name, value in inputs.items()}
        if self._head.drawn:
            return self._drawn(given)
        if not self._head.alone:
            return {**self._kept(self.network(**given), len(next(iter(inputs.values())))), **passed}
        rows = range(len(next(iter(inputs.values()))))
        outputs = [self._kept(self.network(**{name: value[row] for name, value in given.items()})) for row in rows]
        return {**{name: torch.stack([one[name] for one in outputs]) for name in outputs[0]}, **passed}

    def _drawn(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return samples drawn from the same seed for each request, so that they do not depend on other requests."""
        first = next(iter(inputs.values()))
        outputs: list[dict[str, Tensor]] = []
        with torch.random.fork_rng([first.device] if first.is_cuda else []):
            for row in range(len(first)):
                torch.manual_seed(_SEED)
                drawn = self.network.generate(**{name: value[row : row + 1] for name, value in inputs.items()})  # type: ignore[operator]  # of transformers
                outputs.append(self._kept(drawn, 1))
        return {name: torch.cat([one[name] for one in outputs]) for name in outputs[0]}

    def _kept(self, output: Any, count: int | None = None) -> dict[str, Tensor]:
        """What the head is about, of ``count`` requests; None: of one."""
        wanted = self._head.outputs
        found = dict(_tensors(output))
        if count is not None:
            # An output of each layer has as many on axis 0 as there are layers, by chance as many as requests: once it
            # had another number, it is none of the requests'.
            self._not_of_requests |= {name for name, tensor in found.items() if tensor.shape[:1] != (count,)}
            found = {name: tensor for name, tensor in found.items() if name not in self._not_of_requests}
        kept = {name: tensor for name, tensor in found.items() if name in wanted} if wanted else found
        if not kept:
            raise ModelError(
                f"{type(self.network).__name__} gave {', '.join(found) or 'no tensors'} of its requests; its head"
                f" needs {' or '.join(wanted) or 'one'}"
            )
        return kept

    def load_from(self, stored: Mapping[str, Any]) -> None:
        """Load what ``save_pretrained`` wrote."""
        load_strictly(self.network, stored, _REMEDY)


def _tensors(output: Any) -> list[tuple[str, Tensor]]:
    """The tensors of an output; of a tuple numbered: "feature_maps.0"."""
    found: list[tuple[str, Tensor]] = []
    for name, value in output.items():
        numbered = [(f"{name}.{number}", one) for number, one in enumerate(value)] if isinstance(value, tuple) else []
        found += numbered or [(name, value)]
    return [(name, one) for name, one in found if isinstance(one, torch.Tensor)]
