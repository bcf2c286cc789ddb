"""``vllm-mmout serve``: runs vLLM's OpenAI-compatible server with the routes of this package."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from vllm_mmout.commands import Subparsers
from vllm_mmout.commands.engine import check_installed

NAME: Final = "serve"
HELP_FLAGS: Final = (["-h"], ["--help"])
DESCRIPTION: Final = """\
Serve a model by vLLM's OpenAI-compatible server, with the routes of models that
answer with images, rasters, sounds, videos and data:

  POST   /v1/images/edits              image in, image or raster out
  POST   /v1/images/variations         the same without a prompt
  POST   /v1/images/generations        for models that take text
  GET    /v1/images/results/{name}     a stored result. Map tiles of a GeoTIFF:
  GET    /v1/images/results/{name}/tilejson.json
  GET    /v1/images/results/{name}/wmts
  GET    /v1/images/results/{name}/tiles/{z}/{x}/{file}
  POST   /v1/audio/speech              a text in, a sound out
  POST   /v1/chat/completions          vLLM's; with modalities also pictures and sounds
  POST   /pooling                      vLLM's; takes any JSON for the model's input mapper
  POST   /v1/scenes                    a job of an image or raster; GET lists jobs
  POST   /v1/scenes/preview            how an input would be read
  GET    /v1/scenes/{scene_id}         a job; DELETE ends and forgets it
  GET    /v1/scenes/{scene_id}/content a job's result, or its picture while it runs
  GET    /v1/scenes/{scene_id}/pixel   the values of a pixel of a result
  GET    /v1/scenes/{scene_id}/figure  a result as a figure for a report
  GET    /v1/scenes/{scene_id}/item.json
                                       a result as a STAC item. Map tiles, also while it runs:
  GET    /v1/scenes/{scene_id}/tilejson.json
  GET    /v1/scenes/{scene_id}/wmts
  GET    /v1/scenes/{scene_id}/tiles/{z}/{x}/{file}
  GET    /v1/stac/collection.json      the newest results as a STAC collection
  POST   /v1/videos                    a job of a video; GET lists jobs
  GET    /v1/videos/{video_id}         a job; DELETE ends and forgets it
  GET    /v1/videos/{video_id}/content a job's video
  GET    /ogc                          OGC API Processes over the jobs, described by /ogc/api
  GET    /mmout                        a page for people, with its files /mmout/{name}
  GET    /metrics, /health             vLLM's, with metrics of ours

MODEL is a folder, a hub id, or an embedded model (water-index). All flags of
vllm serve work too; its log, its other routes and its shutdown are unchanged.
"""
EPILOG: Final = """\
Flags of vllm serve, which need vLLM to be loaded:
  vllm-mmout serve --help=all             every flag
  vllm-mmout serve --help=Frontend        a section
  vllm-mmout serve --help=max-model-len   a flag
"""


def add_parser(subparsers: Subparsers) -> None:
    """Add ``serve`` to the list of commands, without its arguments, because vLLM's server parses them."""
    subparsers.add_parser(NAME, help="serve a model over HTTP, with the flags of vllm serve", add_help=False)


def run(arguments: Sequence[str]) -> int:
    """Start the server with the command's arguments, or print its help. Return the exit status."""
    if list(arguments) in HELP_FLAGS:
        print(_help())
        return 0
    check_installed()
    from vllm_mmout.serving.launch import launch

    launch(arguments)
    return 0


def _help() -> str:
    """Return the help text for the most used flags. It does not load vLLM, which would take seconds."""
    from vllm_mmout.serving.options import ServingOptions

    parser = argparse.ArgumentParser(
        prog=f"vllm-mmout {NAME}",
        usage=f"vllm-mmout {NAME} MODEL [flags of vllm serve] [flags below]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=_Formatter,
        add_help=False,
    )
    ServingOptions.add_arguments(parser)
    return parser.format_help().rstrip()


class _Formatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter that keeps the line breaks of the description, and shows defaults as vLLM's help does."""
