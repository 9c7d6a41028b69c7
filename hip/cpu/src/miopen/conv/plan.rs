//! Describes a convolution as passes over padded planes.
//!
//! A pass computes `dst[oc][pixel] = sum over t of weight[oc][t] * src[pixel + offset[t]]`. The
//! source of an image is copied once into planes with their padding written out. Then every tap of
//! the filter is a constant offset into the planes, and no whole im2col matrix is needed. A stride
//! splits planes into phases: the forward direction reads up to `stride^3` source phases, the
//! backward direction writes up to `stride^3` output phases, each with the taps that reach it.

use super::geometry::geometry;
use super::problem::{Direction, Problem};

/// The layout of source planes in scratch memory: `[channel][phase][depth][height][width]`.
#[derive(Debug)]
pub(crate) struct Fill {
    pub(crate) channels: usize,
    /// The dimensions of the source's own planes.
    pub(crate) source: [usize; 3],
    /// The source coordinate of each phase's first pixel.
    pub(crate) phases: Vec<[isize; 3]>,
    /// Source pixels from one pixel of a phase to the next.
    pub(crate) step: [usize; 3],
    pub(crate) dims: [usize; 3],
}

/// Vectors that start at the last pixel read fewer than this many floats past it.
pub(super) const SLACK: usize = 16;

impl Fill {
    fn plane(&self) -> usize {
        self.dims.iter().product()
    }

    /// Floats of one channel.
    pub(crate) fn channel(&self) -> usize {
        self.phases.len() * self.plane()
    }

    /// Whether the filled plane equals the source plane.
    pub(super) fn is_copy(&self) -> bool {
        self.phases.len() == 1 && self.phases[0] == [0; 3] && self.step == [1; 3] && self.dims == self.source
    }

    /// Floats of scratch memory.
    pub(crate) fn len(&self) -> usize {
        self.channels * self.channel() + SLACK
    }
}

/// Consecutive lanes of a vector that are pixels of one output row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) lane: u32,
    pub(crate) count: u32,
    /// The place of its first pixel in the output plane.
    pub(crate) to: usize,
}

/// A vector of neighbouring source pixels that are computed together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lanes {
    /// The place that its first lane reads, without the tap's offset.
    pub(crate) from: u32,
    /// Its segments: `segments[first..first + count]`.
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// Pixels that are contiguous in the filled planes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    /// The number of the pass's pixels before it.
    pub(crate) first: usize,
    pub(crate) count: usize,
    /// Its place in the filled plane, without the tap's offset.
    pub(crate) from: usize,
    /// Its place in the output plane.
    pub(crate) to: usize,
    /// Output elements from one pixel to the next.
    pub(crate) step: usize,
}

/// One pass.
#[derive(Debug)]
pub(crate) struct Pass {
    /// The filter taps of the pass.
    pub(crate) taps: Vec<usize>,
    /// The offset into the filled planes for every source channel and tap of `taps`.
    pub(crate) offsets: Vec<u32>,
    pub(crate) vectors: Vec<Lanes>,
    pub(crate) segments: Vec<Segment>,
    pub(crate) runs: Vec<Run>,
    /// Output elements from one pixel of a row to the next.
    pub(crate) step: usize,
}

/// The passes of one direction, and the layout of their source.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) fill: Fill,
    pub(crate) passes: Vec<Pass>,
}

/// The places of a pass's output pixels in an output plane.
struct Target {
    /// The numbers of pixels.
    count: [usize; 3],
    /// The coordinate of the first pixel.
    first: [usize; 3],
    /// From one pixel to the next.
    step: [usize; 3],
    /// The dimensions of the whole plane.
    plane: [usize; 3],
}

/// Covers the pixels of `target` with vectors of `lanes` neighbours in a filled plane of `dims`.
///
/// A vector may cross the end of a row. Its lanes in the padding between rows are computed and
/// dropped. Each vector starts at the first pixel that no earlier vector covers.
fn cover(target: &Target, dims: [usize; 3], lanes: usize) -> (Vec<Lanes>, Vec<Segment>) {
    let [depth, height, width] = target.count;
    let mut vectors = Vec::new();
    let mut segments = Vec::new();
    if width == 0 || height == 0 {
        return (vectors, segments);
    }
    let to = |d: usize, h: usize, w: usize| {
        let at = |axis: usize, i: usize| target.first[axis] + target.step[axis] * i;
        (at(0, d) * target.plane[1] + at(1, h)) * target.plane[2] + at(2, w)
    };
    for d in 0..depth {
        let (mut h, mut w) = (0, 0);
        while h < height {
            let start = h * dims[2] + w;
            let first = segments.len();
            while h < height && h * dims[2] + w < start + lanes {
                let lane = h * dims[2] + w - start;
                let count = (width - w).min(lanes - lane);
                segments.push(Segment { lane: lane as u32, count: count as u32, to: to(d, h, w) });
                w += count;
                if w == width {
                    (h, w) = (h + 1, 0);
                }
            }
            vectors.push(Lanes {
                from: (d * dims[1] * dims[2] + start) as u32,
                first: first as u32,
                count: (segments.len() - first) as u32,
            });
        }
    }
    (vectors, segments)
}

/// The pixels of `target` row by row. Rows that are contiguous in both planes are joined.
fn runs(target: &Target, dims: [usize; 3]) -> Vec<Run> {
    let [depth, height, width] = target.count;
    let mut runs: Vec<Run> = Vec::new();
    let mut first = 0;
    for d in 0..depth {
        for h in 0..height {
            let at = |axis: usize, i: usize| target.first[axis] + target.step[axis] * i;
            let to = (at(0, d) * target.plane[1] + at(1, h)) * target.plane[2] + at(2, 0);
            let (from, step) = ((d * dims[1] + h) * dims[2], target.step[2]);
            match runs.last_mut() {
                Some(last) if last.from + last.count == from && last.to + last.count * step == to => {
                    last.count += width;
                }
                _ if width > 0 => runs.push(Run { first, count: width, from, to, step }),
                _ => {}
            }
            first += width;
        }
    }
    runs
}

impl Pass {
    /// The number of pixels of the pass.
    pub(super) fn pixels(&self) -> usize {
        self.runs.last().map_or(0, |run| run.first + run.count)
    }
}

fn offset(dims: [usize; 3], at: [usize; 3]) -> usize {
    (at[0] * dims[1] + at[1]) * dims[2] + at[2]
}

fn offsets(fill: &Fill, taps: &[usize]) -> Vec<u32> {
    let channel = fill.channel();
    (0..fill.channels).flat_map(|c| taps.iter().map(move |tap| (c * channel + tap) as u32)).collect()
}

impl Plan {
    /// The passes of a direction, for this machine's vectors.
    pub(super) fn of(p: &Problem, direction: Direction) -> Plan {
        let lanes = geometry().0;
        match direction {
            Direction::Forward => Plan::forward(p, lanes),
            Direction::Backward => Plan::backward(p, lanes),
        }
    }

    /// The layout of the source planes in the forward direction, and the offset of each tap.
    pub(crate) fn source(p: &Problem) -> (Fill, Vec<usize>) {
        // The phases of each axis that some tap reads.
        let used: [Vec<usize>; 3] = core::array::from_fn(|axis| {
            let mut used: Vec<usize> =
                (0..p.filter[axis]).map(|t| t * p.dilation[axis] % p.stride[axis]).collect();
            used.sort_unstable();
            used.dedup();
            used
        });
        let dims = core::array::from_fn(|axis| {
            p.output[axis] + (p.filter[axis] - 1) * p.dilation[axis] / p.stride[axis]
        });
        let mut phases = Vec::new();
        for &d in &used[0] {
            for &h in &used[1] {
                for &w in &used[2] {
                    phases.push([d, h, w]);
                }
            }
        }
        let plane: usize = dims.iter().product();
        let taps = p
            .tap_coordinates()
            .map(|tap| {
                let at: [usize; 3] = core::array::from_fn(|axis| tap[axis] * p.dilation[axis]);
                let phase: [usize; 3] = core::array::from_fn(|axis| at[axis] % p.stride[axis]);
                let index = phases.iter().position(|&used| used == phase).unwrap_or(0);
                index * plane + offset(dims, core::array::from_fn(|axis| at[axis] / p.stride[axis]))
            })
            .collect();
        let phases = phases
            .into_iter()
            .map(|phase| core::array::from_fn(|axis| phase[axis] as isize - p.pad[axis] as isize))
            .collect();
        (Fill { channels: p.c, source: p.input, phases, step: p.stride, dims }, taps)
    }

    /// The forward direction: `y` from `x`.
    pub(crate) fn forward(p: &Problem, lanes: usize) -> Plan {
        let (fill, taps) = Plan::source(p);
        let target = Target { count: p.output, first: [0; 3], step: [1; 3], plane: p.output };
        let (vectors, segments) = cover(&target, fill.dims, lanes);
        let offsets = offsets(&fill, &taps);
        let taps = (0..p.taps()).collect();
        let runs = runs(&target, fill.dims);
        Plan { fill, passes: vec![Pass { taps, offsets, vectors, segments, runs, step: 1 }] }
    }

    /// The backward direction: `dx` from `dy`.
    pub(crate) fn backward(p: &Problem, lanes: usize) -> Plan {
        // One phase of an axis: `count` input pixels, `stride` apart, from `at` on. Their numbers
        // begin with `first`. The taps `(tap, back)` reach pixel q from output pixel `q - back`.
        struct AxisPhase {
            at: usize,
            first: usize,
            count: usize,
            taps: Vec<(usize, usize)>,
        }
        let axes: [Vec<AxisPhase>; 3] = core::array::from_fn(|axis| {
            let (stride, pad, input) = (p.stride[axis], p.pad[axis], p.input[axis]);
            // A stride may be far greater than the input, and then most phases have no pixel.
            (0..stride.min(input))
                .map(|at| {
                    let (first, phase) = ((at + pad) / stride, (at + pad) % stride);
                    let taps = (0..p.filter[axis])
                        .filter(|t| t * p.dilation[axis] % stride == phase)
                        .map(|t| (t, t * p.dilation[axis] / stride))
                        .collect();
                    AxisPhase { at, first, count: (input - at).div_ceil(stride), taps }
                })
                .collect()
        });
        // The front padding that the farthest tap needs. `dims` below reaches as far as the nearest
        // tap.
        let front: [isize; 3] = core::array::from_fn(|axis| {
            let need =
                |phase: &AxisPhase| phase.taps.iter().map(|tap| tap.1 as isize - phase.first as isize).max();
            axes[axis].iter().filter_map(need).max().unwrap_or(0)
        });
        let index = |axis: usize, phase: &AxisPhase, back: usize| {
            (phase.first as isize - back as isize + front[axis]) as usize
        };
        let dims = core::array::from_fn(|axis| {
            let reach = |phase: &AxisPhase| {
                phase.taps.iter().map(|tap| index(axis, phase, tap.1) + phase.count).max()
            };
            axes[axis].iter().filter_map(reach).max().unwrap_or(1)
        });
        let fill = Fill {
            channels: p.k,
            source: p.output,
            phases: vec![core::array::from_fn(|axis| -front[axis])],
            step: [1; 3],
            dims,
        };
        let mut passes = Vec::new();
        for d in &axes[0] {
            for h in &axes[1] {
                for w in &axes[2] {
                    let mut taps = Vec::new();
                    let mut at = Vec::new();
                    for &(td, bd) in &d.taps {
                        for &(th, bh) in &h.taps {
                            for &(tw, bw) in &w.taps {
                                taps.push((td * p.filter[1] + th) * p.filter[2] + tw);
                                at.push(offset(dims, [index(0, d, bd), index(1, h, bh), index(2, w, bw)]));
                            }
                        }
                    }
                    let target = Target {
                        count: [d.count, h.count, w.count],
                        first: [d.at, h.at, w.at],
                        step: p.stride,
                        plane: p.input,
                    };
                    let (vectors, segments) = cover(&target, dims, lanes);
                    let runs = runs(&target, dims);
                    passes.push(Pass {
                        taps,
                        offsets: offsets(&fill, &at),
                        vectors,
                        segments,
                        runs,
                        step: p.stride[2],
                    });
                }
            }
        }
        Plan { fill, passes }
    }
}
