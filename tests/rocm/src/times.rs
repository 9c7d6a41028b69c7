//! Compile times, kernel by kernel, with the backend's own options.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use hip::{Compiler, KernelName, code_cache};

use crate::notes::notes_of;
use crate::rules::template_of;
use crate::work::Compiled;

/// The most time for one kernel: twice the aim of 2 s, because the processors that run this check
/// differ by that factor.
const ONE_KERNEL: Duration = Duration::from_secs(4);
/// The most time for the kernels of a small training run with an empty cache: twice the aim of 15
/// s, for the same reason.
const COLD: Duration = Duration::from_secs(30);
/// The most time for these kernels from the cache on disk.
const WARM: Duration = Duration::from_millis(100);

/// Compiles the largest instantiation of each template alone, and then the kernels of a training
/// run, with an empty cache and with a full one. Counts processor time, so that other work on the
/// machine does not matter.
pub(crate) fn check(architecture: &str, compiled: &[Compiled], needed: &str) -> Result<Vec<String>, String> {
    let names: HashMap<String, KernelName> = hip_kernels::families()
        .iter()
        .flat_map(|family| family.instantiations())
        .map(|name| (name.to_string(), name))
        .collect();
    let compiler = Compiler::load().map_err(|error| error.to_string())?;
    let mut problems = Vec::new();

    let mut slowest = (Duration::ZERO, String::new());
    let mut alone = 0;
    for one in most_registers(architecture, compiled) {
        let name = names.get(&one.kernel).ok_or("a kernel that the table does not list")?;
        let start = processor_time();
        let object = compiler.compile(architecture, &[*name]).map_err(|error| error.to_string())?;
        let time = processor_time() - start;
        alone += 1;
        if time > ONE_KERNEL {
            problems.push(format!("{name} takes {time:.1?} to compile, more than {ONE_KERNEL:.0?}"));
        }
        if time > slowest.0 {
            slowest = (time, one.kernel.clone());
        }
        // The notes of kernels that were compiled together apply to each. Kernels that are not
        // templates are always there.
        let notes = notes_of(&object.code)?;
        if !notes.contains(&one.notes) {
            problems.push(format!(
                "{name} has other notes when it is compiled alone: {notes:?}, not {:?}",
                one.notes
            ));
        }
    }
    println!(
        "{alone} kernels compiled alone for {architecture}: the slowest takes {:.2?}, {}",
        slowest.0, slowest.1
    );

    let needed: Vec<KernelName> = needed
        .lines()
        .map(|line| names.get(line).copied().ok_or_else(|| format!("not in the table: {line}")))
        .collect::<Result<_, _>>()?;
    let pass = || -> Result<(Duration, Duration), String> {
        let (wall, start) = (Instant::now(), processor_time());
        for &name in &needed {
            compiler.get(architecture, name).map_err(|error| error.to_string())?;
        }
        Ok((processor_time() - start, wall.elapsed()))
    };
    let cache = code_cache();
    cache.clear();
    let cold = pass()?;
    let compiled = cache.stats();
    let warm = pass()?;
    let hits = cache.stats().hits - compiled.hits;
    println!(
        "{} kernels of a training run for {architecture}: {:.2?} of processor time cold ({:.2?} on the clock), \
         {:.1?} from disk ({:.1?})",
        needed.len(),
        cold.0,
        cold.1,
        warm.0,
        warm.1
    );
    if needed.is_empty() || hits != needed.len() as u64 {
        problems.push(format!("{hits} of {} kernels came from the cache the second time", needed.len()));
    }
    if cold.0 > COLD {
        problems.push(format!("the training run's kernels take {:.1?} cold, more than {COLD:.0?}", cold.0));
    }
    if warm.0 > WARM {
        problems.push(format!("they take {:.1?} from disk, more than {WARM:.0?}", warm.0));
    }
    Ok(problems)
}

/// The instantiation of each template with the most registers on an architecture. It is among the
/// slowest to compile.
fn most_registers<'a>(architecture: &str, compiled: &'a [Compiled]) -> Vec<&'a Compiled> {
    let mut found: HashMap<&str, &Compiled> = HashMap::new();
    for one in compiled.iter().filter(|one| one.architecture == architecture) {
        let most = found.entry(template_of(&one.kernel)).or_insert(one);
        if (one.notes.vgprs, &one.kernel) > (most.notes.vgprs, &most.kernel) {
            *most = one;
        }
    }
    let mut found: Vec<&Compiled> = found.into_values().collect();
    found.sort_by(|a, b| a.kernel.cmp(&b.kernel));
    found
}

/// The processor time of this process so far.
fn processor_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the function writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
