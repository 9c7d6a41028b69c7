//! Times convolutions of real networks layer by layer, and whole networks step by step, on the CPU
//! device: this project's MIOpen (`auto`) beside the backend's kernels (`own`), and f16 and bf16
//! beside f32.
//!
//! `cpu_convolutions [--steps] [--batch N] [--only TEXT] [--part K/N] [--csv FILE]` prints a row for
//! each layer of ResNet-18, ResNet-50, YOLOX-tiny and MobileNetV2, or with `--steps` for inference
//! and an SGD step of three of these networks. `--only` selects rows whose name contains TEXT, and
//! `--part` every N-th of these from the K-th, so that N processes can share the work. Each figure
//! is the minimum of 31 rounds, in milliseconds. The columns take turns.
//!
//! `cpu_convolutions --table FILES --note TEXT` prints the layers in the CSV files as a page of
//! Markdown.

#[path = "../../median.rs"]
mod median;
mod table;

use burn::backend::Autodiff;
use burn::module::Module;
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig, PaddingConfig2d};
use burn::optim::{GradientsParams, Optimizer, SgdConfig};
use burn::tensor::backend::{AutodiffBackend, Backend};
use burn::tensor::{Distribution, Int, Tensor, activation::relu, bf16, f16};
use burn_backend::ops::ConvOptions;
use burn_rocm::Rocm;

use clap::Parser;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Lines, Write},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    str::FromStr,
    time::Instant,
};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Input channels, output channels, side of the input, side of the window, stride, groups.
type Layer = [usize; 6];

const NETWORKS: [(&str, &[Layer]); 4] = [
    (
        "ResNet-18",
        &[
            [3, 64, 224, 7, 2, 1],
            [64, 64, 56, 3, 1, 1],
            [64, 128, 56, 3, 2, 1],
            [64, 128, 56, 1, 2, 1],
            [128, 128, 28, 3, 1, 1],
            [128, 256, 28, 3, 2, 1],
            [256, 256, 14, 3, 1, 1],
            [256, 512, 14, 3, 2, 1],
            [512, 512, 7, 3, 1, 1],
        ],
    ),
    (
        "ResNet-50",
        &[
            [64, 64, 56, 1, 1, 1],
            [64, 256, 56, 1, 1, 1],
            [256, 64, 56, 1, 1, 1],
            [128, 128, 56, 3, 2, 1],
            [512, 128, 28, 1, 1, 1],
            [256, 1024, 14, 1, 1, 1],
            [512, 2048, 7, 1, 1, 1],
            [2048, 512, 7, 1, 1, 1],
        ],
    ),
    (
        "YOLOX-tiny",
        &[
            [12, 24, 208, 3, 1, 1],
            [24, 48, 208, 3, 2, 1],
            [48, 24, 104, 1, 1, 1],
            [24, 24, 104, 3, 1, 1],
            [48, 48, 52, 3, 1, 1],
            [96, 192, 52, 3, 2, 1],
            [96, 96, 26, 3, 1, 1],
            [192, 192, 13, 3, 1, 1],
        ],
    ),
    (
        "MobileNetV2",
        &[
            [3, 32, 224, 3, 2, 1],
            [32, 32, 112, 3, 1, 32],
            [32, 16, 112, 1, 1, 1],
            [16, 96, 112, 1, 1, 1],
            [96, 96, 112, 3, 2, 96],
            [144, 144, 56, 3, 1, 144],
            [192, 32, 28, 1, 1, 1],
            [384, 384, 14, 3, 1, 384],
            [576, 96, 14, 1, 1, 1],
            [960, 960, 7, 3, 1, 960],
            [320, 1280, 7, 1, 1, 1],
        ],
    ),
];

/// The names of a layer's rows.
const DIRECTIONS: [&str; 3] = ["forward", "data", "weights"];

/// All layers with their names.
fn layers(batch: usize) -> impl Iterator<Item = (String, Layer)> {
    NETWORKS.iter().flat_map(move |(network, layers)| {
        layers.iter().map(move |&layer| {
            let [from, to, size, window, stride, groups] = layer;
            let shape = format!("{window}x{window} stride {stride} groups {groups} on {size}");
            (format!("{network} {batch} x {from}->{to} {shape}"), layer)
        })
    })
}

/// Prints a row's name. For each line of standard input that is [`ROUND`], runs `body` and prints
/// its milliseconds; any other line ends the row.
fn serve<B: Backend>(device: &B::Device, name: &str, mut body: impl FnMut()) -> Result<()> {
    let mut round = || {
        let begin = Instant::now();
        body();
        B::sync(device).expect("the device finishes");
        begin.elapsed().as_secs_f64() * 1e3
    };
    for _ in 0..3 {
        round(); // compiles kernels; at a shape's third use MIOpen's algorithms are timed
    }
    println!("{name}");
    for line in io::stdin().lines() {
        if line? != ROUND {
            break;
        }
        println!("{}", round());
    }
    Ok(())
}

/// Times a layer: forward, the input's gradient, the weight's gradient.
fn layer<B: Backend>(
    name: &str,
    batch: usize,
    [from, to, size, window, stride, groups]: Layer,
) -> Result<()> {
    let device = B::Device::default();
    let pad = window / 2;
    let out = (size + 2 * pad - window) / stride + 1;
    let [x, w, g] = [[batch, from, size, size], [to, from / groups, window, window], [batch, to, out, out]]
        .map(|shape| {
            Tensor::<B, 4>::random(shape, Distribution::Uniform(-1.0, 1.0), &device).into_primitive().tensor()
        });
    let options = || ConvOptions::new([stride; 2], [pad; 2], [1; 2], groups);
    let [forward, data, weights] = DIRECTIONS.map(|direction| format!("{name}, {direction}"));
    serve::<B>(&device, &forward, || {
        drop(B::conv2d(x.clone(), w.clone(), None, options()));
    })?;
    serve::<B>(&device, &data, || {
        drop(B::conv2d_x_backward(x.clone(), w.clone(), g.clone(), options()));
    })?;
    serve::<B>(&device, &weights, || {
        drop(B::conv2d_weight_backward(x.clone(), w.clone(), g.clone(), options()));
    })
}

/// A convolution and its batch norm.
#[derive(Module, Debug)]
struct Unit<B: Backend> {
    conv: Conv2d<B>,
    norm: BatchNorm<B>,
}

impl<B: Backend> Unit<B> {
    fn new(from: usize, to: usize, window: usize, stride: usize, groups: usize, device: &B::Device) -> Self {
        let pad = window / 2;
        let conv = Conv2dConfig::new([from, to], [window; 2])
            .with_stride([stride; 2])
            .with_groups(groups)
            .with_padding(PaddingConfig2d::Explicit(pad, pad, pad, pad))
            .with_bias(false)
            .init(device);
        Self { conv, norm: BatchNormConfig::new(to).init(device) }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        self.norm.forward(self.conv.forward(x))
    }
}

/// Units with ReLU between them, and the shortcut around them.
#[derive(Module, Debug)]
struct Block<B: Backend> {
    units: Vec<Unit<B>>,
    around: Option<Unit<B>>,
    adds: bool,
    ends_in_relu: bool,
}

impl<B: Backend> Block<B> {
    fn basic(from: usize, to: usize, stride: usize, device: &B::Device) -> Self {
        let units = vec![Unit::new(from, to, 3, stride, 1, device), Unit::new(to, to, 3, 1, 1, device)];
        let around = (stride > 1).then(|| Unit::new(from, to, 1, stride, 1, device));
        Self { units, around, adds: true, ends_in_relu: true }
    }

    fn bottleneck(from: usize, middle: usize, stride: usize, device: &B::Device) -> Self {
        let to = 4 * middle;
        let units = vec![
            Unit::new(from, middle, 1, 1, 1, device),
            Unit::new(middle, middle, 3, stride, 1, device),
            Unit::new(middle, to, 1, 1, 1, device),
        ];
        let around = (from != to).then(|| Unit::new(from, to, 1, stride, 1, device));
        Self { units, around, adds: true, ends_in_relu: true }
    }

    fn inverted(from: usize, to: usize, stride: usize, factor: usize, device: &B::Device) -> Self {
        let wide = from * factor;
        let expand = (factor > 1).then(|| Unit::new(from, wide, 1, 1, 1, device));
        let rest = [Unit::new(wide, wide, 3, stride, wide, device), Unit::new(wide, to, 1, 1, 1, device)];
        let units = expand.into_iter().chain(rest).collect();
        Self { units, around: None, adds: stride == 1 && from == to, ends_in_relu: false }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 4> {
        let mut out = x.clone();
        for (at, unit) in self.units.iter().enumerate() {
            out = unit.forward(out);
            if at + 1 < self.units.len() {
                out = relu(out);
            }
        }
        if self.adds {
            out = out + self.around.as_ref().map_or(x.clone(), |unit| unit.forward(x));
        }
        if self.ends_in_relu { relu(out) } else { out }
    }
}

/// ResNet-18 or -50 (with a stride in the stem instead of the first pooling), or MobileNetV2 (with
/// ReLU instead of ReLU6).
#[derive(Module, Debug)]
struct Network<B: Backend> {
    stem: Unit<B>,
    blocks: Vec<Block<B>>,
    head: Linear<B>,
}

impl<B: Backend> Network<B> {
    fn resnet_18(device: &B::Device) -> Self {
        let mut blocks = Vec::new();
        let mut from = 64;
        for (to, stride) in [(64, 1), (128, 2), (256, 2), (512, 2)] {
            blocks.push(Block::basic(from, to, stride, device));
            blocks.push(Block::basic(to, to, 1, device));
            from = to;
        }
        let stem = Unit::new(3, 64, 7, 4, 1, device);
        Self { stem, blocks, head: LinearConfig::new(512, 1000).init(device) }
    }

    fn resnet_50(device: &B::Device) -> Self {
        let mut blocks = Vec::new();
        let mut from = 64;
        for (middle, stride, count) in [(64, 1, 3), (128, 2, 4), (256, 2, 6), (512, 2, 3)] {
            for at in 0..count {
                blocks.push(Block::bottleneck(from, middle, if at == 0 { stride } else { 1 }, device));
                from = 4 * middle;
            }
        }
        let stem = Unit::new(3, 64, 7, 4, 1, device);
        Self { stem, blocks, head: LinearConfig::new(2048, 1000).init(device) }
    }

    fn mobilenet(device: &B::Device) -> Self {
        let mut blocks = Vec::new();
        let mut from = 32;
        for (factor, to, count, stride) in [
            (1, 16, 1, 1),
            (6, 24, 2, 2),
            (6, 32, 3, 2),
            (6, 64, 4, 2),
            (6, 96, 3, 1),
            (6, 160, 3, 2),
            (6, 320, 1, 1),
        ] {
            for at in 0..count {
                blocks.push(Block::inverted(from, to, if at == 0 { stride } else { 1 }, factor, device));
                from = to;
            }
        }
        let stem = Unit::new(3, 32, 3, 2, 1, device);
        Self { stem, blocks, head: LinearConfig::new(320, 1000).init(device) }
    }

    fn forward(&self, x: Tensor<B, 4>) -> Tensor<B, 2> {
        let x = self.blocks.iter().fold(relu(self.stem.forward(x)), |x, block| block.forward(x));
        let x: Tensor<B, 3> = x.flatten(2, 3);
        self.head.forward(x.mean_dim(2).flatten(1, 2))
    }
}

/// Times inference and an SGD step of a network.
fn steps<B: AutodiffBackend>(name: &str, batch: usize, make: fn(&B::Device) -> Network<B>) -> Result<()> {
    let device = B::Device::default();
    let images = Tensor::<B, 4>::random([batch, 3, 224, 224], Distribution::Uniform(-1.0, 1.0), &device);
    let labels = Tensor::<B, 1, Int>::arange(0..batch as i64, &device);
    let mut model = Some(make(&device));
    let valid = model.as_ref().map(burn::module::AutodiffModule::valid);
    let inner = images.clone().inner();
    serve::<B>(&device, &format!("{name}, inference"), || {
        drop(valid.as_ref().map(|model| model.forward(inner.clone())));
    })?;
    let mut optimizer = SgdConfig::new().init();
    serve::<B>(&device, &format!("{name}, training step"), || {
        model = model.take().map(|model| {
            let logits = model.forward(images.clone());
            let loss = CrossEntropyLossConfig::new().init(&device).forward(logits, labels.clone());
            let grads = GradientsParams::from_grads(loss.backward(), &model);
            optimizer.step(1e-3, model, grads)
        });
    })
}

/// Answers requests for every row in one dtype.
fn rows<B: AutodiffBackend>(args: &Args) -> Result<()> {
    let batch = args.batch;
    if !args.steps {
        let mut all = args.selected(layers(batch));
        return all.try_for_each(|(name, shape)| layer::<B::InnerBackend>(&name, batch, shape));
    }
    let networks = [
        ("ResNet-18", Network::<B>::resnet_18 as fn(&B::Device) -> _),
        ("ResNet-50", Network::resnet_50),
        ("MobileNetV2", Network::mobilenet),
    ];
    let named = networks.map(|(network, make)| (format!("{network} {batch} x 224"), make));
    let mut all = args.selected(named.into_iter());
    all.try_for_each(|(name, make)| steps::<B>(&name, batch, make))
}

/// Part `at` of `of`, counted from 1.
#[derive(Clone, Copy)]
struct Part {
    at: usize,
    of: usize,
}

impl FromStr for Part {
    type Err = &'static str;

    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        let numbers = text.split_once('/').and_then(|(at, of)| Some((at.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((at, of)) if (1..=of).contains(&at) => Ok(Self { at, of }),
            _ => Err("K/N needs two numbers, K from 1 to N"),
        }
    }
}

#[derive(clap::Parser)]
struct Args {
    /// Networks by step instead of their layers.
    #[arg(long)]
    steps: bool,
    #[arg(long, default_value_t = 2)]
    batch: usize,
    /// Only rows whose name contains this text.
    #[arg(long, default_value = "")]
    only: String,
    /// Only every N-th of these layers or networks, from the K-th.
    #[arg(long, value_name = "K/N", default_value = "1/1")]
    part: Part,
    /// Also writes the rows to this file.
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,
    /// Prints the layers in these CSV files as a page of Markdown, and measures nothing.
    #[arg(long, value_name = "FILES", num_args = 1..)]
    table: Vec<PathBuf>,
    /// A paragraph of the page: the machine, the date and the commit of the CSV files.
    #[arg(long, value_name = "TEXT", default_value = "")]
    note: String,
    /// Serves the rows of one dtype on request from standard input. The program starts itself with
    /// this option.
    #[arg(long, hide = true)]
    dtype: Option<String>,
}

impl Args {
    /// What `--only` and `--part` select.
    fn selected<T>(&self, all: impl Iterator<Item = (String, T)>) -> impl Iterator<Item = (String, T)> {
        let named = all.filter(|(name, _)| name.contains(&self.only));
        named.skip(self.part.at - 1).step_by(self.part.of)
    }
}

/// The name, the `BURN_ROCM_CONV` setting and the dtype of each column. Burn's default dtypes and
/// the backend's settings stay fixed for the life of a process, so each column has its own process.
const COLUMNS: [(&str, &str, &str); 4] = [
    ("own f32", "own", "f32"),
    ("auto f32", "auto", "f32"),
    ("auto f16", "auto", "f16"),
    ("auto bf16", "auto", "bf16"),
];

/// The line that asks a column's process for one round of its row.
const ROUND: &str = "round";
/// Rounds of a row in each column. The columns take turns, so other load on the machine slows all
/// columns alike.
const ROUNDS: usize = 31;

/// A column's process.
struct Column {
    process: Child,
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Column {
    fn start(way: &str, dtype: &str) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .args(["--dtype", dtype])
            .env("BURN_ROCM_PROVIDER", "cpu")
            .env("BURN_ROCM_CONV", way)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let (questions, answers) = process.stdin.take().zip(process.stdout.take()).ok_or("no pipes")?;
        Ok(Self { process, questions, answers: BufReader::new(answers).lines() })
    }

    /// The next row's name, or none after the last.
    fn row(&mut self) -> Result<Option<String>> {
        Ok(self.answers.next().transpose()?)
    }

    fn round(&mut self) -> Result<f64> {
        writeln!(self.questions, "{ROUND}")?;
        Ok(self.answers.next().ok_or("a column ended within a row")??.parse()?)
    }
}

fn main() -> Result<()> {
    let args = Args::parse();
    if let Some(dtype) = &args.dtype {
        return match dtype.as_str() {
            "f32" => rows::<Autodiff<Rocm>>(&args),
            "f16" => rows::<Autodiff<Rocm<f16>>>(&args),
            "bf16" => rows::<Autodiff<Rocm<bf16>>>(&args),
            other => Err(format!("no dtype {other}").into()),
        };
    }
    if !args.table.is_empty() {
        let texts = args.table.iter().map(std::fs::read_to_string).collect::<io::Result<Vec<_>>>()?;
        print!("{}", table::page(&texts, &args.note)?);
        return Ok(());
    }
    let mut csv = args.csv.map(File::create).transpose()?;
    if let Some(csv) = &mut csv {
        writeln!(csv, "{}", table::HEADER)?;
    }
    let names = COLUMNS.map(|(name, ..)| name).join(", ms | ");
    println!(
        "| | {names}, ms | auto / own | f16 / f32 | bf16 / f32 |\n|---|---:|---:|---:|---:|---:|---:|---:|"
    );
    let mut columns =
        COLUMNS.into_iter().map(|(_, way, dtype)| Column::start(way, dtype)).collect::<Result<Vec<_>>>()?;
    loop {
        let names = columns.iter_mut().map(Column::row).collect::<Result<Vec<_>>>()?;
        let [Some(name), ..] = &names[..] else { break };
        let mut least: table::Times = [f64::INFINITY; COLUMNS.len()];
        for _ in 0..ROUNDS {
            for (least, column) in least.iter_mut().zip(&mut columns) {
                *least = least.min(column.round()?);
            }
        }
        for column in &mut columns {
            writeln!(column.questions, "next")?;
        }
        if let Some(csv) = &mut csv {
            writeln!(csv, "{}", table::line(name, least))?;
        }
        let [own, auto, half, brain] = least;
        println!(
            "| {name} | {own:.2} | {auto:.2} | {half:.2} | {brain:.2} | {:.2} | {:.2} | {:.2} |",
            auto / own,
            half / auto,
            brain / auto
        );
    }
    for column in &mut columns {
        if !column.process.wait()?.success() {
            return Err("a column's process failed".into());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_share_all_layers() {
        for of in 1..6 {
            let mut names: Vec<String> = (1..=of)
                .flat_map(|at| {
                    let part = format!("{at}/{of}");
                    let args = Args::parse_from(["", "--only", "on 56", "--part", &part]);
                    args.selected(layers(2)).map(|(name, _)| name).collect::<Vec<_>>()
                })
                .collect();
            names.sort();
            let mut all: Vec<String> = layers(2).map(|(name, _)| name).collect();
            all.retain(|name| name.contains("on 56"));
            all.sort();
            assert_eq!(names, all, "{of} parts");
        }
        for wrong in ["0/2", "3/2", "1", "1/0", "a/2"] {
            assert!(Args::try_parse_from(["", "--part", wrong]).is_err(), "{wrong}");
        }
    }
}
