"""ZeroShotClassificationProcessor: which of a request's texts fits its picture, or its text, best."""

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
    """The texts of a request by how well each fits, as ``logits_per_image`` says; ids count them from 0.

    Scores are the softmax over the texts, of SigLIP the sigmoid of each, as in transformers' pipeline; texts are taken
    as they are, without a template around them.

    Args:
        top_k: how many texts a result has at most.
        threshold: texts with a lower score are left out.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "zero-shot-classification"

    def __init__(self, *, top_k: int = 1000, threshold: float = 0.0) -> None:
        super().__init__(top_k=top_k, threshold=threshold)

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Make the instance of a process."""
        made = cls(**options)
        table = config.get(KEY)
        made._multi_label = isinstance(table, Mapping) and "siglip" in table["model_type"]
        return made

    def reduce(self, output: Raw, params: OutputParams) -> dict[str, torch.Tensor]:
        """As `ClassificationProcessor.reduce`, of logits [n, texts] or [n, 1, texts]; the texts go with it."""
        if not isinstance(output, dict) or TEXTS not in output:
            raise ReduceError(f"the model's output lacks {TEXTS}; name this processor for heads of transformers only")
        logits = only_tensor({k: v for k, v in output.items() if k != TEXTS}, "it takes logits", ReduceError)
        return {**super().reduce(logits.flatten(1), params), TEXTS: output[TEXTS]}

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> ClassificationOutput:
        """Make a `ClassificationOutput`; DecodeError where the logits held NaN or infinity."""
        if not isinstance(raw, dict) or TEXTS not in raw:
            raise not_of_reduce(f"classification by text takes scores, ids and {TEXTS} from reduce")
        of_texts = copy(self)
        of_texts._labels = Labels(tuple(as_texts(raw[TEXTS])))  # noqa: SLF001 - of our own copy
        return super(ZeroShotClassificationProcessor, of_texts).decode({k: raw[k] for k in ("scores", "ids")}, params)
