#!/usr/bin/env bash
# All that can be known of AMD's real ROCm on a machine without a GPU, by one command:
#
#   check.sh [ROOTS] [options of kernels.sh]
#
# Makes the roots of ROCm 7.2, 6.4 and 5.7 in the folder ROOTS (BURN_ROCM_ROOTS, or ~/.cache/burn-rocm-roots), or
# finds them made: 4.5 GB, six minutes with a good network. Then holds the raw bindings against their headers, opens
# the real libraries through the product's loader, runs kernels on the virtual GPU, and compiles every kernel, by the
# hipRTC of 5.7 too, for one architecture. Needs Debian or Ubuntu, and to be root. Exit status 0: all is well.
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
