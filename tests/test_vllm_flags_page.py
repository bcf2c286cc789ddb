"""docs/vllm-flags.md names flags that vLLM has, and says of refused ones what vLLM says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.engine
PAGE = (Path(__file__).resolve().parents[1] / "docs/vllm-flags.md").read_text(encoding="utf-8")
OWN = {"--help", "--mmout-"}


@pytest.fixture(scope="module")
def parser():
    """Return the parser of ``vllm serve``."""
    from vllm.entrypoints.cli.serve import ServeSubcommand
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    root = FlexibleArgumentParser(prog="vllm")
    return ServeSubcommand().subparser_init(root.add_subparsers(required=True, dest="subparser"))


def test_every_flag_is_one_of_vllm(parser):
    """A flag that a release of vLLM no longer has is found here."""
    listed = {flag for action in parser._actions for flag in action.option_strings}
    others = set(re.findall(r"--[a-z][a-z-]*", PAGE)) - listed - OWN
    assert parser.parse_known_args(["model", *others])[1] == []  # from 0.33 on --no-enable-... is taken, but not listed


def test_every_group_is_one_of_vllm(parser):
    """The groups are those of ``--help=all``."""
    groups = {group.title for group in parser._action_groups}
    assert set(re.findall(r"\b\w+Config\b", PAGE)) - groups == set()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tensor-parallel-size", "2"], "this model is plain PyTorch"),
        (["--pipeline-parallel-size", "2"], "this model is plain PyTorch"),
        (["--quantization", "fp8"], "this model is plain PyTorch"),
        (["--enable-prefix-caching"], "this model has no cache of keys and values"),
        (
            ["--kv-transfer-config", '{"kv_connector": "ExampleConnector", "kv_role": "kv_both"}'],
            "this model has no cache of keys and values",
        ),
        (["--mm-processor-kwargs", '{"size": 5}'], "the inputs of this model are read by vllm_mmout"),
        (["--max-num-batched-tokens", "100"], "leave max_num_batched_tokens out"),
        (["--enable-expert-parallel"], "Number of experts in the model must be greater than 0"),
        (["--reasoning-parser", "deepseek_r1"], "The model tokenizer must be passed to the ReasoningParser"),
        (["--runner", "generate"], "--runner generate"),
    ],
)
def test_what_is_refused(flags, message, water_index):
    """The engine's configuration is not made, and the message is the page's."""
    from vllm.engine.arg_utils import EngineArgs
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    args = EngineArgs.add_cli_args(FlexibleArgumentParser()).parse_args(["--model", str(water_index), *flags])
    with pytest.raises(Exception, match=re.escape(message)):
        EngineArgs.from_cli_args(args).create_engine_config()
    assert message in PAGE
