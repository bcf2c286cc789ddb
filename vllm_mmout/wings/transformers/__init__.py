"""Serve models of the transformers library that compute their result in one forward pass.

A folder that ``save_pretrained`` wrote is served if a table of transformers' auto classes that this package supports
lists its architecture, and vLLM does not serve its head itself.
The engine argument ``additional_config={"mmout": {"output_processor": "transformers"}}`` serves the other folders, too.
Inputs go through the folder's own processor, results through its own ``post_process_*``.
"""

from __future__ import annotations

from vllm_mmout.wing import Wing

_PACKAGE = "vllm_mmout.wings.transformers"

WING = Wing(
    name="transformers",
    folders=f"{_PACKAGE}.folders:as_ours",
    hooks=f"{_PACKAGE}.hooks:TRANSFORMERS_HOOKS",
    output_processors={
        "semantic-segmentation": f"{_PACKAGE}.processors.semantic_segmentation:SemanticSegmentationProcessor",
        "image-segmentation": f"{_PACKAGE}.processors.segments:ImageSegmentationProcessor",
        "depth-estimation": f"{_PACKAGE}.processors.depth:DepthEstimationProcessor",
        "image-to-image": f"{_PACKAGE}.processors.image_to_image:ImageToImageProcessor",
        "object-detection": f"{_PACKAGE}.processors.objects:ObjectDetectionProcessor",
        "zero-shot-object-detection": f"{_PACKAGE}.processors.objects:ZeroShotObjectDetectionProcessor",
        "zero-shot-classification": f"{_PACKAGE}.processors.zero_shot:ZeroShotClassificationProcessor",
        "text-segmentation": f"{_PACKAGE}.processors.semantic_segmentation:TextSegmentationProcessor",
        "mask-generation": f"{_PACKAGE}.processors.masks:MaskGenerationProcessor",
        "keypoint-detection": f"{_PACKAGE}.processors.keypoints:KeypointDetectionProcessor",
        "pose-estimation": f"{_PACKAGE}.processors.keypoints:PoseEstimationProcessor",
        "keypoint-matching": f"{_PACKAGE}.processors.keypoints:KeypointMatchingProcessor",
        "normal-estimation": f"{_PACKAGE}.processors.depth:NormalEstimationProcessor",
        "image-matting": f"{_PACKAGE}.processors.depth:ImageMattingProcessor",
        "text-to-waveform": f"{_PACKAGE}.processors.speech:WaveformProcessor",
    },
)
