#!/usr/bin/env bash
# Trains the example `mnist` on two CPU devices under the example `launch`, and under each launcher that is installed:
# Open MPI's and MPICH's mpirun, srun (a Slurm of its own, which needs no configuration), and torchrun. Each must get,
# bit for bit, the losses of two threads in one process.
#
#   tests/launchers.sh
#
# MNIST names the program where it is built already, with the feature `devices`, and LAUNCH the launcher. Debian's
# packages are openmpi-bin, mpich, slurmctld slurmd slurm-client munge, and python3-torch. Says in one line which
# launchers are not installed. Exit status: 0 if all installed launchers pass, else 1.
set -euo pipefail
cd "$(dirname "$(realpath "$0")")/.."
scratch=$(mktemp -d)
finish() {
    local file pid
    for file in slurmd.pid slurmctld.pid munge/pid; do
        pid=$(cat "$scratch/$file" 2>/dev/null) && kill "$pid" 2>/dev/null || continue
        # It writes into the folder until it has ended.
        for _ in $(seq 50); do ! kill -0 "$pid" 2>/dev/null || sleep 0.1; done
    done
    rm -rf "$scratch"
}
trap finish EXIT

example() {
    cargo build --release -p burn-rocm-examples --features burn-rocm-examples/devices --example "$1" \
        --message-format json | sed -n 's|.*"executable":"\([^"]*/examples/'"$1"'\)".*|\1|p' | tail -1
}
mnist=$(realpath "${MNIST:-$(example mnist)}")
launch=$(realpath "${LAUNCH:-$(example launch)}")

# This script's own job, if any, is not what a launcher starts. A secret would take the place of the job's name.
others='^(RANK|WORLD_SIZE|LOCAL_|MASTER_|OMPI_|PMI_|PMIX_|MPI_|SLURM_|TORCHELASTIC_|BURN_ROCM_RENDEZVOUS)'
for name in $(compgen -e | grep -E "$others"); do
    unset "$name"
done
export BURN_ROCM_PROVIDER=cpu BURN_ROCM_CPU_DEVICES=2 BURN_ROCM_CPU_THREADS=1 BURN_ROCM_COLLECTIVE_TIMEOUT=60
# A loop that nobody ends would hold CI.
limit="timeout 120"
program=("$mnist" --model mlp --data digits --epochs 1 --steps 40 --seed 1)

"${program[@]}" --devices 2 --output "$scratch/threads" >"$scratch/said" 2>&1 || { cat "$scratch/said" >&2; exit 1; }
expected=$scratch/threads/curves.csv
[ "$(wc -l <"$expected")" -gt 3 ] || { echo "no curve of two threads: $expected" >&2; exit 1; }

failed=0 number=0
# tried NAME VERSION COMMAND...: runs the program under a launcher.
tried() {
    local name=$1 version=$2 output
    shift 2
    number=$((number + 1)) output=$scratch/run-$number
    if ! $limit "$@" "${program[@]}" --output "$output" >"$scratch/said" 2>&1; then
        echo "$name ($version): the program failed:" >&2
        tail -30 "$scratch/said" >&2
        failed=1
    elif ! cmp -s "$output/curves.csv" "$expected"; then
        echo "$name ($version): other losses than two threads have:" >&2
        diff "$output/curves.csv" "$expected" >&2 || true
        failed=1
    elif [ "$(grep -c 'test accuracy: ' "$scratch/said")" != 1 ]; then
        echo "$name ($version): one rank must report, and $(grep -c 'test accuracy: ' "$scratch/said") did" >&2
        failed=1
    else
        echo "$name ($version): the losses of two threads"
    fi
}
has() { command -v "$@" >/dev/null; }
skipped() { echo "$1: not installed"; }
export PATH=$PATH:/usr/sbin

tried launch "the example" "$launch" -n 2 --

open_mpi=$(command -v mpirun.openmpi || command -v mpirun || true)
# All of the output is read: a program whose reader ends early fails.
version=$(${open_mpi:+"$open_mpi" --version} || true)
if grep -qE 'Open MPI|OpenRTE' <<<"$version"; then
    # As root it refuses otherwise; with fewer cores than ranks, too.
    open_mpi=("$open_mpi" --allow-run-as-root --oversubscribe)
    open_mpi_version="Open MPI $(sed -n '1s/.* //p' <<<"$version")"
    tried mpirun "$open_mpi_version" "${open_mpi[@]}" -np 2
else
    open_mpi=()
    skipped "mpirun of Open MPI"
fi

mpich=$(command -v mpirun.mpich || command -v mpiexec.hydra || true)
if [ -n "$mpich" ]; then
    version="MPICH $("$mpich" --version | sed -n 's/^ *Version: *//p')"
    # It gives the job no name.
    if $limit "$mpich" -np 2 "${program[@]}" --output "$scratch/none" >"$scratch/said" 2>&1 ||
        ! grep -q BURN_ROCM_RENDEZVOUS_SECRET "$scratch/said"; then
        echo "mpirun ($version): without a secret, an error that names BURN_ROCM_RENDEZVOUS_SECRET was expected:" >&2
        tail -30 "$scratch/said" >&2
        failed=1
    fi
    tried mpirun "$version, with a secret" env BURN_ROCM_RENDEZVOUS_SECRET="$RANDOM$RANDOM" "$mpich" -np 2
else
    skipped "mpirun of MPICH"
fi

# A Slurm of one node, with its own keys, ports and folders.
slurm() {
    local port=$((36000 + $$ % 1000 * 2))
    chmod 755 "$scratch"
    mkdir -m 755 "$scratch/munge"
    mkdir "$scratch/state" "$scratch/spool"
    (umask 077 && head -c 1024 /dev/urandom >"$scratch/munge/key")
    munged --force --key-file="$scratch/munge/key" --socket="$scratch/munge/socket" --pid-file="$scratch/munge/pid" \
        --log-file="$scratch/munge/log" --seed-file="$scratch/munge/seed" || return 1
    cat >"$scratch/slurm.conf" <<END
ClusterName=test
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$port
SlurmdPort=$((port + 1))
AuthInfo=socket=$scratch/munge/socket
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
StateSaveLocation=$scratch/state
SlurmdSpoolDir=$scratch/spool
SlurmctldPidFile=$scratch/slurmctld.pid
SlurmdPidFile=$scratch/slurmd.pid
SlurmctldLogFile=$scratch/slurmctld.log
SlurmdLogFile=$scratch/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
END
    export SLURM_CONF=$scratch/slurm.conf
    slurmctld -f "$SLURM_CONF" -c && slurmd -f "$SLURM_CONF" -c || return 1
    for _ in $(seq 50); do
        ! sinfo --noheader --format %T 2>/dev/null | grep -q idle || return 0
        sleep 0.2
    done
    return 1
}
if has munged && has slurmctld && has slurmd && has srun; then
    if slurm; then
        version=$(srun --version)
        tried srun "$version" srun --overcommit -n 2
        if grep -q pmi2 <<<"$(srun --mpi=list 2>&1)"; then
            tried srun "$version, --mpi=pmi2" srun --overcommit --mpi=pmi2 -n 2
        fi
        # In a job's shell, mpirun's own variables count, not those of Slurm that it inherits.
        [ ${#open_mpi[@]} = 0 ] ||
            tried "mpirun in salloc" "$version, $open_mpi_version" \
                salloc --quiet --overcommit -n 2 "${open_mpi[@]}" -np 2
    else
        echo "srun: a Slurm of one node does not start:" >&2
        tail -n 5 "$scratch"/slurm*.log "$scratch/munge/log" >&2 || true
        failed=1
    fi
else
    skipped "srun, with munged, slurmctld and slurmd"
fi

if has torchrun; then
    # Not any Python that comes first in PATH.
    python=$(sed -n '1s/^#! *//p' "$(command -v torchrun)")
    version="PyTorch $($python -c 'import torch; print(torch.__version__)')"
    # PyTorch 1.13 with Python 3.11 fails without `--redirects` and `--tee`.
    tried torchrun "$version" torchrun --no_python --nproc_per_node 2 --redirects 1 --tee 1 --log_dir "$scratch/torch"
else
    skipped torchrun
fi
exit $failed
