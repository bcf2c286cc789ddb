"""TokenDecoder: what all decoders have in common, what is known before weights are read, and where they run."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from vllm_mmout.errors import OptionError

if TYPE_CHECKING:
    from pathlib import Path

    import torch
    from torch import nn

    from vllm_mmout.wings.tokens.decoders.causal import CausalChunks
    from vllm_mmout.wings.tokens.layouts import TokenLayout


class TokenDecoder(ABC):
    """A decoder that was found and whose config.json was read; its weights come with ``load``."""

    kind: ClassVar[str]
    """What it is called in messages."""

    facts: DecoderFacts | None = None
    """What it takes; None: not known, so that nothing can be checked."""

    sampling_rate: int | None = None
    """Samples of a channel in a second, Hz, where it says so without further facts."""

    folder: Path | None = None
    """Where the weights lie; None: they are in ``model``."""

    model: Any = None
    """What decodes: loaded, or handed in."""

    def load(self, device: str | None, dtype: str | None) -> None:
        """Load the weights; None: on the CPU in float32, or as a model that was handed in has them."""
        import torch

        if self.folder is not None:
            self.model, device, dtype = self.read(self.folder, torch_dtype(dtype)), device or "cpu", None
        if isinstance(self.model, torch.nn.Module):
            self.model = moved(self.model, device, dtype)

    @property
    def device(self) -> torch.device:
        """Where the codes must lie; known once the weights are loaded."""
        return device_of(self.model)

    def read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read the weights; raises a ModelError where they are damaged, or not all there."""
        raise NotImplementedError(f"{type(self).__name__} has a folder and must define read(folder, dtype)")

    def causal(self) -> CausalChunks | None:
        """Begin a sound whose layers remember what they need; None: chunks are decoded with the frames around them."""
        return None

    def unit(self, rates: Sequence[int]) -> int:
        """Frames, of so many codes a codebook, that are decoded together: a part must begin at a multiple of them."""
        return 1

    @abstractmethod
    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes of several media of one shape.

        Args:
            codes: int64, one a codebook: [n, rows, columns] of pictures, [n, codes] of sounds.

        Returns:
            Floating point: [n, channels, height, width], [n, channels, samples] or [n, samples].

        """


@dataclass(frozen=True)
class DecoderFacts:
    """What is known of a decoder before its weights are read."""

    modality: Literal["image", "audio"]
    """What it makes."""
    codebooks: int
    """Codebooks that it has."""
    codebook_size: int
    """Codes of each."""
    fewer: bool = False
    """Whether it decodes with its first codebooks alone."""
    strides: tuple[int, ...] | None = None
    """Steps of the finest codebook that a code of each codebook stands for; None: all have one rate."""
    grid: tuple[int, int] | None = None
    """Rows and columns of the only picture that it decodes; None: any."""
    sampling_rate: int | None = None
    """Samples of a channel in a second, Hz."""

    def check_fit(self, layout: TokenLayout, said: str) -> None:
        """Refuse a layout whose codes would not be taken as they are meant; ``said`` is as "decoder mimi/ (mimi)"."""
        self._check_codebooks(layout, said)
        self._check_rates(layout, said)
        if self.grid is not None and layout.grid != self.grid:
            rows, columns = self.grid
            given = f"grid {list(layout.grid)}" if layout.grid else "no fixed grid"
            raise OptionError(
                f"layout has {given}, {said} decodes {rows} rows of {columns} codes only; set grid=[{rows}, {columns}],"
                " or name the decoder that the model was trained with",
                param="layout",
            )

    def _check_codebooks(self, layout: TokenLayout, said: str) -> None:
        sizes = {slot.stop - slot.first for slot in layout.slots}
        enough = layout.codebooks <= self.codebooks if self.fewer else layout.codebooks == self.codebooks
        if enough and sizes == {self.codebook_size}:
            return
        codes = " and ".join(map(str, sorted(sizes)))
        also = " and decodes with fewer codebooks, not with more or with others" if self.fewer else ""
        raise OptionError(
            f"layout has {_counted(layout.codebooks)} of {codes} codes, {said} has {self.codebooks} of"
            f" {self.codebook_size}{also}; correct the layout's codebooks and size, or name the decoder that the model"
            " was trained with",
            param="layout",
        )

    def _check_rates(self, layout: TokenLayout, said: str) -> None:
        slots = Counter(slot.codebook for slot in layout.slots)
        given = _reduced([slots[codebook] for codebook in range(layout.codebooks)])
        finest = math.lcm(*self.strides) if self.strides else 1
        taken = _reduced([finest // stride for stride in self.strides] if self.strides else [1] * layout.codebooks)
        if given != taken:
            raise OptionError(
                f"layout has codebooks of {_listed(given)} codes a frame, {said} takes {_listed(taken)}; correct the"
                " layout's order and pattern, or name the decoder that the model was trained with",
                param="layout",
            )


def _reduced(counts: list[int]) -> list[int]:
    """Counts in lowest terms: only their ratio matters."""
    common = math.gcd(*counts)
    return [count // common for count in counts]


def _listed(counts: list[int]) -> str:
    return " : ".join(map(str, counts))


def _counted(codebooks: int) -> str:
    return "1 codebook" if codebooks == 1 else f"{codebooks} codebooks"


_WEIGHTS = ("*.safetensors", "*.bin")
DTYPES = ("float32", "float16", "bfloat16", "float64")
"""Names that the option ``dtype`` takes."""


def checked_dtype(dtype: object) -> str | None:
    """An option ``dtype``."""
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}", param="dtype")
    return None if dtype is None else str(dtype)


def checked_device(device: object) -> str | None:
    """An option ``device``; whether there is such a device shows when the decoder is loaded."""
    import torch

    if device is None:
        return None
    try:
        return str(torch.device(str(device)))
    except RuntimeError:
        raise OptionError(f'device must be "cpu", "cuda" or "cuda:0", got {device!r}', param="device") from None


def torch_dtype(dtype: str | None) -> torch.dtype:
    """The dtype of a name, float32 without one."""
    import torch

    found: torch.dtype = getattr(torch, dtype or "float32")
    return found


def moved(module: nn.Module, device: str | None, dtype: str | None) -> nn.Module:
    """A module for evaluation; moved, or of another dtype, only where something is said."""
    module = module if dtype is None else module.to(torch_dtype(dtype))
    try:
        return (module if device is None else module.to(device)).eval()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise OptionError(
            f"the decoder cannot be moved to device {device!r}: {error}; choose another one", param="device"
        ) from error


def device_of(module: object) -> torch.device:
    """Where the weights of a module lie; the CPU for one without."""
    import torch

    for kind in ("parameters", "buffers"):
        found = next(iter(getattr(module, kind, list)()), None)
        if isinstance(found, torch.Tensor):
            return found.device
    return torch.device("cpu")


@contextmanager
def decoder_threads(count: int | None) -> Iterator[None]:
    """Have torch use so many threads for what this thread runs, and as many as before afterwards; None: as it is."""
    import torch

    before = torch.get_num_threads()
    if count is None or count == before:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def read_table(path: Path) -> Mapping[str, Any]:
    """The table of a JSON file."""
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}; download it again", param="decoder") from error
    if not isinstance(table, dict):
        raise OptionError(f"{path} must hold a table, got {type(table).__name__}; download it again", param="decoder")
    return table


def check_weights(folder: Path) -> None:
    """Refuse a folder without a file of weights; none is read."""
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise OptionError(
            f"decoder folder {folder} has no weights ({' or '.join(_WEIGHTS)}); save them there with save_pretrained,"
            " or download the whole decoder",
            param="decoder",
        )
