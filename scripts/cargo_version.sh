#!/bin/sh
# cargo_version.sh [CARGO]: fails with one line if this cargo is older than Cargo.toml asks for.
# Older ones end with errors that name no version, such as those of a setting that they do not know.
set -eu
cargo=${1:-cargo}
needed=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml")
get="gdrcore needs Rust $needed or newer, from https://rustup.rs"
# A word or several, such as "cargo +1.90".
# shellcheck disable=SC2086
if ! found=$($cargo --version 2>/dev/null); then
    echo "no $cargo here: $get" >&2
    exit 1
fi
found=$(echo "$found" | sed 's/^cargo \([0-9.]*\).*/\1/')
oldest=$(printf '%s\n' "$needed" "$found" | sort -V | head -n 1)
if [ "$oldest" != "$needed" ]; then
    echo "this cargo is $found: $get" >&2
    exit 1
fi
