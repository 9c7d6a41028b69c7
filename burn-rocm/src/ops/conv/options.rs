//! The options of a convolution and the sizes that follow from them.

/// The options of a convolution, one entry for each spatial axis.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub stride: Vec<usize>,
    pub padding: Vec<usize>,
    pub dilation: Vec<usize>,
    pub groups: usize,
    /// Whether the convolution is transposed. A transposed convolution computes the input's
    /// gradient of a plain one, and its own input's gradient is a plain convolution.
    pub transposed: bool,
    /// Extra elements of a transposed convolution's output beyond its smallest possible size.
    pub padding_out: Vec<usize>,
}

impl Options {
    /// The same options with one more leading spatial axis, of size 1.
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

    /// The elements along an axis that a window and the output's extra padding cover.
    pub(super) fn reach(&self, axis: usize, window: usize) -> Option<usize> {
        self.dilation[axis]
            .checked_mul(window.checked_sub(1)?)?
            .checked_add(1)?
            .checked_add(self.padding_out[axis])
    }

    /// A transposed convolution's output size along an axis, for an input of `size`.
    pub(super) fn transposed_size(&self, axis: usize, window: usize, size: usize) -> Option<usize> {
        let whole =
            size.checked_sub(1)?.checked_mul(self.stride[axis])?.checked_add(self.reach(axis, window)?)?;
        whole.checked_sub(self.padding[axis].checked_mul(2)?)
    }

    /// A transposed convolution's input size along an axis, for an output of `size`.
    pub(super) fn transposed_input(&self, axis: usize, window: usize, size: usize) -> Option<usize> {
        let padded = self.padding[axis].checked_mul(2)?.checked_add(size)?;
        Some(padded.checked_sub(self.reach(axis, window)?)?.checked_div(self.stride[axis])? + 1)
    }
}
