"""``vllm-mmout serve`` takes command lines that were printed for TerraTorch, as docs/io-plugins.md has one."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager

import pytest

from vllm_mmout import cli

pytestmark = pytest.mark.engine

BLOG = (
    *("--skip-tokenizer-init", "--task", "embed", "--trust-remote-code", "--model-impl", "terratorch"),
    *("--io-processor-plugin", "mmout", "--enforce-eager"),
)


@pytest.fixture
def launched(monkeypatch):
    """The arguments with which vLLM's command was called instead of a server being started, and ``VLLM_PLUGINS``."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.plugins import load_general_plugins

    load_general_plugins()  # as vLLM's parser does once a process, which a test must not do with what it has changed
    calls = []
    monkeypatch.setattr(
        ServeSubcommand, "cmd", staticmethod(lambda args: calls.append((args, os.environ.get("VLLM_PLUGINS"))))
    )
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    return calls


@contextmanager
def heard(handler):
    """Have a handler hear our logger; vLLM takes those away that were there when it set up its own."""
    logger = logging.getLogger("vllm.mmout")
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


def serve(*arguments):
    return cli.main(["serve", *arguments])


def without_folder(args):
    return {name: value for name, value in vars(args).items() if name != "mmout_results_dir"}


@pytest.mark.parametrize("task", [("--task", "embed"), ("--task=embed",)], ids=["two words", "one word"])
def test_the_blogs_command_line_is_taken(launched, caplog, task):
    """``--task`` is left out with a warning that says so; everything else goes to vLLM as it stands."""
    left = [argument for argument in BLOG if argument not in {"--task", "embed"}]
    assert serve("org/model", *left) == 0
    with heard(caplog.handler):
        assert serve("org/model", *left[:1], *task, *left[1:]) == 0
    assert "--task embed is no longer an argument of vLLM, and is left out" in caplog.text
    (plain, _), (blogs, _) = launched
    assert without_folder(blogs) == without_folder(plain)
    assert (blogs.model_impl, blogs.io_processor_plugin, blogs.enforce_eager) == ("terratorch", "mmout", True)


def test_a_file_of_arguments_is_taken(launched, caplog, tmp_path):
    """``task`` in a file of ``--config`` is left out as well, and the rest of the file counts."""
    file = tmp_path / "serve.yaml"
    file.write_text("model: org/model\nport: 8123\n")
    assert serve("--config", str(file)) == 0
    file.write_text("model: org/model\ntask: embed\nport: 8123\n")
    with heard(caplog.handler):
        assert serve("--config", str(file)) == 0
        assert serve("other/model", "--task", "classify", "--config", str(file)) == 0
    for value in ("embed", "classify"):
        assert f"--task {value} is no longer an argument of vLLM, and is left out" in caplog.text
    (plain, _), (with_task, _), (both, _) = launched
    assert without_folder(with_task) == without_folder(plain)
    assert (with_task.port, both.port, both.model_tag) == (8123, 8123, "other/model")


def test_the_help_does_not_show_it(launched, capsys):
    """It is no flag to be used."""
    with pytest.raises(SystemExit, match="0"):
        serve("--help=all")
    shown = capsys.readouterr().out
    assert "--task" not in shown
    assert "--mmout-max-upload" in shown


@pytest.mark.parametrize(
    "arguments",
    [("m", "--task"), ("m", "--task", "--port", "1"), ("m", "--tasks", "embed"), ("--", "m", "--task", "embed")],
)
def test_what_is_not_that_flag_stays(launched, capsys, arguments):
    """A flag without its value, another flag, and what follows ``--`` are for vLLM's parser to refuse."""
    with pytest.raises(SystemExit, match="2"):
        serve(*arguments)
    assert "error: unrecognized arguments" in capsys.readouterr().err
    assert launched == []


def test_a_flag_that_vllm_has_is_its_own(launched, monkeypatch):
    """Where vLLM's parser takes ``--task`` itself, nothing is left out."""
    from vllm.entrypoints.cli.serve import ServeSubcommand

    original = ServeSubcommand.subparser_init

    def subparser_init(self, subparsers):
        parser = original(self, subparsers)
        parser.add_argument("--task")
        return parser

    monkeypatch.setattr(ServeSubcommand, "subparser_init", subparser_init)
    assert serve("org/model", "--task", "embed") == 0
    ((args, _),) = launched
    assert args.task == "embed"


@pytest.mark.parametrize(
    ("before", "within"),
    [
        (None, None),
        ("other", "other,vllm_mmout,mmout"),
        ("vllm_mmout", "vllm_mmout,mmout"),
        ("mmout,vllm_mmout", "mmout,vllm_mmout"),
    ],
)
def test_a_list_of_plugins_lets_ours_in(launched, monkeypatch, before, within):
    """``VLLM_PLUGINS`` gets the IO Processor plugin where the arguments name it; afterwards it is as it was."""
    if before is not None:
        monkeypatch.setenv("VLLM_PLUGINS", before)
    assert serve("org/model", "--io-processor-plugin", "mmout") == 0
    assert [plugins for _, plugins in launched] == [within]
    assert os.environ.get("VLLM_PLUGINS") == before
