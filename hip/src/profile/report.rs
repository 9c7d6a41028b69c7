//! A finished profile.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fmt, io, path::Path};

use crate::profile::chrome;
use crate::profile::names;
use crate::profile::session::{Collected, Session, Sums};
use crate::profile::work::{Key, WorkKind};
use crate::watch::now;
use crate::whole_file;

/// How finely [`Profile::rows`] tells work apart. Each also tells apart what the one before does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// By device, op and dtype.
    Op,
    /// By kind, and by kernel or library function.
    Work,
    /// By the shapes of the op's tensors.
    Shapes,
    /// By the app's call site, if [`Config::profile_call_sites`](crate::Config::profile_call_sites)
    /// asks for it.
    CallSite,
    /// By region.
    Region,
}

/// Equal pieces of work, and their time on the device.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The device's index.
    pub device: usize,
    /// The path of its regions, such as `train/forward`; empty outside a region.
    pub region: Arc<str>,
    /// The op. For one launch of several ops, their names are joined by ` + `. Empty outside an
    /// op.
    pub op: Arc<str>,
    /// The dtype of the op's first tensor; empty if it takes none.
    pub dtype: &'static str,
    /// The kind of work; `None` in rows that may join several kinds.
    pub kind: Option<WorkKind>,
    /// The kernel, the library's function (with its sizes for a product), or what else was done.
    pub work: Arc<str>,
    /// The shapes of the op's tensors, in the order of its arguments; empty if it takes none. A
    /// launch of several ops has the first op's.
    pub shapes: Arc<str>,
    /// Where the app called the op, such as `src/model.rs:31 app::Model::forward`: the innermost
    /// function outside Burn, this project and Rust's libraries. A launch of several ops has the
    /// first op's. Without line tables it is the function alone. Empty unless
    /// [`Config::profile_call_sites`](crate::Config::profile_call_sites) asks for it.
    pub site: Arc<str>,
    /// How often it was enqueued.
    pub calls: u64,
    /// The calls whose time is known, alone or as a part. The times and sums below are theirs.
    pub timed: u64,
    /// The timed calls that shared an event with others ([`profile`](crate::profile()) says when).
    /// Each has a part of the time that they took together.
    pub shared: u64,
    /// Their time on the device.
    pub total: Duration,
    /// The shortest.
    pub least: Duration,
    /// The longest.
    pub most: Duration,
    /// The bytes that they read and wrote, where each operand counts once; `None` if it is known
    /// of no call.
    pub bytes: Option<u64>,
    /// Their floating-point operations; `None` if it is known of no call.
    pub flops: Option<u64>,
    /// For a graph: what one launch runs, each with how often. Empty if the profile did not run
    /// during the graph's capture.
    pub contains: Vec<(String, u64)>,
    bytes_time: Duration,
    flops_time: Duration,
}

impl Row {
    /// The mean time of a call; zero if none is known.
    pub fn average(&self) -> Duration {
        self.total.checked_div(self.timed.try_into().unwrap_or(u32::MAX)).unwrap_or_default()
    }

    /// Bytes a second, over the calls whose bytes are known.
    pub fn bytes_per_second(&self) -> Option<f64> {
        rate(self.bytes, self.bytes_time)
    }

    /// Floating-point operations a second, over the calls whose operations are known.
    pub fn flops_per_second(&self) -> Option<f64> {
        rate(self.flops, self.flops_time)
    }
}

fn rate(count: Option<u64>, time: Duration) -> Option<f64> {
    let rate = count? as f64 / time.as_secs_f64();
    rate.is_finite().then_some(rate)
}

/// A named region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionTime {
    /// Its name behind those of the regions that it was entered in, such as `train/forward`.
    pub path: Arc<str>,
    /// How often it was entered and left.
    pub calls: u64,
    /// The host's time in it.
    pub host: Duration,
    /// The device's time for the work that was enqueued in it and in the regions inside it.
    pub device: Duration,
}

/// A device's part of a profile.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceTime {
    /// The device's index.
    pub device: usize,
    /// The sum of the times of its work. Work on different streams may overlap.
    pub total: Duration,
    /// Bytes a second of its memory, if [`measure_bandwidth`](crate::Device::measure_bandwidth) has
    /// measured them.
    pub bandwidth: Option<f64>,
}

/// What the devices did during a call of [`profile`](crate::profile()), or since the process began.
/// It prints as a table.
#[derive(Clone)]
pub struct Profile {
    wall: Duration,
    rows: Vec<Row>,
    regions: Vec<RegionTime>,
    devices: Vec<DeviceTime>,
    begun: u64,
    collected: Arc<Collected>,
}

static BANDWIDTHS: Mutex<BTreeMap<usize, f64>> = Mutex::new(BTreeMap::new());

/// Keeps the measured bytes a second of a device for later profiles.
pub(crate) fn keep_bandwidth(device: usize, rate: f64) {
    BANDWIDTHS.lock().unwrap_or_else(PoisonError::into_inner).insert(device, rate);
}

impl Profile {
    /// What a session has collected so far.
    pub(crate) fn of(session: &Session) -> Self {
        let wall = Duration::from_nanos(now().saturating_sub(session.begun));
        let collected = Arc::new(session.collected().clone());
        let mut rows: Vec<Row> =
            collected.rows.iter().map(|(key, sums)| row(&collected, key, sums)).collect();
        sort(&mut rows);
        let bandwidths = BANDWIDTHS.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut devices = BTreeMap::<usize, Duration>::new();
        for row in &rows {
            *devices.entry(row.device).or_default() += row.total;
        }
        let devices = devices.into_iter().map(|(device, total)| DeviceTime {
            device,
            total,
            bandwidth: bandwidths.get(&device).copied(),
        });
        let mut regions: Vec<RegionTime> = Vec::new();
        for (&region, visits) in &collected.regions {
            let path = names::string(region);
            let inside = |other: &str| {
                other.strip_prefix(&*path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let device = rows.iter().filter(|row| inside(&row.region)).map(|row| row.total).sum();
            regions.push(RegionTime {
                calls: visits.calls,
                host: Duration::from_nanos(visits.host),
                device,
                path,
            });
        }
        regions.sort_by(|a, b| a.path.cmp(&b.path));
        Self { wall, devices: devices.collect(), rows, regions, begun: session.begun, collected }
    }

    /// The host's time from the beginning to the end of the last work.
    pub fn wall(&self) -> Duration {
        self.wall
    }

    /// The work, the longest total first.
    pub fn rows(&self, detail: Detail) -> Vec<Row> {
        if detail == Detail::Region {
            return self.rows.clone();
        }
        let mut joined: HashMap<_, Row> = HashMap::new();
        for row in &self.rows {
            let (works, shapes) = (detail >= Detail::Work, detail >= Detail::Shapes);
            let row = Row {
                region: Arc::default(),
                kind: row.kind.filter(|_| works),
                work: if works { row.work.clone() } else { Arc::default() },
                shapes: if shapes { row.shapes.clone() } else { Arc::default() },
                site: if detail >= Detail::CallSite { row.site.clone() } else { Arc::default() },
                contains: if works { row.contains.clone() } else { Vec::new() },
                ..row.clone()
            };
            let texts = [&row.op, &row.work, &row.shapes, &row.site].map(Arc::clone);
            let key = (row.device, row.dtype, row.kind, texts);
            match joined.get_mut(&key) {
                Some(first) => join(first, &row),
                None => drop(joined.insert(key, row)),
            }
        }
        let mut rows: Vec<Row> = joined.into_values().collect();
        sort(&mut rows);
        rows
    }

    /// The regions that were left, by path.
    pub fn regions(&self) -> &[RegionTime] {
        &self.regions
    }

    /// The devices that worked.
    pub fn devices(&self) -> &[DeviceTime] {
        &self.devices
    }

    /// The timeline in the format that Perfetto and `chrome://tracing` open: ops and regions by
    /// thread, work by stream, and each device's memory. It has the first 1,048,576 entries.
    ///
    /// The format: <https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU>
    pub fn chrome_trace(&self) -> String {
        chrome::write(&self.collected, self.begun)
    }

    /// Writes [`chrome_trace`](Self::chrome_trace) to a file.
    ///
    /// # Errors
    /// The system's, if the file can't be written. What was there before stays then.
    pub fn write_chrome_trace(&self, path: impl AsRef<Path>) -> io::Result<()> {
        whole_file::write(path.as_ref(), &self.chrome_trace())
    }
}

fn row(collected: &Collected, key: &Key, sums: &Sums) -> Row {
    let nanos = Duration::from_nanos;
    let contents = collected.graphs.get(&key.name).filter(|_| key.kind == WorkKind::Graph);
    let shown = |(key, count): &(Key, u64)| {
        let (op, name) = (names::string(key.who.op), names::string(key.name));
        (if op.is_empty() { name.to_string() } else { format!("{op}: {name}") }, *count)
    };
    Row {
        device: key.device,
        region: names::string(key.who.region),
        op: names::string(key.who.op),
        dtype: key.who.dtype,
        kind: Some(key.kind),
        work: names::string(key.name),
        shapes: names::shapes_string(key.who.shapes).into(),
        site: names::string(key.who.site),
        calls: sums.calls,
        timed: sums.timed,
        shared: sums.shared,
        total: nanos(sums.total),
        least: nanos(sums.least),
        most: nanos(sums.most),
        bytes: Some(sums.load.bytes).filter(|&bytes| bytes > 0),
        flops: Some(sums.load.flops).filter(|&flops| flops > 0),
        contains: contents.map(|contents| contents.iter().map(shown).collect()).unwrap_or_default(),
        bytes_time: nanos(sums.bytes_time),
        flops_time: nanos(sums.flops_time),
    }
}

fn join(row: &mut Row, other: &Row) {
    let sum = |a: Option<u64>, b: Option<u64>| a.into_iter().chain(b).reduce(|a, b| a + b);
    row.least = match (row.timed, other.timed) {
        (0, _) => other.least,
        (_, 0) => row.least,
        _ => row.least.min(other.least),
    };
    row.most = row.most.max(other.most);
    row.calls += other.calls;
    row.timed += other.timed;
    row.shared += other.shared;
    row.total += other.total;
    row.bytes = sum(row.bytes, other.bytes);
    row.flops = sum(row.flops, other.flops);
    row.bytes_time += other.bytes_time;
    row.flops_time += other.flops_time;
}

fn sort(rows: &mut [Row]) {
    let name = |row: &Row| (row.device, row.op.clone(), row.work.clone(), row.shapes.clone());
    rows.sort_by(|a, b| b.total.cmp(&a.total).then_with(|| name(a).cmp(&name(b))));
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile")
            .field("wall", &self.wall)
            .field("devices", &self.devices)
            .field("regions", &self.regions)
            .field("rows", &self.rows)
            .finish_non_exhaustive()
    }
}
