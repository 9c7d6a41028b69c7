//! Attention of few queries over a paged cache in NVIDIA's layout of matrix cores (`decode_matrix.hip`,
//! `matrix_few.h`), without an NVIDIA GPU. The kernel runs in lockstep with the layout that it has on
//! NVIDIA. `nvidia_cores.h` computes the instructions as NVIDIA's manual defines them.
#![cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#![allow(clippy::undocumented_unsafe_blocks, clippy::unwrap_used, clippy::macro_metavars_in_unsafe)]

mod common;
mod library;

use std::ffi::c_void;
use std::ptr::null;
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use common::*;
use half::{bf16, f16};
use hip_sys::*;
use library::Random;

/// Runs one test at a time, because the device's errors belong to the process.
fn start() -> MutexGuard<'static, ()> {
    static START: Once = Once::new();
    static ALONE: Mutex<()> = Mutex::new(());
    START.call_once(|| unsafe { std::env::set_var("BURN_ROCM_CPU_WAVE", "32") });
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces a text that must occur exactly `count` times.
fn replace(text: &str, count: usize, from: &str, to: &str) -> String {
    assert_eq!(text.matches(from).count(), count, "the headers have changed, so this test must too: {from}");
    text.replace(from, to)
}

/// Replaces what begins with `from`, up to `until`.
fn cut(text: &str, from: &str, until: &str, to: &str) -> String {
    let (before, rest) = text.split_once(from).unwrap_or_else(|| panic!("no {from}"));
    let (_, after) = rest.split_once(until).unwrap_or_else(|| panic!("no {until}"));
    assert!(!after.contains(from), "{from}");
    format!("{before}{to}{until}{after}")
}

/// The kernels' headers with NVIDIA's layout, and its instructions by `nvidia_cores.h`.
fn headers() -> Vec<(&'static str, String)> {
    let of_nvidia = |(name, text): &(&'static str, &'static str)| {
        let text = match *name {
            "matrix_cores.h" => {
                let text = replace(text, 1, "#define CORES_EMULATED 1", "#define CORES_MMA 1");
                // What this kernel does not call stays NVIDIA's.
                let own = ["u32 PITCH> struct Tile {\n", "bool HALF = is_same<T, f16>::value;\n"];
                let text = own.iter().fold(text, |text, before| {
                    let to = format!("{before}#if COMPILER_NVIDIA");
                    replace(&text, 1, &format!("{before}#if CORES_MMA"), &to)
                });
                let copies = text.find("// Copies 16 bytes to shared memory").unwrap();
                let (before, copies) = text.split_at(copies);
                format!("{before}{}", replace(copies, 4, "#if CORES_MMA", "#if COMPILER_NVIDIA"))
            }
            "matrix_few.h" => {
                let text =
                    replace(text, 1, "#define HAS_FEW 1", "#define HAS_FEW 1\n#include \"nvidia_cores.h\"");
                let text = cut(
                    &text,
                    "    if constexpr (is_same<T, f16>::value)\n        asm(",
                    "#else\n    Rows left;",
                    "    mma<T>(d, a, b);\n",
                );
                cut(&text, "asm volatile(\"movmatrix", "\n    }", "rows.word[half] = movmatrix(both);")
            }
            _ => (*text).to_owned(),
        };
        (*name, text)
    };
    let emulation = ("nvidia_cores.h", include_str!("common/nvidia_cores.h").to_owned());
    hip_kernels::HEADERS.iter().map(of_nvidia).chain([emulation]).collect()
}

fn kernel_of(headers: &[(&str, String)], name: &str) -> hipFunction_t {
    let family = hip_kernels::families().iter().find(|family| family.name == "decode_matrix").unwrap();
    let headers: Vec<_> = headers.iter().map(|(name, text)| (*name, text.as_str())).collect();
    let code = compile(family.source, &headers, &[name], &[]).unwrap_or_else(|log| panic!("{log}"));
    function(load(&code).unwrap(), name).unwrap()
}

/// An element of queries, keys or values.
trait Element: Copy + Default + 'static {
    /// Half the distance from 1 to the next number, of the type to which weights are rounded before their
    /// product with values of this type. For i8 that is bf16.
    const UNIT: f64;
    /// `None` for integers, which have a scale for each token and head.
    const NAN: Option<Self>;
    /// A number from -1 to 1; for integers, 127 times as large.
    fn of(value: f64) -> Self;
    fn f64(self) -> f64;
}

macro_rules! floats {
    ($($t:ident: $unit:expr),*) => { $(impl Element for $t {
        const UNIT: f64 = $unit;
        const NAN: Option<Self> = Some($t::NAN);
        fn of(value: f64) -> Self {
            $t::from_f64(value)
        }
        fn f64(self) -> f64 {
            self.to_f64()
        }
    })* };
}
floats!(f16: 1.0 / 2048.0, bf16: 1.0 / 256.0);

impl Element for i8 {
    const UNIT: f64 = bf16::UNIT;
    const NAN: Option<Self> = None;
    fn of(value: f64) -> Self {
        (127.0 * value).round() as i8
    }
    fn f64(self) -> f64 {
        f64::from(self)
    }
}

const PAGE: usize = 16;
const THREADS: u32 = 128;
/// Queries of a block.
const FEW: usize = 8;

/// A launch: its sizes, and the operands on the host.
struct Case<T, S> {
    width: usize,
    rows: usize,
    heads: usize,
    group: usize,
    /// Pages of a row.
    most: usize,
    splits: usize,
    window: usize,
    cap: f32,
    /// Elements from a token's queries to the next token's.
    step: usize,
    tokens: usize,
    offsets: Vec<i32>,
    lengths: Vec<i32>,
    table: Vec<i32>,
    queries: Vec<T>,
    /// Keys and values, `[pages, heads, PAGE, pitch]`, and their scales.
    pages: [Vec<S>; 2],
    scales: [Vec<f32>; 2],
}

impl<T: Element, S: Element> Case<T, S> {
    fn drawn(random: &mut Random, widths: &[usize]) -> Self {
        let width = random.pick(widths);
        let [rows, heads, group] = [1 + random.below(3), 1 + random.below(2), 1 + random.below(8)];
        let most = 1 + random.below(26);
        let (mut offsets, mut lengths) = (vec![0], Vec::new());
        for row in 0..rows {
            // Some rows have no token, some no room for all of theirs.
            let tokens = random.below(4);
            lengths.push(match random.below(4) {
                0 => most * PAGE - random.below(3),
                _ => random.below(most * PAGE + 1),
            } as i32);
            offsets.push(offsets[row] + tokens as i32);
        }
        // Some tokens belong to no row.
        let tokens = (offsets[rows] as usize + random.below(2)).max(1);
        let pages = rows * most + 3;
        let mut order: Vec<i32> = (0..pages as i32).collect();
        (1..pages).rev().for_each(|i| order.swap(i, random.below(i + 1)));
        let mut table = order[..rows * most].to_vec();
        if random.below(6) == 0 {
            let place = random.below(table.len());
            table[place] = -1;
        }
        let pitch = width.next_multiple_of(8);
        let step = heads * group * width + random.pick(&[0, 0, 8, 3]);
        let vectors = pages * heads * PAGE;
        let stored = [(); 2].map(|()| {
            let mut element = |i: usize| {
                if i % pitch < width { S::of(random.value()) } else { S::default() }
            };
            (0..vectors * pitch).map(&mut element).collect()
        });
        let scales =
            [(); 2].map(|()| (0..vectors).map(|_| 0.0005 + 0.01 * random.value().abs() as f32).collect());
        let queries = (0..tokens * step).map(|_| T::of(3.0 * random.value())).collect();
        let splits = 1 + random.below((most * PAGE).div_ceil(64));
        let some = 1 + random.below(most * PAGE);
        let window = random.pick(&[0, 0, some]);
        let cap = random.pick(&[0.0, 0.0, 3.0]);
        let mut case = Self {
            width,
            rows,
            heads,
            group,
            most,
            splits,
            window,
            cap,
            step,
            tokens,
            offsets,
            lengths,
            table,
            queries,
            pages: stored,
            scales,
        };
        for row in 0..rows {
            let [before, count] = case.tokens_of(row);
            // After the row's tokens, where no query looks.
            let end = if count == 0 { 0 } else { before + count };
            (end..most * PAGE).for_each(|key| case.spoil(row, key));
            // A key that only the last token's queries see.
            if count > 1 && random.below(2) == 0 {
                case.spoil(row, end - 1);
            }
        }
        case
    }

    /// A row's tokens in the cache, and those of this step that have a place.
    fn tokens_of(&self, row: usize) -> [usize; 2] {
        let before = self.lengths[row] as usize;
        let count = (self.offsets[row + 1] - self.offsets[row]) as usize;
        [before, count.min(self.most * PAGE - before)]
    }

    /// The index of a key's vector.
    fn vector(&self, row: usize, head: usize, key: usize) -> Option<usize> {
        let page = usize::try_from(self.table[row * self.most + key / PAGE]).ok()?;
        Some((page * self.heads + head) * PAGE + key % PAGE)
    }

    /// Puts a NaN into a key and its value.
    fn spoil(&mut self, row: usize, key: usize) {
        let pitch = self.width.next_multiple_of(8);
        for head in 0..self.heads {
            let Some(vector) = self.vector(row, head, key) else { continue };
            for (stored, scales) in self.pages.iter_mut().zip(&mut self.scales) {
                match S::NAN {
                    Some(nan) => stored[vector * pitch + self.width - 1] = nan,
                    None => scales[vector] = f32::NAN,
                }
            }
        }
    }

    /// Runs the kernel twice, and returns its results.
    fn run(&self, kernel: hipFunction_t) -> Vec<T> {
        let heads = self.heads * self.group;
        let most = (0..self.rows).map(|row| self.offsets[row + 1] - self.offsets[row]).max().unwrap_or(0);
        let chunks = (most.max(1) as usize * self.group).div_ceil(FEW);
        let pages = self.pages[0].len() / (self.heads * PAGE * self.width.next_multiple_of(8));
        let sizes = [self.rows, self.tokens, self.heads, self.width, pages, self.most, self.step, 0];
        let sizes = sizes.map(|size| size as u64);
        let plan = [self.group, self.splits, chunks, self.window].map(|number| number as u32);
        let numbers = [(self.width as f32).sqrt().recip(), self.cap];
        let [queries, table] = [Memory::of(&self.queries), Memory::of(&self.table)];
        let [offsets, lengths] = [Memory::of(&self.offsets), Memory::of(&self.lengths)];
        let [keys, values] = self.pages.each_ref().map(|stored| Memory::of(stored));
        let scales = self.scales.each_ref().map(|scales| Memory::of(scales));
        let of_scales =
            scales.each_ref().map(|scales| if S::NAN.is_none() { scales.0.cast_const() } else { null() });
        let parts = self.tokens * heads * self.splits;
        let [parts, stats] =
            [self.width.next_multiple_of(4), 2].map(|n| Memory::of(&vec![f32::NAN; parts * n]));
        let arrived = Memory::of(&vec![0u32; self.rows * self.heads * chunks]);
        let out = Memory::of(&vec![T::of(777.0); self.tokens * heads * self.width]);
        let mut arguments: Vec<*mut c_void> = vec![arg(&sizes)];
        arguments.extend(plan.iter().map(arg));
        arguments.extend([
            arg(&queries.0),
            arg(&keys.0),
            arg(&values.0),
            arg(&of_scales[0]),
            arg(&of_scales[1]),
        ]);
        arguments.extend([
            arg(&offsets.0),
            arg(&lengths.0),
            arg(&table.0),
            arg(&numbers[0]),
            arg(&numbers[1]),
        ]);
        arguments.extend([arg(&parts.0), arg(&stats.0), arg(&arrived.0), arg(&out.0)]);
        let blocks = (self.rows * self.heads * self.splits * chunks) as u32;
        let [first, second] = [(); 2].map(|()| {
            assert_eq!(launch(kernel, blocks, THREADS, &mut arguments), hipSuccess);
            let result = out.read::<T>();
            assert!(arrived.read::<u32>().iter().all(|&count| count == 0), "for the next launch");
            result
        });
        assert!(first.iter().zip(&second).all(|(a, b)| a.f64().to_bits() == b.f64().to_bits()), "other bits");
        first
    }

    /// Compares the results with f64. Returns what differs.
    fn check(&self, out: &[T]) -> Result<(), String> {
        let (heads, pitch) = (self.heads * self.group, self.width.next_multiple_of(8));
        let scale = f64::from((self.width as f32).sqrt().recip());
        let factor = |of: usize, vector: usize| {
            if S::NAN.is_none() { f64::from(self.scales[of][vector]) } else { 1.0 }
        };
        let element = |of: usize, vector: usize, feature: usize| {
            self.pages[of][vector * pitch + feature].f64() * factor(of, vector)
        };
        for token in 0..self.tokens {
            let row = (0..self.rows)
                .find(|&row| (self.offsets[row]..self.offsets[row + 1]).contains(&(token as i32)));
            for query in 0..heads {
                let own =
                    |feature: usize| self.queries[token * self.step + query * self.width + feature].f64();
                // The keys that the query sees: vector and score. And the largest sum of magnitudes of a
                // score's products.
                let (mut seen, mut largest) = (Vec::new(), 0f64);
                if let Some(row) = row {
                    let [before, count] = self.tokens_of(row);
                    let at = token - self.offsets[row] as usize;
                    let keys = if at < count { 0..before + at + 1 } else { 0..0 };
                    let end = keys.end;
                    for key in keys.filter(|key| self.window == 0 || end - key <= self.window) {
                        let Some(vector) = self.vector(row, query / self.group, key) else { continue };
                        let products = (0..self.width).map(|f| own(f) * element(0, vector, f) * scale);
                        let (score, magnitude) = products.fold((0.0, 0.0), |(s, m), x| (s + x, m + x.abs()));
                        largest = largest.max(magnitude);
                        let cap = f64::from(self.cap);
                        seen.push((vector, if cap > 0.0 { cap * (score / cap).tanh() } else { score }));
                    }
                }
                if seen.iter().any(|(_, score)| score.is_nan()) {
                    continue;
                }
                let top = seen.iter().fold(f64::NEG_INFINITY, |top, (_, score)| top.max(*score));
                let depth = seen.iter().fold(0f64, |depth, (_, score)| depth.max(top - score));
                let weights: Vec<f64> = seen.iter().map(|(_, score)| (score - top).exp()).collect();
                let sum: f64 = weights.iter().sum();
                // A score's error: one rounding for each product and sum, and a few of scale and cap.
                let unit = 2f64.powi(-24);
                let of_score = (self.width as f64 + 8.0) * unit * largest;
                // A weight's relative error: that of the score twice, since the top has it too; the product
                // with the logarithm; the power; the sums over keys and splits.
                let of_weight = 2.0 * of_score + 4.0 * unit * depth + (seen.len() as f64 + 64.0) * unit;
                for feature in 0..self.width {
                    let value = |vector: usize| element(1, vector, feature);
                    let parts =
                        seen.iter().zip(&weights).map(|((vector, _), weight)| weight / sum * value(*vector));
                    let (wanted, magnitude) = parts.fold((0.0, 0.0), |(s, m), x| (s + x, m + x.abs()));
                    let found = out[(token * heads + query) * self.width + feature].f64();
                    // Below f16's normal numbers, rounding is absolute.
                    let most =
                        magnitude * (S::UNIT + 2.0 * of_weight) * 1.01 + wanted.abs() * T::UNIT * 1.01 + 1e-7;
                    if (found - wanted).abs() > most || found.is_nan() {
                        let Self { width, rows, heads, group, splits, window, cap, .. } = self;
                        return Err(format!(
                            "{found} instead of {wanted} within {most:.1e} at token {token}, query {query}, feature \
                             {feature}: {rows} rows, {heads} heads of {width}, groups of {group}, {splits} splits, \
                             window {window}, cap {cap}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

fn cases<T: Element, S: Element>(name: &str, widths: &[usize]) {
    let _alone = start();
    let kernel = kernel_of(&headers(), name);
    let mut random = Random::new(name);
    for _ in 0..12 {
        let case = Case::<T, S>::drawn(&mut random, widths);
        case.check(&case.run(kernel)).unwrap_or_else(|why| panic!("{name}: {why}"));
    }
}

#[test]
fn bf16_of_up_to_64_features() {
    cases::<bf16, bf16>("decode_attention_matrix<bf16, bf16, 64>", &[64, 64, 40, 33]);
}

#[test]
fn f16_of_up_to_128_features() {
    cases::<f16, f16>("decode_attention_matrix<f16, f16, 128>", &[128, 128, 80, 96, 65]);
}

#[test]
fn bf16_over_integers() {
    cases::<bf16, i8>("decode_attention_matrix<bf16, i8, 128>", &[128, 96, 80]);
}

#[test]
fn f16_over_integers_of_up_to_256_features() {
    cases::<f16, i8>("decode_attention_matrix<f16, i8, 256>", &[256, 192, 130]);
}

/// Keys whose values are paired in another order.
#[test]
fn a_wrong_layout_is_found() {
    let _alone = start();
    let mut headers = headers();
    let few = headers.iter_mut().find(|(name, _)| *name == "matrix_few.h").unwrap();
    few.1 = replace(&few.1, 1, "2 * part() + 8 * pair :", "2 * part() + 4 * pair :");
    let name = "decode_attention_matrix<bf16, bf16, 64>";
    let kernel = kernel_of(&headers, name);
    let mut random = Random::new("a wrong layout");
    let is_wrong = |_| {
        let case = Case::<bf16, bf16>::drawn(&mut random, &[64]);
        case.check(&case.run(kernel)).is_err()
    };
    assert!((0..8).any(is_wrong));
}
