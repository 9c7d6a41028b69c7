//! The report of the example `device-info` as JSON.

use crate::device::apu::Apu;
use crate::device::info::DeviceInfo;
use crate::device::survey::{ProviderReport, survey};
use crate::doctor::{Finding, doctor};
use crate::error::Error;
use crate::json::Json;
use crate::provider::inventory::{LibraryReport, version};
use crate::provider::{Versions, passed_over, provider, reason};

/// What [`survey`] and [`doctor`] find, and which provider this process uses, as one JSON object.
///
/// | key | value |
/// |---|---|
/// | `version`, `system`, `architecture` | of this crate; of the build |
/// | `provider` | the provider in use, or `null` |
/// | `error` | why no provider can be used, or `null` |
/// | `passed_over` | objects with `provider` and `error`, for those tried before |
/// | `providers` | [`ProviderReport`]s; a value that is not known is `null` |
/// | `findings` | [`Finding`](crate::Finding)s, worst first |
pub fn report_json() -> String {
    let chosen = provider();
    let passed_over = passed_over();
    let passed_over = passed_over.iter().map(|(kind, why)| {
        object(&[("provider", Json(kind.name()).to_string()), ("error", Json(&reason(why)).to_string())])
    });
    object(&[
        ("version", Json(env!("CARGO_PKG_VERSION")).to_string()),
        ("system", Json(std::env::consts::OS).to_string()),
        ("architecture", Json(std::env::consts::ARCH).to_string()),
        ("provider", text(chosen.as_ref().ok().map(|provider| provider.kind().name()))),
        ("error", error(chosen.as_ref().err())),
        ("passed_over", array(passed_over)),
        ("providers", array(survey().iter().map(ProviderReport::to_json))),
        ("findings", array(doctor().iter().map(Finding::to_json))),
    ])
}

impl ProviderReport {
    /// The report as a JSON object. Its keys are this struct's fields, with `provider` for the kind
    /// and `searched` for the places that an error lists. A device has `free_memory` and
    /// `usable_memory` beside its properties.
    pub fn to_json(&self) -> String {
        let versions = self.versions.map(|Versions { runtime, driver, hiprtc: (major, minor) }| {
            object(&[
                ("runtime", Json(&version(runtime)).to_string()),
                ("driver", Json(&version(driver)).to_string()),
                ("hiprtc", Json(&format!("{major}.{minor}")).to_string()),
            ])
        });
        let searched = match &self.error {
            Some(Error::NotAvailable { searched, .. }) => searched.as_slice(),
            _ => &[],
        };
        object(&[
            ("provider", Json(self.kind.name()).to_string()),
            ("error", error(self.error.as_ref())),
            ("searched", array(searched.iter().map(|place| Json(place).to_string()))),
            ("versions", versions.unwrap_or("null".into())),
            ("installation", text(self.installation.as_deref())),
            ("driver", text(self.driver.as_deref())),
            ("libraries", array(self.libraries.iter().map(library))),
            ("devices", array(self.devices.iter().map(|(info, free)| device(info, *free)))),
            ("hints", array(self.hints.iter().map(|hint| Json(hint).to_string()))),
        ])
    }
}

fn library(library: &LibraryReport) -> String {
    let lacks = library.optional.iter().filter(|(_, has)| !has);
    object(&[
        ("title", Json(library.title).to_string()),
        ("path", text(library.path.as_deref().ok())),
        ("error", error(library.path.as_ref().err())),
        ("version", text(library.version.as_deref())),
        ("file_version", text(library.file_version.as_deref())),
        ("missing", array(library.missing.iter().map(|name| Json(name).to_string()))),
        ("lacks", array(lacks.map(|(name, _)| Json(name).to_string()))),
    ])
}

fn device(info: &DeviceInfo, free: Option<usize>) -> String {
    object(&[
        ("index", info.index.to_string()),
        ("name", Json(&info.name).to_string()),
        ("arch", Json(&info.arch).to_string()),
        ("total_memory", info.total_memory.to_string()),
        ("usable_memory", info.usable_memory().to_string()),
        ("apu", info.apu.as_ref().map_or("null".into(), apu)),
        ("free_memory", free.map_or("null".into(), |free| free.to_string())),
        ("compute_units", info.compute_units.to_string()),
        ("warp_size", info.warp_size.to_string()),
        ("max_threads_per_block", info.max_threads_per_block.to_string()),
        ("max_threads_per_compute_unit", info.max_threads_per_compute_unit.to_string()),
        ("shared_memory_per_block", info.shared_memory_per_block.to_string()),
        ("shared_memory_optin", info.shared_memory_optin.to_string()),
        ("driver_version", info.driver_version.to_string()),
        ("runtime_version", info.runtime_version.to_string()),
    ])
}

fn apu(apu: &Apu) -> String {
    let bytes = |bytes: Option<usize>| bytes.map_or("null".into(), |bytes| bytes.to_string());
    object(&[
        ("carve_out", bytes(apu.carve_out)),
        ("gtt", bytes(apu.gtt)),
        ("allocation", Json(apu.allocation.name()).to_string()),
        ("reason", Json(&apu.reason).to_string()),
    ])
}

/// An object of keys and values that are JSON already.
fn object(entries: &[(&str, String)]) -> String {
    let entries: Vec<_> = entries.iter().map(|(key, value)| format!("{}:{value}", Json(key))).collect();
    format!("{{{}}}", entries.join(","))
}

fn array(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn text(text: Option<&str>) -> String {
    text.map_or("null".into(), |text| Json(text).to_string())
}

fn error(error: Option<&Error>) -> String {
    error.map_or("null".into(), |error| Json(&reason(error)).to_string())
}
