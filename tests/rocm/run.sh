#!/usr/bin/env bash
# Runs the op tests, and any further test program named, on AMD's real libraries over a simulated GPU.
#
#   tests/rocm/run.sh ROOT [--on GPU] [FILTER...]
#                                          the op tests (those whose names contain a FILTER, if any)
#   tests/rocm/run.sh ROOT --nn [FILTER...]
#                                          the tests of burn-rocm-nn: the programs nn, nn_faults and memory
#   tests/rocm/run.sh ROOT --program FILE [FILTER...]
#                                          the tests of FILE, which `cargo test --no-run` built
#   tests/rocm/run.sh ROOT --train         20 training steps of the MLP and of the CNN, beside the CPU provider's
#   tests/rocm/run.sh ROOT --routes        one training step of each: AMD's own logs must show every product in
#                                          rocBLAS, every convolution and pooling in MIOpen
#   tests/rocm/run.sh ROOT --missing       rocBLAS without its kernels, MIOpen whose kernels do not compile: the
#                                          process lives, and every result is right, by kernels of this crate
#   tests/rocm/run.sh ROOT --simulator     the programs of simulator/, each of which shows a fault that rocjitsu had
#   tests/rocm/run.sh ROOT --solvers [FILTER...]
#                                          MIOpen's solvers for matrix cores that a source in it has (solvers/), each
#                                          forced and compared with sums in f64. Needs --on a GPU with matrix cores
#   tests/rocm/run.sh ROOT --rocblas [FILTER]
#                                          AMD's own tests of rocBLAS, in a ROOT of root.sh's 7.2-tests. FILTER is
#                                          GoogleTest's ('*quick*'); GTEST_TOTAL_SHARDS and GTEST_SHARD_INDEX select a
#                                          part. The program first reads its cases: a minute of processor time. Of the
#                                          GPUs below, it runs only on gfx1030 and gpu
#
# Without --on, the GPU is this repository's virtual gfx1030, and each program is one process. With --on GPU, which may
# stand before each of the other options, the GPU is one of
#
#   gfx942 gfx950 gfx1100 gfx1201          AMD's simulator rocjitsu, found in ROOT: as tests/rocm/rocjitsu.sh or ROCm 10
#                                          installs it. Without it, one line says so, and the exit status is 77
#   gfx1030                                the virtual GPU
#   gpu                                    the machine's own GPU; only for this may ROOT be /
#
# and each test is a process of its own (on.sh says which results are kept, and how a later call resumes).
#
# On 2026-11-24 all 274 op tests of commit c95b3b7 passed in 12 minutes on one core, with an empty code cache. This
# needs a simulator whose `v_div_fixup` gives infinity for a quotient that overflows, as AMD's instruction set does; an
# older one gave NaN. On an older machine the slowest tests were `compare::casts_between_all_types` with 321 s,
# `reduce::int_reductions` with 120 s and `conv_drawn::own_kernels` with 76 s.
#
# STEPS, MISSING, OPS, NN, NN_FAULTS and MEMORY name the test programs if they are already built. These paths, FILE and
# RESULTS (on.sh) may be relative to the folder in which this script is called.
#
# ROOT is a Debian root that holds the real ROCm (tests/rocm/root.sh). The virtual GPU of this repository is built into
# it. HSA names a folder of ROOT with another libhsa-runtime64.so.1 to take instead, for instance HSA=/opt/other.
# Variables VIRTUAL_GPU_* reach the programs, and so do the words NAME=VALUE of ROCM_ENV. On a machine with an AMD GPU
# and ROCm none of this is needed: `BURN_ROCM_PROVIDER=rocm cargo test --release -p burn-rocm-tests`.
set -Eeuo pipefail
# A command that fails without a word is told.
trap 'echo "run.sh: line $LINENO failed with exit status $?: $BASH_COMMAND" >&2' ERR
usage="usage: tests/rocm/run.sh ROOT [--on GPU]"
usage+=" [FILTER... | --nn [FILTER...] | --program FILE [FILTER...] | --train | --routes | --missing | --simulator |"
usage+=" --solvers [FILTER...] | --rocblas [FILTER]]"
root=$(realpath "${1:?$usage}")
# Tests that start their own program again find it by /proc, which ROOT has while this script runs.
if [ -d "$root/proc" ] && [ ! -e "$root/proc/self" ]; then
    # shellcheck disable=SC2016 # for the shell in the namespace
    if unshare --mount mount --bind /proc "$root/proc" 2>/dev/null; then
        exec unshare --mount bash -c 'mount --bind /proc "$0/proc" && exec bash "$@"' "$root" "$0" "$@"
    fi
    echo "run.sh: /proc can't be mounted in $root, so tests that start their own program fail" >&2
fi
shift
from=$PWD
cd "$(dirname "$(realpath "$0")")/../.."
for name in STEPS MISSING OPS NN NN_FAULTS MEMORY RESULTS; do
    [ -z "${!name:-}" ] || printf -v "$name" %s "$(cd "$from" && realpath -ms "${!name}")"
done
on=''
if [ "${1:-}" = --on ]; then
    on=${2:?$usage}; shift 2
fi
# A simulated GPU would be put into the machine's own root.
if [ "$root" = / ] && [ "$on" != gpu ]; then
    echo "$usage: ROOT may be / only with --on gpu" >&2
    exit 2
fi
case "${1:-}:${on:-gfx1030}" in
--rocblas:gfx1030 | --rocblas:gpu) ;;
--rocblas:*) echo "$usage: --rocblas runs on gfx1030 and gpu only, not on $on" >&2; exit 2 ;;
esac
# shellcheck source=tests/rocm/on.sh
. tests/rocm/on.sh
choose_gpu "${on:-gfx1030}"

# The path of a tool that enters the root.
tool() {
    PATH=$PATH:/usr/sbin:/sbin command -v "$1" || {
        echo "run.sh: $1 is needed to run a program inside $root: expected it in PATH, found none" >&2
        exit 2
    }
}

# Runs a program of this machine inside the root, on the rocm provider alone: a fallback would test nothing. It is
# killed after LIMIT seconds, if that is set.
inside() {
    local program=$1 there; shift
    there=/opt/burn-rocm/$(basename "$program")
    cmp -s "$program" "$root$there" || install -D "$program" "$root$there"
    mkdir -p "$root/opt/burn-rocm/home"
    local enter by
    if [ -n "$preload" ]; then
        by=$(tool perl) || exit 2
        # The root has no `env`, and the `chroot` of this machine can't load a library of the root.
        # shellcheck disable=SC2016 # for perl
        enter=("$by" -e 'chroot shift or die "chroot: $!\n"; chdir "/"; $ENV{LD_PRELOAD} = shift;
            exec { $ARGV[0] } @ARGV or die "$ARGV[0]: $!\n"' "$root" "$preload")
    else
        by=$(tool chroot) || exit 2
        enter=("$by" "$root")
    fi
    # shellcheck disable=SC2086 # none or some words
    ${LIMIT:+timeout --foreground -k 10 "$LIMIT"} env -i PATH=/usr/bin:/bin HOME=/opt/burn-rocm/home "${gpu[@]}" \
        MIOPEN_DEBUG_CONV_WINOGRAD=0 BURN_ROCM_PROVIDER=rocm RUST_BACKTRACE=1 \
        ${BURN_ROCM_TEST_SEED:+BURN_ROCM_TEST_SEED=$BURN_ROCM_TEST_SEED} \
        ${ROCM_ENV:-} "${enter[@]}" "$there" "$@"
}

# The tests of a program, those that the filters name: in one process, or with --on each in its own.
tests_in() {
    if [ -n "$on" ]; then
        each_test_in "$@"
    else
        local program=$1; shift
        inside "$program" --test-threads 1 "$@"
    fi
}

# Whether the program has a test that the filters name.
has_tests() {
    local program=$1 list; shift
    list=$("$program" --list --format terse "$@") || { echo "$program does not list its tests" >&2; exit 2; }
    grep -q ': test$' <<<"$list"
}
no_such_test() {
    echo "no such test in $1" >&2
    exit 2
}

# The path of the program with this name that `cargo test|build` made, from cargo's JSON messages.
built() { sed -n 's|.*"executable":"\([^"]*/'"$1"'\(-[0-9a-f]*\)\{0,1\}\)".*|\1|p' | tail -1; }
tests_of() { cargo test --release -p burn-rocm-tests --test "$1" --no-run --message-format json | built "$1"; }

# For programs in C and C++ on the libraries named: their paths in `libraries`, and in `made` a folder, which goes when
# this script ends, for the programs and the headers.
with_libraries() {
    local at name
    # Debian's layout, or that of AMD's own packages. The versioned names: not every root has the links for developers.
    # Its own headers of C would not suit this machine's compiler.
    for at in usr/lib/x86_64-linux-gnu:usr/include opt/rocm/lib:opt/rocm/include; do
        libraries=()
        for name in "$@"; do libraries+=("${root%/}/${at%:*}/lib$name".so.[0-9]); done
        [ ! -e "${libraries[0]}" ] || break
    done
    for name in "${libraries[@]}" "${root%/}/${at#*:}/hip"; do
        [ -e "$name" ] || { echo "$root has no HIP: $name is missing" >&2; exit 2; }
    done
    made=$(mktemp -d)
    trap 'rm -rf "$made"' EXIT
    mkdir "$made/include"
    for name in hip miopen; do ln -s "${root%/}/${at#*:}/$name" "$made/include/"; done
}

# Compiles a source to a program on these libraries, by cc or c++.
compile() {
    "$1" -O1 -w -D__HIP_PLATFORM_AMD__ -I"$made/include" "$2" -o "$3" -Wl,--allow-shlib-undefined "${libraries[@]}" -lm
}

# Tests that start programs on the CPU device, and tests that take minutes here.
native=(--skip lockstep --skip on_the_cpu_device --skip a_batch_in_parts --skip long_sequences)

case "${1:-}" in
--train | --routes)
    program=${STEPS:-$(cargo build --release -p burn-rocm-tests --bin steps --message-format json | built steps)}
    if [ "$1" = --train ]; then
        folder=$(mktemp -d) # stays if a step fails
        for model in mlp cnn; do
            losses=$folder/$model
            BURN_ROCM_PROVIDER=cpu "$program" "$model" 20 >"$losses-cpu.txt"
            inside "$program" "$model" 20 >"$losses-rocm.txt"
            paste "$losses-cpu.txt" "$losses-rocm.txt" | awk -v model="$model" '
                # Each awk compares NaN in its own way.
                function is_number(text) { return text ~ /^-?[0-9]+([.][0-9]+)?$/ }
                {
                    print model, "step", $1, "cpu", $2, "rocm", $4
                    if (!is_number($2) || !is_number($4)) next
                    d = $2 - $4
                    if (d < 0) d = -d
                    if (d > worst) worst = d
                    if (d >= 0 && d < 1e-3) near++
                }
                END {
                    printf "%s: %d of %d losses are near, at most %.2g apart\n", model, near, NR, worst
                    if (NR == 20 && near == 20) exit 0
                    print model ": expected 20 steps, losses less than 0.001 apart" >"/dev/stderr"
                    exit 1
                }'
        done
        rm -r "$folder"
    else
        # What one step must log. The MLP has three layers: a product forward for each, one for each weight's gradient
        # and one for the gradient of each hidden input. The CNN logs the same for its two linear layers, with a
        # gradient of each input; its convolutions forward, their weights' gradients and the gradient of the second
        # one's input; and the gradients of its pools (a kernel computes their maxima).
        for expected in mlp:8:0:0 cnn:6:5:2; do
            IFS=: read -r model gemms convs pools <<<"$expected"
            ROCM_ENV="ROCBLAS_LAYER=2 MIOPEN_ENABLE_LOGGING_CMD=1" \
                inside "$program" "$model" 1 >"/tmp/routes-$model${on:+-$on}.txt" 2>&1 ||
                { echo "$model: the step failed; see /tmp/routes-$model${on:+-$on}.txt" >&2; exit 1; }
            count() { grep -cE "$1" "/tmp/routes-$model${on:+-$on}.txt" || true; }
            # MIOpen itself calls rocBLAS's gemm_ex.
            found=$(count 'rocblas-bench -f gemm(_strided_batched)? ')
            found+=:$(count 'MIOpenDriver conv '):$(count 'MIOpenDriver pool ')
            echo "$model: rocBLAS products : MIOpen convolutions : MIOpen poolings = $found"
            [ "$found" = "$gemms:$convs:$pools" ] ||
                { echo "expected $gemms:$convs:$pools; see /tmp/routes-$model${on:+-$on}.txt" >&2; exit 1; }
        done
    fi
    ;;
--nn)
    shift
    messages='' status=0 found=''
    for name in nn nn_faults memory; do
        variable=${name^^}
        program=${!variable:-}
        if [ -z "$program" ]; then
            [ -n "$messages" ] ||
                messages=$(cargo test --release -p burn-rocm-nn --tests --no-run --message-format json)
            program=$(built "$name" <<<"$messages")
        fi
        # A filter may name tests of one program only.
        has_tests "$program" "${native[@]}" "$@" || continue
        found=$program
        tests_in "$program" "${native[@]}" "$@" || status=1
    done
    [ -n "$found" ] || no_such_test "nn, nn_faults and memory"
    exit $status
    ;;
--program)
    program=${2:?$usage}; shift 2
    program=$(cd "$from" && realpath "$program")
    has_tests "$program" "${native[@]}" "$@" || no_such_test "$program"
    tests_in "$program" "${native[@]}" "$@"
    ;;
--missing)
    program=${MISSING:-$(tests_of missing)}
    # rocBLAS gets an empty folder instead of its kernels. MIOpen gets an architecture that AMD's compiler does not know
    # instead of the device's.
    mkdir -p "$root/opt/burn-rocm/empty"
    rocblas='a kernel of this crate computes matrix products where rocBLAS fails: not available: '
    # A real GPU's architecture is not known here.
    case "$on" in
    gpu) rocblas+='this rocBLAS has no kernels for ' ;;
    *) rocblas+="this rocBLAS has no kernels for ${on:-gfx1030}" ;;
    esac
    miopen='kernels of this crate replace MIOpen where it fails: '
    for case in "ROCBLAS_TENSILE_LIBPATH=/opt/burn-rocm/empty|$rocblas" \
        "ROCBLAS_TENSILE_LIBPATH=/opt/burn-rocm/empty BURN_ROCM_CONV_FIND=find|$rocblas" \
        "MIOPEN_DEVICE_ARCH=gfx9999 MIOPEN_DISABLE_CACHE=1|$miopen"; do
        ROCM_ENV=${case%%|*} inside "$program" everything_twice --ignored --exact --nocapture >/tmp/missing.txt 2>&1 ||
            { echo "with ${case%%|*}: see /tmp/missing.txt" >&2; exit 1; }
        [ "$(grep -cF "said: ${case#*|}" /tmp/missing.txt)" = 1 ] ||
            { echo "with ${case%%|*} it was not said once: see /tmp/missing.txt" >&2; exit 1; }
        echo "with ${case%%|*}: right, and said once"
    done
    ;;
--simulator)
    with_libraries amdhip64 hiprtc
    status=0
    for source in tests/rocm/simulator/*.c; do
        program=$made/$(basename "$source" .c)
        compile cc "$source" "$program"
        echo "$(basename "$program"):"
        inside "$program" || [ $? = 77 ] || status=1
    done
    exit $status
    ;;
--solvers)
    shift
    with_libraries amdhip64 MIOpen
    compile c++ tests/rocm/solvers/xdlops.cpp "$made/xdlops"
    cases=$(inside "$made/xdlops" list)
    [ $# = 0 ] || cases=$(grep -F "$(printf '%s\n' "$@")" <<<"$cases") || no_such_test "solvers"
    each_case_in "$made/xdlops" <<<"$cases" || exit 1
    ;;
--rocblas)
    program=/usr/libexec/rocm/librocblas5-tests/rocblas-test
    if [ ! -x "$root$program" ]; then
        echo "skipped: $root has no tests of rocBLAS (tests/rocm/root.sh ROOT 7.2-tests)"
        exit 77
    fi
    gpu+=(LD_LIBRARY_PATH="${HSA:+$HSA:}/usr/lib/x86_64-linux-gnu/blas" GTEST_LISTENER=PASS_LINE_IN_LOG)
    for name in ${!GTEST_*}; do gpu+=("$name=${!name}"); done
    by=$(tool chroot) || exit 2
    env -i HOME=/opt/burn-rocm/home "${gpu[@]}" "$by" "$root" "$program" "--gtest_filter=${2:-*quick*}"
    ;;
*)
    program=${OPS:-$(tests_of ops)}
    has_tests "$program" "${native[@]}" "$@" || no_such_test ops
    tests_in "$program" "${native[@]}" "$@"
    ;;
esac
