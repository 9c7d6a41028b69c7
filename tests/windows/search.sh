#!/usr/bin/env bash
# Which of AMD's libraries a Windows program finds: imitations of each layout, on wine's drive C. The DLLs have AMD's
# functions, which do nothing.
#
#   search.sh SURVEY.EXE
#
# SURVEY.EXE is hip's example `survey`. Needs MinGW's gcc and wine; WINEPREFIX is wine's folder.
set -euo pipefail
survey=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
: "${WINEPREFIX:?}"
export WINEDEBUG="${WINEDEBUG:--all}"
cc=x86_64-w64-mingw32-gcc
drive=$WINEPREFIX/drive_c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# make NAME LIBRARY [LINKED...]: a DLL with the functions of a library (hip, hiprtc, rocblas, miopen).
functions=$(wine "$survey" --functions | tr -d '\r')
make() {
    local name=$1 library=$2
    shift 2
    {
        awk -v library="$library" '$1 == library && $2 != "hipRuntimeGetVersion" {
            print "__declspec(dllexport) int " $2 "(void) { return " (library == "hip" ? 100 : 0) "; }"
        }' <<<"$functions"
        if [ "$library" = hip ]; then
            echo '__declspec(dllexport) int hipRuntimeGetVersion(int *version) { *version = 70153211; return 0; }'
        else
            # So that the DLL needs the HIP that it is linked to.
            [ $# = 0 ] || echo '__declspec(dllimport) int hipInit(void); int call(void) { return hipInit(); }'
        fi
    } >"$work/$name.c"
    "$cc" -w -shared -O1 -nostdlib -e 0 -o "$work/$name" "$work/$name.c" "$@"
}
make amdhip64.dll hip
make amdhip64_6.dll hip
make amdhip64_7.dll hip
make hiprtc.dll hiprtc
make rocblas-5.dll rocblas "$work/amdhip64.dll"
make rocblas-6.dll rocblas "$work/amdhip64_6.dll"
make rocblas-7.dll rocblas "$work/amdhip64_7.dll"
make MIOpen.dll miopen "$work/amdhip64_7.dll"
make empty.dll none
# A DLL that needs one that is nowhere.
make absent.dll hip
echo '__declspec(dllexport) int rocblas_create_handle(void) { return hipFree(); }' >"$work/needy.c"
"$cc" -w -shared -nostdlib -e 0 -o "$work/rocblas-needy.dll" "$work/needy.c" "$work/absent.dll"

system=$drive/windows/system32
reset() {
    rm -rf "$drive/Program Files/AMD" "$drive/test" "$system"/{amdhip64,hiprtc}*.dll
    mkdir -p "$drive/test"
}
# put FOLDER FILE[=SOURCE]...: DLLs into a folder of drive C.
put() {
    local folder=$drive/$1 file
    shift
    mkdir -p "$folder"
    for file in "$@"; do cp "$work/${file#*=}" "$folder/${file%%=*}"; done
}
count=0
# expect TITLE [VARIABLE=VALUE...] -- TEXT...: runs the survey and looks for texts in its output. `!TEXT` must not be
# there.
expect() {
    local title=$1 variables=() report text found
    shift
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    report=$(env -u ROCM_PATH -u HIP_PATH -u VIRTUAL_ENV -u CONDA_PREFIX "${variables[@]}" wine "$survey" | tr -d '\r')
    for text in "$@"; do
        found=1
        grep -qiF -- "${text#!}" <<<"$report" || found=0
        case $text in !*) found=$((1 - found)) ;; esac
        if [ $found = 0 ]; then
            printf '%s: "%s" is not as expected in\n%s\n' "$title" "$text" "$report" >&2
            exit 1
        fi
    done
    count=$((count + 1))
    [ -z "${SHOW:-}" ] || printf '== %s\n%s\n' "$title" "$report"
    echo "ok: $title"
}
sdks='C:\Program Files\AMD\ROCm'

reset
expect "nothing is installed" -- 'rocm: not usable: HIP is not installed' \
    'looked for C:\Program Files\AMD\ROCm\*\bin\amdhip64*.dll' 'looked for C:\windows\system32\amdhip64*.dll' \
    'note: C:\windows\system32 has no amdhip64*.dll: no AMD GPU' 'note: there is no hipRTC' 'hip-sdk.html'

reset
put windows/system32 amdhip64_7.dll
expect "only the driver" -- 'HIP is installed but has no hipRTC beside it' 'note: there is no hipRTC' \
    "the driver's HIP is C:\\windows\\system32\\amdhip64_7.dll"

reset
put "Program Files/AMD/ROCm/6.4/bin" amdhip64_6.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
expect "an SDK, without MIOpen" -- "ROCm in use: $sdks\6.4\bin (AMD's HIP SDK)" \
    "HIP: 7.1.53211, $sdks\6.4\bin\amdhip64_6.dll" 'bin\hiprtc0604.dll' 'bin\rocblas.dll' \
    'MIOpen: the ROCm in use has no MIOpen' '!there is no hipRTC'

put "Program Files/AMD/ROCm/10.1/bin" amdhip64_7.dll hiprtc1001.dll=hiprtc.dll hiprtc0715.dll=hiprtc.dll \
    rocblas.dll=rocblas-7.dll
expect "the newest of two SDKs" -- "ROCm in use: $sdks\10.1\bin" "hipRTC: 0.0, $sdks\10.1\bin\hiprtc0715.dll"
expect "HIP_PATH names the older one" "HIP_PATH=$sdks\6.4\\" -- "ROCm in use: $sdks\6.4\bin (HIP_PATH)" \
    'ROCm\6.4\bin\rocblas.dll' '!10.1\bin\'

reset
put windows/system32 amdhip64.dll amdhip64_7.dll
put "Program Files/AMD/ROCm/5.7/bin" hiprtc0507.dll=hiprtc.dll rocblas.dll=rocblas-5.dll
expect "an SDK that uses the driver's HIP" -- 'HIP: 7.1.53211, C:\windows\system32\amdhip64.dll' \
    "ROCm in use: $sdks\5.7\bin" 'ROCm\5.7\bin\hiprtc0507.dll' "rocBLAS: , $sdks\5.7\bin\rocblas.dll"

for variable in VIRTUAL_ENV CONDA_PREFIX; do
    reset
    site=test/env/Lib/site-packages
    put $site/_rocm_sdk_core/bin amdhip64_7.dll hiprtc0714.dll=hiprtc.dll hiprtc-builtins0714.dll=empty.dll \
        amd_comgr.dll=empty.dll
    put $site/_rocm_sdk_libraries/bin rocblas.dll=rocblas-7.dll MIOpen.dll
    put "Program Files/AMD/ROCm/6.4/bin" amdhip64_6.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
    expect "wheels by $variable" "$variable=C:\\test\\env" -- "($variable)" '_rocm_sdk_core\bin\amdhip64_7.dll' \
        '_rocm_sdk_core\bin\hiprtc0714.dll' '_rocm_sdk_libraries\bin\rocblas.dll' 'MIOpen: 0.0.0, ' '!6.4'
done

reset
put test/wrong amdhip64_7.dll=empty.dll rocblas.dll=empty.dll hiprtc0701.dll=empty.dll
put "Program Files/AMD/ROCm/7.1/bin" amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-7.dll
expect "wrong ones first in PATH" 'WINEPATH=C:\test\wrong' -- "HIP: 7.1.53211, $sdks\7.1\bin\amdhip64_7.dll" \
    '7.1\bin\rocblas.dll' "!can't be used"

reset
put test/both/bin amdhip64_6.dll amdhip64_7.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
expect "two HIPs, hipRTC of one" 'ROCM_PATH=C:\test\both' -- 'bin\amdhip64_6.dll' \
    'hipRTC: 0.0, C:\test\both\bin\hiprtc0604.dll'

reset
put test/mixed/bin amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
expect "rocBLAS of another version" 'HIP_PATH=C:\test\mixed' -- \
    'rocBLAS: rocBLAS is installed but calls amdhip64_6.dll, and amdhip64_7.dll is in use: two installations of ROCm'

reset
put test/versions/bin amdhip64_7.dll hiprtc0604.dll=hiprtc.dll
expect "hipRTC of another version" 'HIP_PATH=C:\test\versions' -- 'is of ROCm 6, and amdhip64_7.dll is in use'

reset
put test/old/bin amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-7.dll
# The header's processor becomes that of 32-bit programs.
offset=$(od -An -tu4 -j60 -N4 "$drive/test/old/bin/rocblas.dll" | tr -d ' ')
printf '\x4c\x01' | dd of="$drive/test/old/bin/rocblas.dll" bs=1 seek=$((offset + 4)) conv=notrunc status=none
echo "no DLL" >"$drive/test/old/bin/MIOpen.dll"
expect "a DLL for another processor, and none" 'HIP_PATH=C:\test\old' -- \
    'rocBLAS is installed but is built for x86 (32 bits), and this program for x86-64' \
    'MIOpen is installed but is not a DLL'

reset
put test/needy/bin amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-needy.dll MIOpen.dll=empty.dll
expect "a DLL whose own libraries are missing, and one without functions" 'HIP_PATH=C:\test\needy' -- \
    'rocBLAS is installed but does not load' '(there is no absent.dll)' "MIOpen.dll; can't be used without"

reset
put "test/Größe 大 x/bin" amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-7.dll
expect "a folder with other letters" 'HIP_PATH=C:/test/Größe 大 x' -- 'Größe 大 x\bin\amdhip64_7.dll' \
    'Größe 大 x\bin\rocblas.dll'

# The cache: refused where everyone may write, and usable in the user's own folder. wine shows modes as access control
# lists.
reset
mkdir -p "$drive/test/open"
chmod 0777 "$drive/test/open"
# cache TEXT [VARIABLE=VALUE]: looks for a text in what the survey says about the cache.
cache() {
    local text=$1 report
    shift
    report=$(env "$@" wine "$survey" --cache | tr -d '\r')
    grep -qiF -- "$text" <<<"$report" || {
        echo "the cache: \"$text\" is not in $report" >&2
        exit 1
    }
}
cache 'found one that ' 'BURN_ROCM_CACHE_DIR=C:\test\open'
cache 'AppData\Local\burn-rocm: usable'
reset
echo "$count layouts, and the cache's folder"
