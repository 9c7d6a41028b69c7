//! Checks that this backend implements every method of Burn 0.22's traits, except for those listed
//! here with the reason for keeping Burn's default.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each trait, and its file in `burn-backend`.
const TRAITS: [(&str, &str); 9] = [
    ("Backend", "src/backend/base.rs"),
    ("FloatTensorOps", "src/backend/ops/tensor.rs"),
    ("IntTensorOps", "src/backend/ops/int_tensor.rs"),
    ("BoolTensorOps", "src/backend/ops/bool_tensor.rs"),
    ("ModuleOps", "src/backend/ops/modules/base.rs"),
    ("ActivationOps", "src/backend/ops/activation.rs"),
    ("QTensorOps", "src/backend/ops/qtensor.rs"),
    ("TransactionOps", "src/backend/ops/transaction.rs"),
    ("DistributedOps", "src/backend/distributed/ops.rs"),
];

/// The methods left at Burn's default, by reason. A `*` at the start or end of a name stands for
/// any text.
const DEFAULTS: &[(&str, &[&str])] = &[
    (
        "this backend records no gradients",
        &["ad_enabled", "*_detach", "*_set_require_grad", "*_is_require_grad"],
    ),
    ("asks `dtype_usage`", &["supports_dtype"]),
    ("calls one method of this backend's own", &["int_square", "int_arange"]),
    ("called by nothing: the methods that would are this backend's own", &["*_powi_scalar_impl"]),
    ("one launch beside the reshapes: a transposed convolution with ones", &["fold4d"]),
    (
        "quantised values are dequantised, the op is the floats', its result is quantised again",
        &[
            "q_add*", "q_sub*", "q_mul*", "q_div*", "q_clamp*", "q_neg", "q_recip", "q_sum*", "q_prod*",
            "q_mean*", "q_cum*", "q_exp", "q_log*", "q_pow*", "q_sqrt", "q_abs", "q_cos*", "q_sin*",
            "q_tan*", "q_erf", "q_cat", "q_arg*", "q_topk*", "q_max*", "q_min*", "q_any*", "q_all*",
            "q_sort*",
        ],
    ),
    (
        "parts of Burn's own order of a data parallel step, which calls this backend's `all_reduce`",
        &["register_sync_parameters", "submit_gradient_sync", "comm_device", "float_from_ref"],
    ),
];

/// The directory of `burn-backend` 0.22.1's sources, from cargo's metadata.
fn burn_backend() -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--locked"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout).expect("cargo's JSON");
    let found = metadata["packages"].as_array().expect("packages").iter().find(|package| {
        package["name"] == "burn-backend"
            && package["version"].as_str().is_some_and(|v| v.starts_with("0.22."))
    });
    let manifest = found.expect("burn-backend 0.22")["manifest_path"].as_str().expect("a path");
    Path::new(manifest).parent().expect("a folder").to_owned()
}

fn parsed(path: &Path) -> syn::File {
    let text = std::fs::read_to_string(path).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    syn::parse_file(&text).unwrap_or_else(|why| panic!("{}: {why}", path.display()))
}

/// The methods in the `impl` blocks of `folder`, by trait.
fn implemented(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the backend's folder") {
        for item in parsed(&entry.expect("an entry").path()).items {
            let syn::Item::Impl(block) = item else { continue };
            let Some((_, path, _)) = &block.trait_ else { continue };
            let name = path.segments.last().expect("a name").ident.to_string();
            let methods = block.items.iter().filter_map(|item| match item {
                syn::ImplItem::Fn(method) => Some(method.sig.ident.to_string()),
                _ => None,
            });
            all.entry(name).or_default().extend(methods);
        }
    }
    all
}

#[test]
fn every_method_is_own_or_has_a_reason() {
    let burn = burn_backend();
    let own = implemented(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/backend"));
    let stands_for = |pattern: &str, name: &str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*'))
    {
        (Some(end), _) => name.ends_with(end),
        (None, Some(start)) => name.starts_with(start),
        (None, None) => name == pattern,
    };
    let patterns: BTreeSet<&str> = DEFAULTS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    let (mut without, mut unused, mut count) = (Vec::new(), patterns.clone(), 0);
    for (name, file) in TRAITS {
        let methods: Vec<(String, bool)> = parsed(&burn.join(file))
            .items
            .into_iter()
            .filter_map(|item| match item {
                syn::Item::Trait(item) if item.ident == name => Some(item),
                _ => None,
            })
            .flat_map(|item| item.items)
            .filter_map(|item| match item {
                syn::TraitItem::Fn(method) => Some((method.sig.ident.to_string(), method.default.is_some())),
                _ => None,
            })
            .collect();
        assert!(!methods.is_empty(), "no methods of {name} in {file}");
        for (method, _) in methods {
            count += 1;
            if own.get(name).is_some_and(|own| own.contains(&method)) {
                assert!(
                    !patterns.contains(method.as_str()),
                    "{name}::{method} is own, and listed as a default"
                );
                continue;
            }
            match patterns.iter().find(|pattern| stands_for(pattern, &method)) {
                Some(pattern) => _ = unused.remove(pattern),
                None => without.push(format!("{name}::{method}")),
            }
        }
    }
    assert!(count > 400, "{count} methods");
    assert!(without.is_empty(), "neither own nor given a reason:\n{}", without.join("\n"));
    assert!(unused.is_empty(), "no such method is a default: {unused:?}");
}
