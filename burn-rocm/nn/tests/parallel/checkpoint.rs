//! Checkpoints of a sharded optimizer.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;

use burn::tensor::FloatDType;
use burn_rocm::RocmError;
use burn_rocm_nn::amp::Precision;
use burn_rocm_nn::optim::{AdamConfig, AdamWConfig, OptimizerConfig, SgdConfig};
use burn_rocm_nn::parallel::{Part, ShardedModel, ShardedModelConfig, ShardedOptimizer, Shards};

use crate::*;

/// A folder of this process that goes away with the value.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("burn-rocm-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The names of what is in it, in order.
    fn names(&self) -> BTreeSet<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn optimizer(ranks: &DataParallel, config: &OptimizerConfig) -> ShardedOptimizer {
    ShardedOptimizer::new(ranks, config.clone()).with_bucket_bytes(300)
}

/// Eight global batches of 12.
fn parts(ranks: &DataParallel) -> Vec<Part> {
    Shards::new(96, 12, ranks.rank(), ranks.size()).shuffled(5).epoch(0).collect()
}

fn train(ranks: &DataParallel, optimizer: &mut ShardedOptimizer, mut net: Net<B>, parts: &[Part]) -> Net<B> {
    for part in parts {
        let loss = net.loss(&part.indices, &ranks.communicator().device());
        let grads = ranks.backward(&net, Some(loss));
        net = optimizer.step(0.02, net, grads, part.share);
    }
    net
}

/// Four steps, and four more after a load by as many ranks, by fewer and by more: the parameters are
/// those of eight steps without a stop, with the same bits where the number of ranks is the same.
#[test]
fn any_number_of_ranks_goes_on() {
    let Some(count) = devices("checkpoint::any_number_of_ranks_goes_on") else { return };
    let folder = Folder::new("checkpoint-ranks");
    let configs: [(&str, OptimizerConfig); 3] = [
        ("sgd", SgdConfig::new().into()),
        ("amsgrad", AdamConfig::new().with_amsgrad(true).into()),
        ("adamw", AdamWConfig::new().into()),
    ];
    for (name, config) in &configs {
        for writers in BTreeSet::from([1, count - 1, count]) {
            // A path may end in a slash.
            let path = folder.at(&format!("{name}-{writers}/"));
            let whole = on_ranks(writers, |ranks| {
                let (mut optimizer, parts) = (optimizer(&ranks, config), parts(&ranks));
                let net = Net::<B>::new(&ranks.communicator().device(), 3);
                let net = train(&ranks, &mut optimizer, net, &parts[..4]);
                optimizer.save(&path, &net).unwrap();
                parameters(&train(&ranks, &mut optimizer, net, &parts[4..]))
            });
            for readers in BTreeSet::from([1, count - 1, count]) {
                let found = on_ranks(readers, |ranks| {
                    let (mut optimizer, parts) = (optimizer(&ranks, config), parts(&ranks));
                    // Other parameters, which the checkpoint's replace.
                    let net = Net::<B>::new(&ranks.communicator().device(), 8);
                    let net = optimizer.load(&path, net).unwrap();
                    parameters(&train(&ranks, &mut optimizer, net, &parts[4..]))
                });
                for found in found {
                    if readers == writers {
                        assert_eq!(found, whole[0], "{name}, {writers} ranks");
                    }
                    for (found, expected) in found.concat().into_iter().zip(whole[0].concat()) {
                        let close = (found - expected).abs() <= limit(8);
                        assert!(close, "{name}, {writers} then {readers}: {found} and {expected}");
                    }
                }
            }
        }
    }
}

/// The f32 copies of bf16 parameters are saved, with bits that bf16 can't hold.
#[test]
fn f32_copies_are_saved() {
    type S = Autodiff<Rocm>;
    let Some(count) = devices("checkpoint::f32_copies_are_saved") else { return };
    let folder = Folder::new("checkpoint-copies");
    let step = |ranks: &DataParallel, optimizer: &mut ShardedOptimizer, model: Linear<S>| {
        let x = Tensor::<S, 2>::ones([4, 5], &ranks.communicator().device()).cast(FloatDType::BF16);
        let loss = model.forward(x).cast(FloatDType::F32).powi_scalar(2).mean();
        let grads = ranks.backward(&model, Some(loss));
        // Less than half of what bf16 resolves next to 1.
        optimizer.step(1e-3, model, grads, burn_rocm_nn::parallel::Share::EVEN)
    };
    let model = |ranks: &DataParallel| {
        let device = ranks.communicator().device();
        let mut model = LinearConfig::new(5, 3).with_bias(false).init::<S>(&device);
        model.weight = Param::from_data(TensorData::new(vec![1f32; 15], [5, 3]), &device);
        Precision::new(FloatDType::BF16).convert(&model)
    };
    let results = on_ranks(count, |ranks| {
        let mut optimizer = ShardedOptimizer::new(&ranks, AdamConfig::new());
        let mut model = step(&ranks, &mut optimizer, model(&ranks));
        assert!(parameters(&model)[0].iter().all(|&weight| weight == 1.0), "rounded");
        optimizer.save(folder.at("a"), &model).unwrap();
        for _ in 0..9 {
            model = step(&ranks, &mut optimizer, model);
        }
        parameters(&model)
    });
    assert!(results[0][0].iter().all(|&weight| weight < 1.0), "the small steps add up");
    let found = on_ranks(count, |ranks| {
        let mut optimizer = ShardedOptimizer::new(&ranks, AdamConfig::new());
        let mut model = optimizer.load(folder.at("a"), model(&ranks)).unwrap();
        for _ in 0..9 {
            model = step(&ranks, &mut optimizer, model);
        }
        parameters(&model)
    });
    assert_eq!(found, results);
}

/// What can't be written or read is a typed error on every rank, and training goes on.
#[test]
fn damaged_and_foreign_checkpoints_are_refused() {
    let Some(count) = devices("checkpoint::damaged_and_foreign_checkpoints_are_refused") else { return };
    let folder = Folder::new("checkpoint-damaged");
    let config: OptimizerConfig = AdamConfig::new().into();
    let path = folder.at("good");
    on_ranks(count, |ranks| {
        let (mut optimizer, parts) = (optimizer(&ranks, &config), parts(&ranks));
        let net = Net::<B>::new(&ranks.communicator().device(), 3);
        let net = train(&ranks, &mut optimizer, net, &parts[..2]);
        optimizer.save(&path, &net).unwrap();
        let error = optimizer.save(&path, &net).unwrap_err();
        assert!(matches!(error, RocmError::Config { .. }), "{error}");
        train(&ranks, &mut optimizer, net, &parts[2..3]);
    });
    assert_eq!(folder.names(), BTreeSet::from(["good".to_owned()]));
    let damage = |name: &str, change: &dyn Fn(&Path)| {
        let damaged = folder.at(name);
        fs::create_dir_all(&damaged).unwrap();
        for file in fs::read_dir(&path).unwrap().map(Result::unwrap) {
            fs::copy(file.path(), damaged.join(file.file_name())).unwrap();
        }
        change(&damaged);
        damaged
    };
    let last = format!("rank-{}.safetensors", count - 1);
    let cut = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        fs::write(path, &bytes[..bytes.len() - 3]).unwrap();
    };
    // A bit of the last tensor's last element.
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        fs::write(path, &bytes).unwrap();
    };
    let edit = |path: &Path, from: &str, to: &str| {
        let path = path.join("index.json");
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{from} in {text}");
        fs::write(&path, text.replacen(from, to, 1)).unwrap();
    };
    let cases: Vec<(PathBuf, &str)> = vec![
        (folder.at("none"), "index.json"),
        (damage("no-index", &|path| fs::remove_file(path.join("index.json")).unwrap()), "index.json"),
        (damage("no-file", &|path| fs::remove_file(path.join(&last)).unwrap()), &last),
        (damage("cut", &|path| cut(&path.join(&last))), &last),
        (damage("bit", &|path| flip(&path.join(&last))), "hash"),
        (damage("empty", &|path| fs::write(path.join(&last), "").unwrap()), &last),
        (
            damage("fewer", &|path| {
                edit(path, &format!("\"ranks\": {count}"), &format!("\"ranks\": {}", count - 1));
            }),
            "none from",
        ),
        (damage("version", &|path| edit(path, "\"version\": 2", "\"version\": 1")), "version"),
        (damage("other", &|path| edit(path, "adam", "sgd")), "optimizer"),
        (damage("decoupled", &|path| edit(path, "adam", "adamw")), "optimizer"),
        (damage("shape", &|path| edit(path, "9", "8")), "parameter 0"),
        (damage("json", &|path| fs::write(path.join("index.json"), "{").unwrap()), "index.json"),
    ];
    for (path, expected) in &cases {
        let found = on_ranks(count, |ranks| {
            let mut optimizer = optimizer(&ranks, &config);
            let net = Net::<B>::new(&ranks.communicator().device(), 3);
            let error = optimizer.load(path, net).unwrap_err();
            assert!(matches!(error, RocmError::Config { .. }), "{error}");
            // The group is still alive.
            let net = Net::<B>::new(&ranks.communicator().device(), 3);
            train(&ranks, &mut optimizer, net, &parts(&ranks)[..1]);
            error.to_string()
        });
        assert!(found.iter().any(|error| error.contains(expected)), "{expected} in {found:?}");
    }
}

/// A load that is refused does not bind the optimizer to those parameters, and a parameter without
/// elements stays as it is.
#[test]
fn a_refused_load_leaves_the_optimizer_free() {
    let Some(count) = devices("checkpoint::a_refused_load_leaves_the_optimizer_free") else { return };
    let folder = Folder::new("checkpoint-free");
    let config: OptimizerConfig = AdamWConfig::new().into();
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let linear = |from, to| LinearConfig::new(from, to).with_bias(false).init::<B>(&device);
        let empty = |model: &mut Linear<B>| {
            model.bias = Some(Param::from_tensor(Tensor::zeros([0], &device)));
        };
        let mut model = linear(3, 2);
        empty(&mut model);
        let step = |optimizer: &mut ShardedOptimizer, model: Linear<B>| {
            let loss = (model.weight.val() * 2.0).sum() + model.bias.as_ref().unwrap().val().sum();
            let grads = ranks.backward(&model, Some(loss));
            optimizer.step(0.1, model, grads, burn_rocm_nn::parallel::Share::EVEN)
        };
        // A bucket for each parameter.
        let new = || ShardedOptimizer::new(&ranks, config.clone()).with_bucket_bytes(0);
        let mut optimizer = new();
        let model = step(&mut optimizer, model);
        optimizer.save(folder.at("a"), &model).unwrap();
        let mut optimizer = new();
        let error = optimizer.load(folder.at("a"), linear(5, 2)).unwrap_err();
        assert!(matches!(error, RocmError::Config { .. }), "{error}");
        let mut other = linear(3, 2);
        empty(&mut other);
        let loaded = optimizer.load(folder.at("a"), other).unwrap();
        assert_eq!(parameters(&loaded), parameters(&model));
        assert_eq!(loaded.bias.as_ref().unwrap().dims(), [0]);
        step(&mut optimizer, loaded);
    });
}

/// Layers of one shape: only their paths tell them apart.
#[derive(Module, Debug)]
struct Two<B: Backend> {
    a: Linear<B>,
    b: Linear<B>,
}

impl Two<B> {
    /// One layer is trained, the other is frozen.
    fn new(device: &RocmDevice, trains_a: bool) -> Self {
        let linear = || LinearConfig::new(3, 2).init::<B>(device);
        match trains_a {
            true => Self { a: linear(), b: linear().no_grad() },
            false => Self { a: linear().no_grad(), b: linear() },
        }
    }
}

/// Checks that a load was refused because of a parameter's path.
fn names_paths(error: &RocmError, expected: &str, found: &str) {
    let RocmError::Config { expected: path, found: other, .. } = error else { panic!("{error}") };
    // The other ranks may say that a rank has failed.
    if !other.contains("another rank") {
        assert_eq!((path.as_str(), other.as_str()), (expected, found), "{error}");
    }
}

/// Training goes on with another layer: its parameters are not those of the checkpoint.
#[test]
fn the_parameters_of_another_layer_are_refused() {
    let Some(count) = devices("checkpoint::the_parameters_of_another_layer_are_refused") else { return };
    let folder = Folder::new("checkpoint-layers");
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let new = || ShardedOptimizer::new(&ranks, SgdConfig::new());
        let saved = ranks.broadcast::<B, _>(Two::new(&device, true));
        new().save(folder.at("a"), &saved).unwrap();
        let error = new().load(folder.at("a"), Two::new(&device, false)).map(drop).unwrap_err();
        names_paths(&error, "b.weight", "a.weight");
        let loaded = new().load(folder.at("a"), Two::new(&device, true)).unwrap();
        assert_eq!(parameters(&loaded.a), parameters(&saved.a));
    });
    let text = fs::read_to_string(folder.at("a").join("index.json")).unwrap();
    assert!(text.contains("a.weight") && !text.contains("b.weight"), "{text}");
}

/// A checkpoint of an earlier version has no paths.
#[test]
fn a_checkpoint_without_paths_is_loaded() {
    let Some(count) = devices("checkpoint::a_checkpoint_without_paths_is_loaded") else { return };
    let folder = Folder::new("checkpoint-no-paths");
    let optimizer = |ranks: &DataParallel| ShardedOptimizer::new(ranks, SgdConfig::new());
    let saved = on_ranks(count, |ranks| {
        let net = ranks.broadcast::<B, _>(Two::new(&ranks.communicator().device(), true));
        optimizer(&ranks).save(folder.at("a"), &net).unwrap();
        parameters(&net.a)
    });
    let path = folder.at("a").join("index.json");
    let mut index: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert!(index.as_object_mut().unwrap().remove("paths").is_some());
    fs::write(&path, index.to_string()).unwrap();
    let loaded = on_ranks(count, |ranks| {
        let net = Two::new(&ranks.communicator().device(), false);
        parameters(&optimizer(&ranks).load(folder.at("a"), net).unwrap().b)
    });
    assert_eq!(loaded, saved);
}

/// The parts of a model, as one module.
#[derive(Module, Debug)]
struct Parts<B: Backend> {
    parts: Vec<Two<B>>,
}

/// Also in the parts of a model. A sharded optimizer of the whole model has other paths, which are not
/// compared.
#[test]
fn the_parameters_of_another_part_are_refused() {
    let Some(count) = devices("checkpoint::the_parameters_of_another_part_are_refused") else { return };
    let folder = Folder::new("checkpoint-parts");
    on_ranks(count, |ranks| {
        let device = ranks.communicator().device();
        let model = |trains_a: [bool; 3]| {
            let [first, block, last] = trains_a.map(|trains_a| Two::new(&device, trains_a));
            let (config, mut block) = (ShardedModelConfig::new(SgdConfig::new()), Some(block));
            let block = |_: usize| block.take().unwrap();
            ShardedModel::<B, _, _, _>::build(&ranks, config, || first, 1, block, || last).unwrap()
        };
        let saved = model([true, true, true]);
        saved.save(folder.at("a")).unwrap();
        for (other, expected, found) in [
            ([false, true, true], "first.b.weight", "first.a.weight"),
            ([true, false, true], "blocks.0.b.weight", "blocks.0.a.weight"),
            ([true, true, false], "last.b.weight", "last.a.weight"),
        ] {
            names_paths(&model(other).load(folder.at("a")).unwrap_err(), expected, found);
        }
        let mut same = model([true, true, true]);
        same.load(folder.at("a")).unwrap();
        assert_eq!(parameters(&same.whole_block(0).a), parameters(&saved.whole_block(0).a));
        let whole = Parts { parts: (0..3).map(|_| Two::new(&device, true)).collect() };
        let whole = ShardedOptimizer::new(&ranks, SgdConfig::new()).load(folder.at("a"), whole).unwrap();
        assert_eq!(parameters(&whole.parts[1].a), parameters(&saved.whole_block(0).a));
    });
}

/// Two groups with parameters of their own, such as those of two parts of divided layers, save to one
/// path at once. One of them gets it, as a whole, and the other gets an error.
#[test]
fn groups_that_save_to_one_path_do_not_mix() {
    const ROUNDS: usize = 10;
    let Some(count) = devices("checkpoint::groups_that_save_to_one_path_do_not_mix") else { return };
    let size = count / 2;
    if size == 0 {
        return;
    }
    let folder = Folder::new("checkpoint-groups");
    let net = |ranks: &DataParallel, seed| Net::<B>::new(&ranks.communicator().device(), seed);
    for round in 0..ROUNDS {
        let path = folder.at(&round.to_string());
        let start = Barrier::new(2 * size);
        let save = |group: usize, communicator: Communicator| {
            let ranks = DataParallel::new(communicator);
            let net = net(&ranks, group);
            start.wait();
            let saved = ShardedOptimizer::new(&ranks, SgdConfig::new()).save(&path, &net);
            (group, parameters(&net), saved)
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for group in 0..2 {
                let devices: Vec<_> = (group * size..(group + 1) * size).map(RocmDevice::new).collect();
                for communicator in Communicator::local(&devices).unwrap() {
                    let save = &save;
                    threads.push(scope.spawn(move || save(group, communicator)));
                }
            }
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let saved: BTreeSet<usize> =
            results.iter().filter(|(.., saved)| saved.is_ok()).map(|(group, ..)| *group).collect();
        assert_eq!(saved.len(), 1, "round {round}: {results:?}");
        let mut expected = Vec::new();
        for (group, parameters, result) in results {
            match result {
                Ok(()) => expected = parameters,
                Err(error) => {
                    assert!(!saved.contains(&group), "round {round}, group {group}: {error}");
                    assert!(matches!(error, RocmError::Config { .. }), "{error}");
                }
            }
        }
        for found in on_ranks(size, |ranks| {
            let mut optimizer = ShardedOptimizer::new(&ranks, SgdConfig::new());
            parameters(&optimizer.load(&path, net(&ranks, 7)).unwrap())
        }) {
            assert_eq!(found, expected, "round {round}");
        }
    }
    // A save that failed leaves nothing.
    assert_eq!(folder.names(), (0..ROUNDS).map(|round| round.to_string()).collect::<BTreeSet<_>>());
}

/// What looks like the unfinished save of another group is not touched.
#[test]
fn an_unfinished_save_of_another_group_stays() {
    let Some(count) = devices("checkpoint::an_unfinished_save_of_another_group_stays") else { return };
    let folder = Folder::new("checkpoint-unfinished");
    let others = ["a.partial", "a.partial-0123456789abcdef"].map(|name| folder.at(name));
    for other in &others {
        fs::create_dir_all(other).unwrap();
        fs::write(other.join("rank-0.safetensors"), "another group's").unwrap();
    }
    on_ranks(count, |ranks| {
        let net = Two::new(&ranks.communicator().device(), true);
        ShardedOptimizer::new(&ranks, SgdConfig::new()).save(folder.at("a"), &net).unwrap();
    });
    for other in &others {
        assert_eq!(fs::read_to_string(other.join("rank-0.safetensors")).unwrap(), "another group's");
    }
    assert_eq!(folder.names().len(), 3);
}
