# shellcheck shell=bash
# What run.sh does for --on GPU: it finds the simulator of that GPU, and runs each test as a process of its own.
#
# A test that was run is a line of the results: program::test, its result (passed, failed, timeout, ignored, or raced
# for a test that passed but had races by RJ_RACE=1), seconds, commit. A test that has a line is not run again, so a
# call resumes where an earlier one ended; to run a test again, delete its line. At the end one line counts the results.
# The exit status is 1 if a test failed, timed out, had races or has no result. Calls for different tests may run at the
# same time, with one file of results too.
#
# The cases of --solvers are kept in the same way. Their results are right, wrong, refused (MIOpen does not take the
# solver), aborted (AMD's compiler ended the process), error and timeout, and what the program said is kept. The exit
# status is 1 unless all are right.
#
#   RESULTS   the file of results (ROOT/opt/burn-rocm/GPU.tsv); what failed tests said is beside it, in GPU.tsv.said.
#             With RJ_LOG or RJ_RACE, which name the kernels, what each test said
#   JOBS      so many tests at a time (1). rocjitsu uses one core for each
#   LIMIT     so many seconds for each test (3600)
#   UNITS     how many compute units the GPU of rocjitsu reports. MIOpen has tuned parameters for gfx942 with 304; by
#             default it is one die of 40, so that launches are smaller
#   COMMIT    what to write as the commit, for programs built elsewhere (this checkout's)

# Sets `gpu` and `preload`: the variables by which a program in the root sees the GPU named, and a library of the root
# that the program loads before its own, if it needs one.
choose_gpu() {
    local name at
    gpu=() preload=''
    case "$1" in
    gpu) ;;
    gfx1030)
        if [ -z "${HSA:-}" ]; then
            HSA=/opt/virtual-gpu
            tests/virtual-gpu/install.sh "$root" >&2
        fi
        if [ ! -e "$root$HSA/libhsa-runtime64.so.1" ]; then
            echo "$root$HSA has no libhsa-runtime64.so.1" >&2
            exit 2
        fi
        gpu+=(LD_LIBRARY_PATH="$HSA")
        for name in ${!VIRTUAL_GPU_*}; do gpu+=("$name=${!name}"); done
        ;;
    gfx942 | gfx950 | gfx1100 | gfx1201)
        for at in "$root"/opt/rocjitsu "$root"/opt/rocm/core-* "$root"/opt/rocm; do
            [ ! -e "$at/lib/librocjitsu.so" ] || break
        done
        if [ ! -e "$at/lib/librocjitsu.so" ]; then
            echo "skipped: $root has no rocjitsu for $1 (tests/rocm/rocjitsu.sh builds it)"
            exit 77
        fi
        simulate "$1" "$at"
        ;;
    *)
        echo "$usage: no GPU is named $1" >&2
        exit 2
        ;;
    esac
}

# Sets both for rocjitsu, which is in the folder $2, as the architecture $1.
simulate() {
    local configs=("$2/share/rocjitsu/configs/$1"*.json) config name state=/opt/burn-rocm/rocjitsu-$1
    config=${configs[0]}
    # The one whose driver is simulated too, where there are two.
    for name in "${configs[@]}"; do case "$name" in *_kmd.json) config=$name ;; esac; done
    [ -e "$config" ] || { echo "skipped: $2 has no configuration for $1"; exit 77; }
    mkdir -p "$root$state"
    # One of the eight dies of gfx942 and gfx950.
    local simds each
    simds=$(sed -n 's/.*"simd_count": *\([0-9]*\).*/\1/p' "$config")
    each=$(sed -n 's/.*"simd_per_cu": *\([0-9]*\).*/\1/p' "$config")
    ! grep -q 'xcd\[0:8\]' "$config" || simds=$((simds / 8))
    [ -z "${UNITS:-}" ] || simds=$((UNITS * each))
    sed -e 's/xcd\[0:8\]/xcd[0:1]/' -e '/"var_name": "i"/s/"end": 8/"end": 1/' \
        -e "s/\"simd_count\": *[0-9]*/\"simd_count\": $simds/" "$config" >"$root$state/config.$$"
    echo "$state/config.json" >"$root$state/config_path.$$"
    # The simulations of another call may read them.
    for name in config.json config_path; do mv "$root$state/${name%.json}.$$" "$root$state/$name"; done
    # rocjitsu of July 2026 does not wait where a compute queue waits for a copy engine (AMD's barrier-value packet), so
    # all copies, of up to so many KiB, are made by kernels. RJ_RACE=1 looks for races.
    gpu+=(ROCJITSU_RUNTIME_DIR="$state" GPU_FORCE_BLIT_COPY_SIZE=4194304)
    preload=${2#"$root"}/lib/librocjitsu.so
    for name in ${!RJ_*}; do gpu+=("$name=${!name}"); done
}

# Runs the tests of a program that have no result yet. Further arguments choose among them, as libtest's do, and leave
# at least one.
each_test_in() {
    local program=$1 name results=${RESULTS:-$root/opt/burn-rocm/$on.tsv} commit; shift
    name=$(basename "$program")
    name=${name%-????????????????}
    commit=${COMMIT:-$(git describe --always --dirty)}
    mkdir -p "$results.said"
    touch "$results"

    local all ignored test
    all=$("$program" --list --format terse "$@" | sed -n "s/^\(.*\): test$/$name::\1/p")
    ignored=$("$program" --list --format terse --ignored "$@" | sed -n "s/^\(.*\): test$/$name::\1/p")
    inside "$program" --list >/dev/null # puts the program into the root, once
    trap 'end_tests 129' HUP
    trap 'end_tests 130' INT
    trap 'end_tests 143' TERM
    while read -r test; do
        if grep -qxF "$test" <<<"$ignored"; then
            printf '%s\tignored\t0\t%s\n' "$test" "$commit" >>"$results"
        else
            while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-1}" ]; do wait -n || true; done
            # A process group of its own, which end_tests ends.
            set -m
            one_test "$test" &
            set +m
        fi
    done < <(grep -vxFf <(cut -f1 "$results") <<<"$all" || true)
    wait
    awk -F '\t' -v what="$name on $on" '
        NR == FNR { asked[$1]; next }
        $1 in asked { result[$1] = $2 }
        END {
            for (test in result) { count[result[test]]++; found++ }
            printf "%s: %d tests, %d passed, %d failed, %d timed out, %d with races, %d ignored\n", what,
                length(asked), count["passed"], count["failed"], count["timeout"], count["raced"], count["ignored"]
            exit count["failed"] + count["timeout"] + count["raced"] > 0 || found < length(asked)
        }' <(echo "$all") "$results"
}

# Ends the tests that run in the background, and this script with the exit status $1.
end_tests() {
    local group
    for group in $(jobs -rp); do kill -- "-$group" 2>/dev/null || true; done
    exit "$1"
}

# Whether a program that started at second $2 and ended with exit status $1 exceeded its time limit. A program that the
# system kills for its memory has the status 137 too.
timed_out() {
    [ "$1" = 124 ] || { [ "$1" = 137 ] && [ $((SECONDS - $2)) -ge "${LIMIT:-3600}" ]; }
}

# Runs the cases of the solvers' program that have no result yet; their names are read from the standard input.
each_case_in() {
    local program=$1 name results=${RESULTS:-$root/opt/burn-rocm/${on:-gfx1030}.tsv} commit cases case said
    name=$(basename "$program")
    commit=${COMMIT:-$(git describe --always --dirty)}
    cases=$(sed "s/^/$name::/")
    mkdir -p "$results.said"
    touch "$results"
    while read -r case; do
        said=$results.said/${case//::/.}
        local start=$SECONDS status=0 result
        LIMIT=${LIMIT:-3600} inside "$program" "${case#*::}" >"$said" 2>&1 </dev/null || status=$?
        ! timed_out $status "$start" || status=124
        case $status in
        0) result=right ;;
        1) result=wrong ;;
        3) result=refused ;;
        4) result=aborted ;;
        124) result=timeout ;;
        130 | 143) return 1 ;; # the whole run was ended
        *) result=error ;;
        esac
        printf '%s\t%s\t%d\t%s\n' "$case" "$result" $((SECONDS - start)) "$commit" >>"$results"
        echo "$case: $result, $((SECONDS - start)) s"
        sed 's/^/  /' "$said"
    done < <(grep -vxFf <(cut -f1 "$results") <<<"$cases" || true)
    awk -F '\t' -v what="$name on ${on:-gfx1030}" '
        NR == FNR { asked[$1]; next }
        $1 in asked { result[$1] = $2 }
        END {
            for (case_ in result) count[result[case_]]++
            printf "%s: %d cases, %d right, %d wrong, %d refused, %d aborted, %d errors, %d timed out\n", what,
                length(asked), count["right"], count["wrong"], count["refused"], count["aborted"], count["error"],
                count["timeout"]
            exit count["right"] < length(asked)
        }' <(echo "$cases") "$results"
}

# Runs one test and writes its line; called by each_test_in, whose variables it reads.
one_test() {
    local test=$1 said=$results.said/${1//::/.} result start=$SECONDS status=0
    LIMIT=${LIMIT:-3600} inside "$program" --test-threads 1 --exact "${test#*::}" >"$said" 2>&1 </dev/null || status=$?
    ! timed_out $status "$start" || status=124
    case $status in
    0)
        if ! grep -q '^test result: ok. 1 passed' "$said"; then
            result=failed
        elif grep -q 'RACE type=' "$said"; then
            result=raced
        else
            result=passed
        fi
        ;;
    124) result=timeout ;;
    143) return ;; # the whole run was ended
    *) result=failed ;;
    esac
    printf '%s\t%s\t%d\t%s\n' "$test" "$result" $((SECONDS - start)) "$commit" >>"$results"
    echo "$test: $result, $((SECONDS - start)) s"
    [ "$result" != passed ] || [ -n "${RJ_LOG:-}${RJ_RACE:-}" ] || rm "$said"
}
