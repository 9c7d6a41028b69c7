//! A program over Burn's names, compiled for several worlds: Burn 0.21 and Burn 0.22 on this device with each
//! checkpointing strategy, and Burn 0.22 on burn-flex.

use std::sync::OnceLock;

use crate::random::Random;

/// A float type, by the same name in both Burns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Ty {
    F64,
    F32,
    F16,
    BF16,
}

pub(crate) const TYPES: [Ty; 4] = [Ty::F64, Ty::F32, Ty::F16, Ty::BF16];

/// Uniform numbers in -2..2, the same for a tag everywhere in a run.
pub(crate) fn uniform(tag: u64, count: usize) -> Vec<f64> {
    static SEED: OnceLock<u64> = OnceLock::new();
    let seed = SEED.get_or_init(|| Random::new().bits());
    let random = Random::from_seed(seed ^ tag.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..count).map(|_| random.uniform(-2.0, 2.0)).collect()
}

/// Functions of the same names and meanings for a world.
macro_rules! world {
    ($name:ident, $burn:ident, [$($B:ty)?], [$($Inner:ty)?], $Device:ty, $Grads:ty, $device:expr) => {
        pub(crate) mod $name {
            use super::{Ty, uniform};
            #[allow(unused_imports)]
            use burn::tensor::Device;
            use $burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
            use $burn::tensor::{Bool, DType, Int, Tensor, TensorData};

            #[allow(unused_imports)] // in a world where no test pads
            pub(crate) use $burn::nn::{PaddingConfig2d as Padding, PaddingConfig3d as Padding3};
            #[allow(unused_imports)] // in a world where no test takes a view
            pub(crate) use $burn::tensor::s;

            pub(crate) type T<const D: usize> = Tensor<$($B,)? D>;
            type Inner<const D: usize> = Tensor<$($Inner,)? D>;
            type Grads = $Grads;

            pub(crate) fn device() -> $Device {
                $device
            }

            pub(crate) fn dtype(ty: Ty) -> DType {
                match ty {
                    Ty::F64 => DType::F64,
                    Ty::F32 => DType::F32,
                    Ty::F16 => DType::F16,
                    Ty::BF16 => DType::BF16,
                }
            }

            /// The numbers of a tag.
            pub(crate) fn tensor<const D: usize>(tag: u64, shape: [usize; D], ty: Ty) -> T<D> {
                of(uniform(tag, shape.iter().product()), shape, ty)
            }

            pub(crate) fn of<const D: usize>(values: Vec<f64>, shape: [usize; D], ty: Ty) -> T<D> {
                Tensor::from_data(TensorData::new(values, shape), (&device(), dtype(ty)))
            }

            pub(crate) fn leaf<const D: usize>(tag: u64, shape: [usize; D], ty: Ty) -> T<D> {
                tensor(tag, shape, ty).require_grad()
            }

            pub(crate) fn ints<const D: usize>(values: Vec<i64>, shape: [usize; D]) -> Tensor<$($B,)? D, Int> {
                Tensor::from_data(TensorData::new(values, shape), (&device(), DType::I64))
            }

            pub(crate) fn bools<const D: usize>(values: Vec<bool>, shape: [usize; D]) -> Tensor<$($B,)? D, Bool> {
                Tensor::from_data(TensorData::new(values, shape), &device())
            }

            pub(crate) fn read<const D: usize>(tensor: T<D>) -> Vec<f64> {
                tensor.into_data().iter::<f64>().collect()
            }

            /// The module with numbers of its own in every parameter.
            pub(crate) fn filled<M: Module$(<$B>)?>(module: M, ty: Ty) -> M {
                scaled(module, ty, 1.0)
            }

            /// The module that [`filled`] makes, with each number multiplied by `share`.
            pub(crate) fn scaled<M: Module$(<$B>)?>(module: M, ty: Ty, share: f64) -> M {
                struct Fill(u64, Ty, f64);
                impl ModuleMapper$(<$B>)? for Fill {
                    fn map_float<const D: usize>(&mut self, param: Param<T<D>>) -> Param<T<D>> {
                        let (id, tensor, mapper) = param.consume();
                        self.0 += 1;
                        let value = tensor_of(self, tensor.dims()).require_grad();
                        Param::from_mapped_value(id, value, mapper)
                    }
                }
                fn tensor_of<const D: usize>(&Fill(tag, ty, share): &Fill, shape: [usize; D]) -> T<D> {
                    let values = uniform(tag, shape.iter().product()).into_iter().map(|x| x * share);
                    super::$name::of(values.collect(), shape, ty)
                }
                module.map(&mut Fill(1000, ty, share))
            }

            /// The output, and the gradients of a weighted sum of it: of these leaves, then of the module's parameters.
            pub(crate) fn results<const D: usize, const E: usize, M: Module$(<$B>)?>(
                out: T<D>,
                leaves: &[&T<E>],
                module: &M,
            ) -> Vec<Vec<f64>> {
                let ty = [Ty::F64, Ty::F32, Ty::F16, Ty::BF16].into_iter().find(|ty| dtype(*ty) == out.dtype());
                let weights = tensor::<D>(99, out.dims(), ty.unwrap());
                let grads = (out.clone() * weights).sum().backward();
                let mut found = vec![read(out)];
                for leaf in leaves {
                    let grad: Inner<E> = leaf.grad(&grads).unwrap();
                    found.push(grad.into_data().iter::<f64>().collect());
                }
                struct Read<'a>(&'a Grads, Vec<Vec<f64>>);
                impl ModuleVisitor$(<$B>)? for Read<'_> {
                    fn visit_float<const D: usize>(&mut self, param: &Param<T<D>>) {
                        let value = param.val();
                        if value.is_require_grad() {
                            let grad: Inner<D> = value.grad(self.0).unwrap();
                            self.1.push(grad.into_data().iter::<f64>().collect());
                        }
                    }
                }
                let mut read = Read(&grads, found);
                module.visit(&mut read);
                read.1
            }

            /// No module.
            pub(crate) const NONE: Option<$burn::nn::Linear$(<$B>)?> = None;
        }
    };
}

type Plain21 = burn_021::backend::Autodiff<burn_rocm_021::Rocm>;
type Balanced21 = burn_021::backend::Autodiff<
    burn_rocm_021::Rocm,
    burn_021::backend::autodiff::checkpoint::strategy::BalancedCheckpointing,
>;

type Device21 = <Plain21 as burn_021::tensor::backend::BackendTypes>::Device;
type Grads21 = <Plain21 as burn_021::tensor::backend::AutodiffBackend>::Gradients;
use burn::tensor::{Device as Device22, Gradients as Grads22};

world!(
    v21,
    burn_021,
    [super::Plain21],
    [burn_rocm_021::Rocm],
    super::Device21,
    super::Grads21,
    Default::default()
);
world!(
    v21b,
    burn_021,
    [super::Balanced21],
    [burn_rocm_021::Rocm],
    super::Device21,
    super::Grads21,
    Default::default()
);
world!(v22, burn, [], [], super::Device22, super::Grads22, Device::rocm(0).autodiff());
world!(
    v22b,
    burn,
    [],
    [],
    super::Device22,
    super::Grads22,
    Device::rocm(0).autodiff().gradient_checkpointing()
);
world!(flex, burn, [], [], super::Device22, super::Grads22, Device::flex().autodiff());

/// The results of a body, and how many launches it took.
pub(crate) fn counted(body: impl FnOnce() -> Vec<Vec<f64>>) -> (Vec<Vec<f64>>, u64) {
    let (results, counts) = burn_rocm::trace::counting(body);
    (results, counts.launches())
}

/// Asserts that Burn 0.22 takes at most `added` launches more than Burn 0.21, if the device launches every op by
/// itself.
///
/// Where small ops join a chain, any other use of the device launches the chain early, and the tests of this program
/// share a device. So a count then depends on what other tests do meanwhile. `without_chains` counts on such a device.
#[track_caller]
pub(crate) fn assert_launches(what: &str, new: u64, old: u64, added: u64) {
    println!("{what}: {old} launches with Burn 0.21, {new} with 0.22");
    if !joins_ops() {
        assert!(new <= old + added, "{what}: {new} launches instead of {old}");
    }
}

/// Whether one launch may join several small ops.
pub(crate) fn joins_ops() -> bool {
    first().chain_limit() > 1
}

/// Whether one convolution gets the same algorithm each time. A GPU's library times its algorithms at a shape's third
/// call, and takes the fastest from then on.
fn fixed_algorithms() -> bool {
    on_cpu() || hip::deterministic()
}

/// Whether the CPU device runs the ops. Its kernels are compiled without contracting a product and a sum.
fn on_cpu() -> bool {
    first().provider().kind() == burn_rocm::ProviderKind::Cpu
}

fn first() -> std::sync::Arc<hip::Device> {
    hip::Device::get(0).unwrap()
}

/// Asserts equal bits (any NaN equals any other).
#[track_caller]
pub(crate) fn assert_same(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}, result {k}: length");
        for (i, (a, b)) in found.iter().zip(expected).enumerate() {
            let same = a == b || (a.is_nan() && b.is_nan());
            assert!(same, "{what}, result {k}, element {i}: {a} instead of {b}");
        }
    }
}

/// Half a unit in the last place of 1.
fn unit(ty: Ty) -> f64 {
    match ty {
        Ty::F64 => 2f64.powi(-53),
        Ty::F32 => 2f64.powi(-24),
        Ty::F16 => 2f64.powi(-11),
        Ty::BF16 => 2f64.powi(-8),
    }
}

/// Asserts results of the same convolutions: equal bits if they have the same algorithm, else as
/// [`assert_same_sums`], whose limit is more than twice that of the most terms here, 84 below 5. Two algorithms may
/// also round parts of a sum to the type.
#[track_caller]
pub(crate) fn assert_same_convolutions(what: &str, ty: Ty, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    match fixed_algorithms() {
        true => assert_same(what, found, expected),
        false => assert_same_sums(what, ty, found, expected),
    }
}

/// Asserts results whose second is a sum of a norm's gradient and of numbers below 2. With Burn 0.21 the norm's kernel
/// adds them. A GPU's compiler may contract that addition with the product before it: the sum then lacks a rounding of
/// the product, which is at most the sum plus 2.
#[track_caller]
pub(crate) fn assert_same_but_for_a_sum(what: &str, ty: Ty, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    if on_cpu() {
        return assert_same(what, found, expected);
    }
    let sum = 1..2;
    assert_same(what, &found[..sum.start], &expected[..sum.start]);
    assert_same(what, &found[sum.end..], &expected[sum.end..]);
    for (i, (a, b)) in found[1].iter().zip(&expected[1]).enumerate() {
        // The product's rounding, and that of either sum.
        let limit = unit(ty) * (1.01 * (b.abs() + 2.0) + 2.0 * b.abs());
        assert!((a - b).abs() <= limit, "{what}, the sum, element {i}: {a} instead of {b}");
    }
    assert_eq!(found[1].len(), expected[1].len(), "{what}: length of the sum");
}

/// Asserts results that differ only by the order in which layers add at most 48 numbers below 2^5, in f64 or f32, and
/// by the roundings of such a sum and of what is computed from it to the type.
#[track_caller]
pub(crate) fn assert_same_sums(what: &str, ty: Ty, found: &[Vec<f64>], expected: &[Vec<f64>]) {
    let wide = unit(if ty == Ty::F64 { Ty::F64 } else { Ty::F32 });
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        let largest = expected.iter().fold(0.0f64, |most, b| most.max(b.abs()));
        let stored = if unit(ty) > wide { 4.0 * unit(ty) * largest } else { 0.0 };
        let limit = 2.0 * 50.0 * 48.0 * 32.0 * wide + stored;
        assert_eq!(found.len(), expected.len(), "{what}, result {k}: length");
        for (i, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!((a - b).abs() <= limit, "{what}, result {k}, element {i}: {a} instead of {b}");
        }
    }
}

/// Asserts that results in f32 are near: some 16 sums of at most `terms` terms below 1 in magnitude, or of a share of
/// the result.
#[track_caller]
pub(crate) fn assert_near_f32(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>], terms: usize) {
    let limit = 16.0 * (terms + 32) as f64 * unit(Ty::F32);
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}, result {k}: length");
        for (i, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!(
                (a - b).abs() <= limit * b.abs().max(1.0),
                "{what}, result {k}, element {i}: {a}, expected {b}"
            );
        }
    }
}

/// Asserts that results in f64 are near. Each element of them is computed with a few sums of at most `terms` terms,
/// one from the other; all numbers on the way, and the factors by which one reaches the next, are below 2^6. Then an
/// error of `(terms + 32) u` in each of at most 16 steps grows to at most 2^10 times that (to first order).
#[track_caller]
pub(crate) fn assert_near(what: &str, found: &[Vec<f64>], expected: &[Vec<f64>], terms: usize) {
    let limit = 16.0 * 1024.0 * (terms + 32) as f64 * 2f64.powi(-53);
    assert_eq!(found.len(), expected.len(), "{what}: number of results");
    // The gradient of a bias of attention's keys is 0, others are not.
    let zero = expected.iter().filter(|result| result.iter().all(|b| b.abs() < 1e-3)).count();
    assert!(zero < expected.len().min(2), "{what}: {zero} results are 0");
    for (k, (found, expected)) in found.iter().zip(expected).enumerate() {
        assert_eq!(found.len(), expected.len(), "{what}, result {k}: length");
        for (i, (a, b)) in found.iter().zip(expected).enumerate() {
            assert!(
                (a - b).abs() <= limit * b.abs().max(1.0),
                "{what}, result {k}, element {i}: {a}, expected {b}"
            );
        }
    }
}

/// Asserts that a body gives the same bits and takes as many launches with both Burns, in each float type and with each
/// checkpointing strategy. [`assert_launches`] allows `added` launches more to Burn 0.22. A third argument replaces the
/// comparison of bits.
///
/// The body sees a world as `v`, this project's crate as `nn` and the type as `ty`.
macro_rules! same_as_021 {
    ($what:expr, $added:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {
        $crate::worlds::same_as_021!(
            $what,
            $added,
            |what: &str, _, new: &[Vec<f64>], old: &[Vec<f64>]| $crate::worlds::assert_same(what, new, old),
            |$v, $nn, $ty| $body
        )
    };
    ($what:expr, $added:expr, $assert:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {{
        for $ty in $crate::worlds::TYPES {
            let (old, old_launches) = {
                #[allow(unused_imports)]
                use {burn_rocm_nn_021 as $nn, $crate::worlds::v21 as $v};
                $crate::worlds::counted(|| $body)
            };
            let (new, launches) = {
                #[allow(unused_imports)]
                use {burn_rocm_nn_022 as $nn, $crate::worlds::v22 as $v};
                $crate::worlds::counted(|| $body)
            };
            let what = format!("{} {:?}", $what, $ty);
            $assert(&what, $ty, &new, &old);
            $crate::worlds::assert_launches(&what, launches, old_launches, $added);
            let what = format!("{what}, recomputed");
            let (old, old_launches) = {
                #[allow(unused_imports)]
                use {burn_rocm_nn_021 as $nn, $crate::worlds::v21b as $v};
                $crate::worlds::counted(|| $body)
            };
            let (new, launches) = {
                #[allow(unused_imports)]
                use {burn_rocm_nn_022 as $nn, $crate::worlds::v22b as $v};
                $crate::worlds::counted(|| $body)
            };
            $assert(&what, $ty, &new, &old);
            $crate::worlds::assert_launches(&what, launches, old_launches, $added);
        }
    }};
}
pub(crate) use same_as_021;

/// Asserts that a body gives near results with this crate here and with Burn 0.22's own modules on burn-flex, in f64.
macro_rules! as_burns {
    ($what:expr, $terms:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {
        $crate::worlds::as_burns!(F64, assert_near, $what, $terms, |$v, $nn, $ty| $body)
    };
    ($Ty:ident, $assert:ident, $what:expr, $terms:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {{
        let $ty = $crate::worlds::Ty::$Ty;
        let theirs: Vec<Vec<f64>> = {
            #[allow(unused_imports)]
            use {burn::nn as $nn, $crate::worlds::flex as $v};
            $body
        };
        let ours: Vec<Vec<f64>> = {
            #[allow(unused_imports)]
            use {burn_rocm_nn_022 as $nn, $crate::worlds::v22 as $v};
            $body
        };
        $crate::worlds::$assert(&$what, &ours, &theirs, $terms);
        let ours: Vec<Vec<f64>> = {
            #[allow(unused_imports)]
            use {burn_rocm_nn_022 as $nn, $crate::worlds::v22b as $v};
            $body
        };
        $crate::worlds::$assert(&format!("{}, recomputed", $what), &ours, &theirs, $terms);
    }};
}
pub(crate) use as_burns;

/// Asserts that a body gives near results with this crate's kernels and with what its modules compose of Burn's ops on
/// burn-flex, in f64.
macro_rules! as_composed {
    ($what:expr, $terms:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {{
        #[allow(unused_imports)]
        use burn_rocm_nn_022 as $nn;
        let $ty = $crate::worlds::Ty::F64;
        let composed: Vec<Vec<f64>> = {
            use $crate::worlds::flex as $v;
            $body
        };
        let fused: Vec<Vec<f64>> = {
            use $crate::worlds::v22 as $v;
            $body
        };
        $crate::worlds::assert_near(&$what, &fused, &composed, $terms);
        let fused: Vec<Vec<f64>> = {
            use $crate::worlds::v22b as $v;
            $body
        };
        $crate::worlds::assert_near(&format!("{}, recomputed", $what), &fused, &composed, $terms);
    }};
}
pub(crate) use as_composed;
