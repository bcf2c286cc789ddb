"""`ClassificationProcessor`, which turns the class logits of a whole input into class names with scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from vllm_mmout.errors import DecodeError, ReduceError
from vllm_mmout.processors.base import OutputProcessor
from vllm_mmout.processors.option_values import (
    Labels,
    ModelClass,
    checked_count,
    checked_names,
    checked_part,
    checked_switch,
)
from vllm_mmout.processors.raw import describe, not_of_reduce, only_tensor

if TYPE_CHECKING:
    import torch

    from vllm_mmout.outputs import ClassificationOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw

_TAKES = "classification output must be floating-point logits [n, classes] with 1 or more classes"


class ClassificationProcessor(OutputProcessor):
    """Processor for models that return class logits [n, classes]. It returns the best classes with their scores.

    Scores are the softmax over the classes. With a single class, or with ``multi_label``, they are the sigmoid of each
    logit, as in the pipelines of transformers.

    Args:
        class_names: name of each class, in the order of the logits; by default the names of ``id2label`` in
            config.json, else the numbers.
        top_k: largest number of classes in a result.
        multi_label: whether an input may have several classes, or no class; by default as ``problem_type`` in
            config.json says.
        threshold: classes with a lower score are left out; by default 0.5 with ``multi_label``, else 0.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "classification"
    modality: ClassVar[str] = "structured"

    def __init__(
        self,
        *,
        class_names: Sequence[str] | None = None,
        top_k: int = 5,
        multi_label: bool | None = None,
        threshold: float | None = None,
    ) -> None:
        self._labels = Labels(None if class_names is None else checked_names(class_names))
        self._top_k = checked_count("top_k", top_k)
        self._multi_label = None if multi_label is None else checked_switch("multi_label", multi_label)
        self._threshold = None if threshold is None else checked_part("threshold", threshold)

    @property
    def model_classes(self) -> Sequence[ModelClass]:
        """Classes that the model distinguishes. Classes without a known name are left out."""
        return self._labels.classes

    @classmethod
    def from_config(cls, config: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Create an instance. Options that are not set default to the values in the model's ``config.json``."""
        processor = cls(**options)
        processor._fall_back_on(config)
        return processor

    def reduce(self, output: Raw, params: OutputParams) -> dict[str, torch.Tensor]:
        """Return "scores", float32 [n, k], and "ids", int32 [n, k], of the best classes, the highest score first.

        NaN scores come first.

        Classes with equal scores are sorted by id.
        """
        import torch

        logits = self._checked_logits(only_tensor(output, _TAKES, ReduceError)).to(torch.float32)
        if self._multi_label or logits.shape[1] == 1:
            # One request at a time: the last bits of torch's vectorised exp depend on the position in the tensor.
            scores = torch.stack([request.sigmoid() for request in logits])
        else:
            scores = logits.softmax(dim=1)
        best = scores.sort(dim=1, descending=True, stable=True)
        return {
            "scores": best.values[:, : self._top_k].contiguous(),
            "ids": best.indices[:, : self._top_k].to(torch.int32),
        }

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> ClassificationOutput:
        """Build a `ClassificationOutput`. Raise DecodeError if the logits contained NaN or infinity."""
        from vllm_mmout.outputs import ClassificationOutput, ClassScore

        if not isinstance(raw, dict) or set(raw) != {"scores", "ids"}:
            raise not_of_reduce("classification takes scores and ids from reduce")
        if raw["scores"].isnan().any():
            raise DecodeError(
                "the model's logits hold NaN or infinity, so the input has no class; check the input's values, or run"
                ' the model with dtype="float32"'
            )
        least = self._threshold if self._threshold is not None else 0.5 if self._multi_label else 0.0
        id_scores = zip(raw["ids"].tolist(), raw["scores"].tolist(), strict=True)
        return ClassificationOutput(
            classes=[
                ClassScore(id=number, label=self._labels.of(number), score=score)
                for number, score in id_scores
                if score >= least
            ]
        )

    def _fall_back_on(self, config: Mapping[str, Any]) -> None:
        self._labels = self._labels.or_those_of(config)
        if self._multi_label is None:
            self._multi_label = config.get("problem_type") == "multi_label_classification"

    def _checked_logits(self, logits: torch.Tensor) -> torch.Tensor:
        if logits.ndim != 2 or not logits.is_floating_point() or not logits.shape[1]:
            raise ReduceError(f"{_TAKES}, got {describe(logits)}")
        self._labels.check_count(logits.shape[1])
        return logits
