"""Image processors of folders of transformers, as the folder names them."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("transformers", reason="it has the image processors")

from vllm_mmout.wings.transformers.loading import image_processor_of

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(
    "named",
    [{"image_processor_type": "SegformerImageProcessor"}, {"feature_extractor_type": "SegformerFeatureExtractor"}],
    ids=["newer", "older"],
)
def test_an_image_processor_needs_no_torchvision(tmp_path, named):
    """The field may be the one that older folders have, as the published folders of SegFormer."""
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**named, "size": 64}))
    processor = image_processor_of(str(tmp_path))
    assert type(processor).__name__.removesuffix("Pil") == "SegformerImageProcessor"
    assert dict(processor.size) == {"height": 64, "width": 64}
