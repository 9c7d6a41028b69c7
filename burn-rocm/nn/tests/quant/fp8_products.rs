//! Products of fp8 against f64, and who computes them.

use burn::backend::Autodiff;
use burn::tensor::{DType, Tensor, TensorData, TensorPrimitive};
use burn_rocm::fused::{Fp8Inputs, Fp8Tensor, Fp8Type, Fp8Weight, upload};
use burn_rocm::graph::Graph;
use burn_rocm::{ProviderKind, Rocm, RocmDevice, RocmError, RocmTensor};
use burn_rocm_nn::language::quant::Fp8Linear;
use burn_rocm_tests::limits::{least, unit};
use burn_rocm_tests::lockstep::{fewer, in_lockstep};
use burn_rocm_tests::trace::during;
use burn_rocm_tests::{Random, SAID, read_float, said_by};

const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn on_cpu() -> bool {
    burn_rocm::provider().unwrap().kind() == ProviderKind::Cpu
}

fn on_device(data: TensorData, dtype: DType) -> RocmTensor {
    upload(data, dtype, &RocmDevice::default()).unwrap()
}

fn scalar(value: f32) -> RocmTensor {
    on_device(TensorData::new(vec![value], [1]), DType::F32)
}

fn bytes(tensor: &RocmTensor) -> Vec<u8> {
    burn_rocm::fused::read_all(vec![tensor.clone()]).unwrap().remove(0).to_vec::<u8>().unwrap()
}

fn floats(tensor: RocmTensor) -> Vec<f64> {
    read_float::<Rocm>(tensor).iter::<f64>().collect()
}

fn greatest(ty: Fp8Type) -> f32 {
    (0..=255).map(|code| ty.decode(code)).filter(|x| x.is_finite()).fold(0.0, f32::max)
}

/// Codes of finite numbers.
fn draw(random: &Random, ty: Fp8Type, count: usize) -> Vec<u8> {
    let finite = |_| loop {
        let code = random.bits() as u8;
        if ty.decode(code).is_finite() {
            return code;
        }
    };
    (0..count).map(finite).collect()
}

/// Who computed a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Library,
    Conversion,
}

/// The result, and who computed it.
fn traced(product: impl FnOnce() -> RocmTensor) -> (Vec<f64>, By) {
    let (found, lines) = during(|| floats(product()));
    let has = |what: &str| lines.iter().any(|line| line.contains(what));
    match (has("hipblasLtMatmul E"), has("fp8_decode")) {
        (true, false) => (found, By::Library),
        (false, true) => (found, By::Conversion),
        _ => panic!("neither hipBLASLt nor conversions, or both: {lines:?}"),
    }
}

/// A product in f64, of numbers of fp8 and scales.
struct Expected {
    /// `[rows, inputs]`
    x: Vec<f64>,
    /// `[outs, inputs]`
    weight: Vec<f64>,
    inputs: usize,
    dtype: DType,
    /// The units of both operands: what 1 is.
    units: [f64; 2],
}

impl Expected {
    /// The sum of an element's terms, and that of their magnitudes.
    fn of(&self, at: usize) -> (f64, f64) {
        let outs = self.weight.len() / self.inputs;
        let (row, out) = (at / outs, at % outs);
        (0..self.inputs).fold((0.0, 0.0), |(sum, size), k| {
            let term = self.x[row * self.inputs + k] * self.weight[out * self.inputs + k];
            (sum + term, size + term.abs())
        })
    }

    /// Each sum has up to 4 more roundings than terms, because scales multiply it, and the result is rounded
    /// to the dtype. A sum of a GPU's matrix cores keeps less than f32: NVIDIA's Hopper adds products of fp8
    /// with 13 bits after the point of the greatest (DeepSeek-V3, <https://arxiv.org/abs/2412.19437>, section
    /// 3.3.2). A conversion rounds both operands to the dtype, or to f32 for f16.
    fn check(&self, what: &str, found: &[f64], by: By) {
        let u = unit(self.dtype);
        let of_sum = if by == By::Library && !on_cpu() { 2f64.powi(-13) } else { unit(DType::F32) };
        let between = if self.dtype == DType::F16 { DType::F32 } else { self.dtype };
        let of_operands = if by == By::Conversion { 2.01 * unit(between) } else { 0.0 };
        assert_eq!(found.len(), self.x.len() / self.inputs * (self.weight.len() / self.inputs), "{what}");
        for (at, found) in found.iter().enumerate() {
            let (value, size) = self.of(at);
            let off = ((self.inputs as f64 + 4.0) * of_sum + of_operands) * size;
            // Results and converted operands below their dtype's normal numbers are off by up to `least`. No
            // operand exceeds 8.
            let [x, weight] = self.units;
            let of_operands = if by == By::Conversion { 8.0 / x + 8.0 / weight } else { 0.0 };
            let lost =
                least(self.dtype) / (x * weight) + least(between) * 1.01 * self.inputs as f64 * of_operands;
            let off = off + 1.01 * u * (value.abs() + off) + lost;
            assert!((found - value).abs() <= off, "{what} at {at}: {found}, not {value}, within {off:e}");
        }
    }
}

/// A weight whose numbers are at most 1.
struct Weight {
    ty: Fp8Type,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<f32>,
}

impl Weight {
    fn new(random: &Random, ty: Fp8Type, shape: [usize; 2], each_has_its_own: bool) -> Self {
        let scales = (0..if each_has_its_own { shape[0] } else { 1 })
            .map(|_| random.uniform(0.3, 1.0) as f32 / greatest(ty))
            .collect();
        Self { ty, shape, codes: draw(random, ty, shape[0] * shape[1]), scales }
    }

    fn upload(&self) -> Fp8Weight {
        Fp8Weight::upload(self.ty, self.shape, &self.codes, &self.scales, &RocmDevice::default()).unwrap()
    }

    fn numbers(&self) -> Vec<f64> {
        let scale = |at: usize| self.scales[if self.scales.len() == 1 { 0 } else { at / self.shape[1] }];
        let number = |(at, &code)| f64::from(self.ty.decode(code)) * f64::from(scale(at));
        self.codes.iter().enumerate().map(number).collect()
    }
}

/// Every pair of types, by hipBLASLt where it has the types and the sizes are multiples of 16.
#[test]
fn products_of_all_types() {
    let random = Random::new();
    let mut computed = 0;
    let pairs = Fp8Type::ALL.into_iter().flat_map(|x| Fp8Type::ALL.map(|weight| [x, weight]));
    for [x_type, ty] in fewer(pairs, 3, &random) {
        let family = |ty: Fp8Type| ty.fnuz() == ty;
        let two_e5m2 = [x_type, ty].iter().all(|&ty| ty.fnuz() == Fp8Type::E5M2Fnuz);
        for dtype in DTYPES {
            for (each_has_its_own, [rows, inputs, outs]) in [
                (false, [1 + random.below(40), 16 * (1 + random.below(9)), 16 * (1 + random.below(4))]),
                (true, [1 + random.below(40), 16 * (1 + random.below(9)), 16 * (1 + random.below(4))]),
                (false, [17, 33, 16]),
                (true, [3, 48, 7]),
                (false, [1, 1, 1]),
            ] {
                let what = format!("{x_type:?} x {ty:?} to {dtype:?}, {rows} x {inputs} x {outs}");
                let weight = Weight::new(&random, ty, [outs, inputs], each_has_its_own);
                let (codes, scale) = (draw(&random, x_type, rows * inputs), 1.5 / greatest(x_type));
                let x = on_device(TensorData::new(codes.clone(), [rows, inputs]), DType::U8);
                let x = Fp8Tensor::of_codes(x_type, x, scalar(scale)).unwrap();
                let on_device = weight.upload();
                let (found, by) = traced(|| on_device.multiply(&x, dtype).unwrap());
                let number = |&code| f64::from(x_type.decode(code)) * f64::from(scale);
                let x = codes.iter().map(number).collect();
                Expected { x, weight: weight.numbers(), inputs, dtype, units: [1.0; 2] }
                    .check(&what, &found, by);
                let fits = [inputs, outs].iter().all(|size| size.is_multiple_of(16))
                    && family(x_type) == family(ty)
                    && !two_e5m2;
                // Other devices may have no algorithm for a type.
                if on_cpu() {
                    assert_eq!(by == By::Library, fits, "{what}");
                } else if !fits {
                    println!("{what}: {by:?}");
                }
                computed += usize::from(by == By::Library);
            }
        }
    }
    println!("hipBLASLt computed {computed} products");
    let device = hip::Device::get(0).unwrap();
    let multiplies = device.blas_lt_fp8().and_then(|lt| lt.multiplies_fp8(&device, [hip::Fp8::E4M3; 2]));
    if multiplies == Ok(true) && !in_lockstep() {
        assert!(computed > 0, "hipBLASLt says that it multiplies E4M3");
    }
}

/// f16 holds the results, but not the operands.
#[test]
fn operands_beyond_f16() {
    let random = Random::new();
    for (units, inputs) in [[2e5, 1e-6], [1e-9, 1e8], [1e30, 1e-30]]
        .into_iter()
        .flat_map(|units| [31, 32].map(|inputs| (units, inputs)))
    {
        let ty = Fp8Type::E4M3;
        let [rows, outs] = [3, 16];
        let mut weight = Weight::new(&random, ty, [outs, inputs], random.below(2) == 1);
        weight.scales.iter_mut().for_each(|scale| *scale *= units[1] as f32);
        let codes = draw(&random, ty, rows * inputs);
        let scale = units[0] as f32 / greatest(ty);
        let x = on_device(TensorData::new(codes.clone(), [rows, inputs]), DType::U8);
        let x = Fp8Tensor::of_codes(ty, x, scalar(scale)).unwrap();
        let (found, by) = traced(|| weight.upload().multiply(&x, DType::F16).unwrap());
        if on_cpu() {
            assert_eq!(by == By::Library, inputs == 32);
        }
        let number = |&code| f64::from(ty.decode(code)) * f64::from(scale) / units[0];
        let x = codes.iter().map(number).collect();
        let weight = weight.numbers().into_iter().map(|x| x / units[1]).collect();
        let found: Vec<f64> = found.into_iter().map(|x| x / (units[0] * units[1])).collect();
        Expected { x, weight, inputs, dtype: DType::F16, units }.check(&format!("{units:?}"), &found, by);
    }
}

/// Activations as a layer gets them, with a few that are large.
fn activations(random: &Random, count: usize, size: f64, dtype: DType) -> TensorData {
    let value = |at: usize| if at % 37 == 5 { 8.0 * size } else { size } * random.uniform(-1.0, 1.0);
    TensorData::new::<f64, _>((0..count).map(value).collect(), [count]).convert_dtype(dtype)
}

/// The scale and the codes of a host that computes the definition.
fn quantized(x: &[f32], ty: Fp8Type, given: Option<f32>) -> (f32, Vec<u8>) {
    let most = x.iter().filter(|x| x.is_finite()).fold(0.0, |most: f32, x| most.max(x.abs()));
    let scale = given.unwrap_or(match most {
        0.0 => 1.0,
        _ => (most / greatest(ty)).max(f32::MIN_POSITIVE),
    });
    let code = |&x: &f32| if x.is_finite() { ty.encode(x / scale, true) } else { ty.encode(x, false) };
    (scale, x.iter().map(code).collect())
}

#[test]
fn tensors_become_fp8() {
    let random = Random::new();
    let large = if in_lockstep() { 2500 } else { 40_000 };
    for ty in Fp8Type::ALL {
        for dtype in DTYPES {
            // The greatest numbers, numbers whose scale would be subnormal, and subnormal ones.
            let sizes: &[f64] =
                if dtype == DType::F16 { &[1.0, 8000.0, 1e-6] } else { &[1.0, 4e37, 1e-36, 1e-40] };
            for (&size, count) in sizes.iter().flat_map(|size| [1, 15, large].map(|count| (size, count))) {
                let mut data = activations(&random, count, size, dtype);
                if count == 15 {
                    let mut all: Vec<f32> = data.iter::<f32>().collect();
                    (all[1], all[4], all[8]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
                    data = TensorData::new(all, [count]).convert_dtype(dtype);
                }
                let x: Vec<f32> = data.iter::<f32>().collect();
                for given in [None, Some(random.uniform(0.5, 1.0) as f32 * size as f32 / 100.0)] {
                    let given = given.filter(|given| *given >= f32::MIN_POSITIVE);
                    let tensor = on_device(data.clone(), dtype);
                    let found = match given {
                        None => Fp8Tensor::quantize(tensor, ty),
                        Some(scale) => Fp8Tensor::quantize_by(tensor, ty, scalar(scale)),
                    }
                    .unwrap();
                    let (scale, codes) = quantized(&x, ty, given);
                    let what = format!("{count} of {ty:?} from {dtype:?} up to {size:e}, by {given:?}");
                    assert_eq!(floats(found.scale().clone()), [f64::from(scale)], "the scale of {what}");
                    let numbers =
                        |codes: &[u8]| codes.iter().map(|&code| ty.decode(code)).collect::<Vec<_>>();
                    let (found, expected) = (numbers(&bytes(found.codes())), numbers(&codes));
                    let differs = |at: &usize| {
                        let (found, expected) = (found[*at], expected[*at]);
                        found.to_bits() != expected.to_bits() && !(found.is_nan() && expected.is_nan())
                    };
                    let at = (0..count).find(differs);
                    assert_eq!(at.map(|at| (x[at], found[at], expected[at])), None, "{what}");
                }
            }
        }
    }
}

#[test]
fn of_zeros_and_of_nothing() {
    let device = RocmDevice::default();
    let weight = Fp8Weight::upload(Fp8Type::E4M3, [16, 32], &[0x38; 512], &[1.0], &device).unwrap();
    let bias = || on_device(TensorData::new((0..16).map(|i| i as f32).collect(), [16]), DType::F32);
    for inputs in [Fp8Inputs::Dynamic, Fp8Inputs::Scale(0.25), Fp8Inputs::Floats] {
        let weight = weight.clone().with_inputs(inputs).unwrap();
        for rows in [0, 1, 20] {
            let x = || on_device(TensorData::new(vec![0f32; 64 * rows], [2, rows, 32]), DType::F32);
            let plain = weight.linear(x(), None).unwrap();
            assert_eq!(plain.dims(), [2, rows, 16]);
            assert_eq!(floats(plain), vec![0.0; 32 * rows], "{inputs:?}");
            let biased = floats(weight.linear(x(), Some(bias())).unwrap());
            assert!(biased.iter().enumerate().all(|(at, &found)| found == (at % 16) as f64), "{inputs:?}");
        }
    }
    let empty = on_device(TensorData::new(Vec::<f32>::new(), [0]), DType::F32);
    let empty = Fp8Tensor::quantize(empty, Fp8Type::E5M2).unwrap();
    assert_eq!((empty.dims(), floats(empty.scale().clone())), (&[0][..], vec![1.0]));
    let zeros = on_device(TensorData::new(vec![0f32, -0.0, 0.0], [3]), DType::F32);
    let zeros = Fp8Tensor::quantize(zeros, Fp8Type::E4M3Fnuz).unwrap();
    assert_eq!((bytes(zeros.codes()), floats(zeros.scale().clone())), (vec![0; 3], vec![1.0]));
}

/// Layers against f64 products of their fp8 operands, for inputs and scales of all sizes.
#[test]
fn layers_multiply_quantised_inputs() {
    let random = Random::new();
    for ty in fewer(Fp8Type::ALL, 2, &random) {
        for dtype in DTYPES {
            for ([rows, inputs, outs], expected_by) in [
                ([1, 64, 32], By::Library),
                ([16, 32, 16], By::Library),
                ([35, 112, 48], By::Library),
                ([35, 40, 48], By::Conversion),
                ([20, 48, 30], By::Conversion),
            ] {
                // The dtype's range, and the products' of two scales.
                let sizes: &[[f64; 2]] = match dtype {
                    DType::F16 => &[[1.0, 1.0], [2000.0, 1e-3], [1e-4, 1e5], [8000.0, 1e-9]],
                    _ => &[[1.0, 1.0], [1e30, 1e-30], [1e-30, 1e30], [1e-20, 1e-10]],
                };
                for &[x_size, weight_size] in sizes {
                    let mut weight = Weight::new(&random, ty, [outs, inputs], random.below(2) == 1);
                    weight.scales.iter_mut().for_each(|scale| *scale *= weight_size as f32);
                    let data = activations(&random, rows * inputs, x_size, dtype);
                    let x: Vec<f32> = data.iter::<f32>().collect();
                    let of_x = if ty.fnuz() == ty { Fp8Type::E4M3Fnuz } else { Fp8Type::E4M3 };
                    for given in [None, Some((2.0 * x_size / f64::from(greatest(of_x))) as f32)] {
                        let fp8 =
                            weight.upload().with_inputs(given.map_or(Fp8Inputs::Dynamic, Fp8Inputs::Scale));
                        let mut data = data.clone();
                        data.shape = [rows, inputs].into();
                        let (found, by) =
                            traced(|| fp8.unwrap().linear(on_device(data, dtype), None).unwrap());
                        let what =
                            format!("{ty:?} {dtype:?} {rows} x {inputs} x {outs}, {x_size:e}, by {given:?}");
                        if on_cpu() || expected_by == By::Conversion {
                            assert_eq!(by, expected_by, "{what}");
                        }
                        let (scale, codes) = quantized(&x, of_x, given);
                        let number = |code| f64::from(of_x.decode(code)) * f64::from(scale);
                        // In units of their sizes, so that f64 holds all.
                        let scaled = |all: Vec<f64>, by: f64| all.into_iter().map(|x| x / by).collect();
                        let x = scaled(codes.into_iter().map(number).collect(), x_size);
                        let weight = scaled(weight.numbers(), weight_size);
                        let found: Vec<f64> = scaled(found, x_size * weight_size);
                        Expected { x, weight, inputs, dtype, units: [x_size, weight_size] }
                            .check(&what, &found, by);
                    }
                }
            }
        }
    }
}

/// Codes of OCP as FNUZ with twice the scales give the same products, also for inputs that exceed
/// FNUZ's greatest number times the given scale, but not OCP's.
#[test]
fn weights_as_fnuz_give_the_same_products() {
    let random = Random::new();
    let (device, [rows, inputs]) = (RocmDevice::default(), [5, 32]);
    for ty in [Fp8Type::E4M3, Fp8Type::E5M2] {
        for (each_has_its_own, outs) in [(false, 16), (true, 16), (false, 7)] {
            let weight = Weight::new(&random, ty, [outs, inputs], each_has_its_own);
            let fnuz =
                Fp8Weight::upload_as_fnuz(ty, weight.shape, &weight.codes, &weight.scales, &device).unwrap();
            assert_eq!(fnuz.ty(), ty.fnuz());
            let scale = random.uniform(0.01, 1.0) as f32;
            let number = |at: usize| {
                let most = if at.is_multiple_of(2) { 448.0 } else { 1.0 };
                let least = if at.is_multiple_of(2) { 240.0 } else { 0.0 };
                let size = random.uniform(least, most) as f32 * scale;
                if random.below(2) == 0 { size } else { -size }
            };
            let x: Vec<f32> = (0..rows * inputs).map(number).collect();
            let results = |weight: Fp8Weight| {
                let weight = weight.with_inputs(Fp8Inputs::Scale(scale)).unwrap();
                let x = on_device(TensorData::new(x.clone(), [rows, inputs]), DType::F32);
                floats(weight.linear(x, None).unwrap())
            };
            let (found, plain) = (results(fnuz), results(weight.upload()));
            if on_cpu() {
                assert_eq!(found, plain, "{ty:?}, {outs} outputs");
                continue;
            }
            // One of them goes by conversion, so sums differ in order and precision.
            let most = plain.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
            let near = found.iter().zip(&plain).all(|(found, plain)| (found - plain).abs() <= 0.02 * most);
            assert!(near, "{ty:?}, {outs} outputs: {found:?}, not {plain:?}");
        }
    }
}

/// A NaN or an infinity is in one row's results, and changes no other row.
#[test]
fn what_is_not_finite_stays_in_its_row() {
    let random = Random::new();
    for ty in [Fp8Type::E4M3, Fp8Type::E5M2Fnuz] {
        for (inputs, expected_by) in [(32, By::Library), (31, By::Conversion)] {
            let mut weight = Weight::new(&random, ty, [16, inputs], false);
            // No 0, which an infinity would make NaN, and one sign, so that infinities do not cancel.
            weight.codes.iter_mut().for_each(|code| *code = *code & 0x3f | 0x20);
            let weight = weight.upload().with_inputs(Fp8Inputs::Dynamic).unwrap();
            let finite: Vec<f32> =
                activations(&random, 20 * inputs, 1.0, DType::BF16).iter::<f32>().collect();
            let results = |x: Vec<f32>| {
                let data = TensorData::new(x, [20, inputs]).convert_dtype(DType::BF16);
                traced(|| weight.linear(on_device(data, DType::BF16), None).unwrap())
            };
            let (plain, _) = results(finite.clone());
            for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut x = finite.clone();
                // In place of a number that does not decide the scale.
                let row = 7;
                let most = finite.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
                let at = (row * inputs..).find(|&at| finite[at].abs() < most).unwrap();
                x[at] = bad;
                let (found, by) = results(x);
                if on_cpu() {
                    assert_eq!(by, expected_by);
                }
                for (at, (found, plain)) in found.iter().zip(&plain).enumerate() {
                    match at / 16 == row {
                        true => assert!(!found.is_finite(), "{bad} in {ty:?}: {found} at {at}"),
                        false => assert_eq!(found, plain, "{bad} in {ty:?} at {at}"),
                    }
                }
            }
        }
    }
}

type Ours = Autodiff<Rocm>;

fn inner(tensor: Tensor<Rocm, 2>) -> RocmTensor {
    match tensor.into_primitive() {
        TensorPrimitive::Float(tensor) => tensor,
        TensorPrimitive::QFloat(_) => unreachable!(),
    }
}

#[test]
fn a_layer_has_the_gradient_of_its_weight() {
    let random = Random::new();
    let (device, [rows, inputs, outs]) = (RocmDevice::default(), [18, 48, 32]);
    let weight = Weight::new(&random, Fp8Type::E4M3, [outs, inputs], true);
    let fp8 = weight.upload().with_inputs(Fp8Inputs::Dynamic).unwrap();
    let tensor = |count, shape: [usize; 2]| {
        let mut data = activations(&random, count, 1.0, DType::F32);
        data.shape = shape.into();
        data
    };
    let (x, grad) = (tensor(rows * inputs, [rows, inputs]), tensor(rows * outs, [rows, outs]));
    let bias: Vec<f32> = (0..outs).map(|i| i as f32 / 7.0).collect();
    let layer_bias =
        Tensor::<Ours, 1>::from_data(TensorData::new(bias.clone(), [outs]), (&device, DType::F32));
    let layer = Fp8Linear::new(fp8.clone(), Some(layer_bias)).unwrap();
    let tracked = Tensor::<Ours, 2>::from_data(x.clone(), (&device, DType::F32)).require_grad();
    let y = layer.forward(tracked.clone());
    let direct =
        fp8.linear(on_device(x, DType::F32), Some(on_device(TensorData::new(bias, [outs]), DType::F32)));
    assert_eq!(floats(inner(y.clone().inner())), floats(direct.unwrap()));
    let by = Tensor::<Ours, 2>::from_data(grad.clone(), (&device, DType::F32));
    let found = tracked.grad(&(y * by).sum().backward()).unwrap();
    let numbers = weight.numbers();
    let turned = (0..inputs).flat_map(|k| (0..outs).map(move |out| (out, k)));
    let weight = turned.map(|(out, k)| numbers[out * inputs + k]).collect();
    let expected = Expected {
        x: grad.iter::<f64>().collect(),
        weight,
        inputs: outs,
        dtype: DType::F32,
        units: [1.0; 2],
    };
    expected.check("the gradient", &floats(inner(found)), By::Conversion);
}

#[test]
fn refused_inputs() {
    let device = RocmDevice::default();
    let weight = Fp8Weight::upload_native(Fp8Type::E4M3, [16, 16], &[0x38; 256], &[1.0], &device).unwrap();
    if on_cpu() {
        assert_eq!(weight.ty(), Fp8Type::E4M3, "the CPU device multiplies OCP's types too");
    }
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let found = weight.clone().with_inputs(Fp8Inputs::Scale(scale));
        assert!(matches!(found, Err(RocmError::Invalid { .. })), "{scale}");
    }
    let x = || on_device(TensorData::new(vec![0f32; 32], [2, 16]), DType::F32);
    let codes = || on_device(TensorData::new(vec![0u8; 32], [2, 16]), DType::U8);
    let two = on_device(TensorData::new(vec![1f32; 2], [2]), DType::F32);
    let half = on_device(TensorData::new(vec![1f32], [1]), DType::F16);
    for found in [
        Fp8Tensor::quantize_by(x(), Fp8Type::E4M3, two.clone()),
        Fp8Tensor::quantize_by(x(), Fp8Type::E4M3, half),
        Fp8Tensor::of_codes(Fp8Type::E4M3, codes(), two),
        Fp8Tensor::of_codes(Fp8Type::E4M3, x(), scalar(1.0)),
    ] {
        assert!(matches!(found, Err(RocmError::Invalid { .. })), "{found:?}");
    }
    let wide = on_device(TensorData::new(vec![0f64; 32], [2, 16]), DType::F64);
    assert!(matches!(Fp8Tensor::quantize(wide, Fp8Type::E4M3), Err(RocmError::Unsupported { .. })));
    let fp8 = Fp8Tensor::of_codes(weight.ty(), codes(), scalar(1.0)).unwrap();
    assert!(matches!(weight.multiply(&fp8, DType::F64), Err(RocmError::Unsupported { .. })));
    let short = on_device(TensorData::new(vec![0u8; 30], [2, 15]), DType::U8);
    let short = Fp8Tensor::of_codes(weight.ty(), short, scalar(1.0)).unwrap();
    assert!(matches!(weight.multiply(&short, DType::F32), Err(RocmError::Invalid { .. })));
    let weight = weight.with_inputs(Fp8Inputs::Dynamic).unwrap();
    for bias in [15, 17] {
        let bias = on_device(TensorData::new(vec![0f32; bias], [bias]), DType::F32);
        assert!(matches!(weight.linear(x(), Some(bias)), Err(RocmError::Invalid { .. })));
    }
}

/// A product of E4M3 by the weight, its inputs and its check.
fn one(
    weight: &Fp8Weight,
    product: impl FnOnce(&Fp8Weight, &Fp8Tensor) -> RocmTensor,
    numbers: Vec<f64>,
) -> By {
    let random = Random::new();
    let codes = draw(&random, Fp8Type::E4M3, 20 * 64);
    let x = on_device(TensorData::new(codes.clone(), [20, 64]), DType::U8);
    let x = Fp8Tensor::of_codes(Fp8Type::E4M3, x, scalar(1.0 / 448.0)).unwrap();
    let (found, by) = traced(|| product(weight, &x));
    let x = codes.iter().map(|&code| f64::from(Fp8Type::E4M3.decode(code)) / 448.0).collect();
    let expected = Expected { x, weight: numbers, inputs: 64, dtype: DType::BF16, units: [1.0; 2] };
    expected.check("with other settings", &found, by);
    by
}

#[test]
#[ignore = "run by the tests below, with other settings"]
fn two_products() {
    let weight = Weight::new(&Random::new(), Fp8Type::E4M3, [32, 64], false);
    for _ in 0..2 {
        let by =
            one(&weight.upload(), |weight, x| weight.multiply(x, DType::BF16).unwrap(), weight.numbers());
        println!("{SAID}{by:?}");
    }
}

#[test]
#[ignore = "run by the tests below, in a process without a handle of hipBLASLt"]
fn captured_product() {
    let weight = Weight::new(&Random::new(), Fp8Type::E4M3, [32, 64], false);
    let product = |weight: &Fp8Weight, x: &Fp8Tensor| {
        let multiply = || weight.multiply(x, DType::BF16).unwrap();
        let allocated = || hip::Device::get(0).unwrap().pool().stats().allocated;
        let before = allocated();
        let (graph, out) = Graph::capture_after(&RocmDevice::default(), 0, multiply).unwrap();
        // A handle has up to 32 MiB of workspace.
        let more = allocated().saturating_sub(before);
        assert!(more < 16 << 20, "hipBLASLt's handle was made in the capture: {more} bytes");
        graph.replay().unwrap();
        out
    };
    println!("{SAID}{:?}", one(&weight.upload(), product, weight.numbers()));
}

#[test]
#[ignore = "run by the tests below, with other chips"]
fn native_type() {
    let weight = Weight::new(&Random::new(), Fp8Type::E4M3, [32, 64], false);
    let device = RocmDevice::default();
    let native =
        Fp8Weight::upload_native(weight.ty, weight.shape, &weight.codes, &weight.scales, &device).unwrap();
    println!("{SAID}{:?}", native.ty());
    let multiply = |weight: &Fp8Weight, x: &Fp8Tensor| weight.multiply(x, DType::BF16).unwrap();
    println!("{SAID}{:?}", one(&weight.upload(), multiply, weight.numbers()));
}

#[test]
fn natively_a_capture_has_products() {
    if on_cpu() {
        assert_eq!(said_by("fp8_products::captured_product", &[]), ["Library"]);
    }
}

/// hipBLASLt of the CPU device multiplies both families, and reports any chip.
#[test]
fn natively_chips_multiply_their_own_family() {
    if !on_cpu() {
        return;
    }
    for (arch, expected) in [
        ("gfx942:sramecc+:xnack-", ["E4M3Fnuz", "Conversion"]),
        ("gfx950:sramecc+:xnack-", ["E4M3", "Library"]),
    ] {
        let found = said_by("fp8_products::native_type", &[("BURN_ROCM_CPU_ARCH", arch)]);
        assert_eq!(found, expected, "{arch}");
    }
}

/// hipBLASLt multiplies fp8 unless settings forbid it, or it fails.
#[test]
fn natively_settings_choose() {
    let by = |variables: &[(&str, &str)]| said_by("fp8_products::two_products", variables);
    for variables in [
        &[("BURN_ROCM_DETERMINISTIC", "1")][..],
        &[("BURN_ROCM_MATMUL", "own")],
        &[("BURN_ROCM_DETERMINISTIC", "1"), ("BURN_ROCM_HIPBLASLT", "on")],
    ] {
        assert_eq!(by(variables), ["Conversion"; 2], "{variables:?}");
    }
    if !on_cpu() {
        return;
    }
    for variables in [&[][..], &[("BURN_ROCM_HIPBLASLT", "off")], &[("BURN_ROCM_HIPBLASLT", "auto")]] {
        assert_eq!(by(variables), ["Library"; 2], "{variables:?}");
    }
    for call in ["hipblasLtCreate", "hipblasLtMatmulAlgoGetHeuristic", "hipblasLtMatmul"] {
        assert_eq!(by(&[("BURN_ROCM_CPU_FAIL", call)]), ["Conversion"; 2], "{call}");
    }
    let once = by(&[("BURN_ROCM_CPU_FAIL", "hipblasLtMatmul:1")]);
    assert_eq!(once, ["Conversion"; 2], "what failed is not tried again");
}
