"""Which decoder a folder or an object is: by ``model_type``, or by what only SNAC has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.tokens.decoders.folder import open_folder

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder

KINDS = {
    "emu3_vqgan": "Emu3Decoder",
    "emu3": "Emu3Decoder",
    "janus_vqgan": "JanusDecoder",
    "janus": "JanusDecoder",
    "mimi": "MimiDecoder",
    "dac": "DacDecoder",
    "encodec": "EncodecDecoder",
    "xcodec": "XcodecDecoder",
    "xcodec2": "Xcodec2Decoder",
}
"""``model_type`` of config.json -> class in `transformers_models`; of the two whole models it is the decoder inside."""

_SNAC_ALONE = "vq_strides"
"""SNAC's config.json has no ``model_type``, but this."""


def decoder_of(source: str | os.PathLike[str] | object, decoder_class: str | None) -> TokenDecoder:
    """Find out what an option ``decoder`` means, without reading weights."""
    if not isinstance(source, str | os.PathLike):
        if decoder_class is not None:
            raise OptionError(
                "decoder is an object, and decoder_class names what would load one; leave one of them out",
                param="decoder_class",
            )
        return _handed(source)
    if decoder_class is not None:
        from vllm_mmout.wings.tokens.decoders.custom import CustomClassDecoder

        return CustomClassDecoder(decoder_class, Path(source))
    folder = open_folder(Path(source))
    if folder.model_type is None and _SNAC_ALONE in folder.config:
        from vllm_mmout.wings.tokens.decoders.snac import SnacDecoder

        return SnacDecoder.from_folder(folder)
    if folder.model_type not in KINDS:
        given = f"model_type {folder.model_type!r}" if folder.model_type else "no model_type"
        raise OptionError(
            f"decoder {folder.path} has {given} in its config.json, which is none of those known ({', '.join(KINDS)},"
            ' and snac); name its class with decoder_class="package.module:Class"',
            param="decoder",
        )
    found: TokenDecoder = _class(folder.model_type).from_folder(folder)
    return found


def _handed(module: Any) -> TokenDecoder:
    """A decoder that someone else has loaded; one of a known kind is called as that kind is."""
    if hasattr(module, _SNAC_ALONE):
        from vllm_mmout.wings.tokens.decoders.snac import SnacDecoder

        return SnacDecoder(vars(module), model=module)
    config = getattr(module, "config", None)
    kind = getattr(config, "model_type", None)
    if kind in KINDS and type(module).__name__ == _class(kind).model_name:
        found: TokenDecoder = _class(kind)(config, model=module)
        return found
    from vllm_mmout.wings.tokens.decoders.custom import CustomDecoder

    return CustomDecoder(module)


def _class(kind: str) -> Any:
    from vllm_mmout.wings.tokens.decoders import transformers_models

    return getattr(transformers_models, KINDS[kind])
