#!/usr/bin/env bash
# Runs every check against AMD's real ROCm that needs no GPU:
#
#   check.sh [ROOTS] [options of kernels.sh]
#
# Unless they exist, makes the roots of ROCm 7.2, 6.4 and 5.7 in the folder ROOTS (default BURN_ROCM_ROOTS, or else
# ~/.cache/burn-rocm-roots): 5.5 GB, seven minutes with a good network. Then compares the raw bindings with the headers,
# opens the real libraries with the product's loader, runs kernels and a part of the op tests on the virtual GPU, whose
# instruction tables it compares with LLVM and with the instructions that AMD's libraries contain. Finally it compiles
# the kernels with the hipRTC of 7.2 and with that of 5.7. All options go to the first run, only `--changed` to the
# second.
# STEPS, KERNEL_CHECK, LOADER, DEVICE_INFO, RCCL, OPS, ISA and INSTRUCTIONS name programs that are already built, and
# VIRTUAL_GPU the static library.
# Needs Debian or Ubuntu, and must be run as root. Exit status 0: all is well.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
roots=${BURN_ROCM_ROOTS:-${XDG_CACHE_HOME:-$HOME/.cache}/burn-rocm-roots}
case "${1:---}" in --*) ;; *) roots=$1 && shift ;; esac
roots=$(realpath -m "$roots")

for version in 7.2 6.4 5.7; do "$here/root.sh" "$roots/$version" $version; done
# A test program also passes if its filter matches none of its tests.
some_passed() {
    local said
    said=$("$@") || { printf '%s\n' "$said"; return 1; }
    printf '%s\n' "$said"
    grep -Eq '^test result: ok\. [1-9][0-9]* passed' <<<"$said" || {
        echo "check.sh: expected tests that pass, found none: $*" >&2
        return 1
    }
}

for part in bindings loader; do
    echo "== $part ($(date +%T))"
    "$here/$part.sh" "$roots/7.2" "$roots/6.4" "$roots/5.7"
done
echo "== kernels that run, on the virtual GPU ($(date +%T))"
"$here/../virtual-gpu/rocm.sh" "$roots/7.2" "$roots/6.4"
echo "== the virtual GPU's instruction tables against LLVM ($(date +%T))"
if [ -n "${ISA:-}" ]; then
    ROOT=$roots/7.2 some_passed "$ISA" --ignored llvm
else
    (cd "$here/../.." && ROOT=$roots/7.2 some_passed cargo test --release -p virtual-gpu --test isa -- --ignored llvm)
fi
# Those that take seconds and reach rocBLAS, MIOpen and every kind of own kernel.
echo "== a part of the op tests, on the virtual GPU ($(date +%T))"
"$here/run.sh" "$roots/7.2" matmul:: conv::conv1d pool::max pool::adaptive norm:: index:: sort::floats \
    attention_grouped::grouped_attention_f16 attention_grouped::grouped_attention_f32
echo "== the instructions of rocBLAS and of the kernels that ran ($(date +%T))"
# The compiler's cache has what MIOpen and the tests above had compiled, and HIP's own kernels. Of these, the ones for
# images and for a barrier of the whole GPU need instructions that the virtual GPU lacks, and nothing here runs them.
instructions=${INSTRUCTIONS:-}
if [ -z "$instructions" ]; then
    instructions=$(cd "$here/../.." && cargo build --release -p virtual-gpu --example instructions \
        --message-format json | sed -n 's|.*"executable":"\([^"]*/examples/instructions\)".*|\1|p' | tail -1)
fi
libraries=$roots/7.2/usr/lib/x86_64-linux-gnu
"$instructions" --except image,ds_gws_init "$libraries/rocblas" "$libraries"/librocblas.so.[0-9] \
    "$roots/7.2/opt/burn-rocm/home/.cache"
echo "== kernels ($(date +%T))"
"$here/kernels.sh" "$roots/7.2" "$@"
echo "== kernels by the oldest compiler ($(date +%T))"
case " $* " in
*" --changed "*) "$here/kernels.sh" "$roots/5.7" --changed ;;
*) "$here/kernels.sh" "$roots/5.7" ;;
esac
