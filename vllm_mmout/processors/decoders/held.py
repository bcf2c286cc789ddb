"""HeldDecoder: the one decoder of a processor; found at the start, loaded once, called by several threads."""

from __future__ import annotations

import os
from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal

from vllm_mmout.errors import OptionError
from vllm_mmout.processors.decoders.kinds import decoder_of
from vllm_mmout.processors.decoders.placing import checked_device, checked_dtype
from vllm_mmout.processors.decoders.threads import decoder_threads

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.processors.decoders.base import TokenDecoder
    from vllm_mmout.tokens import TokenLayout

_MAKERS = {"image": "vq_image", "audio": "codec_audio"}


class HeldDecoder:
    """A decoder and the options that say how it runs.

    Args:
        source: a folder, or an object with ``decode(codes)``.
        modality: what it is to make.
        decoder_class: "package.module:Class"; None: known by the folder's config.json.
        device: None: the CPU, or where an object lies.
        dtype: None: float32, or that of an object.
        threads: of torch while it runs; None: torch's own number.

    Raises:
        OptionError: there is no ``source``, or an option is malformed.

    """

    def __init__(
        self,
        source: Any,
        *,
        modality: Literal["image", "audio"],
        decoder_class: str | None = None,
        device: str | None = None,
        dtype: str | None = None,
        threads: int | None = None,
    ) -> None:
        if source is None:
            raise OptionError(
                f"output processor {_MAKERS[modality]!r} needs the option decoder, a folder; set it in"
                ' additional_config["mmout"] or in the "mmout" table of config.json',
                param="decoder",
            )
        self.source = source
        self._modality = modality
        self._decoder_class = decoder_class
        self._device = device
        self._dtype = checked_dtype(dtype)
        self._threads = threads
        self._lock = Lock()
        self._decoder: TokenDecoder | None = None
        self._loaded = False

    @property
    def folder(self) -> str | os.PathLike[str] | None:
        """Where the decoder lies, None for an object."""
        return self.source if isinstance(self.source, str | os.PathLike) else None

    def check(self, layout: TokenLayout) -> TokenDecoder:
        """Find the decoder and see that the layout fits it; reads its config.json, no weights, and that once.

        Raises:
            OptionError: it cannot be found, or does not fit.
            RegistrationError: its class cannot be imported.

        """
        with self._lock:
            return self._checked(layout)

    def load(self, layout: TokenLayout) -> TokenDecoder:
        """Load the weights, once.

        Raises:
            ModelError: they are damaged, or not all there.
            OptionError: what `check` says, or the device is not there.

        """
        with self._lock:
            decoder = self._checked(layout)
            if not self._loaded:
                decoder.load(self._device, self._dtype)
                self._loaded = True
            return decoder

    def decode(self, layout: TokenLayout, codes: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        """Decode codes of several media of one shape in one forward.

        Args:
            layout: of the model's tokens.
            codes: one a codebook, [n, rows, columns] or [n, codes].

        Returns:
            As `TokenDecoder.decode`, on the decoder's device.

        """
        import torch

        decoder = self.load(layout)
        with torch.inference_mode(), decoder_threads(self._threads):
            return decoder.decode([torch.from_numpy(ids).to(decoder.device) for ids in codes])

    def _checked(self, layout: TokenLayout) -> TokenDecoder:
        if self._decoder is not None:
            return self._decoder
        self._device = checked_device(self._device)
        decoder = decoder_of(self.source, self._decoder_class)
        if decoder.facts is not None:
            where = f"decoder {self.folder}" if self.folder is not None else "the decoder handed in"
            said = f"{where} ({decoder.kind})"
            if decoder.facts.modality != self._modality:
                raise OptionError(
                    f"{said} is one of {decoder.facts.modality}, output processor {_MAKERS[self._modality]!r} needs one"
                    f" of {self._modality}; set output_processor={_MAKERS[decoder.facts.modality]!r}, or name another"
                    " decoder",
                    param="decoder",
                )
            decoder.facts.check_fit(layout, said)
        self._decoder = decoder
        return decoder
