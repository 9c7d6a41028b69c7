//! Two processes train on one device at the same time. Each computes what one alone does.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "shared/small.rs"]
mod small;
#[path = "shared/world.rs"]
mod world;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use burn::optim::Optimizer;
use burn_rocm_nn::optim::AdamConfig;

use small::{batch, cnn, loss_bits, mlp, step};
use world::{bits, seed};

const CHILD: &str = "BURN_ROCM_TEST_PAIR_CHILD";
const STEPS: usize = 40;

/// Trains both models and prints each loss, then a sum over the parameters' bits. Waits for a line
/// before the first step and in the middle, so that two processes are between the same lines at
/// the same time.
fn child() {
    let mut lines = std::io::stdin().lines();
    let mut meet = || {
        println!("\nmeet");
        lines.next().expect("a line").expect("text");
    };
    seed(7);
    let (mut first, mut of_first) = (mlp(), AdamConfig::new().init());
    let (mut second, mut of_second) = (cnn(), AdamConfig::new().init());
    for number in 0..STEPS {
        if number == 0 || number == STEPS / 2 {
            meet();
        }
        let (next, loss) = step!(first, of_first, &batch(number));
        first = next;
        println!("\nloss {:08x}", loss_bits(loss));
        let (next, loss) = step!(second, of_second, &batch(number));
        second = next;
        println!("loss {:08x}", loss_bits(loss));
    }
    let parameters = [bits(&first), bits(&second)].concat().concat();
    let sum = parameters.iter().fold(0u64, |sum, &bits| sum.wrapping_mul(31).wrapping_add(bits.into()));
    println!("parameters {sum:016x}");
}

/// A process that trains.
struct Trains {
    process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    results: Vec<String>,
}

impl Trains {
    /// The kernels are compiled into `cache`, so that processes that start together compile the same
    /// ones.
    fn start(cache: &std::path::Path) -> Self {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "each_computes_what_one_alone_does", "--nocapture"])
            .env(CHILD, "1")
            .env("BURN_ROCM_DETERMINISTIC", "1")
            .env("BURN_ROCM_CACHE_DIR", cache)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        Self { process, input, output: BufReader::new(output), results: Vec::new() }
    }

    /// Reads up to the line at which the process waits, or to its end.
    fn until_it_waits(&mut self) {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            match line.trim() {
                "meet" => return,
                result if result.starts_with("loss ") || result.starts_with("parameters ") => {
                    self.results.push(result.to_owned());
                }
                _ => {}
            }
            line.clear();
        }
    }

    fn go(&mut self) {
        // If the process has ended, `results` says so.
        let _ = writeln!(self.input);
    }

    fn results(mut self) -> Vec<String> {
        self.until_it_waits();
        assert!(self.process.wait().unwrap().success(), "the process failed: {:?}", self.results);
        assert_eq!(self.results.len(), 2 * STEPS + 1);
        self.results
    }
}

#[test]
fn each_computes_what_one_alone_does() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let folder = std::env::temp_dir().join(format!("burn-rocm-pair-{}", std::process::id()));
    let run = |count: usize| -> Vec<Vec<String>> {
        let cache = folder.join(count.to_string());
        let mut all: Vec<_> = (0..count).map(|_| Trains::start(&cache)).collect();
        for _ in 0..2 {
            all.iter_mut().for_each(Trains::until_it_waits);
            // All wait, so all hold memory of the device now.
            all.iter_mut().for_each(Trains::go);
        }
        all.into_iter().map(Trains::results).collect()
    };
    let alone = run(1).remove(0);
    let both = run(2);
    assert_eq!(both, [alone.clone(), alone.clone()]);
    let distinct: std::collections::BTreeSet<_> = alone.iter().collect();
    assert!(distinct.len() > STEPS, "the steps differ: {alone:?}");
    // On a device whose kernels are built in, nobody writes it.
    let _ = std::fs::remove_dir_all(folder);
}
