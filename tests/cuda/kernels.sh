#!/usr/bin/env bash
# Compiles every kernel of the table by NVIDIA's NVRTC, as the CUDA provider does, without a GPU. Fails for a kernel
# that does not compile, or that spills registers and may not (hip/cuda/tests/nvrtc.rs).
#
#   kernels.sh [--nvrtc VERSION] [--arch sm_80,sm_90] [--family f,g] [--report FILE]
#
#   --nvrtc     the version of PyPI's NVRTC, 13.0 by default; 12.x too. It is downloaded once, some 90 MB, into
#               ~/.cache/burn-rocm-nvrtc or the folder BURN_ROCM_NVRTC
#   --arch      the architectures; sm_90 by default
#   --family    only the kernels of these families
#   --report    writes a row for each kernel: registers, spilled bytes, shared memory
#
# All families take some minutes of one core. Needs python3 with pip. NVRTC_TEST names an existing test program; without
# it, the program is built.
set -euo pipefail
usage="usage: kernels.sh [--nvrtc VERSION] [--arch a,b] [--family f,g] [--report FILE]"
version=13.0
while [ $# -gt 0 ]; do
    value=${2:?$usage}
    case "$1" in
    --nvrtc) version=$value ;;
    --arch) export BURN_ROCM_CUDA_ARCHS=$value ;;
    --family) export BURN_ROCM_CUDA_FAMILIES=$value ;;
    --report) BURN_ROCM_CUDA_REPORT=$(realpath -m "$value") && export BURN_ROCM_CUDA_REPORT ;;
    *) echo "$usage" >&2 && exit 2 ;;
    esac
    shift 2
done
cd "$(dirname "$(realpath "$0")")/../.."

folder=${BURN_ROCM_NVRTC:-${XDG_CACHE_HOME:-$HOME/.cache}/burn-rocm-nvrtc}/$version
if [ ! -e "$folder/done" ]; then
    case "$version" in
    12.*) package=nvidia-cuda-nvrtc-cu12 ;;
    *) package=nvidia-cuda-nvrtc ;;
    esac
    rm -rf "$folder"
    python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$folder" "$package==$version.*"
    touch "$folder/done"
fi
# NVRTC opens its built-in functions' library by name.
library=$(find "$folder" -name 'libnvrtc.so.*' -printf '%h\n' -quit)
test=${NVRTC_TEST:-$(cargo test --release --quiet -p hip-cuda --test nvrtc --no-run --message-format json |
    sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)}
LD_LIBRARY_PATH=$library${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$test" --nocapture
