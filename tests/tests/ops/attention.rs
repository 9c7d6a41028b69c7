//! What transformers need beyond products: layer norm and attention.

use burn_rocm_tests::*;

#[test]
fn layer_norm() {
    let random = Random::new();
    for dtype in FLOATS {
        for shape in [&[4usize, 8] as &[usize], &[2, 3, 33], &[1, 1], &[3, 1000]] {
            let width = shape[shape.len() - 1];
            let view = View::ALL[random.below(5)];
            let x = float(&random, shape, dtype, view, -2.0, 2.0);
            let gamma = float(&random, &[width], dtype, View::Contiguous, 0.5, 1.5);
            let beta = float(&random, &[width], dtype, View::Contiguous, -0.5, 0.5);
            differential!(
                format!("layer_norm {dtype:?} {shape:?} {view:?}"),
                Tolerance::of(dtype).times(32.0),
                |B, device| {
                    vec![
                        read_float::<B>(B::layer_norm(
                            x.float::<B>(&device),
                            gamma.float::<B>(&device),
                            Some(beta.float::<B>(&device)),
                            1e-5,
                        )),
                        read_float::<B>(B::layer_norm(
                            x.float::<B>(&device),
                            gamma.float::<B>(&device),
                            None,
                            1e-5,
                        )),
                    ]
                }
            );
        }
    }
}

#[test]
fn attention() {
    let random = Random::new();
    for dtype in [DType::F32, DType::F64] {
        for (batch, heads, queries, keys, width) in [(1, 1, 1, 1, 4), (2, 3, 5, 5, 8), (2, 2, 7, 9, 16)] {
            let q = float(&random, &[batch, heads, queries, width], dtype, View::Contiguous, -1.0, 1.0);
            let k = float(&random, &[batch, heads, keys, width], dtype, View::Contiguous, -1.0, 1.0);
            let v = float(&random, &[batch, heads, keys, width], dtype, View::Contiguous, -1.0, 1.0);
            let bias = float(&random, &[batch, heads, queries, keys], dtype, View::Contiguous, -1.0, 1.0);
            // Masked where 1; the first key stays, so that no row is masked whole.
            let mut at = 0;
            let masked = Input::new(
                &[batch, heads, queries, keys],
                DType::Bool(BoolStore::Native),
                View::Contiguous,
                || {
                    at += 1;
                    if (at - 1) % keys == 0 { 0.0 } else { random.below(2) as f64 }
                },
            );
            for causal in [false, true] {
                for scale in [None, Some(0.3)] {
                    for softcap in [None, Some(2.0)] {
                        let options = AttentionModuleOptions { scale, softcap, is_causal: causal };
                        let what = format!(
                            "attention {dtype:?} {batch}x{heads}x{queries}x{keys}x{width} {options:?}"
                        );
                        differential!(what, Tolerance::of(dtype).times(32.0), |B, device| {
                            let run = |mask, bias| {
                                B::attention(
                                    q.float::<B>(&device),
                                    k.float::<B>(&device),
                                    v.float::<B>(&device),
                                    mask,
                                    bias,
                                    options,
                                )
                            };
                            vec![
                                read_float::<B>(run(None, None)),
                                read_float::<B>(run(Some(masked.bool::<B>(&device)), None)),
                                read_float::<B>(run(None, Some(bias.float::<B>(&device)))),
                                read_float::<B>(run(
                                    Some(masked.bool::<B>(&device)),
                                    Some(bias.float::<B>(&device)),
                                )),
                            ]
                        });
                    }
                }
            }
        }
    }
}
