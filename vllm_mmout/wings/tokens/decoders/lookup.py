"""Choose the decoder class that fits the config of a ``save_pretrained`` folder or of a loaded model."""

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
"""Names of the supported decoder classes. The key is the ``model_type`` in config.json.

The full models "emu3" and "janus" contain a picture decoder, and only this decoder is loaded."""

_SNAC_KEY = "vq_strides"
"""Key in config.json that identifies a SNAC decoder, whose config lacks ``model_type``."""


def located(decoder: str | os.PathLike[str], model: object) -> Path:
    """Return the path of a decoder's folder. Resolve a relative path against the local model folder ``model``.

    If ``model`` is not the path of a local folder, the path stays relative.
    """
    path = Path(decoder).expanduser()
    in_model_folder = isinstance(model, str) and model and Path(model).is_dir() and not path.is_absolute()
    return Path(str(model)) / path if in_model_folder else path


def config_in(path: Path) -> Mapping[str, Any]:
    """Read the config.json in a decoder's folder. Raise an OptionError if it is missing."""
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
    """Create the decoder for a folder or a loaded model, without reading weights.

    ``decoder_class`` is the import path of a user's decoder class, or None.
    """
    if not isinstance(source, str | os.PathLike):
        if decoder_class is not None:
            raise OptionError(
                "decoder is an object, so decoder_class is not used to load it; leave one of them out",
                param="decoder_class",
            )
        return _of_loaded_model(source)
    if decoder_class is not None:
        from vllm_mmout.wings.tokens.decoders.custom import CustomClassDecoder

        return CustomClassDecoder(decoder_class, Path(source))
    folder = Path(source)
    config = config_in(folder)
    kind = config.get("model_type")
    if kind is None and _SNAC_KEY in config:
        from vllm_mmout.wings.tokens.decoders.snac import SnacDecoder

        return SnacDecoder.from_folder(folder, config)
    if not isinstance(kind, str) or kind not in KINDS:
        model_type = f"model_type {kind!r}" if kind and isinstance(kind, str) else "no model_type"
        raise OptionError(
            f"decoder {folder} has {model_type} in its config.json; known are {', '.join(KINDS)}, snac;"
            ' for another decoder name its class with decoder_class="package.module:Class"',
            param="decoder",
        )
    return _class(kind).from_folder(folder, config)


def _of_loaded_model(module: Any) -> TokenDecoder:
    """Return the decoder that wraps a model which the user has already loaded.

    If the model's class is not in `KINDS`, return a `CustomDecoder`.
    """
    if hasattr(module, _SNAC_KEY):
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

    decoder_class: type[PretrainedDecoder] = getattr(transformers_models, KINDS[kind])
    return decoder_class
