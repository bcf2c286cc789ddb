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
    assert network(torch.rand(2, 4, 64, 64))[0].shape == (2, 3, 64, 64)
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
        "torch.ops.aten.save.default",
        "torch.ops.aten.segment_reduce.default",
        "torch.ops.aten._nested_view_from_buffer.default",
        "torch.ops.aten._sparse_coo_tensor_unsafe.default",
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
    with pytest.raises(OptionError, match=f"a call of '{target}'"):
        network_of(file, CPU)


SUM = "Add(Symbol('s1'), Integer(1))"


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "Symbol('s1').__class__",
        "Integer(1) if open('/tmp/x') else 2",
        "[Integer(1) for _ in ()]",
        "Pow(Integer(9), Integer(999999999))",
        "Pow(Integer(9), Integer('9'))",
        "Pow(Integer(2), Mul(Integer(99999), Integer(99999)))",
        "Pow(Pow(Integer(9), Integer(8)), Integer(8))",
        "Abs('os.system')",
        "-" * 3900 + "1",
        "Symbol('a b')",
        "Function('f')(Integer(1))",
        f"Mul({', '.join(40 * (SUM,))})",
        "Pow(Add(Symbol('s1'), Symbol('s2'), Integer(1)), Integer(8))",
        "1 +",
        "Add(" * 2000,
    ],
)
def test_sizes_are_arithmetic_alone(text, file):
    """Torch gives them to sympy, which evaluates them as Python."""
    rewritten(file, dict, set_size(text))
    with pytest.raises(OptionError, match="not supported: the size"):
        network_of(file, CPU)


def test_guards_are_not_evaluated(file, tmp_path):
    """They are Python, too."""
    trap = tmp_path / "sprung"
    rewritten(file, dict, lambda program: program.update(guards_code=[f"open({str(trap)!r}, 'w') is not None"]))
    _, network = network_of(file, CPU)
    network(torch.rand(2, 4, 64, 64))
    assert not trap.exists()


CODE = "image=__import__('os').system('true')"
NAMES = {
    "an input": lambda program: graph_of(program)["inputs"][-1]["as_tensor"].update(name=CODE),
    "a call": lambda program: graph_of(program)["nodes"][-1].update(name=CODE),
    "an argument": lambda program: graph_of(program)["nodes"][-1]["inputs"][0].update(name=CODE),
    "a shape": lambda program: graph_of(program)["tensor_values"].update({CODE: tensor_of(program)}),
    "a weight": lambda program: spec_of(program)["parameter"].update(parameter_name='c" if 1 else "c'),
}
"""Where a name becomes Python source."""


def tensor_of(program):
    return next(iter(graph_of(program)["tensor_values"].values()))


def spec_of(program):
    return program["graph_module"]["signature"]["input_specs"][0]


@pytest.mark.parametrize("change", NAMES.values(), ids=NAMES)
def test_names_are_names(change, file):
    """Torch writes them into source, and runs it."""
    rewritten(file, dict, change)
    with pytest.raises(OptionError, match="matching regex"):
        network_of(file, CPU)


@pytest.mark.parametrize("kind", ["as_operator", "as_custom_obj", "as_anything"])
def test_operators_and_objects_are_no_arguments(kind, file):
    """An operator as an argument may be any that is registered."""
    rewritten(
        file, dict, lambda program: graph_of(program)["nodes"][-1]["inputs"][0].update(arg={kind: "torch.ops.aten.x"})
    )
    with pytest.raises(OptionError, match="Argument of an unsupported kind"):
        network_of(file, CPU)


def trees(program):
    return program["graph_module"]["module_call_graph"][0]["signature"]


def test_trees_of_inputs_and_outputs_name_no_classes(file):
    """Torch imports what they name: that of inputs is not read, that of outputs is one of containers."""
    evil = '{"type": "collections.namedtuple", "context": {"__enum__": true, "fqn": "x:Y"}, "children_spec": []}'
    rewritten(file, dict, lambda program: trees(program).update(in_spec=f"[1, {evil}]", forward_arg_names=[CODE]))
    _, network = network_of(file, CPU)
    assert network(torch.rand(2, 4, 64, 64))[0].shape == (2, 3, 64, 64)
    rewritten(file, dict, lambda program: trees(program).update(out_spec=f"[1, {evil}]"))
    with pytest.raises(OptionError, match=r"is of the class collections\.namedtuple"):
        network_of(file, CPU)


def table_of(change):
    """Changes what is said of one weight."""

    def changed(files):
        (name,) = [name for name in files if name.endswith("weights_config.json")]
        table = json.loads(files[name])
        change(table["config"])
        return files | {name: json.dumps(table).encode()}

    return changed


def said_of_first(**entries):
    return table_of(lambda config: next(iter(config.values())).update(entries))


def without(end):
    return lambda files: {name: content for name, content in files.items() if not name.endswith(end)}


@pytest.mark.parametrize(
    ("change", "add", "what"),
    [
        (said_of_first(use_pickle=True), (), "a pickled object"),
        (said_of_first(path_name="custom_obj_0"), (), "path_name"),
        (said_of_first(path_name="weight_0/../../constants/x"), (), "path_name"),
        (table_of(lambda config: config.update({CODE: next(iter(config.values()))})), (), "matching regex"),
        (without("weights_config.json"), [("data/weights/model.pt", b"")], r"torch 2\.9 or later"),
        (dict, [("data/aotinductor/model/a.so", b"")], "compiled machine code"),
        (dict, [("models/other.json", b"{}")], r"holds 2 programs \(model, other\)"),
        (dict, [("models/evil.jsox", b"{}")], "holds 2 programs"),
        (dict, [("models/evil\n.json", b"{}")], "holds 2 programs"),
        (renamed("models/model.json", b"{"), (), "is not an archive that torch.export.save"),
        (renamed("models/model.json", b"{}"), (), "missing required field"),
        (renamed("models/model.json", b"{" * 100_000), (), "is not an archive that torch.export.save"),
        (renamed("weights_config.json", b"[]"), (), "Expected `object`"),
    ],
)
def test_what_is_no_raw_tensor_is_refused(change, add, what, file):
    """Nothing is unpickled, and no library loaded."""
    rewritten(file, change, add=add)
    with pytest.raises(OptionError, match=what):
        network_of(file, CPU)


def test_what_lies_beside_the_program_is_not_read(file, tmp_path):
    """An older form of weights, and another program's inputs, are pickles: they stay where they are."""
    trap = tmp_path / "sprung"
    beside = [(f"data/{kind}.pt", pickle.dumps(Trap(trap))) for kind in ("weights/model", "sample_inputs/evil")]
    rewritten(file, dict, add=beside)
    network_of(file, CPU)
    assert not trap.exists()


def test_compressed_files_are_refused(file):
    """Torch stores them as they are: a small file that grows is none of torch's."""
    with zipfile.ZipFile(file) as archive_:
        files = {name: archive_.read(name) for name in archive_.namelist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive_:
        for name, content in files.items():
            archive_.writestr(name, content)
    with pytest.raises(OptionError, match="is compressed"):
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
    for _ in range(15):
        damaged = whole.copy()
        damaged[random.integers(0, len(whole), 8)] ^= 255
        file.write_bytes(damaged.tobytes())
        with suppress(MMOutError):
            network_of(file, CPU)
