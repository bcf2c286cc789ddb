from __future__ import annotations

import subprocess
import sys

import pytest

import vllm_mmout.processors
from vllm_mmout.processors import OutputProcessor


@pytest.mark.heavy
def test_processors_are_made_without_torch():
    """In an interpreter that has neither torch nor vLLM, every processor can be imported and made."""
    code = (
        "import sys; sys.modules['torch'] = sys.modules['vllm'] = None\n"
        "import vllm_mmout.processors as processors\n"
        "names = [name for name in processors.__all__ if name.endswith('Processor') and name != 'OutputProcessor']\n"
        "assert len(names) == 9\n"
        "options = {'EmbeddingGridProcessor': {'patch_size': 16}}\n"
        "print([getattr(processors, name)(**options.get(name, {})) for name in names])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_public_name_is_there():
    """What the package lists can be imported, and tab completion shows it."""
    for name in vllm_mmout.processors.__all__:
        assert getattr(vllm_mmout.processors, name).__name__ == name
        assert name in dir(vllm_mmout.processors)


def test_a_misspelt_name_is_an_attribute_error():
    """The package does not invent names."""
    with pytest.raises(AttributeError, match="ImagProcessor"):
        _ = vllm_mmout.processors.ImagProcessor


@pytest.mark.parametrize(
    ("class_name", "name", "modality"),
    [
        ("TensorProcessor", "tensor", "tensor"),
        ("ImageProcessor", "image", "image"),
        ("VideoProcessor", "video", "video"),
        ("SegmentationProcessor", "segmentation", "raster"),
        ("RegressionProcessor", "regression", "raster"),
        ("ClassificationProcessor", "classification", "structured"),
        ("DetectionProcessor", "detection", "structured"),
        ("EmbeddingProcessor", "embedding", "tensor"),
    ],
)
def test_processors_say_their_name_and_modality(class_name, name, modality):
    """Name and kind of result stand on the class, where the registry reads them."""
    processor = getattr(vllm_mmout.processors, class_name)
    assert issubclass(processor, OutputProcessor)
    assert (processor.name, processor.modality) == (name, modality)
