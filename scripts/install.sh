#!/usr/bin/env bash
# Creates the virtual environment and installs the given lock files into it, hashes checked.
# usage: install.sh VENV LOCK [LOCK ...]
set -euo pipefail
venv=$1; shift

find_python() {  # the first interpreter of version 3.12 or newer
    local candidate
    for candidate in "${PYTHON:-}" python python3 python3.14 python3.13 python3.12; do
        [ -n "$candidate" ] || continue
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1; then
            command -v "$candidate"; return 0
        fi
    done
    return 1
}

if ! [ -x "$venv/bin/python" ]; then
    python=$(find_python) || {
        echo "grpo_jax needs Python 3.12 or newer and found none: install it (for example 'pyenv install 3.12') or name one with PYTHON=/path/to/python3.12." >&2
        exit 1
    }
    echo "creating $venv with $("$python" --version)"
    "$python" -m venv "$venv"
fi

# uv installs from its cache in seconds; pip is the fallback where uv cannot reach the index. Both compile bytecode, once:
# where PYTHONDONTWRITEBYTECODE is set, every start of Python would otherwise compile jax anew.
pip_install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps "$@"; }
install() {
    if [ -x "$venv/bin/uv" ] && "$venv/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" --no-deps "$@"; then
        return
    fi
    pip_install "$@"
}

pip_install --require-hashes -r requirements-tools.lock
for lock in "$@"; do
    echo "installing $lock"
    install --require-hashes -r "$lock"
done
install --no-build-isolation -e .
