"""DecoderProcessor: what the processors of pictures and sounds share, a decoder found at the start and loaded once."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.tokens.decoders.base import checked_device, checked_dtype, decoder_threads
from vllm_mmout.wings.tokens.decoders.lookup import decoder_of, located
from vllm_mmout.wings.tokens.processors.base import TokenProcessor

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout

_MAKERS = {"image": "vq_image", "audio": "codec_audio"}


class DecoderProcessor(TokenProcessor):
    """Media of a token model, made by a decoder from a local folder.

    Args:
        decoder: the decoder's folder, relative to the model's; from Python also an object with ``decode(codes)``.
        decoder_class: "package.module:Class" with ``from_pretrained(folder)`` and ``decode(codes)``; None: known by
            the folder's config.json.
        device: where the decoder runs, "cpu" or "cuda:0"; None: the CPU, or where an object lies.
        dtype: "float32", "bfloat16", ...; None: float32, or that of an object.
        layout, threads, max_batch, batch_wait_ms, prompt: as of `TokenProcessor`.

    """

    makes: ClassVar[Literal["image", "audio"]]
    """What the decoder makes, and the layout must be of."""

    def __init__(  # noqa: PLR0917 - what both constructors, which have names alone, hand on in their order
        self,
        layout: TokenLayout | Mapping[str, Any] | None,
        decoder: Any,
        decoder_class: str | None,
        device: str | None,
        dtype: str | None,
        threads: int | None,
        max_batch: int,
        batch_wait_ms: float,
        prompt: str | None,
    ) -> None:
        super().__init__(
            layout=layout, threads=threads, max_batch=max_batch, batch_wait_ms=batch_wait_ms, prompt=prompt
        )
        if self.layout.modality != self.makes:
            raise OptionError(
                f"layout is of {self.layout.modality}, output processor {self.name!r} makes {self.makes}; correct its"
                " modality, or name the other output processor",
                param="layout",
            )
        if decoder is None:
            raise OptionError(
                f"output processor {_MAKERS[self.makes]!r} needs the option decoder, a folder; set it in"
                ' additional_config["mmout"] or in the "mmout" table of config.json',
                param="decoder",
            )
        self._source = decoder
        self.decoder_folder = Path(decoder) if isinstance(decoder, str | os.PathLike) else None
        """Where the decoder lies, None for one that was handed in."""
        self._decoder_class = decoder_class
        self._device = device
        self._dtype = checked_dtype(dtype)
        self._lock = Lock()
        self._decoder: TokenDecoder | None = None
        self._ready = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process, and see that decoder and layout fit; no weights are read."""
        given = dict(options)
        if isinstance(given.get("decoder"), str | os.PathLike):
            given["decoder"] = located(given["decoder"], config.get("_name_or_path"))
        made = cls(**given)
        made._prepare(made._found())
        return made

    def load(self) -> None:
        """Load the decoder's weights, once; requests would do it otherwise, the first one waiting."""
        self._loaded()

    @abstractmethod
    def _prepare(self, decoder: TokenDecoder) -> None:
        """Take from the decoder's folder what else is needed; called at the start, and when it is loaded."""

    def _decoded(self, media: Sequence[Medium]) -> torch.Tensor:
        """What the decoder makes of media of one shape, in one forward."""
        import torch

        decoder = self._loaded()
        codes = [np.stack(ids) for ids in zip(*map(self._codes, media), strict=True)]
        with torch.inference_mode(), decoder_threads(self.threads):
            return decoder.decode([torch.from_numpy(ids).to(decoder.device) for ids in codes])

    def _codes(self, medium: Medium) -> tuple[NDArray[np.int64], ...]:
        """The codes that the decoder is given for a medium."""
        return medium.codes

    def _loaded(self) -> TokenDecoder:
        with self._lock:
            decoder = self._found()
            if not self._ready:
                decoder.load(self._device, self._dtype)
                self._ready = True
        self._prepare(decoder)
        return decoder

    def _found(self) -> TokenDecoder:
        """The decoder, which the layout fits; its config.json is read, no weights, and that once."""
        if self._decoder is not None:
            return self._decoder
        self._device = checked_device(self._device)
        decoder = decoder_of(self._source, self._decoder_class)
        if decoder.facts is not None:
            where = "the decoder handed in" if self.decoder_folder is None else f"decoder {self._source}"
            said = f"{where} ({decoder.kind})"
            if decoder.facts.modality != self.makes:
                raise OptionError(
                    f"{said} is one of {decoder.facts.modality}, output processor {_MAKERS[self.makes]!r} needs one of"
                    f" {self.makes}; set output_processor={_MAKERS[decoder.facts.modality]!r}, or name another decoder",
                    param="decoder",
                )
            decoder.facts.check_fit(self.layout, said)
        self._decoder = decoder
        return decoder
