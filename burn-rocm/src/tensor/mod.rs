//! The one tensor primitive, for floats, integers and booleans.

mod put_off;

use std::sync::Arc;

use burn_std::{DType, Shape};
use hip::{Buffer, Device};

use crate::device::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::{OrRaise, invalid, unsupported};
use crate::layout::{Layout, broadcast_shape, count};
use crate::waiting::{Waiting, enqueue_own, release, wait};
pub(crate) use put_off::Work;
use put_off::{PutOff, Share};

/// A view of a device buffer: the elements' dtype and their layout in the buffer.
#[derive(Clone)]
pub struct RocmTensor {
    buffer: Arc<Buffer>,
    layout: Layout,
    dtype: DType,
    /// The product that writes the buffer, if it was put off.
    put_off: Option<Share>,
}

// An op that fails panics before it has changed a tensor. The device keeps its state behind locks
// that stay usable after a panic.
impl core::panic::UnwindSafe for RocmTensor {}
impl core::panic::RefUnwindSafe for RocmTensor {}

impl core::fmt::Debug for RocmTensor {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RocmTensor")
            .field("device", &self.rocm_device().to_string())
            .field("dtype", &self.dtype)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl RocmTensor {
    /// A tensor over all of `buffer`.
    ///
    /// # Errors
    /// `Invalid` if the buffer is smaller than the shape. Every kernel launch relies on this check,
    /// because a view has only elements of the layout that it was derived from.
    pub(crate) fn new(buffer: Buffer, shape: Shape, dtype: DType) -> hip::Result<Self> {
        let layout = Layout::contiguous(shape);
        let bytes = count(layout.dims()).and_then(|count| count.checked_mul(dtype.size()));
        if bytes.is_none_or(|bytes| bytes > buffer.len()) {
            let expected = format!("a buffer for {:?} of {}", layout.dims(), dtype.name());
            return invalid("tensor", expected, format!("{} bytes", buffer.len()));
        }
        let tensor = Self { buffer: Arc::new(buffer), layout, dtype, put_off: None };
        tensor.mark_written();
        Ok(tensor)
    }

    /// A tensor of this layout in `buffer`, which another library has filled.
    ///
    /// # Errors
    /// `Invalid` if the layout reaches past the buffer's end.
    pub(crate) fn over(buffer: Buffer, layout: Layout, dtype: DType) -> hip::Result<Self> {
        let end = layout.span().map_or(Some(0), |(_, last)| last.checked_add(1)?.checked_mul(dtype.size()));
        if end.is_none_or(|end| end > buffer.len()) {
            return invalid(
                "tensor",
                format!("{layout:?} inside the buffer"),
                format!("{} bytes", buffer.len()),
            );
        }
        Ok(Self { buffer: Arc::new(buffer), layout, dtype, put_off: None })
    }

    /// A new tensor with uninitialised elements.
    ///
    /// # Errors
    /// Those of the allocation; `OutOfMemory` also if the shape's byte count overflows.
    pub(crate) fn empty(device: &Arc<Device>, shape: impl Into<Shape>, dtype: DType) -> hip::Result<Self> {
        // The op that this thread put off must be enqueued before the one that writes this tensor,
        // and it holds memory that this allocation may need. If it fails, reads of its result
        // report the error.
        let _ = enqueue_own();
        let shape = shape.into();
        let size = kernel_type(dtype)?.size();
        let bytes = shape.as_slice().iter().try_fold(size, |bytes, &dim| bytes.checked_mul(dim));
        // At most half of the address space, so that element offsets stay below isize::MAX.
        let Some(bytes) = bytes.filter(|&bytes| bytes <= isize::MAX as usize) else {
            let (free, total) = device.memory_info()?;
            return Err(hip::Error::OutOfMemory { requested: usize::MAX, free, total, held: String::new() });
        };
        let buffer = device.alloc(bytes)?;
        Self::new(buffer, shape, dtype)
    }

    /// Tells that the running op writes the elements, so that they are checked when the op ends.
    fn mark_written(&self) {
        if hip::checks_ops()
            && self.is_contiguous()
            && let Ok(ty) = self.kernel_type()
        {
            hip::op_writes(&self.buffer, ty, self.byte_offset(), self.len());
        }
    }

    /// Removes the tensor from the running op's list of results to check: its elements are
    /// undefined, or some of them may be and the op only copies them.
    pub(crate) fn skip_check(self) -> Self {
        hip::op_does_not_write(&self.buffer);
        self
    }

    /// A new packed tensor of this tensor's shape and dtype, on its device.
    pub(crate) fn empty_like(&self) -> hip::Result<Self> {
        Self::empty(self.hip_device(), self.layout.shape().clone(), self.dtype)
    }

    /// The same buffer under another layout, which was derived from this tensor's.
    pub(crate) fn view(self, layout: Layout) -> Self {
        debug_assert!(match (layout.span(), self.layout.len()) {
            (Some((_, last)), _) => (last + 1) * self.dtype.size() <= self.buffer.len(),
            (None, _) => true,
        });
        Self { layout, ..self }
    }

    /// The same elements under another dtype, in which the bits have the same meaning.
    pub(crate) fn reinterpret(self, dtype: DType) -> Self {
        debug_assert_eq!(dtype.size(), self.dtype.size());
        Self { dtype, ..self }
    }

    /// Puts off `work`, which computes this tensor's elements, until the thread's next op or until
    /// the elements are needed. `dims` is the number of matrices, and the rows and columns of each.
    pub(crate) fn put_off(self, dims: [usize; 3], work: Work) -> Self {
        let product = Arc::new(PutOff::new(dims, work));
        wait(product.clone());
        let tensor = Self { put_off: Some(Share::new(product)), ..self };
        if hip::checks_ops() {
            // The op's results are checked at its end. An error comes with the first use.
            let _ = tensor.settle();
        }
        tensor
    }

    /// Takes the stacked operands of the product that was put off. The product is then never
    /// computed, so the caller must drop this tensor. `None` unless the product is still put off,
    /// this tensor is the only view of it, and the view shows all of its matrices in order. `dims`
    /// is as for [`put_off`](Self::put_off).
    pub(crate) fn take_stacked(&self, dims: [usize; 3]) -> Option<[Self; 2]> {
        let share = self.put_off.as_ref().filter(|share| share.product.dims == dims)?;
        if !self.layout.is_contiguous() || !share.is_only() {
            return None;
        }
        release(&share.product);
        // Another thread's replay may hold it too, but only enqueues it or finds it taken.
        share.product.take().map(|work| work.stacked)
    }

    /// Enqueues the product that writes the buffer, if it was put off.
    ///
    /// # Errors
    /// The product's error, at every call.
    #[inline]
    pub(crate) fn settle(&self) -> hip::Result<()> {
        self.put_off.as_ref().map_or(Ok(()), |share| share.product.enqueue())
    }

    /// The buffer. Enqueues the product that writes it first, if that was put off.
    ///
    /// # Panics
    /// With the product's error, if it fails.
    #[inline]
    pub(crate) fn buffer(&self) -> &Buffer {
        if self.put_off.is_some() {
            self.settle().or_raise();
        }
        &self.buffer
    }

    /// The buffer, to share it with work that outlives this tensor. Enqueues the product that writes
    /// it first, if that was put off.
    ///
    /// # Errors
    /// The product's error.
    pub(crate) fn shared_buffer(&self) -> hip::Result<&Arc<Buffer>> {
        self.settle()?;
        Ok(&self.buffer)
    }

    /// Whether both are views of one buffer.
    pub fn shares_buffer(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.buffer, &other.buffer)
    }

    /// Shape, strides and offset.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Sizes of the dimensions.
    pub fn dims(&self) -> &[usize] {
        self.layout.dims()
    }

    /// The number of elements.
    pub fn len(&self) -> usize {
        self.layout.len()
    }

    /// Whether the tensor has no elements.
    pub fn is_empty(&self) -> bool {
        self.layout.is_empty()
    }

    /// The kernels' type for the dtype.
    pub(crate) fn kernel_type(&self) -> hip::Result<hip::DType> {
        kernel_type(self.dtype)
    }

    /// The dtype, for callers without Burn's trait in scope.
    pub(crate) fn dtype_of(&self) -> DType {
        self.dtype
    }

    /// Bytes of one element.
    pub(crate) fn dtype_size(&self) -> usize {
        self.dtype.size()
    }

    /// The byte offset of the first element in the buffer. 0 for a tensor without elements, because
    /// an empty slice may begin beyond the buffer's end.
    pub(crate) fn byte_offset(&self) -> usize {
        let offset = self.layout.offset();
        if offset == 0 || self.is_empty() { 0 } else { offset * self.dtype.size() }
    }

    /// The device that holds the buffer.
    pub(crate) fn hip_device(&self) -> &Arc<Device> {
        self.buffer.device()
    }

    /// The device that holds the buffer.
    pub fn rocm_device(&self) -> RocmDevice {
        RocmDevice::new(self.buffer.device().info().index)
    }

    /// Whether the elements lie in row-major order with no gap.
    pub fn is_contiguous(&self) -> bool {
        self.layout.is_contiguous()
    }

    /// Whether this value is the buffer's only owner and its elements are contiguous. The result of
    /// an element-wise op may then overwrite them.
    pub(crate) fn can_overwrite(&mut self) -> bool {
        self.layout.is_contiguous() && self.is_sole_holder()
    }

    /// Whether this value is the only owner of its buffer at the moment of the call. Never for
    /// memory of another library, which others may read, nor for a graph's results, which the next
    /// replay overwrites.
    pub(crate) fn has_one_holder(&self) -> bool {
        !self.buffer.is_replayed() && self.is_only_owner()
    }

    /// [`has_one_holder`](Self::has_one_holder), also for a graph's results.
    fn is_only_owner(&self) -> bool {
        if self.buffer.is_foreign() {
            return false;
        }
        let one = || Arc::strong_count(&self.buffer) == 1;
        one() || {
            // The op that this thread put off may be the other owner, and so may the product that
            // writes the buffer, which any thread may have put off. If one of them fails, reads of
            // its result report the error.
            let _ = enqueue_own();
            let _ = self.settle();
            one()
        }
    }

    /// Whether this value is the only owner of its buffer. A deferred op that holds the buffer
    /// counts as an owner, and stays deferred. So does a graph, which reads its memory again.
    pub(crate) fn is_held_once(&self) -> bool {
        Arc::strong_count(&self.buffer) == 1 && !self.buffer.is_foreign() && !self.buffer.is_of_graph()
    }

    /// Whether this value is the only owner of its buffer, and the buffer is not a graph's
    /// result.
    pub(crate) fn is_sole_holder(&mut self) -> bool {
        !self.buffer.is_replayed() && self.is_written_alone()
    }

    /// [`is_sole_holder`](Self::is_sole_holder), also for a graph's results: for a caller whose user
    /// named this memory as the output.
    pub(crate) fn is_written_alone(&mut self) -> bool {
        if !self.is_only_owner() {
            return false;
        }
        // The list of what an op writes has a weak reference.
        hip::op_does_not_write(&self.buffer);
        let sole = Arc::get_mut(&mut self.buffer).is_some();
        if sole {
            self.mark_written();
        }
        sole
    }
}

/// The device of all operands.
///
/// # Errors
/// `Invalid` if they are on different devices.
pub(crate) fn one_device<'a>(op: &'static str, operands: &[&'a RocmTensor]) -> hip::Result<&'a Arc<Device>> {
    let device = operands[0].hip_device();
    for other in &operands[1..] {
        if !Arc::ptr_eq(device, other.hip_device()) {
            return invalid(
                op,
                format!("operands on {}", operands[0].rocm_device()),
                format!("{}", other.rocm_device()),
            );
        }
    }
    Ok(device)
}

/// The shape to which operands broadcast.
///
/// # Errors
/// `Invalid`, with the shapes and the first operand's dtype, if they do not broadcast.
pub(crate) fn one_shape(op: &'static str, operands: &[&RocmTensor]) -> hip::Result<Shape> {
    let mut shape = operands[0].layout.shape().clone();
    for other in &operands[1..] {
        if other.dims() == shape.as_slice() {
            continue;
        }
        shape = broadcast_shape(op, shape.as_slice(), other.dims()).map_err(|_| hip::Error::Invalid {
            op,
            expected: format!("shapes that broadcast, of {}", operands[0].dtype.name()),
            found: operands.iter().map(|t| format!("{:?}", t.dims())).collect::<Vec<_>>().join(" and "),
        })?;
    }
    Ok(shape)
}

/// The dtype of all operands.
///
/// # Errors
/// `Invalid` if they differ.
pub(crate) fn one_dtype(op: &'static str, operands: &[&RocmTensor]) -> hip::Result<DType> {
    let dtype = operands[0].dtype;
    for other in &operands[1..] {
        if other.dtype != dtype {
            return invalid(op, format!("operands of {}", dtype.name()), other.dtype.name());
        }
    }
    Ok(dtype)
}

/// Checks that a gradient has `x`'s device, dtype and shape.
///
/// # Errors
/// `Invalid` if they differ.
pub(crate) fn check_gradient(op: &'static str, x: &RocmTensor, grad: &RocmTensor) -> hip::Result<()> {
    one_device(op, &[x, grad])?;
    one_dtype(op, &[x, grad])?;
    match grad.dims() == x.dims() {
        true => Ok(()),
        false => invalid(op, format!("a gradient of shape {:?}", x.dims()), format!("{:?}", grad.dims())),
    }
}

/// The kernels' type for the tensor's dtype. Checks that it is a float type.
///
/// # Errors
/// `Unsupported` for other types.
pub(crate) fn float_type(op: &'static str, tensor: &RocmTensor) -> hip::Result<hip::DType> {
    match tensor.kernel_type()? {
        ty if ty.is_float() => Ok(ty),
        _ => unsupported(op, tensor.dtype_of()),
    }
}

/// Checks that the tensor has the axis.
///
/// # Errors
/// `Invalid` for an axis beyond the rank.
pub(crate) fn check_axis(op: &'static str, tensor: &RocmTensor, axis: usize) -> hip::Result<()> {
    if axis >= tensor.layout.rank() {
        return invalid(op, format!("an axis below {}", tensor.layout.rank()), format!("{axis}"));
    }
    Ok(())
}
