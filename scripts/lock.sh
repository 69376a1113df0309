#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml. Arguments are passed on to uv: `scripts/lock.sh --upgrade` takes the newest versions.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() { .venv/bin/uv pip compile --quiet --universal --generate-hashes --python-version 3.12 --no-header pyproject.toml "$@"; }
compile -o requirements.lock "$@"
compile --extra test -c requirements.lock -o requirements-test.lock "$@"
# The compilers of GPUs and TPUs come on top of the tests' packages.
compile --extra test --extra aot -c requirements-test.lock -o requirements-aot.lock "$@"
compile --extra test --extra aot -c requirements-oldest.in -o requirements-oldest.lock "$@"
