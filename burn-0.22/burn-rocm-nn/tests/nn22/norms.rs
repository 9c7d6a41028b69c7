//! Norms.

use crate::worlds::{as_burns, assert_launches, assert_same_but_for_a_sum, same_as_021};

macro_rules! both {
    ($what:expr, $added:expr, $terms:expr, |$v:ident, $nn:ident, $ty:ident| $body:block) => {{
        same_as_021!($what, $added, |$v, $nn, $ty| $body);
        as_burns!($what, $terms, |$v, $nn, $ty| $body);
    }};
}

#[test]
fn layer_norm() {
    for (bias, d) in [(true, 33), (false, 64)] {
        both!("layer norm", 0, 64, |v, nn, ty| {
            let x = v::leaf::<3>(1, [2, 5, d], ty);
            let norm = v::filled(nn::LayerNormConfig::new(d).with_bias(bias).init(&v::device()), ty);
            v::results(norm.forward(x.clone()), &[&x], &norm)
        });
    }
}

/// Burn 0.22 can't add the norm's gradient to one that is there already: a launch more.
#[test]
fn norms_beside_another_use_of_their_input() {
    macro_rules! norm_and_its_input {
        ($v:ident, $nn:ident, $ty:ident) => {{
            let x = $v::leaf::<3>(1, [2, 5, 33], $ty);
            let norm = $v::filled($nn::LayerNormConfig::new(33).init(&$v::device()), $ty);
            let between = x.clone().neg();
            $v::results(norm.forward(between.clone()) + between, &[&x], &norm)
        }};
    }
    same_as_021!("layer norm and its input", 1, assert_same_but_for_a_sum, |v, nn, ty| {
        norm_and_its_input!(v, nn, ty)
    });
    as_burns!("layer norm and its input", 64, |v, nn, ty| { norm_and_its_input!(v, nn, ty) });
    same_as_021!("RMS norm and its input", 1, assert_same_but_for_a_sum, |v, nn, ty| {
        let x = v::leaf::<3>(1, [2, 5, 33], ty);
        let norm = v::filled(nn::RmsNormConfig::new(33).init(&v::device()), ty);
        let between = x.clone().neg();
        v::results(norm.forward(between.clone()) + between, &[&x], &norm)
    });
}

#[test]
fn rms_norm() {
    same_as_021!("RMS norm", 0, |v, nn, ty| {
        let x = v::leaf::<3>(1, [2, 5, 48], ty);
        let norm = v::filled(nn::RmsNormConfig::new(48).init(&v::device()), ty);
        v::results(norm.forward(x.clone()), &[&x], &norm)
    });
}

#[test]
fn group_and_instance_norm() {
    for affine in [true, false] {
        both!("group norm", 0, 96, |v, nn, ty| {
            let x = v::leaf::<4>(1, [2, 6, 4, 5], ty);
            let config = nn::GroupNormConfig::new(3, 6).with_affine(affine);
            let norm = v::filled(config.init(&v::device()), ty);
            v::results(norm.forward(x.clone()), &[&x], &norm)
        });
        both!("instance norm", 0, 96, |v, nn, ty| {
            let x = v::leaf::<4>(1, [2, 6, 4, 5], ty);
            let norm = v::filled(nn::InstanceNormConfig::new(6).with_affine(affine).init(&v::device()), ty);
            v::results(norm.forward(x.clone()), &[&x], &norm)
        });
    }
}

/// f16 and bf16 inputs beside parameters in f32.
#[test]
fn parameters_in_f32() {
    use crate::worlds::Ty;
    same_as_021!("layer norm with f32 parameters", 0, |v, nn, ty| {
        let ty = if ty == Ty::BF16 { Ty::BF16 } else { Ty::F16 };
        let x = v::leaf::<3>(1, [2, 5, 33], ty);
        let norm = v::filled(nn::LayerNormConfig::new(33).init(&v::device()), Ty::F32);
        v::results(norm.forward(x.clone()), &[&x], &norm)
    });
    same_as_021!("group norm with f32 parameters", 0, |v, nn, ty| {
        let ty = if ty == Ty::BF16 { Ty::BF16 } else { Ty::F16 };
        let x = v::leaf::<4>(1, [2, 6, 4, 5], ty);
        let norm = v::filled(nn::GroupNormConfig::new(3, 6).init(&v::device()), Ty::F32);
        v::results(norm.forward(x.clone()), &[&x], &norm)
    });
    same_as_021!("RMS norm with f32 parameters", 0, |v, nn, ty| {
        let ty = if ty == Ty::BF16 { Ty::BF16 } else { Ty::F16 };
        let x = v::leaf::<3>(1, [2, 5, 33], ty);
        let norm = v::filled(nn::RmsNormConfig::new(33).init(&v::device()), Ty::F32);
        v::results(norm.forward(x.clone()), &[&x], &norm)
    });
}

/// Burn's own module, which asks the backend. The running statistics and the gradient's scale take small launches,
/// which chains join on a GPU. On the CPU device each of them counts.
#[test]
fn batch_norm() {
    as_burns!("batch norm", 96, |v, nn, ty| {
        let x = v::leaf::<4>(1, [4, 3, 5, 5], ty);
        let norm = v::filled(nn::BatchNormConfig::new(3).init(&v::device()), ty);
        v::results(norm.forward(x.clone()), &[&x], &norm)
    });
    macro_rules! launches {
        ($v:ident, $nn:ident) => {{
            let x = v::leaf::<4>(1, [4, 3, 5, 5], crate::worlds::Ty::F32);
            let norm = $nn::BatchNormConfig::new(3).init(&v::device());
            crate::worlds::counted(|| v::results(norm.forward(x.clone()), &[&x], &v::NONE)).1
        }};
    }
    let old = {
        use crate::worlds::v21 as v;
        launches!(v, burn_rocm_nn_021)
    };
    let new = {
        use crate::worlds::v22 as v;
        launches!(v, burn_rocm_nn_022)
    };
    assert_launches("batch norm", new, old, 13);
}
