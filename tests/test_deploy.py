"""What deploy/ has names commands, flags and extras that there are."""

from __future__ import annotations

import argparse
import configparser
import re
import shlex

import pytest
from pages import ROOT

from vllm_mmout.commands import run
from vllm_mmout.serving.options import ServingOptions

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"


def manifests(name):
    """The objects of a file."""
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def test_the_job_runs_a_command_that_there_is():
    """On a cluster, with flags that the command has."""
    (job,) = manifests("rayjob.yaml")
    program, *arguments = shlex.split(job["spec"]["entrypoint"])
    parser = argparse.ArgumentParser()
    run.add_parser(parser.add_subparsers())
    options, rest = parser.parse_known_args(arguments)
    assert (program, options.ray, rest) == ("vllm-mmout", "auto", [])


def test_the_server_has_flags_that_there_are():
    """And its results lie on the volume."""
    deployment, claim, service = manifests("server.yaml")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    ours = [one for one in container["args"] if one.startswith("--mmout-")]
    parser = argparse.ArgumentParser()
    ServingOptions.add_arguments(parser)
    assert set(ours) <= set(parser._option_string_actions)
    assert container["args"][0] == "serve"
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert container["args"][container["args"].index("--mmout-results-dir") + 1].startswith(mounts["results"])
    volumes = {volume["name"]: volume for volume in deployment["spec"]["template"]["spec"]["volumes"]}
    assert volumes["results"]["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_the_image_installs_extras_that_there_are():
    """Those of setup.cfg."""
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = (DEPLOY / "Dockerfile").read_text()
    for extras in re.findall(r"EXTRAS=([\w,]+)", lines):
        assert set(extras.split(",")) <= set(config["options.extras_require"])
