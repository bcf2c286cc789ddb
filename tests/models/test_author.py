"""Making and running an author's model."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="models are torch modules")
nn = torch.nn
pytestmark = pytest.mark.engine

from vllm_mmout.errors import ModelError  # noqa: E402 - after the import that may skip
from vllm_mmout.models.author import build, run  # noqa: E402 - as above


class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.factor = config["factor"]

    def forward(self, x, shift=None):
        return x * self.factor if shift is None else x + shift


def giving(output):
    """A model that gives one thing."""
    made = nn.Module()
    made.forward = lambda x: output
    return made


def test_the_constructor_gets_the_config():
    """``cls(config)`` with config.json as a dict."""
    assert build(Net, {"factor": 3}).factor == 3


def test_a_constructor_that_raises_is_named():
    """The error names the model, what was raised, and what it is called with."""
    with pytest.raises(
        ModelError, match="model Net cannot be made: KeyError: 'factor'; its constructor is called with"
    ):
        build(Net, {})


def test_a_model_of_transformers_gets_its_own_configuration():
    """A class of transformers is made of its own configuration class, and ours is no entry of it."""
    from transformers import ViTForImageClassification

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    config = {"model_type": "mmout", "image_size": 8, "patch_size": 4, "num_labels": 3, **sizes}
    model = build(ViTForImageClassification, config)
    assert model.config.model_type == "vit"
    assert model.classifier.weight.shape == (3, 8)


def test_requests_run_together():
    """The tensors of each keyword hold the requests on axis 0, and so does the output."""
    ones, twos = torch.ones(2, 3), torch.full((2, 3), 2.0)
    output = run(Net({"factor": 3}), {"x": torch.stack([ones, twos])})
    assert torch.equal(output, torch.stack([ones, twos]) * 3)
    shifted = run(Net({"factor": 3}), {"x": ones[None], "shift": twos[None]})
    assert torch.equal(shifted, (ones + twos)[None])


def test_an_output_of_transformers_is_a_dict_of_its_tensors():
    """Tuples beside the tensors, such as hidden states, stay behind."""
    from transformers.modeling_outputs import ImageClassifierOutput

    logits = torch.ones(1, 3)
    given = run(giving(ImageClassifierOutput(logits=logits, hidden_states=(logits,))), {"x": logits})
    assert list(given) == ["logits"]
    assert given["logits"] is logits


def test_a_forward_that_raises_is_told_with_its_input():
    """The error names the model, the tensors it got, what it raised, and what to look at."""
    says = r"model Net failed on 2 inputs of x float32 \[3\], shift float32 \[4\]: RuntimeError: .*; correct its"
    with pytest.raises(ModelError, match=says) as raised:
        run(Net({"factor": 1}), {"x": torch.ones(2, 3), "shift": torch.ones(2, 4)})
    assert isinstance(raised.value.__cause__, RuntimeError)


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (None, "Module.forward must return a tensor or a dict of tensors, got NoneType"),
        ([torch.ones(2, 3)], "got list"),
        ((torch.ones(2, 3),), "got tuple"),
        ({"x": 5}, "got int"),
        ({}, r"must return a dict of at least one tensor by name \(str\), got names \[\]"),
        (torch.tensor(1.0), r"must keep the requests on axis 0: got shape \[\] for 2 requests"),
        (torch.ones(3, 2), r"got shape \[3, 2\] for 2 requests"),
        ({"a": torch.ones(2), "b": torch.ones(1, 2)}, r"got shape \[1, 2\] for 2 requests"),
    ],
)
def test_an_output_that_is_none_is_refused(output, says):
    """What forward gave, and what it must give."""
    with pytest.raises(ModelError, match=says):
        run(giving(output), {"x": torch.ones(2, 3)})


def test_of_an_output_of_transformers_what_belongs_to_requests_counts():
    """An output class may hold tuples, and tensors with the layers on axis 0, as D-FINE's does."""
    from transformers.modeling_outputs import ModelOutput

    logits, layers = torch.ones(1, 4), torch.ones(2, 1, 4)
    whole = ModelOutput(logits=logits, layers=layers, hidden=(logits,))
    assert list(run(giving(whole), {"x": torch.ones(1, 3)})) == ["logits"]
    with pytest.raises(ModelError, match=r"must keep the requests on axis 0: got shape \[2, 1, 4\] for 1 requests"):
        run(giving(ModelOutput(layers=layers)), {"x": torch.ones(1, 3)})
