//! Launches over many tensors. A table of their addresses and lengths goes to the kernel by value
//! (`Table` in `optim.hip`).

use std::sync::Arc;

use hip::{Device, KernelName, carry_faults};

use super::launch::{is_packed, submit};
use crate::arg::Arg;
use crate::error::invalid;
use crate::tensor::RocmTensor;

/// The elements that a block takes at a time, a power of two.
const PIECE: usize = 4096;

/// The same for so few elements that larger pieces would leave much of a GPU idle.
const SHORT_PIECE: usize = 1024;

/// The fewest pieces for each compute unit that keep a GPU busy.
const BUSY: usize = 4;

/// `TABLE_BYTES` of `optim.hip`, in words.
const WORDS: usize = 497;

/// The kernel's argument: the number of rows, the size of a piece and the number of pieces, then the
/// rows.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::NoUninit)]
struct Words {
    head: u64,
    rows: [[u64; 16]; (WORDS - 1) / 16],
}

/// A row of a table: packed tensors of one length.
pub(crate) type Row = Vec<RocmTensor>;

/// Rows that share launches: their device, and the key that they have in common.
pub(crate) struct Group<K> {
    pub(crate) device: Arc<Device>,
    pub(crate) key: K,
    pub(crate) rows: Vec<Row>,
}

/// The group of this device and key, made if there is none.
pub(crate) fn group<'g, K: PartialEq>(
    groups: &'g mut Vec<Group<K>>,
    device: &Arc<Device>,
    key: K,
) -> &'g mut Group<K> {
    let found = groups.iter().position(|group| Arc::ptr_eq(&group.device, device) && group.key == key);
    let at = found.unwrap_or(groups.len());
    if at == groups.len() {
        groups.push(Group { device: device.clone(), key, rows: Vec::new() });
    }
    &mut groups[at]
}

/// The most rows of a table whose rows have `width` tensors each.
pub(crate) fn capacity(width: usize) -> usize {
    (WORDS - 1) / (width + 1)
}

/// At most [`capacity`] rows of at least one element each.
pub(crate) struct Table<'a> {
    words: Words,
    device: &'a Arc<Device>,
    rows: &'a [Row],
    /// The number of pieces, which are distributed among the blocks.
    pub(crate) pieces: usize,
    piece: usize,
}

/// Which tensors a launch over a table writes.
#[derive(Clone, Copy)]
pub(crate) struct Writes {
    /// How many of each row's tensors it writes, counted from the end.
    pub(crate) of_row: usize,
    /// How many of the buffers it writes, counted from the end.
    pub(crate) buffers: usize,
}

/// Cuts the rows into tables, each with its range of rows. All tensors must be on `device`.
///
/// # Errors
/// `Invalid` for a tensor that is on another device, not packed, or not as long as the others of
/// its row.
pub(crate) fn tables<'a>(
    op: &'static str,
    device: &'a Arc<Device>,
    rows: &'a [Row],
) -> hip::Result<Vec<(Table<'a>, std::ops::Range<usize>)>> {
    let Some(width) = rows.first().map(Vec::len) else { return Ok(Vec::new()) };
    let mut tables = Vec::new();
    let mut start = 0;
    for rows in rows.chunks(capacity(width)) {
        tables.push((Table::new(op, device, width, rows)?, start..start + rows.len()));
        start += rows.len();
    }
    Ok(tables)
}

impl<'a> Table<'a> {
    fn new(op: &'static str, device: &'a Arc<Device>, width: usize, rows: &'a [Row]) -> hip::Result<Self> {
        let mut words = Words { head: 0, rows: [[0; 16]; (WORDS - 1) / 16] };
        let mut next = words.rows.as_flattened_mut().iter_mut();
        let of_size = |piece: usize| rows.iter().map(|row| row[0].len().div_ceil(piece)).sum::<usize>();
        let busy = BUSY * device.info().compute_units as usize;
        let short = device.block_threads() > 1 && of_size(PIECE) < busy;
        let piece = if short { SHORT_PIECE } else { PIECE };
        let mut pieces = 0;
        for row in rows {
            let n = row[0].len();
            let fits = |tensor: &RocmTensor| {
                Arc::ptr_eq(device, tensor.hip_device()) && tensor.len() == n && is_packed(tensor)
            };
            if n == 0 || row.len() != width || !row.iter().all(fits) {
                return invalid(op, format!("{width} packed tensors of {n} elements"), format!("{row:?}"));
            }
            let (first, count) = (pieces, n.div_ceil(piece));
            pieces += count;
            let last = n - (count - 1) * piece;
            let shape = (first as u64) | (last as u64) << 32;
            let address = |tensor: &RocmTensor| (tensor.buffer().address() + tensor.byte_offset()) as u64;
            for value in row.iter().map(address).chain([shape]) {
                if let Some(word) = next.next() {
                    *word = value;
                }
            }
        }
        if u32::try_from(pieces).is_err() {
            return invalid(
                op,
                format!("at most {} elements", u32::MAX as usize * piece),
                format!("{pieces} pieces"),
            );
        }
        words.head = (rows.len() as u64) | u64::from(piece.ilog2()) << 16 | (pieces as u64) << 32;
        Ok(Self { words, device, rows, pieces, piece })
    }

    /// Launches `kernel(table, scalars.., buffers..)` over the table's pieces. An absent buffer is
    /// a null pointer.
    ///
    /// A scalar that is a struct may have more fields than the kernel's struct.
    pub(crate) fn launch(
        &self,
        op: &'static str,
        kernel: KernelName,
        scalars: &[Arg],
        buffers: &[Option<&RocmTensor>],
        writes: Writes,
    ) -> hip::Result<()> {
        self.carry_faults(buffers, writes);
        let mut launch = self.device.launch(kernel)?.value(self.words);
        for &scalar in scalars {
            launch = scalar.push(launch);
        }
        for buffer in buffers {
            launch = match buffer {
                Some(tensor) if is_packed(tensor) => launch.buffer(tensor.buffer(), tensor.byte_offset()),
                Some(tensor) => return invalid(op, "packed elements", format!("{:?}", tensor.layout())),
                None => launch.value(0u64),
            };
        }
        let bytes = || self.rows.iter().flatten().map(|tensor| tensor.len() * tensor.dtype_size()).sum();
        submit(launch.moves(bytes), self.device.grid_rows(self.pieces, self.piece))
    }

    /// A row's outputs take over the faults of that row's inputs only. Buffers that are written
    /// take over the faults of all rows. Buffers that are read add no fault to a row's outputs,
    /// because the element that a row reads was computed from that same row.
    fn carry_faults(&self, buffers: &[Option<&RocmTensor>], writes: Writes) {
        let (read, written) = buffers.split_at(buffers.len() - writes.buffers);
        let read = || read.iter().flatten().map(|tensor| tensor.buffer());
        for row in self.rows {
            let written = row[row.len() - writes.of_row..].iter().map(RocmTensor::buffer);
            carry_faults(row.iter().map(RocmTensor::buffer), written);
        }
        let all = self.rows.iter().flatten().map(RocmTensor::buffer);
        carry_faults(all.chain(read()), written.iter().flatten().map(|tensor| tensor.buffer()));
    }
}
