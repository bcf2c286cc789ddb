"""DecoderProcessor: what the processors of pictures and sounds share, a decoder that is held and called."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np

from vllm_mmout.errors import OptionError
from vllm_mmout.processors.decoders.folder import located
from vllm_mmout.processors.decoders.held import HeldDecoder
from vllm_mmout.processors.tokens import TokenProcessor

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

    from vllm_mmout.processors.decoders.base import TokenDecoder
    from vllm_mmout.tokens import Medium


class DecoderProcessor(TokenProcessor):
    """Media of a token model, made by a decoder from a local folder.

    Args:
        decoder: as of `HeldDecoder`.
        options: ``layout`` and what else `TokenProcessor` takes.

    Raises:
        OptionError: an option is missing or malformed, or the layout is of another modality.

    """

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
        self._held = HeldDecoder(
            decoder,
            modality=self.makes,
            decoder_class=decoder_class,
            device=device,
            dtype=dtype,
            threads=self.threads,
        )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process, and see that decoder and layout fit; no weights are read.

        Args:
            config: the model's config.json; a relative ``decoder`` is looked for in its ``_name_or_path``.
            options: the constructor's arguments.

        Raises:
            OptionError: an option is missing or malformed, the decoder cannot be found, or does not fit the layout.
            RegistrationError: ``decoder_class`` cannot be imported.

        """
        given = dict(options)
        if isinstance(given.get("decoder"), str | os.PathLike):
            given["decoder"] = located(given["decoder"], config.get("_name_or_path"))
        made = cls(**given)
        made._prepare(made._held.check(made.layout))
        return made

    def load(self) -> None:
        """Load the decoder's weights, once; requests would do it otherwise, the first one waiting.

        Raises:
            ModelError: they are damaged, or not all there.
            OptionError: the decoder does not fit, or its device is not there.

        """
        self._prepare(self._held.load(self.layout))

    @abstractmethod
    def _prepare(self, decoder: TokenDecoder) -> None:
        """Take from the decoder's folder what else is needed; called at the start, and when it is loaded."""

    def _decoded(self, media: Sequence[Medium]) -> torch.Tensor:
        """What the decoder makes of media of one shape, in one forward."""
        self.load()
        return self._held.decode(self.layout, [np.stack(ids) for ids in zip(*map(self._codes, media), strict=True)])

    def _codes(self, medium: Medium) -> tuple[NDArray[np.int64], ...]:
        """The codes that the decoder is given for a medium."""
        return medium.codes

    @property
    def decoder_folder(self) -> str | os.PathLike[str] | None:
        """Where the decoder lies, None for one that was handed in."""
        return self._held.folder
