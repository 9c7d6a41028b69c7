//! Estimates a data-parallel training step on 8 to 1024 GPUs, from the step on one GPU, the bytes of
//! the gradients, and the speed of the links.
//!
//! `several_gpus` first prints what the model says of two and of four H200 beside what was measured
//! there, and the error, then the estimates. It runs on the host and needs no GPU.
//!
//! The model: an all-reduce of `b` bytes takes `latency + b * 2 (n - 1) / n / bandwidth`, within a
//! node or between nodes, whichever is longer, since the libraries pipeline the two. Between nodes
//! each GPU sends its part of the node's bytes through its own network card. Gradients are reduced
//! in the buckets of `burn_rocm_nn::parallel::DataParallel`, one after the other, as they were when
//! the steps below were measured: all gradients packed, and one bucket for up to 25 MiB. Beside the
//! backward pass, a bucket begins when its share of the pass is over. The model leaves out what a
//! collective takes from kernels that run beside it, and a host that is late.

#[path = "../gpu/models/parameters.rs"]
mod parameters;

use std::fmt::Write;

use parameters::{RESNET_18 as RESNET, TRANSFORMER};

/// The bytes from which a bucket is full, as in `DataParallel`.
const BUCKET: f64 = (25 << 20) as f64;
/// The smallest bucket's part of a whole one, as in `DataParallel`.
const SMALLEST: f64 = 1.0 / 16.0;
/// The backward pass's share of a step: it computes two products for each one of the forward pass.
const BACKWARD: f64 = 2.0 / 3.0;
/// Bytes of gradients packed in a second: half of an H200's bandwidth, since a copy reads and
/// writes.
const PACKING: f64 = 2.0e12;

/// The links of a machine.
struct Links {
    name: &'static str,
    /// GPUs of a node.
    node: usize,
    /// Bus bandwidth of an all-reduce within a node, bytes a second.
    within: f64,
    /// Bytes a second of a GPU's network card, in each direction.
    between: f64,
    /// Seconds of a call on two GPUs.
    call: f64,
}

/// Seconds that another GPU of a node adds to a ring. A guess.
const HOP: f64 = 1e-6;
/// Seconds that another level of a tree of nodes adds, up and down. A guess.
const LEVEL: f64 = 10e-6;

/// Bytes a second of a network card of 400 Gb/s: a ConnectX-7 of NVIDIA has one port of NDR InfiniBand or of
/// Ethernet with this speed (<https://docs.nvidia.com/networking/display/ConnectX7VPI/Introduction>).
const CARD: f64 = 400e9 / 8.0;

/// Measured on two H200 (NVLink, NCCL), 2026-11-26: 25 MiB in 111 us and 256 MiB in 905 us
/// (benches/README.md), from which `within` and `call` follow.
const H200: Links =
    Links { name: "H200, NVLink, 400 Gb/s a GPU", node: 8, within: 305e9, between: CARD, call: 25e-6 };
/// Seven xGMI links of 48 GB/s each that can be used
/// (<https://rocm.blogs.amd.com/software-tools-optimization/mi300x-rccl-xgmi/README.html>), and a
/// network card for each GPU. The time of a call is the H200's: a guess.
const MI300X: Links =
    Links { name: "MI300X, xGMI, 400 Gb/s a GPU", node: 8, within: 336e9, between: CARD, call: 25e-6 };

impl Links {
    /// Seconds of an all-reduce.
    fn all_reduce(&self, gpus: usize, bytes: f64) -> f64 {
        let ring = |ranks: usize| 2.0 * (ranks as f64 - 1.0) / ranks as f64;
        let in_node = gpus.min(self.node);
        let nodes = gpus.div_ceil(self.node);
        let within = ring(in_node) * bytes / self.within;
        let between = ring(nodes) * bytes / in_node as f64 / self.between;
        let hops = in_node.saturating_sub(2) as f64 * HOP + (nodes as f64).log2().ceil() * LEVEL;
        self.call + hops + within.max(between)
    }
}

/// A training step on one GPU.
struct Step {
    name: &'static str,
    /// Seconds.
    alone: f64,
    /// The bytes of the gradients.
    bytes: f64,
}

#[derive(Clone, Copy, PartialEq)]
enum Reduced {
    AfterThePass,
    BesideThePass,
}

/// The buckets of gradients, in the order in which they are reduced. `full` is the size of a full one.
fn buckets(mut left: f64, full: f64) -> Vec<f64> {
    let several = left > full;
    let mut buckets = Vec::new();
    while left > 0.0 {
        let size = if several { (left / 2.0).clamp(SMALLEST * full, full) } else { left };
        buckets.push(size.min(left));
        left -= size;
    }
    buckets
}

impl Step {
    /// Seconds of the step on so many GPUs, each with the batch of one.
    fn on(&self, links: &Links, gpus: usize, reduced: Reduced) -> f64 {
        let backward = BACKWARD * self.alone;
        let mut ready = 0.0;
        let mut free = self.alone - backward;
        for bucket in buckets(self.bytes, BUCKET) {
            ready += bucket;
            let begin = match reduced {
                Reduced::AfterThePass => self.alone,
                Reduced::BesideThePass => self.alone - backward * (1.0 - ready / self.bytes),
            };
            free = f64::max(free, begin) + bucket / PACKING + links.all_reduce(gpus, bucket);
        }
        free.max(self.alone)
    }
}

/// Steps on H200 of one host: milliseconds alone and together, as `benches --devices` measured them
/// (docs/decisions/036-data-parallel.md, benches/README.md). The first ones were launched one by one,
/// the others are graphs.
#[rustfmt::skip]
const MEASURED: [(&str, usize, f64, f64, f64, Reduced); 38] = [
    ("ResNet-18, batch 64, f32", 2, 18.54, 4.0 * RESNET, 18.89, Reduced::AfterThePass),
    ("ResNet-18, batch 64, f32", 2, 18.91, 4.0 * RESNET, 19.44, Reduced::AfterThePass),
    ("transformer, batch 16, f32", 2, 35.80, 4.0 * TRANSFORMER, 36.71, Reduced::AfterThePass),
    ("transformer, batch 16, f32", 2, 35.80, 4.0 * TRANSFORMER, 36.64, Reduced::AfterThePass),
    ("ResNet-18, batch 64, bf16", 2, 8.32, 2.0 * RESNET, 8.79, Reduced::AfterThePass),
    ("ResNet-18, batch 64, bf16", 2, 8.19, 2.0 * RESNET, 9.42, Reduced::AfterThePass),
    ("transformer, batch 16, bf16", 2, 4.96, 2.0 * TRANSFORMER, 5.47, Reduced::AfterThePass),
    ("transformer, batch 16, bf16", 2, 4.93, 2.0 * TRANSFORMER, 6.74, Reduced::AfterThePass),
    ("transformer, batch 16, bf16", 2, 4.86, 2.0 * TRANSFORMER, 6.61, Reduced::AfterThePass),
    ("ResNet-18, batch 64, f32", 2, 18.91, 4.0 * RESNET, 19.09, Reduced::BesideThePass),
    ("transformer, batch 16, f32", 2, 35.80, 4.0 * TRANSFORMER, 36.45, Reduced::BesideThePass),
    ("ResNet-18, batch 64, bf16", 2, 8.19, 2.0 * RESNET, 9.16, Reduced::BesideThePass),
    ("transformer, batch 16, bf16", 2, 4.93, 2.0 * TRANSFORMER, 5.60, Reduced::BesideThePass),
    ("transformer, batch 16, bf16", 2, 4.86, 2.0 * TRANSFORMER, 6.35, Reduced::BesideThePass),
    ("ResNet-18, batch 64, f32, graph", 2, 16.56, 4.0 * RESNET, 16.89, Reduced::AfterThePass),
    ("ResNet-18, batch 64, f32, graph", 2, 16.56, 4.0 * RESNET, 16.73, Reduced::BesideThePass),
    ("ResNet-18, batch 64, f32, graph", 4, 16.56, 4.0 * RESNET, 16.96, Reduced::AfterThePass),
    ("ResNet-18, batch 64, f32, graph", 4, 16.56, 4.0 * RESNET, 16.75, Reduced::BesideThePass),
    ("transformer, batch 16, f32, graph", 2, 35.49, 4.0 * TRANSFORMER, 36.30, Reduced::AfterThePass),
    ("transformer, batch 16, f32, graph", 2, 35.49, 4.0 * TRANSFORMER, 35.99, Reduced::BesideThePass),
    ("transformer, batch 16, f32, graph", 4, 35.49, 4.0 * TRANSFORMER, 36.43, Reduced::AfterThePass),
    ("transformer, batch 16, f32, graph", 4, 35.49, 4.0 * TRANSFORMER, 36.08, Reduced::BesideThePass),
    ("ResNet-18, batch 64, bf16, graph", 2, 6.64, 2.0 * RESNET, 7.05, Reduced::AfterThePass),
    ("ResNet-18, batch 64, bf16, graph", 2, 6.64, 2.0 * RESNET, 6.99, Reduced::BesideThePass),
    ("ResNet-18, batch 64, bf16, graph", 4, 6.64, 2.0 * RESNET, 7.07, Reduced::AfterThePass),
    ("ResNet-18, batch 64, bf16, graph", 4, 6.64, 2.0 * RESNET, 7.03, Reduced::BesideThePass),
    ("transformer, batch 16, bf16, graph", 2, 4.44, 2.0 * TRANSFORMER, 4.94, Reduced::AfterThePass),
    ("transformer, batch 16, bf16, graph", 2, 4.44, 2.0 * TRANSFORMER, 4.92, Reduced::BesideThePass),
    ("transformer, batch 16, bf16, graph", 4, 4.44, 2.0 * TRANSFORMER, 5.01, Reduced::AfterThePass),
    ("transformer, batch 16, bf16, graph", 4, 4.44, 2.0 * TRANSFORMER, 4.95, Reduced::BesideThePass),
    ("ResNet-18, batch 64, f32, graph", 2, 16.68, 4.0 * RESNET, 17.02, Reduced::AfterThePass),
    ("ResNet-18, batch 64, f32, graph", 2, 16.68, 4.0 * RESNET, 16.85, Reduced::BesideThePass),
    ("transformer, batch 16, f32, graph", 2, 35.58, 4.0 * TRANSFORMER, 36.27, Reduced::AfterThePass),
    ("transformer, batch 16, f32, graph", 2, 35.58, 4.0 * TRANSFORMER, 36.10, Reduced::BesideThePass),
    ("ResNet-18, batch 64, bf16, graph", 2, 4.42, 2.0 * RESNET, 4.84, Reduced::AfterThePass),
    ("ResNet-18, batch 64, bf16, graph", 2, 4.42, 2.0 * RESNET, 4.73, Reduced::BesideThePass),
    ("transformer, batch 16, bf16, graph", 2, 4.60, 2.0 * TRANSFORMER, 5.05, Reduced::AfterThePass),
    ("transformer, batch 16, bf16, graph", 2, 4.60, 2.0 * TRANSFORMER, 4.90, Reduced::BesideThePass),
];

fn main() {
    print!("{}", report());
}

/// The tables of the guide.
fn report() -> String {
    let mut text = String::new();
    let _ = writeln!(text, "Two and four H200: milliseconds of a step\n");
    let _ = writeln!(text, "| step | GPUs | reduced | alone | measured | model | error |");
    let _ = writeln!(text, "|---|---:|---|---:|---:|---:|---:|");
    let mut errors = Vec::new();
    for (name, gpus, alone, bytes, measured, reduced) in MEASURED {
        let model = 1e3 * Step { name, alone: alone / 1e3, bytes }.on(&H200, gpus, reduced);
        let error = model / measured - 1.0;
        errors.push(error.abs());
        let when = if reduced == Reduced::AfterThePass { "after the pass" } else { "beside it" };
        let percent = 100.0 * error;
        let _ = writeln!(
            text,
            "| {name} | {gpus} | {when} | {alone:.2} | {measured:.2} | {model:.2} | {percent:+.1} % |"
        );
    }
    errors.sort_by(f64::total_cmp);
    let median = 50.0 * (errors[errors.len() / 2 - 1] + errors[errors.len() / 2]);
    let largest = 100.0 * errors[errors.len() - 1];
    let _ = writeln!(text, "\nMedian error {median:.1} %, largest {largest:.1} %.");
    let steps = [
        Step { name: "ResNet-18, batch 64, bf16", alone: 4.81e-3, bytes: 2.0 * RESNET },
        Step { name: "transformer, batch 16, bf16", alone: 4.76e-3, bytes: 2.0 * TRANSFORMER },
        Step { name: "transformer, batch 16, f32", alone: 35.8e-3, bytes: 4.0 * TRANSFORMER },
        Step { name: "decoder of 1.2 B, 16,384 tokens, bf16", alone: 0.36, bytes: 2.0 * 1.24e9 },
    ];
    for links in [&H200, &MI300X] {
        let _ = writeln!(text, "\nEfficiency, gradients reduced beside the pass: {}\n", links.name);
        let _ = writeln!(text, "| step | 8 | 16 | 64 | 256 | 1024 |");
        let _ = writeln!(text, "|---|---:|---:|---:|---:|---:|");
        for step in &steps {
            let on = |gpus| step.alone / step.on(links, gpus, Reduced::BesideThePass);
            let row: Vec<String> =
                [8, 16, 64, 256, 1024].iter().map(|&gpus| format!("{:.3}", on(gpus))).collect();
            let _ = writeln!(text, "| {} | {} |", step.name, row.join(" | "));
        }
    }
    let _ = writeln!(
        text,
        "\nThe time of a step alone is an H200's (replayed graphs; the decoder's from 6 FLOP a weight and token \
         at 340 TFLOP/s), also with the MI300X's links."
    );
    text
}

/// The tests of the whole workspace use this file too.
#[cfg(test)]
#[allow(unreachable_pub, reason = "public in its own crate")]
#[path = "../../../tests/src/again.rs"]
mod again;

#[cfg(test)]
mod tests {
    use burn::backend::Autodiff;
    use burn::module::Param;
    use burn::optim::GradientsParams;
    use burn::tensor::Tensor;
    use burn_rocm::{Communicator, Rocm, RocmDevice};
    use burn_rocm_nn::parallel::{DataParallel, Share};

    use super::*;

    #[test]
    fn the_guide_has_the_tables() {
        let guide = include_str!("../../../docs/guide/several-gpus.md");
        for row in report().lines().filter(|line| line.starts_with("| ")) {
            assert!(guide.contains(row), "docs/guide/several-gpus.md lacks `{row}`");
        }
    }

    #[test]
    fn the_last_buckets_are_smaller() {
        let mib = f64::from(1 << 20);
        assert_eq!(buckets(20.0 * mib, BUCKET), [20.0 * mib]);
        let several = buckets(100.0 * mib, BUCKET);
        assert_eq!(several[..2], [25.0 * mib, 25.0 * mib]);
        assert!((several.iter().sum::<f64>() - 100.0 * mib).abs() < 1.0);
        assert!(several.windows(2).all(|pair| pair[0] >= pair[1]));
        assert!(several[several.len() - 2] >= SMALLEST * BUCKET);
    }

    /// With gradients between a 400th and a 25th of a bucket, which `DataParallel` packs in order. For a
    /// total between half a bucket and one, the model differs by design, so no total here is in that range.
    #[test]
    fn there_are_as_many_buckets_as_of_data_parallel() {
        const CHILD: &str = "SEVERAL_GPUS_TEST_CHILD";
        if std::env::var_os(CHILD).is_none() {
            let environment = [
                (CHILD, "1"),
                ("BURN_ROCM_PROVIDER", "cpu"),
                ("BURN_ROCM_CPU_DEVICES", "2"),
                ("BURN_ROCM_COLLECTIVE_TIMEOUT", "20"),
            ];
            let test = "tests::there_are_as_many_buckets_as_of_data_parallel";
            again::again(&["--exact", test], &environment);
            return;
        }
        type B = Autodiff<Rocm>;
        const FULL: usize = 4000;
        const ELEMENTS: usize = 5;
        for count in [20, 400, 500, 800, 1000] {
            let communicators = Communicator::local(&[0, 1].map(RocmDevice::new)).expect("two devices");
            let reduce = |communicator: Communicator| {
                let device = communicator.device();
                let mut ranks = DataParallel::new(communicator).with_bucket_bytes(FULL);
                let param = |_| Param::from_tensor(Tensor::<B, 1>::ones([ELEMENTS], &device).require_grad());
                let model: Vec<Param<Tensor<B, 1>>> = (0..count).map(param).collect();
                let mut grads = GradientsParams::new();
                for param in &model {
                    grads.register(param.id, Tensor::<Rocm, 1>::ones([ELEMENTS], &device));
                }
                drop(ranks.reduce::<B, _>(&model, grads, Share::EVEN));
                ranks.last_overlap().buckets
            };
            let found: Vec<usize> = std::thread::scope(|scope| {
                let start = |communicator| scope.spawn(move || reduce(communicator));
                let threads: Vec<_> = communicators.into_iter().map(start).collect();
                threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
            });
            let bytes = 4 * ELEMENTS * count;
            assert_eq!(found, [buckets(bytes as f64, FULL as f64).len(); 2], "{bytes} bytes");
        }
    }

    /// By hand: 8 GPUs of a node move 7/4 of the bytes; of 16 GPUs each sends an eighth of the
    /// node's bytes once to the other node and back.
    #[test]
    fn an_all_reduce_takes_its_slowest_links() {
        let links = Links { name: "", node: 8, within: 1e9, between: 1e8, call: 0.0 };
        let close =
            |found: f64, expected: f64| assert!((found - expected).abs() < 1e-9, "{found} {expected}");
        close(links.all_reduce(8, 1e9), 1.75 + 6.0 * HOP);
        close(links.all_reduce(16, 8e8), 1.4_f64.max(1.0) + 6.0 * HOP + LEVEL);
        close(links.all_reduce(16, 8e8) - links.all_reduce(8, 8e8), LEVEL);
        let slow = Links { between: 5e7, ..links };
        close(slow.all_reduce(16, 8e8), 2.0 + 6.0 * HOP + LEVEL);
    }

    #[test]
    fn a_step_hides_what_the_pass_has_time_for() {
        let links = Links { name: "", node: 8, within: 1e11, between: 1e10, call: 0.0 };
        // 100 ms of backward pass, and 40 MB of gradients: 0.4 ms and their packing.
        let step = Step { name: "", alone: 0.15, bytes: 40e6 };
        let after = step.on(&links, 2, Reduced::AfterThePass);
        let beside = step.on(&links, 2, Reduced::BesideThePass);
        assert!((after - 0.15 - 40e6 / 1e11 - 40e6 / PACKING).abs() < 1e-9, "{after}");
        // Only the last bucket is left.
        let last = buckets(40e6, BUCKET).pop().expect("a bucket");
        assert!((beside - 0.15 - last / 1e11 - last / PACKING).abs() < 1e-9, "{beside}");
        // Without a pass to hide in, there is nothing to gain.
        let short = Step { alone: 1e-9, ..step };
        let [after, beside] =
            [Reduced::AfterThePass, Reduced::BesideThePass].map(|of| short.on(&links, 2, of));
        assert!((after - beside).abs() < 1e-9);
    }
}
