#!/usr/bin/env bash
# Writes into FOLDER what every configuration becomes, so that a change that must not change any of it can be checked by `diff -r` of
# two folders, one written before it and one after:
#
#   tests/outlines.sh FOLDER [CONFIGURATIONS]
#
# For each file of configs/, and of the folder CONFIGURATIONS: its notices or faults, its decisions, its config.yaml, and what
# `gristmill plan` prints, for one device and for as many ranks as the file asks for.
set -euo pipefail
mkdir -p "$1"
folder="$(cd "$1" && pwd)"
others="${2:+$(cd "$2" && pwd)}"
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo build --release --bin gristmill
export GRISTMILL_OUTLINES="$folder"
if [[ -n $others ]]; then export GRISTMILL_MINDFORMERS_YAML="$others"; fi
cargo test --release --test without_adapter outlines_are_written
for file in configs/*.yaml ${others:+"$others"/*.yaml}; do
    name="$(basename "$file" .yaml)"
    for kind in single ranks; do
        flags=()
        if [[ $kind == single ]]; then flags=(--as-single); fi
        # Faults are part of what is compared.
        ./target/release/gristmill plan "$file" ${flags[@]+"${flags[@]}"} > "$folder/$name.$kind.plan.txt" 2>&1 || true
    done
done
