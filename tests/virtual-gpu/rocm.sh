#!/usr/bin/env bash
# hipRTC kernels on the real HIP of a ROCm root, over the virtual GPU: results, also without optimisation and with
# -ffast-math, printing, two GPUs, faults.
#
#   tests/virtual-gpu/rocm.sh ROOT...       ROOT is what tests/rocm/root.sh made
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: tests/virtual-gpu/rocm.sh ROOT..." >&2; exit 2; }
roots=()
for root; do roots+=("$(realpath "$root")"); done
cd "$(dirname "$(realpath "$0")")/../.."
chroot=$(PATH=$PATH:/usr/sbin command -v chroot)
said=$(mktemp -d)
trap 'rm -rf "$said"' EXIT

for root in "${roots[@]}"; do
    tests/virtual-gpu/install.sh "$root" >/dev/null
    tests=$root/opt/virtual-gpu/tests libraries=$root/usr/lib/x86_64-linux-gnu
    mkdir -p "$tests" "$said/include"
    for folder in hip hsa; do ln -sfn "$root/usr/include/$folder" "$said/include/$folder"; done
    # The versioned names: not every root has the links for developers. The host must not fuse products and sums.
    for program in hip options; do
        cc -O1 -ffp-contract=off -w -D__HIP_PLATFORM_AMD__ -I"$said/include" tests/virtual-gpu/rocm/$program.c \
            -o "$tests/$program" -Wl,--allow-shlib-undefined "$libraries"/libamdhip64.so.[0-9] \
            "$libraries"/libhiprtc.so.[0-9] -lm
    done
    inside() {
        timeout 600 env -i HOME=/opt/virtual-gpu/tests LD_LIBRARY_PATH=/opt/virtual-gpu "${settings[@]}" \
            "$chroot" "$root" "/opt/virtual-gpu/tests/$program" "$@" >"$said/out" 2>"$said/err"
    }
    fail() { echo "$root: $1" >&2; cat "$said/out" "$said/err" >&2; exit 1; }
    program=hip
    for setting in {THREADS=1,THREADS=4,POISON=1,YIELD=0,RACES=1}; do
        settings=("VIRTUAL_GPU_$setting")
        inside all || fail "wrong with $setting"
    done
    # The same kernels by hipRTC at its levels of optimisation, with poisoned memory.
    for level in "-O0" "-O1" "-O3" "-O3 -ffast-math"; do
        settings=(VIRTUAL_GPU_POISON=1 VIRTUAL_GPU_RACES=1) program=options
        # shellcheck disable=SC2086 # one or two words
        inside $level || fail "wrong with hipRTC's $level"
    done
    settings=() program=hip
    inside printf || fail "printf failed"
    [ "$(sort "$said/out")" = "$(printf 'thread %d of three\n' 0 1 2)" ] || fail "printf printed something else"
    settings=(VIRTUAL_GPU_DEVICES=2)
    inside peers || fail "two GPUs failed"
    settings=()
    # HIP 6 aborts the process when a queue fails; HIP 7 returns an error.
    major=$(sed -n 's/^#define HIP_VERSION_MAJOR *//p' "$root/usr/include/hip/hip_version.h")
    for fault in "overrun|wave 7 lane 31: writes 4 bytes at .* past the end of 1020 bytes" \
        "freed|writes 4 bytes at .* 1020 bytes at 0x[0-9a-f]* were freed"; do
        lives=no
        if inside "${fault%%|*}"; then lives=yes; fi 2>/dev/null
        grep -q "kernel fill, pc +0x.*${fault#*|}" "$said/err" || fail "the report of ${fault%%|*} lacks something"
        [ "$lives" = yes ] || [ "$major" = 6 ] || fail "HIP did not return an error for ${fault%%|*}"
    done
    settings=(VIRTUAL_GPU_DEVICES=none)
    if inside all; then fail "a setting that is not valid was taken"; fi
    echo "$root: right"
done
