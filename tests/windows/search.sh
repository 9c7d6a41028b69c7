#!/usr/bin/env bash
# Which of AMD's and NVIDIA's libraries a Windows program finds: imitations of each layout, on wine's drive C. The DLLs
# have AMD's and NVIDIA's functions, which do nothing.
#
#   search.sh SURVEY.EXE DEVICE-INFO.EXE
#
# SURVEY.EXE is hip's example `survey` with the feature `cuda`, DEVICE-INFO.EXE the example `device-info`. With SHOW=1,
# prints what device-info says about each layout. Needs MinGW's gcc and wine; WINEPREFIX is wine's folder.
set -Eeuo pipefail
# A command that fails without a word is told.
trap 'echo "search.sh: line $LINENO failed with exit status $?: $BASH_COMMAND" >&2' ERR
survey=$(realpath "$1")
device_info=$(realpath "$2")
here=$(dirname "$(realpath "$0")")
: "${WINEPREFIX:?}"
export WINEDEBUG="${WINEDEBUG:--all}"
cc=x86_64-w64-mingw32-gcc
drive=$WINEPREFIX/drive_c
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# version NAME NUMBERS: a resource with the version of a DLL's file, such as 6,4,50101,0.
version() {
    echo "1 VERSIONINFO FILEVERSION $2 BEGIN END" >"$work/$1.rc"
    x86_64-w64-mingw32-windres "$work/$1.rc" -O coff -o "$work/$1.o"
}
version driver 31,0,24033,1003
version sdk 6,4,50101,0
# make NAME LIBRARY [LINKED...]: a DLL with the functions of a library (hip, hiprtc, rocblas, miopen).
functions=$(wine "$survey" --functions | tr -d '\r')
make() {
    local name=$1 library=$2
    shift 2
    {
        awk -v library="$library" '$1 == library && $2 != "hipRuntimeGetVersion" {
            print "__declspec(dllexport) int " $2 "(void) { return " (library == "hip" ? 100 : 0) "; }"
        }' <<<"$functions"
        # By this name, a rocBLAS that opens catalogues of kernels is known.
        [ "$library" != rocblas ] || echo '__declspec(dllexport) const char catalogue[] = "TensileLibrary_";'
        if [ "$library" = hip ]; then
            echo '__declspec(dllexport) int hipRuntimeGetVersion(int *version) { *version = 70153211; return 0; }'
        elif [ $# != 0 ] && [[ $1 == *.dll ]]; then
            # So that the DLL needs the HIP that it is linked to.
            echo '__declspec(dllimport) int hipInit(void); int call(void) { return hipInit(); }'
            [ $# = 1 ] || echo '__declspec(dllimport) int help(void); int ask(void) { return help(); }'
        fi
    } >"$work/$name.c"
    "$cc" -w -shared -O1 -nostdlib -e 0 -o "$work/$name" "$work/$name.c" "$@"
}
# make_nvidia NAME LIBRARY: a DLL with the functions that hip/cuda/src/symbols.rs lists. They say that there is no
# device.
make_nvidia() {
    sed -n "/^const $2:/,/^];/s/^ *\"\(.*\)\",\$/__declspec(dllexport) int \1(void) { return 100; }/p" \
        "$here/../../hip/cuda/src/symbols.rs" >"$work/$1.c"
    if ! [ -s "$work/$1.c" ]; then
        echo "hip/cuda/src/symbols.rs: expected the functions of $2, found none" >&2
        exit 1
    fi
    "$cc" -w -shared -O1 -nostdlib -e 0 -o "$work/$1" "$work/$1.c"
}
make_nvidia nvcuda.dll DRIVER
make_nvidia nvrtc.dll NVRTC
make amdhip64.dll hip
make amdhip64_6.dll hip
make amdhip64_7.dll hip
make driver.dll hip "$work/driver.o"
make sdk.dll hip "$work/sdk.o"
make hiprtc.dll hiprtc
make rocblas-5.dll rocblas "$work/amdhip64.dll"
make rocblas-6.dll rocblas "$work/amdhip64_6.dll"
make rocblas-7.dll rocblas "$work/amdhip64_7.dll"
make MIOpen.dll miopen "$work/amdhip64_7.dll"
make empty.dll none
# A rocBLAS that also needs a DLL of another wheel.
echo '__declspec(dllexport) int help(void) { return 0; }' >"$work/helper.c"
"$cc" -w -shared -nostdlib -e 0 -o "$work/helper.dll" "$work/helper.c"
make rocblas-wheel.dll rocblas "$work/amdhip64_7.dll" "$work/helper.dll"
# A hipRTC that says its version only if the DLLs that it opens by their names are loaded already.
{
    grep -v 'int hiprtcVersion' "$work/hiprtc.dll.c"
    echo '__declspec(dllimport) void *GetModuleHandleA(const char *name);
        __declspec(dllexport) int hiprtcVersion(int *major, int *minor) {
            *major = 7, *minor = 14;
            return !GetModuleHandleA("amd_comgr.dll") || !GetModuleHandleA("hiprtc-builtins0714.dll");
        }'
} >"$work/hiprtc-wheel.c"
"$cc" -w -shared -O1 -nostdlib -e 0 -o "$work/hiprtc-wheel.dll" "$work/hiprtc-wheel.c" -lkernel32
# A DLL that needs one that is nowhere.
make absent.dll hip
echo '__declspec(dllexport) int rocblas_create_handle(void) { return hipFree(); }' >"$work/needy.c"
"$cc" -w -shared -nostdlib -e 0 -o "$work/rocblas-needy.dll" "$work/needy.c" "$work/absent.dll"

system=$drive/windows/system32
reset() {
    rm -rf "$drive/Program Files/AMD" "$drive/test" "$system"/{amdhip64,hiprtc,nvcuda}*.dll
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
program=("$device_info")
# expect TITLE [VARIABLE=VALUE...] -- TEXT...: runs the program and looks for texts in its output. `!TEXT` must not be
# there.
expect() {
    local title=$1 variables=() report text found
    shift
    while [ "$1" != -- ]; do
        variables+=("$1")
        shift
    done
    shift
    report=$(env -u ROCM_PATH -u HIP_PATH -u VIRTUAL_ENV -u CONDA_PREFIX -u CUDA_PATH -u CUDA_HOME \
        "${variables[@]}" wine "${program[@]}" 2>"$work/said" | tr -d '\r') || {
        printf '%s: expected exit status 0 of %s, found another; it printed\n%s\n' \
            "$title" "${program[*]}" "$report" >&2
        cat "$work/said" >&2
        exit 1
    }
    for text in "$@"; do
        found=1
        grep -qiF -- "${text#!}" <<<"$report" || found=0
        case $text,$found in
        !*,1) printf '%s: expected no "%s", found it in\n%s\n' "$title" "${text#!}" "$report" >&2 ;;
        !*,0 | *,1) continue ;;
        *) printf '%s: expected "%s", found\n%s\n' "$title" "$text" "$report" >&2 ;;
        esac
        exit 1
    done
    count=$((count + 1))
    [ -z "${SHOW:-}" ] || printf '== %s\n%s\n' "$title" "$report"
    echo "ok: $title"
}
sdks='C:\Program Files\AMD\ROCm'

reset
expect "nothing is installed" -- 'rocm: not usable: HIP is not installed' \
    'looked for C:\Program Files\AMD\ROCm\*\bin\amdhip64*.dll' 'looked for C:\windows\system32\amdhip64*.dll' \
    '[windows-driver]: C:\windows\system32 has no amdhip64*.dll: there is no AMD GPU' \
    '[windows-hiprtc]: there is no hipRTC' 'hip-sdk.html'

reset
put windows/system32 amdhip64_7.dll=driver.dll
expect "only the driver" -- 'HIP is installed but has no hipRTC beside it' '[windows-hiprtc]: there is no hipRTC' \
    "AMD's driver: C:\\windows\\system32\\amdhip64_7.dll, version 31.0.24033.1003" \
    'burn-rocm uses here: cpu' 'passed over rocm: HIP is installed but has no hipRTC beside it'

reset
put "Program Files/AMD/ROCm/6.4/bin" amdhip64_6.dll=sdk.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
expect "an SDK, without MIOpen" -- "ROCm in use: $sdks\6.4\bin (AMD's HIP SDK)" \
    "HIP: 7.1.53211, $sdks\6.4\bin\amdhip64_6.dll (file version 6.4.50101.0)" 'bin\hiprtc0604.dll' 'bin\rocblas.dll' \
    'MIOpen: the ROCm in use has no MIOpen' '!there is no hipRTC' 'has no amdhip64*.dll: there is no AMD GPU'

put windows/system32 amdhip64_7.dll=driver.dll
expect "a driver and an SDK, without a GPU" -- "ROCm in use: $sdks\6.4\bin (AMD's HIP SDK)" \
    "AMD's driver: C:\\windows\\system32\\amdhip64_7.dll, version 31.0.24033.1003" \
    'HIP is installed but finds no device: for an AMD GPU, update AMD Software' '!problem ['
rm "$system/amdhip64_7.dll"

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
    put $site/_rocm_sdk_core/bin amdhip64_7.dll hiprtc0714.dll=hiprtc-wheel.dll hiprtc-builtins0714.dll=empty.dll \
        amd_comgr.dll=empty.dll helper.dll
    put $site/_rocm_sdk_libraries/bin rocblas.dll=rocblas-wheel.dll MIOpen.dll
    put "Program Files/AMD/ROCm/6.4/bin" amdhip64_6.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
    expect "wheels by $variable" "$variable=C:\\test\\env" -- "($variable)" '_rocm_sdk_core\bin\amdhip64_7.dll' \
        'hipRTC: 7.14, C:\test\env\Lib\site-packages\_rocm_sdk_core\bin\hiprtc0714.dll' \
        '_rocm_sdk_libraries\bin\rocblas.dll' 'MIOpen: 0.0.0, ' '!6.4\bin'
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
put "Program Files/AMD/ROCm/6.4/bin" amdhip64_6.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
expect "a HIP whose hipRTC is of another version is passed over" 'HIP_PATH=C:\test\versions' -- \
    "ROCm in use: $sdks\6.4\bin (AMD's HIP SDK)" 'ROCm\6.4\bin\amdhip64_6.dll' '!versions\bin'

reset
put test/versions/bin amdhip64_7.dll hiprtc0604.dll=hiprtc.dll
expect "no other HIP than one whose hipRTC is of another version" 'HIP_PATH=C:\test\versions' -- \
    'HIP is installed but is of ROCm 7, but hiprtc0604.dll beside it is of another'

# The app has loaded a HIP of the same name. Windows's loader takes it for the one that rocBLAS needs.
reset
put test/app amdhip64_7.dll
put test/sdk/bin amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-7.dll
program=("$survey" --loaded 'C:\test\app\amdhip64_7.dll')
expect "an app with a HIP of its own, of the same name" 'HIP_PATH=C:\test\sdk' -- \
    'rocBLAS is installed but would call C:\test\app\amdhip64_7.dll, and C:\test\sdk\bin\amdhip64_7.dll is in use'
program=("$survey" --loaded 'C:\test\sdk\bin\amdhip64_7.dll')
expect "an app that loaded the same HIP" 'HIP_PATH=C:\test\sdk' -- 'C:\test\sdk\bin\rocblas.dll' '!are mixed'
program=("$device_info")

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

reset
long=$(printf 'x%.0s' {1..150})
put "test/$long/$long/bin" amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-7.dll
expect "a path of more than 260 characters" "HIP_PATH=C:\\test\\$long\\$long" -- "$long\\bin\\amdhip64_7.dll" \
    "$long\\bin\\hiprtc0701.dll" "$long\\bin\\rocblas.dll" '!does not load'

reset
put test/sdk/bin amdhip64_7.dll hiprtc0701.dll=hiprtc.dll rocblas.dll=rocblas-7.dll
cd "$drive/test"
expect "a relative path" 'HIP_PATH=sdk' -- 'HIP: 7.1.53211, C:\test\sdk\bin\amdhip64_7.dll' \
    'C:\test\sdk\bin\rocblas.dll'
cd "$work"

# The CUDA provider. No imitation has a device, so cuBLAS and cuDNN, which are opened for a device, are not looked for.
program=("$survey")
reset
expect "nothing of NVIDIA is installed" -- "cuda: not usable: NVIDIA's driver is not installed" 'looked for nvcuda.dll'

put windows/system32 nvcuda.dll
expect "only NVIDIA's driver" 'CUDA_PATH=C:\test\cuda' -- 'cuda: not usable: NVRTC is not installed' \
    'looked for C:\test\cuda\bin\x64\nvrtc64_130_0.dll' 'looked for C:\test\cuda\bin\nvrtc64_130_0.dll'

for folder in 'bin\x64' bin; do
    for variable in CUDA_PATH CUDA_HOME; do
        reset
        put windows/system32 nvcuda.dll
        put "test/cuda/${folder/\\//}" nvrtc64_130_0.dll=nvrtc.dll
        expect "CUDA 13 in $folder of $variable" "$variable=C:\\test\\cuda" -- 'cuda: not usable: cuda has no device' \
            'looked for nvcuda.dll (loaded)' "looked for C:\\test\\cuda\\$folder\\nvrtc64_130_0.dll (loaded)"
    done
done

reset
put windows/system32 nvcuda.dll
put test/cuda/bin nvrtc64_130_0.dll=nvrtc.dll
expect "CUDA 13 in PATH" 'WINEPATH=C:\test\cuda\bin' -- 'cuda has no device' 'looked for nvrtc64_130_0.dll (loaded)'

reset
put windows/system32 nvcuda.dll
put test/cuda/bin nvrtc64_120_0.dll=nvrtc.dll
expect "NVRTC of CUDA 12" 'CUDA_PATH=C:\test\cuda' -- 'cuda: not usable: NVRTC is not installed'

# The kernels beside rocBLAS. Without them, rocBLAS would end the process.
reset
sdk="Program Files/AMD/ROCm/6.4/bin"
put "$sdk" amdhip64_6.dll hiprtc0604.dll=hiprtc.dll rocblas.dll=rocblas-6.dll
mkdir -p "$drive/$sdk/rocblas/library"
: >"$drive/$sdk/rocblas/library/TensileLibrary_lazy_gfx1100.dat"
for expected in 'gfx1100: served' 'gfx1030: not available: this rocBLAS has no kernels for gfx1030'; do
    found=$(wine "$survey" --rocblas "${expected%%:*}" | tr -d '\r')
    if [[ $found != "$expected"* ]]; then
        echo "rocBLAS's kernels: expected \"$expected\", found \"$found\"" >&2
        exit 1
    fi
    echo "ok: rocBLAS's kernels: $found"
done

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
        echo "the cache: expected \"$text\", found $report" >&2
        exit 1
    }
}
cache 'found one that ' 'BURN_ROCM_CACHE_DIR=C:\test\open'
cache 'AppData\Local\burn-rocm: usable'
cache 'usable' "BURN_ROCM_CACHE_DIR=C:\\test\\Größe 大\\$long\\$long"
if ! [ -d "$drive/test/Größe 大/$long/$long" ]; then
    echo "the cache: expected a folder with a long path, found none" >&2
    exit 1
fi
: >"$drive/test/file"
cache 'expected a directory that can be made' 'BURN_ROCM_CACHE_DIR=C:\test\file\cache'
reset
echo "$count layouts, and the cache's folder"
