//! The program, as a user runs it.

#[path = "shared/folder.rs"]
mod folder;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use burn_rocm_llama::config::Config;
use burn_rocm_llama::text::Tokens;
use folder::folder;

fn references() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests")
}

/// Runs the program with this standard input.
fn run_with(arguments: &[&str], input: impl AsRef<[u8]>) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_llama"))
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program");
    child.stdin.take().expect("its input").write_all(input.as_ref()).expect("an open input");
    child.wait_with_output().expect("its output")
}

fn run(arguments: &[&str]) -> Output {
    run_with(arguments, "")
}

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("UTF-8");
    (text(&output.stdout), text(&output.stderr))
}

fn succeeds(output: &Output) -> (String, String) {
    let (out, err) = texts(output);
    assert!(output.status.success(), "{out}\n{err}");
    (out, err)
}

fn fails(arguments: &[&str], expected: &str) {
    let output = run(arguments);
    let (out, err) = texts(&output);
    assert!(!output.status.success(), "{out}\n{err}");
    assert!(err.contains(expected), "expected {expected}\nfound    {err}");
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn random_weights_generate_and_measure() {
    let arguments = ["--random", "tiny", "--prompt-tokens", "40", "--tokens", "12", "--temperature", "0.9"];
    let (first, err) = succeeds(&run(&arguments));
    let ids: Vec<u32> = first.split_whitespace().map(|id| id.parse().expect("a token id")).collect();
    assert_eq!(ids.len(), 12);
    assert!(ids.iter().all(|&id| id < 256));
    for text in [
        "model: Llama, 4 layers, 64 features, 0.21 million parameters, BF16",
        "needs ",
        "cache of 52 tokens",
        " free, enough",
        "prompt: 40 tokens in ",
        "generated: 11 more tokens in ",
        " tokens/s",
    ] {
        assert!(err.contains(text), "{text} in {err}");
    }
    // The seed decides weights and tokens.
    let (second, _) = succeeds(&run(&arguments));
    assert_eq!(first, second);
    let (other, _) = succeeds(&run(&[&arguments[..], &["--seed", "7"]].concat()));
    assert_ne!(first, other);
    let (_, err) =
        succeeds(&run(&["--random", "tiny", "--prompt", "abc", "--tokens", "0", "--dtype", "f32"]));
    // Without tokens there is no rate.
    assert!(err.contains("prompt: 3 tokens; generated: 0 more tokens\n") && err.contains("F32"), "{err}");
    let (_, err) = succeeds(&run(&["--random", "tiny", "--prompt", "abc", "--tokens", "1"]));
    assert!(err.contains(" tokens/s; generated: 0 more tokens\n"), "{err}");
    // An option that changes nothing.
    let (_, err) = succeeds(&run(&["--random", "tiny", "--tokens", "1", "--top-k", "5"]));
    assert!(err.contains("note: the most likely token is always taken: --top-k"), "{err}");
    let drawn = ["--random", "tiny", "--tokens", "1", "--top-k", "5", "--temperature", "0.5"];
    assert!(!succeeds(&run(&drawn)).1.contains("note: "));
}

fn name(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// A cache of 10^15 tokens takes 64 PB.
#[test]
fn a_model_that_does_not_fit_is_refused() {
    let folder = folder("memory", None);
    let settings = folder.join("config.json");
    let text = std::fs::read_to_string(&settings).expect("the settings");
    let longer =
        text.replace("\"max_position_embeddings\": 256", "\"max_position_embeddings\": 1000000000000000");
    assert_ne!(longer, text);
    std::fs::write(&settings, longer).expect("a file");
    let mut arguments = vec!["--model", name(&folder), "--prompt", "a", "--tokens", "1", "--context"];
    let (_, err) = succeeds(&run(&[&arguments[..], &["100"]].concat()));
    assert!(err.contains(" free, enough\n"), "{err}");
    arguments.push("1000000000000000");
    let output = run(&arguments);
    let (out, err) = texts(&output);
    assert!(!output.status.success() && out.is_empty(), "{out}\n{err}");
    for expected in [
        "cache of 1000000000000000 tokens ",
        " free, too little\n",
        "error: the model needs ",
        " are free; a lower --context, --dtype bf16 or --quantize needs less\n",
    ] {
        assert!(err.contains(expected), "{expected} in {err}");
    }
    assert!(!err.contains("panicked"), "{err}");
}

#[test]
fn text_goes_to_the_standard_output() {
    let folder = folder("text", None);
    let model = name(&folder);
    let arguments = ["--model", model, "--tokens", "20"];
    let (out, err) = succeeds(&run(&[&arguments[..], &["--prompt", "Once upon a time"]].concat()));
    assert!(out.ends_with('\n') && out.len() > 1, "{out:?}");
    let tokens = Tokens::read(&folder.join("tokenizer.json")).expect("a tokenizer");
    let count = tokens.encode("Once upon a time", true).expect("tokens").len();
    assert!(err.contains(&format!("prompt: {count} tokens in ")), "{err}");
    // The same prompt from the standard input.
    let (piped, _) = succeeds(&run_with(&arguments, "Once upon a time"));
    assert_eq!(piped, out);
    // By a top-p of 0, authors mean the most likely token, which the program takes by itself above.
    let recommended = r#"{"do_sample": true, "temperature": 2.0, "top_p": 0}"#;
    std::fs::write(folder.join("generation_config.json"), recommended).expect("a file");
    let (recommended, _) = succeeds(&run_with(&arguments, "Once upon a time"));
    assert_eq!(recommended, out);
}

#[test]
fn conversations_use_the_template_and_the_cache() {
    let template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}\
                    {% if add_generation_prompt %}[assistant]{% endif %}";
    let folder = folder("chat", Some(template));
    let arguments = ["--model", name(&folder), "--chat", "--tokens", "6"];
    let (out, err) = succeeds(&run_with(&arguments, "What is it?\n\nAnd then?\n"));
    assert!(out.lines().count() >= 2, "{out:?}");
    let prompts: Vec<usize> = err
        .lines()
        .filter_map(|line| line.strip_prefix("prompt: ")?.split(' ').next()?.parse().ok())
        .collect();
    let tokens = Tokens::read(&folder.join("tokenizer.json")).expect("a tokenizer");
    let count = |text: &str| tokens.encode(text, false).expect("tokens").len();
    let first = count("<|start|>[user]What is it?[assistant]");
    assert_eq!(prompts[0], first, "{err}");
    assert_eq!(prompts.len(), 2, "{err}");
    // The first question is in the cache already.
    assert!(prompts[1] < first + 6 + count("[user]And then?[assistant]"), "{prompts:?}");

    let (out, _) = succeeds(&run(&[&arguments[..], &["--system", "Be brief.", "--prompt", "Hi"]].concat()));
    assert!(out.ends_with('\n'), "{out:?}");
    let long = "word ".repeat(300);
    let (_, err) = succeeds(&run_with(&arguments, format!("{long}\nshort\n")));
    assert!(err.contains("error: expected a prompt and an answer of at most 256 tokens, found "), "{err}");
    assert_eq!(err.matches("generated: ").count(), 1, "{err}");
}

#[test]
fn errors_are_one_line() {
    fails(
        &["--model", "no-such-folder"],
        "error: no-such-folder: --model: expected a folder or a GGUF file, found nothing",
    );
    fails(&[], "--model <PATH>");
    fails(&["--random", "tiny", "--model", "x"], "cannot be used with");
    fails(
        &["--random", "tiny", "--top-p", "1.5"],
        "error: top-p: expected a number above 0, up to 1, found 1.5",
    );
    let too_long = "at most 4096 tokens, found 4000 of the prompt + 100 to generate";
    fails(&["--random", "tiny", "--prompt-tokens", "4000", "--tokens", "100"], too_long);
    let too_long = "at most 16 tokens, found 10 of the prompt + 20 to generate";
    fails(&["--random", "tiny", "--prompt-tokens", "10", "--tokens", "20", "--context", "16"], too_long);
    // Without --tokens the answer is as long as there is room for.
    let (out, _) = succeeds(&run(&["--random", "tiny", "--prompt-tokens", "10", "--context", "16"]));
    assert_eq!(out.split_whitespace().count(), 6, "{out}");
    // Options that others leave without a meaning.
    fails(&["--random", "tiny", "--system", "x"], "cannot be used with");
    fails(&["--random", "tiny", "--prompt", "x", "--batch", "2"], "cannot be used with");
    fails(
        &["--random", "tiny", "--temperature", "-1"],
        "error: temperature: expected a number from 0, found -1",
    );
    fails(&["--random", "tiny", "--top-k", "-1"], "'-1' for '--top-k <K>': expected a whole number from 0: ");
    fails(
        &["--random", "tiny", "--tokens", "few"],
        "'few' for '--tokens <N>': expected a whole number from 0: ",
    );
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fails(
        &["--model", name(empty), "--prompt", "x"],
        "--model: expected config.json in the folder, or a GGUF",
    );
    fails(&["--random", "tiny", "--prompt", ""], "error: prompt: expected at least 1 token, found none");
    fails(&["--random", "tiny", "--context", "5000"], "error: context: expected 1 to 4096 tokens");
    let most = usize::MAX.to_string();
    let too_long = "at most 4096 tokens, found 16 of the prompt + ";
    fails(&["--random", "tiny", "--tokens", &most], too_long);
    // Random tokens are drawn only for a prompt that may be so long.
    let long = (1u64 << 50).to_string();
    let too_long = "error: expected a prompt and an answer of at most 4096 tokens, found 1125899906842624 of";
    fails(&["--random", "tiny", "--prompt-tokens", &long], too_long);
    fails(&["--random", "tiny", "--bench", "--batch", &most], "error: the model needs ");
    fails(&["--random", "tiny", "--lora", "x"], "cannot be used with");
    fails(&["--random", "tiny", "--device", "rocm:99"], "99");
    let models = references().join("models");
    let model = models.join("llama3");
    fails(&["--model", name(&model), "--prompt", "x"], "tokenizer.json: missing: the tokens of the model");

    let small = folder("errors", None);
    let output = run_with(&["--model", name(&small)], b"caf\xe9");
    let (_, err) = texts(&output);
    assert!(!output.status.success() && err.contains("error: the standard input: "), "{err}");
    fails(
        &["--model", name(&small.join("config.json")), "--prompt", "x"],
        "config.json: expected a GGUF file, which starts with \"GGUF\", found \"{\\\"mo\"",
    );
    fails(&["--model", name(&small), "--chat", "--prompt", "x"], "--chat: expected chat_template.jinja");
    let long = "word ".repeat(300);
    fails(
        &["--model", name(&small), "--prompt", &long],
        "expected a prompt and an answer of at most 256 tokens",
    );
    let generation = small.join("generation_config.json");
    std::fs::write(&generation, r#"{"eos_token_id": [1, 420]}"#).expect("a file");
    fails(
        &["--model", name(&small), "--prompt", "x"],
        "the stop tokens (`eos_token_id`): expected token ids below 420, found 420",
    );
    std::fs::remove_file(generation).expect("a file");
    // What `git clone` leaves without Git LFS.
    let weights = std::fs::read(small.join("model.safetensors")).expect("a file");
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    for path in [small.join("model.safetensors"), small.join("model.gguf")] {
        std::fs::write(&path, pointer).expect("a file");
        let model = if path.extension().is_some_and(|end| end == "gguf") { &path } else { &small };
        let text = format!("{}: expected weights, found a Git LFS pointer", path.display());
        fails(&["--model", name(model), "--prompt", "x"], &text);
    }
    std::fs::write(small.join("model.safetensors"), weights).expect("a file");
    std::fs::write(small.join("tokenizer.json"), "{}").expect("a file");
    fails(&["--model", name(&small), "--prompt", "x"], "tokenizer.json: ");
    // A tokenizer of another model.
    let config = std::fs::read_to_string(small.join("config.json")).expect("a file").replace("420", "64");
    std::fs::write(small.join("config.json"), config).expect("a file");
    fails(
        &["--model", name(&small), "--prompt", "x"],
        "`model.embed_tokens.weight`: expected [64, 16], found [420, 16]",
    );
    assert!(Config::read(&small).is_ok());
}

#[test]
fn a_bench_prints_its_tables() {
    let small = ["--prompt-tokens", "20", "--tokens", "9", "--batch", "1,3", "--cache", "int8"];
    let (out, _) = succeeds(&run(&[&["--random", "tiny", "--bench"], &small[..]].concat()));
    for text in [
        "a copy: ",
        "a pass reads 0.000 GB of weights a device",
        "a prompt of 80 tokens: ",
        "9 tokens after 20, keys and values I8, graphs of up to 4 passes:",
        "| 1 | most likely | ",
        "| 3 | top-k 50, top-p 0.95 | ",
    ] {
        assert!(out.contains(text), "{text} in {out}");
    }
    assert!(!out.contains("not a graph"), "{out}");
    let rows = out.lines().filter(|line| line.starts_with("| 1 ") || line.starts_with("| 3 "));
    let times = rows.map(|row| row.split('|').nth(3).and_then(|ms| ms.trim().parse::<f64>().ok()));
    let times: Vec<f64> = times.map(|ms| ms.expect("milliseconds")).collect();
    assert!(times.len() == 4 && times.iter().all(|&ms| ms > 0.0), "{out}");
    let too_long = "at most 4096 tokens, found 4096 of the prompt + 256 to generate";
    fails(&["--random", "tiny", "--bench", "--prompt-tokens", "4096"], too_long);
    for option in ["--context", "--temperature", "--top-k", "--top-p", "--min-p", "--repetition-penalty"] {
        fails(&["--random", "tiny", "--bench", option, "1"], "cannot be used with");
    }
    fails(&["--random", "tiny", "--batch", "2"], "--bench");
}

#[test]
fn two_devices_write_one_text() {
    let devices = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_llama"))
            .args(arguments)
            .args(["--random", "tiny", "--dtype", "f32"])
            .envs([("BURN_ROCM_CPU_DEVICES", "2"), ("BURN_ROCM_PROVIDER", "cpu")])
            .env("BURN_ROCM_COLLECTIVE_TIMEOUT", "60")
            .output();
        output.expect("the program")
    };
    let (out, err) = succeeds(&devices(&["--devices", "2", "--prompt-tokens", "30", "--tokens", "12"]));
    assert_eq!(out.split_whitespace().count(), 12, "{out}");
    assert!(err.contains("divided among 2 devices"), "{err}");
    let small = ["--bench", "--prompt-tokens", "8", "--tokens", "4", "--batch", "2"];
    let (out, _) = succeeds(&devices(&[&["--devices", "2"], &small[..]].concat()));
    assert_eq!(out.matches("| 2 | most likely |").count(), 1, "{out}");
    let (_, err) = texts(&devices(&["--devices", "3"]));
    assert!(
        err.contains("error: devices: expected at most as many devices as there are (2), found 3"),
        "{err}"
    );
    let (_, err) = texts(&devices(&["--devices", "2", "--quantize", "int4"]));
    assert!(err.contains("whole groups of 64 quantised weights"), "{err}");
}
