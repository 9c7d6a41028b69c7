//! Calls of rocBLAS and MIOpen in a graph.

use hip::trace::counting;
use hip::{
    Activation, BatchNormDesc, Buffer, ConvDesc, DType, Error, GroupNormDesc, LayerNormDesc, PoolDesc,
    PoolMode, ReduceDesc, Reduction, SoftmaxDesc, TensorArg,
};
use serial_test::serial;

use crate::common::{self, device};
use crate::support::*;

fn arg(buffer: &Buffer) -> TensorArg<'_> {
    TensorArg::new(buffer)
}

/// The bits that calls of rocBLAS and MIOpen write, eagerly and by a replay.
#[test]
#[serial]
fn library_calls_give_the_same_bits() {
    let device = device();
    let (f32s, f16s) = (DType::F32, DType::F16);
    let random = |seed, dtype, count| common::random_tensor(&device, seed, dtype, count).buffer;
    let conv = ConvDesc::new(f32s, &[2, 4, 9, 9], &[6, 4, 3, 3], &[1, 1], &[1, 1], &[1, 1], 1).unwrap();
    let (cx, cw, cy) = (random(1, f32s, 648), random(2, f32s, 216), random(3, f32s, 972));
    let norm = BatchNormDesc { dtype: f32s, batch: 2, channels: 4, spatial: 64 };
    let (nx, channel) = (random(4, f32s, 512), |seed| random(seed, f32s, 4));
    let (scale, bias) = (channel(5), channel(6));
    let rows = LayerNormDesc { dtype: f32s, rows: 16, len: 32 };
    let groups = GroupNormDesc { dtype: f32s, batch: 2, channels: 4, spatial: 64, groups: 2 };
    let (weight, shift) = (random(7, f32s, 32), random(8, f32s, 32));
    let pool = PoolDesc {
        dtype: f32s,
        x: vec![2, 4, 8, 8],
        y: vec![2, 4, 4, 4],
        window: vec![2, 2],
        stride: vec![2, 2],
        padding: vec![0, 0],
        mode: PoolMode::Max,
        index: DType::I64,
    };
    let average = PoolDesc { mode: PoolMode::AverageInclusive, ..pool.clone() };
    let soft = SoftmaxDesc { dtype: f16s, outer: 4, len: 16, inner: 2, log: false };
    let sum = ReduceDesc { dtype: f32s, x: vec![4, 128], y: vec![4, 1], op: Reduction::Sum };
    let (halves, half_out) = (random(9, f16s, 128), random(10, f16s, 128));
    let small = random(11, f32s, 128);
    let product = |dtype: DType| [random(12, dtype, 35), random(13, dtype, 21), random(14, dtype, 15)];
    let (singles, doubles, shorts) = (product(f32s), product(DType::F64), product(f16s));
    // What each call writes, from memory of the same contents in both runs.
    let outputs = || -> Vec<Buffer> {
        let sizes = [60, 120, 30, 3888, 2592, 864, 2048, 16, 16, 2048, 16, 16, 2048, 64, 64, 2048, 16, 16];
        let more = [512, 1024, 2048, 512, 256, 256, 16, 512, 512, 60, 3888];
        sizes.iter().chain(&more).map(|&bytes| device.upload(&vec![0x3c; bytes]).unwrap()).collect()
    };
    let run = |out: &[Buffer]| -> hip::Result<()> {
        let (blas, dnn) = (device.blas()?, device.dnn()?);
        for (at, (dtype, [a, b, c])) in
            [(f32s, &singles), (DType::F64, &doubles), (f16s, &shorts)].into_iter().enumerate()
        {
            device.copy(c, 0, &out[at], 0, c.len().min(out[at].len()))?;
            let (a, b, c) = (matrix(a, 5, 7), matrix(b, 7, 3), matrix(&out[at], 5, 3));
            blas.gemm(dtype, 1, a, b, c, 1.5, 0.5, false)?;
        }
        blas.geam(
            f32s,
            1,
            2.0,
            matrix(&singles[2], 5, 3),
            0.5,
            matrix(&singles[2], 5, 3),
            matrix(&out[27], 5, 3),
        )?;
        dnn.conv_forward(&conv, arg(&cx), arg(&cw), arg(&out[3]))?;
        dnn.conv_backward_data(&conv, arg(&cy), arg(&cw), arg(&out[4]))?;
        dnn.conv_backward_weights(&conv, arg(&cy), arg(&cx), arg(&out[5]))?;
        let saved = [arg(&out[7]), arg(&out[8])];
        let running = Some([arg(&out[10]), arg(&out[11])]);
        let (s, b) = (arg(&scale), arg(&bias));
        dnn.batch_norm_train(&norm, arg(&nx), arg(&out[6]), s, b, running, 0.1, 1e-5, Some(saved))?;
        let gradients = (arg(&out[16]), arg(&out[17]));
        dnn.batch_norm_backward(
            &norm,
            arg(&nx),
            arg(&nx),
            arg(&out[9]),
            s,
            gradients.0,
            gradients.1,
            1e-5,
            saved,
        )?;
        dnn.batch_norm_infer(&norm, arg(&nx), arg(&out[15]), s, b, arg(&scale), saved[1], 1e-5)?;
        let (mean, rstd) = (arg(&out[13]), arg(&out[14]));
        dnn.layer_norm_forward(&rows, arg(&nx), arg(&weight), arg(&shift), 1e-5, arg(&out[12]), mean, rstd)?;
        dnn.pool_forward(&pool, arg(&nx), arg(&out[18]), Some(arg(&out[19])))?;
        dnn.pool_backward(&pool, arg(&out[18]), arg(&out[20]), Some(arg(&out[19])))?;
        dnn.pool_forward(&average, arg(&nx), arg(&out[21]), None)?;
        dnn.softmax_forward(&soft, arg(&halves), arg(&out[22]))?;
        dnn.softmax_backward(&soft, arg(&out[22]), arg(&half_out), arg(&out[23]))?;
        dnn.reduce(&sum, arg(&nx), arg(&out[24]), None)?;
        let relu = Activation::Relu;
        dnn.activation_forward(relu, f32s, 128, arg(&small), arg(&out[25]))?;
        dnn.activation_backward(relu, f32s, 128, arg(&out[25]), arg(&small), arg(&small), arg(&out[26]))?;
        // cuDNN 9.14 has no kernel for the fused convolution, AMD's MIOpen 3.5 none for the norm.
        let or_refused = |result: hip::Result<()>| match result {
            Err(Error::Miopen { refused: true, .. }) => Ok(()),
            result => result,
        };
        let fused =
            dnn.conv_bias_activation(&conv, relu, arg(&cx), arg(&cw), Some(arg(&shift)), arg(&out[28]));
        or_refused(fused)?;
        or_refused(dnn.group_norm_forward(&groups, arg(&nx), s, b, 1e-5, arg(&out[12]), mean, rstd))
    };
    let bits = |out: &[Buffer]| -> Vec<Vec<u8>> {
        out.iter()
            .map(|buffer| {
                let mut bytes = vec![0; buffer.len()];
                device.read(buffer, 0, &mut bytes).unwrap();
                bytes
            })
            .collect()
    };
    // Three times: then MIOpen has chosen.
    for _ in 0..4 {
        run(&outputs()).unwrap();
    }
    let (eager, replayed) = (outputs(), outputs());
    let (graph, ()) = capture(&device, || run(&replayed).unwrap());
    assert_eq!(bits(&replayed), bits(&outputs()), "nothing ran yet");
    for turn in 0..3 {
        run(&eager).unwrap();
        let ((), counts) = counting(|| graph.replay().unwrap());
        assert_eq!(counts.launches(), 1);
        for (number, (eager, replayed)) in bits(&eager).into_iter().zip(bits(&replayed)).enumerate() {
            assert_eq!(eager, replayed, "output {number}, turn {turn}");
        }
    }
    assert!(graph.recorded().library_calls >= 17, "{:?}", graph.recorded());
}
