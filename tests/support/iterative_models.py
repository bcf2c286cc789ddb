"""An iterative model of the tests' own, and what plain PyTorch makes of a request."""

from __future__ import annotations

import weakref
from dataclasses import dataclass

import torch
from torch import nn

from vllm_mmout import MULTIMODAL_INPUT_REGISTRY, register_output_processor
from vllm_mmout.errors import InputError
from vllm_mmout.processors import TensorProcessor

STATES = weakref.WeakSet()
"""The states that are there."""


@dataclass(eq=False)
class State:
    """One request."""

    x: torch.Tensor
    label: torch.Tensor
    steps: int

    def __post_init__(self):
        STATES.add(self)


@register_output_processor(TensorProcessor)
@MULTIMODAL_INPUT_REGISTRY.register_input_mapper(lambda config: lambda data, params: {"label": torch.tensor(data)})
class LabelFlow(nn.Module):
    """Flow matching from noise to a picture of a label; whole 64ths, so that no bit depends on the batch."""

    inputs = ("label",)
    takes = ("guidance_scale",)

    def __init__(self, config):
        super().__init__()
        self.colours = nn.Embedding(8, 3)
        self.colours.weight.data.round_(decimals=1)
        self.side = config.get("side", 8)
        self.batches = []

    def begin(self, inputs, params):
        """Noise of the request's own seed; a label of 7 is refused, and one of 8 is none that there is."""
        if int(inputs["label"]) == 7:
            raise InputError("there is no label 7; ask for 0 to 6")
        generator = torch.Generator().manual_seed(params.seed or 0)
        side = self.side * (2 if int(inputs["label"]) % 2 else 1)
        noise = torch.randn(3, side, side, generator=generator)
        return State(noise, inputs["label"], params.num_inference_steps)

    def step(self, states, steps):
        """One Euler step of each."""
        self.batches.append(sorted(zip([int(state.label) for state in states], steps, strict=True)))
        x = torch.stack([state.x for state in states])
        if any(int(state.label) == 6 and step == 2 for state, step in zip(states, steps, strict=True)):
            raise RuntimeError("label 6 never gets further")
        aims = self.colours(torch.stack([state.label for state in states]))[:, :, None, None]
        left = torch.tensor([state.steps - step for state, step in zip(states, steps, strict=True)])
        x = x + (aims - x) / (2 * left[:, None, None, None])
        return [State(one, state.label, state.steps) for one, state in zip(x, states, strict=True)]

    def finish(self, states):
        """The pictures."""
        return torch.stack([state.x for state in states])


def alone(model, label, steps, seed=0, done=None):
    """What plain PyTorch makes of a request, in so many of its steps."""
    from types import SimpleNamespace

    with torch.inference_mode():
        params = SimpleNamespace(seed=seed, num_inference_steps=steps)
        state = model.begin({"label": torch.tensor(label)}, params)
        for step in range(steps if done is None else done):
            (state,) = model.step([state], [step])
        return model.finish([state])[0].numpy()
