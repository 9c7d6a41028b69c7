//! How many kernels, library calls and copies one token of a small model takes.
//!
//! One test in its own program, because the counters belong to the device.
#![allow(missing_docs)]

use std::path::Path;

use burn::tensor::DType;
use burn_rocm::RocmDevice;
use burn_rocm_llama::config::Config;
use burn_rocm_llama::model::{Cache, Logits, Model};
use burn_rocm_llama::weights::Folder;

#[test]
fn launches_of_a_token() {
    let hip = hip::Device::get(0).expect("a device");
    for name in ["llama3", "qwen3", "gemma3", "qwen2"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models").join(name);
        let config = Config::read(&folder).expect("the settings");
        let layers = config.layers.len();
        let source = Folder::open(&folder, &config).expect("the weights");
        let model =
            Model::load(config, &source, &RocmDevice::default(), DType::F32, |_| {}).expect("the model");
        let mut cache = Cache::new(&model, 16).expect("a cache");
        model.forward(&[5, 6, 7], &mut cache, Logits::Last).expect("logits");
        let counted = |cache: &mut Cache| {
            hip.sync().expect("the device");
            let before = hip.counters();
            let logits = model.forward(&[8], cache, Logits::Last).expect("logits");
            hip.sync().expect("the device");
            let after = hip.counters();
            drop(logits);
            println!("{name}: {before:?} {after:?}");
            after.launches - before.launches
        };
        counted(&mut cache);
        let launches = counted(&mut cache);
        println!("{name}, {layers} layers: {launches} launches a token");
    }
}
