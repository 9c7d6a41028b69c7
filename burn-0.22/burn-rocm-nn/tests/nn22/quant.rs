//! Layers with quantised weights.

use crate::worlds::{Ty, same_as_021, uniform};

fn weights(count: usize) -> Vec<f32> {
    uniform(7, count).into_iter().map(|x| x as f32).collect()
}

#[test]
fn quantised_layers() {
    for rows in [1, 5, 20] {
        for int4 in [true, false] {
            same_as_021!("QuantLinear", 0, |v, nn, ty| {
                use nn::language::quant;
                // Quantised weights are no f64.
                let ty = if ty == Ty::F64 { Ty::F32 } else { ty };
                let to = if int4 { quant::RoundTo::Int4 } else { quant::RoundTo::Int8 };
                let parts = quant::round_to_nearest(&weights(12 * 70), [12, 70], to).unwrap();
                let weight = quant::QuantWeight::upload(&parts, &Default::default()).unwrap();
                let layer = quant::QuantLinear::new(weight, Some(v::tensor::<1>(2, [12], ty))).unwrap();
                let x = v::leaf::<2>(1, [rows, 70], ty);
                v::results(layer.forward(x.clone()), &[&x], &v::NONE)
            });
        }
    }
}

#[test]
fn layers_of_fp8() {
    let codes: Vec<u8> = weights(16 * 64).into_iter().map(|x| (x * 63.0) as i8 as u8 & 0xbf).collect();
    let scales: Vec<f32> = (1..=16).map(|at| at as f32 / 16.0).collect();
    for rows in [1, 20] {
        for scale in [None, Some(0.0), Some(0.01)] {
            same_as_021!("Fp8Linear", 0, |v, nn, ty| {
                use nn::language::quant;
                let ty = if ty == Ty::F64 { Ty::F32 } else { ty };
                let inputs = match scale {
                    None => quant::Fp8Inputs::Floats,
                    Some(0.0) => quant::Fp8Inputs::Dynamic,
                    Some(scale) => quant::Fp8Inputs::Scale(scale),
                };
                let e4m3 = quant::Fp8Type::E4M3;
                let weight =
                    quant::Fp8Weight::upload(e4m3, [16, 64], &codes, &scales, &Default::default()).unwrap();
                let weight = weight.with_inputs(inputs).unwrap();
                let layer = quant::Fp8Linear::new(weight, Some(v::tensor::<1>(2, [16], ty))).unwrap();
                let x = v::leaf::<2>(1, [rows, 64], ty);
                v::results(layer.forward(x.clone()), &[&x], &v::NONE)
            });
        }
    }
}

#[test]
fn quantised_embeddings() {
    same_as_021!("QuantEmbedding", 0, |v, nn, ty| {
        use nn::language::quant;
        let ty = if ty == Ty::F64 { Ty::F32 } else { ty };
        let parts = quant::round_to_nearest(&weights(9 * 64), [9, 64], quant::RoundTo::Int8).unwrap();
        let weight = quant::QuantWeight::upload(&parts, &Default::default()).unwrap();
        let table = quant::QuantEmbedding::new(weight, v::dtype(ty));
        vec![v::read(table.forward(v::ints(vec![3, 0, 8, 3], [4])))]
    });
}
