//! The shape of one convolution, always with three spatial axes. 2-D convolutions have depth 1.

/// The direction of a convolution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// `y` from `x`.
    Forward,
    /// `dx` from `dy`.
    Backward,
}

/// A convolution's shape. Channels are those of one group; axes are depth, height, width.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) batch: usize,
    pub(crate) groups: usize,
    /// Input channels of one group.
    pub(crate) c: usize,
    /// Output channels of one group.
    pub(crate) k: usize,
    pub(crate) input: [usize; 3],
    pub(crate) output: [usize; 3],
    pub(crate) filter: [usize; 3],
    pub(crate) stride: [usize; 3],
    pub(crate) pad: [usize; 3],
    pub(crate) dilation: [usize; 3],
}

impl Problem {
    /// Pixels of one input plane.
    pub(crate) fn input_plane(&self) -> usize {
        self.input.iter().product()
    }

    /// Pixels of one output plane.
    pub(crate) fn output_plane(&self) -> usize {
        self.output.iter().product()
    }

    /// Taps of one filter plane.
    pub(crate) fn taps(&self) -> usize {
        self.filter.iter().product()
    }

    /// Elements of the whole input.
    pub(crate) fn x_len(&self) -> usize {
        self.batch * self.groups * self.c * self.input_plane()
    }

    /// Elements of the whole output.
    pub(crate) fn y_len(&self) -> usize {
        self.batch * self.groups * self.k * self.output_plane()
    }

    /// Elements of the whole filter.
    pub(crate) fn w_len(&self) -> usize {
        self.groups * self.k * self.c * self.taps()
    }

    /// The filter's taps as coordinates, in memory order.
    pub(crate) fn tap_coordinates(&self) -> impl Iterator<Item = [usize; 3]> + '_ {
        let [fd, fh, fw] = self.filter;
        (0..fd * fh * fw).map(move |i| [i / (fh * fw), i / fw % fh, i % fw])
    }
}
