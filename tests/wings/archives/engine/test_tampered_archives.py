"""Archives that would run code, or are none: refused before anything in them is loaded."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from exported_archives import Bands, archive, rewritten
from model_folders import engine_here

from vllm_mmout.errors import MMOutError, OptionError
from vllm_mmout.wings.archives.loading import network_of

pytestmark = pytest.mark.engine
CPU = torch.device("cpu")


class Trap:
    """Leaves a file when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.fixture
def file(tmp_path):
    """An archive as it was exported."""
    free = torch.export.Dim.AUTO
    archive(tmp_path, Bands, torch.rand(2, 4, 64, 64), batch=free, sides=free, config={})
    return tmp_path / "model.pt2"


def renamed(end, content):
    """Replaces the content of the one file that ends so."""

    def change(files):
        (name,) = [name for name in files if name.endswith(end)]
        return files | {name: content}

    return change


def graph_of(program):
    return program["graph_module"]["graph"]


def set_target(target):
    return lambda program: graph_of(program)["nodes"][-1].update(target=target)


def set_size(text):
    def change(program):
        sizes = graph_of(program)["tensor_values"]["image"]["sizes"]
        sizes[2]["as_expr"]["expr_str"] = text

    return change


def test_what_it_was_exported_with_is_not_unpickled(file, tmp_path):
    """torch.export.load would: an archive is loaded without, and gives what it gave."""
    trap = tmp_path / "sprung"
    rewritten(file, renamed("sample_inputs/model.pt", pickle.dumps(Trap(trap))))
    _, network = network_of(file, CPU)
    assert network(torch.rand(2, 4, 64, 64)).shape == (2, 3, 64, 64)
    assert not trap.exists()
    with pytest.raises(Exception):  # noqa: B017, PT011 - the trap is real: whatever torch says of it
        torch.export.load(file)
    assert trap.exists()


@pytest.mark.parametrize(
    "target",
    [
        "torch.hub.load",
        "torch.load",
        "torch.ops.load_library",
        "torch.ops.aten.from_file.default",
        "torch.ops.mine.run.default",
        "torch.ops.aten.add.__class__",
        "torch.ops.aten.__class__.mro",
        "_operator.attrgetter",
        "_operator.methodcaller",
        "math.__loader__",
        "#mine:run",
        "os.system",
    ],
)
def test_only_torchs_operators_on_tensors_are_taken(target, file):
    """A name below torch may be any function."""
    rewritten(file, dict, set_target(target))
    with pytest.raises(OptionError, match=f"holds a call of {target}"):
        network_of(file, CPU)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol('s1').__class__",
        "Integer(1) if open('/tmp/x') else 2",
        "[Integer(1) for _ in ()]",
        "Pow(Integer(9), Integer(999999999))",
        "Symbol('a b')",
        "Function('f')(Integer(1))",
        "1 +",
        "Add(" * 2000,
    ],
)
def test_sizes_are_arithmetic_alone(text, file):
    """Torch gives them to sympy, which evaluates them as Python."""
    rewritten(file, dict, set_size(text))
    with pytest.raises(OptionError, match="holds the size"):
        network_of(file, CPU)


def test_guards_are_not_evaluated(file, tmp_path):
    """They are Python, too."""
    trap = tmp_path / "sprung"
    rewritten(file, dict, lambda program: program.update(guards_code=[f"open({str(trap)!r}, 'w') is not None"]))
    _, network = network_of(file, CPU)
    network(torch.rand(2, 4, 64, 64))
    assert not trap.exists()


def pickled(kind):
    """Says of one payload that it is pickled."""

    def change(files):
        (name,) = [name for name in files if name.endswith("weights_config.json")]
        table = json.loads(files[name])
        entry = next(iter(table["config"].values()))
        entry |= {"use_pickle": True} if kind == "pickle" else {"path_name": kind}
        return files | {name: json.dumps(table).encode()}

    return change


@pytest.mark.parametrize(
    ("change", "add", "what"),
    [
        (pickled("pickle"), (), "as a pickled object"),
        (pickled("custom_obj_0"), (), "as a pickled object"),
        (pickled("weight_0/../../constants/x"), (), "as a pickled object"),
        (dict, [("data/weights/model.pt", b"")], "pickled weights"),
        (dict, [("data/aotinductor/model/a.so", b"")], "compiled machine code"),
        (dict, [("models/other.json", b"{}")], r"holds 2 programs \(model, other\)"),
        (renamed("models/model.json", b"{"), (), "is no archive that torch.export.save writes"),
        (renamed("models/model.json", b"{}"), (), "cannot be read"),
    ],
)
def test_what_is_no_raw_tensor_is_refused(change, add, what, file):
    """Nothing is unpickled, and no library loaded."""
    rewritten(file, change, add=add)
    with pytest.raises(OptionError, match=what):
        network_of(file, CPU)


def test_what_is_no_archive_is_said_before_a_process_starts(file):
    """A file of any content, and one that was cut off."""
    whole = file.read_bytes()
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as other:
        other.writestr("a.txt", "text")
    for content in (b"", b"no archive", whole[: len(whole) // 2], text.getvalue()):
        file.write_bytes(content)
        with pytest.raises(OptionError, match=r"torch\.export\.save"):
            engine_here(file.parent)


def test_a_bit_that_turned_is_an_error_of_its_own(file):
    """Whatever a damaged archive does, it is one of ours."""
    whole = np.frombuffer(file.read_bytes(), np.uint8)
    random = np.random.default_rng(0)
    for _ in range(40):
        damaged = whole.copy()
        damaged[random.integers(0, len(whole), 8)] ^= 255
        file.write_bytes(damaged.tobytes())
        with suppress(MMOutError):
            network_of(file, CPU)
