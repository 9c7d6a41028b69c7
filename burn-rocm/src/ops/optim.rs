//! Steps of optimizers over all parameters at once.

mod norms;

use std::sync::Arc;

use burn_std::DType;
use hip::{Device, Error as RocmError, Template};

use super::clock;
pub use super::clock::{Clock, unless};
use crate::arg::Arg;
use crate::dtype::kernel_type as kernel_type_of;
use crate::error::invalid;
use crate::ops::cast::cast;
use crate::ops::channels_last::{from_rows, is_channels_last, rows_of};
use crate::ops::copy::packed;
use crate::ops::launch::is_packed;
use crate::ops::multi_tensor::{Group, Row, Writes, group, tables};
use crate::recording::is_recording;
use crate::tensor::{RocmTensor, float_type, one_device};
use norms::norm_factors;
pub use norms::{clip_to_norm, norm, scale_to_norm};

/// The weight decay of [`Adam`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Decay {
    /// An L2 penalty: adds the parameter times this factor to its gradient.
    Penalty(f32),
    /// Subtracts `lr * rate * parameter` from the parameter ([Loshchilov and Hutter
    /// 2017](https://arxiv.org/abs/1711.05101)).
    Decoupled {
        /// The rate.
        rate: f32,
        /// Whether decay is limited to elements that have the sign of their first moment ([Cautious
        /// Weight Decay](https://arxiv.org/abs/2510.12402)).
        cautious: bool,
    },
}

/// Adam ([Kingma and Ba 2014](https://arxiv.org/abs/1412.6980), algorithm 1).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// The decay rate of the first moment.
    pub beta_1: f32,
    /// The decay rate of the second moment.
    pub beta_2: f32,
    /// Added to the square root of the second moment.
    pub epsilon: f32,
    /// Whether to divide by the largest second moment so far ([Reddi et al.
    /// 2018](https://arxiv.org/abs/1904.09237)).
    pub amsgrad: bool,
    /// How parameters decay.
    pub decay: Decay,
}

/// The momentum of [`Sgd`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Momentum {
    /// The share of the velocity that each step keeps.
    pub momentum: f64,
    /// The share by which a gradient is reduced before it is added to the velocity. The first
    /// gradient is added whole.
    pub dampening: f64,
    /// Whether momentum is Nesterov's ([Sutskever et al.
    /// 2013](http://proceedings.mlr.press/v28/sutskever13.html)).
    pub nesterov: bool,
}

/// Stochastic gradient descent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// An L2 penalty: adds the parameter times this factor to its gradient.
    pub penalty: f32,
    /// The momentum, if any.
    pub momentum: Option<Momentum>,
}

/// An optimizer's update rule.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum Rule {
    Adam(Adam),
    Sgd(Sgd),
}

/// How gradients are clipped before the rule is applied.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Clip {
    /// Not at all.
    None,
    /// Clamps each element to plus and minus this value.
    Value(f32),
    /// Scales each tensor with a larger Euclidean norm down to this norm. Costs two more launches.
    Norm(f32),
}

/// An optimizer's state of one parameter.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The number of steps taken. Only [`Adam`] counts them. A captured step does not count here. If
    /// there is a clock, use [`steps`](Self::steps).
    pub time: usize,
    /// Tensors of the parameter's shape. For [`Adam`]: first moment, second moment and, with
    /// `amsgrad`, the largest second moment. For [`Sgd`]: the velocity, if there is momentum.
    pub tensors: Vec<RocmTensor>,
    /// The number of steps in device memory, once a graph has been captured that advances it.
    pub clock: Option<Clock>,
}

impl State {
    /// The number of steps taken. Waits for the device if there is a clock.
    ///
    /// # Errors
    /// `Capture` in a capture, if there is a clock; an error of the device.
    pub fn steps(&self) -> Result<usize, RocmError> {
        self.clock.as_ref().map_or(Ok(self.time), Clock::time)
    }
}

/// One optimizer step over many parameters: [`add`](Self::add) gathers them one by one, and
/// [`run`](Self::run) updates all.
///
/// Up to 62 parameters (49 with `amsgrad`) share a launch if they have the same dtype, device and
/// number of steps so far.
#[must_use = "nothing is computed before `run`"]
pub struct Step {
    rule: Rule,
    clip: Clip,
    groups: Vec<Group<Kind>>,
}

/// The key of parameters that share launches.
#[derive(PartialEq)]
struct Kind {
    dtype: hip::DType,
    /// The type of the gradients that the kernel reads.
    by: hip::DType,
    time: usize,
    old: Old,
    /// Whether the step's numbers are computed on the device. With [`Adam`], each row then ends
    /// with its clock.
    replayed: bool,
    /// Whether the parameters were added in a capture, so that the step is part of its graph.
    captured: bool,
}

/// Which state tensors existed before the step: the last template argument of the kernels.
#[derive(Clone, Copy, PartialEq)]
enum Old {
    None = 0,
    /// All but the largest second moment.
    Some = 1,
    All = 2,
}

impl Step {
    /// A step of this rule, without parameters yet.
    pub fn new(rule: Rule, clip: Clip) -> Self {
        Self { rule, clip, groups: Vec::new() }
    }

    fn op(&self) -> &'static str {
        match self.rule {
            Rule::Adam(_) => "adam",
            Rule::Sgd(_) => "sgd",
        }
    }

    /// The number of state tensors of the rule.
    fn states(&self) -> usize {
        match self.rule {
            Rule::Adam(adam) => 2 + usize::from(adam.amsgrad),
            Rule::Sgd(sgd) => usize::from(sgd.momentum.is_some()),
        }
    }

    /// Adds a parameter, its gradient (of the same shape) and its state. The gradient may be of a
    /// narrower float type, as when a model computes in f16 or bf16 and its parameters are f32. The
    /// kernels read such gradients. Narrower gradients of f64 parameters are cast to f64 first,
    /// each in a launch. Returns the new parameter and the new state. Only [`run`](Self::run)
    /// computes their elements.
    ///
    /// A new tensor reuses the memory of the old one if the argument is its only owner. If the
    /// parameter or its gradient has its channels last in memory (`[batch, channels, height,
    /// width]` by strides), so do the new parameter and state.
    ///
    /// In a capture ([`graph`](crate::graph)) parameters and states are always written in place,
    /// so that the next replay starts from them, and the learning rate and [`Adam`]'s time are read
    /// from device memory. The state's time moves to a [`Clock`], which later steps go on with,
    /// whether they are replayed or not.
    ///
    /// # Errors
    /// `Capture` in a capture, if a parameter or a state tensor has another owner, is not contiguous
    /// or does not exist yet.
    /// `Invalid` if shapes or devices of parameter, gradient and state differ, or if the gradient's
    /// dtype is neither the parameter's nor a narrower float type; `Unsupported` if the parameter
    /// is not of a float type; an error of the device. After an error no tensor has changed.
    pub fn add(
        &mut self,
        param: RocmTensor,
        grad: RocmTensor,
        state: &mut State,
    ) -> Result<(RocmTensor, State), RocmError> {
        let alike = state.tensors.iter().chain([&grad]).all(|other| other.dims() == param.dims());
        // A convolution's weights adopt the order of their gradient, so that no later step and no
        // later convolution copies them. In a capture they must stay where they are.
        let fixed = is_recording(param.hip_device().info().index) || clock::is_conditional();
        let last = is_channels_last(&param) || (is_channels_last(&grad) && !fixed);
        if !alike || !last {
            return self.add_packed(param, grad, state);
        }
        let in_order = |tensors: Vec<RocmTensor>, to: fn(RocmTensor) -> Result<RocmTensor, RocmError>| {
            tensors.into_iter().map(to).collect::<Result<Vec<_>, _>>()
        };
        state.tensors = in_order(std::mem::take(&mut state.tensors), rows_of)?;
        let added = self.add_packed(rows_of(param)?, rows_of(grad)?, state);
        state.tensors = in_order(std::mem::take(&mut state.tensors), from_rows)?;
        let (param, new) = added?;
        Ok((from_rows(param)?, State { tensors: in_order(new.tensors, from_rows)?, ..new }))
    }

    /// [`add`](Self::add) of tensors that become row-major.
    fn add_packed(
        &mut self,
        param: RocmTensor,
        grad: RocmTensor,
        state: &mut State,
    ) -> Result<(RocmTensor, State), RocmError> {
        let op = self.op();
        let dtype = param.dtype_of();
        let device = one_device(op, &[&param, &grad])?.clone();
        let kernel_type = float_type(op, &param)?;
        let by = grad.dtype_of();
        if by != dtype && !(by.is_float() && by.size() < dtype.size()) {
            let expected = format!("a gradient of {}, or of a narrower float type", dtype.name());
            return invalid(op, expected, by.name());
        }
        for other in state.tensors.iter().chain([&grad]) {
            one_device(op, &[&param, other])?;
            if other.dims() != param.dims() {
                return invalid(
                    op,
                    format!("tensors of shape {:?}", param.dims()),
                    format!("{:?}", other.dims()),
                );
            }
        }
        let states = self.states();
        // State tensors beyond those of this rule stay as they are; another rule kept them.
        let had = match state.tensors.len() {
            _ if states == 0 => Old::None,
            n if n >= states => Old::All,
            2 => Old::Some,
            _ => Old::None,
        };
        let of_rule = if had == Old::None { 0 } else { state.tensors.len().min(states) };
        let captured = is_recording(device.info().index);
        let recorded = captured || clock::is_conditional();
        let counts = matches!(self.rule, Rule::Adam(_));
        if recorded && states > 0 && had != Old::All {
            let reason = "a parameter has no optimizer state yet: take a step before the capture".into();
            return Err(RocmError::Capture { op, reason });
        }
        // The state of a clone or a record shares the moment's memory, and has a time of its own.
        let own = counts && had == Old::All && state.tensors[0].can_overwrite();
        let known = match &state.clock {
            Some(clock) => Some(clock.share()),
            None if own => clock::of_graph(&state.tensors[0]),
            None => None,
        };
        // A captured step runs only in replays, which its clock counts, and never if the capture
        // fails.
        let next = state.time + usize::from(!captured);
        let (clock, time) = match known {
            _ if !counts => (None, 0),
            None if recorded => (Some(Clock::new(&device, state.time)?), next),
            None => (None, next),
            // The kernels that read a clock read all states.
            Some(clock) if had != Old::All => (None, clock.time()? + 1),
            Some(clock) if Arc::ptr_eq(clock.tensor().hip_device(), &device) => (Some(clock), next),
            Some(clock) => (Some(Clock::new(&device, clock.time()?)?), next),
        };
        let (old, unused) = state.tensors.split_at_mut(of_rule);
        let unused = if had == Old::None && states > 0 { &[] } else { &*unused };
        let in_place =
            |tensor: &mut RocmTensor| match recorded && !(is_packed(tensor) && tensor.can_overwrite()) {
                true => Err(not_in_place(op, tensor)),
                false => in_place(tensor),
            };
        let (param, new_param) = in_place(&mut if recorded { param } else { packed(param)? })?;
        let mut read = vec![param, packed(grad)?];
        let mut new = Vec::with_capacity(states);
        for tensor in old {
            if !recorded && (tensor.dtype_of() != dtype || !is_packed(tensor)) {
                *tensor = packed(cast(tensor.clone(), dtype)?)?;
            }
            let (tensor, out) = in_place(tensor)?;
            read.push(tensor);
            new.push(out);
        }
        if captured && let (Some(clock), Some(moment)) = (&clock, new.first()) {
            clock::record(moment, clock);
        }
        let _state = (device.is_dry() && new.len() < states).then(|| hip::MemoryKind::Optimizer.label());
        while new.len() < states {
            new.push(RocmTensor::empty(&device, new_param.layout().shape().clone(), dtype)?);
        }
        if !new_param.is_empty() {
            // A row has an entry for every old state tensor. The kernel does not read those that
            // did not exist.
            read.extend(new[read.len() - 2..].iter().cloned());
            let row = read.into_iter().chain([new_param.clone()]).chain(new.iter().cloned());
            let row = row.chain(clock.iter().map(|clock| clock.tensor().clone())).collect();
            // Each row has a time of its own if the device counts.
            let by_time = if clock.is_some() { 0 } else { time };
            let replayed = recorded || clock.is_some();
            let by = if dtype == DType::F32 { kernel_type_of(by)? } else { kernel_type };
            let kind = Kind { dtype: kernel_type, by, time: by_time, old: had, replayed, captured };
            group(&mut self.groups, &device, kind).rows.push(row);
        }
        new.extend(unused.iter().cloned());
        Ok((new_param, State { time, tensors: new, clock }))
    }

    /// Computes the new parameters and states that [`add`](Self::add) returned.
    ///
    /// # Errors
    /// `Capture` if a capture in which parameters were added has ended: their gradients will never
    /// be computed. An error of the device.
    pub fn run(&mut self) -> Result<(), RocmError> {
        let op = self.op();
        let ended = |group: &Group<Kind>| group.key.captured && !is_recording(group.device.info().index);
        if self.groups.iter().any(ended) {
            self.groups.clear();
            return Err(RocmError::Capture { op, reason: "the step's capture has ended".into() });
        }
        for group in &mut self.groups {
            widen_gradients(group)?;
        }
        let mut rates = Vec::new();
        for Group { device, key, mut rows } in std::mem::take(&mut self.groups) {
            let (device, rows, Kind { dtype, by, time, old, replayed, .. }) = (&device, &mut rows, key);
            if replayed {
                let rate = rate_of(&mut rates, device, self.rule)?;
                self.replayed(device, [dtype, by], &rate, rows)?;
                continue;
            }
            let name = match self.rule {
                Rule::Adam(_) => Template::optim_adam.name(),
                Rule::Sgd(_) => Template::optim_sgd.name(),
            };
            let kernel = name.ty(dtype).ty(by).int(self.states() as i32).int(old as i32);
            let scalars = scalars(&self.numbers(time), dtype);
            for (table, range) in tables(op, device, rows)? {
                let factors = match self.clip {
                    Clip::Norm(most) => Some(norm_factors(op, device, by, &rows[range], most)?),
                    Clip::None | Clip::Value(_) => None,
                };
                let writes = Writes { of_row: 1 + self.states(), buffers: 0 };
                table.launch(op, kernel, &[scalars], &[factors.as_ref()], writes)?;
            }
        }
        Ok(())
    }

    /// Runs a group whose numbers the device computes.
    fn replayed(
        &self,
        device: &Arc<Device>,
        [dtype, by]: [hip::DType; 2],
        rate: &RocmTensor,
        rows: &mut [Row],
    ) -> Result<(), RocmError> {
        let (op, states) = (self.op(), self.states());
        let (template, numbers) = match self.rule {
            Rule::Adam(_) => {
                let clocks: Vec<Row> = rows.iter_mut().map(|row| row.pop().into_iter().collect()).collect();
                let numbers = clock::adam(op, device, dtype, self.settings(), rate, &clocks)?;
                (Template::optim_adam_replayed, numbers)
            }
            Rule::Sgd(_) => {
                let numbers = clock::sgd(op, device, dtype, self.settings(), rate)?;
                (Template::optim_sgd_replayed, numbers)
            }
        };
        let kernel = template.ty(dtype).ty(by).int(states as i32);
        let stride = [Arg::U32(numbers.stride as u32)];
        for (table, range) in tables(op, device, rows)? {
            let factors = match self.clip {
                Clip::Norm(most) => Some(norm_factors(op, device, by, &rows[range.clone()], most)?),
                Clip::None | Clip::Value(_) => None,
            };
            let numbers = numbers.of(range)?;
            let writes = Writes { of_row: 1 + states, buffers: 0 };
            table.launch(op, kernel, &stride, &[Some(&numbers), factors.as_ref()], writes)?;
        }
        Ok(())
    }

    /// The largest gradient element that is not clamped.
    fn limit(&self) -> f64 {
        match self.clip {
            Clip::Value(limit) => limit.into(),
            Clip::None | Clip::Norm(_) => f64::INFINITY,
        }
    }

    /// The struct `AdamSettings` or `SgdSettings` of `optim.hip`: what [`numbers`](Self::numbers)
    /// takes besides the learning rate and the time.
    fn settings(&self) -> [f64; 12] {
        let mut settings = [0.0; 12];
        match self.rule {
            Rule::Adam(Adam { beta_1, beta_2, epsilon, decay, .. }) => {
                let (penalty, rate, cautious) = match decay {
                    Decay::Penalty(penalty) => (penalty, 0.0, false),
                    Decay::Decoupled { rate, cautious } => (0.0, rate, cautious),
                };
                let all = [beta_1, beta_2, epsilon, penalty, rate, f32::from(u8::from(cautious))];
                settings[..6].copy_from_slice(&all.map(f64::from));
                settings[6] = self.limit();
            }
            // Those of `numbers` behind the learning rate.
            Rule::Sgd(_) => settings[..5].copy_from_slice(&self.numbers(0)[1..6]),
        }
        settings
    }

    /// The struct `Adam` or `Sgd` of `optim.hip` at step `time`.
    fn numbers(&self, time: usize) -> [f64; 12] {
        let limit = self.limit();
        match self.rule {
            // Computed in f32, as in Burn. In f64, `1 - beta^t` would differ in the fifth digit.
            Rule::Adam(Adam { lr, beta_1, beta_2, epsilon, decay, .. }) => {
                let scale = |beta: f32| 1.0 / f64::from(1.0 - beta.powi(time as i32));
                let (penalty, decay, cautious) = match decay {
                    Decay::Penalty(penalty) => (penalty.into(), 0.0, false),
                    Decay::Decoupled { rate, cautious } => (0.0, lr * f64::from(rate), cautious),
                };
                let rest = |beta: f32| f64::from(1.0 - beta);
                [
                    beta_1.into(),
                    rest(beta_1),
                    beta_2.into(),
                    rest(beta_2),
                    scale(beta_1),
                    scale(beta_2),
                    epsilon.into(),
                    lr,
                    penalty,
                    decay,
                    f64::from(u8::from(cautious)),
                    limit,
                ]
            }
            Rule::Sgd(Sgd { lr, penalty, momentum }) => {
                let none = Momentum { momentum: 0.0, dampening: 0.0, nesterov: false };
                let Momentum { momentum, dampening, nesterov } = momentum.unwrap_or(none);
                let mut numbers = [0.0; 12];
                let all =
                    [lr, penalty.into(), momentum, 1.0 - dampening, f64::from(u8::from(nesterov)), limit];
                numbers[..all.len()].copy_from_slice(&all);
                numbers
            }
        }
    }
}

/// Casts gradients to the parameters' dtype, unless the kernel reads them as they are.
fn widen_gradients(group: &mut Group<Kind>) -> Result<(), RocmError> {
    for row in &mut group.rows {
        if row[1].kernel_type()? != group.key.by {
            row[1] = cast(row[1].clone(), row[0].dtype_of())?;
        }
    }
    Ok(())
}

/// The error for a tensor that a captured step can't write in place.
fn not_in_place(op: &'static str, tensor: &RocmTensor) -> RocmError {
    let why = match is_packed(tensor) {
        true => {
            "something else holds its memory, such as a clone of the model or of the optimizer, the \
             weights of an attention's output, or the graph whose capture made it"
        }
        false => "it is not contiguous or not aligned: take a step before the capture",
    };
    let dims = tensor.dims();
    let reason = format!("the step must write a parameter or state of shape {dims:?} in place, but {why}");
    RocmError::Capture { op, reason }
}

/// The learning rate on this device, made once for a step.
fn rate_of(made: &mut Vec<RocmTensor>, device: &Arc<Device>, rule: Rule) -> Result<RocmTensor, RocmError> {
    if let Some(rate) = made.iter().find(|rate| Arc::ptr_eq(rate.hip_device(), device)) {
        return Ok(rate.clone());
    }
    let (Rule::Adam(Adam { lr, .. }) | Rule::Sgd(Sgd { lr, .. })) = rule;
    let rate = clock::rate(device, lr)?;
    made.push(rate.clone());
    Ok(rate)
}

/// The tensor to read and the tensor to write. Both are the same if nobody else holds it.
fn in_place(tensor: &mut RocmTensor) -> Result<(RocmTensor, RocmTensor), RocmError> {
    let out = match tensor.can_overwrite() {
        true => tensor.clone(),
        false => tensor.empty_like()?,
    };
    Ok((tensor.clone(), out))
}

/// The numbers in the type that kernels over `dtype` compute in.
fn scalars(numbers: &[f64; 12], dtype: hip::DType) -> Arg {
    match dtype {
        hip::DType::F64 => Arg::F64x12(*numbers),
        _ => Arg::F32x12(numbers.map(|number| number as f32)),
    }
}
