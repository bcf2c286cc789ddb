"""Flags of ours: what they read, what they refuse, and what holds where a server has none of them."""

from __future__ import annotations

import argparse
import dataclasses

import pytest

from vllm_mmout.errors import OptionError
from vllm_mmout.serving.options import ServingOptions, flag

FIELDS = [field.name for field in dataclasses.fields(ServingOptions)]


@pytest.fixture
def parser():
    """A parser with our flags alone."""
    parser = argparse.ArgumentParser(prog="serve", exit_on_error=False)
    ServingOptions.add_arguments(parser)
    return parser


def parsed(parser, *arguments):
    return ServingOptions.from_args(parser.parse_args(arguments))


def test_defaults_are_the_fields(parser):
    """Without flags, and without a parser that knows them, every limit has its default."""
    assert parsed(parser) == ServingOptions() == ServingOptions.from_args(argparse.Namespace(model="m"))


def test_every_field_has_a_flag(parser):
    """Each limit can be set by the flag that errors name, and set alone."""
    for name in FIELDS:
        words = {"results_dir": "file", "trace": "file", "read_from": "s3://bucket/a/", "write_to": "gs://bucket"}
        value = words.get(name, "7")
        options = parsed(parser, flag(name), value)
        assert str(getattr(options, name)) in {value, "7.0", f"('{value}',)"}
        assert dataclasses.replace(options, **{name: getattr(ServingOptions(), name)}) == ServingOptions()


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1", 1),
        ("500000", 500_000),
        ("64k", 64_000),
        ("64K", 65_536),
        ("2m", 2_000_000),
        ("2M", 2 * 1024**2),
        ("3g", 3_000_000_000),
        ("1G", 1024**3),
        ("1.5G", 3 * 2**29),
        ("0.3k", 300),
        ("1t", 10**12),
        ("1T", 1024**4),
        (" 8M ", 8 * 1024**2),
    ],
)
def test_sizes_have_units(parser, text, size):
    """Small letters are powers of 1000, large ones of 1024, as in vLLM's own flags."""
    assert parsed(parser, "--mmout-max-upload", text).max_upload == size


@pytest.mark.parametrize("text", ["12k", "12K", "7m", "7M", "2g", "2G", "12", "1.5k"])
def test_sizes_are_those_of_vllm(parser, text):
    """Where vLLM reads a size, it is the same one."""
    argparse_utils = pytest.importorskip("vllm.utils.argparse_utils")
    assert parsed(parser, "--mmout-max-tiles", text).max_tiles == argparse_utils.human_readable_int(text)


@pytest.mark.parametrize("text", ["", "much", "-5", "1P", "1GB", "1e9", "0x10", "1,5G", "٣", "nan"])
def test_what_is_no_size_is_refused(parser, text):
    """The parser's error names flag, value and how it is written."""
    with pytest.raises(argparse.ArgumentError) as caught:
        parser.parse_args([f"--mmout-max-pixels={text}"])
    assert "--mmout-max-pixels" in str(caught.value)
    assert f"{text!r} is no size; write a number such as 500000, 500k, 64M or 1.5G" in str(caught.value)


@pytest.mark.parametrize("name", ["max_upload", "max_pixels", "max_tiles", "max_waiting", "max_results"])
def test_limits_allow_something(parser, name):
    """A limit of nothing is an error that names the flag; one is enough."""
    with pytest.raises(OptionError, match=rf"{flag(name)} must be at least 1, got 0"):
        parsed(parser, flag(name), "0")
    assert getattr(parsed(parser, flag(name), "1"), name) == 1


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_areas_are_finite_and_above_zero(parser, value):
    """Other areas are an error that names the flag; by default there is no such limit."""
    with pytest.raises(OptionError, match="--mmout-max-area must be a finite number of square kilometres above 0, got"):
        parsed(parser, f"--mmout-max-area={value}")
    assert ServingOptions().max_area is None


@pytest.mark.parametrize("name", ["receive_timeout", "send_timeout", "result_ttl"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_times_are_finite_and_above_zero(parser, name, value):
    """Other times are an error that names the flag."""
    with pytest.raises(OptionError, match=rf"{flag(name)} must be a finite number of seconds above 0, got "):
        parsed(parser, f"{flag(name)}={value}")


def test_the_empty_folder_is_refused(parser):
    """It would be the folder that the server was started in."""
    with pytest.raises(OptionError, match="--mmout-results-dir must be a folder"):
        parsed(parser, "--mmout-results-dir", "")


def test_options_are_frozen():
    """Nothing can change a server's limits while it runs."""
    with pytest.raises(dataclasses.FrozenInstanceError):
        ServingOptions().max_tiles = 1


def test_help_shows_defaults_as_one_writes_them(parser):
    """Each flag stands there with its default, in the unit that it has."""
    text = " ".join(parser.format_help().split())
    assert all(flag(name) in text for name in FIELDS)
    assert ServingOptions.from_args(parser.parse_args([])) == ServingOptions()
    assert parser.get_default("mmout_max_upload") == "1G"
    assert parser.get_default("mmout_max_pixels") == "500m"
    assert parser.get_default("mmout_max_tiles") == "4096"
