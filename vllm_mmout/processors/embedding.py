"""`EmbeddingProcessor`, which returns one embedding vector for each input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError, OptionError, ReduceError
from vllm_mmout.outputs import TensorOutput
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import checked_switch
from vllm_mmout.processors.raw import describe, named, not_of_reduce, only_tensor, own_array

if TYPE_CHECKING:
    import torch

    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

_TAKES = (
    "embedding output must be floating point: vectors [n, dim], tokens [n, tokens, dim] or a feature map"
    " [n, dim, height, width]"
)
_VECTORS, _TOKENS, _MAP = 2, 3, 4  # numbers of axes
_POOLS = ("mean", "cls", "max")
_DTYPES = ("float32", "float16")


class EmbeddingProcessor(OutputProcessor):
    """Processor for models that compute embeddings. It returns one vector for each input.

    The model returns vectors, tokens or a feature map.

    Vectors [n, dim] are taken unchanged. Tokens [n, tokens, dim] and feature maps [n, dim, height, width] must be
    pooled. Pooling has no default: a mean and a class token are two different spaces, a model is trained for one of
    them, and the wrong choice shows only in poor matches.

    `reduce` computes everything, on the device, in float32: one vector is sent for each request.

    Args:
        tensor: name of the output to use if the model emits several, such as "pooler_output".
        pool: "mean" over all tokens (including a class token) or all pixels; "max" of each component over them; "cls"
            for the first token.
        normalize: divide each vector by its length (L2), so that dot products are cosines. The zero vector is
            unchanged; a vector with NaN or an infinity has no direction and becomes NaN.
        dtype: "float32" or "float16", for the vector that is sent and returned.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "embedding"
    modality: ClassVar[str] = "tensor"

    def __init__(
        self, *, tensor: str | None = None, pool: str | None = None, normalize: bool = False, dtype: str = "float32"
    ) -> None:
        if tensor is not None and (not isinstance(tensor, str) or not tensor):
            raise OptionError(f"tensor must be the name of an output of the model, or left out, got {tensor!r}")
        if pool is not None and pool not in _POOLS:
            raise OptionError(f"pool must be one of {', '.join(_POOLS)}, or left out, got {pool!r}")
        if dtype not in _DTYPES:
            raise OptionError(f"dtype must be one of {', '.join(_DTYPES)}, got {dtype!r}")
        self._tensor = tensor
        self._pool = pool
        self._normalize = checked_switch("normalize", normalize)
        self._dtype = dtype

    def reduce(self, output: Raw, params: OutputParams) -> torch.Tensor:
        """Pool and normalise the model's output as the options say. Return vectors [n, dim].

        Raise ReduceError if the output has a wrong shape or dtype, or a component is too large for float16.
        """
        import torch

        features = tensor_named(output, self._tensor, _TAKES)
        if not _VECTORS <= features.ndim <= _MAP or not features.is_floating_point() or 0 in features.shape[1:]:
            raise ReduceError(f"{_TAKES}, got {describe(features)}")
        self._check_pool(features)
        # One request at a time, with the same memory layout: the order of a sum, and so its last bits, depends on it.
        vectors = torch.stack([self._vector(request) for request in features])
        return vectors if self._dtype == "float32" else halved(vectors)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> TensorOutput:
        """Build a `TensorOutput` from the vector [dim] of one request."""
        tensor = only_tensor(raw, "a decoded embedding must be one tensor", DecodeError)
        array = own_array(tensor)
        if array.dtype != self._dtype or array.ndim != 1:
            raise not_of_reduce(f"an embedding must come as {self._dtype} [dim] from reduce", tensor)
        return TensorOutput(array)

    def _check_pool(self, features: torch.Tensor) -> None:
        if features.ndim == _VECTORS:
            if self._pool is not None:
                raise ReduceError(
                    f"the model emits one vector an input, {describe(features)}, which leaves nothing to pool by"
                    f" {self._pool!r}; leave the option pool out"
                )
            return
        kind, pools = ("tokens", _POOLS) if features.ndim == _TOKENS else ("a feature map", ("mean", "max"))
        if self._pool not in pools:
            problem = "the option pool is not set" if self._pool is None else f"which has no {self._pool!r}"
            raise ReduceError(
                f"the model emits {kind}, {describe(features)}, {problem}; set pool to {' or '.join(map(repr, pools))},"
                " the one that the model was trained for"
            )

    def _vector(self, features: torch.Tensor) -> torch.Tensor:
        import torch

        rows = features.flatten(1).T if features.ndim == _MAP - 1 else features  # [tokens or pixels, dim], or [dim]
        if self._pool == "cls":
            rows = rows[0]
        rows = rows.to(torch.float32).contiguous()
        if self._pool == "mean":
            rows = rows.mean(dim=0)
        elif self._pool == "max":
            rows = rows.amax(dim=0)
        return unit_vectors(rows, dim=0) if self._normalize else rows


def tensor_named(output: Raw, name: str | None, takes: str, default: str | None = None) -> torch.Tensor:
    """Return the tensor named ``name`` from a model's output. Raise ReduceError if no tensor has this name.

    If ``name`` is None, return the tensor named ``default``, or the only tensor if no tensor is named ``default``.
    ``takes`` describes the accepted outputs, for messages.
    """
    tensors = named(output)
    if name is None and default in tensors:
        name = default
    if name is None:
        if len(tensors) > 1:
            raise ReduceError(f"{takes}; the model emits {', '.join(tensors)}: set the option tensor to one of them")
        return only_tensor(output, takes, ReduceError)
    if name not in tensors:
        raise ReduceError(f"the model emits {', '.join(filter(None, tensors)) or 'one tensor'}, not {name!r}")
    return tensors[name]


def unit_vectors(vectors: torch.Tensor, dim: int) -> torch.Tensor:
    """Divide float32 vectors along the axis ``dim`` by their length. Zero vectors are unchanged."""
    import torch

    # Scale by the largest component first, so that its square neither overflows nor underflows.
    largest = vectors.abs().amax(dim=dim, keepdim=True)
    scaled = vectors / torch.where(largest > 0, largest, 1)
    length: torch.Tensor = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return scaled / length.clamp_min(1)


def halved(vectors: torch.Tensor) -> torch.Tensor:
    """Convert vectors to float16. Raise ReduceError if a component is too large."""
    import torch

    halved = vectors.to(torch.float16)
    overflowed = vectors.isfinite() & halved.isinf()
    if overflowed.any():
        raise ReduceError(
            f"an embedding has a component of size {float(vectors[overflowed].abs().max()):g}, which float16 cannot"
            ' hold; set the option normalize to true, or dtype to "float32"'
        )
    return halved
