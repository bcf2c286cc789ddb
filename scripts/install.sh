# Sourced by the setup scripts. `install_into PYTHON ARGUMENT...` is `pip install`, but uses uv if it is installed.
#
# uv needs a fifth of pip's time. From pip's configuration, only PIP_FIND_LINKS is passed to uv. If uv fails, pip runs.
# Like uv, pip does not compile modules here. Python compiles a module at its first import, and few of 34,000 are used.

install_into() {
    if command -v uv >/dev/null; then
        UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" uv pip install --python "$1" \
            --index-strategy unsafe-best-match "${@:2}" </dev/null && return
        echo "uv could not install these packages; trying pip"
    fi
    "$1" -m pip install --no-compile --no-warn-conflicts --disable-pip-version-check "${@:2}" </dev/null
}
