//! Checkpoints of a sharded optimizer. Each rank writes its part, and any number of ranks reads them.
//!
//! A checkpoint is a folder. `rank-N.safetensors` has the pieces of rank `N`: flat tensors with names
//! `PARAMETER.KIND.BEGIN`, where `PARAMETER` is the parameter's index in the order of the model,
//! `KIND` is `value` or the number of a state tensor, and `BEGIN` is the piece's first element. So a
//! reader needs to know nothing of how the writers divided the parameters. The file's metadata has the
//! XXH3 hash of each piece's bytes, and a reader checks every piece that it reads. `index.json` lists the
//! parameters and says how many ranks have written. Rank 0 writes it after all ranks have written
//! their files, and then gives the folder its final name. So a folder of that name is whole.
//!
//! Until then the folder's name ends in `.partial-TOKEN`. Rank 0 draws the token for each save. So
//! groups that save to one path at once never write into one folder: the first one gets the name, and
//! the others get an error. A save that fails removes its folder. If its process dies, the folder
//! stays, because another process can't know whether the save still runs.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};

use burn_backend::{DType, TensorData};
use burn_rocm::fused::optim::{Adam, Decay, Rule, State};
use burn_rocm::fused::{read_all, upload};
use burn_rocm::{RocmError, RocmTensor};
use safetensors::tensor::{Dtype, Metadata, TensorView, serialize_to_file};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::parallel::{all_are, of_rank_0};
use super::sharded::{Bucket, Sharded};

const VERSION: u32 = 2;
const INDEX: &str = "index.json";

/// What a checkpoint holds.
#[derive(Debug, Serialize, Deserialize)]
struct Index {
    version: u32,
    /// The number of ranks that wrote it, which is the number of their files.
    ranks: usize,
    optimizer: String,
    /// The steps that the optimizer has counted.
    steps: usize,
    /// The number of state tensors of each parameter.
    states: usize,
    parameters: Vec<Parameter>,
    /// Earlier versions did not write it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    paths: Option<Paths>,
}

/// Where a model has its parameters, such as `layers.0.weight`, in their order. Only the path tells
/// two parameters of one shape and dtype apart. Paths of different kinds can't be compared.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Paths {
    /// Within the module of a `ShardedOptimizer`.
    Module(Vec<String>),
    /// Within the units of a `ShardedModel`, after the unit's name.
    Units(Vec<String>),
}

impl Paths {
    /// Both lists, or `None` if their kinds differ.
    fn beside<'a>(&'a self, other: &'a Self) -> Option<(&'a [String], &'a [String])> {
        match (self, other) {
            (Self::Module(own), Self::Module(other)) | (Self::Units(own), Self::Units(other)) => {
                Some((own, other))
            }
            _ => None,
        }
    }
}

#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Parameter {
    shape: Vec<usize>,
    dtype: String,
}

impl Sharded {
    /// Writes the parameters, which have these paths, and the optimizer's state into a new folder.
    /// Waits for the device.
    ///
    /// # Errors
    /// `Config` if the folder exists, or if a rank can't write; as [`Sharded::step`].
    pub(crate) fn save(
        &mut self,
        folder: &Path,
        params: &[RocmTensor],
        paths: Paths,
        rule: Rule,
    ) -> Result<(), RocmError> {
        let values = self.plan(params);
        let values = values.and_then(|()| (0..self.buckets.len()).map(|at| self.value(at, params)).collect());
        self.save_values(folder, values, paths, rule)
    }

    /// [`save`](Self::save) with this rank's part of each bucket.
    pub(super) fn save_values(
        &self,
        folder: &Path,
        values: Result<Vec<RocmTensor>, RocmError>,
        paths: Paths,
        rule: Rule,
    ) -> Result<(), RocmError> {
        let (rank, first) = (self.communicator.rank(), self.communicator.rank() == 0);
        // Also on a rank that lacks its values: the others wait for this call.
        let token = of_rank_0(&self.communicator, &[RandomState::new().build_hasher().finish() as usize]);
        let begun = token.and_then(|token| Ok((values?, Partial::begin(folder, &token, first)?)));
        let (values, partial) = self.agree(folder, begun)?;
        let written = self.write(&partial.path.join(file_name(rank)), values);
        self.agree(folder, written)?;
        let ended = if first { self.end(folder, &partial.path, paths, rule) } else { Ok(()) };
        self.agree(folder, ended)
    }

    /// Writes this rank's pieces.
    fn write(&self, path: &Path, values: Vec<RocmTensor>) -> Result<(), RocmError> {
        let mut tensors = Vec::new();
        let mut counts = Vec::new();
        for (bucket, value) in self.buckets.iter().zip(values) {
            tensors.push(value);
            tensors.extend(bucket.state.tensors.iter().cloned());
            counts.push(1 + bucket.state.tensors.len());
        }
        let mut read = read_all(tensors)?.into_iter();
        let mut parts = Vec::new();
        for (bucket, count) in self.buckets.iter().zip(counts) {
            let kinds: Vec<TensorData> = read.by_ref().take(count).collect();
            parts.push((bucket.wide(), self.pieces(bucket), kinds));
        }
        let mut views = Vec::new();
        let mut sums = HashMap::new();
        for (dtype, pieces, kinds) in &parts {
            let size = dtype.size();
            for Piece { parameter, elements, at } in pieces {
                for (kind, data) in kinds.iter().enumerate() {
                    let bytes = &data.as_bytes()[at * size..(at + elements.len()) * size];
                    let view = TensorView::new(to_file(*dtype)?, vec![elements.len()], bytes);
                    let view = view.map_err(|error| failed(path, &error))?;
                    let name = name(*parameter, kind, elements.start);
                    sums.insert(name.clone(), sum(bytes));
                    views.push((name, view));
                }
            }
        }
        // A rank without a piece writes an empty file, which has no metadata.
        let sums = Some(sums).filter(|sums| !sums.is_empty());
        serialize_to_file(views, sums, path).map_err(|error| failed(path, &error))?;
        on_disk(path)
    }

    /// Writes the index and gives the folder its name.
    fn end(&self, folder: &Path, partial: &Path, paths: Paths, rule: Rule) -> Result<(), RocmError> {
        let mut steps = 0;
        let mut states = 0;
        for bucket in &self.buckets {
            steps = steps.max(bucket.state.steps()?);
            states = bucket.state.tensors.len();
        }
        let index = Index {
            version: VERSION,
            ranks: self.communicator.size(),
            optimizer: rule_name(rule).into(),
            steps,
            states,
            parameters: self.described(),
            paths: Some(paths),
        };
        let path = partial.join(INDEX);
        let text = serde_json::to_string_pretty(&index).map_err(|error| failed(&path, &error))?;
        fs::write(&path, text).map_err(|error| failed(&path, &error))?;
        on_disk(&path)?;
        folder_on_disk(partial)?;
        fs::rename(partial, folder).map_err(|error| match folder.exists() {
            // Another group has saved there meanwhile.
            true => exists(folder),
            false => failed(folder, &error),
        })?;
        folder.parent().map_or(Ok(()), folder_on_disk)
    }

    /// Reads the parameters, which have these paths, and the optimizer's state. Returns the parameters.
    ///
    /// # Errors
    /// `Config` if the folder is no checkpoint, is not whole, or is of other parameters or another
    /// optimizer; an error of the collectives or of the device.
    pub(crate) fn load(
        &mut self,
        folder: &Path,
        params: &[RocmTensor],
        paths: &Paths,
        rule: Rule,
    ) -> Result<Vec<RocmTensor>, RocmError> {
        let read = self.plan(params).and_then(|()| self.read(folder, paths, rule));
        let read = self.agree(folder, read)?;
        for (bucket, (value, state)) in self.buckets.iter_mut().zip(read) {
            bucket.updated = Some(value);
            bucket.state = state;
        }
        self.gather(params)
    }

    /// This rank's part of each bucket: the values, and the optimizer's state.
    pub(super) fn read(
        &self,
        folder: &Path,
        paths: &Paths,
        rule: Rule,
    ) -> Result<Vec<(RocmTensor, State)>, RocmError> {
        let path = folder.join(INDEX);
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let index: Index = serde_json::from_str(&text).map_err(|error| failed(&path, &error))?;
        let expect = |what: &str, expected: String, found: String| match expected == found {
            true => Ok(()),
            false => Err(RocmError::Config {
                what: format!("the checkpoint {}, {what}", folder.display()),
                expected,
                found,
            }),
        };
        expect("version", VERSION.to_string(), index.version.to_string())?;
        expect("optimizer", rule_name(rule).into(), index.optimizer)?;
        let own = self.described();
        expect("parameters", own.len().to_string(), index.parameters.len().to_string())?;
        for (at, (own, found)) in own.iter().zip(&index.parameters).enumerate() {
            expect(&format!("parameter {at}"), own.to_string(), found.to_string())?;
        }
        if let Some((own, found)) = index.paths.as_ref().and_then(|found| paths.beside(found)) {
            expect("paths of parameters", own.len().to_string(), found.len().to_string())?;
            for (at, (own, found)) in own.iter().zip(found).enumerate() {
                expect(&format!("path of parameter {at}"), own.clone(), found.clone())?;
            }
        }
        let catalogue = Catalogue::open(folder, index.ranks)?;
        let mut parts = Vec::with_capacity(self.buckets.len());
        for bucket in &self.buckets {
            let dtype = bucket.wide();
            let mut tensors = Vec::with_capacity(1 + index.states);
            for kind in 0..=index.states {
                let mut bytes = vec![0; bucket.part * dtype.size()];
                for Piece { parameter, elements, at } in self.pieces(bucket) {
                    let into = &mut bytes[at * dtype.size()..(at + elements.len()) * dtype.size()];
                    catalogue.read(parameter, kind, elements, dtype, into)?;
                }
                let data = TensorData::from_bytes_vec(bytes, [bucket.part], dtype);
                tensors.push(upload(data, dtype, &self.communicator.device())?);
            }
            let value = tensors.remove(0);
            let time = if tensors.is_empty() { 0 } else { index.steps };
            parts.push((value, State { time, tensors, clock: None }));
        }
        Ok(parts)
    }

    /// The pieces of parameters in this rank's part of a bucket.
    fn pieces(&self, bucket: &Bucket) -> Vec<Piece> {
        let begin = bucket.part * self.communicator.rank();
        let end = begin + bucket.part;
        let mut start = 0;
        let mut pieces = Vec::new();
        for &parameter in &bucket.members {
            let len = self.entries[parameter].elements();
            let (first, last) = (begin.max(start), end.min(start + len));
            if first < last {
                pieces.push(Piece { parameter, elements: first - start..last - start, at: first - begin });
            }
            start += len;
        }
        pieces
    }

    fn described(&self) -> Vec<Parameter> {
        let describe = |entry: &super::buckets::Entry| Parameter {
            shape: entry.dims.clone(),
            dtype: entry.dtype.name().into(),
        };
        self.entries.iter().map(describe).collect()
    }

    /// This rank's result, unless another rank has failed. All ranks wait for each other.
    pub(super) fn agree<T>(&self, folder: &Path, own: Result<T, RocmError>) -> Result<T, RocmError> {
        let all = all_are(&self.communicator, own.is_ok());
        let own = own?;
        match all? {
            true => Ok(own),
            false => Err(RocmError::Config {
                what: format!("the checkpoint {}", folder.display()),
                expected: "every rank to read or write its part".into(),
                found: "an error of another rank".into(),
            }),
        }
    }
}

impl std::fmt::Display for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {}", self.shape, self.dtype)
    }
}

/// Elements of a parameter that are next to each other in a rank's part.
struct Piece {
    parameter: usize,
    elements: Range<usize>,
    /// The place of the first one in the part.
    at: usize,
}

/// The pieces of all files.
struct Catalogue {
    paths: Vec<PathBuf>,
    /// By parameter and kind, in the order of their first elements.
    pieces: BTreeMap<(usize, usize), Vec<Found>>,
}

struct Found {
    elements: Range<usize>,
    dtype: Dtype,
    file: usize,
    /// The place of the first byte in the file.
    at: u64,
    /// The hash of its bytes.
    sum: String,
}

impl Catalogue {
    fn open(folder: &Path, files: usize) -> Result<Self, RocmError> {
        let mut catalogue = Self { paths: Vec::new(), pieces: BTreeMap::new() };
        for rank in 0..files {
            let path = folder.join(file_name(rank));
            let (metadata, begin) = header(&path)?;
            for (name, info) in metadata.tensors() {
                let Some((parameter, kind, start)) = parsed(&name) else {
                    return Err(failed(&path, &format!("a tensor of the name {name}")));
                };
                let len: usize = info.shape.iter().product();
                let at = begin + info.data_offsets.0 as u64;
                let Some(sum) = metadata.metadata().as_ref().and_then(|sums| sums.get(&name)).cloned() else {
                    return Err(failed(&path, &format!("no hash of {name}")));
                };
                let found = Found { elements: start..start + len, dtype: info.dtype, file: rank, at, sum };
                catalogue.pieces.entry((parameter, kind)).or_default().push(found);
            }
            catalogue.paths.push(path);
        }
        for pieces in catalogue.pieces.values_mut() {
            pieces.sort_by_key(|piece| piece.elements.start);
        }
        Ok(catalogue)
    }

    /// Reads these elements of a parameter.
    fn read(
        &self,
        parameter: usize,
        kind: usize,
        elements: Range<usize>,
        dtype: DType,
        into: &mut [u8],
    ) -> Result<(), RocmError> {
        let size = dtype.size();
        let mut next = elements.start;
        for piece in self.pieces.get(&(parameter, kind)).into_iter().flatten() {
            let (first, last) = (piece.elements.start.max(next), piece.elements.end.min(elements.end));
            if first >= last || first > next {
                continue;
            }
            let path = &self.paths[piece.file];
            if piece.dtype != to_file(dtype)? {
                return Err(failed(path, &format!("{:?} for {}", piece.dtype, dtype.name())));
            }
            // A piece is read as a whole, to compare its hash. If as many ranks read as have
            // written, none reads more than it needs.
            let mut whole = vec![0; piece.elements.len() * size];
            let read = File::open(path).and_then(|mut file| {
                file.seek(SeekFrom::Start(piece.at))?;
                file.read_exact(&mut whole)
            });
            read.map_err(|error| failed(path, &error))?;
            if sum(&whole) != piece.sum {
                let what = name(parameter, kind, piece.elements.start);
                return Err(failed(path, &format!("the bytes of {what} do not match their hash")));
            }
            let from = (first - piece.elements.start) * size;
            let part = &mut into[(first - elements.start) * size..(last - elements.start) * size];
            part.copy_from_slice(&whole[from..from + part.len()]);
            next = last;
        }
        match next == elements.end {
            true => Ok(()),
            false => Err(RocmError::Config {
                what: format!("the checkpoint, parameter {parameter}, {}", kind_name(kind)),
                expected: format!("elements {elements:?}"),
                found: format!("none from {next} on"),
            }),
        }
    }
}

/// What a file says of its tensors, and the place of their first byte.
fn header(path: &Path) -> Result<(Metadata, u64), RocmError> {
    let fail = |error: &dyn std::fmt::Display| failed(path, error);
    let mut file = File::open(path).map_err(|error| fail(&error))?;
    let bytes = file.metadata().map_err(|error| fail(&error))?.len();
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|error| fail(&error))?;
    let length = u64::from_le_bytes(length);
    if length > bytes.saturating_sub(8) {
        return Err(fail(&format!("a header of {length} bytes in a file of {bytes}")));
    }
    let mut text = vec![0; length as usize];
    file.read_exact(&mut text).map_err(|error| fail(&error))?;
    let metadata: Metadata = serde_json::from_slice(&text).map_err(|error| fail(&error))?;
    let ends = metadata.tensors().values().map(|info| info.data_offsets.1 as u64).max();
    let begin = 8 + length;
    match begin + ends.unwrap_or(0) == bytes {
        true => Ok((metadata, begin)),
        false => Err(fail(&format!("{bytes} bytes, not {}", begin + ends.unwrap_or(0)))),
    }
}

/// The folder in which the ranks write until all have done so. Rank 0 makes it. Dropping this value
/// on rank 0 removes it, unless the save has renamed it.
struct Partial {
    path: PathBuf,
    is_own: bool,
}

impl Partial {
    /// The folder of the save with this token. `is_own`: whether this rank makes it, as rank 0 does.
    fn begin(folder: &Path, token: &[usize], is_own: bool) -> Result<Self, RocmError> {
        let Some(name) = folder.file_name() else {
            return Err(failed(folder, &"a path without a name at its end"));
        };
        let mut name = name.to_owned();
        name.push(".partial-");
        token.iter().for_each(|number| name.push(format!("{number:016x}")));
        let path = folder.with_file_name(name);
        if is_own {
            if folder.exists() {
                return Err(exists(folder));
            }
            let above = folder.parent().map_or(Ok(()), fs::create_dir_all);
            // An error if it exists, unlike `create_dir_all`: it must be this save's alone.
            above.and_then(|()| fs::create_dir(&path)).map_err(|error| failed(&path, &error))?;
        }
        Ok(Self { path, is_own })
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        if self.is_own {
            // The caller gets the error of the save. One of this would add nothing.
            let _ = fs::remove_dir_all(&self.path);
        }
    }
}

fn exists(folder: &Path) -> RocmError {
    RocmError::Config {
        what: format!("the checkpoint {}", folder.display()),
        expected: "a folder that does not exist yet".into(),
        found: "one that does, perhaps another group's: give each save a path of its own".into(),
    }
}

/// Waits until a file's contents are on the disk, so that a crash leaves no folder of the final name
/// with files that are not whole.
fn on_disk(path: &Path) -> Result<(), RocmError> {
    // Some systems want the right to write.
    let file = File::options().read(true).write(true).open(path);
    file.and_then(|file| file.sync_all()).map_err(|error| failed(path, &error))
}

/// [`on_disk`] of a folder's list of names. Windows opens no folders as files.
fn folder_on_disk(path: &Path) -> Result<(), RocmError> {
    if !cfg!(unix) {
        return Ok(());
    }
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    File::open(path).and_then(|folder| folder.sync_all()).map_err(|error| failed(path, &error))
}

/// The hash of a piece's bytes, as the file has it.
fn sum(bytes: &[u8]) -> String {
    format!("{:016x}", xxh3_64(bytes))
}

fn file_name(rank: usize) -> String {
    format!("rank-{rank}.safetensors")
}

fn name(parameter: usize, kind: usize, begin: usize) -> String {
    format!("{parameter}.{}.{begin}", kind_name(kind))
}

/// Kind 0 are the values, the others the optimizer's state tensors.
fn kind_name(kind: usize) -> String {
    if kind == 0 { "value".into() } else { kind.to_string() }
}

fn parsed(name: &str) -> Option<(usize, usize, usize)> {
    let mut parts = name.split('.');
    let parameter = parts.next()?.parse().ok()?;
    let kind = match parts.next()? {
        "value" => 0,
        kind => kind.parse().ok()?,
    };
    let begin = parts.next()?.parse().ok()?;
    parts.next().is_none().then_some((parameter, kind, begin))
}

fn rule_name(rule: Rule) -> &'static str {
    match rule {
        Rule::Adam(Adam { amsgrad, decay: Decay::Penalty(_), .. }) => {
            if amsgrad {
                "adam, amsgrad"
            } else {
                "adam"
            }
        }
        Rule::Adam(Adam { amsgrad, decay: Decay::Decoupled { .. }, .. }) => {
            if amsgrad {
                "adamw, amsgrad"
            } else {
                "adamw"
            }
        }
        Rule::Sgd(sgd) if sgd.momentum.is_some() => "sgd, momentum",
        Rule::Sgd(_) => "sgd",
    }
}

fn to_file(dtype: DType) -> Result<Dtype, RocmError> {
    match dtype {
        DType::F64 => Ok(Dtype::F64),
        DType::F32 => Ok(Dtype::F32),
        other => Err(RocmError::Unsupported {
            op: "ShardedOptimizer::save",
            dtype: Some(other.name()),
            what: None,
        }),
    }
}

fn failed(path: &Path, error: &dyn std::fmt::Display) -> RocmError {
    RocmError::Config {
        what: format!("the checkpoint file {}", path.display()),
        expected: "a file that can be read and written".into(),
        found: error.to_string(),
    }
}
