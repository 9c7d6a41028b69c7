//! How machines are broken, and what the doctor finds then.

use std::os::unix::fs::{MetadataExt, chown};

use crate::imitation::{Imitation, USER};

const GFX1030: u64 = 100_300;
const GFX1031: u64 = 100_301;
const GFX1100: u64 = 110_000;
const GFX1103: u64 = 110_003;
const GFX90A: u64 = 90_010;
const GFX90C: u64 = 90_012;

/// How a healthy machine with these GPUs is broken, and the findings: code, what (a part of it), and
/// the first command that mends it.
pub(crate) type Case<'a> = (&'a str, &'a [u64], fn(&mut Imitation), &'a [(&'a str, &'a str, &'a str)]);

pub(crate) const ONE: &[u64] = &[GFX1030];
const TWO: &[u64] = &[GFX90A, GFX90A];
const DOCKER: &str = "docker run --device=/dev/kfd --device=/dev/dri";

#[rustfmt::skip]
pub(crate) const CASES: &[Case<'static>] = &[
    ("healthy", ONE, |_| {}, &[]),
    ("healthy, two GPUs", TWO, |_| {}, &[]),
    ("healthy, in a container", ONE, |m| m.write(".dockerenv", ""), &[]),
    ("no GPU", &[], |m| m.remove("dev/kfd"), &[("no-gpu", "this machine has no AMD GPU",
        "lspci -nn -d 1002:")]),
    ("no GPU: variables do not matter", &[], |m| { m.remove("dev/kfd"); m.set("HIP_VISIBLE_DEVICES", "-1"); },
        &[("no-gpu", "this machine has no AMD GPU", "lspci -nn -d 1002:")]),
    ("no module", ONE, without_module, &[("amdgpu-missing", "the PCI bus has 1 AMD GPU(s), but",
        "sudo modprobe amdgpu")]),
    ("no module, and no bus", ONE, |m| { without_module(m); m.remove("sys/bus"); },
        &[("no-gpu", "this machine has no AMD GPU", "lspci -nn -d 1002:")]),
    ("no GPU, but amdgpu is loaded", &[], |_| {},
        &[("no-gpu", "this machine has no AMD GPU", "lspci -nn -d 1002:")]),
    ("WSL with an NVIDIA GPU", &[], |m| { wsl(m); m.write("dev/dxg", "");
        m.write("usr/lib/wsl/lib/libcuda.so.1", ""); }, &[]),
    ("Secure Boot, the kernel's own module", ONE, |m| { without_module(m); secure_boot(m, 1); },
        &[("amdgpu-missing", "the PCI bus has 1 AMD GPU(s), but", "sudo modprobe amdgpu")]),
    ("Secure Boot, DKMS", ONE, |m| { without_module(m); secure_boot(m, 1);
        m.write("var/lib/dkms/amdgpu/6.10.5/x", ""); },
        &[("secure-boot", "Secure Boot is on", "sudo mokutil --import /var/lib/dkms/mok.pub")]),
    ("no Secure Boot, DKMS", ONE, |m| { without_module(m); secure_boot(m, 0);
        m.write("var/lib/dkms/amdgpu/6.10.5/x", ""); },
        &[("amdgpu-missing", "the PCI bus has 1 AMD GPU(s), but", "sudo modprobe amdgpu")]),
    ("lockdown, DKMS of Ubuntu", ONE, |m| {
        without_module(m);
        m.write("sys/kernel/security/lockdown", "none [integrity] confidentiality\n");
        m.write("var/lib/dkms/amdgpu/6.10.5/x", "");
        m.write("var/lib/shim-signed/mok/MOK.der", "");
    }, &[("secure-boot", "built by DKMS", "sudo mokutil --import /var/lib/shim-signed/mok/MOK.der")]),
    ("vfio holds the only GPU", ONE, |m| { without_module(m); bind(m, "0000:03:00.0", "vfio-pci"); },
        &[("other-driver", "the driver vfio-pci holds the GPU 0000:03:00.0", "lspci -nnk -s 0000:03:00.0")]),
    ("vfio holds one of two GPUs", TWO, |m| bind(m, "0000:04:00.0", "vfio-pci"),
        &[("other-driver", "the driver vfio-pci holds the GPU 0000:04:00.0", "lspci -nnk -s 0000:04:00.0")]),
    ("no KFD", ONE, |m| m.remove("dev/kfd"),
        &[("kfd-missing", "/dev/kfd does not exist", "grep CONFIG_HSA_AMD= /boot/config-$(uname -r)")]),
    ("KFD lists no GPU", ONE, |m| m.remove("sys/class/kfd/kfd/topology/nodes/1"),
        &[("kfd-without-gpu", "KFD lists no GPU", "sudo dmesg | grep -i kfd")]),
    ("no render node", ONE, |m| m.remove("dev/dri"),
        &[("render-missing", "the gfx1030 of KFD's node 1 has no /dev/dri/renderD128", "ls -l /dev/dri")]),
    ("a container without devices", ONE, |m| { m.write(".dockerenv", ""); m.remove("dev/kfd");
        m.remove("dev/dri"); },
        &[("container-devices", "this container has no /dev/kfd", DOCKER)]),
    ("a pod without devices or bus", ONE, |m| {
        m.set("KUBERNETES_SERVICE_HOST", "10.0.0.1");
        m.remove("sys");
        m.remove("dev/kfd");
    }, &[("container-devices", "this container has no /dev/kfd", DOCKER)]),
    ("a container without /dev/dri", ONE, |m| { m.write("run/.containerenv", ""); m.remove("dev/dri"); },
        &[("container-devices", "this container has no /dev/dri/renderD*", DOCKER)]),
    ("a container without the group", ONE, |m| {
        m.write("proc/1/cgroup", "0::/system.slice/docker-0123.scope\n");
        m.write("etc/group", "root:x:0:\nvideo:x:44:\n");
        m.user(USER, &[44]);
    }, &[("container-group",
        "/dev/kfd, /dev/dri/renderD128: the container's user is not in its group number GID",
        "docker run --device=/dev/kfd --device=/dev/dri --group-add GID <image>")]),
    ("a container's root", ONE, |m| { m.write(".dockerenv", ""); m.user(0, &[]); }, &[]),
    ("not in the group", ONE, |m| {
        m.write("etc/group", format!("root:x:0:\nrender:x:{}:\n", m.gid));
        m.user(USER, &[]);
    }, &[("group-missing", "no access to /dev/kfd, /dev/dri/renderD128: the user is not in its group render",
        "sudo usermod -aG render $USER")]),
    ("joined the group after login", ONE, |m| m.user(USER, &[]),
        &[("login-again", "the user has joined its group render, but this session began before",
        "# log out and in")]),
    ("mode 600", ONE, |m| m.mode("dev/kfd", 0o600),
        &[("device-mode", "no access to /dev/kfd: it belongs to the group render with mode 600",
        "echo 'KERNEL==\"kfd\"")]),
    ("mode 640", ONE, |m| m.mode("dev/dri/renderD128", 0o640),
        &[("device-mode", "no access to /dev/dri/renderD128: it belongs to the group render with mode 640",
        "echo 'KERNEL==\"kfd\"")]),
    ("mode 666", ONE, |m| { m.user(USER, &[]); m.mode("dev/kfd", 0o666);
        m.mode("dev/dri/renderD128", 0o666); }, &[]),
    ("refused in spite of the permissions", ONE, |m| {
        // The owner's bits count for the owner, and here they forbid what the group's allow.
        let _ = chown(m.root.join("dev/kfd"), Some(USER), None);
        m.user(m.metadata("dev/kfd").uid(), &[m.gid]);
        m.mode("dev/kfd", 0o060);
        m.mode("dev/dri/renderD128", 0o666);
    }, &[("device-blocked", "no access to /dev/kfd: the user is in its group render",
        "docker run --device=/dev/kfd")]),
    ("a render node that does not open", ONE, |m| { m.remove("dev/dri"); m.link("dev/dri/renderD128",
        "nothing"); },
        &[("device-fails", "no access to /dev/dri/renderD128", "sudo dmesg | grep -iE 'amdgpu|kfd'")]),
    ("another maker's render node", ONE, |m| m.write("dev/dri/renderD129", ""), &[]),
    ("WSL without /dev/dxg", &[], wsl, &[("wsl-dxg", "this WSL has no /dev/dxg", "wsl.exe --update")]),
    ("WSL without librocdxg", &[], |m| { wsl(m); m.write("dev/dxg", ""); },
        &[("wsl-library", "no librocdxg.so", "git clone https://github.com/ROCm/librocdxg")]),
    ("WSL without the variable", &[], |m| { wsl(m); m.write("dev/dxg", "");
        m.write("opt/rocm/lib/librocdxg.so", ""); },
        &[("wsl-detection", "HSA_ENABLE_DXG_DETECTION is not 1", "export HSA_ENABLE_DXG_DETECTION=1")]),
    ("WSL, complete", &[], |m| {
        wsl(m);
        m.write("dev/dxg", "");
        m.write("opt/rocm-7.2.0/lib/librocdxg.so.1", "");
        m.set("HSA_ENABLE_DXG_DETECTION", "1");
    }, &[]),
    ("no ROCm", ONE, |m| m.remove("opt"), &[("no-hip", "ROCm's HIP was not found", "# install ROCm")]),
    ("ROCm of a distribution", ONE, |m| { m.remove("opt");
        m.write("usr/lib/x86_64-linux-gnu/libamdhip64.so.7", ""); }, &[]),
    ("a wrong ROCM_PATH", ONE, |m| m.set("ROCM_PATH", "/no/such/rocm"),
        &[("rocm-path", "ROCM_PATH=/no/such/rocm has no HIP", "unset ROCM_PATH")]),
    ("two versions", ONE, |m| {
        m.write("opt/rocm-6.4.1/lib/libamdhip64.so.6", "");
        m.write("etc/ld.so.conf.d/rocm.conf", "/opt/rocm-7.2.0/lib\n");
        m.set("LD_LIBRARY_PATH", "/opt/rocm-6.4.1/lib:/no/such/folder:");
    }, &[("mixed-rocm", "6.4.1 in /opt/rocm-6.4.1/lib, 7.2.0 in /opt/rocm-7.2.0/lib",
        "grep -rn rocm /etc/ld.so.conf.d")]),
    ("one version under two names", ONE, |m| {
        m.link("opt/rocm", "rocm-7.2.0");
        m.write("etc/ld.so.conf.d/rocm.conf", "/opt/rocm/lib\n");
        m.set("LD_LIBRARY_PATH", "/opt/rocm-7.2.0/lib");
    }, &[]),
    ("an override that is no version", ONE, |m| m.set("HSA_OVERRIDE_GFX_VERSION", "gfx1030"),
        &[("override-malformed", "HSA_OVERRIDE_GFX_VERSION=gfx1030 is not a version",
        "unset HSA_OVERRIDE_GFX_VERSION")]),
    ("an override of two numbers", ONE, |m| m.set("HSA_OVERRIDE_GFX_VERSION", "10.3"),
        &[("override-malformed", "10.3 is not a version", "unset HSA_OVERRIDE_GFX_VERSION")]),
    ("an override of a number that is too large", ONE, |m| m.set("HSA_OVERRIDE_GFX_VERSION", "10.3.256"),
        &[("override-malformed", "10.3.256 is not a version", "unset HSA_OVERRIDE_GFX_VERSION")]),
    ("an override to the GPU's own", &[GFX90A], |m| m.set("HSA_OVERRIDE_GFX_VERSION", "9.0.10"),
        &[("override-needless", "what the GPU is anyway (gfx90a)", "unset HSA_OVERRIDE_GFX_VERSION")]),
    ("an override to another family", &[GFX1100], |m| m.set("HSA_OVERRIDE_GFX_VERSION", "10.3.0"),
        &[("override-family", "lets gfx1100 claim to be gfx1030", "unset HSA_OVERRIDE_GFX_VERSION")]),
    ("an override that makes gfx1103 hang", &[GFX1103], |m| m.set("HSA_OVERRIDE_GFX_VERSION", "11.0.0"),
        &[("override-other", "lets gfx1103 claim to be gfx1100", "unset HSA_OVERRIDE_GFX_VERSION")]),
    ("an override of one GPU", &[GFX1030, GFX1100], |m| m.set("HSA_OVERRIDE_GFX_VERSION_2", "11.0.1"),
        &[("override-other", "HSA_OVERRIDE_GFX_VERSION_2=11.0.1 lets gfx1100 claim",
        "unset HSA_OVERRIDE_GFX_VERSION_2")]),
    ("an override that would help", &[GFX1031], |_| {},
        &[("override-advised", "none for gfx1031", "export HSA_OVERRIDE_GFX_VERSION=10.3.0")]),
    ("an override that helps", &[GFX1031], |m| m.set("HSA_OVERRIDE_GFX_VERSION", "10.3.0"), &[]),
    ("an override that would help one GPU", &[GFX1031, GFX1100], |_| {},
        &[("override-advised", "none for gfx1031", "export HSA_OVERRIDE_GFX_VERSION_1=10.3.0")]),
    ("kernels for the chip itself", &[GFX1031],
        |m| m.write("opt/rocm-7.2.0/lib/rocblas/library/TensileLibrary_lazy_gfx1031.dat", ""), &[]),
    ("all hidden from HIP", ONE, |m| m.set("HIP_VISIBLE_DEVICES", "-1"),
        &[("none-visible", "HIP_VISIBLE_DEVICES=-1 hides all GPUs", "unset HIP_VISIBLE_DEVICES")]),
    ("all hidden from CUDA", ONE, |m| m.set("CUDA_VISIBLE_DEVICES", "NoDevFiles"),
        &[("none-visible", "CUDA_VISIBLE_DEVICES=NoDevFiles hides all GPUs", "unset CUDA_VISIBLE_DEVICES")]),
    ("all hidden from ROCr", ONE, |m| m.set("ROCR_VISIBLE_DEVICES", ""),
        &[("none-visible", "ROCR_VISIBLE_DEVICES= hides all GPUs", "unset ROCR_VISIBLE_DEVICES")]),
    ("an empty list of HIP is none", ONE, |m| m.set("HIP_VISIBLE_DEVICES", ""), &[]),
    ("HIP counts what ROCr leaves", TWO, |m| { m.set("ROCR_VISIBLE_DEVICES", "1");
        m.set("HIP_VISIBLE_DEVICES", "1"); },
        &[("none-visible", "ROCR_VISIBLE_DEVICES=1 HIP_VISIBLE_DEVICES=1 hides all GPUs",
            "unset ROCR_VISIBLE_DEVICES HIP_VISIBLE_DEVICES")]),
    ("a GPU that does not exist", TWO, |m| m.set("HIP_VISIBLE_DEVICES", "0,2,1"),
        &[("visible-unknown", "HIP_VISIBLE_DEVICES=0,2,1: there is no device 2",
        "unset HIP_VISIBLE_DEVICES")]),
    ("one of two by its name", TWO, |m| m.set("ROCR_VISIBLE_DEVICES", "gpu-4b2c1a9f00000001"),
        &[("visible-some", "leaves 1 of 2 GPUs", "unset ROCR_VISIBLE_DEVICES")]),
    ("the name of a GPU that has none", &[GFX90C], |m| {
        let nameless = "simd_count 32\ngfx_target_version 90012\ndrm_render_minor 128\nunique_id 0\n";
        m.write("sys/class/kfd/kfd/topology/nodes/1/properties", nameless);
        m.set("ROCR_VISIBLE_DEVICES", "GPU-0");
    }, &[("none-visible", "ROCR_VISIBLE_DEVICES=GPU-0 hides all GPUs", "unset ROCR_VISIBLE_DEVICES")]),
    ("HIP's list goes before CUDA's", TWO, |m| { m.set("HIP_VISIBLE_DEVICES", "0,1");
        m.set("CUDA_VISIBLE_DEVICES", "-1"); }, &[]),
    ("another order", TWO, |m| m.set("HIP_VISIBLE_DEVICES", "1, 0"), &[]),
    ("the ordinal of OpenCL", TWO, |m| m.set("GPU_DEVICE_ORDINAL", "7"),
        &[("visible-unknown", "GPU_DEVICE_ORDINAL=7: there is no device 7", "unset GPU_DEVICE_ORDINAL")]),
    ("no copy engines", ONE, |m| m.set("HSA_ENABLE_SDMA", "0"), &[("sdma-off", "copy engines off",
        "unset HSA_ENABLE_SDMA")]),
    ("XNACK", &[GFX90A], |m| m.set("HSA_XNACK", "1"), &[("xnack-on", "HSA_XNACK=1", "unset HSA_XNACK")]),
    ("limits of memory", ONE, |m| {
        m.set("GPU_MAX_HEAP_SIZE", "50");
        m.set("GPU_SINGLE_ALLOC_PERCENT", "85");
        m.set("GPU_MAX_ALLOC_PERCENT", "100");
    }, &[("memory-percent", "limits HIP to 50 %", "unset GPU_MAX_HEAP_SIZE"),
        ("memory-percent", "limits an allocation to 85 %", "unset GPU_SINGLE_ALLOC_PERCENT"),
        ("ignored-variable", "GPU_MAX_ALLOC_PERCENT is set", "unset GPU_MAX_ALLOC_PERCENT")]),
    ("no limits of memory", ONE, |m| { m.set("GPU_MAX_HEAP_SIZE", "100"); m.set("GPU_SINGLE_ALLOC_PERCENT",
        "100"); }, &[]),
    ("one kernel at a time", ONE, |m| { m.set("AMD_SERIALIZE_KERNEL", "3"); m.set("HIP_LAUNCH_BLOCKING",
        "0"); },
        &[("serialized", "AMD_SERIALIZE_KERNEL=3", "unset AMD_SERIALIZE_KERNEL")]),
    ("a log of each call", ONE, |m| m.set("AMD_LOG_LEVEL", "4"), &[("logging", "AMD_LOG_LEVEL=4",
        "unset AMD_LOG_LEVEL")]),
    ("a log of errors", ONE, |m| m.set("AMD_LOG_LEVEL", "1"), &[]),
    ("IOMMU", TWO, |m| m.write("sys/bus/pci/devices/0000:04:00.0/iommu_group/type", "DMA-FQ\n"),
        &[("iommu", "the IOMMU translates the addresses of 0000:04:00.0",
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=")]),
    ("IOMMU of an older kernel", TWO, |m| m.remove("sys/bus/pci/devices/0000:03:00.0/iommu_group/type"),
        &[("iommu", "the IOMMU translates the addresses of 0000:03:00.0",
        "sudo sed -i 's/^GRUB_CMDLINE_LINUX=")]),
    ("IOMMU of an older kernel, passed through", TWO, |m| {
        m.remove("sys/bus/pci/devices/0000:03:00.0/iommu_group/type");
        m.write("proc/cmdline", "quiet amd_iommu=on iommu=pt\n");
    }, &[]),
    ("IOMMU, one GPU", ONE, |m| m.write("sys/bus/pci/devices/0000:03:00.0/iommu_group/type", "DMA\n"), &[]),
    ("the processor's GPU beside another", &[GFX1100, GFX90C], |m| {
        m.write("sys/bus/pci/devices/0000:03:00.0/iommu_group/type", "DMA\n");
        m.remove("sys/class/kfd/kfd/topology/nodes/1/p2p_links");
        m.remove("sys/class/kfd/kfd/topology/nodes/2/p2p_links");
    }, &[]),
    ("no peer access", TWO, |m| {
        m.remove("sys/class/kfd/kfd/topology/nodes/1/p2p_links");
        m.remove("sys/class/kfd/kfd/topology/nodes/2/p2p_links");
    }, &[("no-peer-access", "no direct way to each other: 1 and 2",
        "grep CONFIG_HSA_AMD_P2P= /boot/config-$(uname -r)")]),
    ("a small BAR", ONE, |m| m.write("sys/class/drm/renderD128/device/mem_info_vis_vram_total",
        "268435456\n"),
        &[("small-bar", "the host addresses 256 of the 16368 MiB of gfx1030",
        "# enable \"Above 4G Decoding\"")]),
    ("NUMA balancing", TWO, |m| m.write("proc/sys/kernel/numa_balancing", "1\n"),
        &[("numa-balancing", "balances NUMA memory", "sudo sysctl kernel.numa_balancing=0")]),
    ("little shared memory", TWO, |m| {
        m.write(".dockerenv", "");
        m.write("proc/self/mounts",
        "overlay / overlay rw 0 0\nshm /dev/shm tmpfs rw,nosuid,size=65536k,inode64 0 0\n");
    }, &[("shared-memory", "this container's /dev/shm has 64 MiB", "docker run --shm-size=8g <image>")]),
    ("enough shared memory", TWO, |m| {
        m.write(".dockerenv", "");
        m.write("proc/self/mounts", "shm /dev/shm tmpfs rw,nosuid,size=8388608k,inode64 0 0\n");
    }, &[]),
    ("little locked memory", TWO, |m| {
        m.write("sys/class/infiniband/mlx5_0/x", "");
        m.write("proc/self/limits",
        "Limit  Soft Limit  Hard Limit  Units\nMax locked memory   8388608    8388608    bytes\n");
    }, &[("locked-memory", "a process may lock 8192 KiB", "ulimit -l unlimited")]),
    ("unlimited locked memory", TWO, |m| {
        m.write("sys/class/infiniband/mlx5_0/x", "");
        m.write("proc/self/limits",
        "Max locked memory         unlimited            unlimited            bytes\n");
    }, &[]),
    ("several at once, worst first", TWO, |m| {
        m.write("proc/sys/kernel/numa_balancing", "1\n");
        m.set("HSA_ENABLE_SDMA", "0");
        m.user(USER, &[]);
    }, &[("login-again", "/dev/kfd, /dev/dri/renderD128, /dev/dri/renderD129", "# log out and in"),
        ("sdma-off", "copy engines off", "unset HSA_ENABLE_SDMA"),
        ("numa-balancing", "balances NUMA memory", "sudo sysctl kernel.numa_balancing=0")]),
];

fn without_module(machine: &mut Imitation) {
    machine.remove("sys/module/amdgpu");
    machine.remove("sys/class/kfd");
    machine.remove("dev/kfd");
    machine.remove("dev/dri");
}

fn secure_boot(machine: &mut Imitation, state: u8) {
    let variable = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";
    machine.write(variable, [6, 0, 0, 0, state]);
}

fn bind(machine: &mut Imitation, address: &str, driver: &str) {
    let link = format!("sys/bus/pci/devices/{address}/driver");
    machine.remove(&link);
    machine.link(&link, &format!("../../../../bus/pci/drivers/{driver}"));
}

fn wsl(machine: &mut Imitation) {
    for path in ["sys/bus", "sys/class/kfd", "sys/module", "dev/kfd"] {
        machine.remove(path);
    }
    machine.write("proc/sys/kernel/osrelease", "5.15.153.1-microsoft-standard-WSL2\n");
}
