"""EmbeddingProcessor: one vector an input."""

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
    """One vector an input, to compare or to search with, from a model that emits vectors, tokens or a feature map.

    Vectors [n, dim] are taken as they are. Tokens [n, tokens, dim] and feature maps [n, dim, height, width] must be
    pooled, and there is no default for it: a mean and a class token are two different spaces, a model is trained for
    one of them, and of the wrong one nothing would tell but poor matches.

    All is computed in `reduce`, on the device, in float32: one vector a request travels.

    Args:
        tensor: name of the output that holds them, of a model that gives several: "pooler_output".
        pool: "mean" over all tokens (a class token among them) or all pixels; "max" of each component over them; "cls"
            for the first token.
        normalize: divide each vector by its length (L2), so that dot products are cosines. The zero vector stays as
            it is; one with NaN or an infinity has no direction and becomes NaN.
        dtype: "float32" or "float16", of the vector that travels and is returned.

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
        """Pool and normalise: ``dtype`` [n, dim]; ReduceError, too, where a component is too large for float16."""
        import torch

        features = self._features(output)
        if not _VECTORS <= features.ndim <= _MAP or not features.is_floating_point() or 0 in features.shape[1:]:
            raise ReduceError(f"{_TAKES}, got {describe(features)}")
        self._check_pool(features)
        # One request at a time, laid out alike: the order of a sum, and so its last bits, follows the whole tensor.
        vectors = torch.stack([self._vector(request) for request in features])
        return vectors if self._dtype == "float32" else _halved(vectors)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> TensorOutput:
        """Make a `TensorOutput` of one request's vector [dim]."""
        tensor = only_tensor(raw, "a decoded embedding must be one tensor", DecodeError)
        array = own_array(tensor)
        if array.dtype != self._dtype or array.ndim != 1:
            raise not_of_reduce(f"an embedding must come as {self._dtype} [dim] from reduce", tensor)
        return TensorOutput(array)

    def _features(self, output: Raw) -> torch.Tensor:
        given = named(output)
        if self._tensor is None:
            if len(given) > 1:
                raise ReduceError(f"{_TAKES}; the model emits {', '.join(given)}: set the option tensor to one of them")
            return only_tensor(output, _TAKES, ReduceError)
        if self._tensor not in given:
            raise ReduceError(f"the model emits {', '.join(filter(None, given)) or 'one tensor'}, not {self._tensor!r}")
        return given[self._tensor]

    def _check_pool(self, features: torch.Tensor) -> None:
        if features.ndim == _VECTORS:
            if self._pool is not None:
                raise ReduceError(
                    f"the model emits one vector an input, {describe(features)}, which leaves nothing to pool by"
                    f" {self._pool!r}; leave the option pool out"
                )
            return
        what, ways = ("tokens", _POOLS) if features.ndim == _TOKENS else ("a feature map", ("mean", "max"))
        if self._pool not in ways:
            given = "the option pool is not set" if self._pool is None else f"which has no {self._pool!r}"
            raise ReduceError(
                f"the model emits {what}, {describe(features)}, {given}; set pool to {' or '.join(map(repr, ways))},"
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
        if not self._normalize:
            return rows
        # By its largest component first, whose square neither overflows nor vanishes.
        largest = rows.abs().amax()
        scaled = rows / torch.where(largest > 0, largest, 1)
        length: torch.Tensor = torch.linalg.vector_norm(scaled)
        return scaled / length.clamp_min(1)


def _halved(vectors: torch.Tensor) -> torch.Tensor:
    """The vectors as float16; a component that becomes infinite would change the direction of its vector."""
    import torch

    half = vectors.to(torch.float16)
    lost = vectors.isfinite() & half.isinf()
    if lost.any():
        raise ReduceError(
            f"an embedding has a component of size {float(vectors[lost].abs().max()):g}, which float16 cannot hold; set"
            ' the option normalize to true, or dtype to "float32"'
        )
    return half
