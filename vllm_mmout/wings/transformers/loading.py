"""Load the processors of a transformers model folder, and call their ``post_process_*`` methods."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vllm_mmout.errors import RegistrationError, type_and_message
from vllm_mmout.wings.transformers.heads import head_of

_NOT_INPUTS = frozenset({"labels", "return_dict", "output_attentions", "output_hidden_states", "past_key_values"})
_PIL = "image_processing_pil_"


@cache
def keywords_of_network(architecture: str) -> tuple[str, ...]:
    """Return the input names of a transformers model: the parameters of its ``forward``, or of ``generate``."""
    import transformers

    head = head_of(architecture)
    method = "generate" if head is not None and head.drawn else "forward"
    parameters = inspect.signature(getattr(getattr(transformers, architecture), method)).parameters.values()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    return tuple(name for name in names[1:] if name not in _NOT_INPUTS)


@cache
def image_processor_of(folder: str) -> Any:
    """Load the image processor of a model folder, or return it from the cache.

    The image processor prepares pictures for the model, and converts the model's outputs to results. Without
    torchvision, its Pillow variant is loaded. No code of the folder is run. Raises RegistrationError if the image
    processor cannot be loaded.
    """
    import transformers

    auto: Any = transformers.AutoImageProcessor
    try:
        return auto.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:
        if (variant := _pillow_variant(folder)) is not None:
            return variant.from_pretrained(folder)
        raise RegistrationError(
            f"no image processor of transformers can be loaded from {folder}: {type_and_message(error)}; put there what"
            ' processor.save_pretrained("FOLDER") writes, and install what it needs'
        ) from error


@cache
def processor_of(folder: str) -> Any:
    """Load a folder's processor for pictures and prompts, or else its image processor."""
    import transformers
    from transformers.processing_utils import ProcessorMixin

    auto: Any = transformers.AutoProcessor
    try:
        processor = auto.from_pretrained(folder, trust_remote_code=False)
    except Exception:  # noqa: BLE001 - loading the image processor will report what is missing
        return image_processor_of(folder)
    return processor if isinstance(processor, ProcessorMixin) else image_processor_of(folder)


class HeadOutput(dict[str, Any]):
    """Model output in the form that transformers' ``post_process_*`` expect. Missing attributes are None."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self.get(name)


def called(post_process: Callable[..., Any], output: Any, **options: Any) -> Any:
    """Call a ``post_process_*`` method. Keyword arguments that the method does not accept are dropped."""
    takes = inspect.signature(post_process).parameters
    return post_process(output, **{name: value for name, value in options.items() if name in takes})


def _pillow_variant(folder: str) -> Any:
    """Return the variant of a folder's image processor class that does not need torchvision, or None."""
    import transformers
    from transformers.models.auto.image_processing_auto import get_image_processor_config

    config = get_image_processor_config(folder)
    # Older folders, such as SegFormer's, name the class in the second field.
    type_name = config.get("image_processor_type") or config.get("feature_extractor_type") or ""
    family = type_name.removesuffix("Fast").removesuffix("Pil")
    family = family.removesuffix("ImageProcessor").removesuffix("FeatureExtractor")
    for file in Path(transformers.__file__).parent.glob(f"models/*/{_PIL}*.py"):
        if file.stem.removeprefix(_PIL).replace("_", "") == family.lower():
            module = importlib.import_module(f"transformers.models.{file.parent.name}.{file.stem}")
            return getattr(module, f"{family}ImageProcessorPil", None)
    return None
