"""Weights fit the model, or the error names every one that does not."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="weights are tensors")
nn = torch.nn
pytestmark = pytest.mark.engine

from vllm_mmout.errors import ModelError  # noqa: E402 - after the import that may skip
from vllm_mmout.models.author import load_strictly  # noqa: E402 - as above


class Net(nn.Module):
    def __init__(self, *, tied=False):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.register_buffer("steps", torch.tensor(0))
        if tied:
            self.second.weight = self.first.weight


def weights_of(net):
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def test_all_weights_are_loaded():
    """After it the model has the file's parameters and buffers."""
    source, target = Net(), Net()
    source.steps += 7
    load_strictly(target, weights_of(source))
    for name, tensor in source.state_dict().items():
        assert torch.equal(target.state_dict()[name], tensor)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_another_floating_dtype_is_cast(half):
    """A file of halves serves a model of float32, and the other way round."""
    halves = {name: t.to(half) if t.is_floating_point() else t for name, t in weights_of(Net()).items()}
    target = Net()
    load_strictly(target, halves)
    assert torch.equal(target.first.weight, halves["first.weight"].float())
    target = Net().to(half)
    source = weights_of(Net())
    load_strictly(target, source)
    assert torch.equal(target.first.weight, source["first.weight"].to(half))


def test_tied_weights_are_stored_once(tmp_path):
    """What safetensors saves of a model with tied weights, each tensor once, is all that it needs."""
    from safetensors.torch import load_file, save_model

    source = Net(tied=True)
    save_model(source, str(tmp_path / "model.safetensors"))
    stored = load_file(tmp_path / "model.safetensors")
    assert len(stored) < len(source.state_dict())
    target = Net(tied=True)
    load_strictly(target, stored)
    assert torch.equal(target.second.weight, source.first.weight)
    with pytest.raises(ModelError, match=r"missing: (first|second)\.weight"):
        load_strictly(Net(), stored)


def test_tied_weights_that_differ_in_the_file_are_refused():
    """Which of two values the one weight should have, nobody can say."""
    stored = weights_of(Net(tied=True))
    load_strictly(Net(tied=True), stored)
    stored["second.weight"] = stored["second.weight"] + 1
    with pytest.raises(ModelError, match=r"one in the model and different in the file: first\.weight"):
        load_strictly(Net(tied=True), stored)


def test_a_view_of_a_weight_is_a_weight_of_its_own():
    """That a buffer begins where a loaded weight begins does not load it."""

    class Viewing(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))
            self.register_buffer("head", self.weight.data[:2])

    with pytest.raises(ModelError, match="missing: head"):
        load_strictly(Viewing(), {"weight": torch.ones(4)})


def test_a_weight_that_half_precision_cannot_hold_is_refused():
    """It would become infinite without a word."""
    stored = weights_of(Net())
    stored["first.bias"][0] = 1e6
    with pytest.raises(ModelError, match=r"too large for the model's dtype: first\.bias \(torch\.float16\)"):
        load_strictly(Net().half(), stored)
    stored["first.bias"][0] = float("inf")
    load_strictly(Net().half(), stored)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"first.weight": None}, r"missing: first\.weight\."),
        ({"first.weight": None, "second.bias": None}, r"missing: first\.weight, second\.bias"),
        ({"third.weight": torch.zeros(1)}, r"unexpected: third\.weight"),
        ({"first.bias": torch.zeros(4)}, r"first\.bias \(the model has float32 \[3\], the file float32 \[4\]\)"),
        ({"first.bias": torch.zeros(3).int()}, r"first\.bias \(the model has float32 \[3\], the file int32 \[3\]\)"),
        ({"steps": torch.tensor(0.5)}, r"steps \(the model has int64 \[\], the file float32 \[\]\)"),
    ],
)
def test_what_does_not_fit_is_named(change, says):
    """The error names the weights, and the model is as it was."""
    target = Net()
    before = weights_of(target)
    given = {name: tensor for name, tensor in (weights_of(Net()) | change).items() if tensor is not None}
    with pytest.raises(ModelError, match=r"the weights do not fit model Net; .*" + says):
        load_strictly(target, given)
    for name, tensor in target.state_dict().items():
        assert torch.equal(before[name], tensor)


def test_a_long_list_is_cut():
    """Of many names the first eight are listed, the rest counted."""

    class Many(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(1, 1, bias=False) for _ in range(11))

    with pytest.raises(ModelError, match=r"layers\.7\.weight and 3 more"):
        load_strictly(Many(), {})
