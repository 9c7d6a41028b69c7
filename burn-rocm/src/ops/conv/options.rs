//! The options of a convolution and the sizes that follow from them.

/// The options of a convolution, one entry a spatial axis.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub stride: Vec<usize>,
    pub padding: Vec<usize>,
    pub dilation: Vec<usize>,
    pub groups: usize,
    /// Whether they are a transposed convolution's: it computes what a plain one has as the input's gradient, and its
    /// own input's gradient is a plain convolution.
    pub transposed: bool,
    /// What a transposed convolution's output has beyond the least it could have.
    pub padding_out: Vec<usize>,
}

impl Options {
    /// As for a convolution over one more axis, of size 1, in front.
    pub(super) fn lifted(&self) -> Self {
        let front = |values: &[usize], first| core::iter::once(first).chain(values.iter().copied()).collect();
        Self {
            stride: front(&self.stride, 1),
            padding: front(&self.padding, 0),
            dilation: front(&self.dilation, 1),
            groups: self.groups,
            transposed: self.transposed,
            padding_out: front(&self.padding_out, 0),
        }
    }

    /// What a window and the output's extra padding reach over along an axis.
    pub(super) fn reach(&self, axis: usize, window: usize) -> Option<usize> {
        self.dilation[axis]
            .checked_mul(window.checked_sub(1)?)?
            .checked_add(1)?
            .checked_add(self.padding_out[axis])
    }

    /// The size along an axis of what a transposed convolution gives for `size`.
    pub(super) fn transposed_size(&self, axis: usize, window: usize, size: usize) -> Option<usize> {
        let whole =
            size.checked_sub(1)?.checked_mul(self.stride[axis])?.checked_add(self.reach(axis, window)?)?;
        whole.checked_sub(self.padding[axis].checked_mul(2)?)
    }

    /// The size along an axis that a transposed convolution makes `size` of.
    pub(super) fn transposed_input(&self, axis: usize, window: usize, size: usize) -> Option<usize> {
        let padded = self.padding[axis].checked_mul(2)?.checked_add(size)?;
        Some(padded.checked_sub(self.reach(axis, window)?)?.checked_div(self.stride[axis])? + 1)
    }
}
