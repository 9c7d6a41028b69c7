//! Layers and sums that end in an activation, forward and backward.

use burn::module::Param;
use burn::nn::{Linear, SwiGluConfig};
use burn::tensor::DType;
use burn::tensor::activation::{gelu, relu, silu};
use burn_rocm_nn::{Act, AddAct, LinearAct, MulAdd, SwiGluConfig as OwnSwiGluConfig};

use super::{B, Case, step, uniform};

const F32: DType = DType::F32;

fn linear(rows: usize, size: usize, act: Act) -> Case {
    let name = match act {
        Act::Relu => "ReLU",
        Act::Gelu => "GELU",
        Act::Silu => "SiLU",
    };
    Case::new(format!("linear and {name} [{rows}, {size}] f32, forward and backward"), move |device| {
        let x = uniform([rows, size], F32, device);
        let theirs = Linear {
            weight: Param::from_tensor(uniform([size, size], F32, device)),
            bias: Some(Param::from_tensor(uniform([size], F32, device))),
        };
        let ours = LinearAct::from_burn(theirs.clone(), act);
        let composed = move |x| match act {
            Act::Relu => relu(theirs.forward(x)),
            Act::Gelu => gelu(theirs.forward(x)),
            Act::Silu => silu(theirs.forward(x)),
        };
        [step(x.clone(), composed), step(x, move |x| ours.forward(x))]
    })
}

fn swiglu(rows: usize, size: usize) -> Case {
    Case::new(format!("SwiGLU [{rows}, {size}] f32, forward and backward"), move |device| {
        let x = uniform([rows, size], F32, device);
        let theirs = SwiGluConfig::new(size, size).init::<B>(device);
        let ours = OwnSwiGluConfig::new(size, size).init::<B>(device);
        [step(x.clone(), move |x| theirs.forward(x)), step(x, move |x| ours.forward(x))]
    })
}

/// `a * b + c` with all three tensors tracked.
fn mul_add(rows: usize) -> Case {
    Case::new(format!("a * b + c [{rows}, 4096] f32, forward and backward"), move |device| {
        let [a, b, c] = [(); 3].map(|()| uniform([rows, 4096], F32, device));
        let (b, c) = (b.require_grad(), c.require_grad());
        let (own_b, own_c) = (b.clone(), c.clone());
        [
            step(a.clone(), move |a| a * b.clone() + c.clone()),
            step(a, move |a| MulAdd::new().forward(a, own_b.clone(), own_c.clone())),
        ]
    })
}

pub(super) fn cases(rows: usize) -> Vec<Case> {
    let mut all = vec![
        Case::unary(
            "ReLU of a sum",
            [rows, 4096],
            F32,
            |x| relu(x.clone() + x),
            |x| AddAct::new(Act::Relu).forward(x.clone(), x),
        ),
        mul_add(rows),
        swiglu(rows.div_ceil(16), 1024),
    ];
    all.extend([Act::Relu, Act::Gelu, Act::Silu].map(|act| linear(rows.div_ceil(16), 1024, act)));
    all
}
