//! The example `mnist` on two CPU devices: with a thread for each, and with a process for each.
#![allow(missing_docs, clippy::unwrap_used)]

use std::net::TcpListener;
use std::process::{Command, Stdio};

use burn::backend::Autodiff;
use burn::module::AutodiffModule;
use burn::tensor::backend::Backend as _;
use burn_rocm::{Rocm, RocmDevice};
use burn_rocm_examples::data::digits;
use burn_rocm_examples::model::Kind;
use burn_rocm_examples::progress::Options;
use burn_rocm_examples::ranks::Ranks;
use burn_rocm_examples::train::{History, evaluate, train};
use burn_rocm_tests::again;

/// How many devices a child trains on with threads; 0 if a launcher's variables say it.
const CHILD: &str = "BURN_ROCM_TEST_RANKS_CHILD";
const BASE: [(&str, &str); 3] =
    [("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu"), ("BURN_ROCM_COLLECTIVE_TIMEOUT", "60")];

/// The readings, with all their bits.
fn lines(history: &History) -> Vec<String> {
    let line = |reading: &burn_rocm_examples::progress::Reading| {
        format!("reading {} {:08x} {:08x}", reading.step, reading.loss.to_bits(), reading.accuracy.to_bits())
    };
    history.train.iter().chain(&history.test).map(line).collect()
}

/// The losses of printed readings.
fn losses(lines: &[String]) -> Vec<f32> {
    let bits = |line: &String| line.split(' ').nth(2).unwrap().to_owned();
    lines.iter().map(|line| f32::from_bits(u32::from_str_radix(&bits(line), 16).unwrap())).collect()
}

/// Trains as a child, and prints the readings. Batches of 32 of 656 images: the last one has 16.
fn child(count: usize) {
    type B = Autodiff<Rocm>;
    let ranks = Ranks::of((count > 0).then_some(count)).unwrap();
    let device = ranks.as_ref().map_or(RocmDevice::new(0), Ranks::device);
    let data = digits::generate(0, 656, 65);
    let options = Options { epochs: 1, steps: None, batch_size: 32, lr: 1e-3, seed: 3 };
    B::seed(&device, options.seed);
    let model = Kind::Mlp.init::<B>(&device);
    let history = match ranks {
        Some(ranks) => ranks.train(model, &data, &options).unwrap().1,
        None => train(model, &data, &options, &device).unwrap().1,
    };
    lines(&history).iter().for_each(|line| println!("\n{line}"));
}

fn readings(text: &str) -> Vec<String> {
    let readings: Vec<String> =
        text.lines().filter(|line| line.starts_with("reading ")).map(str::to_owned).collect();
    // Steps 10, 20 and 21, and the evaluation.
    assert_eq!(readings.len(), 4, "{text}");
    readings
}

fn threads(count: &str) -> Vec<String> {
    let environment: Vec<_> = BASE.into_iter().chain([(CHILD, count)]).collect();
    readings(&again(&["--exact", "threads_and_processes_train_alike", "--nocapture"], &environment))
}

/// What a launcher sets for both processes, and the names of the variables with a process's number.
struct Launcher {
    both: Vec<(&'static str, String)>,
    numbers: &'static [&'static str],
}

/// The variables of each launcher. No process has those of another one.
fn launchers() -> Vec<(&'static str, Launcher)> {
    // Free now. Another program may take it before rank 0 listens; that would be an error.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let job = format!("burn-rocm-test-{}", std::process::id());
    let of = |both: &[(&'static str, &str)], numbers: &'static [&'static str]| Launcher {
        both: both.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
        numbers,
    };
    let torchrun = [("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")];
    let torchrun = [&torchrun[..], &[("MASTER_PORT", &port)]].concat();
    let open_mpi =
        [("OMPI_COMM_WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), ("PMIX_NAMESPACE", &job)];
    let mpich = [("PMI_SIZE", "2"), ("MPI_LOCALNRANKS", "2"), ("BURN_ROCM_RENDEZVOUS_SECRET", &job)];
    let srun = [("SLURM_NTASKS", "2"), ("SLURM_JOB_ID", &job), ("SLURM_STEP_ID", "0")];
    let srun = [&srun[..], &[("SLURM_STEP_NODELIST", "localhost")]].concat();
    vec![
        ("torchrun", of(&torchrun, &["RANK", "LOCAL_RANK"])),
        ("Open MPI", of(&open_mpi, &["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"])),
        ("MPICH", of(&mpich, &["PMI_RANK", "MPI_LOCALRANKID"])),
        ("srun", of(&srun, &["SLURM_PROCID", "SLURM_LOCALID"])),
    ]
}

/// Two processes that run a test, as a launcher starts them. Returns the output of each.
fn processes(test: &str, launcher: &Launcher) -> Vec<String> {
    let start = |rank: &str| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .envs(BASE)
            .env(CHILD, "0")
            .envs(launcher.both.iter().map(|(name, value)| (name, value)))
            .envs(launcher.numbers.iter().map(|name| (name, rank)))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let children = ["0", "1"].map(start);
    children
        .into_iter()
        .map(|child| {
            let output = child.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
            text
        })
        .collect()
}

/// The CPU device adds up in the order of the ranks, so threads and processes get the same bits. One
/// device gets the same losses but for rounding: the loss of a step is a sum of some 2^9 rounded
/// numbers near 1, and 21 steps may each amplify the errors before by a little, all together by 2^4.
#[test]
fn threads_and_processes_train_alike() {
    if let Ok(count) = std::env::var(CHILD) {
        child(count.parse().unwrap());
        return;
    }
    let of_threads = threads("2");
    for (name, launcher) in launchers() {
        for text in processes("threads_and_processes_train_alike", &launcher) {
            assert_eq!(readings(&text), of_threads, "{name}");
        }
    }
    let alone = losses(&threads("1"));
    assert!(alone[2] < 0.8 * alone[0], "it learns: {alone:?}");
    for (loss, alone) in losses(&of_threads).iter().zip(&alone) {
        assert!((loss - alone).abs() < 2f32.powi(9 + 4 + 4 - 24), "{loss} instead of {alone}");
    }
}

/// Clones of a network with batch norms share their running statistics, and each rank needs its own.
/// The held-out reading is that of the model that is returned.
#[test]
fn a_network_with_batch_norms_trains_on_threads() {
    const NAME: &str = "a_network_with_batch_norms_trains_on_threads";
    if std::env::var(CHILD).is_ok() {
        let ranks = Ranks::of(Some(2)).unwrap().unwrap();
        let device = ranks.device();
        let data = digits::generate(0, 640, 200);
        let options = Options { epochs: 1, steps: Some(10), batch_size: 32, lr: 1e-3, seed: 3 };
        let model = Kind::Cnn.init::<Autodiff<Rocm>>(&device);
        let (model, history) = ranks.train(model, &data, &options).unwrap();
        let own = evaluate(&model.valid(), &data, &data.test, &device).unwrap();
        let said = history.test.last().unwrap();
        // The ranks' sums are added in another order: 200 terms of at most a few units.
        assert!((own.loss - said.loss).abs() < 1e-4, "{own:?} {said:?}");
        return;
    }
    again(&["--exact", NAME], &[BASE[0], BASE[1], BASE[2], (CHILD, "2")]);
}

/// Two processes whose images differ both get an error, which names them.
#[test]
fn processes_with_other_images_end() {
    const NAME: &str = "processes_with_other_images_end";
    if std::env::var(CHILD).is_ok() {
        let ranks = Ranks::of(None).unwrap().unwrap();
        ranks.have_same("what both have", "one").unwrap();
        let own = if ranks.has_first() { "drawn" } else { "downloaded" };
        let error = ranks.have_same("images", own).expect_err("others").to_string();
        assert!(error.contains("rank 0 has drawn") && error.contains("rank 1 has downloaded"), "{error}");
        return;
    }
    let (_, torchrun) = launchers().swap_remove(0);
    processes(NAME, &torchrun);
}
