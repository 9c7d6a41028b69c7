//! A test of the tests: the comparison must reject zeros, the right values in another order,
//! doubled values, and values that are off by 1 % (bf16: 2 %).

use crate::draw::Draw;
use crate::run::{Op, both, compare};
use burn_rocm_tests::*;
use std::collections::BTreeSet;

/// The most cases to draw for an op and a type until each of its results has enough distinct
/// elements.
const ATTEMPTS: usize = 160;

/// The distinct elements that a result must have.
const DISTINCT: usize = 8;

/// Ops whose results never have that many: they have one element or few values. Every change that
/// alters such a result must fail all the same.
const FEW: &[&str] = &[
    "float_sum",
    "float_mean",
    "float_max",
    "float_min",
    "float_max_abs",
    "float_prod",
    "float_any",
    "float_all",
    "float_any_dim",
    "float_sign",
    "float_full",
    "int_sum",
    "int_prod",
    "int_mean",
    "int_max",
    "int_min",
    "int_max_abs",
    "int_any",
    "int_all",
    "int_sign",
    "int_full",
    "bool_any",
    "bool_all",
    "bool_into_int",
    "bool_into_float",
];

/// Ops that round each addition. A case with many additions to one place allows an error of more
/// than 1 %; then another case is drawn.
const ADDED: &[&str] =
    &["float_scatter_add", "float_select_add", "float_scatter_nd_add", "embedding_backward"];

/// The bytes of each element.
fn elements(data: &TensorData) -> std::slice::Chunks<'_, u8> {
    data.as_bytes().chunks(data.dtype.size())
}

fn of_bytes(data: &TensorData, bytes: Vec<u8>) -> TensorData {
    TensorData::from_bytes_vec(bytes, data.shape.clone(), data.dtype)
}

fn is_float(dtype: DType) -> bool {
    matches!(dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16)
}

/// Whether a result can be made wrong in every way: it has eight distinct finite elements, or both
/// bools.
fn has_enough(data: &TensorData) -> bool {
    if matches!(data.dtype, DType::Bool(_)) {
        return elements(data).len() >= DISTINCT && elements(data).collect::<BTreeSet<_>>().len() == 2;
    }
    // In f16 elements that may underflow don't count.
    let least = if data.dtype == DType::F16 { 1e-4 } else { 0.0 };
    let finite = data.iter::<f64>().map(|x| x.is_finite() && x.abs() >= least);
    elements(data).zip(finite).filter(|(_, finite)| *finite).map(|(e, _)| e).collect::<BTreeSet<_>>().len()
        >= DISTINCT
}

/// As [`has_enough`] for an op of [`FEW`]: no number is so small that it may underflow.
fn is_clear(data: &TensorData) -> bool {
    !is_float(data.dtype) || data.iter::<f64>().all(|x| x == 0.0 || x.abs() > 1e-4)
}

/// The wrong results that differ from this result.
fn wrong(data: &TensorData) -> Vec<(&'static str, TensorData)> {
    let zeros = of_bytes(data, vec![0; data.as_bytes().len()]);
    let mut turned: Vec<&[u8]> = elements(data).collect();
    turned.rotate_left(1.min(data.num_elements()));
    let mut all = vec![("zeros", zeros), ("in another order", of_bytes(data, turned.concat()))];
    if !is_float(data.dtype) {
        // The next integer, or the other bool.
        let off = elements(data)
            .flat_map(|e| e.iter().enumerate().map(|(n, byte)| if n == 0 { byte ^ 1 } else { *byte }));
        all.push(("off by one", of_bytes(data, off.collect())));
    }
    if is_float(data.dtype) {
        let by = if data.dtype == DType::BF16 { 1.02 } else { 1.01 };
        for (way, by) in [("off", by), ("doubled", 2.0)] {
            let other = data.iter::<f64>().map(|x| x * by).collect::<Vec<_>>();
            all.push((way, TensorData::new(other, data.shape.clone()).convert_dtype(data.dtype)));
        }
    }
    let changed = |(_, other): &(_, TensorData)| {
        let same = |(x, y): (f64, f64)| x == y || x.is_nan();
        if is_float(data.dtype) {
            !data.iter::<f64>().zip(other.iter::<f64>()).all(same)
        } else {
            data.as_bytes() != other.as_bytes()
        }
    };
    all.into_iter().filter(changed).collect()
}

/// Checks that the comparison rejects wrong results of one op and type.
fn of_type(op: &Op, dtype: usize, random: &Random) -> Result<(), String> {
    let few = FEW.contains(&op.name);
    let mut done: Vec<bool> = Vec::new();
    for attempt in 0..ATTEMPTS {
        // First cases without cancellation; then, for results that those can't give, cases with
        // zeros, NaN and infinities too.
        let (wild, one_sign) = [(1, true), (1, true), (0, false), (2, false)][attempt / 40];
        let case = Draw::plain(random, dtype, wild, one_sign);
        let Some([ours, theirs]) = both(op, &case)? else { continue };
        compare(op, &ours, &theirs)?;
        done.resize(done.len().max(ours.len()), false);
        for k in 0..ours.len() {
            let ways = wrong(&ours[k]);
            if done[k] || ways.is_empty() || !(if few { is_clear(&ours[k]) } else { has_enough(&ours[k]) }) {
                continue;
            }
            done[k] = true;
            for (way, result) in ways {
                let mut others = ours.clone();
                others[k] = result;
                if compare(op, &others, &theirs).is_ok() {
                    if ADDED.contains(&op.name) {
                        done[k] = false;
                        break;
                    }
                    let dtype = ours[k].dtype;
                    return Err(format!(
                        "{}, result {k} ({dtype:?}) passes although it is {way}:\n{case:?}\n{}",
                        op.name, ours[k]
                    ));
                }
            }
        }
        if !done.is_empty() && done.iter().all(|done| *done) {
            return Ok(());
        }
    }
    Err(format!("{} of type {dtype}: results with enough distinct elements: {done:?}", op.name))
}

/// Makes each op's results of each type wrong. The comparison with the oracle's must then fail.
pub(crate) fn results_fail(tables: &[(&[Op], usize)]) {
    let random = Random::new();
    let all = tables.iter().flat_map(|&(ops, types)| ops.iter().map(move |op| (op, types)));
    let passed: Vec<String> = all
        .flat_map(|(op, types)| (0..types).map(move |dtype| (op, dtype)))
        .filter_map(|(op, dtype)| of_type(op, dtype, &random).err())
        .collect();
    assert!(passed.is_empty(), "{}", passed.join("\n\n"));
}
