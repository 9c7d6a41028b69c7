//! Layers and sums that end in an activation, forward and backward.

use burn::module::Param;
use burn::nn::{Linear, SwiGluConfig};
use burn::tensor::DType;
use burn::tensor::Tensor;
use burn::tensor::activation::{gelu, relu, silu};
use burn_rocm::RocmTensor;
use burn_rocm::fused::{self, bias_act, bias_act_backward, bias_add, bias_add_backward};
use burn_rocm_nn::{Act, AddAct, LinearAct, MulAdd, SwiGluConfig as OwnSwiGluConfig};

use super::{B, Case, HALVES, held, pass, step, uniform};
use crate::gpu::cases::Bar;

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

fn primitive<const D: usize>(tensor: Tensor<B, D>) -> RocmTensor {
    tensor.inner().into_primitive().tensor()
}

/// The bias of a linear layer and GELU after it, without the product.
fn bias_and_gelu(rows: usize, size: usize, dtype: DType) -> Case {
    let name = format!("bias and GELU [{rows}, {size}] {}, forward and backward", dtype.name());
    // Forward reads and writes a tensor; backward reads two and writes one.
    let bytes = 5.0 * pass([rows, size], dtype);
    let case = Case::new(name, move |device| {
        let (x, grad) = (uniform([rows, size], dtype, device), uniform([rows, size], dtype, device));
        let bias = uniform([size], dtype, device);
        let (own_x, own_grad, own_bias) = (primitive(x.clone()), primitive(grad), primitive(bias.clone()));
        let bias = bias.require_grad();
        let own = held(device, move || {
            let (x, bias) = (own_x.clone(), Some(own_bias.clone()));
            let out = bias_act(fused::Act::Gelu, x.clone(), bias.clone(), 1).expect("the output");
            let grads = bias_act_backward(fused::Act::Gelu, x, bias, own_grad.clone(), 1, true);
            (out, grads.expect("the gradients"))
        });
        [step(x, move |x| gelu(x + bias.clone().unsqueeze::<2>())), own]
    });
    case.moves(bytes, Bar::OfCopy(0.9))
}

/// What adds a linear layer's product and its bias to a residual, with the bias's gradient.
fn residual_and_bias(rows: usize, size: usize, dtype: DType) -> Case {
    let name = format!("residual and bias [{rows}, {size}] {}, forward and backward", dtype.name());
    // Forward reads two tensors and writes one; backward reads one.
    let bytes = 4.0 * pass([rows, size], dtype);
    let case = Case::new(name, move |device| {
        let [x, residual, grad] = [(); 3].map(|()| uniform([rows, size], dtype, device));
        let bias = uniform([size], dtype, device);
        let [own_x, own_residual, own_grad] = [x.clone(), residual.clone(), grad].map(primitive);
        let own_bias = primitive(bias.clone());
        let bias = bias.require_grad();
        let own = held(device, move || {
            let sum = bias_add(own_residual.clone(), own_x.clone(), own_bias.clone()).expect("the sum");
            (sum, bias_add_backward(own_grad.clone()).expect("the gradient"))
        });
        [step(x, move |x| residual.clone() + (x + bias.clone().unsqueeze::<2>())), own]
    });
    case.moves(bytes, Bar::OfCopy(0.9))
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
    for dtype in HALVES {
        all.extend([bias_and_gelu(rows, 4096, dtype), residual_and_bias(rows, 4096, dtype)]);
    }
    all
}
