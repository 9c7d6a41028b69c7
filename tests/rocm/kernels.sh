#!/usr/bin/env bash
# Compiles every kernel of the table by AMD's own hipRTC, as the product does, without a GPU. Checks that there is no
# scratch, no spill, room for enough waves, 16 bytes per access where it matters, no product fused with a sum across a
# chain's steps, products on matrix cores in the kernels written for them, and no header on disk; measures time.
#
#   kernels.sh ROOT [--arch a,b | --full | --changed] [--family f,g] [--write] [--keep FILE] [--objects FOLDER]
#
#   ROOT        a root made by root.sh, of ROCm 7.2, for whose compiler the kernels are written. With an older one each
#               kernel must only compile and be found by its name; spills are listed
#   --arch      these architectures. Default: those of every run (tests/rocm/src/architecture.rs lists all), or gfx1030
#               with an older ROCm
#   --full      all architectures
#   --changed   all architectures if the kernels' ingredients differ from those in docs/kernels.md. Else gfx942 alone if
#               the compiler differs, or this check with its exceptions and tables. If none does, the result can't
#               differ, and two families for gfx942 show that the check works. With an older ROCm: gfx1030 if the
#               ingredients differ, else nothing. Comments and blank lines of the ingredients do not count
#   --family    only the kernels of these families: no tables, no times
#   --write     writes the tables into docs/kernels.md instead of comparing; with --full, and if all is well, the
#               ingredients too
#   --keep      reuses the findings in FILE for families whose sources (comments included) have not changed, and stores
#               all findings there, so that `--full --write --keep FILE` compiles only what changed
#   --objects   writes the compiled code objects to FOLDER
#
# Exit status: 0 all is well, 1 something is not (one line for each problem), 2 wrong use. Needs root, for chroot.
set -euo pipefail
usage="usage: kernels.sh ROOT [--arch a,b | --full | --changed] [--family f,g] [--write] [--keep FILE]"
usage+=" [--objects FOLDER]"
root=$(realpath "${1:?$usage}")
shift
[ -e "$root/.rocm" ] || { echo "kernels.sh: $root was not made by root.sh" >&2; exit 2; }
from=$PWD
cd "$(dirname "$(realpath "$0")")/../.."

# A C++ file without comments and blank lines. The pattern takes literals first, and numbers because of their digit
# separators, so that nothing in them passes for a comment. (GCC's preprocessor would also drop `#pragma once`.)
code_of_cpp() {
    perl -0777 -pe '
        s{ ( \b(?:u8|[uUL])?R"([^()\\\s]*)\(.*?\)\2" | "(?:[^"\\\n]|\\.)*" | \x27(?:[^\x27\\\n]|\\.)*\x27
             | \b\d(?:[\w.]|\x27\w)* )
           | [ \t]*//(?:\\\n|[^\n])*
           | ([ \t]*/\*.*?\*/[ \t]*) }
         { $1 // ($3 ? " " : "") }gsex;
        s/[ \t]+$//mg; s/^\n+//; s/\n{2,}/\n/g' "$1"
}

# A Rust file without blank lines and the lines that hold only a comment, and without the import paths, which change no
# kernel. A comment that follows code on its line stays.
code_of_rust() {
    sed -E '/^[[:space:]]*(\/\/.*)?$/d; /^use crate::/d' "$1"
}

# The hash of a kernel's ingredients: the code of its sources and their table, the options and headers, and how it is
# requested by name. A file of another kind counts as it is.
sources() {
    {
        local file
        while read -r file; do
            printf '%s\n' "$file"
            case "$file" in
            *.hip | *.h) code_of_cpp "$file" ;;
            *.rs) code_of_rust "$file" ;;
            *) cat "$file" ;;
            esac || exit
        done < <(find hip/kernels -type f | LC_ALL=C sort)
        code_of_rust hip/src/compile/rtc.rs
        sed -n '/^pub(crate) fn spelled_out/,/^}/p' hip/src/workarounds.rs
    } | sha256sum | cut -c1-64
}
sources=$(sources)
# The check, its exceptions and its tables.
rules=$({
    find tests/rocm/src tests/rocm/exceptions.txt -type f | LC_ALL=C sort | xargs cat
    grep '^|\|^Made with ' docs/kernels.md
} | sha256sum | cut -c1-64)

options=() say_rules=0 write=0 full=0 family=0 keep='' objects='' shaped=1 arch=0
case "$(head -1 "$root/.rocm")" in
"ROCm 7.2:"* | "ROCm 7.2-tests:"*) ;;
*) options+=(--found) && shaped=0 ;;
esac
while [ $# -gt 0 ]; do
    case "$1" in
    --changed)
        if grep -qxF "Sources: $sources" docs/kernels.md; then
            if [ $shaped = 0 ]; then
                echo "kernels.sh: the kernels are those of docs/kernels.md, so none is compiled by this ROCm"
                exit 0
            fi
            arch=1 && options+=(--arch gfx942)
            if grep -qxF "Made with $(sed -n 2p "$root/.rocm")." docs/kernels.md &&
                grep -qxF "Rules: $rules" docs/kernels.md; then
                echo "kernels.sh: kernels, compiler and rules are those of docs/kernels.md," \
                    "so two families are compiled"
                family=1 && options+=(--family chain,row_product)
            else
                say_rules=1
                echo "kernels.sh: the kernels are those of docs/kernels.md, so one architecture is compiled"
            fi
        elif [ $shaped = 1 ]; then
            echo "kernels.sh: the kernels are not those of docs/kernels.md (--full --write)," \
                "so all architectures are compiled"
            options+=(--full)
        fi
        ;;
    --arch) arch=1 && options+=("$1") ;;
    --full) full=1 && options+=("$1") ;;
    --family) family=1 && options+=("$1") ;;
    --write) write=1 && options+=(--write) ;;
    --keep)
        keep=$(cd "$from" && realpath -m "${2:?$usage}") && options+=(--keep /kept) && shift
        ;;
    --objects) objects=$(cd "$from" && realpath -m "${2:?$usage}") && shift ;;
    *) options+=("$1") ;;
    esac
    shift
done
if [ $shaped = 0 ] && [ $arch = 0 ]; then options+=(--arch gfx1030); fi

# The path of a program, which is built if needed. KERNEL_CHECK and STEPS name existing ones.
built() {
    cargo build --release --quiet --message-format json "$@" | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' | tail -1
}
check=${KERNEL_CHECK:-$(built -p burn-rocm-kernel-check)}
if [ $shaped = 1 ]; then steps=${STEPS:-$(built -p burn-rocm-tests --bin steps)}; fi
chroot=$(PATH=$PATH:/usr/sbin command -v chroot)

# A root within the root without any header. Its libraries and LLVM's tool are hard links, which take no space.
mkdir -p "$root/opt"
bare=$(mktemp -d "$root/opt/kernels.XXXXXX")
trap 'rm -rf "$bare"' EXIT
mkdir -p "$bare"/usr/{bin,lib/x86_64-linux-gnu,lib64} "$bare"/{dev,tmp}
ln -s usr/lib "$bare/lib"
ln -s usr/lib64 "$bare/lib64"
find "$root/usr/lib/x86_64-linux-gnu" -maxdepth 1 -name '*.so*' -exec cp -al -t "$bare/usr/lib/x86_64-linux-gnu" {} +
cp -L "$root/usr/lib64/ld-linux-x86-64.so.2" "$bare/usr/lib64/"
if [ $shaped = 1 ]; then cp -L "$root/usr/bin/llvm-objdump-22" "$bare/usr/bin/"; fi
cp "$check" "$bare/kernel-check"
cp "$root/.rocm" tests/rocm/exceptions.txt docs/kernels.md "$bare/"
: >"$bare/dev/null"
if [ -n "$keep" ] && [ -e "$keep" ]; then cp "$keep" "$bare/kept"; fi
if [ -n "$(find "$bare" -name '*.h' -o -name '*.hpp' -o -name '*.hip' | head -1)" ]; then
    echo "kernels.sh: there is a header in $bare" >&2
    exit 1
fi

# The kernels of a small training run: those that two steps of the example's convolutional network launch.
: >"$bare/trace"
if [ $shaped = 1 ]; then BURN_ROCM_PROVIDER=cpu BURN_ROCM_TRACE_FILE=$bare/trace "$steps" cnn 2 >/dev/null; fi
sed -n 's/.*: kernel //p' "$bare/trace" | sort -u >"$bare/training.txt"

status=0
[ -z "$objects" ] || mkdir -p "$objects" "$bare/objects"
env -i AMD_COMGR_CACHE=0 BURN_ROCM_CACHE_DIR=/cache HOME=/tmp ${objects:+KERNEL_OBJECTS=/objects} \
    "$chroot" "$bare" /kernel-check check / ${options[@]+"${options[@]}"} || status=$?
if [ -n "$objects" ]; then cp "$bare"/objects/* "$objects/"; fi
if [ -n "$keep" ] && [ -e "$bare/kept" ]; then cp "$bare/kept" "$keep"; fi
if [ $write = 1 ]; then cp "$bare/kernels.md" docs/kernels.md; fi
if [ $write = 1 ] && [ $full = 1 ] && [ $family = 0 ] && [ $shaped = 1 ] && [ $status = 0 ]; then
    sed -i '/^Sources: /d; /^Rules: /d' docs/kernels.md
    printf 'Sources: %s\n' "$sources" >>docs/kernels.md
fi
if [ $say_rules = 1 ] && [ $status = 0 ]; then
    echo "kernels.sh: until one of them changes, docs/kernels.md may end in this line:"
    echo "Rules: $rules"
fi
exit $status
