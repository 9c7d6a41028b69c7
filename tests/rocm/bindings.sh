#!/usr/bin/env bash
# Compares the raw bindings (hip-sys, rocblas-sys, hipblaslt-sys, miopen-sys, rccl-sys) with AMD's headers, and shows
# that the check can fail.
#
#   tests/rocm/bindings.sh [--write] [--nccl HEADER] INCLUDE...
#
# Each INCLUDE is a root that tests/rocm/root.sh made, or a folder with hip/ and, if present, rocblas/, hipblaslt/,
# miopen/ and rccl/ of one ROCm release. One of them must have all five. HEADER is NVIDIA's nccl.h, for instance of the
# package nvidia-nccl-cu13 from PyPI: rccl-sys must match it too. tests/rocm/bindings.txt keeps the findings, item by
# item, for 5.7, 6.4 and 7.2: an item that changes must be compared with all three again (--write). Debian lacks rocBLAS
# 5.7 and MIOpen 5.7; their headers come from AMD's repositories (tag rocm-5.7.1: library/include of rocBLAS, include of
# MIOpen, with the config.h, export.h and version.h that CMake generates). RCCL of ROCm 5.4 stands for 5.7 and 6.4,
# because Debian has no other older than 7.2. hipBLASLt of ROCm 6.2 stands for 6.4 (AMD's repository, tag rocm-6.2.2:
# library/include, with the files that CMake generates, and with hipblas-common.h as hipblas/hipblas.h).
set -euo pipefail
includes=() options=()
while [ $# -gt 0 ]; do
    argument=$1 && shift
    case "$argument" in
    --write) options+=(--write) ;;
    --nccl) options+=(--nccl "$(realpath "$1")") && shift ;;
    *)
        [ ! -d "$argument/usr/include/hip" ] || argument=$argument/usr/include
        includes+=("$(realpath "$argument")")
        ;;
    esac
done
# The folder with the most libraries comes first: the changes below are compared with it.
for i in "${!includes[@]}"; do
    if [ -d "${includes[i]}/miopen" ]; then
        first=${includes[i]} && includes[i]=${includes[0]} && includes[0]=$first && break
    fi
done
[ ${#includes[@]} -gt 0 ] || { echo "usage: tests/rocm/bindings.sh [--write] [--nccl HEADER] INCLUDE..." >&2; exit 2; }
for library in hip rocblas hipblaslt miopen rccl; do
    if [ ! -d "${includes[0]}/$library" ]; then
        echo "no INCLUDE has the headers of all five libraries: ${includes[0]} lacks $library" >&2
        exit 2
    fi
done
cd "$(dirname "$(realpath "$0")")/../.."

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# A separate program, which does not need the kernels.
program=${BINDINGS:-}
if [ -z "$program" ]; then
    program=$(cargo build --release -p burn-rocm-bindings --message-format json |
        sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1)
fi
"$program" "${options[@]}" "${includes[@]}" | tee "$scratch/said"

# Counts the items in the crates' text: none may have been left out.
crates="hip/hip-sys/src hip/rocblas-sys/src hip/hipblaslt-sys/src hip/miopen-sys/src hip/rccl-sys/src"
# shellcheck disable=SC2086 # five words
functions=$(grep -rhE '^ {12}fn (hip|rocblas_|miopen|nccl)' $crates | wc -l)
# shellcheck disable=SC2086
constants=$(grep -rhE '^(pub const [a-zA-Z]| {8}[a-zA-Z_0-9]+ = [0-9a-fx]+,$)' $crates | wc -l)
grep -q ": $functions functions, $constants constants, " "$scratch/said" ||
    { echo "the crates' text has $functions functions and $constants constants" >&2; exit 1; }

# A change of any kind must be found, by the headers if the library's are present, and by the list alone too.
changes=(
    'hip-sys/src/hip.rs|s/\(fn hipMalloc(ptr: \*mut \*mut c_void, size\): usize)/\1: u32)/'
    'hip-sys/src/hip.rs|s/(ms: \*mut f32, start/(ms: *mut f64, start/'
    'hip-sys/src/hip.rs|s/fn hipModuleUnload(/fn hipModuleUnloaded(/'
    'hip-sys/src/types.rs|s/hipErrorNoDevice: hipError_t = 100/hipErrorNoDevice: hipError_t = 101/'
    'hip-sys/src/types.rs|s/before: \[u8; 396\]/before: [u8; 400]/'
    'hip-sys/src/types.rs|s/after: \[u8; 56\]/after: [u8; 64]/'
    'hip-sys/src/types.rs|s/pub type hipError_t = c_uint/pub type hipError_t = u64/'
    'hip-sys/src/types.rs|s/\(hipErrorLaunchOutOfResources: hipError_t\) = 701/\1 = 702/'
    'hip-sys/src/hip.rs|s/graph: hipGraph_t, flags: c_ulonglong/graph: hipGraph_t, flags: c_uint/'
    'rocblas-sys/src/ffi.rs|s/rocblas_datatype_bf16_r = 168/rocblas_datatype_bf16_r = 169/'
    'rocblas-sys/src/ffi.rs|s/pub type rocblas_stride = i64/pub type rocblas_stride = i32/'
    'rocblas-sys/src/ffi.rs|0,/ldc: rocblas_int,/s/ldc: rocblas_int,/ldc: rocblas_stride,/'
    'hipblaslt-sys/src/ffi.rs|s/HIPBLASLT_EPILOGUE_BGRADA = 256/HIPBLASLT_EPILOGUE_BGRADA = 257/'
    'hipblaslt-sys/src/ffi.rs|s/pub data: \[u8; 16\]/pub data: [u8; 24]/'
    'hipblaslt-sys/src/ffi.rs|s/rows: u64, cols: u64, ld: i64/rows: u64, cols: u64, ld: u64/'
    'miopen-sys/src/types.rs|s/pub workspace_size: usize/pub workspace_size: u32/'
    'miopen-sys/src/types.rs|s/pub solution_id: u64/pub solution: u64/'
    'miopen-sys/src/types.rs|s/MIOPEN_REDUCE_TENSOR_AVG = 5/MIOPEN_REDUCE_TENSOR_AVG = 6/'
    'miopen-sys/src/ffi.rs|0,/do_backward: bool/s/do_backward: bool/do_backward: f32/'
    'rccl-sys/src/ffi.rs|s/ncclFloat16 = 6/ncclFloat16 = 9/'
    'rccl-sys/src/ffi.rs|s/internal: \[c_char; 128\]/internal: [c_char; 127]/'
    'rccl-sys/src/ffi.rs|0,/count: usize, datatype/s/count: usize, datatype/count: u32, datatype/'
)
for change in "${changes[@]}"; do
    file=${change%%|*} edit=${change#*|}
    rm -rf "$scratch/hip" && mkdir "$scratch/hip"
    cp -r hip/hip-sys hip/rocblas-sys hip/hipblaslt-sys hip/miopen-sys hip/rccl-sys "$scratch/hip"
    sed -i "$edit" "$scratch/hip/$file"
    if cmp -s "hip/$file" "$scratch/hip/$file"; then
        echo "this change changes nothing, so it shows nothing: $change" >&2
        exit 1
    fi
    if "$program" --crates "$scratch/hip" >/dev/null 2>&1; then echo "not found by the list: $change" >&2; exit 1; fi
    # With a new list only the headers can show the change. To save time, only the first folder's are used.
    "$program" --crates "$scratch/hip" --facts "$scratch/facts" --write "${includes[0]}" \
        >/dev/null 2>"$scratch/why" && true
    grep -qE 'static assertion failed|error:|must be optional|has no member|is none of' "$scratch/why" ||
        { echo "not found by the headers: $change" >&2; cat "$scratch/why" >&2; exit 1; }
done
echo "${#changes[@]} changes of the bindings, one at a time: all found"
