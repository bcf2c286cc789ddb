#!/usr/bin/env bash
# Runs the tests without an engine, with rasterio 1.4 and the newest rasterio:  scripts/test_rasterio.sh [ARGUMENTS OF PYTEST]
#
# Each version has its own environment, .venv-check-rasterio-..., which is kept. To get a newer rasterio, remove
# .venv-check-rasterio-newest. New rasterio releases have wheels only for new Pythons. Variables:
#   PYTHON  interpreter for the newest rasterio; default: the newest of 3.12 to 3.14 on PATH
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly oracles=(geopandas pyarrow rio-cogeo shapely)

newest_python() {
    local candidate
    for candidate in ${PYTHON:-python3.14 python3.13 python3.12}; do
        if "$candidate" -c 'import sys, venv; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1 </dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    echo "test-rasterio: no Python 3.12 to 3.14 on PATH; name one: make test-rasterio PYTHON=/path/to/python3.13" >&2
    exit 1
}

run() { # PYTHON FOLDER REQUIREMENT [ARGUMENTS OF PYTEST]
    local folder="$2"
    PYTHON="$1" bash scripts/setup.sh check "$folder" "$3" "${oracles[@]}"
    "$folder/bin/python" -c 'import platform, rasterio
print(f"rasterio {rasterio.__version__}, GDAL {rasterio.__gdal_version__}, Python {platform.python_version()}")'
    "$folder/bin/python" -m pytest -n 2 -q -m "not engine and not slow" "${@:4}"
}

newest="$(newest_python)"
failed=0
run "" .venv-check-rasterio-1.4 'rasterio>=1.4,<1.5' "$@" || failed=$?
run "$newest" .venv-check-rasterio-newest 'rasterio>=1.5' "$@" || failed=$?
exit "$failed"
