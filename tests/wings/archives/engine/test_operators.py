"""Archives whose operators, sizes or weights lie: refused, or checked where they are called."""

from __future__ import annotations

import json
import os
import warnings
import zipfile

import pytest
import torch
from exported_archives import Bands, archive, rewritten
from model_folders import engine_here
from torch import nn

from vllm_mmout.errors import ModelError, OptionError
from vllm_mmout.wings.archives.checks import CHECKED
from vllm_mmout.wings.archives.contents import contents_of
from vllm_mmout.wings.archives.loading import network_of
from vllm_mmout.wings.archives.operators import untrusted

pytestmark = pytest.mark.engine
CPU = torch.device("cpu")
ATEN = torch.ops.aten
R = torch.rand
RECURRENT = (True, 1, 0.0, False, False, True)
"""With biases, one layer, no dropout, not trained, one direction, the batch first."""


class Bessel(nn.Module):
    """A function that few networks have, and that is not allowed."""

    def forward(self, image):
        return torch.special.bessel_j0(image)


class Converts(nn.Module):
    """Another dtype."""

    def forward(self, image):
        return image.to(torch.float64)


@pytest.fixture
def file(tmp_path):
    """An archive of core operators alone, as ``run_decompositions`` makes it."""
    network = Bands().eval()
    image = torch.rand(2, 4, 64, 64)
    with warnings.catch_warnings(action="ignore"):  # torch calls what it has deprecated itself
        torch.export.save(torch.export.export(network, (image,)).run_decompositions(), tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def target(name):
    """Changes the last call of a program."""
    return lambda program: program["graph_module"]["graph"]["nodes"][-1].update(target=name)


@pytest.mark.parametrize(
    "name",
    [
        "max_pool2d_with_indices_backward.default",
        "max_pool3d_with_indices_backward.default",
        "adaptive_max_pool2d_backward.default",
        "adaptive_max_pool3d_backward.default",
        "_ctc_loss.default",
        "_weight_int4pack_mm_for_cpu.default",
        "_cdist_backward.default",
        "_sobol_engine_draw.default",
        "_sobol_engine_ff_.default",
        "_sobol_engine_scramble_.default",
        "_sobol_engine_initialize_state_.default",
        "_reshape_alias.default",
        "set_.source_Tensor",
        "resize_.default",
        "_upsample_bilinear2d_aa.default",
        "lstm.data",
        "add.out",
        "from_file.default",
    ],
)
def test_operators_that_believe_their_arguments_are_not_allowed(name):
    """The list names what may be called; all else is refused unless the engine trusts it."""
    called = f"torch.ops.aten.{name}"
    assert untrusted([called, "torch.ops.aten.conv2d.default"]) == {called: f"aten.{name.partition('.')[0]}"}
    assert not untrusted([called], [f"aten.{name.partition('.')[0]}"])


def test_loops_without_an_end_are_not_taken(file):
    """A program is refused before a process starts, with the option that would take it."""
    rewritten(file, dict, target("torch.ops.higher_order.while_loop"))
    with pytest.raises(OptionError, match=r"higher_order\.while_loop'.* trust_operators: .*while_loop"):
        engine_here(file.parent)


def test_an_operator_is_taken_where_the_engine_trusts_it(tmp_path):
    """The engine's option counts, and no entry of the folder's."""
    archive(tmp_path, Bessel, torch.rand(2, 1, 16, 16), config={})
    trusted = {"trust_operators": ["aten.special_bessel_j0"]}
    with pytest.raises(OptionError, match=r"a call of 'torch.ops.aten.special_bessel_j0.default'"):
        engine_here(tmp_path)
    with pytest.raises(OptionError, match="must be a list of names"):
        engine_here(tmp_path, additional_config={"mmout": {"trust_operators": "aten.special_bessel_j0"}})
    image = torch.rand(1, 16, 16)
    (result,) = engine_here(tmp_path, additional_config={"mmout": trusted}).generate([image], use_tqdm=False)
    torch.testing.assert_close(torch.as_tensor(result.outputs.array), torch.special.bessel_j0(image))
    (tmp_path / "config.json").write_text(json.dumps({"mmout": trusted}))
    with pytest.raises(OptionError, match="for whoever starts the engine"):
        engine_here(tmp_path)


def test_numbers_are_no_dtypes_or_formats(tmp_path):
    """Torch takes the number of a dtype or a memory format as it is, and reads past its tables."""
    file = tmp_path / "model.pt2"
    archive(tmp_path, Converts, torch.rand(2, 4))

    def numbered(program):
        (arg,) = [one for one in program["graph_module"]["graph"]["nodes"][0]["inputs"] if one["name"] == "dtype"]
        arg["arg"] = {"as_int": 10**6}

    rewritten(file, dict, numbered)
    with pytest.raises(ModelError, match="dtype is 1000000, not a dtype"):
        network_of(file, CPU)


def test_a_mean_for_one_of_many_channels_is_no_foreign_memory(file):
    """Kernels of batch norm read as many means as there are channels, whatever the weight holds."""

    def one_mean(files):
        (name,) = [name for name in files if name.endswith("weights_config.json")]
        table = json.loads(files[name])
        table["config"]["norm.running_mean"]["tensor_meta"].update(sizes=[{"as_int": 1}])
        return files | {name: json.dumps(table).encode()}

    _, network = network_of(file, CPU)
    assert network(torch.rand(2, 4, 64, 64))[0].shape == (2, 3, 64, 64)
    rewritten(file, one_mean)
    _, network = network_of(file, CPU)
    with pytest.raises(ValueError, match=r"running_mean has the shape \[1\] for 8 channels"):
        network(torch.rand(2, 4, 64, 64))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (ATEN.native_batch_norm.default, (torch.rand(1, 64, 2), None, None, torch.rand(1), torch.rand(1), False, 0, 0)),
        (ATEN._fft_c2r.default, (torch.rand(3, dtype=torch.complex64), [0], 0, 10**6)),
        (ATEN._fft_r2c.default, (torch.rand(2, 2), [0, 0], 0, True)),
        (ATEN.as_strided.default, (torch.rand(4), [5], [1])),
        (ATEN.max_unpool2d.default, (torch.rand(1, 1, 1), torch.tensor([[[99]]]), [2, 2])),
        (ATEN._unsafe_index.Tensor, (torch.rand(4), [torch.tensor([99])])),
        (ATEN._unsafe_view.default, (torch.rand(4), [5])),
        (ATEN.lstm.input, (R(2, 5, 4), [R(1, 2, 3)] * 2, [R(12, 4), R(12, 3), R(1), R(1)], *RECURRENT)),
        (ATEN.gru.input, (R(2, 5, 4), R(1, 2, 3), [R(9, 4), R(3, 3), R(9), R(9)], *RECURRENT)),
        (ATEN.zeros.default, ([2**15, 2**15],)),
        (ATEN.repeat.default, (torch.rand(4), [2**40])),
        (ATEN.pad.default, (torch.rand(4), [2**40, 0])),
        (ATEN.arange.default, (2**40,)),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "",
)
def test_checked_operators_refuse_sizes_that_lie(op, arguments):
    """The check comes before the kernel; with the operator itself some of these end the process."""
    with pytest.raises((ValueError, IndexError, RuntimeError)):
        CHECKED[op._schema.name.replace("::", ".")](op, *arguments)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_run_as_they_are(kind, tmp_path):
    """Layers in both directions, one above the other, pass the check of their shapes."""
    torch.manual_seed(0)
    layer = kind(4, 6, 2, batch_first=True, bidirectional=True).eval()
    series = torch.rand(2, 5, 4)
    with warnings.catch_warnings(action="ignore"):  # torch sees the layer's own list of weights change
        torch.export.save(torch.export.export(layer, (series,)), tmp_path / "model.pt2")
    _, network = network_of(tmp_path / "model.pt2", CPU)
    with torch.no_grad():
        torch.testing.assert_close(network(series)[0], layer(series)[0])


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (ATEN.empty.memory_format, ([300, 300],)),
        (ATEN.new_empty.default, (torch.rand(1), [300, 300])),
        (ATEN.empty_strided.default, ([300, 100], [300, 3])),
    ],
    ids=lambda value: str(value) if isinstance(value, torch._ops.OpOverload) else "",
)
def test_empty_memory_is_not_shown(op, arguments):
    """What would hold what others have left holds zeros, between its elements too."""
    for _ in range(4):
        torch.full((300, 300), 7.0)
    made = CHECKED[op._schema.name.replace("::", ".")](op, *arguments)
    assert not made.as_strided([made.untyped_storage().nbytes() // 4], [1]).any()


def test_a_pipe_is_no_archive(tmp_path):
    """It would be waited for until somebody writes to it."""
    os.mkfifo(tmp_path / "model.pt2")
    os.mkfifo(tmp_path / "item.json")
    with pytest.raises(OptionError, match="is not a regular file"):
        engine_here(tmp_path)


def test_weights_have_the_bytes_that_their_tensors_need(file):
    """A compressed weight may grow without bounds, and one that is too short would be filled up."""
    with zipfile.ZipFile(file) as content:
        files = {name: content.read(name) for name in content.namelist()}
    (weight, *_) = (name for name in files if name.endswith("/weight_0"))
    for compression, data, fault in (
        (zipfile.ZIP_DEFLATED, bytes(1 << 20), "weight_0 in model.pt2 is compressed"),
        (zipfile.ZIP_STORED, files[weight][:4], r"weight_0 in model.pt2 has 4 bytes, and \S+ needs \d+"),
        (zipfile.ZIP_STORED, b"", r"weight_0 in model.pt2 has 0 bytes"),
    ):
        with zipfile.ZipFile(file, "w") as content:
            for name, before in files.items():
                content.writestr(name, data if name == weight else before, compression if name == weight else 0)
        with pytest.raises(OptionError, match=fault):
            contents_of(file)
