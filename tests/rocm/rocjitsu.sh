#!/usr/bin/env bash
# Builds AMD's GPU simulator rocjitsu, with the mends of simulator/mend.py, and puts it into ROOT/opt/rocjitsu.
#
#   rocjitsu.sh ROOT ROCJITSU FLATBUFFERS
#
#   ROOT          a root made by root.sh, of ROCm 7.2
#   ROCJITSU      the folder emulation/rocjitsu of ROCm's repository rocm-systems, at the commit that mend.py names
#   FLATBUFFERS   a checkout of google/flatbuffers, of the release that ROCJITSU/CMakeLists.txt asks for
#
# It compiles with GCC of Debian sid in a root of its own, ROOT-build, of 2 GB, which may be deleted afterwards. ARCHS
# names the instruction sets: `cdna3 cdna4 rdna3 rdna4` are gfx942, gfx950, gfx1100 and gfx1201. A build that was
# interrupted resumes, a new mend compiles what it changes, and what is installed already is taken as it is.
#
# In another version of ROCJITSU some mends may find nothing to change. mend.py says which, and nothing is built.
# OTHER_VERSION=1 builds it without them.
set -euo pipefail
usage="usage: rocjitsu.sh ROOT ROCJITSU FLATBUFFERS"
root=$(realpath "${1:?$usage}") rocjitsu=$(realpath "${2:?$usage}") flatbuffers=$(realpath "${3:?$usage}")
cd "$(dirname "$(realpath "$0")")"
archs=${ARCHS:-cdna3 cdna4 rdna3 rdna4}
[ -e "$root/.rocm" ] || { echo "rocjitsu.sh: $root was not made by root.sh" >&2; exit 2; }
for file in "$rocjitsu/configs/gfx942_cdna3_kmd.json" "$flatbuffers/include/flatbuffers/flatbuffers.h"; do
    [ -e "$file" ] || { echo "rocjitsu.sh: there is no $file" >&2; exit 2; }
done

# A compiler may not fuse a product and a sum that the GPU rounds one by one.
flags="-O2 -ffp-contract=off"
! grep -qw avx2 /proc/cpuinfo || flags+=" -march=x86-64-v3"
version=$({
    echo "$archs $flags"
    cat simulator/*.py
    for folder in "$rocjitsu" "$flatbuffers"; do tar -c --sort=name --mtime=@0 --exclude=.git -C "$folder" .; done
} | sha256sum | cut -c1-64)
into=$root/opt/rocjitsu
if [ "$(cat "$into/version" 2>/dev/null)" = "$version" ]; then
    echo "$into: made before"
    exit 0
fi

tools=$root-build
./root.sh "$tools" build
at=$tools/opt/rocjitsu
mkdir -p "$at/googletest" "$at/source"
# Its tests are not built.
: >"$at/googletest/CMakeLists.txt"
if ! diff -rq --no-dereference --exclude=.git "$flatbuffers" "$at/flatbuffers" >/dev/null 2>&1; then
    rm -rf "$at/flatbuffers"
    cp -r "$flatbuffers" "$at/flatbuffers"
fi
rm -rf "$at/new"
cp -r "$rocjitsu" "$at/new"
mended=0
# shellcheck disable=SC2086 # a list of words
python3 simulator/mend.py "$at/new" $archs || mended=$?
if [ $mended = 3 ] && [ -z "${OTHER_VERSION:-}" ]; then
    echo "rocjitsu.sh: $rocjitsu is not of the commit that mend.py names; OTHER_VERSION=1 builds it nevertheless" >&2
    exit 1
fi
[ $mended = 0 ] || [ $mended = 3 ] || exit 1
# Only files that differ from an earlier build's get a new time, so only they are compiled again.
find "$at/new" -type f -printf '%P\0' | while IFS= read -r -d '' file; do
    cmp -s "$at/new/$file" "$at/source/$file" || install -D -m 644 "$at/new/$file" "$at/source/$file"
done
# Removes files that only an earlier version had. The build keeps its own files in third_party.
find "$at/source" -path "$at/source/third_party" -prune -o -type f -printf '%P\0' |
    while IFS= read -r -d '' file; do [ -e "$at/new/$file" ] || rm "$at/source/$file"; done
rm -rf "$at/new"
chroot=$(PATH=$PATH:/usr/sbin command -v chroot)
# The root has no links `cc` and `c++`, which the packages' scripts would make. FETCHCONTENT_BASE_DIR is rocjitsu's own
# default, which holds only for the first configuration: CMake then remembers another, and would compile flatbuffers
# again.
# shellcheck disable=SC2016 # for the root's shell
env -i PATH=/usr/bin:/bin HOME=/tmp JOBS="${JOBS:-$(nproc)}" FLAGS="$flags" "$chroot" "$tools" /bin/sh -ec '
    cd /opt/rocjitsu
    cmake -S source -B build -G Ninja -DCMAKE_C_COMPILER=gcc -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release \
        -DCMAKE_CXX_FLAGS_RELEASE="$FLAGS" -DBUILD_TESTING=OFF -DFLATBUFFERS_BUILD_TESTS=OFF \
        -DFETCHCONTENT_BASE_DIR=/opt/rocjitsu/source/third_party \
        -DFETCHCONTENT_SOURCE_DIR_GOOGLETEST=/opt/rocjitsu/googletest \
        -DFETCHCONTENT_SOURCE_DIR_FLATBUFFERS=/opt/rocjitsu/flatbuffers \
        -DCMAKE_SHARED_LINKER_FLAGS=-Wl,-z,lazy
    ninja -C build -j "$JOBS" rocjitsu_shared' >"$at/log" 2>&1 ||
    { tail -20 "$at/log" >&2; echo "rocjitsu.sh: the build failed: $at/log" >&2; exit 1; }

rm -rf "$into"
mkdir -p "$into/lib" "$into/share/rocjitsu"
cp "$at/build/librocjitsu.so" "$into/lib/"
cp -r "$at/source/configs" "$into/share/rocjitsu/"
echo "$version" >"$into/version"
echo "$into: $archs"
