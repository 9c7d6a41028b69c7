#!/usr/bin/env bash
# Runs every check against AMD's real ROCm that needs no GPU:
#
#   check.sh [ROOTS] [options of kernels.sh]
#
# Unless they exist, makes the roots of ROCm 7.2, 6.4 and 5.7 in the folder ROOTS (default BURN_ROCM_ROOTS, or else
# ~/.cache/burn-rocm-roots): 5.5 GB, seven minutes with a good network. Then compares the raw bindings with the headers,
# opens the real libraries with the product's loader, runs kernels on the virtual GPU, and compiles every kernel for one
# architecture, also by the hipRTC of 5.7. Needs Debian or Ubuntu, and must be run as root. Exit status 0: all is well.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
roots=${BURN_ROCM_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/burn-rocm-roots}
case "${1:---}" in --*) ;; *) roots=$1 && shift ;; esac

for version in 7.2 6.4 5.7; do "$here/root.sh" "$roots/$version" $version; done
for part in bindings loader; do
    script=$here/$part.sh
    [ -x "$script" ] || continue
    echo "== $part ($(date +%T))"
    "$script" "$roots/7.2" "$roots/6.4" "$roots/5.7"
done
echo "== kernels that run, on the virtual GPU ($(date +%T))"
"$here/../virtual-gpu/rocm.sh" "$roots/7.2" "$roots/6.4"
echo "== kernels ($(date +%T))"
"$here/kernels.sh" "$roots/7.2" "$@"
echo "== kernels by the oldest compiler ($(date +%T))"
case " $* " in
*" --changed "*) "$here/kernels.sh" "$roots/5.7" --changed ;;
*) "$here/kernels.sh" "$roots/5.7" ;;
esac
