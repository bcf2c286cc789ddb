"""Output processors for keypoints: points of interest, joints of persons, and matches between two pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from vllm_mmout.errors import DecodeError
from vllm_mmout.outputs import TensorOutput
from vllm_mmout.processors.option_values import checked_part
from vllm_mmout.processors.raw import own_array
from vllm_mmout.wings.transformers.inputs import SIZE
from vllm_mmout.wings.transformers.loading import HeadOutput, called
from vllm_mmout.wings.transformers.processors.of_folder import OfFolder

if TYPE_CHECKING:
    import torch

    from vllm_mmout.outputs.keypoints import KeypointsOutput
    from vllm_mmout.params import OutputParams
    from vllm_mmout.processors.base import Raw


class KeypointDetectionProcessor(OfFolder):
    """Output processor for points of interest, computed by transformers' ``post_process_keypoint_detection``.

    Args:
        threshold: points with a lower score are left out.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "keypoint-detection"
    modality: ClassVar[str] = "structured"

    def __init__(self, *, threshold: float = 0.0) -> None:
        self._threshold = checked_part("threshold", threshold)

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> KeypointsOutput:
        """Build a `KeypointsOutput` with coordinates in pixels of the input."""
        from vllm_mmout.outputs.keypoints import Keypoint, KeypointsOutput

        tensors, (height, width) = _split_size(raw)
        post_process = self.image_processor.post_process_keypoint_detection
        output = HeadOutput({name: tensor[None] for name, tensor in tensors.items()})
        (result,) = post_process(output, [(height, width)])
        rows = zip(result["keypoints"].tolist(), result["scores"].tolist(), strict=True)
        kept = [Keypoint(x=x, y=y, score=score) for (x, y), score in rows if score >= self._threshold]
        return KeypointsOutput(keypoints=kept, size=(height, width))


class PoseEstimationProcessor(KeypointDetectionProcessor):
    """Output processor for the joints of persons, one person in each of the ``boxes`` of a request.

    ``boxes`` of a request are (left, top, width, height) in pixels, one for each person, as the processor takes them.

    Args:
        threshold: points with a lower score are left out.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "pose-estimation"

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> KeypointsOutput:
        """Build a `KeypointsOutput` with the joints of all persons, in pixels of the input.

        The field ``object`` of each joint is the index of its person, in the order of the request's ``boxes``.
        """
        from vllm_mmout.outputs.keypoints import Keypoint, KeypointsOutput

        tensors, size = _split_size(raw)
        boxes = tensors.pop("boxes").numpy()
        (persons,) = called(
            self.image_processor.post_process_pose_estimation,
            HeadOutput(tensors),
            boxes=[boxes],
            source_sizes=[size],
        )
        keypoints = [
            Keypoint(x=x, y=y, score=score, id=number, label=self._labels.of(number), object=person)
            for person, joints in enumerate(persons)
            for (x, y), score, number in zip(
                joints["keypoints"].tolist(), joints["scores"].tolist(), joints["labels"].tolist(), strict=True
            )
            if score >= self._threshold
        ]
        return KeypointsOutput(keypoints=keypoints, size=size)


class KeypointMatchingProcessor(KeypointDetectionProcessor):
    """Output processor that matches points of the picture with points of the request's ``other_image``.

    The result has arrays by name: "keypoints0" and "keypoints1", [n, 2] (x, y) in pixels of the first and the second
    picture, and "matching_scores" [n].

    Args:
        threshold: matches with a lower score are left out.

    Raises:
        OptionError: an option is malformed.

    """

    name: ClassVar[str] = "keypoint-matching"
    modality: ClassVar[str] = "tensor"

    def decode(self, raw: Raw, params: OutputParams, state: Any = None) -> TensorOutput:  # type: ignore[override]
        """Build a `TensorOutput` with the matched points of the first and the second picture of a request."""
        if not isinstance(raw, dict) or SIZE not in raw:
            raise DecodeError(_LACKS)
        sizes = [tuple(map(tuple, raw[SIZE].tolist()))]
        post_process = self.image_processor.post_process_keypoint_matching
        tensors = HeadOutput({name: tensor for name, tensor in raw.items() if name != SIZE})
        (matches,) = post_process(tensors, sizes, threshold=self._threshold)
        return TensorOutput({name: own_array(tensor) for name, tensor in matches.items()})


_LACKS = f"the model's output lacks {SIZE}; name this processor for heads of transformers only"


def _split_size(raw: Raw) -> tuple[dict[str, torch.Tensor], tuple[int, int]]:
    """Return a request's tensors without the tensor of the picture's size, and the size as (height, width).

    Floating-point tensors are converted to float32.
    """
    if not isinstance(raw, dict) or SIZE not in raw:
        raise DecodeError(_LACKS)
    height, width = raw[SIZE].tolist()
    floats = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in raw.items()}
    floats.pop(SIZE)
    return floats, (height, width)
