//! In which order of channels a layer's convolutions are fastest
//! ([`ChannelsLast::Auto`](crate::ChannelsLast::Auto)).
//!
//! A layer's forward pass and gradients mostly have one order, because a gradient comes in the order
//! of what it is the gradient of. So the sum of their times decides. A layer whose neighbours have the
//! other order also pays for copies. These count against a change of order, so that a run of layers
//! keeps the order in which it began unless a layer gains more than its copies take. Each convolution
//! and each gradient asks with the order of its own first operand, so layers of one shape in different
//! runs don't disturb each other, and a transposed convolution asks as any other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{ConvDesc, ConvDirection, ConvProblem, OP};
use crate::device::Device;
use crate::dnn::{Dnn, elements};
use crate::provider::kind::ProviderKind;
use crate::provider::provider;
use crate::settings::{ChannelsLast, FindMode, settings};
use crate::tuning::USES_BEFORE_FIND;
use crate::{Buffer, Error, Result};

/// The most layers. A network has tens.
const MOST: usize = 1024;
/// The times that a step copies a layer's input and output if its neighbours have the other order:
/// the input for the forward pass and for the gradient of the weights, the gradient of the output
/// for both gradients, the output, and the gradient of the input.
const COPIES: f64 = 3.0;
/// The times that a step copies the input of a layer that begins a run.
const FIRST_COPIES: f64 = 2.0;

const DIRECTIONS: [ConvDirection; 3] =
    [ConvDirection::Forward, ConvDirection::BackwardData, ConvDirection::BackwardWeights];

/// Microseconds of a layer's convolutions in one step, or of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct Times {
    row_major: f64,
    channels_last: f64,
}

/// What is known of a layer.
#[derive(Default)]
struct Layer {
    /// For each direction, how often it was asked for.
    uses: [u32; 3],
    /// For each direction, whether its result is a gradient.
    gradient: [bool; 3],
    /// For each direction, its times, once it was timed.
    times: [Option<Times>; 3],
    copies: Option<Copies>,
    /// How often there was too little memory to time the layer.
    short: u32,
    /// Whether a thread times it.
    being_timed: bool,
}

/// What is known of each layer, by its convolution in row-major order.
#[derive(Default)]
pub(in crate::dnn) struct Orders(Mutex<HashMap<ConvDesc, Layer>>);

/// Microseconds to copy a layer's input, and its input and output.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Copies {
    input: f64,
    both: f64,
}

/// Where the channels of 2-D convolutions in f16 and bf16 lie in memory
/// ([`Config::channels_last`](crate::Config::channels_last)). Without a setting, GPUs time each layer
/// (`auto`), and the CPU device, on which neither order is faster, is row-major (`off`).
///
/// # Errors
/// `Config` for a variable with an invalid value.
pub fn channels_last() -> Result<ChannelsLast> {
    let on_gpu = || provider().is_ok_and(|provider| provider.kind() != ProviderKind::Cpu);
    let default = || if on_gpu() { ChannelsLast::Auto } else { ChannelsLast::Off };
    settings().map(|settings| settings.channels_last.unwrap_or_else(default))
}

/// Whether to compute with the channels last. `now` says whether the first operand has them last, or
/// costs little in that order.
fn choose(times: Times, copies: Copies, now: bool) -> bool {
    match now {
        true => times.channels_last <= times.row_major + COPIES * copies.both,
        false => times.channels_last + FIRST_COPIES * copies.input < times.row_major,
    }
}

impl Layer {
    /// Counts a use, and returns the directions that the caller must time, each with whether its
    /// result is a gradient. These are all directions in use, if this one was used often enough.
    /// Empty while another thread times the layer.
    fn due(&mut self, direction: ConvDirection, gradient: bool) -> Vec<(ConvDirection, bool)> {
        let this = direction as usize;
        if self.being_timed || self.times[this].is_some() {
            return Vec::new();
        }
        self.uses[this] = self.uses[this].saturating_add(1);
        self.gradient[this] = gradient;
        // With too little memory, it waits twice as long for each try.
        if self.uses[this] <= USES_BEFORE_FIND << self.short.min(20) {
            return Vec::new();
        }
        let missing =
            |&each: &ConvDirection| self.uses[each as usize] > 0 && self.times[each as usize].is_none();
        let with_gradient = |each| (each, self.gradient[each as usize]);
        let due: Vec<_> = DIRECTIONS.into_iter().filter(missing).map(with_gradient).collect();
        self.being_timed = !due.is_empty();
        due
    }

    /// Keeps the times of the directions that were due.
    fn timed(&mut self, due: &[(ConvDirection, bool)], timed: Result<(Copies, Vec<(ConvDirection, Times)>)>) {
        self.being_timed = false;
        match timed {
            Ok((copies, timed)) => {
                self.copies = Some(copies);
                timed.into_iter().for_each(|(direction, times)| self.times[direction as usize] = Some(times));
            }
            Err(Error::OutOfMemory { .. }) => {
                self.short += 1;
                self.uses = [0; 3];
            }
            Err(_) => {
                // The layer stays row-major, whatever times the other directions have.
                self.copies.get_or_insert(Copies { input: 0.0, both: 0.0 });
                let never = Times { row_major: 0.0, channels_last: f64::INFINITY };
                due.iter().for_each(|(direction, _)| self.times[*direction as usize] = Some(never));
            }
        }
    }

    /// Whether to compute with the channels last: by the sum over the directions that were timed.
    /// False if none was. A layer that is used several times in a step has been asked for its gradient
    /// less often than forward; the gradient's times then change the choice once they are known.
    fn chosen(&self, now: bool) -> bool {
        let Some(copies) = self.copies else { return false };
        let add = |sum: Times, times: &Times| Times {
            row_major: sum.row_major + times.row_major,
            channels_last: sum.channels_last + times.channels_last,
        };
        choose(self.times.iter().flatten().fold(Times::default(), add), copies, now)
    }
}

impl Orders {
    fn with<T>(&self, desc: &ConvDesc, body: impl FnOnce(&mut Layer) -> T) -> T {
        let key = ConvDesc { gradient: false, channels_last: false, ..desc.clone() };
        let mut layers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if layers.len() >= MOST && !layers.contains_key(&key) {
            layers.clear();
        }
        body(layers.entry(key).or_default())
    }
}

impl Dnn {
    /// Whether this convolution, or gradient, should have its channels last, as far as is known by
    /// now, and counts a use. `desc` is row-major. `first` is memory of the first operand, and
    /// `is_last` says whether that operand has its channels last, or is an image, whose copy is small.
    ///
    /// False until a direction of the layer is asked for the third time. Then the directions that
    /// have been asked for are timed in both orders, unless the tuning store has their times. If that
    /// fails, the layer stays row-major; with too little memory, only for now. In deterministic mode
    /// and in immediate mode nothing is timed. In a graph and on a dry device nothing is timed either,
    /// and what is known applies.
    ///
    /// # Errors
    /// `Config` for an invalid setting.
    pub fn conv_channels_last(
        &self,
        direction: ConvDirection,
        desc: &ConvDesc,
        first: &Buffer,
        is_last: bool,
    ) -> Result<bool> {
        if !self.times_orders()? {
            return Ok(false);
        }
        let device = first.device();
        if device.captures.here().is_none() && !device.is_dry() {
            let due = self.orders.with(desc, |layer| layer.due(direction, desc.gradient));
            if !due.is_empty() {
                self.time_orders(device, desc, &due);
            }
        }
        Ok(self.orders.with(desc, |layer| layer.chosen(is_last)))
    }

    /// As [`Dnn::conv_channels_last`] for the forward pass, without counting a use, so nothing is
    /// timed. For [`Dnn::conv_bias_activation`], which has no channels last, and for a convolution that
    /// this project's kernels may compute.
    ///
    /// # Errors
    /// As there.
    pub fn conv_plan_channels_last(&self, desc: &ConvDesc, is_last: bool) -> Result<bool> {
        Ok(self.times_orders()? && self.orders.with(desc, |layer| layer.chosen(is_last)))
    }

    fn times_orders(&self) -> Result<bool> {
        Ok(!self.deterministic && self.products && settings()?.conv_find != FindMode::Immediate)
    }

    /// Times the directions in both orders, and the copies if they are not known.
    fn time_orders(&self, device: &Arc<Device>, desc: &ConvDesc, due: &[(ConvDirection, bool)]) {
        let copies = match self.orders.with(desc, |layer| layer.copies) {
            Some(copies) => Ok(copies),
            None => copies(device, desc),
        };
        let each = |&(direction, gradient): &(ConvDirection, bool)| {
            Ok((direction, self.both_orders(device, desc, direction, gradient)?))
        };
        let timed = copies.and_then(|copies| Ok((copies, due.iter().map(each).collect::<Result<Vec<_>>>()?)));
        log::debug!("{desc:?}: {timed:?}");
        if matches!(timed, Err(Error::OutOfMemory { .. })) {
            device.pool.made_up_for(1);
        }
        self.orders.with(desc, |layer| layer.timed(due, timed));
    }

    /// The times of a direction in both orders. A convolution that MIOpen does not have with its
    /// channels last takes infinitely long.
    fn both_orders(
        &self,
        device: &Arc<Device>,
        desc: &ConvDesc,
        direction: ConvDirection,
        gradient: bool,
    ) -> Result<Times> {
        let time = |channels_last| {
            let desc = ConvDesc { gradient, channels_last, ..desc.clone() };
            self.fastest(device, &ConvProblem { direction, desc })
        };
        // Without a time in row-major order there is nothing to gain on.
        let row_major = time(false)?.unwrap_or(0.0);
        Ok(Times { row_major, channels_last: time(true)?.unwrap_or(f64::INFINITY) })
    }
}

/// How long copies of a layer's input and output take, by copies as large as the larger one: no more
/// memory than the layer itself needs.
fn copies(device: &Arc<Device>, desc: &ConvDesc) -> Result<Copies> {
    let bytes =
        |dims: &[usize]| elements(OP, dims).map(|elements| elements.saturating_mul(desc.dtype.size()));
    let (x, y) = (bytes(&desc.x)?, bytes(&desc.y)?);
    let rate = device.copy_rate(x.max(y))?;
    // A copy reads and writes.
    let time = |bytes: usize| 2.0 * bytes as f64 / rate * 1e6;
    Ok(Copies { input: time(x), both: time(x) + time(y) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COPIES_OF: Copies = Copies { input: 10.0, both: 30.0 };

    fn chosen(row_major: f64, channels_last: f64) -> [bool; 2] {
        [false, true].map(|now| choose(Times { row_major, channels_last }, COPIES_OF, now))
    }

    #[test]
    fn a_run_begins_where_a_layer_gains_more_than_its_inputs_copies() {
        assert_eq!(chosen(100.0, 79.0), [true, true]);
        assert_eq!(chosen(100.0, 81.0), [false, true]);
    }

    #[test]
    fn a_run_ends_where_a_layer_loses_more_than_its_copies() {
        assert_eq!(chosen(100.0, 189.0), [false, true]);
        assert_eq!(chosen(100.0, 191.0), [false, false]);
    }

    #[test]
    fn an_order_that_miopen_does_not_have_is_never_chosen() {
        assert_eq!(chosen(100.0, f64::INFINITY), [false, false]);
    }

    const ONLY_FORWARD: [(ConvDirection, bool); 1] = [(ConvDirection::Forward, false)];

    /// The directions that are due, which are then timed so.
    fn timed(layer: &mut Layer, direction: ConvDirection, times: Times) -> Vec<(ConvDirection, bool)> {
        let due = layer.due(direction, direction != ConvDirection::Forward);
        let each = due.iter().map(|(direction, _)| (*direction, times)).collect();
        layer.timed(&due, Ok((COPIES_OF, each)));
        due
    }

    #[test]
    fn a_layer_that_is_used_three_times_in_a_step_waits_for_its_gradients() {
        let mut layer = Layer::default();
        let last = Times { row_major: 200.0, channels_last: 100.0 };
        let first = Times { row_major: 100.0, channels_last: 300.0 };
        for use_ in 0..4 {
            let due = timed(&mut layer, ConvDirection::Forward, last);
            assert_eq!(due == ONLY_FORWARD, use_ == 2, "forward {use_}: {due:?}");
        }
        assert!(layer.chosen(false), "by the forward pass alone");
        let both = [(ConvDirection::BackwardData, true), (ConvDirection::BackwardWeights, true)];
        for use_ in 0..3 {
            let due = timed(&mut layer, ConvDirection::BackwardWeights, first);
            assert_eq!(due == both, use_ == 2, "backward {use_}: {due:?}");
            assert!(timed(&mut layer, ConvDirection::BackwardData, first).is_empty());
        }
        // 200 + 100 + 100 against 100 + 300 + 300, and copies that take 90 at most.
        assert!(!layer.chosen(false) && !layer.chosen(true));
    }

    #[test]
    fn a_layer_waits_longer_if_memory_is_short() {
        let mut layer = Layer::default();
        for short in 0..5 {
            let due = (0..100).find(|_| !layer.due(ConvDirection::Forward, false).is_empty());
            assert_eq!(due, Some(USES_BEFORE_FIND << short), "after {short} tries");
            let held = String::new();
            layer.timed(&ONLY_FORWARD, Err(Error::OutOfMemory { requested: 1, free: 0, total: 0, held }));
        }
        assert!(!layer.chosen(false), "row-major meanwhile");
    }

    #[test]
    fn one_thread_times_a_layer() {
        let mut layer = Layer::default();
        let mut due = || layer.due(ConvDirection::Forward, false);
        let [first, second, third] = [due(), due(), due()];
        assert_eq!((first, second, third), (Vec::new(), Vec::new(), ONLY_FORWARD.to_vec()));
        // The others' uses meanwhile, also of its gradients.
        assert_eq!(due(), []);
        assert_eq!((0..5).flat_map(|_| layer.due(ConvDirection::BackwardData, true)).count(), 0);
        layer.timed(&ONLY_FORWARD, Ok((COPIES_OF, vec![(ConvDirection::Forward, Times::default())])));
        let gradient: Vec<_> = (0..3).map(|_| layer.due(ConvDirection::BackwardData, true).len()).collect();
        assert_eq!(gradient, [0, 0, 1]);
    }

    #[test]
    fn the_layers_are_bounded() {
        let orders = Orders::default();
        for size in 1..3 * MOST {
            let desc = ConvDesc::new(
                crate::DType::F16,
                &[1, 8, size, 3],
                &[8, 8, 1, 1],
                &[1, 1],
                &[0, 0],
                &[1, 1],
                1,
            );
            orders.with(&desc.unwrap(), |layer| layer.uses[0] += 1);
        }
        assert!(orders.0.lock().unwrap().len() <= MOST);
    }
}
