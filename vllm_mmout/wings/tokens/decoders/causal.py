"""Decode sounds in chunks with causal decoders, keeping the state of each layer between the chunks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from vllm_mmout.wings.tokens.decoders.chunks import SoundChunks

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from torch import nn

    from vllm_mmout.wings.tokens.decoders.chunks import Codes


class CausalChunks(SoundChunks):
    """Chunked decoding of a sound with ``EncodecModel`` or ``MimiModel`` of transformers.

    Each layer gets its last inputs again before the new ones, so its outputs equal those for the whole sound.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._layer_states: dict[nn.Module, Any] = {}
        """State of each layer after the previous chunk. A convolution keeps its last inputs [1, channels, time steps].
        An LSTM keeps its hidden state and cell state."""
        self._transformer_cache: Any = None
        """Key-value cache of the decoder's transformer."""
        self._made = 0
        config = model.config
        self.first = int(config.kernel_size) if config.pad_mode == "reflect" else 1
        """Minimum number of frames in the first chunk: the kernel size if the model pads by reflection, else 1."""

    def take(self, codes: Codes, *, ended: bool) -> NDArray[np.float32] | None:
        """Decode the frames that were added to a sound since the last call. ``codes`` holds all frames so far."""
        import torch

        frames = codes[0].size
        if frames <= self._made or (frames < self.first and not ended):
            return None
        new = np.stack([ids[self._made :] for ids in codes])[np.newaxis]
        self._made = frames
        device = next(self._model.parameters()).device
        samples: NDArray[np.float32] = self._decoded(torch.from_numpy(new).to(device))[0].float().cpu().numpy()
        return samples

    def _decoded(self, codes: torch.Tensor) -> torch.Tensor:
        """Decode the codes [1, codebooks, frames] of a chunk to audio samples [1, channels, samples]."""
        model = self._model
        if not hasattr(model, "decoder_transformer"):
            return self._through(model.decoder.layers, model.quantizer.decode(codes.transpose(0, 1)))
        inputs = self._layer(model.upsample, model.quantizer.decode(codes)).transpose(1, 2)
        outputs = model.decoder_transformer(
            inputs, past_key_values=self._transformer_cache, use_cache=True, return_dict=True
        )
        self._transformer_cache = outputs.past_key_values
        return self._through(model.decoder.layers, outputs.last_hidden_state.transpose(1, 2))

    def _through(self, layers: Any, inputs: torch.Tensor) -> torch.Tensor:
        for layer in layers:
            inputs = self._layer(layer, inputs)
        return inputs

    def _layer(self, layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        if hasattr(layer, "block"):
            return self._layer(layer.shortcut, inputs) + self._through(layer.block, inputs)
        if hasattr(layer, "lstm"):
            return self._run_lstm(layer, inputs)
        if hasattr(layer, "trim_right_ratio"):
            return self._run_transposed(layer, inputs)
        outputs: torch.Tensor = self._run_convolution(layer, inputs) if hasattr(layer, "conv") else layer(inputs)
        return outputs

    def _run_lstm(self, layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        """Run a residual LSTM layer from the state of its previous call, and add the inputs to the outputs."""
        steps = inputs.permute(2, 0, 1)
        outputs, self._layer_states[layer] = layer.lstm(steps, self._layer_states.get(layer))
        summed: torch.Tensor = outputs + steps
        return summed.permute(1, 2, 0)

    def _run_convolution(self, layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        """Run a convolution of stride 1. The last inputs of the previous chunk replace the usual padding."""
        import torch

        pad = int(layer.padding_total)
        if layer in self._layer_states:
            inputs = torch.cat([self._layer_states[layer], inputs], dim=-1)
        else:
            inputs = layer._pad1d(inputs, (pad, 0), mode=layer.pad_mode)  # noqa: SLF001 - as its forward does
        self._layer_states[layer] = inputs[..., inputs.shape[-1] - pad :]
        return layer.conv(inputs)  # type: ignore[no-any-return]

    def _run_transposed(self, layer: Any, inputs: torch.Tensor) -> torch.Tensor:
        """Run a transposed convolution, whose outputs also depend on the last inputs of the previous chunk."""
        import torch

        kernel, stride = layer.conv.kernel_size[0], layer.conv.stride[0]
        before = self._layer_states.get(layer)
        length = inputs.shape[-1]
        if before is not None:
            inputs = torch.cat([before, inputs], dim=-1)
        earlier = inputs.shape[-1] - length
        self._layer_states[layer] = inputs[..., max(0, inputs.shape[-1] - (math.ceil(kernel / stride) - 1)) :]
        return layer.conv(inputs)[..., earlier * stride : (earlier + length) * stride]  # type: ignore[no-any-return]


def is_causal(model: Any) -> bool:
    """Return whether a model decodes each frame without later frames, and without statistics of the whole sound."""
    config = model.config
    whole = getattr(config, "norm_type", "weight_norm") != "weight_norm"
    return bool(config.use_causal_conv) and config.trim_right_ratio == 1.0 and not whole
