//! `mask_where` and `mask_fill`.

use burn_rocm_tests::*;

#[test]
fn mask_where_and_fill() {
    let random = Random::new();
    for &shape in SHAPES {
        for view in View::ALL {
            let (other, at) = (View::ALL[random.below(5)], View::ALL[random.below(5)]);
            let m = mask(&random, shape, at);
            for dtype in FLOATS {
                let a = float(&random, shape, dtype, view, -1.0, 1.0);
                let b = float(&random, shape, dtype, other, -1.0, 1.0);
                differential!(
                    format!("float mask {dtype:?} {shape:?} {view:?} {other:?} {at:?}"),
                    Tolerance::EXACT,
                    |B, device| {
                        vec![
                            read_float::<B>(B::float_mask_where(
                                a.float::<B>(&device),
                                m.bool::<B>(&device),
                                b.float::<B>(&device),
                            )),
                            read_float::<B>(B::float_mask_fill(
                                a.float::<B>(&device),
                                m.bool::<B>(&device),
                                Scalar::Float(0.25),
                            )),
                        ]
                    }
                );
            }
            let dtype = INTS[random.below(8)];
            let a = int(&random, shape, dtype, view, 0, 9);
            let b = int(&random, shape, dtype, other, 0, 9);
            let (p, q) = (mask(&random, shape, view), mask(&random, shape, other));
            differential!(
                format!("int and bool mask {dtype:?} {shape:?} {view:?} {other:?} {at:?}"),
                Tolerance::EXACT,
                |B, device| {
                    vec![
                        read_int::<B>(B::int_mask_where(
                            a.int::<B>(&device),
                            m.bool::<B>(&device),
                            b.int::<B>(&device),
                        )),
                        read_int::<B>(B::int_mask_fill(
                            a.int::<B>(&device),
                            m.bool::<B>(&device),
                            Scalar::Int(5),
                        )),
                        read_bool::<B>(B::bool_mask_where(
                            p.bool::<B>(&device),
                            m.bool::<B>(&device),
                            q.bool::<B>(&device),
                        )),
                        read_bool::<B>(B::bool_mask_fill(
                            p.bool::<B>(&device),
                            m.bool::<B>(&device),
                            Scalar::Bool(true),
                        )),
                    ]
                }
            );
        }
    }
}
