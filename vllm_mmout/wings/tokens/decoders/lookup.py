"""Which decoder a folder, as ``save_pretrained`` leaves it, or an object is: by ``model_type``, or by what SNAC has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_mmout.errors import OptionError
from vllm_mmout.wings.tokens.decoders.base import read_table

if TYPE_CHECKING:
    from vllm_mmout.wings.tokens.decoders.base import TokenDecoder
    from vllm_mmout.wings.tokens.decoders.transformers_models import PretrainedDecoder

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


def located(decoder: str | os.PathLike[str], model: object) -> Path:
    """Where a decoder lies: a relative folder is looked for in the model's (``_name_or_path`` of its config)."""
    path = Path(decoder).expanduser()
    beside = isinstance(model, str) and model and Path(model).is_dir() and not path.is_absolute()
    return Path(str(model)) / path if beside else path


def config_in(path: Path) -> Mapping[str, Any]:
    """A decoder's config.json."""
    if not path.is_dir():
        raise OptionError(
            f"decoder folder {path.absolute()} does not exist; decoders are never downloaded: fetch it first (hf"
            " download NAME --local-dir FOLDER), or correct the option",
            param="decoder",
        )
    if not (path / "config.json").is_file():
        raise OptionError(
            f"decoder folder {path} has no config.json; save the decoder there with save_pretrained, or name its class"
            ' with decoder_class="package.module:Class"',
            param="decoder",
        )
    return read_table(path / "config.json")


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
    folder = Path(source)
    config = config_in(folder)
    kind = config.get("model_type")
    if kind is None and _SNAC_ALONE in config:
        from vllm_mmout.wings.tokens.decoders.snac import SnacDecoder

        return SnacDecoder.from_folder(folder, config)
    if not isinstance(kind, str) or kind not in KINDS:
        given = f"model_type {kind!r}" if kind and isinstance(kind, str) else "no model_type"
        raise OptionError(
            f"decoder {folder} has {given} in its config.json, which is none of those known ({', '.join(KINDS)}, and"
            ' snac); name its class with decoder_class="package.module:Class"',
            param="decoder",
        )
    return _class(kind).from_folder(folder, config)


def _handed(module: Any) -> TokenDecoder:
    """A decoder that someone else has loaded; one of a known kind is called as that kind is."""
    if hasattr(module, _SNAC_ALONE):
        from vllm_mmout.wings.tokens.decoders.snac import SnacDecoder

        return SnacDecoder(vars(module), model=module)
    config = getattr(module, "config", None)
    kind = getattr(config, "model_type", None)
    if kind in KINDS and type(module).__name__ == _class(kind).model_name:
        return _class(kind)(config, model=module)
    from vllm_mmout.wings.tokens.decoders.custom import CustomDecoder

    return CustomDecoder(module)


def _class(kind: str) -> type[PretrainedDecoder]:
    from vllm_mmout.wings.tokens.decoders import transformers_models

    found: type[PretrainedDecoder] = getattr(transformers_models, KINDS[kind])
    return found
