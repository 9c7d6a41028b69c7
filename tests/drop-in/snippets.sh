#!/usr/bin/env bash
# Resolves the manifests in README and guide with this repository as a git dependency, as their readers would.
#
#   snippets.sh [--build]
#
# Each must get this repository's crate for the right version of Burn. If a patch does not apply, cargo must fail and
# name the marker feature. --build also builds a program with each, which takes minutes because a git dependency shares
# no build with a checkout. CARGO_TARGET_DIR names the folder that keeps the build. Only committed files count.
# Exit status: 0 all is well, 1 something is not.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/../.."
repository=file://$PWD
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

# Prints the block of a Markdown file that begins with ```$2 and contains $3, with this repository's address in it.
block() {
    awk -v kind="\`\`\`$2" -v has="$3" '
        $0 == "```" && inside { if (index(text, has)) { printf "%s", text; exit } inside = 0; next }
        inside { text = text $0 "\n" }
        $0 ~ "^" kind { inside = 1; text = "" }
    ' "$1" | sed "s|<the address of this repository>|$repository|"
}

# Makes a project from the blocks of $2: the manifest that contains $3 and the program that contains $4.
project() {
    mkdir -p "$out/$1/src"
    {
        printf '[package]\nname = "%s"\nversion = "0.0.0"\nedition = "2024"\n\n[workspace]\n\n' "$1"
        block "$2" toml "$3"
    } >"$out/$1/Cargo.toml"
    block "$2" rust "$4" >"$out/$1/src/main.rs"
    grep -q "$repository" "$out/$1/Cargo.toml" || { echo "no manifest with $3 in $2" >&2; exit 1; }
    test -s "$out/$1/src/main.rs" || { echo "no program with $4 in $2" >&2; exit 1; }
}

# Checks that the only package $2 that a project builds is this repository's, in version $3.
has() {
    found=$(cargo tree --quiet --manifest-path "$out/$1/Cargo.toml" --prefix none |
        sed -n "s/^\($2 v[^)]*)\{0,1\}\).*/\1/p" | sort -u)
    case "$found" in
    *$'\n'*) ;;
    "$2 v$3 ($repository"*) echo "$1: $found" && return ;;
    esac
    echo "$1: $2 $3 of $repository was expected, found ${found:-nothing}" >&2
    exit 1
}

project direct README.md 'burn-rocm = { git' 'type Backend = Autodiff<Rocm>'
has direct burn-rocm 0.21.0
project patched docs/guide/porting.md 'features = ["rocm", "autodiff"]' 'use burn::backend::{Autodiff, Rocm}'
has patched burn-rocm 0.21.0
project next README.md 'cubecl-hip = { git' 'Device::rocm(0)'
project next-guide docs/guide/burn-0.22.md 'cubecl-hip = { git' 'Device::rocm(0)'
for name in next next-guide; do
    has $name burn-cubecl 0.22.1
    has $name cubecl-hip 0.11.3
done

project vision docs/guide/burn-0.22.md 'features = ["rocm", "vision"]' 'use burn::vision::'
has vision burn-cubecl 0.22.1
has vision cubecl-hip 0.11.3

# Makes a project from the blocks of $2 as above, and adds the fused modules as $5 names them, by a line with $6.
fused() {
    project "$1" "$2" "$3" "$4"
    line=$(block "$5" toml "$6" | grep "^burn-rocm-nn = ")
    sed -i "s|^\[dependencies\]|&\n$line|" "$out/$1/Cargo.toml"
}

fused direct-nn README.md 'burn-rocm = { git' 'type Backend = Autodiff<Rocm>' \
    docs/guide/fused-modules.md 'burn-rocm-nn = { git'
has direct-nn burn-rocm-nn 0.21.0
has direct-nn burn-rocm 0.21.0
for document in docs/guide/fused-modules.md docs/guide/burn-0.22.md; do
    fused next-nn docs/guide/burn-0.22.md 'cubecl-hip = { git' 'use burn_rocm_nn::' "$document" burn-rocm-nn-022
    has next-nn burn-rocm-nn-022 0.22.1
    has next-nn burn-rocm-022 0.22.1
    has next-nn burn-cubecl 0.22.1
done

# Checks that cargo refuses the project $1 because of the marker feature.
refused() {
    rm -f "$out/$1/Cargo.lock"
    if text=$(cargo metadata --format-version 1 --manifest-path "$out/$1/Cargo.toml" 2>&1 >/dev/null); then
        echo "cargo took a manifest with the patches: $1" >&2
        exit 1
    fi
    grep -q 'feature `burn-rocm`\|feature named `burn-rocm`' <<<"$text" || { echo "$text" >&2; exit 1; }
    echo "patches: $1: refused"
}

# Without the patches, and with only one of them.
for kept in none burn-cubecl; do
    cp -r "$out/next" "$out/$kept"
    sed -i "/^\[patch/,\$ { /^$kept/! { /^\[patch/! d } }" "$out/$kept/Cargo.toml"
    refused "$kept"
done
# With crates of an older version, which cargo ignores. Each fails because of its own marker.
for stale in burn-cubecl cubecl-hip; do
    git clone --quiet . "$out/repository-$stale"
    sed -i 's/^version = "\(.*\)\.[0-9]*"$/version = "\1.0"/' "$out/repository-$stale/burn-0.22/$stale/Cargo.toml"
    git -C "$out/repository-$stale" -c user.name=test -c user.email=test@localhost commit --quiet --all --message stale
    cp -r "$out/next" "$out/stale-$stale"
    sed -i "/^\[patch/,\$ s|$repository|file://$out/repository-$stale|" "$out/stale-$stale/Cargo.toml"
    refused "stale-$stale"
done

if [ "${1:-}" = --build ]; then
    # What the programs share is built once.
    export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$out/target}
    for name in direct direct-nn patched next next-guide next-nn vision; do
        start=$SECONDS
        cargo build --release --quiet --manifest-path "$out/$name/Cargo.toml"
        echo "$name: built in $((SECONDS - start)) s"
        "$CARGO_TARGET_DIR/release/$name"
    done
fi
