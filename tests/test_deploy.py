"""What deploy/ has names commands, flags and extras that there are."""

from __future__ import annotations

import argparse
import configparser
import io
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
    deployment, claim, hub, service = manifests("server.yaml")
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
    assert volumes["hub"]["persistentVolumeClaim"]["claimName"] == hub["metadata"]["name"]
    assert {"name": "HF_HOME", "value": mounts["hub"]} in container["env"]
    assert {"name": "TMPDIR", "value": mounts["uploads"]} in container["env"]
    assert "volumeClaimTemplate" in volumes["uploads"]["ephemeral"]
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]


def test_the_folder_of_jobs_keeps_its_mode_at_each_mount():
    """A server refuses a folder that its group can read, which the default policy would make."""
    context = manifests("server.yaml")[0]["spec"]["template"]["spec"]["securityContext"]
    assert (context["fsGroup"], context["fsGroupChangePolicy"]) == (1000, "OnRootMismatch")


def test_the_server_has_a_key_and_all_probes_have_limits():
    """The key is in a secret; a probe that hangs is given up."""
    pod = manifests("server.yaml")[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    (key,) = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if entry["name"] == "VLLM_API_KEY"]
    assert key == {"name": "vllm-mmout", "key": "api-key"}
    assert all(container[f"{name}Probe"]["timeoutSeconds"] >= 5 for name in ("startup", "liveness", "readiness"))
    assert pod["terminationGracePeriodSeconds"] >= 600


def test_a_pod_that_is_to_end_waits_for_its_scenes(monkeypatch):
    """It looks at metrics of ours and vLLM's until nothing is left, and is told to stop then."""
    ours, vllms = 'mmout:tiles_waiting{model_name="m"}', 'vllm:num_requests_running{engine="0",model_name="m"}'
    assert '"mmout:tiles_waiting"' in (ROOT / "vllm_mmout/serving/metrics.py").read_text()
    assert '"mmout:jobs_unfinished"' in (ROOT / "vllm_mmout/wings/jobs/server/runner.py").read_text()
    pages = [
        f"# HELP x\nmmout:jobs_unfinished {jobs}\n{ours} {tiles}\n{vllms} {running}\n"
        for jobs, tiles, running in ((0.0, 12, 0), (0.0, "0.0", 1.0), (2.0, 0.0, 0.0), (0.0, 0.0, 0.0))
    ]
    assert waits_before_the_stop(monkeypatch, pages) == 3


def test_a_pod_that_is_to_end_waits_while_its_metrics_are_unknown(monkeypatch):
    """The server may not answer, or ``--disable-log-stats`` may leave vLLM's metrics out."""
    idle = "mmout:tiles_waiting 0.0\n"
    pages = [OSError("refused"), idle, TimeoutError("no answer"), f"{idle}vllm:num_requests_running 0.0\n"]
    assert waits_before_the_stop(monkeypatch, pages) == 3


def waits_before_the_stop(monkeypatch, pages):
    """Run the program of the preStop hook, to which ``/metrics`` answers with pages or errors; how often it waited."""
    (container,) = manifests("server.yaml")[0]["spec"]["template"]["spec"]["containers"]
    program, flag, code = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (program, flag) == ("python3", "-c")
    left, waited = iter(pages), []

    def answer(*_, **__):
        page = next(left)
        if isinstance(page, Exception):
            raise page
        return io.BytesIO(page.encode())

    monkeypatch.setattr("urllib.request.urlopen", answer)
    monkeypatch.setattr("time.sleep", waited.append)
    exec(code, {})  # noqa: S102 - our own
    assert (set(waited), list(left)) == ({2}, [])
    return len(waited)


def test_the_image_has_what_it_is_built_of_and_no_more():
    """All is left out but what the package's build reads."""
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    kept = {line.removeprefix("!") for line in lines if line.startswith("!")}
    assert "*" in lines
    assert kept == {"LICENSE", "README.md", "patches", "pyproject.toml", "setup.cfg", "vllm_mmout"}
    assert all((ROOT / name).exists() for name in kept)


def test_the_image_has_the_extras_that_the_docs_show():
    """Without those for tests, and for notebooks."""
    shown = {
        extra
        for page in (ROOT / "docs").glob("*.md")
        for extras in re.findall(r"vllm-mmout\[([\w,]+)\]", page.read_text())
        for extra in extras.split(",")
    }
    (installed,) = re.findall(r"ARG EXTRAS=([\w,]+)", (DEPLOY / "Dockerfile").read_text())
    assert shown - {"testing"} <= set(installed.split(","))


def test_the_image_installs_extras_that_there_are():
    """Those of setup.cfg."""
    config = configparser.RawConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = (DEPLOY / "Dockerfile").read_text()
    for extras in re.findall(r"EXTRAS=([\w,]+)", lines):
        assert set(extras.split(",")) <= set(config["options.extras_require"])
