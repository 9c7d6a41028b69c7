//! What computes a fused op for a dtype and shape, asked before it is called. Each answer comes
//! from the function by which the op itself decides.

use burn_std::DType;
use hip::Error as RocmError;

use super::attention::call::{Path, Question};
use super::attention::options::{AttentionInferenceOptions, AttentionOptions};
use super::attention::window::Window;
use super::attention::{group_of, inference};
use super::index::{Join, joins_in_any_order};
use super::loss::classes::pad_tokens_fit;
use super::lt;
use super::miopen::Why;
use super::norm::channels::Channels;
use super::norm::{group, layer, rms};
use crate::RocmDevice;
use crate::dtype::kernel_type;
use crate::error::invalid;

/// An op of [`fused`](crate::fused), and what its choice depends on besides the dtype and the shape
/// of its input. The variants say which shape that is.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum FusedOp {
    /// [`layer_norm`](crate::fused::layer_norm()) of `[.., len]`.
    LayerNorm {
        /// The dtype of scale and shift.
        parameters: DType,
    },
    /// [`rms_norm`](crate::fused::rms_norm()) of `[.., len]`.
    RmsNorm {
        /// The dtype of the scale.
        parameters: DType,
    },
    /// [`group_norm`](crate::fused::group_norm()) of `[batch, channels, ..]`.
    GroupNorm {
        /// The number of groups, which divides the channels.
        groups: usize,
        /// The dtype of scale and shift, if there are any.
        parameters: Option<DType>,
    },
    /// [`batch_norm_train`](crate::fused::batch_norm_train) of `[batch, channels, ..]`.
    BatchNorm,
    /// [`batch_norm_infer`](crate::fused::batch_norm_infer) of `[batch, channels, ..]`. It has no
    /// gradient.
    BatchNormInference,
    /// [`softmax`](crate::fused::softmax) or [`log_softmax`](crate::fused::log_softmax) of any
    /// shape.
    Softmax,
    /// [`cross_entropy`](crate::fused::cross_entropy) of `[rows, classes]`.
    CrossEntropy {
        /// How many pad tokens it ignores.
        pad_tokens: usize,
    },
    /// [`attention`](crate::fused::attention()) of queries `[batch, heads, queries, features]`.
    /// The answer is for a call without a mask. With one, causal calls in f32 can take another path.
    Attention {
        /// Heads of keys and values.
        key_heads: usize,
        /// The number of keys.
        keys: usize,
        /// The features of a value.
        values: usize,
        /// Causality, the window, and limits of the choice.
        options: AttentionOptions,
    },
    /// [`attention_inference`](crate::fused::attention_inference()) of queries `[batch, heads,
    /// queries, features]`. It has no gradient. Neither a mask nor a bias nor a softcap changes the
    /// choice.
    AttentionInference {
        /// Heads of keys and values.
        key_heads: usize,
        /// The number of keys.
        keys: usize,
        /// The features of a value.
        values: usize,
        /// Causality and the window.
        options: AttentionInferenceOptions,
    },
    /// [`bias_act`](crate::fused::bias_act), [`add_act`](crate::fused::add_act),
    /// [`silu_mul`](crate::fused::silu_mul) and the like, of any shape.
    Activation,
    /// A linear layer of an input `[.., in]`, with a bias: Burn's,
    /// [`linear_add`](crate::fused::linear_add) and [`linear_relu`](crate::fused::linear_relu). The
    /// gradient is that of weight and bias.
    Linear {
        /// The number of outputs.
        outputs: usize,
    },
    /// An element-wise op of Burn, of any shape: whether it shares a launch with those before and
    /// after it. Its tensors must begin at 16-byte boundaries, as new tensors do, and a few
    /// functions always have a launch of their own.
    ElementWise,
    /// Rows of a table `[rows, width]` by indices, and the table's gradient.
    Embedding,
    /// A step of [`optim`](crate::fused::optim) on parameters of any shape. It has no gradient.
    Optimizer,
}

/// What computes a pass of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum By {
    /// MIOpen, and after some norms a kernel that repairs inaccurate rows.
    Miopen,
    /// A few kernels of this project on matrix cores.
    MatrixCores,
    /// A few other kernels of this project.
    Kernel,
    /// A launch that several ops share.
    SharedLaunch,
    /// hipBLASLt, which computes a product and what follows it.
    HipblasLt,
    /// Matrix products, by rocBLAS if `BURN_ROCM_MATMUL` allows, and kernels between them.
    Composed,
}

/// What computes an op and its gradient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Support {
    /// The op; `None` if it is not fused.
    pub forward: Option<By>,
    /// Its gradient; `None` if that is not fused, or if there is none.
    pub backward: Option<By>,
    /// Why it is neither a library nor matrix cores, or not fused. Empty if there is nothing to
    /// say.
    pub reason: String,
}

impl Support {
    fn new(forward: By, backward: impl Into<Option<By>>, reason: impl Into<String>) -> Self {
        Self { forward: Some(forward), backward: backward.into(), reason: reason.into() }
    }
}

/// What computes an op on this device, with the settings of this process, for an input of this
/// dtype and shape in row-major order. The function launches nothing.
///
/// A library that is to compute a shape may still refuse it when it is called, and a kernel of this
/// project then replaces it. [`optimization_summary`](crate::optimization_summary) shows what did
/// run.
///
/// ```
/// use burn_rocm::fused::{By, FusedOp, supports};
/// use burn_rocm::RocmDevice;
/// # use burn_std::DType;
///
/// let norm = FusedOp::LayerNorm { parameters: DType::F64 };
/// let answer = supports(&norm, &RocmDevice::default(), DType::F64, &[32, 512])?;
/// assert_eq!((answer.forward, answer.backward), (Some(By::Kernel), Some(By::Kernel)));
/// println!("{}", answer.reason); // "not MIOpen: layer norm does not support f64"
/// # Ok::<(), burn_rocm::RocmError>(())
/// ```
///
/// # Errors
/// `Invalid` for a shape that the op refuses, or whose elements can't be counted; `Config` for an
/// invalid setting; an error of the device. A dtype that the op does not have is no error, nor is a
/// setting that demands a library which can't compute it: the answer is then `None`.
pub fn supports(
    op: &FusedOp,
    device: &RocmDevice,
    dtype: DType,
    shape: &[usize],
) -> Result<Support, RocmError> {
    let device = device.open()?;
    match decide(op, &device, dtype, shape) {
        Err(error @ RocmError::Unsupported { .. }) => {
            Ok(Support { forward: None, backward: None, reason: error.to_string() })
        }
        answer => answer,
    }
}

/// MIOpen, or a kernel of this project and why.
fn library(why: Option<Why>) -> hip::Result<(By, String)> {
    match why {
        None => Ok((By::Miopen, String::new())),
        Some(Why::Error(error)) if !matches!(error, RocmError::Unsupported { .. }) => {
            // With strict settings the op fails.
            let error = hip::allow_fallback(error)?;
            Ok((By::Kernel, Why::Error(error).to_string()))
        }
        Some(why) => Ok((By::Kernel, why.to_string())),
    }
}

fn by_path((path, why): (Path, &'static str)) -> (By, String) {
    let by = match path {
        Path::Cores(_) => By::MatrixCores,
        Path::Tiled => By::Kernel,
        Path::Composed => By::Composed,
    };
    (by, why.to_owned())
}

/// Checks that a float op has the dtype.
fn float(op: &'static str, dtype: DType) -> hip::Result<()> {
    match kernel_type(dtype)?.is_float() {
        true => Ok(()),
        false => crate::error::unsupported(op, dtype),
    }
}

fn decide(op: &FusedOp, device: &hip::Device, dtype: DType, shape: &[usize]) -> hip::Result<Support> {
    const OP: &str = "supports";
    let elements = shape.iter().try_fold(1usize, |all, &dim| all.checked_mul(dim));
    let Some(elements) = elements.filter(|&all| all.checked_mul(dtype.size()).is_some()) else {
        return invalid(OP, "a tensor that fits memory", format!("{shape:?}"));
    };
    float(OP, dtype)?;
    let fits =
        |rank: std::ops::RangeInclusive<usize>, expected: &'static str| match rank.contains(&shape.len()) {
            true => Ok(()),
            false => invalid(OP, expected, format!("{shape:?}")),
        };
    let own = |reason: &str| Support::new(By::Kernel, By::Kernel, reason);
    Ok(match op {
        FusedOp::LayerNorm { parameters } | FusedOp::RmsNorm { parameters } => {
            fits(1..=usize::MAX, "at least one axis")?;
            let why = match op {
                FusedOp::LayerNorm { .. } => layer::without_miopen(device, dtype, *parameters, elements)?,
                _ => rms::without_miopen(device, dtype, *parameters, elements)?,
            };
            let (forward, reason) = library(why)?;
            Support::new(forward, By::Kernel, reason)
        }
        FusedOp::GroupNorm { groups, parameters } => {
            fits(2..=usize::MAX, "[batch, channels, ..]")?;
            if *groups == 0 || !shape[1].is_multiple_of(*groups) {
                return invalid(OP, format!("groups that divide {} channels", shape[1]), groups.to_string());
            }
            let why = group::without_miopen(device, dtype, *parameters, *groups, elements)?;
            let (forward, reason) = library(why)?;
            Support::new(forward, By::Kernel, reason)
        }
        FusedOp::BatchNorm | FusedOp::BatchNormInference => {
            let Some(channels) = Channels::of_shape(shape) else {
                return invalid(OP, "[batch, channels, ..]", format!("{shape:?}"));
            };
            if *op == FusedOp::BatchNormInference {
                let (forward, reason) = library(channels.inferred_without_miopen(OP, device, dtype)?)?;
                return Ok(Support::new(forward, None, reason));
            }
            let (forward, reason) = library(channels.trained_without_miopen(OP, device, dtype)?)?;
            let (backward, _) = library(channels.backward_without_miopen(OP, device, dtype)?)?;
            Support::new(forward, backward, reason)
        }
        FusedOp::CrossEntropy { pad_tokens } => {
            fits(2..=2, "[rows, classes]")?;
            pad_tokens_fit(OP, *pad_tokens)?;
            own("")
        }
        FusedOp::Attention { key_heads, keys, values, options } => {
            let &[batch, heads, queries, width] = shape else {
                return invalid(OP, "[batch, heads, queries, features]", format!("{shape:?}"));
            };
            if group_of(heads, *key_heads).is_none() {
                return invalid(OP, format!("heads of keys that divide {heads}"), key_heads.to_string());
            }
            let question = Question {
                op: OP,
                device,
                dtype,
                sizes: [batch, heads, queries, *keys, width],
                values: *values,
                window: Window::new(OP, options.causal, options.window, [queries, *keys])?,
                masked: false,
                options,
            };
            let (by, reason) = by_path(question.path()?);
            Support::new(by, by, reason)
        }
        FusedOp::AttentionInference { key_heads, keys, values, options } => {
            let &[_, heads, queries, width] = shape else {
                return invalid(OP, "[batch, heads, queries, features]", format!("{shape:?}"));
            };
            if group_of(heads, *key_heads).is_none() {
                return invalid(OP, format!("heads of keys that divide {heads}"), key_heads.to_string());
            }
            let window = Window::new(OP, options.causal, options.window, [queries, *keys])?;
            let seen = keys - window.unseen(queries, *keys);
            let (by, reason) = by_path(inference::path(device, dtype, [queries, seen], width.max(*values))?);
            Support::new(by, None, reason)
        }
        FusedOp::Softmax | FusedOp::Activation => own(""),
        FusedOp::Linear { outputs } => {
            let Some((&inner, leading)) = shape.split_last() else {
                return invalid(OP, "[.., in]", format!("{shape:?}"));
            };
            let sizes = [leading.iter().product(), inner, *outputs];
            let (forward, reason) = lt::linear(device, kernel_type(dtype)?, sizes, false)?;
            let (backward, _) = lt::linear(device, kernel_type(dtype)?, sizes, true)?;
            let by = |joined| if joined { By::HipblasLt } else { By::Composed };
            Support::new(by(forward), by(backward), reason)
        }
        FusedOp::ElementWise => match device.defers(kernel_type(dtype)?, elements * dtype.size()) {
            Ok(()) => Support::new(By::SharedLaunch, By::SharedLaunch, ""),
            Err(reason) => Support { forward: None, backward: None, reason: reason.into() },
        },
        FusedOp::Embedding => {
            fits(2..=2, "[rows, width]")?;
            own(match joins_in_any_order(device, kernel_type(dtype)?, Join::Add) {
                true => "the gradient adds by atomics, in any order",
                false => "the gradient adds in the order of the indices",
            })
        }
        FusedOp::Optimizer => Support::new(By::Kernel, None, ""),
    })
}
