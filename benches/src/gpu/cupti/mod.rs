//! A profile of training steps held against CUPTI's record of the same steps, on an NVIDIA GPU:
//! which share of the GPU's busy time lies in work that the profile names.
//!
//! A memset of a length that nothing else has begins and ends the steps. Both records have it,
//! which aligns their clocks.

mod library;

use std::collections::BTreeMap;

use burn_rocm::profile::Profile;
use burn_rocm::{RocmDevice, profile};
use serde_json::Value;

use self::library::{Activity, Cupti};
use super::cases::Case;
use super::steps;
use crate::Options;
use crate::cases::sync;

/// The bytes of the memset before and after the steps.
const MARK: usize = (1 << 30) + 4352;

/// Steps of each row.
const CALLS: usize = 20;

/// The share that the profile must name.
const AIM: f64 = 0.99;

/// The most kernels that are listed.
const LISTED: usize = 12;

/// Work of the profile, in nanoseconds of its clock.
#[derive(Debug)]
struct Work {
    name: String,
    op: String,
    bytes: u64,
    start: f64,
    end: f64,
}

/// What became of a kernel's launches, by CUPTI's name of it.
#[derive(Default)]
struct Kernel<'a> {
    calls: u64,
    /// Nanoseconds, and those of them that lie in no work of the profile.
    time: f64,
    unnamed: f64,
    /// The launches in each of the profile's works.
    pieces: BTreeMap<&'a str, u64>,
}

/// Prints a report for each training step that the options name.
///
/// # Errors
/// An error text if CUPTI can't be opened or fails, or if the device's work is not in its record.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    let Some(path) = &options.cupti else { return Ok(()) };
    // Never closed: CUPTI's thread may call the callbacks until the process ends.
    let cupti = std::mem::ManuallyDrop::new(Cupti::open(path)?);
    let device = RocmDevice::default();
    for case in steps::cases(options) {
        eprintln!("{}", case.name);
        report(&cupti, case, &device)?;
    }
    Ok(())
}

fn report(cupti: &Cupti, case: Case<burn_rocm::Rocm>, device: &RocmDevice) -> Result<(), String> {
    let mut body = (case.make)(device).body;
    // The first steps compile, and let the libraries choose.
    (0..8).for_each(|_| body());
    let gpu = hip::Device::get(device.index).map_err(|error| error.to_string())?;
    let mark = gpu.alloc(MARK).map_err(|error| error.to_string())?;
    sync::<burn_rocm::Rocm>(device);
    let (profiled, activities) = cupti.during(|| {
        profile(|| -> hip::Result<()> {
            gpu.fill_bytes(&mark, 0, 0, MARK)?;
            (0..CALLS).for_each(|_| body());
            gpu.fill_bytes(&mark, 0, 0, MARK)
        })
    })?;
    let (result, profile) = profiled;
    result.map_err(|error| error.to_string())?;
    println!("\n## {}, {CALLS} steps\n", case.name);
    print!("{}", compare(&activities, &works(&profile)?)?);
    Ok(())
}

/// The device's work in a profile's timeline.
fn works(profile: &Profile) -> Result<Vec<Work>, String> {
    let trace: Value = serde_json::from_str(&profile.chrome_trace()).map_err(|error| error.to_string())?;
    let left_out = trace["otherData"]["entries left out"].as_u64().unwrap_or(0);
    if left_out > 0 {
        return Err(format!("the timeline lacks {left_out} entries: profile fewer steps"));
    }
    let events = trace["traceEvents"].as_array().ok_or("a timeline without events")?;
    let on_device = |event: &&Value| event["ph"] == "X" && event["pid"].as_u64() > Some(1);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nanos = |value: &Value| value.as_f64().unwrap_or_default() * 1e3;
    let work = |event: &Value| Work {
        name: text(&event["name"]),
        op: text(&event["args"]["op"]),
        bytes: event["args"]["bytes"].as_u64().unwrap_or(0),
        start: nanos(&event["ts"]),
        end: nanos(&event["ts"]) + nanos(&event["dur"]),
    };
    let mut works: Vec<Work> = events.iter().filter(on_device).map(work).collect();
    works.sort_by(|a, b| a.start.total_cmp(&b.start));
    Ok(works)
}

/// Intervals that overlap or touch, joined. They come sorted by their beginning.
fn union(intervals: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (start, end) in intervals {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// How much of an interval lies in disjoint sorted intervals.
fn inside((start, end): (f64, f64), of: &[(f64, f64)]) -> f64 {
    let first = of.partition_point(|other| other.1 <= start);
    of[first..]
        .iter()
        .take_while(|other| other.0 < end)
        .map(|other| other.1.min(end) - other.0.max(start))
        .sum()
}

fn total(of: &[(f64, f64)]) -> f64 {
    of.iter().map(|(start, end)| end - start).sum()
}

/// The comparison as text.
fn compare(activities: &[Activity], works: &[Work]) -> Result<String, String> {
    let marks = |found: Vec<(f64, f64)>, whose: &str| match found[..] {
        [first, .., last] => Ok((first, last)),
        _ => Err(format!("{whose} has no memset of {MARK} bytes twice")),
    };
    let of_cupti = |a: &Activity| (a.start as f64, a.end as f64);
    let cupti_marks =
        activities.iter().filter(|a| a.name == "memset" && a.bytes == MARK as u64).map(of_cupti);
    let own_marks = works.iter().filter(|w| w.name == "memset" && w.bytes == MARK as u64);
    let (first, last) = marks(cupti_marks.collect(), "CUPTI's record")?;
    let (own_first, own_last) = marks(own_marks.map(|w| (w.start, w.end)).collect(), "the profile")?;
    // From the end of the first mark to the beginning of the last one, on CUPTI's clock.
    let scale = (last.1 - first.1) / (own_last.1 - own_first.1);
    let at = |own: f64| first.1 + (own - own_first.1) * scale;
    let steps: Vec<&Activity> =
        activities.iter().filter(|a| a.start as f64 >= first.1 && a.end as f64 <= last.0).collect();
    let named = |with_op: bool| {
        let works = works.iter().filter(move |work| !with_op || !work.op.is_empty());
        union(works.map(|work| (at(work.start), at(work.end))))
    };
    let (by_work, by_op) = (named(false), named(true));
    let busy = union(steps.iter().map(|a| of_cupti(a)));
    let covered = |of: &[(f64, f64)]| busy.iter().map(|&part| inside(part, of)).sum::<f64>();
    let (all, in_work, in_op) = (total(&busy), covered(&by_work), covered(&by_op));
    let ms = |nanos: f64| nanos / 1e6;
    let own_time: f64 = works.iter().filter(|w| w.bytes != MARK as u64).map(|w| w.end - w.start).sum();
    let mut text = format!(
        "- CUPTI's clock runs {scale:.6} times as fast as the profile's\n\
         - busy by CUPTI: {:.3} ms, {} kernels, copies and memsets, in {:.3} ms\n\
         - the profile: {:.3} ms in {} pieces of work\n\
         - in work that the profile names: {:.3} ms, {:.2} % ({})\n\
         - in work of an op: {:.3} ms, {:.2} %\n",
        ms(all),
        steps.len(),
        ms(last.0 - first.1),
        ms(own_time),
        works.len().saturating_sub(2),
        ms(in_work),
        100.0 * in_work / all,
        if in_work >= AIM * all { "ok" } else { "MISSED" },
        ms(in_op),
        100.0 * in_op / all,
    );
    text +=
        "\n| kernel by CUPTI | calls | ms | ms without a name | most often in |\n|---|---:|---:|---:|---|\n";
    let mut kernels: BTreeMap<&str, Kernel<'_>> = BTreeMap::new();
    for activity in &steps {
        let part = of_cupti(activity);
        let kernel = kernels.entry(&activity.name).or_default();
        kernel.calls += 1;
        kernel.time += part.1 - part.0;
        kernel.unnamed += part.1 - part.0 - inside(part, &by_work);
        let middle = (part.0 + part.1) / 2.0;
        let before = works.partition_point(|work| at(work.start) <= middle);
        if let Some(work) = works[..before].last().filter(|work| at(work.end) >= middle) {
            *kernel.pieces.entry(&work.name).or_default() += 1;
        }
    }
    let mut kernels: Vec<_> = kernels.into_iter().collect();
    // Those without a name first, then those that take longest.
    kernels.sort_by(|(_, a), (_, b)| {
        b.unnamed.max(0.0).total_cmp(&a.unnamed.max(0.0)).then(b.time.total_cmp(&a.time))
    });
    let most = kernels.len().min(LISTED);
    for (name, Kernel { calls, time, unnamed, pieces }) in &kernels[..most] {
        let short: String = name.chars().take(70).collect();
        let piece = pieces.iter().max_by_key(|(_, count)| **count).map_or("-", |(piece, _)| piece);
        text += &format!("| `{short}` | {calls} | {:.3} | {:.3} | {piece} |\n", ms(*time), ms(*unnamed));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activity(name: &str, bytes: u64, start: u64, end: u64) -> Activity {
        Activity { name: name.into(), bytes, start, end }
    }

    fn work(name: &str, op: &str, bytes: u64, start: f64, end: f64) -> Work {
        Work { name: name.into(), op: op.into(), bytes, start, end }
    }

    #[test]
    fn intervals_join_and_overlap() {
        let joined = union([(0.0, 2.0), (1.0, 3.0), (3.0, 4.0), (6.0, 7.0)].into_iter());
        assert_eq!(joined, [(0.0, 4.0), (6.0, 7.0)]);
        assert_eq!([(-1.0, 1.0), (3.0, 6.5), (4.0, 6.0)].map(|part| inside(part, &joined)), [1.0, 1.5, 0.0]);
        assert_eq!(total(&joined), 5.0);
    }

    /// CUPTI's clock shows 1,000,000 more and runs at half the speed.
    #[test]
    fn what_the_profile_lacks_has_no_name() {
        let mark = MARK as u64;
        let on = |at: u64| 1_000_000 + at / 2;
        let activities = [
            activity("memset", mark, on(0), on(1000)),
            activity("gemm", 0, on(2000), on(6000)),
            activity("hidden", 0, on(7000), on(8000)),
            activity("add", 0, on(8000), on(11_000)),
            activity("memset", mark, on(12_000), on(13_000)),
        ];
        let works = [
            work("memset", "", mark, 0.0, 1000.0),
            work("rocblas_sgemm", "float_matmul", 7, 1000.0, 7000.0),
            work("binary_contiguous", "", 7, 8000.0, 12_000.0),
            work("memset", "", mark, 12_000.0, 13_000.0),
        ];
        let text = compare(&activities, &works).unwrap();
        // 7 of 8 us have a name, 4 have an op.
        for part in ["87.50 % (MISSED)", "in work of an op: 0.002 ms, 50.00 %", "runs 0.500000 times"] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let hidden = text.lines().position(|line| line.starts_with("| `hidden` | 1 | 0.001 | 0.001 | - |"));
        let gemm = text.lines().position(|line| line.contains("| rocblas_sgemm |"));
        assert!(hidden.zip(gemm).is_some_and(|(hidden, gemm)| hidden < gemm), "{text}");

        assert!(compare(&activities[1..], &works).unwrap_err().contains("CUPTI's record has no memset"));
        assert!(compare(&activities, &works[1..]).unwrap_err().contains("the profile has no memset"));
    }

    #[test]
    fn a_library_that_is_missing_is_an_error() {
        let error = Cupti::open(std::path::Path::new("no/libcupti.so")).err().unwrap();
        assert!(error.starts_with("no/libcupti.so: "), "{error}");
    }
}
