//! The random numbers of a case, and the operands that ops make from them.

use burn_rocm_tests::*;
use proptest::prelude::*;
use std::cell::RefCell;

/// The operands that have their own layout in a case. Further ones reuse the layouts of the first
/// ones.
const OPERANDS: usize = 3;

/// How one axis of an operand is read from memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Axis {
    /// Unchanged.
    Whole,
    /// Sliced from a longer axis, every `step`-th element; backwards for a negative step.
    Slice(isize),
    /// Flipped.
    Flip,
    /// One element, repeated by stride 0.
    Expand,
}

/// The layout of one operand in memory.
#[derive(Clone, Debug)]
pub(crate) struct Lie {
    /// The number of a permutation of the axes (0: none).
    order: usize,
    axes: [Axis; 6],
}

/// A case. Each op takes the numbers that it needs, modulo what is possible. Everything shrinks to
/// the simplest value.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    pub(crate) op: usize,
    pub(crate) dims: Vec<usize>,
    pub(crate) dtype: usize,
    pub(crate) lies: [Lie; OPERANDS],
    /// For each operand, a bit for each axis along which it is broadcast.
    pub(crate) broadcast: [u8; OPERANDS],
    /// The kind of values: 0 small whole numbers, 1 in a range, 2 with NaN and infinities, 3 with
    /// extremes.
    pub(crate) wild: usize,
    pub(crate) knobs: [usize; 12],
    /// Whether clones of the operands live on, so that the op must not write in place. The clones
    /// are compared too.
    pub(crate) keep: bool,
    /// The seed of the operands' values.
    pub(crate) seed: u64,
    /// Whether the float operands have one sign and similar magnitudes, so that nothing cancels.
    pub(crate) one_sign: bool,
}

fn lie() -> impl Strategy<Value = Lie> {
    // A number instead of a choice of strategies, because the strategies of a case are side by side
    // on the stack.
    let axis = (0usize..20).prop_map(|n| match n {
        10 | 11 => Axis::Slice(1),
        12 => Axis::Slice(2),
        13 => Axis::Slice(3),
        14 => Axis::Slice(-1),
        15 => Axis::Slice(-2),
        16 => Axis::Flip,
        17 | 18 => Axis::Expand,
        _ => Axis::Whole,
    });
    let plain = Lie { order: 0, axes: [Axis::Whole; 6] };
    let any = (prop_oneof![2 => Just(0usize), 1 => 1usize..720], prop::array::uniform6(axis));
    prop_oneof![2 => Just(plain), 3 => any.prop_map(|(order, axes)| Lie { order, axes })].boxed()
}

/// Draws a case for one of `ops` ops.
pub(crate) fn draw(ops: usize) -> impl Strategy<Value = Draw> {
    let dim =
        prop_oneof![14 => 1usize..8, 4 => 8usize..40, 1 => Just(0), 1 => 60usize..70, 1 => 250usize..520];
    let dims =
        prop_oneof![12 => prop::collection::vec(dim, 1..=6), 1 => prop::collection::vec(500usize..5000, 1)]
            .boxed();
    let mask = prop_oneof![3 => Just(0u8), 1 => any::<u8>()];
    (
        (0..ops).no_shrink(),
        dims,
        0usize..8,
        prop::array::uniform3(lie()),
        prop::array::uniform3(mask),
        prop_oneof![2 => Just(0usize), 3 => Just(1), 2 => Just(2), 2 => Just(3)],
        prop::array::uniform12(0usize..1000),
        any::<bool>(),
        any::<u64>().no_shrink(),
    )
        .prop_map(|(op, dims, dtype, lies, broadcast, wild, knobs, keep, seed)| Draw {
            op,
            dims,
            dtype,
            lies,
            broadcast,
            wild,
            knobs,
            keep,
            seed,
            one_sign: false,
        })
}

impl Draw {
    /// A case with random numbers whose operands are contiguous.
    pub(crate) fn plain(random: &Random, dtype: usize, wild: usize, one_sign: bool) -> Self {
        let shapes: [&[usize]; 4] = [&[60], &[14, 23], &[4, 3, 9], &[2, 3, 5, 8]];
        let lie = Lie { order: 0, axes: [Axis::Whole; 6] };
        Self {
            op: 0,
            dims: shapes[random.below(4)].to_vec(),
            dtype,
            lies: std::array::from_fn(|_| lie.clone()),
            broadcast: [0; OPERANDS],
            wild,
            knobs: std::array::from_fn(|_| random.below(1000)),
            keep: false,
            seed: random.bits(),
            one_sign,
        }
    }

    /// The case's shape, with its largest dims halved until it has at most `most` elements.
    pub(crate) fn shape(&self, most: usize) -> Vec<usize> {
        let mut dims = self.dims.clone();
        // An op may fill an empty dim, so it counts as one.
        while dims.iter().map(|&n| n.max(1)).product::<usize>() > most {
            let largest = dims.iter_mut().max().expect("a shape has a dim");
            *largest = largest.div_ceil(2);
        }
        dims
    }

    /// A shape of exactly `rank` dims: the case's first dims, then ones.
    pub(crate) fn of_rank(&self, rank: usize, most: usize) -> Vec<usize> {
        let mut dims = self.dims.clone();
        dims.resize(rank, 1);
        Self { dims, ..self.clone() }.shape(most)
    }

    /// A shape for operand `k` that broadcasts to `shape`: some of its dims are 1.
    pub(crate) fn narrowed(&self, k: usize, shape: &[usize]) -> Vec<usize> {
        let bits = self.broadcast[k % OPERANDS];
        shape.iter().enumerate().map(|(d, &n)| if bits >> d & 1 == 1 { 1 } else { n }).collect()
    }

    /// An axis of `shape`.
    pub(crate) fn axis(&self, shape: &[usize]) -> usize {
        self.knobs[0] % shape.len()
    }

    /// The case's number `k`, modulo `n`.
    pub(crate) fn knob(&self, k: usize, n: usize) -> usize {
        self.knobs[k] % n.max(1)
    }

    /// The float type of the case.
    pub(crate) fn float_type(&self) -> DType {
        FLOATS[self.dtype % 4]
    }

    /// The integer type of the case.
    pub(crate) fn int_type(&self) -> DType {
        INTS[self.dtype % 8]
    }

    /// A bool store that both backends have.
    pub(crate) fn store(&self) -> BoolDType {
        [BoolDType::Native, BoolDType::U8][self.knobs[11] % 2]
    }

    /// A float scalar of the case's kind of values. Most scalars are not exact in f16 or bf16.
    pub(crate) fn scalar(&self, k: usize) -> Scalar {
        let n = self.knobs[k];
        Scalar::Float(match self.wild {
            // The case's values are whole numbers. f16, bf16 and even f32 round some of these
            // scalars to one of them.
            0 => [1.0, 2.0, -1.0, 3.0, 0.5, 1.0001, -1.9999, 3.00000001][n % 8],
            1 => n as f64 / 100.0 - 5.0,
            2 => [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.5, 0.1, -1.0 / 3.0][n % 8],
            _ => match n % 8 {
                0 => 0.0,
                1 => -0.0009765625,
                2 => -49152.0,
                3 => 2.5,
                // Every type rounds the smallest to 0. Every type but f64 rounds the largest to
                // infinity.
                _ => {
                    let random = Random::from_seed(self.seed ^ n as u64);
                    let size = 10f64.powf(random.uniform(-50.0, 42.0));
                    if random.below(2) == 0 { size } else { -size }
                }
            },
        })
    }

    /// [`Self::scalar`], but never NaN.
    pub(crate) fn number(&self, k: usize) -> Scalar {
        match self.scalar(k) {
            Scalar::Float(value) if value.is_nan() => Scalar::Float(1.5),
            scalar => scalar,
        }
    }

    /// The smallest and the largest value of the case's integer type.
    fn int_ends(&self) -> (i128, i128) {
        let bits = 8 * self.int_type().size() as u32;
        match self.int_type() {
            DType::U64 | DType::U32 | DType::U16 | DType::U8 => (0, (1 << bits) - 1),
            _ => (-(1 << (bits - 1)), (1 << (bits - 1)) - 1),
        }
    }

    /// An integer scalar. One that the case's type can't hold wraps. Unsigned types get no negative
    /// scalar, and narrow ones none above the largest i64, because the oracle does not take these.
    pub(crate) fn int_scalar(&self, k: usize) -> Scalar {
        let n = self.knobs[k];
        let (least, most) = self.int_ends();
        let value = match self.wild {
            0 => (n % 5) as i128,
            1 => n as i128 - 500,
            2 => [most, least, 0, 1, -1, most / 2, 7, most + 1, least - 1, 2 * most][n % 10],
            _ => Random::from_seed(self.seed ^ n as u64).bits() as i128 >> (n % 64),
        };
        if self.int_type() == DType::U64 {
            return Scalar::UInt(value.clamp(0, i128::from(u64::MAX)) as u64);
        }
        let value = value.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        if least < 0 { Scalar::Int(value) } else { Scalar::UInt(value.max(0) as u64) }
    }

    /// [`Self::int_scalar`], clamped to the range of the case's type.
    pub(crate) fn held(&self, k: usize) -> Scalar {
        let (least, most) = self.int_ends();
        match self.int_scalar(k) {
            Scalar::Int(value) => Scalar::Int(i128::from(value).clamp(least, most) as i64),
            Scalar::UInt(value) => Scalar::UInt(i128::from(value).clamp(least, most) as u64),
            other => other,
        }
    }
}

/// The range from which an op's floats are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Range {
    pub(crate) low: f64,
    pub(crate) high: f64,
    /// The highest kind of values for which the op can be compared.
    pub(crate) wildest: usize,
    pub(crate) nan: bool,
}

impl Range {
    /// A number between one end of the range and a sixteenth of it: the upper end if that is above
    /// 0, else the lower.
    fn of_one_sign(self, random: &Random) -> f64 {
        let end = if self.high > 0.0 { self.high } else { self.low };
        end * (-random.uniform(0.0, 4.0)).exp2()
    }
}

/// All floats.
pub(crate) const ANY: Range = Range { low: -10.0, high: 10.0, wildest: 3, nan: true };
/// All floats but NaN, which the oracle drops or keeps by op and type.
pub(crate) const NUMBERS: Range = Range { nan: false, ..ANY };
/// Floats without extremes, for sums, which otherwise depend on the order of their terms.
pub(crate) const SUMMED: Range = Range { low: -2.0, high: 2.0, wildest: 2, nan: true };
/// Finite floats in a small range.
pub(crate) const TAME: Range = Range { low: -2.0, high: 2.0, wildest: 1, nan: true };

fn float_value(random: &Random, dtype: DType, wild: usize, range: Range) -> f64 {
    let (max, tiny) = match dtype {
        DType::F64 => (f64::MAX, 5e-324),
        DType::F32 => (f64::from(f32::MAX), 1e-45),
        DType::F16 => (65504.0, 6e-8),
        _ => (3.38e38, 1e-40),
    };
    let whole = |n: usize| (range.low.ceil() + n as f64).min(range.high);
    let plain = range.low + (range.high - range.low) * random.uniform(0.0, 1.0);
    match (wild, random.below(12)) {
        (0, _) => whole(random.below((range.high - range.low) as usize + 1)),
        (2 | 3, 0) if range.nan => f64::NAN,
        (2 | 3, 1) => [f64::INFINITY, f64::NEG_INFINITY][random.below(2)],
        (2 | 3, 2) => [0.0, -0.0][random.below(2)],
        (3, 3) => [max, -max, tiny, -tiny][random.below(4)],
        (3, 4 | 5) => {
            let exponent = if dtype == DType::F16 { 4.5 } else { 37.0 };
            let size = 10f64.powf(random.uniform(-exponent, exponent));
            if random.below(2) == 0 { size } else { -size }
        }
        _ => plain,
    }
}

fn ints(random: &Random, count: usize, dtype: DType, wild: usize) -> TensorData {
    macro_rules! of {
        ($($variant:ident $t:ty),*) => {
            match dtype {
                $(DType::$variant => {
                    let value = |_| match (wild, random.below(8)) {
                        (0, _) => random.below(5) as $t,
                        (1, _) => {
                            let least = if <$t>::MIN == 0 { 0 } else { -100 };
                            let value = random.below(200) as i64 + least;
                            value.clamp(<$t>::MIN as i64, (<$t>::MAX as u64 >> 1) as i64) as $t
                        }
                        (_, 0) => [<$t>::MAX, <$t>::MIN, 0, (0 as $t).wrapping_sub(1)][random.below(4)],
                        (_, 1..=3) => random.below(5) as $t,
                        _ => random.bits() as $t,
                    };
                    TensorData::new((0..count).map(value).collect::<Vec<$t>>(), [count])
                })*
                other => unreachable!("{other:?} is no integer type"),
            }
        };
    }
    of!(I64 i64, I32 i32, I16 i16, I8 i8, U64 u64, U32 u32, U16 u16, U8 u8)
}

/// The `n`-th permutation of `rank` axes, the identity first.
fn permutation(mut n: usize, rank: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..rank).collect();
    let mut axes = Vec::new();
    while !left.is_empty() {
        axes.push(left.remove(n % left.len()));
        n /= left.len() + 1;
    }
    axes
}

/// The shape in memory of an operand of `shape`, and the slices that cut it out (in the operand's
/// order of axes).
fn base(shape: &[usize], lie: &Lie) -> (Vec<usize>, Vec<Slice>) {
    let along = |(d, &n): (usize, &usize)| match lie.axes[d % 6] {
        Axis::Slice(step) => {
            let by = step.unsigned_abs();
            let reach = if n == 0 { 0 } else { (n - 1) * by + 1 };
            (reach + 1 + by, Slice::new(1, Some(1 + reach as isize), if n == 0 { 1 } else { step }))
        }
        Axis::Expand if n != 0 => (1, Slice::new(0, Some(1), 1)),
        _ => (n, Slice::new(0, Some(n as isize), 1)),
    };
    shape.iter().enumerate().map(along).unzip()
}

/// One side of a comparison: a case, and the tensors that one backend makes from it.
pub(crate) struct Side<'a, B: Backend> {
    pub(crate) d: &'a Draw,
    pub(crate) device: burn_backend::tensor::Device<B>,
    kept: RefCell<Vec<Kept<B>>>,
    /// Whether the oracle gets f16 and bf16 operands in f32.
    widened: bool,
}

enum Kept<B: Backend> {
    Float(burn_backend::tensor::FloatTensor<B>),
    Int(burn_backend::tensor::IntTensor<B>),
    Bool(burn_backend::tensor::BoolTensor<B>),
}

macro_rules! laid_out {
    (
        $(#[$doc:meta])* $name:ident, $variant:ident, $tensor:ident,
        $from:ident, $permute:ident, $slice:ident, $flip:ident, $expand:ident
    ) => {
        $(#[$doc])*
        pub(crate) fn $name(
            &self,
            k: usize,
            shape: &[usize],
            make: impl FnOnce(&Random, usize) -> TensorData,
        ) -> burn_backend::tensor::$tensor<B> {
            let lie = &self.d.lies[k % OPERANDS];
            let random = Random::from_seed(self.d.seed.wrapping_add(k as u64 * 0x9e37_79b9));
            let (dims, slices) = base(shape, lie);
            let order = permutation(lie.order, shape.len());
            let stored: Vec<usize> = order.iter().map(|&axis| dims[axis]).collect();
            let mut data = make(&random, stored.iter().product());
            data.shape = Shape::from(stored);
            let mut tensor = B::$from(data, &self.device);
            if order.iter().enumerate().any(|(to, &from)| to != from) {
                let place = |axis| order.iter().position(|&o| o == axis).expect("each once");
                let back: Vec<usize> = (0..shape.len()).map(place).collect();
                tensor = B::$permute(tensor, &back);
            }
            if dims.as_slice() != shape && lie.axes.iter().any(|axis| matches!(axis, Axis::Slice(_))) {
                tensor = B::$slice(tensor, &slices);
            }
            let flipped: Vec<usize> = (0..shape.len()).filter(|d| lie.axes[d % 6] == Axis::Flip).collect();
            if !flipped.is_empty() {
                tensor = B::$flip(tensor, &flipped);
            }
            if tensor.shape().as_slice() != shape {
                tensor = B::$expand(tensor, Shape::from(shape.to_vec()));
            }
            if self.d.keep {
                self.kept.borrow_mut().push(Kept::$variant(tensor.clone()));
            }
            tensor
        }
    };
}

impl<'a, B: Backend> Side<'a, B> {
    /// The case on `B`'s first device. If `widened`, the oracle gets f16 and bf16 operands in f32.
    pub(crate) fn new(d: &'a Draw, widened: bool) -> Self {
        Self { d, device: Default::default(), kept: RefCell::default(), widened }
    }

    laid_out!(
        /** A float operand. */
        lay_float, Float, FloatTensor, float_from_data, float_permute, float_slice, float_flip, float_expand
    );
    laid_out!(
        /** An integer operand. */
        lay_int, Int, IntTensor, int_from_data, int_permute, int_slice, int_flip, int_expand
    );
    laid_out!(
        /** A bool operand. */
        lay_bool, Bool, BoolTensor, bool_from_data, bool_permute, bool_slice, bool_flip, bool_expand
    );

    /// Operand `k` of the case's float type.
    pub(crate) fn float(
        &self,
        k: usize,
        shape: &[usize],
        range: Range,
    ) -> burn_backend::tensor::FloatTensor<B> {
        self.float_of(k, shape, range, self.d.float_type())
    }

    /// Operand `k` of a float type.
    pub(crate) fn float_of(
        &self,
        k: usize,
        shape: &[usize],
        range: Range,
        dtype: DType,
    ) -> burn_backend::tensor::FloatTensor<B> {
        let wild = self.d.wild.min(range.wildest);
        let value = |random: &Random| match self.d.one_sign {
            true => range.of_one_sign(random),
            false => float_value(random, dtype, wild, range),
        };
        let tensor = self.lay_float(k, shape, |random, count| {
            let values = (0..count).map(|_| value(random)).collect();
            TensorData::new::<f64, _>(values, [count]).convert_dtype(dtype)
        });
        if self.widened && self.oracle() && matches!(dtype, DType::F16 | DType::BF16) {
            return B::float_cast(tensor, FloatDType::F32);
        }
        tensor
    }

    /// Whether this side is the oracle.
    pub(crate) fn oracle(&self) -> bool {
        std::any::TypeId::of::<B>() == std::any::TypeId::of::<O>()
    }

    /// For the oracle, the tensor without its strides, because some of its ops follow strides
    /// beyond the tensor's memory. For this backend, the tensor itself.
    pub(crate) fn settled(
        &self,
        tensor: burn_backend::tensor::FloatTensor<B>,
    ) -> burn_backend::tensor::FloatTensor<B> {
        if self.oracle() {
            return B::float_from_data(read_float::<B>(tensor), &self.device);
        }
        tensor
    }

    /// Operand `k` of the case's integer type. Its kind of values is the case's, but at most
    /// `wildest`.
    pub(crate) fn int(
        &self,
        k: usize,
        shape: &[usize],
        wildest: usize,
    ) -> burn_backend::tensor::IntTensor<B> {
        self.int_of(k, shape, wildest, self.d.int_type())
    }

    /// Operand `k` of an integer type.
    pub(crate) fn int_of(
        &self,
        k: usize,
        shape: &[usize],
        wildest: usize,
        dtype: DType,
    ) -> burn_backend::tensor::IntTensor<B> {
        self.lay_int(k, shape, |random, count| ints(random, count, dtype, self.d.wild.min(wildest)))
    }

    /// Operand `k` of the case's integer type with values in `low..high`.
    pub(crate) fn int_in(
        &self,
        k: usize,
        shape: &[usize],
        low: i64,
        high: i64,
    ) -> burn_backend::tensor::IntTensor<B> {
        let dtype = self.d.int_type();
        self.lay_int(k, shape, |random, count| whole(random, count, low, high, dtype))
    }

    /// Operand `k` of indices below `below`, as i64 or i32.
    pub(crate) fn indices(
        &self,
        k: usize,
        shape: &[usize],
        below: usize,
    ) -> burn_backend::tensor::IntTensor<B> {
        let dtype = [DType::I64, DType::I32][self.d.knobs[10] % 2];
        self.lay_int(k, shape, |random, count| whole(random, count, 0, below as i64, dtype))
    }

    /// Operand `k` of bools.
    pub(crate) fn bool(&self, k: usize, shape: &[usize]) -> burn_backend::tensor::BoolTensor<B> {
        self.lay_bool(k, shape, |random, count| {
            TensorData::new((0..count).map(|_| random.below(2) == 1).collect::<Vec<bool>>(), [count])
        })
    }

    /// The contents of the operands' clones at the end.
    pub(crate) fn kept(self) -> Vec<TensorData> {
        let read = |kept| match kept {
            Kept::Float(tensor) => read_float::<B>(tensor),
            Kept::Int(tensor) => read_int::<B>(tensor),
            Kept::Bool(tensor) => read_bool::<B>(tensor),
        };
        self.kept.into_inner().into_iter().map(read).collect()
    }
}

fn whole(random: &Random, count: usize, low: i64, high: i64, dtype: DType) -> TensorData {
    let values = (0..count).map(|_| low + random.below((high - low).max(1) as usize) as i64).collect();
    TensorData::new::<i64, _>(values, [count]).convert_dtype(dtype)
}
