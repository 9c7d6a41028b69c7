//! In which order of channels a layer's convolutions are fastest
//! ([`ChannelsLast::Auto`](crate::ChannelsLast::Auto)).
//!
//! A layer's forward pass and gradients share one order, because a gradient comes in the order of
//! what it is the gradient of. So the sum of their times decides. A layer whose neighbours have the
//! other order also pays for copies. These count against a change of order, so that a run of layers
//! keeps the order in which it began unless a layer gains more than its copies take.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::choose::USES_BEFORE_FIND;
use super::{ConvDesc, ConvDirection, ConvProblem};
use crate::device::Device;
use crate::dnn::Dnn;
use crate::settings::{FindMode, settings};
use crate::{Buffer, Result};

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

/// Microseconds of a layer's convolutions in one step.
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
    times: Option<Times>,
    /// The order of the last forward pass, in which the gradients come.
    forward: bool,
}

/// What is known of each layer, by its convolution in row-major order.
#[derive(Default)]
pub(in crate::dnn) struct Orders(Mutex<HashMap<ConvDesc, Layer>>);

/// Microseconds to copy a layer's input, and its input and output.
#[derive(Debug, Clone, Copy)]
struct Copies {
    input: f64,
    both: f64,
}

/// Whether to compute with the channels last. `now` says whether the input has them last.
fn choose(times: Times, copies: Copies, now: bool) -> bool {
    match now {
        true => times.channels_last <= times.row_major + COPIES * copies.both,
        false => times.channels_last + FIRST_COPIES * copies.input < times.row_major,
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
    /// now. `desc` is row-major. `first` is memory of the first operand, and `is_last` says whether
    /// that operand has its channels last.
    ///
    /// False until a direction of the layer is asked for the third time. Then the directions that
    /// have been asked for are timed in both orders, unless the tuning store has their times. If that
    /// fails, the layer stays row-major. In deterministic mode and in immediate mode nothing is
    /// timed. In a graph and on a dry device nothing is timed either, and what is known applies.
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
        if self.deterministic || !self.products || settings()?.conv_find == FindMode::Immediate {
            return Ok(false);
        }
        let device = first.device();
        let runs = device.captures.here().is_none() && !device.is_dry();
        let this = direction as usize;
        let (times, due) = self.orders.with(desc, |layer| {
            if runs && layer.times.is_none() {
                layer.uses[this] += 1;
                layer.gradient[this] = desc.gradient;
            }
            let due = layer.uses[this] > USES_BEFORE_FIND;
            (layer.times, due.then_some((layer.uses, layer.gradient)))
        });
        let times = match (times, due) {
            (Some(times), _) => times,
            (None, Some((uses, gradient))) if runs => {
                let times = self.both_orders(device, desc, uses, gradient).unwrap_or_else(|error| {
                    log::debug!("the orders of {desc:?} were not timed: {error}");
                    Times { row_major: 0.0, channels_last: f64::INFINITY }
                });
                log::debug!("{desc:?}: {times:?}");
                self.orders.with(desc, |layer| *layer.times.get_or_insert(times))
            }
            _ => return Ok(false),
        };
        if direction != ConvDirection::Forward
            && let Some(forward) =
                self.orders.with(desc, |layer| (layer.uses[0] > 0).then_some(layer.forward))
        {
            return Ok(forward);
        }
        let chosen = choose(times, self.copies(device, desc), is_last);
        self.orders.with(desc, |layer| layer.forward = chosen);
        Ok(chosen)
    }

    /// The times of the directions with a use, in both orders. A convolution that MIOpen does not
    /// have with its channels last takes infinitely long.
    fn both_orders(
        &self,
        device: &Arc<Device>,
        desc: &ConvDesc,
        uses: [u32; 3],
        gradient: [bool; 3],
    ) -> Result<Times> {
        if device.bandwidth().is_none() {
            device.measure_bandwidth()?;
        }
        let mut times = Times::default();
        for direction in DIRECTIONS.into_iter().filter(|&direction| uses[direction as usize] > 0) {
            let time = |channels_last| {
                let gradient = gradient[direction as usize];
                let desc = ConvDesc { gradient, channels_last, ..desc.clone() };
                self.fastest(device, &ConvProblem { direction, desc })
            };
            // Without a time in row-major order there is nothing to gain on.
            times.row_major += time(false)?.unwrap_or(0.0);
            times.channels_last += time(true)?.unwrap_or(f64::INFINITY);
        }
        Ok(times)
    }

    fn copies(&self, device: &Device, desc: &ConvDesc) -> Copies {
        // There is a rate if the orders were timed.
        let rate = device.bandwidth().unwrap_or(f64::INFINITY);
        let bytes = |dims: &[usize]| dims.iter().product::<usize>() as f64 * desc.dtype.size() as f64;
        // A copy reads and writes.
        let time = |dims: &[usize]| 2.0 * bytes(dims) / rate * 1e6;
        Copies { input: time(&desc.x), both: time(&desc.x) + time(&desc.y) }
    }
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
