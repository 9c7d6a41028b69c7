//! Images to classify: the real MNIST or drawn digits, both as bytes in host memory.

pub mod digits;
pub mod mnist;
pub mod raster;

use crate::rng::Rng;

/// Width and height of an image in pixels.
pub const SIDE: usize = 28;
/// Pixels in one image.
pub const PIXELS: usize = SIDE * SIDE;
/// Number of classes: the digits 0 to 9.
pub const CLASSES: usize = 10;

/// Labelled images with one byte for each pixel, one image after the other.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Split {
    pixels: Vec<u8>,
    labels: Vec<u8>,
}

impl Split {
    /// An empty split with room for `count` images.
    pub fn with_capacity(count: usize) -> Self {
        Self { pixels: Vec::with_capacity(count * PIXELS), labels: Vec::with_capacity(count) }
    }

    /// Appends one image.
    pub fn push(&mut self, image: &[u8; PIXELS], label: u8) {
        self.pixels.extend_from_slice(image);
        self.labels.push(label);
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The pixels of image `index`, row by row. 0 is background.
    pub fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * PIXELS..(index + 1) * PIXELS]
    }

    /// The digit that image `index` shows.
    pub fn label(&self, index: usize) -> u8 {
        self.labels[index]
    }

    /// Mean and standard deviation of all pixels, scaled to 0..1.
    pub fn statistics(&self) -> (f32, f32) {
        let mut histogram = [0u64; 256];
        for &pixel in &self.pixels {
            histogram[usize::from(pixel)] += 1;
        }
        let total = self.pixels.len().max(1) as f64;
        let moment = |power: i32| {
            let terms = histogram.iter().enumerate();
            terms.map(|(value, &n)| (value as f64 / 255.0).powi(power) * n as f64).sum::<f64>() / total
        };
        let (mean, square) = (moment(1), moment(2));
        (mean as f32, (square - mean * mean).max(0.0).sqrt() as f32)
    }
}

/// A training split, and a held-out test split that training never sees.
#[derive(Debug, Clone)]
pub struct Data {
    /// The name shown to the user: "MNIST" or "drawn digits".
    pub name: &'static str,
    /// Images to train on.
    pub train: Split,
    /// Images to evaluate on.
    pub test: Split,
    mean: f32,
    deviation: f32,
}

impl Data {
    /// Joins two splits. Batches are normalised by mean and deviation of the training split.
    pub fn new(name: &'static str, train: Split, test: Split) -> Self {
        let (mean, deviation) = train.statistics();
        Self { name, train, test, mean, deviation: deviation.max(1e-6) }
    }

    /// The images at `indices` of `split` (one of this data's two) as normalised floats, and their
    /// labels.
    pub fn batch(&self, split: &Split, indices: &[usize]) -> (Vec<f32>, Vec<i32>) {
        let scale = 1.0 / (255.0 * self.deviation);
        let shift = -self.mean / self.deviation;
        let mut pixels = Vec::with_capacity(indices.len() * PIXELS);
        for &index in indices {
            pixels.extend(split.image(index).iter().map(|&pixel| f32::from(pixel) * scale + shift));
        }
        let labels = indices.iter().map(|&index| i32::from(split.label(index))).collect();
        (pixels, labels)
    }
}

/// The order in which `epoch` goes through `count` images: a permutation given by the seed.
pub fn epoch_order(count: usize, seed: u64, epoch: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    Rng::new(seed, 1 + epoch as u64).shuffle(&mut order);
    order
}
