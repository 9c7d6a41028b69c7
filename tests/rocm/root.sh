#!/usr/bin/env bash
# Makes a folder with AMD's real ROCm from Debian's packages, for use with chroot. Needs neither a GPU nor debootstrap.
#
#   root.sh ROOT [7.2|7.2-tests|6.4|5.7|build]
#
#   7.2   HIP, hipRTC, rocBLAS, hipBLASLt, MIOpen, RCCL, rocRAND's headers, LLVM's tools: sid, experimental 3.9 GB
#   7.2-tests  the same, and AMD's own tests of rocBLAS (rocblas-test): sid, experimental             4.0 GB
#   6.4   HIP, hipRTC, rocBLAS without its GPU kernels, MIOpen: sid                                 0.8 GB
#   5.7   HIP, hipRTC and RCCL 5.4: trixie                                                          0.6 GB
#   build no ROCm: GCC, CMake and Ninja of sid, to build a simulator (rocjitsu.sh)                   0.5 GB
#
# Runs on any Debian or Ubuntu. apt chooses the packages with a state of its own, and they are unpacked without running
# their scripts, so the machine's own packages do not change. ROOT/.rocm marks a complete root, which is used as it is.
# A root of other packages, which an earlier version of this script made, is made anew. It keeps only opt/burn-rocm
# (results and caches) and opt/rocjitsu (the simulator); a root of `build` keeps nothing. A folder that is not such a
# root, or has another version, is never changed. BURN_ROCM_DEBIAN names another mirror, for instance
# snapshot.debian.org once Debian has newer packages.
# Exit status: 0 made or found, 1 not available (one line says why), 2 wrong use.
set -euo pipefail

fail() {
    printf 'root.sh: %s\n' "$*" >&2
    exit 1
}

leave_out="" probe=libamdhip64-dev
case "${2:-7.2}" in
7.2 | 7.2-tests)
    # Some of MIOpen's kernels include <type_traits> and rocRAND's headers when they are compiled at run time.
    suites="sid experimental"
    packages="libamdhip64-dev libhiprtc7 librocblas-dev libhipblaslt-dev libhipblas-common-dev libmiopen-dev"
    packages="$packages librccl-dev llvm-22 librocrand-dev libstdc++-15-dev libc6-dev"
    if [ "${2:-}" = 7.2-tests ]; then packages="$packages librocblas5-tests libblas3"; fi
    ;;
6.4)
    # rocBLAS's GPU kernels unpack to 3.7 GB, and nothing here runs them.
    suites="sid" leave_out="./usr/lib/x86_64-linux-gnu/rocblas"
    packages="libamdhip64-dev libhiprtc6 librocblas-dev libmiopen-dev"
    ;;
5.7) suites="trixie" packages="libamdhip64-dev libhiprtc-builtins5 librccl-dev" ;;
build) suites="sid" packages="g++ cmake ninja-build dash libdrm-dev" probe=g++ ;;
*)
    printf 'usage: root.sh ROOT [7.2|7.2-tests|6.4|5.7|build]\n' >&2
    exit 2
    ;;
esac
[ -n "${1:-}" ] || { printf 'usage: root.sh ROOT [7.2|7.2-tests|6.4|5.7|build]\n' >&2; exit 2; }
version=${2:-7.2}
root=$(realpath -m "$1")
suite=${suites##* }
name="ROCm $version"
[ "$version" != build ] || name="build tools"
recipe="$name: $suites: $packages; without $leave_out"

# One call at a time makes a root. flock itself holds the lock, and no program that is started below inherits it.
mkdir -p "$(dirname "$root")"
if [ "${ROOT_LOCKED:-}" != "$root" ]; then
    ROOT_LOCKED=$root exec flock --close "$root.lock" bash "$0" "$@"
fi
# A call that was stopped while it put a new root in the place of an old one.
[ -e "$root" ] || [ ! -e "$root.old" ] || mv "$root.old" "$root"
rm -rf "$root.old"
if [ -e "$root/.rocm" ]; then
    if [ "$(head -1 "$root/.rocm")" = "$recipe" ]; then
        echo "$root: $(sed -n 2p "$root/.rocm"), made before"
        exit 0
    fi
    case "$(head -1 "$root/.rocm")" in
    "$name:"*) ;; # as another version of this script made it
    *) fail "$root holds $(sed -n 2p "$root/.rocm"), not $name: name another folder" ;;
    esac
elif [ -d "$root" ] && [ -n "$(ls -A "$root")" ]; then
    fail "$root is there and is not a root that this script made"
fi

for tool in apt-get apt-cache dpkg-deb tar; do
    command -v $tool >/dev/null || fail "needs $tool: run it on Debian or Ubuntu"
done
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if [ ! -e $keyring ]; then
    package=debian-archive-keyring
    { apt-get update -q && apt-get install -y -q --no-install-recommends $package; } >/dev/null 2>&1 || true
    [ -e $keyring ] || fail "the keys of Debian's archive are missing, and the package $package can't be installed"
fi
# The keyring of this machine, or else Debian's own.
sources="/etc/apt/sources.list /etc/apt/sources.list.d"
# shellcheck disable=SC2086 # two paths
mirror=${BURN_ROCM_DEBIAN:-$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' $sources 2>/dev/null | head -1 || true)}
mirror=${mirror:-http://deb.debian.org/debian}
mirror=${mirror%% *}

part=$root.part
rm -rf "$part"
trap 'rm -rf "$part"' EXIT
apt=$part/apt
mkdir -p "$apt"/{state/lists/partial,cache/archives/partial,etc/apt.conf.d,etc/preferences.d,etc/trusted.gpg.d,debs}
: >"$apt/state/status"
for one in $suites; do
    echo "deb [arch=amd64 signed-by=$keyring] $mirror $one main"
done >"$apt/etc/sources.list"
options=(-q
    -o "Dir::State=$apt/state" -o "Dir::State::status=$apt/state/status"
    -o "Dir::Cache=$apt/cache" -o "Dir::Etc=$apt/etc"
    -o "Dir::Etc::sourcelist=$apt/etc/sources.list" -o "Dir::Etc::sourceparts=/dev/null"
    -o APT::Architecture=amd64 -o APT::Architectures=amd64 -o APT::Sandbox::User=root -o APT::Default-Release="$suite"
    -o APT::Install-Recommends=false -o Acquire::Retries=3 -o Acquire::http::Timeout=60 -o Acquire::Languages=none
    -o Acquire::Check-Valid-Until=false -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false
    -o DPkg::Post-Invoke::= -o APT::Update::Post-Invoke::=)
log=$apt/log
# Apt's line that says what went wrong.
why() { grep -m1 '^E: ' "$log" || tail -1 "$log"; }

echo "$root: asking $mirror for $name ($suites)"
if ! LC_ALL=C apt-get "${options[@]}" update --error-on=any >"$log" 2>&1; then
    fail "Debian can't be reached, so there is no $name: $mirror: $(why)"
fi
found=$(LC_ALL=C apt-cache "${options[@]}" policy "$probe" 2>>"$log" | sed -n 's/^ *Candidate: //p' || true)
case "$version:$found" in
"$version:${version%-tests}".* | build:?*) ;;
*) fail "no ROCm $version on $mirror: ${suites// / and } has now $probe ${found:-(none)}" ;;
esac
# shellcheck disable=SC2086 # lists of words
if ! LC_ALL=C apt-get "${options[@]}" install -y --download-only $packages >"$log" 2>&1; then
    fail "the packages of $name can't be had: $(why)"
fi

# Debian's layout: the packages hold everything under usr.
mkdir -p "$part"/usr/{bin,sbin,lib,lib64} "$part"/{dev,proc,etc,opt,root,tmp}
chmod 1777 "$part/tmp"
for name in bin sbin lib lib64; do ln -s "usr/$name" "$part/$name"; done
echo 'root:x:0:0:root:/root:/bin/sh' >"$part/etc/passwd"
for package in "$apt"/cache/archives/*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$part" --keep-directory-symlink --no-same-owner \
        --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale \
        ${leave_out:+--exclude="$leave_out"} ||
        fail "$(basename "$package") can't be unpacked into $part"
    rm "$package"
done
rm -rf "$apt"
# Programs expect this device. If a container forbids making it, a plain file serves.
mknod -m 666 "$part/dev/null" c 1 3 2>/dev/null || : >"$part/dev/null"

if [ "$version" = build ]; then
    printf '%s\nGCC (Debian %s)\n' "$recipe" "$found" >"$part/.rocm"
else
    library=$(find "$part/usr/lib/x86_64-linux-gnu" -name 'libamdhip64.so.*.*.*' -print -quit)
    [ -n "$library" ] || fail "the packages hold no libamdhip64.so"
    printf '%s\nHIP %s (Debian %s)\n' "$recipe" "${library##*.so.}" "$found" >"$part/.rocm"
fi
# What run.sh and rocjitsu.sh put into an earlier root. The files are linked, not moved, so nothing is lost wherever
# this script is stopped. A root of `build` keeps nothing, because a new compiler compiles everything anew.
for kept in burn-rocm rocjitsu; do
    [ "$version" != build ] && [ -e "$root/opt/$kept" ] || continue
    # Copied where files can't be linked, for instance because results lie on another file system.
    cp -al "$root/opt/$kept" "$part/opt/" 2>/dev/null ||
        { rm -rf "$part/opt/$kept" && cp -a "$root/opt/$kept" "$part/opt/"; }
done
[ ! -e "$root" ] || mv "$root" "$root.old"
mv "$part" "$root"
trap - EXIT
rm -rf "$root.old"
echo "$root: $(sed -n 2p "$root/.rocm"), $(du -sh "$root" | cut -f1)"
