#!/usr/bin/env bash
# Opens the real libraries of a ROCm root with the product's loader, without a device. Checks versions, functions and
# what a program is told, in Debian's layout and in imitations of AMD's.
#
#   tests/rocm/loader.sh ROOT...       ROOT is what tests/rocm/root.sh made
#
# WITHOUT_RCCL=1 allows a root without RCCL, and a machine where /proc can't be mounted in a root.
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: tests/rocm/loader.sh ROOT..." >&2; exit 2; }
roots=()
for root; do roots+=("$(realpath "$root")"); done
cd "$(dirname "$(realpath "$0")")/../.."

said=$(mktemp -d)
linked=''
trap 'rm -rf "$said" ${linked:+"$linked"}' EXIT
# LOADER, DEVICE_INFO and RCCL name the programs where they are built already.
loader=${LOADER:-} info=${DEVICE_INFO:-} rccl=${RCCL:-}
if [ -z "$loader" ] || [ -z "$info" ] || [ -z "$rccl" ]; then
    # Built together, so that the kernels have one set of features. CARGO_FLAGS may name another profile.
    # shellcheck disable=SC2086 # none or some words
    cargo ${CARGO_FLAGS:-} build --release -p burn-rocm-tests -p burn-rocm-examples -p hip --bin loader \
        --example device-info --example rccl --message-format json >"$said/built"
    built() { sed -n 's|.*"executable":"\([^"]*/'"$1"'\)".*|\1|p' "$said/built" | tail -1; }
    loader=$(built loader) info=$(built device-info) rccl=$(built rccl)
fi

for root in "${roots[@]}"; do
    version=$(sed -n 's/^#define HIP_VERSION_MAJOR *//p; s/^#define HIP_VERSION_MINOR *//p' \
        "$root/usr/include/hip/hip_version.h" | paste -sd.)
    echo "== ROCm $version: $root"
    # Below, /opt/rocm imitates AMD's packages. An interrupted run leaves it behind.
    packages=burn-rocm/layouts/rocm
    [ "$(readlink "$root/opt/rocm")" != $packages ] || rm "$root/opt/rocm"
    [ ! -e "$root/opt/rocm" ] || { echo "$root/opt/rocm exists; its place is needed for an imitation" >&2; exit 1; }
    install -D -t "$root/opt/burn-rocm" "$loader" "$info" "$rccl"
    # Prints a program's standard output and keeps its standard error.
    inside() { env -i HOME=/opt/burn-rocm "$@" 2>"$said/errors"; }
    chroot=$(PATH=$PATH:/usr/sbin command -v chroot)
    fail() { echo "$1" >&2; cat "$said/errors" >&2; exit 1; }

    inside "$chroot" "$root" /opt/burn-rocm/loader "$version" || fail "the loader's test failed"
    # One line on standard error says which provider was chosen, and why.
    line='^burn-rocm: using the cpu provider (passed over rocm: HIP is installed but finds no device'
    { [ "$(grep -c '^burn-rocm:' "$said/errors")" = 1 ] && grep -q "$line" "$said/errors"; } ||
        fail "the fallback was not said in one line"
    inside BURN_ROCM_PROVIDER=rocm "$chroot" "$root" /opt/burn-rocm/loader "$version" ||
        fail "the loader's test without a fallback failed"
    ! grep -q 'using the cpu provider' "$said/errors" || fail "it fell back where that was forbidden"

    inside "$chroot" "$root" /opt/burn-rocm/device-info >"$said/info" || fail "device-info failed"
    for expected in "rocm: not usable: HIP is installed but finds no device" "  ROCm in use: the loader's search path" \
        "  HIP: $version" "  hipRTC: " "  rocBLAS: " "  MIOpen: " "  RCCL: " "AMD GPUs that can be used: 0" \
        "burn-rocm uses here: cpu" \
        "passed over rocm: HIP is installed but finds no device"; do
        grep -qF "$expected" "$said/info" || { cat "$said/info" >&2; fail "device-info does not say: $expected"; }
    done
    echo "device-info says all of it"

    # Without a GPU RCCL answers, and makes no rank. RCCL 2.27 crashes where /proc is missing.
    unasked() { [ -n "${WITHOUT_RCCL:-}" ] || fail "$1"; echo "$1"; }
    if [ "$version" = 6.4 ]; then
        echo "root.sh leaves RCCL out of ROCm 6.4"
    elif [ ! -e "$root/usr/lib/x86_64-linux-gnu/librccl.so.1" ]; then
        unasked "no RCCL in $root"
    elif ! unshare --mount mount --bind /proc "$root/proc" 2>"$said/errors"; then
        unasked "RCCL is not asked for ranks, because /proc can't be mounted in $root"
    else
        # shellcheck disable=SC2016 # for the shell in the namespace
        inside unshare --mount bash -c 'mount --bind /proc "$1/proc" && exec timeout 60 "$0" "$1" /opt/burn-rocm/rccl' \
            "$chroot" "$root" >"$said/rccl" || { cat "$said/rccl" >&2; fail "RCCL failed, or hung for a minute"; }
        sed 's/^/RCCL: /' "$said/rccl"
        grep -q '^ncclCommInitRank of 2: ncclUnhandledCudaError' "$said/rccl" || fail "another error was expected"
    fi

    # AMD's layouts, imitated by links to this root's libraries: the sonames alone, without development links. Each
    # library is loaded from the layout, and none from Debian's folder. The last layout is a link to the first, where
    # AMD's packages lie; no variable names it.
    libraries=/usr/lib/x86_64-linux-gnu
    layouts=/opt/burn-rocm/layouts
    rm -rf "${root:?}$layouts"
    site=$layouts/venv/lib/python3.13/site-packages
    links() {
        local folder=$1 name file
        mkdir -p "$root$folder"
        for name in "${@:2}"; do
            for file in "$root$libraries/$name".so.[0-9]; do
                [ ! -e "$file" ] || ln -s "$libraries/${file##*/}" "$root$folder/"
            done
        done
    }
    links $layouts/rocm/core-10.0/lib libamdhip64 libhiprtc librocblas libhipblaslt libMIOpen librccl
    links $site/_rocm_sdk_core/lib libamdhip64 libhiprtc
    links $site/_rocm_sdk_libraries/lib librocblas libhipblaslt libMIOpen librccl
    linked=$root/opt/rocm
    ln -s "$packages" "$linked"
    for layout in "ROCM_PATH|$layouts/rocm|$layouts/rocm/core-10.0/lib" \
        "VIRTUAL_ENV|$layouts/venv|$site/_rocm_sdk_core/lib and $site/_rocm_sdk_libraries/lib" \
        "AMD's packages|/opt/rocm|/opt/rocm/core-10.0/lib"; do
        IFS='|' read -r origin folder expected <<<"$layout"
        setting=()
        case $origin in *_*) setting=("$origin=$folder") ;; esac
        inside "${setting[@]}" "$chroot" "$root" /opt/burn-rocm/device-info >"$said/info" ||
            fail "device-info failed with $origin"
        not() { cat "$said/info" >&2; fail "with $origin: $1"; }
        grep -qF "  ROCm in use: $expected ($origin)" "$said/info" || not "$expected is not in use"
        grep -qE "^ *HIP: $version.*$folder/" "$said/info" || not "HIP was not loaded from there"
        # hipBLASLt tells no version without a device.
        titles="(HIP|hipRTC|rocBLAS|hipBLASLt|MIOpen|RCCL)"
        ! grep -qE "^ *$titles: (.*, )?(/usr)?/lib/" "$said/info" || not "installations were mixed"
        there=$(find "$root$folder/" -name 'lib*.so.*' | wc -l)
        [ "$(grep -cE "^ *$titles: ([0-9][^,]*, )?$folder/" "$said/info")" -ge "$there" ] ||
            not "not every library was loaded"
        echo "a layout of AMD, imitated, by $origin: $there libraries load from $expected"
    done
    rm "$linked"
    linked=''

    # Whether rocBLAS has kernels for a chip. Without this test rocBLAS would end the process. Only for roots that hold
    # its kernels.
    kernels=$(find "$root/usr/lib" -type d -path '*/rocblas/*/library' | head -1)
    [ -n "$kernels" ] || { echo "no kernels of rocBLAS here"; continue; }
    shipped=()
    for catalogue in "$kernels"/TensileLibrary_lazy_gfx*.dat; do
        chip=${catalogue##*/TensileLibrary_lazy_}
        shipped+=("${chip%.dat}")
    done
    [ ${#shipped[@]} -gt 5 ] || fail "only ${#shipped[@]} catalogues in $kernels"
    absent=gfx1036
    case " ${shipped[*]} " in *" $absent "*) fail "rocBLAS has kernels for $absent by now: name another chip" ;; esac
    mkdir -p "$root/opt/burn-rocm/empty"
    rocblas() { inside "$@" >"$said/rocblas" || fail "the look for rocBLAS's kernels failed"; }
    answers() { grep -qE "^$1: $2" "$said/rocblas" || { cat "$said/rocblas" >&2; fail "$1: not answered by: $2"; }; }
    rocblas "$chroot" "$root" /opt/burn-rocm/loader --rocblas "${shipped[@]}" gfx90a:sramecc+:xnack- "$absent"
    for chip in "${shipped[@]}" 'gfx90a:sramecc\+:xnack-'; do answers "$chip" 'yes$'; done
    answers "$absent" "NotAvailable: this rocBLAS has no kernels for $absent"
    empty=/opt/burn-rocm/empty
    rocblas ROCBLAS_TENSILE_LIBPATH=$empty "$chroot" "$root" /opt/burn-rocm/loader --rocblas "${shipped[@]}"
    for chip in "${shipped[@]}"; do answers "$chip" "NotAvailable: .*ROCBLAS_TENSILE_LIBPATH.*$empty"; done
    echo "rocBLAS has kernels for ${shipped[*]}, and none for $absent or in an empty folder"

    # In the wheels' layout: no kernels before the device files are there, then those of one chip.
    wheel() { rocblas VIRTUAL_ENV=$layouts/venv "$chroot" "$root" /opt/burn-rocm/loader --rocblas gfx1030 gfx942; }
    wheel
    answers gfx1030 "NotAvailable: .*$site"
    # Archives of a chip's code do not replace its catalogue.
    mkdir -p "$root$site/_rocm_sdk_libraries/.kpack"
    : >"$root$site/_rocm_sdk_libraries/.kpack/blas_lib_gfx1030.kpack"
    wheel
    answers gfx1030 "NotAvailable: .*$site"
    folder=$root$site/_rocm_sdk_libraries/lib/rocblas/library/gfx942
    mkdir -p "$folder"
    ln -s "${kernels#"$root"}"/TensileLibrary_lazy_gfx942.dat "$folder/"
    wheel
    answers gfx942 'yes$'
    answers gfx1030 "NotAvailable: .*$site"
    echo "and the same in the layout of AMD's wheels"
done
