#!/usr/bin/env bash
# Prepares .venv-terratorch for the tests of TerraTorch's models:  scripts/setup_terratorch.sh
#
# It is a layer over .venv, which scripts/setup.sh must have prepared with "dev". Engine, torch, this package and the tools
# for tests come from .venv. TerraTorch and its imports are installed here, in the versions of
# scripts/terratorch-requirements.txt. Nothing outside .venv-terratorch is changed, and a second call finds its stamp
# and installs nothing.
set -euo pipefail
unset CDPATH PYTHONHOME PYTHONPATH PIP_PREFIX PIP_ROOT PIP_TARGET PIP_USER
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

readonly base="$PWD/.venv"
readonly venv="$PWD/.venv-terratorch"
readonly python="$venv/bin/python"
readonly pins=scripts/terratorch-requirements.txt
readonly without_operators=terratorch_torchvision

say() { printf 'setup-terratorch: %s\n' "$*"; }
fail() { printf 'setup-terratorch: %s\n' "$*" >&2; exit 1; }

stamp_of() {
    printf '%s\n' "at $PWD"
    cat "$base/prepared-dev" "$pins" "scripts/$without_operators.py" scripts/setup_terratorch.sh
}
is_prepared() { [[ -x "$python" && -f "$venv/prepared" && "$(<"$venv/prepared")" == "$(stamp_of)" ]]; }

# Packages are installed below, so check that the interpreter keeps its packages here and is the interpreter of .venv.
is_ours() {
    [[ ! -L "$venv" && -x "$python" ]] &&
        "$python" - "$venv" "$("$base/bin/python" -c 'import sys; print(sys.version)')" <<'PYTHON' 2>/dev/null
import os.path, sys
sys.exit(not (os.path.samefile(sys.prefix, sys.argv[1]) and sys.version == sys.argv[2]))
PYTHON
}

make_venv() {
    if [[ -e "$venv" || -L "$venv" ]]; then
        is_ours || fail "$venv is not an environment of this folder with .venv's Python; remove it and run again"
    else
        say "making $venv: TerraTorch over .venv (0.6 GB)"
        "$base/bin/python" -m venv --without-pip "$venv"
    fi
    # A .pth file with site.addsitedir, so that the .pth files of .venv work too, such as the one of this package.
    "$python" - "$("$base/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" <<'PYTHON'
import pathlib, sys, sysconfig
line = f"import site; site.addsitedir({sys.argv[1]!r})\n"
pathlib.Path(sysconfig.get_path("purelib"), "over-venv.pth").write_text(line)
PYTHON
}

# Print the error of importing torchvision, or nothing if the import works.
torchvision_fails() { "$python" -W ignore -c 'import torch, torchvision' 2>&1 >/dev/null </dev/null || true; }

bear_torchvision() {
    local site reason
    site="$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    rm -f "$site/$without_operators.pth"
    reason="$(torchvision_fails)"
    [[ -z "$reason" ]] && return
    cp "scripts/$without_operators.py" "$site/"
    echo "import $without_operators" >"$site/$without_operators.pth"
    reason="$(torchvision_fails)"
    [[ -z "$reason" ]] || fail "torchvision cannot be imported: ${reason##*$'\n'}"
}

[[ -f "$base/prepared-dev" ]] || fail "$base is not prepared; run: bash scripts/setup.sh dev"
is_prepared && exit 0
make_venv
install_into "$python" --quiet --no-deps --only-binary :all: --requirement "$pins"
bear_torchvision
stamp_of >"$venv/prepared"
say "done: $venv"
