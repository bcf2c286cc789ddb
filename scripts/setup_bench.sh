#!/usr/bin/env bash
# Prepares .venv-guidellm, where the benchmark load_tools looks for GuideLLM:  scripts/setup_bench.sh
#
# It uses the Python of .venv, which scripts/setup.sh must have prepared. It shares no packages with .venv, because
# GuideLLM needs other versions, but installs the same CPU build of torch. A second call finds its stamp and installs
# nothing. Variables:
#   TORCH_CPU_INDEX  see scripts/setup.sh
set -euo pipefail
unset CDPATH PYTHONHOME PYTHONPATH PIP_PREFIX PIP_ROOT PIP_TARGET PIP_USER
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/install.sh

readonly venv="$PWD/.venv-guidellm"
readonly python="$venv/bin/python"
readonly guidellm='guidellm==0.8.1'
readonly torch_index="${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}"

fail() { printf 'setup-bench: %s\n' "$*" >&2; exit 1; }

[[ -x .venv/bin/python ]] || fail ".venv is not prepared; run: make setup-dev"
torch="torch==$(.venv/bin/python -c 'import importlib.metadata as m; print(m.version("torch"))')"
stamp="$guidellm $torch at $PWD"
[[ -x "$python" && -f "$venv/prepared" && "$(<"$venv/prepared")" == "$stamp" ]] && exit 0
[[ ! -e "$venv" ]] || "$python" -c 'import os.path, sys; sys.exit(not os.path.samefile(sys.prefix, sys.argv[1]))' "$venv" ||
    fail "$venv is not an environment of this folder; remove it and run again"
printf 'setup-bench: making %s (1.5 GB)\n' "$venv"
[[ -e "$venv" ]] || .venv/bin/python -m venv "$venv"
options=(--quiet)
"$python" -m pip install --dry-run --no-deps "$torch" >/dev/null 2>&1 </dev/null ||
    options+=(--extra-index-url "$torch_index")
install_into "$python" "${options[@]}" "$torch" "$guidellm"
printf '%s\n' "$stamp" >"$venv/prepared"
