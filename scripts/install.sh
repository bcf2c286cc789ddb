# Sourced by the set-up scripts:  install_into PYTHON ARGUMENT...  is `pip install`, by uv where there is one.
#
# uv takes a fifth of pip's time. Of pip's configuration it gets only PIP_FIND_LINKS. pip runs if uv fails. Like uv,
# pip does not compile: Python compiles a module when it is first imported, which few of the 34,000 are.

install_into() {
    if command -v uv >/dev/null; then
        UV_FIND_LINKS="${UV_FIND_LINKS:-${PIP_FIND_LINKS:-}}" uv pip install --python "$1" \
            --index-strategy unsafe-best-match "${@:2}" </dev/null && return
        echo "uv could not install that; pip tries"
    fi
    "$1" -m pip install --no-compile --no-warn-conflicts --disable-pip-version-check "${@:2}" </dev/null
}
