"""Base class of output processors that decode pictures or sounds with a decoder from a local folder."""

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
    """Base class of output processors that decode pictures or sounds with a decoder from a local folder.

    Args:
        decoder: the decoder's folder, relative to the model's folder. In Python also an object with ``decode(codes)``.
        decoder_class: "package.module:Class" with ``from_pretrained(folder)`` and ``decode(codes)``. None takes the
            class from the folder's config.json.
        device: device of the decoder, "cpu" or "cuda:0". None means the CPU, or the device of an object.
        dtype: "float32", "bfloat16", ... None means float32, or the dtype of an object.
        layout, threads, max_batch, batch_wait_ms, prompt: see `TokenProcessor`.

    """

    makes: ClassVar[Literal["image", "audio"]]
    """Kind of media that the decoder makes, "image" or "audio". The token layout must be for the same kind."""

    def __init__(  # noqa: PLR0917 - both subclasses take keywords only, and pass them on by position
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
                f"layout is for {self.layout.modality}, but output processor {self.name!r} makes {self.makes}; correct"
                " its modality, or name the other output processor",
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
        """Folder of the decoder. None if the decoder was given as an object."""
        self._decoder_class = decoder_class
        self._device = device
        self._dtype = checked_dtype(dtype)
        self._lock = Lock()
        self._decoder: TokenDecoder | None = None
        self._ready = False

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the processor, and check that its decoder fits the token layout. No weights are loaded."""
        keywords = dict(options)
        if isinstance(keywords.get("decoder"), str | os.PathLike):
            keywords["decoder"] = located(keywords["decoder"], config.get("_name_or_path"))
        processor = cls(**keywords)
        processor._prepare(processor._checked_decoder())
        return processor

    def load(self) -> None:
        """Load the decoder's weights once, so that the first request does not have to wait for them."""
        self._loaded()

    @abstractmethod
    def _prepare(self, decoder: TokenDecoder) -> None:
        """Read settings such as the sampling rate from the decoder.

        `from_config` calls this method for the first time. It is called again before each decoding.
        """

    def _decoded(self, media: Sequence[Medium]) -> torch.Tensor:
        """Decode pictures or sounds whose codes have equal shapes in one forward pass of the decoder."""
        import torch

        decoder = self._loaded()
        codes = [np.stack(ids) for ids in zip(*map(self._codes, media), strict=True)]
        with torch.inference_mode(), decoder_threads(self.threads):
            return decoder.decode([torch.from_numpy(ids).to(decoder.device) for ids in codes])

    def _codes(self, medium: Medium) -> tuple[NDArray[np.int64], ...]:
        """Return the codes of a picture or sound in the form that the decoder accepts."""
        return medium.codes

    def _loaded(self) -> TokenDecoder:
        with self._lock:
            decoder = self._checked_decoder()
            if not self._ready:
                decoder.load(self._device, self._dtype)
                self._ready = True
        self._prepare(decoder)
        return decoder

    def _checked_decoder(self) -> TokenDecoder:
        """Return the decoder. The first call creates it without weights, and checks that it fits the token layout."""
        if self._decoder is not None:
            return self._decoder
        self._device = checked_device(self._device)
        decoder = decoder_of(self._source, self._decoder_class)
        if decoder.facts is not None:
            where = "the decoder object" if self.decoder_folder is None else f"decoder {self._source}"
            decoder_name = f"{where} ({decoder.kind})"
            if decoder.facts.modality != self.makes:
                raise OptionError(
                    f"{decoder_name} decodes {decoder.facts.modality}, but output processor"
                    f" {_MAKERS[self.makes]!r} needs a decoder of {self.makes}; set"
                    f" output_processor={_MAKERS[decoder.facts.modality]!r}, or name another decoder",
                    param="decoder",
                )
            decoder.facts.check_fit(self.layout, decoder_name)
        self._decoder = decoder
        return decoder
