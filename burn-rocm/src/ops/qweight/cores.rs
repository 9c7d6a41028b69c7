//! Products with few rows on matrix cores (`few_codes.hip`).

use hip::{Device, Grid, MatrixCores, Template};

use super::{Launch, MOST_ROWS, QuantWeight, WeightFormat};
use crate::ops::language::around::Around;

/// The numbers of rows that the kernel has instantiations for.
const ROWS: [usize; 2] = [2, MOST_ROWS];

/// The rows of weights of a tile, which matrix cores multiply at a time, and the tiles that a block
/// computes if there are enough.
const TILE: usize = 16;
const TILES: usize = 4;

/// The threads of a block, at most. With long rows and few tiles there are twice as many.
const THREADS: u32 = 256;
/// The inputs from which a row is long: 16 warps then have two steps each, of 128 4-bit codes.
const LONG: usize = 4096;

impl QuantWeight {
    /// The product by `few_codes`; `None` if the device or the format has no such kernel.
    pub(super) fn on_cores(
        &self,
        ty: hip::DType,
        rows: usize,
        around: &Around<'_>,
        device: &Device,
    ) -> hip::Result<Option<Launch>> {
        let (WeightFormat::Int4 | WeightFormat::Int8) = self.format else { return Ok(None) };
        let info = device.info();
        let Some(cores) = info.matrix_cores(ty, false)? else { return Ok(None) };
        // RDNA 3 holds an operand in the lanes twice, and has no such kernel.
        if cores == MatrixCores::Wmma && !info.arch.starts_with("gfx12") {
            return Ok(None);
        }
        let lanes = if cores == MatrixCores::Mfma { 64 } else { 32 };
        let most = ROWS.into_iter().find(|&most| rows <= most).unwrap_or(MOST_ROWS);
        let small = around.tiles(self.shape[0], TILE);
        let emulated = cores == MatrixCores::Emulated;
        let units = if emulated { 1 } else { info.compute_units as usize };
        let wanted =
            if small < units * 2 && self.padded() >= LONG && !emulated { 2 * THREADS } else { THREADS };
        let threads = info.max_threads_per_block.min(wanted);
        if threads < lanes {
            return Ok(None);
        }
        // With several tiles in a block, fewer warps share a tile, and each computes longer between
        // its first loads and the sum of what they found.
        let several = small >= TILES * units && threads >= lanes * TILES as u32;
        // For one or two rows of few tiles, vector units take no longer (H200).
        if rows <= ROWS[0] && !several && !emulated {
            return Ok(None);
        }
        let tiles = if several { TILES } else { 1 };
        let kernel = Template::few_codes.functor(self.functor()).ty(ty).int(most as i32).int(tiles as i32);
        let tile = TILE * tiles;
        let grid = device.grid_rows(around.tiles(self.shape[0], tile), threads as usize);
        Ok(Some(Launch { kernel, grid: Grid { threads, ..grid }, tile }))
    }
}
