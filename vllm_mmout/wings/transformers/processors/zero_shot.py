"""Output processor that ranks candidate texts by how well they match a picture or another text."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import ReduceError
from vllm_mmout.processors.classification import ClassificationProcessor
from vllm_mmout.processors.option_values import Labels
from vllm_mmout.processors.raw import not_of_reduce, only_tensor
from vllm_mmout.wings.transformers.heads import KEY
from vllm_mmout.wings.transformers.prompts import TEXTS, as_texts

if TYPE_CHECKING:
    import torch

    from vllm_mmout.outputs import ClassificationOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw


class ZeroShotClassificationProcessor(ClassificationProcessor):
    """Output processor that ranks a request's candidate texts, such as possible labels of a picture, by their scores.

    The ids in the result are indices of the texts. Scores are the softmax over the texts, or for SigLIP the sigmoid of
    each, as in transformers' pipeline. Texts are used unchanged, without a template.

    Args:
        top_k: largest number of texts in a result.
        threshold: texts with a lower score are left out.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "zero-shot-classification"

    def __init__(self, *, top_k: int = 1000, threshold: float = 0.0) -> None:
        super().__init__(top_k=top_k, threshold=threshold)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create the processor. For SigLIP models, each text is scored independently of the others."""
        processor = cls(**options)
        table = config.get(KEY)
        processor._multi_label = isinstance(table, Mapping) and "siglip" in table["model_type"]
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> dict[str, torch.Tensor]:
        """Convert logits to scores of the request's texts. Return the scores and ids of the best texts, and all texts.

        An id is the index of a text. Logits are [n, texts] or [n, 1, texts].
        """
        if not isinstance(output, dict) or TEXTS not in output:
            raise ReduceError(f"the model's output lacks {TEXTS}; name this processor for heads of transformers only")
        logits = only_tensor({k: v for k, v in output.items() if k != TEXTS}, "it takes logits", ReduceError)
        return {**super().reduce(logits.flatten(1), params), TEXTS: output[TEXTS]}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> ClassificationOutput:
        """Build a `ClassificationOutput`. Raise DecodeError if the logits hold NaN or infinity."""
        if not isinstance(raw, dict) or TEXTS not in raw:
            raise not_of_reduce(f"classification by text takes scores, ids and {TEXTS} from reduce")
        labelled = copy(self)
        labelled._labels = Labels(tuple(as_texts(raw[TEXTS])))  # noqa: SLF001 - a copy of this object
        return super(ZeroShotClassificationProcessor, labelled).decode({k: raw[k] for k in ("scores", "ids")}, params)
