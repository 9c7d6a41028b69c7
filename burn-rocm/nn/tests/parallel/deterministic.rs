//! Runs of the same training with `BURN_ROCM_DETERMINISTIC=1` and without.

use burn::nn::{Embedding, EmbeddingConfig};
use burn::optim::Optimizer;
use burn::tensor::{Int, Tensor};
use burn_rocm_nn::optim::AdamWConfig;
use burn_rocm_nn::parallel::Share;

use crate::model::{S, linear};
use crate::*;

const CHILD: &str = "BURN_ROCM_TEST_DETERMINISTIC";
const TOKENS: usize = 5;
const STEPS: usize = 8;

/// In f32, another order of a sum gives other bits. A few tokens occur many times: their gradients
/// are added up at indices, which a GPU does with atomics where the setting allows it.
#[derive(Module, Debug)]
struct Tokens<B: Backend> {
    table: Embedding<B>,
    hidden: Linear<B>,
    last: Linear<B>,
}

impl Tokens<S> {
    fn new(device: &RocmDevice) -> Self {
        let mut table = EmbeddingConfig::new(TOKENS, 33).init(device);
        table.weight = linear::<S>(TOKENS, 33, 7, device).weight;
        Self { table, hidden: linear(33, 65, 11, device), last: linear(65, 1, 13, device) }
    }

    fn loss(&self, step: usize, rank: usize, device: &RocmDevice) -> Tensor<S, 1> {
        let token = |at: usize| ((at * at + 3 * step + 5 * rank) % TOKENS) as i64;
        let tokens = TensorData::new((0..300).map(token).collect(), [1, 300]);
        let x = self.table.forward(Tensor::<S, 2, Int>::from_data(tokens, device));
        let x = self.last.forward(activation::tanh(self.hidden.forward(x)));
        (x - 0.3).powi_scalar(2).mean()
    }
}

/// The bits of each step's mean loss and of the parameters.
fn bits(ranks: DataParallel) -> Vec<u32> {
    let mut ranks = ranks.with_bucket_bytes(4000).with_overlap(true);
    let device = ranks.communicator().device();
    let mut net = Tokens::new(&device);
    let mut optimizer = AdamWConfig::new().init();
    let mut all = Vec::new();
    for step in 0..STEPS {
        let loss = net.loss(step, ranks.rank(), &device);
        let mean = ranks.mean(loss.clone().inner(), Share::EVEN);
        let grads = ranks.backward(&net, Some(loss));
        let grads = ranks.reduce(&net, grads, Share::EVEN);
        net = optimizer.step(1e-2, net, grads);
        all.push(mean.into_scalar().to_bits());
    }
    all.extend(parameters(&net).concat().into_iter().map(|value| (value as f32).to_bits()));
    all
}

#[test]
fn two_runs_of_data_parallel_training_have_the_same_bits() {
    const NAME: &str = "deterministic::two_runs_of_data_parallel_training_have_the_same_bits";
    if std::env::var_os(CHILD).is_some() {
        let asked = std::env::var("BURN_ROCM_DETERMINISTIC").unwrap();
        assert_eq!(hip::deterministic(), asked == "1");
        let found = on_ranks(2, bits);
        assert_eq!(found[0], found[1], "the same bits on every rank");
        let text: Vec<String> = found[0].iter().map(|bits| format!("{bits:08x}")).collect();
        println!("\nbits {}", text.join(" "));
        return;
    }
    let provider = std::env::var("BURN_ROCM_PROVIDER").unwrap_or_default();
    let run = |deterministic: &str, more: &[(&str, &str)]| {
        let environment = [
            (CHILD, "1"),
            ("BURN_ROCM_PROVIDER", if provider.is_empty() { "cpu" } else { &provider }),
            ("BURN_ROCM_DETERMINISTIC", deterministic),
            ("BURN_ROCM_CPU_DEVICES", "2"),
            ("BURN_ROCM_COLLECTIVE_TIMEOUT", "60"),
        ];
        let text = again(&["--exact", NAME, "--nocapture"], &[&environment, more].concat());
        let line = text.lines().find_map(|line| line.strip_prefix("bits ").map(str::to_owned));
        line.unwrap_or_else(|| panic!("no bits in {text}"))
    };
    // Also with blocks of many threads, which add by atomics without the setting.
    let lockstep = [("BURN_ROCM_CPU_WAVE", "32"), ("BURN_ROCM_CPU_THREADS", "4")];
    let mut ways: Vec<&[(&str, &str)]> = vec![&[][..]];
    if on_cpu() {
        ways.push(&lockstep);
    }
    for (way, more) in ways.into_iter().enumerate() {
        let first = run("1", more);
        let losses: std::collections::BTreeSet<_> = first.split(' ').take(STEPS).collect();
        assert_eq!(losses.len(), STEPS, "the steps differ: {losses:?}");
        assert_eq!(run("1", more), first, "{more:?}");
        // The CPU device adds in order anyway, if its blocks have one thread.
        if way > 0 || !on_cpu() {
            // Few cores may take the blocks in order each time, so the CPU device's bits may be the same.
            let differs = (0..5).any(|_| run("0", more) != first);
            println!("without the setting: {more:?}, other bits: {differs}");
            assert!(differs || on_cpu(), "without the setting: {more:?}");
        }
    }
}
