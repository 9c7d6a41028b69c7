//! The table of all findings.

use crate::doctor::finding::{Finding, Severity};

/// A finding that the doctor can make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Check {
    /// Its name, such as `group-missing`.
    pub code: &'static str,
    /// How bad it is.
    pub severity: Severity,
    /// Why it matters, as one or two sentences.
    pub why: &'static str,
    /// The commands that mend it. Words in braces, such as `{group}`, stand for this machine's. A
    /// line that begins with `#` says in words what no command does.
    pub mend: &'static [&'static str],
}

impl Check {
    /// The finding. `words` replace the words in braces.
    pub(super) fn found(&self, what: impl Into<String>, words: &[(&str, &str)]) -> Finding {
        let fill = |line: &&str| {
            words.iter().fold((*line).to_owned(), |line, (word, by)| line.replace(&format!("{{{word}}}"), by))
        };
        Finding {
            code: self.code,
            severity: self.severity,
            what: what.into(),
            why: self.why.to_owned(),
            mend: self.mend.iter().map(fill).collect(),
        }
    }
}

macro_rules! checks {
    ($($name:ident, $code:literal, $severity:ident, $why:literal, [$($mend:literal),+];)+) => {
        $(
            #[cfg_attr(windows, allow(dead_code, reason = "Linux only"))]
            pub(super) const $name: Check =
                Check { code: $code, severity: Severity::$severity, why: $why, mend: &[$($mend),+] };
        )+

        /// Everything that the doctor can find, as `docs/guide/doctor.md` lists it.
        pub const CHECKS: &[Check] = &[$($name),+];
    };
}

checks! {
    // The driver and its device files.
    NO_GPU, "no-gpu", Note,
        "The PCI bus has no display controller or accelerator of AMD (vendor 1002).",
        ["lspci -nn -d 1002:"];
    AMDGPU_MISSING, "amdgpu-missing", Problem,
        "HIP reaches the GPU only through the kernel driver amdgpu.",
        ["sudo modprobe amdgpu", "sudo dmesg | grep -i amdgpu"];
    SECURE_BOOT, "secure-boot", Problem,
        "With Secure Boot or lockdown, the kernel loads only signed modules. DKMS signs amdgpu with a \
         key of this machine, which the firmware does not know until it is enrolled.",
        [
            "sudo mokutil --import {key}",
            "# restart, choose \"Enroll MOK\" and enter the password",
            "sudo modprobe amdgpu"
        ];
    OTHER_DRIVER, "other-driver", Warning,
        "Another driver holds this GPU, so amdgpu and HIP can't use it.",
        [
            "lspci -nnk -s {address}",
            "# remove the GPU's IDs from /etc/modprobe.d and the kernel's command line, and restart"
        ];
    KFD_MISSING, "kfd-missing", Problem,
        "HIP opens /dev/kfd. It exists if amdgpu is loaded and the kernel was built with \
         CONFIG_HSA_AMD.",
        ["grep CONFIG_HSA_AMD= /boot/config-$(uname -r)", "sudo dmesg | grep -i kfd"];
    KFD_WITHOUT_GPU, "kfd-without-gpu", Problem,
        "KFD skips a GPU that it does not support, and an older GPU in a PCIe slot without atomic \
         operations.",
        ["sudo dmesg | grep -i kfd"];
    RENDER_MISSING, "render-missing", Problem,
        "HIP opens /dev/kfd and the GPU's render node.",
        ["ls -l /dev/dri", "sudo udevadm trigger --subsystem-match=drm"];
    CONTAINER_DEVICES, "container-devices", Problem,
        "A container sees only the devices that are passed to it. HIP needs /dev/kfd and /dev/dri.",
        ["docker run --device=/dev/kfd --device=/dev/dri --group-add {gid} <image>"];
    CONTAINER_GROUP, "container-group", Problem,
        "The group of the host's device file has another number in the container, or the user is not \
         in it. Docker adds groups by number.",
        ["docker run --device=/dev/kfd --device=/dev/dri --group-add {gid} <image>"];
    GROUP_MISSING, "group-missing", Problem,
        "Only members of its group may open a device file.",
        ["sudo usermod -aG {group} $USER", "# log out and in again"];
    LOGIN_AGAIN, "login-again", Problem,
        "A session keeps the groups that the user had at login.",
        ["# log out and in again, or for this shell only:", "newgrp {group}"];
    DEVICE_MODE, "device-mode", Problem,
        "No group may read and write the file. Distributions give it to the group render with mode \
         660.",
        [
            "echo 'KERNEL==\"kfd\", GROUP=\"render\", MODE=\"0660\"' | \
             sudo tee /etc/udev/rules.d/70-kfd.rules",
            "echo 'KERNEL==\"renderD*\", GROUP=\"render\", MODE=\"0660\"' | \
             sudo tee -a /etc/udev/rules.d/70-kfd.rules",
            "sudo udevadm control --reload-rules && sudo udevadm trigger"
        ];
    DEVICE_BLOCKED, "device-blocked", Problem,
        "The file's permissions allow it, so a container's device rules or a security module \
         (SELinux, AppArmor) forbid it.",
        ["docker run --device=/dev/kfd --device=/dev/dri <image>", "sudo dmesg | grep -i denied"];
    DEVICE_FAILS, "device-fails", Problem,
        "The driver refuses the file, for example after the GPU failed to start.",
        ["sudo dmesg | grep -iE 'amdgpu|kfd'"];

    // Windows Subsystem for Linux.
    WSL_DXG, "wsl-dxg", Warning,
        "In WSL, ROCm reaches the GPU through /dev/dxg. WSL 2 creates it if the Windows driver \
         supports it.",
        [
            "wsl.exe --update",
            "wsl.exe --shutdown",
            "# install AMD Software on Windows: https://www.amd.com/en/support"
        ];
    WSL_LIBRARY, "wsl-library", Warning,
        "In WSL, ROCm needs the library librocdxg, which is not a part of ROCm's packages for Linux.",
        ["git clone https://github.com/ROCm/librocdxg", "# build and install it as its README says"];
    WSL_DETECTION, "wsl-detection", Warning,
        "ROCm loads librocdxg if HSA_ENABLE_DXG_DETECTION is 1.",
        ["export HSA_ENABLE_DXG_DETECTION=1"];

    // ROCm's libraries.
    NO_HIP, "no-hip", Warning,
        "The usual folders have no libamdhip64.so, which is HIP.",
        [
            "# install ROCm (docs/guide/install.md lists packages), or if it is elsewhere:",
            "export ROCM_PATH=<its folder>"
        ];
    ROCM_PATH, "rocm-path", Warning,
        "burn-rocm found no HIP in ROCM_PATH, so it silently uses another ROCm if there is one.",
        ["unset ROCM_PATH"];
    MIXED_ROCM, "mixed-rocm", Warning,
        "The loader may take one library from each version. burn-rocm refuses a library that calls \
         another HIP.",
        [
            "grep -rn rocm /etc/ld.so.conf.d",
            "# keep one version there and in LD_LIBRARY_PATH",
            "sudo ldconfig"
        ];

    // Variables.
    OVERRIDE_MALFORMED, "override-malformed", Problem,
        "ROCm wants three numbers, such as 10.3.0, and finds no device otherwise.",
        ["unset {variable}"];
    OVERRIDE_FAMILY, "override-family", Problem,
        "Kernels for another family use instructions that the GPU lacks. They crash or compute wrong \
         results.",
        ["unset {variable}"];
    OVERRIDE_OTHER, "override-other", Warning,
        "Kernels for another chip may crash or compute wrong results, even in one family.",
        ["unset {variable}"];
    OVERRIDE_NEEDLESS, "override-needless", Note,
        "The variable names this GPU's own architecture, so it changes nothing. With another GPU it would.",
        ["unset {variable}"];
    OVERRIDE_ADVISED, "override-advised", Note,
        "rocBLAS has no kernels for this chip, so burn-rocm's own replace it. The chip has gfx1030's \
         instructions, so it can run rocBLAS's kernels for gfx1030.",
        ["export {variable}=10.3.0"];
    NONE_VISIBLE, "none-visible", Problem,
        "HIP sees only the devices in these variables. ROCR_VISIBLE_DEVICES counts first: HIP numbers \
         the devices that it leaves, from 0 on.",
        ["unset {variables}"];
    VISIBLE_UNKNOWN, "visible-unknown", Warning,
        "In the list of devices, ROCm ignores the first one that does not exist, and all after it.",
        ["unset {variables}"];
    VISIBLE_SOME, "visible-some", Note,
        "HIP sees only the devices in these variables.",
        ["unset {variables}"];
    SDMA_OFF, "sdma-off", Warning,
        "Without the copy engines, HIP copies by kernels, which compete with the app's.",
        ["unset HSA_ENABLE_SDMA"];
    XNACK_ON, "xnack-on", Note,
        "With XNACK, kernels can retry page faults, and are compiled for that. They are slower, and \
         libraries may lack them.",
        ["unset HSA_XNACK"];
    MEMORY_PERCENT, "memory-percent", Warning,
        "HIP gives the process, or a single allocation, only this part of the GPU's memory.",
        ["unset {variable}"];
    IGNORED_VARIABLE, "ignored-variable", Note,
        "AMD's old OpenCL read this variable. ROCm's HIP does not.",
        ["unset {variable}"];
    SERIALIZED, "serialized", Warning,
        "HIP waits for each kernel or copy, so the host and the GPU take turns.",
        ["unset {variable}"];
    LOGGING, "logging", Warning,
        "From level 3 on, HIP prints each of its calls, which takes longer than most kernels.",
        ["unset AMD_LOG_LEVEL"];

    // Several GPUs.
    IOMMU, "iommu", Warning,
        "With several GPUs, translation of addresses slows transfers between them, and can make RCCL \
         hang.",
        [
            "sudo sed -i 's/^GRUB_CMDLINE_LINUX=\"/&iommu=pt /' /etc/default/grub",
            "sudo update-grub    # on Fedora: sudo grub2-mkconfig -o /boot/grub2/grub.cfg",
            "sudo reboot"
        ];
    NO_PEER_ACCESS, "no-peer-access", Note,
        "Transfers between these GPUs take a detour through the host's memory. PCIe peer access needs \
         CONFIG_HSA_AMD_P2P, amdgpu.pcie_p2p, a chipset that allows it, and GPUs whose whole memory \
         the bus can address.",
        ["grep CONFIG_HSA_AMD_P2P= /boot/config-$(uname -r)", "cat /sys/module/amdgpu/parameters/pcie_p2p"];
    SMALL_BAR, "small-bar", Note,
        "The host addresses only a part of the GPU's memory. That slows transfers and rules out PCIe \
         peer access.",
        ["# enable \"Above 4G Decoding\" and \"Resizable BAR\" in the firmware's settings"];
    NUMA_BALANCING, "numa-balancing", Note,
        "The kernel moves pages between NUMA nodes while GPUs use them. RCCL warns of it.",
        ["sudo sysctl kernel.numa_balancing=0"];
    SHARED_MEMORY, "shared-memory", Warning,
        "RCCL's processes exchange data through /dev/shm. Docker's default of 64 MB is too little for \
         several GPUs.",
        ["docker run --shm-size=8g <image>", "# or --ipc=host"];
    LOCKED_MEMORY, "locked-memory", Note,
        "RCCL locks memory to transfer it over InfiniBand.",
        ["ulimit -l unlimited    # with Docker: --ulimit memlock=-1"];

    // Windows.
    WINDOWS_DRIVER, "windows-driver", Problem,
        "HIP for Windows is a part of AMD's driver.",
        ["# install AMD Software: https://www.amd.com/en/support"];
    WINDOWS_HIPRTC, "windows-hiprtc", Problem,
        "hipRTC compiles the kernels.",
        [
            "# install the HIP SDK: https://www.amd.com/en/developer/resources/rocm-hub/hip-sdk.html",
            "# or AMD's wheels in the active Python environment: docs/guide/windows.md has the command"
        ];
}
