"""Adapt a plain PyTorch model to the interface of vLLM's models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import torch
from torch import nn
from transformers import PreTrainedModel
from vllm.model_executor.layers.pooler import IdentityPooler
from vllm.model_executor.models.interfaces import IsAttentionFree, SupportsMultiModal
from vllm.model_executor.models.interfaces_base import is_vllm_model
from vllm.multimodal import MULTIMODAL_REGISTRY

from vllm_mmout.errors import InputError, MMOutError, ModelError, message_of, raise_interrupt, type_and_message
from vllm_mmout.importing import import_path
from vllm_mmout.log import logger
from vllm_mmout.models.author import build, load_strictly, run
from vllm_mmout.models.compiled import compile_model
from vllm_mmout.models.config import config_json
from vllm_mmout.models.inputs.engine_input import FIELD, as_tensor, tensors_of, tiles_of
from vllm_mmout.models.inputs.keywords import Keywords
from vllm_mmout.models.kind import kind_of
from vllm_mmout.models.model_folders import served_class
from vllm_mmout.models.processing import SinglePassDummyInputs, SinglePassInfo, SinglePassProcessor, inputs_of
from vllm_mmout.params import OutputParams
from vllm_mmout.processors.raw import each

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.pool.metadata import PoolingMetadata

    from vllm_mmout.processors.base import Raw

_adapters: dict[str, type[SinglePassModel]] = {}


def adapter_of(architecture: str) -> type[nn.Module]:
    """Return the class that vLLM runs for a model: an adapter, or the model class itself if it is written for vLLM."""
    author = served_class(architecture)
    if is_vllm_model(author):
        return author
    if architecture not in _adapters:  # create each class once, since vLLM keeps a reference to it
        kind = kind_of(author)
        base: Any = SinglePassModel if kind is None else import_path(kind.adapter, "adapter")
        _adapters[architecture] = type(architecture, (base,), {"architecture": architecture})
    return _adapters[architecture]


@MULTIMODAL_REGISTRY.register_processor(SinglePassProcessor, info=SinglePassInfo, dummy_inputs=SinglePassDummyInputs)
class SinglePassModel(nn.Module, IsAttentionFree, SupportsMultiModal):
    """Base class of vLLM models that wrap a plain PyTorch model. Requests with equal input shapes run in one batch."""

    supports_multimodal_raw_input_only = True
    is_pooling_model = True
    attn_type = "attention_free"
    architecture: ClassVar[str]
    measuring = False
    """True while vLLM measures memory at start-up. During this time, an error in the model stops the engine."""

    def __init__(self, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        author = served_class(self.architecture)
        config = config_json(vllm_config.model_config.hf_config)
        self.model = build(author, config)
        self.pooler: nn.Module = PlainPooler()
        self._forward: Callable[[Mapping[str, torch.Tensor]], Raw] = partial(run, self.model)
        self._keywords = Keywords.of(author, config).names
        self._dtype = getattr(self.model, "dtype", None) if isinstance(self.model, PreTrainedModel) else None
        self._model_config = vllm_config.model_config
        self._device = torch.device(str(vllm_config.device_config.device))

    @classmethod
    def get_placeholder_str(cls, modality: str, i: int) -> str | None:
        """Return None, because inputs are not represented by text in the prompt."""
        return None

    def embed_input_ids(self, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Return embeddings of size 0, because a plain PyTorch model does not use the prompt's tokens."""
        return torch.empty((input_ids.shape[0], 0), device=input_ids.device)

    def forward(
        self,
        input_ids: torch.Tensor | None,
        positions: torch.Tensor,
        intermediate_tensors: Any = None,
        inputs_embeds: torch.Tensor | None = None,
        **inputs: Any,
    ) -> torch.Tensor:
        """Run the wrapped PyTorch model once for each group of requests whose tensors have equal shapes and dtypes.

        A failure affects only its request: if a group fails, each of its requests is run alone. This method never
        raises, because an exception would crash the engine. A failure outside the model becomes the error of all
        requests in the step. ``inputs`` holds each request's tensors, in the order of the model's keywords. A
        request with a block of tiles is run on its own. If the outputs are not a single tensor, for example if there
        are several groups or a block of tiles, the result is a `PerRequest`.
        """
        try:
            return self._outcomes(inputs[FIELD])
        except BaseException as error:
            raise_interrupt(error)
            if self.measuring:
                raise
            logger.exception("a step of %s failed", self.architecture)
            failure = ModelError(f"the requests of a step of {self.architecture} failed: {type_and_message(error)}")
            return PerRequest.of([failure] * positions.shape[-1], self._device)

    def _outcomes(self, values_of_requests: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        requests = [self._taken(tensors_of(values, self._keywords)) for values in values_of_requests]
        outcomes: list[RequestOutcome] = [torch.empty(0)] * len(requests)
        groups: dict[tuple[Any, ...], list[int]] = {}
        for row, (values, tensors) in enumerate(zip(values_of_requests, requests, strict=True)):
            if (tiles := tiles_of(values, self._keywords)) is not None:
                outcomes[row] = self._run_tiles(tensors, tiles)
                continue
            likeness = tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())
            groups.setdefault(likeness, []).append(row)
        for rows in groups.values():
            alike = [requests[row] for row in rows]
            output = self._run(_stacked(alike))
            if isinstance(output, torch.Tensor) and len(rows) == len(requests):
                return output
            if isinstance(output, MMOutError) and len(rows) > 1:
                parts = [_parts(self._run(_stacked([tensors])), 1)[0] for tensors in alike]
            else:
                parts = _parts(output, len(rows))
            for row, part in zip(rows, parts, strict=True):
                outcomes[row] = part
        return PerRequest.of(outcomes, self._device)

    def _run_tiles(self, tensors: dict[str, torch.Tensor], count: int) -> RequestOutcome:
        """Run a request's tiles in a batch, or one by one if the batch fails. Return the outputs or the first error."""
        output = self._run(_cloned(tensors))
        if not isinstance(output, MMOutError):
            return BlockOutput(output, count)
        outputs: list[Raw] = []
        for number in range(count):
            tile = {name: tensor[number : number + 1] for name, tensor in tensors.items()}
            output = self._run(_cloned(tile)) if count > 1 else output
            if isinstance(output, MMOutError):
                output.tile = number
                return output
            outputs.append(output)
        return BlockOutput(each(lambda *parts: torch.cat(parts), *outputs), count)

    def _run(self, batch: Mapping[str, torch.Tensor]) -> Outcome:
        """Run ``forward`` on a batch, and return its output or error. The model may change the tensors in place."""
        try:
            return self._forward(batch)
        except (InputError, ModelError) as error:
            count = len(next(iter(batch.values())))
            if self.measuring:
                raise ModelError(
                    f"{error}. vLLM measures memory with as many inputs of the largest size as a step can hold,"
                    f" {count}: if that is too much, lower max_num_seqs"
                ) from error
            logger.debug("a group of %d requests failed", count, exc_info=error)
            kind = InputError if isinstance(error, InputError) else ModelError
            return kind(message_of(error))  # a new error without frames, which would keep forward's tensors in memory

    def _taken(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Copy tensors to the model's device. For a transformers model, also convert floats to the model's dtype."""
        tensors = {name: tensor.to(self._device, non_blocking=True) for name, tensor in tensors.items()}
        if self._dtype is None:
            return tensors
        return {
            name: tensor.to(self._dtype) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
        }

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> set[str]:
        """Load weights into the wrapped PyTorch model. Raise ModelError if names, shapes or dtypes do not match."""
        try:
            stored = dict(weights)
        except Exception as error:
            raise ModelError(
                f"the weights of model {type(self.model).__name__} cannot be read from {self._model_config.model}:"
                f" {type_and_message(error)}; put there what safetensors.torch.save_file(model.state_dict(),"
                ' "model.safetensors") writes'
            ) from error
        # A class whose checkpoints have their own format defines `load_from`.
        load = getattr(self.model, "load_from", None) or partial(load_strictly, self.model)
        load(stored)
        return {name for name, _ in self.named_parameters()}

    def try_out(self) -> None:
        """Run the model once on its dummy input, so that errors in its code appear at engine start."""
        if (dummy := self._dummy()) is not None:
            with torch.inference_mode():
                run(self.model, _stacked([dummy]))

    def compile_forward(self, max_batch: int, *, if_faster: bool) -> None:
        """Compile the wrapped PyTorch model for inputs of the maximum size, in batches of up to ``max_batch`` requests.

        If ``if_faster`` is True, the compiled model is used only if it is faster.
        """
        if (dummy := self._dummy()) is None:
            logger.warning(
                "%s is not compiled: nothing says how large its inputs are; give its mapper `inputs`", self.architecture
            )
            return
        with torch.inference_mode():
            forward = compile_model(self.model, dummy, max_batch, if_faster=if_faster)
        if forward is not None:
            self._forward = forward.run

    def _dummy(self) -> dict[str, torch.Tensor] | None:
        """Return the tensors of an input of maximum size, without a batch axis. Return None if the size is unknown."""
        inputs = inputs_of(self._model_config)
        if (dummy := inputs.dummy()) is None:
            return None
        mapped = inputs.map(dummy, OutputParams())
        tensors = self._taken({name: as_tensor(value).to(self._device) for name, value in mapped.tensors.items()})
        return {name: tensors[name] for name in self._keywords if name in tensors}


def _stacked(alike: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Stack the tensors of requests with equal shapes, separately for each keyword of ``forward``.

    Even a single request is copied, because a model may change its input in place, and the memory may be the user's.
    """
    return {name: torch.stack([tensors[name] for tensors in alike]) for name in alike[0]}


def _cloned(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy a request's tensors for ``forward``, which may change the copies. A retry needs the original tensors."""
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()}


def _parts(output: Any, count: int) -> list[Outcome]:
    if isinstance(output, MMOutError):
        return [output] * count
    return [each(itemgetter(row), output) for row in range(count)]


@dataclass(frozen=True, slots=True)
class BlockOutput:
    """Output of ``forward`` for one request that holds several tiles of a large input."""

    output: Raw
    """Tensor or dict of tensors with the tiles on axis 0."""
    count: int
    """Number of tiles."""


Outcome: TypeAlias = "Raw | MMOutError"
"""Output of ``forward`` for one input, or the error that it raised."""
RequestOutcome: TypeAlias = "Outcome | BlockOutput"
"""Output of ``forward`` for one input or for several tiles, or the error that it raised."""


class PerRequest(torch.Tensor):
    """Tensor that carries a separate output or error of each request through vLLM, which accepts only one tensor.

    Its shape is [requests, 0]. The attribute ``parts`` holds each request's output or error. vLLM slices the tensor
    along axis 0 and passes it to the pooler, as it does with any output of ``forward``.
    """

    parts: list[RequestOutcome]

    @staticmethod
    def of(parts: Sequence[RequestOutcome], device: torch.device) -> PerRequest:
        """Create a `PerRequest` tensor of ``parts``, the outputs or errors of the requests, on ``device``."""
        wrapped = torch.empty((len(parts), 0), device=device).as_subclass(PerRequest)
        wrapped.parts = [*parts]
        return wrapped

    def __getitem__(self, item: Any) -> Any:
        """Slice along axis 0, as vLLM does to select requests of a batch."""
        if isinstance(item, slice):
            return PerRequest.of(self.parts[item], self.device)
        return super().__getitem__(item)


class PlainPooler(IdentityPooler):
    """Pooler that returns the model's raw output, without any pooling."""

    def forward(self, hidden_states: torch.Tensor, pooling_metadata: PoolingMetadata) -> Any:
        """Return one tensor with the requests on axis 0, or a list with one tensor for each request."""
        if isinstance(hidden_states, PerRequest):
            return [plain(part) for part in hidden_states.parts]
        return hidden_states


def plain(outcome: RequestOutcome) -> torch.Tensor:
    """Return the output of one request as a plain tensor. If the model returned several tensors, return the first.

    If the model failed for the request, return an empty tensor.
    """
    if isinstance(outcome, MMOutError):
        logger.error("a request for raw tensors failed and gets an empty one: %s", outcome)
        return torch.empty(0)
    if isinstance(outcome, BlockOutput):
        outcome = outcome.output
    return outcome if isinstance(outcome, torch.Tensor) else next(iter(outcome.values()))
