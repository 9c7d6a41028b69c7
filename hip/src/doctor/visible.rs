//! Environment variables that hide devices.
//!
//! ROCr filters first. HIP then numbers what is left from 0 on, and filters by
//! `HIP_VISIBLE_DEVICES`, or if that is empty, by `CUDA_VISIBLE_DEVICES`. Each list ends at the
//! first entry that names no device. Sources, in <https://github.com/ROCm/rocm-systems>:
//! `amd_filter_device.cpp` (ROCr) and `rocclr/device/rocm/rocdevice.cpp` (HIP).
//!
//! AMD's documentation says that HIP obeys `GPU_DEVICE_ORDINAL` too. The source says that only
//! OpenCL does. So a mistake there is a warning at most.

use crate::doctor::checks;
use crate::doctor::finding::Finding;
use crate::doctor::system::System;
use crate::provider::names::System as Kind;

/// What a list leaves.
struct Left {
    /// Indices among all GPUs.
    devices: Vec<usize>,
    /// The first entry that names no device.
    unknown: Option<String>,
}

/// `gpus` has a unique number for each GPU, or 0. It is empty if the GPUs are not known.
pub(super) fn examine(system: &System, gpus: &[u64], findings: &mut Vec<Finding>) {
    let set = |name: &str| system.variable(name).filter(|value| !value.is_empty());
    let rocr = if system.kind == Kind::Windows { None } else { system.variable("ROCR_VISIBLE_DEVICES") };
    let hip = ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"];
    let hip = hip.iter().find_map(|name| Some((*name, set(name)?)));
    let mut chain: Vec<(&str, String)> = Vec::new();
    chain.extend(rocr.map(|value| ("ROCR_VISIBLE_DEVICES", value)));
    chain.extend(hip);
    let shown = |chain: &[(&str, String)]| {
        let all: Vec<_> = chain.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let names: Vec<_> = chain.iter().map(|(name, _)| *name).collect();
        (all.join(" "), names.join(" "))
    };
    let all: Vec<usize> = (0..gpus.len()).collect();
    let (mut left, mut unknown) = (all.clone(), None);
    let mut hidden = false;
    for (name, value) in &chain {
        let next = select(value, &left, gpus);
        hidden |= next.devices.is_empty();
        unknown = unknown.or(next.unknown.map(|entry| (*name, value.clone(), entry)));
        left = next.devices;
    }
    let (text, names) = shown(&chain);
    let words = [("variables", names.as_str())];
    if hidden && !(gpus.is_empty() && may_leave_some(&chain)) {
        findings.push(checks::NONE_VISIBLE.found(format!("{text} hides all GPUs"), &words));
    } else if let (Some((name, value, entry)), false) = (unknown, gpus.is_empty()) {
        let what = format!("{name}={value}: there is no device {entry}");
        findings.push(checks::VISIBLE_UNKNOWN.found(what, &[("variables", name)]));
    } else if !chain.is_empty() && (gpus.is_empty() || left.len() < all.len()) {
        let what = match gpus.len() {
            0 => format!("{text} is set"),
            count => format!("{text} leaves {} of {count} GPUs", left.len()),
        };
        findings.push(checks::VISIBLE_SOME.found(what, &words));
    }
    if let Some(value) = set("GPU_DEVICE_ORDINAL") {
        let words = [("variables", "GPU_DEVICE_ORDINAL")];
        let own = select(&value, &all, gpus);
        if let (Some(entry), false) = (own.unknown, gpus.is_empty()) {
            let what = format!("GPU_DEVICE_ORDINAL={value}: there is no device {entry}");
            findings.push(checks::VISIBLE_UNKNOWN.found(what, &words));
        } else if gpus.is_empty() || own.devices.len() < all.len() {
            findings.push(checks::VISIBLE_SOME.found(format!("GPU_DEVICE_ORDINAL={value} is set"), &words));
        }
    }
}

/// What a list leaves of `devices`.
fn select(list: &str, devices: &[usize], gpus: &[u64]) -> Left {
    let mut left = Left { devices: Vec::new(), unknown: None };
    for entry in list.split(',').map(str::trim).filter(|_| !list.is_empty()) {
        let position = match entry.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("GPU-")) {
            true => devices.iter().position(|&device| is_named(entry, gpus[device])),
            false => entry.parse::<usize>().ok().filter(|&index| index < devices.len()),
        };
        match position.map(|position| devices[position]) {
            Some(device) if !left.devices.contains(&device) => left.devices.push(device),
            // A device that comes twice ends the list too, but is no unknown one.
            Some(_) => break,
            None => {
                left.unknown = Some(entry.to_owned());
                break;
            }
        }
    }
    left
}

/// Whether an entry such as `GPU-4b2c1a9f` is the beginning of a GPU's name.
fn is_named(entry: &str, unique_id: u64) -> bool {
    unique_id != 0 && format!("GPU-{unique_id:016X}").starts_with(&entry.to_uppercase())
}

/// Whether each list begins with what may be a device, if the devices are not known.
fn may_leave_some(chain: &[(&str, String)]) -> bool {
    chain.iter().all(|(_, value)| {
        let first = value.split(',').next().unwrap_or_default().trim();
        first.parse::<usize>().is_ok() || first.to_uppercase().starts_with("GPU-")
    })
}
