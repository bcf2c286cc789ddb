"""PretrainedDecoder: a decoder that is a model of transformers; loading it whole or not at all."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.processors.decoders.base import TokenDecoder
from vllm_mmout.processors.decoders.placing import device_of, handed_in, moved, torch_dtype

if TYPE_CHECKING:
    import torch

    from vllm_mmout.processors.decoders.facts import DecoderFacts
    from vllm_mmout.processors.decoders.folder import DecoderFolder

_SHOWN = 4
"""Names of weights listed in a message."""

_INSIDE = {r"^(model\.)?vqmodel\.": ""}
"""Where a whole model keeps its decoder's weights -> where the decoder alone has them."""


class PretrainedDecoder(TokenDecoder):
    """A decoder of transformers, recognised by ``model_type``; a whole model's folder serves where it has one inside.

    Args:
        config: the decoder's own, of transformers.
        folder: where the weights lie; None: they are in ``model``.
        model: the decoder, loaded by someone else.
        inside: whether the folder is that of a whole model.

    """

    config_name: ClassVar[str]
    """The class of its config in transformers."""
    model_name: ClassVar[str]
    """The class of the decoder in transformers."""
    whole: ClassVar[dict[str, str]] = {}
    """``model_type`` of a whole model with this decoder inside -> the class of its config, with ``vq_config``."""

    def __init__(self, config: Any, *, folder: Path | None = None, model: Any = None, inside: bool = False) -> None:
        self.facts = self.facts_of(config)
        self._config = config
        self._folder = folder
        self._inside = inside
        self._model = model

    @classmethod
    def from_folder(cls, folder: DecoderFolder) -> Self:
        """Read config.json by the class of transformers, which knows what is left out there.

        Raises:
            OptionError: transformers refuses it, or there are no weights.

        """
        import transformers
        from huggingface_hub.errors import StrictDataclassError

        whole = cls.whole.get(folder.model_type or "")
        try:
            config = getattr(transformers, whole or cls.config_name).from_dict(dict(folder.config))
            made = cls(config.vq_config if whole else config, folder=folder.path, inside=whole is not None)
        except (StrictDataclassError, AttributeError, TypeError, ValueError, ArithmeticError) as error:
            raise OptionError(
                f"config.json of decoder {folder.path} is no {cls.kind}: {error}; download it again", param="decoder"
            ) from error
        folder.check_weights()
        return made

    @classmethod
    @abstractmethod
    def facts_of(cls, config: Any) -> DecoderFacts:
        """What the config says."""

    @abstractmethod
    def call(self, model: Any, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode with the loaded model; codes and result as in `decode`."""

    @property
    def device(self) -> torch.device:
        """Where the codes must lie."""
        return device_of(self._model)

    def load(self, device: str | None, dtype: str | None) -> None:
        """Load the weights from the folder; a model that was handed in is moved only where an option says so.

        Raises:
            ModelError: the weights are damaged, or not all there.
            OptionError: the device is not there.

        """
        if self._folder is not None:
            self._model = moved(self._loaded(self._folder, dtype), device)
        else:
            self._model = handed_in(self._model, device, dtype)

    def decode(self, codes: Sequence[torch.Tensor]) -> torch.Tensor:
        """Decode codes of several media of one shape, as `TokenDecoder.decode`."""
        return self.call(self._model, codes)

    def _loaded(self, folder: Path, dtype: str | None) -> Any:
        import transformers

        kind = getattr(transformers, self.model_name)
        options = {"key_mapping": _INSIDE} if self._inside else {}
        if self._inside:  # what else a whole model has is not missed here, and not worth a warning for each
            kind = type(self.model_name, (kind,), {"_keys_to_ignore_on_load_unexpected": [r"^model\.", r"^lm_head\."]})
        try:
            model, report = kind.from_pretrained(
                folder,
                config=self._config,
                dtype=torch_dtype(dtype),
                local_files_only=True,
                output_loading_info=True,
                **options,
            )
        except Exception as error:  # the readers of weights raise all kinds of errors at damaged files
            raise ModelError(
                f"the weights of decoder {folder} ({self.kind}) cannot be loaded: {type(error).__name__}: {error};"
                " download it again"
            ) from error
        missing = sorted(report["missing_keys"])
        if missing:  # transformers fills them with random numbers
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise ModelError(
                f"decoder {folder} ({self.kind}) lacks weights: {', '.join(missing[:_SHOWN])}{more}; save them from"
                f" {self.model_name} with save_pretrained, or download the whole decoder"
            )
        return model
