#!/usr/bin/env bash
# Runs the tests of collectives (hip/tests/collectives) on AMD's real RCCL, over two virtual GPUs.
#
#   tests/virtual-gpu/rccl.sh ROOT [FILTER...]       ROOT is what tests/rocm/root.sh made
#
# RCCL asks the kernel for more than the HSA runtime, which the virtual GPU replaces: which GPUs there are, and how they
# are connected (/sys/class/kfd). A folder of files answers that, in a namespace of this script's. The virtual GPU has
# no memory that processes share (hipIpcGetMemHandle), so RCCL copies through the host's memory (NCCL_P2P_DISABLE=1).
#
# A rank takes 10 s and more to join, so tests with a timeout of 5 s fail: some of ranks and processes that die or never
# call. docs/decisions/052-rccl-without-a-gpu.md has what passed.
#
# COLLECTIVES names the test program where it is built already, DEVICES another number of GPUs, LIMIT the seconds after
# which a run is ended (1800). Must be run as root. Variables NCCL_* and BURN_ROCM_* reach the program.
set -euo pipefail
usage="usage: tests/virtual-gpu/rccl.sh ROOT [FILTER...]"
root=$(realpath "${1:?$usage}")
shift
cd "$(dirname "$(realpath "$0")")/../.."
[ -e "$root/usr/lib/x86_64-linux-gnu/librccl.so.1" ] || { echo "$root has no librccl.so.1" >&2; exit 2; }
program=${COLLECTIVES:-}
if [ -z "$program" ]; then
    program=$(cargo test --release -p hip --test collectives --no-run --message-format json |
        sed -n 's|.*"executable":"\([^"]*/deps/collectives-[0-9a-f]*\)".*|\1|p' | tail -1)
fi
tests/virtual-gpu/install.sh "$root" >&2
install -D "$program" "$root/opt/burn-rocm/collectives"
devices=${DEVICES:-2}

# The topology as the kernel's driver shows it: node 0 is the CPU, and each GPU has a link to every other node.
topology() {
    local nodes=$1 of node other gpu
    of() { mkdir -p "$(dirname "$nodes/$1")" && printf "${@:2}" >"$nodes/$1"; }
    for ((node = 0; node <= devices; node++)); do
        gpu=$((node > 0))
        of $node/gpu_id '%d\n' $((gpu * (1000 + node)))
        # The virtual GPU's addresses on the bus are 0000:03:00.0, 0000:04:00.0 and so on.
        of $node/properties '%s %d\n' cpu_cores_count $((gpu ? 0 : 2)) simd_count $((gpu * 160)) \
            vendor_id $((gpu * 0x1002)) device_id $((gpu * 0x73bf)) location_id $((gpu * (node + 2) << 8)) domain 0 \
            unique_id $((gpu * (7000 + node)))
        for ((other = 0; other <= devices; other++)); do
            [ $other = $node ] || of $node/io_links/$((other - (other > node)))/properties '%s %d\n' type 2 \
                version_major 0 version_minor 0 node_from $node node_to $other weight 20 min_latency 0 max_latency 0 \
                min_bandwidth 312 max_bandwidth 16000 flags 1
        done
    done
}
variables=()
for name in ${!NCCL_*} ${!BURN_ROCM_*} ${!VIRTUAL_GPU_*}; do variables+=("$name=${!name}"); done
export -f topology
export devices root
mkdir -p "$root/sys"
said=$(mktemp)
trap 'rm -f "$said"' EXIT
# shellcheck disable=SC2016 # for the shell in the namespace
unshare --mount bash -euc '
    mount --make-rprivate /
    mount --bind /proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount -t tmpfs tmpfs "$root/sys"
    for folder in devices bus kernel; do
        mkdir "$root/sys/$folder"
        mount --rbind "/sys/$folder" "$root/sys/$folder"
    done
    mkdir "$root/sys/class"
    cp -a /sys/class/net "$root/sys/class/"
    topology "$root/sys/class/kfd/kfd/topology/nodes"
    exec "$@"
' topology env -i HOME=/opt/burn-rocm PATH="$PATH:/usr/sbin" LD_LIBRARY_PATH=/opt/virtual-gpu \
    NCCL_P2P_DISABLE=1 NCCL_IGNORE_CPU_AFFINITY=1 NCCL_SOCKET_IFNAME=lo NCCL_RAS_ENABLE=0 \
    BURN_ROCM_PROVIDER=rocm VIRTUAL_GPU_DEVICES="$devices" "${variables[@]}" \
    timeout "${LIMIT:-1800}" chroot "$root" /opt/burn-rocm/collectives --test-threads=1 "$@" |
    tee "$said"
if grep -qx 'running 0 tests' "$said"; then
    echo "no test has such a name: $*" >&2
    exit 2
fi
