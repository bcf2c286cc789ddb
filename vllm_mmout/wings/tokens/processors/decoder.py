"""DecoderProcessor: what the processors of pictures and sounds share, a decoder found at the start and loaded once."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.tokens.decoders.devices import checked_device, checked_dtype, decoder_threads
from vllm_mmout.wings.tokens.decoders.folder import located
from vllm_mmout.wings.tokens.decoders.lookup import decoder_of
from vllm_mmout.wings.tokens.processors.base import TokenProcessor

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.layouts import Medium, TokenLayout

_MAKERS = {"image": "vq_image", "audio": "codec_audio"}


class LazyDecoder:
    """A decoder (a folder, or an object) and the options that say how it runs, as of `CodecAudioProcessor`."""

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
        """Find the decoder and see that the layout fits it; reads its config.json, no weights, and that once."""
        with self._lock:
            return self._checked(layout)

    def load(self, layout: TokenLayout) -> TokenDecoder:
        """Load the weights, once."""
        with self._lock:
            decoder = self._checked(layout)
            if not self._loaded:
                decoder.load(self._device, self._dtype)
                self._loaded = True
            return decoder

    def decode(self, layout: TokenLayout, codes: Sequence[NDArray[np.int64]]) -> torch.Tensor:
        """Decode codes of several media of one shape in one forward, as `TokenDecoder.decode`."""
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


class DecoderProcessor(TokenProcessor):
    """Media of a token model, made by a decoder from a local folder."""

    makes: ClassVar[Literal["image", "audio"]]
    """What the decoder makes, and the layout must be of."""

    def __init__(
        self,
        decoder: Any,
        *,
        decoder_class: str | None,
        device: str | None,
        dtype: str | None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if self.layout.modality != self.makes:
            raise OptionError(
                f"layout is of {self.layout.modality}, output processor {self.name!r} makes {self.makes}; correct its"
                " modality, or name the other output processor",
                param="layout",
            )
        self._lazy = LazyDecoder(
            decoder,
            modality=self.makes,
            decoder_class=decoder_class,
            device=device,
            dtype=dtype,
            threads=self.threads,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process, and see that decoder and layout fit; no weights are read."""
        given = dict(options)
        if isinstance(given.get("decoder"), str | os.PathLike):
            given["decoder"] = located(given["decoder"], config.get("_name_or_path"))
        made = cls(**given)
        made._prepare(made._lazy.check(made.layout))
        return made

    def load(self) -> None:
        """Load the decoder's weights, once; requests would do it otherwise, the first one waiting."""
        self._prepare(self._lazy.load(self.layout))

    @abstractmethod
    def _prepare(self, decoder: TokenDecoder) -> None:
        """Take from the decoder's folder what else is needed; called at the start, and when it is loaded."""

    def _decoded(self, media: Sequence[Medium]) -> torch.Tensor:
        """What the decoder makes of media of one shape, in one forward."""
        self.load()
        return self._lazy.decode(self.layout, [np.stack(ids) for ids in zip(*map(self._codes, media), strict=True)])

    def _codes(self, medium: Medium) -> tuple[NDArray[np.int64], ...]:
        """The codes that the decoder is given for a medium."""
        return medium.codes

    @property
    def decoder_folder(self) -> str | os.PathLike[str] | None:
        """Where the decoder lies, None for one that was handed in."""
        return self._lazy.folder
