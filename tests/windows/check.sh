#!/usr/bin/env bash
# Builds for Windows with Debian's MinGW, and runs the result under Debian's wine:
#
#   check.sh MNIST DROP-IN
#
# MNIST and DROP-IN are Linux's programs (examples/mnist and tests/drop-in). The losses on Windows must equal theirs.
# Then it runs hip's unit tests, and searches for imitations of AMD's and NVIDIA's DLLs (search.sh). Two checks only
# compile: clang checks the kernels for Microsoft's target, and rustc checks lockstep for Windows.
#
# It installs MinGW, clang, wine and Rust's target if they are missing, which needs root and a network. Where the system
# or rustup doesn't have them, it says so in one line and succeeds. If an installation fails, it fails. Exit status 0:
# all is well.
set -Eeuo pipefail
# A command that fails without a word is told.
trap 'echo "check.sh: line $LINENO failed with exit status $?: $BASH_COMMAND" >&2' ERR
mnist=$(realpath "$1")
drop_in=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
cd "$here/../.."
target=x86_64-pc-windows-gnu

skip() {
    echo "Windows is not checked: $1"
    exit 0
}
packages=(g++-mingw-w64-x86-64-posix clang-19 wine wine64)
if ! command -v x86_64-w64-mingw32-g++ >/dev/null || ! command -v clang++-19 >/dev/null || ! command -v wine >/dev/null
then
    command -v apt-get >/dev/null || skip "there is no apt-get to install ${packages[*]}"
    apt-get update -q >/dev/null
    for package in "${packages[@]}"; do
        apt-cache show "$package" >/dev/null 2>&1 || skip "apt-get has no package $package"
    done
    apt-get install -y -q --no-install-recommends "${packages[@]}" >/dev/null
fi
command -v rustup >/dev/null || skip "there is no rustup to add the target $target"
# grep reads to the end: rustup would fail if its reader left.
rustup target list | grep -x "$target\( (installed)\)\?" >/dev/null ||
    skip "rustup has no target $target for this toolchain"
rustup target add "$target"
x86_64-w64-mingw32-g++ --version | head -1
# wine says on stderr that it lacks its part for 32-bit programs, which is not needed.
wine --version 2>/dev/null

# As little as runs fast enough: one instruction set, no debug information, optimised only where an epoch's time goes.
# The kernels too are optimised less than in other builds, but still vectorised.
isa=v3
for need in avx2 bmi2 f16c fma movbe; do grep -qw $need /proc/cpuinfo || isa=baseline; done
export BURN_ROCM_CPU_BUILD_ISA=$isa CARGO_PROFILE_DEV_DEBUG=false CARGO_INCREMENTAL=0
export CXXFLAGS_x86_64_pc_windows_gnu=-O1
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}"
optimised=()
for package in burn-rocm-examples gemm gemm-common gemm-f32 hip-cpu pulp; do
    optimised+=(--config "profile.dev.package.$package.opt-level=1")
done
built=$CARGO_TARGET_DIR/$target/debug
build() { cargo build --quiet --locked "${optimised[@]}" --target $target "$@"; }
echo "-- build ($(date +%T))"
build -p burn-rocm-examples --no-default-features --example mnist --example device-info
build --manifest-path tests/drop-in/Cargo.toml --no-default-features --features cpu
# With the examples, so that the crates below have the same features.
tests=$(cargo test --quiet --locked "${optimised[@]}" --target $target -p burn-rocm-examples -p hip \
    --no-default-features --lib --no-run --message-format json |
    sed -n 's|.*"executable":"\([^"]*/deps/hip-[0-9a-f]*\.exe\)".*|\1|p')
if [ -z "$tests" ]; then
    echo "cargo test: expected a program with hip's unit tests, found none" >&2
    exit 1
fi
# The CUDA provider has a search of its own. This also builds hip without its feature `cpu`; no other crate has code for
# that case.
build -p hip --no-default-features --features cuda --example survey

scratch=$(mktemp -d)
export WINEPREFIX=$scratch/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml=" LC_ALL=C.UTF-8
finish() {
    # Before wine has started, there is no server to end.
    { wineserver -k && wineserver -w; rm -rf "$scratch"; } 2>/dev/null || true
}
trap finish EXIT

echo "-- the kernels for Microsoft's target ($(date +%T))"
# The texts that the build above compiled. There are no headers of a system, so the kernels may include none.
kernels=$built/build/hip-cpu-kernels
msvc=(clang++-19 --target=x86_64-pc-windows-msvc -nostdinc -fsyntax-only -std=c++17 -fno-exceptions -fno-rtti
    -ffp-contract=off -Wno-unknown-pragmas -I hip/cpu/device -iquote "$kernels/include")
[ $isa != v3 ] || msvc+=(-march=x86-64-v3)
units=()
for family in hip/kernels/*.hip; do units+=("$kernels/hip_cpu_${isa}_$(basename "$family" .hip).cpp"); done
printf '%s\0' "${units[@]}" | xargs -0 -n 1 -P "$(nproc)" "${msvc[@]}"
# The headers in lockstep: this family has barriers, shuffles and shared memory.
"${msvc[@]}" -DHIP_CPU_LOCKSTEP=1 "$kernels/hip_cpu_${isa}_reduce.cpp"
echo "${#units[@]} families are accepted"

echo "-- lockstep for Windows ($(date +%T))"
# Checks Rust's part. The kernels, which take minutes, are replaced by empty files, in a folder that nothing else uses.
cat >"$scratch/c++" <<'END'
#!/usr/bin/env bash
arguments=()
for argument; do
    case $argument in *hip_cpu_*.cpp) arguments+=(-x c++ /dev/null) ;; *) arguments+=("$argument") ;; esac
done
exec x86_64-w64-mingw32-g++ "${arguments[@]}"
END
chmod +x "$scratch/c++"
CARGO_TARGET_DIR=$CARGO_TARGET_DIR/windows-check CXX_x86_64_pc_windows_gnu=$scratch/c++ RUSTFLAGS="-D warnings" \
    cargo check --quiet --locked --target $target -p hip-cpu --features lockstep

echo "-- wine ($(date +%T))"
wine wineboot --init >"$scratch/boot" 2>&1 || { cat "$scratch/boot" >&2; exit 1; }
for folder in "$built" "$built/examples" "$built/deps"; do
    x86_64-w64-mingw32-gcc -shared -O1 -o "$folder/bcryptprimitives.dll" "$here/bcryptprimitives.c" -ladvapi32
done

# run LOG PROGRAM [ARGUMENT...]: a program's output into the file LOG, without the ends of Windows's lines, and what it
# says on stderr into LOG.said. If the program fails, prints both and fails. Neither may have control sequences: a
# console may know no colours.
run() {
    local log=$1 status=0
    shift
    "$@" >"$log.raw" 2>"$log.said" || status=$?
    tr -d '\r' <"$log.raw" >"$log"
    if [ $status != 0 ]; then
        echo "$*: expected exit status 0, found $status; it printed" >&2
        cat "$log" "$log.said" >&2
        exit 1
    fi
    if grep -n $'\e' "$log" "$log.said" >&2; then
        echo "$*: expected plain text, found the control sequences above" >&2
        exit 1
    fi
}
# same TITLE LINUX WINDOWS: fails unless both files have the same lines, of which there must be some.
same() {
    if ! [ -s "$2" ]; then
        echo "$1: expected results on Linux, found none" >&2
        exit 1
    fi
    if ! diff --label Linux --label wine -u "$2" "$3" >&2; then
        echo "$1: expected the results of Linux under wine, found the differences above" >&2
        exit 1
    fi
    echo "$1: the same on Linux and under wine:" && cat "$3"
}
export BURN_ROCM_PROVIDER=cpu BURN_ROCM_CPU_THREADS=2

echo "-- the drop-in ($(date +%T))"
run "$scratch/linux" "$drop_in"
run "$scratch/windows" wine "$built/drop-in.exe"
same "the drop-in" "$scratch/linux" "$scratch/windows"

echo "-- training ($(date +%T))"
options=(--model mlp --data digits --epochs 1 --seed 1 --provider cpu)
# All but the speed.
results() {
    cat "$1.raw" "$1.said" | tr '\r' '\n' | sed -n 's/ *[0-9.]* images\/s.*//; /^epoch\|^test accuracy/p' >"$1"
}
run "$scratch/linux" "$mnist" "${options[@]}" --output "$scratch/out-linux"
results "$scratch/linux"
run "$scratch/windows" wine "$built/examples/mnist.exe" "${options[@]}" --output "$scratch/out-windows"
results "$scratch/windows"
same "the MLP's training" "$scratch/linux" "$scratch/windows"

echo "-- device-info ($(date +%T))"
run "$scratch/info" wine "$built/examples/device-info.exe"
cat "$scratch/info"
if ! grep -q "burn-rocm uses here: cpu" "$scratch/info"; then
    echo 'device-info: expected "burn-rocm uses here: cpu", found the above' >&2
    exit 1
fi

echo "-- hip's unit tests ($(date +%T))"
run "$scratch/tests" wine "$tests"
tail -2 "$scratch/tests"

unset BURN_ROCM_PROVIDER
echo "-- AMD's and NVIDIA's libraries ($(date +%T))"
SHOW=1 "$here/search.sh" "$built/examples/survey.exe" "$built/examples/device-info.exe"
