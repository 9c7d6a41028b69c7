//! Choices that only cost or save time, by architecture, each with its source.
//!
//! No result depends on them, apart from the order in which sums are added up. No AMD GPU has timed
//! any of them. So all GPUs share one value, except where a cost model decides (docs/decisions/033).
//! docs/guide/tuning.md has the tables, which a test compares with these.

use std::fmt::{self, Display};

use crate::device::info::{DeviceInfo, MemorySpace};

/// The kinds of devices that may have defaults of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// AMD's gfx9 before CDNA 3: CDNA 1 and 2, and GCN before them.
    Cdna,
    /// AMD's gfx94 and gfx95: CDNA 3 and 4.
    Cdna3,
    /// AMD's gfx10: RDNA 1 and 2.
    Rdna2,
    /// AMD's gfx11 and later: RDNA 3 and 4.
    Rdna3,
    /// NVIDIA GPUs.
    Nvidia,
    /// The CPU device, whose blocks have one thread.
    Cpu,
}

impl Family {
    /// All, in the order of the table's columns.
    pub const ALL: [Self; 6] = [Self::Cdna, Self::Cdna3, Self::Rdna2, Self::Rdna3, Self::Nvidia, Self::Cpu];

    /// The family of a device. An AMD architecture that nobody listed counts as the newest. So does
    /// the CPU device in lockstep mode, whose blocks have many threads.
    pub fn of(info: &DeviceInfo) -> Self {
        match info.memory {
            _ if info.max_threads_per_block == 1 => Self::Cpu,
            MemorySpace::Cuda => Self::Nvidia,
            _ if info.arch.starts_with("gfx94") || info.arch.starts_with("gfx95") => Self::Cdna3,
            _ if info.arch.starts_with("gfx9") => Self::Cdna,
            _ if info.arch.starts_with("gfx10") => Self::Rdna2,
            _ => Self::Rdna3,
        }
    }
}

/// Where a default comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Instructions that a virtual GPU counted under the real ROCm (docs/decisions/033): what, and
    /// of which chip.
    VirtualGpu(&'static str),
    /// A measurement: what, and on what.
    Measured(&'static str),
    /// A measurement, and for families whose value differs the cost model (docs/decisions/033).
    Modelled {
        /// What was measured, and on what.
        measured: &'static str,
        /// What the model says, and of which chips.
        modelled: &'static str,
    },
    /// Nobody has measured it: the reason for the guess.
    Guess(&'static str),
}

impl Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VirtualGpu(what) => write!(f, "virtual GPU: {what}"),
            Self::Measured(what) => write!(f, "measured: {what}"),
            Self::Modelled { measured, modelled } => {
                write!(f, "measured: {measured}; cost model: {modelled}")
            }
            Self::Guess(why) => write!(f, "guess: {why}"),
        }
    }
}

/// A row of the table of defaults that a device looks up.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    /// The field of [`Defaults`].
    pub name: &'static str,
    /// The value of a family.
    pub value: fn(Family) -> usize,
    /// Where it comes from.
    pub source: Source,
    /// What it decides.
    pub meaning: &'static str,
}

/// A constant that matters within one file only, and stands there.
#[derive(Debug, Clone, Copy)]
pub struct Fixed {
    /// The file, below the repository's root.
    pub file: &'static str,
    /// Its name there.
    pub name: &'static str,
    /// Its value, as the file has it.
    pub value: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// What it decides.
    pub meaning: &'static str,
}

use Source::{Guess, Measured, Modelled, VirtualGpu};

/// Makes [`Defaults`] and [`ROWS`] of one table. A row has the value on GPUs, then on the CPU device,
/// then possibly some families of GPUs and their own value.
macro_rules! defaults {
    ($(
        $name:ident = $gpu:expr, $cpu:expr $(, $families:pat => $own:expr)?; $source:expr; $meaning:literal;
    )*) => {
        /// A device's defaults; see [`Device::defaults`](crate::Device::defaults).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Defaults {
            $(#[doc = concat!($meaning, ".")] pub $name: usize,)*
        }

        impl Defaults {
            /// Those of a family.
            pub fn of(family: Family) -> Self {
                let cpu = family == Family::Cpu;
                Self {
                    $($name: if cpu {
                        $cpu
                    } $(else if matches!(family, $families) {
                        $own
                    })? else {
                        $gpu
                    },)*
                }
            }
        }

        /// The defaults that a device looks up, in the order of docs/guide/tuning.md.
        pub const ROWS: &[Row] = &[$(Row {
            name: stringify!($name),
            value: |family| Defaults::of(family).$name,
            source: $source,
            meaning: $meaning,
        }),*];
    };
}

defaults! {
    block_threads = 256, 256;
        Guess("a multiple of each warp size, and few enough that a thread can have many registers");
        "threads of an element-wise kernel's block, unless the device allows fewer";
    block_items = 2048, 2048;
        Measured("H200: a strided copy of 2^28 f32 reached 1.99 TB/s with 8 items for each thread, 1.91 with 4, \
                  1.57 with one");
        "items of an element-wise block";
    access_bytes = 16, 16;
        Guess("a thread's widest access");
        "bytes of contiguous memory for each thread of an element-wise block";
    row_items = 12, 12;
        Measured("H200: layer norm of rows of 768 f32 reached 3.6 TB/s with 64 threads, 2.5 with 128");
        "most elements of a row for each thread, in kernels that keep a row in registers";
    chain_steps = 16, 0;
        Measured("H200's host: a launch takes 2.95 us; CPU: a launch takes less than the check whether an op can wait");
        "element-wise ops that share a launch at most";
    sum_row_part = 1024, 1024;
        Guess("joining shorter parts costs more than it saves");
        "fewest elements of a part, where a row is summed in parts";
    sum_column_part = 256, 256;
        Guess("joining shorter parts costs more than it saves");
        "fewest elements of a part, where a column is summed in parts";
    sum_row_blocks = 32, 4;
        Measured("H200: sums of 2^28 f32 as one row read at the full memory rate");
        "blocks for each compute unit, where few rows are summed";
    sum_column_blocks = 4, 4;
        Measured("H200: sums of 2^28 f32 as 4096 columns read at the full memory rate");
        "blocks for each compute unit, where few columns are summed";
    sum_wide_blocks = 8, 8;
        Measured("H200: as `sum_column_blocks`");
        "the same, where a thread takes several neighbouring columns";
    sum_rows_each = 8, 8;
        Measured("H200: with 2, sums of 16 rows of 589,824 f32 read 1.3 of 4.3 TB/s");
        "rows of a short column that one thread adds up";
    tiled_attention_queries = 32, 32;
        VirtualGpu("gfx1030, 8 heads of 64 features, 512 keys, f32: 2.86 M wave instructions tiled and 3.66 M composed \
                    at 32 queries, 2.83 M and 1.83 M at 16");
        "fewest queries for which attention's tiled kernel runs";
    joined_softmax_terms = 64, 64;
        Measured("H200 (docs/decisions/018)");
        "most features of a head for which a product and its softmax are one kernel";
    copied_a_call = 4 << 20, 64 << 10, Family::Cdna | Family::Rdna2 => 1 << 20;
        Modelled {
            measured: "H200 and a Xeon's core: a call takes 4 us, in which they copy 8 MB and 64 KB",
            modelled: "in a launch's time, MI250X copies 1.2 MB and RX 6900 XT 0.8",
        };
        "bytes worth copying to save one call of rocBLAS";
    conv_patch_bytes = 64 << 20, 64 << 20;
        Guess("as many keep any device busy");
        "bytes of a convolution's patches at a time";
    conv_product_least = 4, 4;
        Guess("below that, writing patches costs more than it saves");
        "fewest rows, and terms of a sum, for which a convolution is a product";
}

const TILES: Source = Measured(
    "H200, of up to nine sizes for each width (docs/decisions/034); AMD's are guesses by \
                                registers and LDS",
);
const CACHE_LINE: Source = Guess("a cache line");
const AS_SUMS: Source = Guess("as for sums");
const BUSY: Source = Guess("as many keep any device busy");
const ROUNDS: Source = Guess("the least of some times is little above the true one");

macro_rules! fixed {
    ($($file:literal, $name:literal = $value:literal; $source:expr; $meaning:literal;)*) => {
        /// Constants that matter within one file, in the order of docs/guide/tuning.md.
        pub const FIXED: &[Fixed] = &[$(Fixed {
            file: $file,
            name: $name,
            value: $value,
            source: $source,
            meaning: $meaning,
        }),*];
    };
}

fixed! {
    "hip/src/device/mod.rs", "MOST_BLOCKS" = "(1 << 22) - 1";
        Measured("H200: exp of 2^28 f32 reached 4.27 TB/s with many blocks, 3.93 with resident ones");
        "most blocks of a launch: HIP's limit, not the number that runs at once";
    "hip/src/settings.rs", "CHAIN_BYTES" = "256 << 20";
        Measured("H200: with 4 GiB, steps of ResNet-18 and the transformer take 11 and 7 % less than with 8 MiB");
        "the default of `BURN_ROCM_CHAIN_BYTES`: an op with a larger result does not wait for others";
    "hip/src/memory/pinned.rs", "SMALL" = "64 << 10";
        Guess("such copies take less time than a second stream's events");
        "bytes of a copy that stays on the compute stream";
    "hip/src/memory/pinned.rs", "CHUNK" = "4 << 20";
        Guess("the host fills one while the device copies another");
        "bytes of a piece of a large copy";
    "hip/src/dnn/conv/fresh.rs", "SIZES" = "8";
        Guess("training and validation with shorter last batches have four");
        "sizes of input before a new one may not come back";
    "hip/src/tuning/mod.rs", "USES_BEFORE_FIND" = "2";
        Guess("a shape that comes a third time comes again");
        "uses of a convolution, a product or a class of shapes before its candidates are timed";
    "hip/src/tuning/mod.rs", "CLEARLY" = "0.97";
        Guess("events differ by some percent between rounds");
        "the part of the default's time below which a candidate replaces it";
    "hip/src/kernel_find.rs", "ROUNDS" = "3"; ROUNDS;
        "times that each candidate is timed";
    "hip/src/blas/choose.rs", "MOST_CANDIDATES" = "32";
        Guess("they take as long as 768 products");
        "solutions of rocBLAS that are timed at most";
    "hip/src/blas/choose.rs", "ROUNDS" = "5"; ROUNDS;
        "times that each solution is timed";
    "burn-rocm/src/ops/argwhere.rs", "CHUNK" = "64"; CACHE_LINE;
        "elements that one thread counts";
    "burn-rocm/src/ops/index.rs", "LEAST_ROW" = "64";
        Guess("with shorter rows, most threads of a block would be idle");
        "fewest bytes of a row that a whole block copies";
    "burn-rocm/src/ops/index.rs", "COLUMNS_PER_BLOCK" = "256"; BUSY;
        "fewest columns of a block of `scatter_columns`";
    "burn-rocm/src/ops/index_nd.rs", "FEW" = "16";
        Guess("a sort of the values moves less memory than a copy of the tensor in f32");
        "elements of the tensor for each value from which additions in f16 and bf16 are sorted";
    "burn-rocm/src/ops/index_nd.rs", "WIDE" = "16";
        Measured("two cores of a Xeon: 10,000 slices of 64 elements took 0.7 ms sorted, 2.5 ms by atomics");
        "elements of a slice from which indices are sorted first";
    "burn-rocm/src/ops/segment.rs", "PIECE" = "64";
        Guess("its loads take about as long as joining the pieces of 4,096 slices");
        "slices with one index that one thread sums";
    "burn-rocm/src/ops/segment.rs", "FEW_COMPARISONS" = "1 << 24";
        Guess("they take less time than a sort's launches");
        "comparisons of indices up to which at most `PIECE` indices are not sorted";
    "burn-rocm/src/ops/sort.rs", "TILE" = "1024";
        Guess("its keys fit into shared memory");
        "elements that a block sorts before merging";
    "burn-rocm/src/ops/sort.rs", "SERIAL_TILE" = "16384";
        Guess("its keys fit into a core's cache");
        "the same on the CPU device";
    "burn-rocm/src/ops/decode/attention.rs", "BLOCKS_PER_UNIT" = "4";
        Guess("two to four blocks are resident by their registers");
        "blocks for each compute unit of attention over a paged cache";
    "burn-rocm/src/ops/decode/attention.rs", "MATRIX_BLOCKS_PER_UNIT" = "3";
        Guess("as many are resident on an H200 by their registers, and none waits for another to end");
        "the same on matrix cores";
    "burn-rocm/src/ops/decode/sample.rs", "CHUNK" = "2048"; BUSY;
        "logits that one block prepares";
    "burn-rocm/src/ops/multi_tensor.rs", "PIECE" = "4096"; BUSY;
        "elements of a block of an optimizer's step";
    "burn-rocm/src/ops/multi_tensor.rs", "SHORT_PIECE" = "1024"; BUSY;
        "the same for few parameters";
    "burn-rocm/src/ops/cat.rs", "PIECE" = "4096"; BUSY;
        "elements of a block of `cat`";
    "burn-rocm/src/ops/copy.rs", "TILE" = "32";
        Guess("a tile with padding fits into shared memory without bank conflicts");
        "rows and columns of a transposing copy's tile";
    "burn-rocm/src/ops/norm/channels.rs", "LEAST_PART" = "4096";
        Guess("16 elements for each of 256 threads; a part itself costs some hundred instructions");
        "fewest elements of a part of a channel";
    "burn-rocm/src/ops/norm/batch_rows.rs", "MOST_ACROSS" = "8"; CACHE_LINE;
        "pieces of 16 bytes that a block has side by side, in batch norm with channels last";
    "burn-rocm/src/ops/norm/batch_rows.rs", "LEAST_ROWS" = "4";
        Guess("several loads in flight");
        "fewest rows of a thread there";
    "burn-rocm/src/ops/norm/batch_rows.rs", "JOINED" = "128";
        Guess("a thread reads at most four parts of 8 channels, which takes less time than a launch");
        "most parts that each block joins itself there";
    "burn-rocm/src/ops/norm/batch_rows.rs", "READ" = "1 << 15";
        Guess("16 MiB from a cache take as long as a launch");
        "most parts that all blocks join so";
    "burn-rocm/src/ops/conv/few.rs", "BLOCKS" = "2"; BUSY;
        "blocks of a compute unit for the gradient of few weights";
    "burn-rocm/src/ops/conv/direct.rs", "LEAST_PART" = "1024"; AS_SUMS;
        "fewest terms of a part of a direct convolution's sum";
    "burn-rocm/src/ops/conv/direct.rs", "CHANNELS" = "4";
        Guess("as many sums as registers allow");
        "output channels of a thread of a direct convolution";
    "burn-rocm/src/ops/conv/deform.rs", "COLUMN_BYTES" = "64 << 20";
        Guess("two images of a typical layer");
        "bytes of a deformable convolution's columns at a time. If they don't suffice for a batch in f16 or \
         bf16, its weight's gradient is a product in f32, without the halves' matrix cores, and a chunk of \
         its gradients is a third as large";
    "burn-rocm/src/ops/conv/deform.rs", "ENOUGH_ITEMS" = "1 << 16"; BUSY;
        "work items of its gradients";
    "burn-rocm/src/ops/interpolate.rs", "ENOUGH_ITEMS" = "1 << 16"; BUSY;
        "work items of an interpolation's gradient";
    "burn-rocm/src/ops/activation.rs", "ROWS_A_PART" = "256";
        Guess("a longer running sum loses precision");
        "rows of a bias's gradient that one thread sums";
    "burn-rocm/src/ops/loss/mod.rs", "ONE_BLOCK" = "1 << 14";
        Guess("a second launch takes longer");
        "items of a loss that a single block takes";
    "burn-rocm/src/ops/loss/classes.rs", "SHORT" = "32";
        Guess("a block would be idle");
        "classes of a row that a single thread computes";
    "burn-rocm/src/ops/quantized/quantize.rs", "SMALL" = "1024";
        Guess("a second launch takes longer");
        "elements whose range a single block finds";
    "burn-rocm/src/ops/fft.rs", "LARGEST_RADIX" = "61";
        Guess("by the number of operations: Bluestein's transforms have 4 to 8 times the length");
        "largest prime factor of a Fourier transform that is summed directly";
    "burn-rocm/src/ops/collective.rs", "TOGETHER" = "4 << 20";
        Guess("saves launches for small gradients");
        "bytes of all-reduces that are issued together";
    "burn-rocm/nn/src/parallel/mod.rs", "BUCKET_BYTES" = "25 << 20";
        Guess("as PyTorch's DistributedDataParallel");
        "bytes of a bucket of gradients";
    "burn-rocm/nn/src/ops/buckets.rs", "SEVERAL" = "2";
        Measured("H200: two reduce half a bucket of 25 MiB in some 60 us, a last bucket in 20");
        "a part of a bucket: if all gradients together are larger, there are several buckets";
    "burn-rocm/nn/src/ops/buckets.rs", "SMALLEST" = "16";
        Measured("H200: two reduce 1 MiB in 22 us, so a smaller bucket would hardly take less");
        "the part of a bucket that the last ones have at least";
    "burn-rocm/nn/src/ops/buckets.rs", "WHOLE" = "25";
        Guess("a call of RCCL takes the host longer than the device copies less");
        "the part of a bucket from which a gradient is reduced in its own memory";
    "burn-rocm/nn/src/ops/buckets.rs", "LAST" = "400";
        Guess("norms and biases have such gradients");
        "the part of a bucket below which a gradient is in the last one";
    "hip/kernels/matmul.hip", "TILE" = "64";
        Guess("by registers and LDS, as AMD's compiler reports them");
        "rows and columns of the output that a block multiplies";
    "hip/kernels/matmul.hip", "DEPTH" = "16";
        Guess("by registers and LDS");
        "terms in shared memory at a time";
    "hip/kernels/attention.hip", "SIDE" = "16";
        Guess("by registers and LDS: 33 KB of shared memory");
        "a quarter of the rows of attention's tile";
    "hip/kernels/attention_backward.hip", "SIDE" = "16";
        Guess("by registers and LDS");
        "the same in its gradient";
    "hip/kernels/attention_softmax.hip", "TEAM" = "32";
        Guess("by registers; docs/decisions/018 has the kernel's times on an H200");
        "threads of a row where a product and its softmax are one kernel";
    "hip/kernels/attention_matrix.hip", "TALL" = "WIDE > 128 ? 1 : 2"; TILES;
        "tiles of 16 queries of a warp on matrix cores; KEYS, STAGES and KEPT stand beside it";
    "hip/kernels/attention_matrix_backward.hip", "STAGES" = "2"; TILES;
        "the same in its gradient; TALL, COLUMNS, CHUNK, KEPT1 and KEPT2 stand beside it";
    "hip/kernels/reduce.hip", "SPAN" = "64";
        Guess("short sums keep precision");
        "rows that a thread adds up before it joins two sums";
    "hip/kernels/scan.hip", "BLOCK" = "256"; BUSY;
        "threads of a block of a scan of long rows";
    "hip/kernels/conv.hip", "CHANNELS" = "4";
        Guess("as many sums as registers allow");
        "as in `burn-rocm/src/ops/conv/direct.rs`";
    "hip/kernels/qmatmul.hip", "DEPTH" = "32";
        Guess("by registers and LDS");
        "terms of a quantised product in shared memory at a time";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::STEPS;

    #[test]
    fn chains_have_as_many_steps_as_their_kernel() {
        assert_eq!(Defaults::of(Family::Cdna).chain_steps, STEPS);
        assert_eq!(Defaults::of(Family::Cpu).chain_steps, 0);
    }
}
