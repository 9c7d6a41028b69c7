#!/usr/bin/env bash
# Builds the virtual GPU and puts it into ROOT/opt/virtual-gpu as libhsa-runtime64.so.1.
#
#   tests/virtual-gpu/install.sh ROOT
#
# ROOT is a Debian root that holds the real ROCm (tests/rocm/root.sh), or / itself. A program takes the library with
# LD_LIBRARY_PATH=/opt/virtual-gpu. VIRTUAL_GPU names libvirtual_gpu.a if it is already built.
set -euo pipefail
root=$(realpath "${1:?usage: tests/virtual-gpu/install.sh ROOT}")
cd "$(dirname "$(realpath "$0")")/../.."

# HIP asks for symbols of the version ROCR_1. rustc gives the linker a version script of its own for a cdylib, which a
# second one may not join, so the C compiler links a static library.
archive=${VIRTUAL_GPU:-$(cargo build --release -p virtual-gpu --lib --message-format json |
    sed -n 's|.*"\([^"]*/libvirtual_gpu[^"/]*\.a\)".*|\1|p' | tail -1)}
[ -e "$archive" ] || { echo "cargo built no libvirtual_gpu.a" >&2; exit 1; }
script=$(mktemp)
trap 'rm -f "$script"' EXIT
echo 'ROCR_1 { global: hsa_*; local: *; };' >"$script"
mkdir -p "$root/opt/virtual-gpu"
library=$root/opt/virtual-gpu/libhsa-runtime64.so.1
# Beside, then in its place: a program that runs keeps the old one.
cc -shared -o "$library.new" -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -Wl,--gc-sections -s \
    -Wl,-soname,libhsa-runtime64.so.1 -Wl,--version-script="$script" -Wl,-z,defs -lgcc_s -lpthread -lm -ldl -lc
mv "$library.new" "$library"

# Whatever HIP of this root asks for must be there.
for hip in "$root"/usr/lib/x86_64-linux-gnu/libamdhip64.so.? "$root"/opt/rocm/lib/libamdhip64.so.?; do
    [ -e "$hip" ] || continue
    missing=$(comm -23 <(nm -D --undefined-only "$hip" | sed -n 's/.* \(hsa_[a-z0-9_]*@ROCR_1\)$/\1/p' | sort -u) \
        <(nm -D --defined-only "$library" | sed -n 's/.* \(hsa_[a-z0-9_]*\)@@\(ROCR_1\)$/\1@\2/p' | sort -u))
    [ -z "$missing" ] || { echo "$hip asks for what the virtual GPU lacks:" $missing >&2; exit 1; }
done
echo "$library"
