"""Define the base class of decoders, and helpers for devices, dtypes and files of weights."""

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
    """Base class of decoders that turn generated codes into pictures or sounds. `load` reads the weights."""

    kind: ClassVar[str]
    """Name of the decoder's type in error messages, such as "mimi"."""

    facts: DecoderFacts | None = None
    """Codebooks, picture grid and sampling rate, against which token layouts are checked. None skips the check."""

    sampling_rate: int | None = None
    """Sampling rate of the decoded sounds in Hz. The value is used only if ``facts`` is None."""

    folder: Path | None = None
    """Folder of the weights. None if ``model`` was given as an object."""

    model: Any = None
    """Loaded decoder network. It is read from ``folder``, or passed in by the user."""

    def load(self, device: str | None, dtype: str | None) -> None:
        """Load the weights onto ``device`` as ``dtype``.

        With None, weights from a folder are loaded on the CPU in float32, and a model given as an object keeps its
        device and dtype.
        """
        import torch

        if self.folder is not None:
            self.model, device, dtype = self.read(self.folder, torch_dtype(dtype)), device or "cpu", None
        if isinstance(self.model, torch.nn.Module):
            self.model = moved(self.model, device, dtype)

    @property
    def device(self) -> torch.device:
        """Return the device of the loaded weights. The codes passed to `decode` must be on this device."""
        return device_of(self.model)

    def read(self, folder: Path, dtype: torch.dtype) -> Any:
        """Read the weights from a folder. Raise a ModelError if they are damaged or incomplete."""
        raise NotImplementedError(f"{type(self).__name__} has a folder and must define read(folder, dtype)")

    def causal(self) -> CausalChunks | None:
        """Create a decoder for one sound that decodes chunk by chunk, and carries the layers' state between the chunks.

        Return None if the decoder does not support this. Each chunk is then decoded together with the frames around it.
        """
        return None

    def unit(self, rates: Sequence[int]) -> int:
        """Return the smallest number of audio frames that this decoder can decode together.

        Every chunk of a sound begins at a multiple of this number of frames.

        ``rates`` holds the number of codes per frame of each codebook.
        """
        return 1

    @abstractmethod
    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode the codes of several pictures of equal size, or of several sounds of equal length.

        Args:
            codes: int64, one tensor per codebook: [n, rows, columns] for pictures, [n, codes] for sounds.

        Returns:
            A floating-point tensor: pixels [n, channels, height, width], or samples [n, channels, samples] or
            [n, samples].

        """


@dataclass(frozen=True)
class DecoderFacts:
    """Properties of a decoder that are known before its weights are read."""

    modality: Literal["image", "audio"]
    """Kind of the results: pictures or sounds."""
    codebooks: int
    """Number of codebooks."""
    codebook_size: int
    """Number of codes in each codebook."""
    accepts_fewer: bool = False
    """Whether the decoder also accepts the codes of only the first codebooks, for a coarser sound."""
    strides: tuple[int, ...] | None = None
    """Duration of a code in each codebook, as a multiple of the shortest duration. None if all durations are equal.

    With (4, 2, 1), for example, a code of the first codebook lasts as long as four codes of the last codebook.
    """
    grid: tuple[int, int] | None = None
    """Rows and columns of codes in each picture. None if the decoder can make pictures of any size."""
    sampling_rate: int | None = None
    """Sampling rate of each channel in Hz, or None for pictures."""

    def check_fit(self, layout: TokenLayout, decoder_name: str) -> None:
        """Raise an OptionError if the decoder cannot decode the codes of ``layout``.

        ``decoder_name`` names the decoder in the message, such as "decoder mimi/ (mimi)".
        """
        self._check_codebooks(layout, decoder_name)
        self._check_rates(layout, decoder_name)
        if self.grid is not None and layout.grid != self.grid:
            rows, columns = self.grid
            layout_grid = f"grid {list(layout.grid)}" if layout.grid else "no fixed grid"
            raise OptionError(
                f"layout has {layout_grid}, but {decoder_name} decodes only {rows} rows of {columns} codes; set"
                f" grid=[{rows}, {columns}], or name the decoder that the model was trained with",
                param="layout",
            )

    def _check_codebooks(self, layout: TokenLayout, decoder_name: str) -> None:
        sizes = {slot.stop - slot.first for slot in layout.slots}
        enough = layout.codebooks <= self.codebooks if self.accepts_fewer else layout.codebooks == self.codebooks
        if enough and sizes == {self.codebook_size}:
            return
        codes = " and ".join(map(str, sorted(sizes)))
        fewer_note = ", and also accepts fewer codebooks, but not more or different ones" if self.accepts_fewer else ""
        raise OptionError(
            f"layout has {_counted(layout.codebooks)} of {codes} codes, but {decoder_name} has {self.codebooks} of"
            f" {self.codebook_size}{fewer_note}; correct the layout's codebooks and size, or name the decoder that the"
            " model was trained with",
            param="layout",
        )

    def _check_rates(self, layout: TokenLayout, decoder_name: str) -> None:
        slots = Counter(slot.codebook for slot in layout.slots)
        layout_rates = _reduced([slots[codebook] for codebook in range(layout.codebooks)])
        finest = math.lcm(*self.strides) if self.strides else 1
        decoder_rates = _reduced(
            [finest // stride for stride in self.strides] if self.strides else [1] * layout.codebooks
        )
        if layout_rates != decoder_rates:
            raise OptionError(
                f"layout has {_listed(layout_rates)} codes per frame in its codebooks, {decoder_name} needs"
                f" {_listed(decoder_rates)}; correct the layout's order and pattern, or name the decoder that the model"
                " was trained with",
                param="layout",
            )


def _reduced(counts: list[int]) -> list[int]:
    """Reduce the ratio of ``counts`` to lowest terms, for example [2, 4, 8] to [1, 2, 4]."""
    common = math.gcd(*counts)
    return [count // common for count in counts]


def _listed(counts: list[int]) -> str:
    return " : ".join(map(str, counts))


def _counted(codebooks: int) -> str:
    return "1 codebook" if codebooks == 1 else f"{codebooks} codebooks"


_WEIGHTS = ("*.safetensors", "*.bin")
DTYPES = ("float32", "float16", "bfloat16", "float64")
"""Values that the option ``dtype`` accepts."""


def checked_dtype(dtype: object) -> str | None:
    """Return the option ``dtype``. Raise an OptionError if it is not one of `DTYPES`."""
    if dtype is not None and dtype not in DTYPES:
        raise OptionError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}", param="dtype")
    return None if dtype is None else str(dtype)


def checked_device(device: object) -> str | None:
    """Return ``device`` as text. Raise an OptionError if it is not the name of a torch device, such as "cuda:0".

    None is returned unchanged. Whether this machine has the device is not checked.
    """
    import torch

    if device is None:
        return None
    try:
        return str(torch.device(str(device)))
    except RuntimeError:
        raise OptionError(f'device must be "cpu", "cuda" or "cuda:0", got {device!r}', param="device") from None


def torch_dtype(dtype: str | None) -> torch.dtype:
    """Return the torch dtype with a given name, or float32 for None."""
    import torch

    value: torch.dtype = getattr(torch, dtype or "float32")
    return value


def moved(module: nn.Module, device: str | None, dtype: str | None) -> nn.Module:
    """Move a module to ``device`` and ``dtype``, and set evaluation mode. None leaves either unchanged."""
    module = module if dtype is None else module.to(torch_dtype(dtype))
    try:
        return (module if device is None else module.to(device)).eval()
    except (RuntimeError, AssertionError) as error:  # torch without CUDA asserts
        raise OptionError(
            f"the decoder cannot be moved to device {device!r}: {error}; choose another device", param="device"
        ) from error


def device_of(module: object) -> torch.device:
    """Return the device of a module's weights. A module without weights counts as on the CPU."""
    import torch

    for kind in ("parameters", "buffers"):
        tensor = next(iter(getattr(module, kind, list)()), None)
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")


@contextmanager
def decoder_threads(count: int | None) -> Iterator[None]:
    """Limit torch to ``count`` CPU threads inside a ``with`` block. None leaves the number unchanged."""
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
    """Read the JSON object in a file. Raise an OptionError if the file is unreadable or contains no JSON object."""
    try:
        table = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise OptionError(f"{path} cannot be read: {error}; download it again", param="decoder") from error
    if not isinstance(table, dict):
        raise OptionError(f"{path} must hold a table, got {type(table).__name__}; download it again", param="decoder")
    return table


def check_weights(folder: Path) -> None:
    """Raise an OptionError if a folder lacks files of weights. The weights are not read."""
    if not any(path for pattern in _WEIGHTS for path in folder.glob(pattern)):
        raise OptionError(
            f"decoder folder {folder} has no weights ({' or '.join(_WEIGHTS)}); save them there with save_pretrained,"
            " or download the whole decoder",
            param="decoder",
        )
