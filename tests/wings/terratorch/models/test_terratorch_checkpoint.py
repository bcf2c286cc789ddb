"""weights_of: what a checkpoint of TerraTorch holds for a network, whatever stands beside it."""

import pytest
import torch
from torch import nn

from vllm_mmout.errors import ModelError
from vllm_mmout.models.author import load_strictly
from vllm_mmout.wings.terratorch.network import REMEDY, weights_of

pytestmark = pytest.mark.engine


class Encoder(nn.Module):
    """Has a position encoding, learned or made for the size of its images."""

    def __init__(self, tokens=4, *, learned=False):
        super().__init__()
        encoding = torch.randn(1, tokens, 8)
        if learned:
            self.pos_embed = nn.Parameter(encoding)
        else:
            self.register_buffer("pos_embed", encoding)
        self.layer = nn.Linear(8, 8)


def network(**options):
    """An encoder with a head."""
    return nn.ModuleDict({"encoder": Encoder(**options), "head": nn.Linear(8, 2)})


def entries(of, prefix="model."):
    """Its weights as a task calls them."""
    return {f"{prefix}{name}": weight.clone() for name, weight in of.state_dict().items()}


def check_same(one, other):
    """Two networks have the same weights."""
    for name, weight in one.state_dict().items():
        assert torch.equal(weight, other.state_dict()[name]), name


LOSS = {"criterion.weight": torch.ones(2), "train_metrics.total": torch.zeros(1)}


@pytest.mark.parametrize(
    "stored",
    [
        lambda trained: {"state_dict": entries(trained), "epoch": 3},
        lambda trained: {"state_dict": {**LOSS, **entries(trained)}},
        lambda trained: {"state_dict": entries(trained, "")},
        entries,
        lambda trained: entries(trained, ""),
    ],
    ids=["a checkpoint", "one with weights of the loss", "without the task's name", "flat", "the network's own names"],
)
@pytest.mark.parametrize("learned", [False, True])
def test_forms(stored, learned):
    """Names may stand under the task's, in a checkpoint or bare; weights of the loss are not the network's."""
    trained, made = network(learned=learned), network(learned=learned)
    load_strictly(made, weights_of(stored(trained), made), REMEDY)
    check_same(made, trained)


def test_a_network_whose_names_are_those_of_a_task():
    """Nothing is cut off of them."""
    trained, made = (nn.ModuleDict({"model": network()}) for _ in range(2))
    load_strictly(made, weights_of(entries(trained, ""), made), REMEDY)
    check_same(made, trained)


def test_a_table_of_positions_is_made_for_the_size():
    """Where the checkpoint has it for another size, or not at all, the network's own stays."""
    trained, made = network(tokens=9), network(tokens=4)
    own = made["encoder"].pos_embed.clone()
    for stored in (entries(trained), {name: it for name, it in entries(trained).items() if "pos_embed" not in name}):
        load_strictly(made, weights_of({"state_dict": stored}, made), REMEDY)
        assert torch.equal(made["encoder"].pos_embed, own)
        assert torch.equal(made["head"].weight, trained["head"].weight)


def test_learned_positions_of_another_size_are_refused():
    """They were trained: the network's own would be random numbers."""
    made = network(tokens=4, learned=True)
    with pytest.raises(ModelError, match=r"of another shape or dtype: encoder\.pos_embed"):
        load_strictly(made, weights_of({"state_dict": entries(network(tokens=9, learned=True))}, made), REMEDY)


def test_heads_of_training_are_left_out():
    """Where the network has none; where it has, they are its weights."""
    trained = network()
    trained["aux_heads"] = nn.ModuleDict({"deep": nn.Linear(8, 2)})
    made = network()
    load_strictly(made, weights_of({"state_dict": entries(trained)}, made), REMEDY)
    check_same(made, trained)
    with_heads = network()
    with_heads["aux_heads"] = nn.ModuleDict({"deep": nn.Linear(8, 2)})
    load_strictly(with_heads, weights_of({"state_dict": entries(trained)}, with_heads), REMEDY)
    check_same(with_heads, trained)


def test_what_does_not_fit_is_named_with_a_remedy_of_its_own():
    """Nobody saves a TerraTorch network by hand."""
    trained, made = network(), network()
    trained["neck"] = nn.Linear(8, 8)
    with pytest.raises(ModelError, match=r"unexpected: neck\.weight, neck\.bias\. Give the checkpoint that TerraTorch"):
        load_strictly(made, weights_of({"state_dict": entries(trained)}, made), REMEDY)
