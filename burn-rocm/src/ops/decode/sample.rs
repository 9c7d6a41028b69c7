//! Choosing the next token of each row from its logits, on the device (`sample.hip`).

use burn_backend::TensorData;
use burn_std::DType;
use hip::{Grid, Template};

use super::cache::write_ints;
use crate::RocmDevice;
use crate::arg::Arg;
use crate::error::{invalid, unsupported};
use crate::ops::copy::{assign, may_be_written, packed};
use crate::ops::create::full_on;
use crate::ops::launch::views_to;
use crate::ops::transfer::upload;
use crate::ops::view::narrow;
use crate::tensor::{RocmTensor, one_device};

const OP: &str = "decode::sample";
const STATE: &str = "decode::SampleState";

/// The scores of a block of `sample_scores`, and the numbers of its results; the numbers of a row's
/// parameters; the bins of a row's codes. `CHUNK`, `STATS`, `Choice` and `BINS` of `sample.hip`.
const CHUNK: usize = 2048;
const STATS: usize = 4;
const PARAMETERS: usize = 8;
const BINS: usize = 2048;
/// The bit of a token's count that says that it is in the prompt. `IN_PROMPT` of `sample.hip`.
const IN_PROMPT: i32 = 1 << 30;
/// The most tokens of a vocabulary: `ID_BITS` of `sample.hip`.
const MOST_TOKENS: usize = 1 << 21;
/// The least temperature above 0.
const LEAST_TEMPERATURE: f32 = 1e-30;
/// The threads of a block of `sample_draw`, which has a row for itself.
const THREADS: u32 = 1024;

/// How tokens are drawn. The order is that of `transformers`: penalties, temperature, top-k, top-p,
/// min-p.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits. 0: always the most likely token. Below 1e-30, but above 0, it counts as
    /// 1e-30.
    pub temperature: f64,
    /// The number of most likely tokens to draw from. 0: all. Among equals, the smaller id comes
    /// first.
    pub top_k: usize,
    /// Draws from the fewest most likely tokens whose probabilities reach this sum.
    pub top_p: f64,
    /// Draws from tokens with at least this fraction of the largest probability.
    pub min_p: f64,
    /// Makes tokens of the prompt and the answer less likely: divides their logits above 0, and
    /// multiplies those below.
    pub repetition_penalty: f64,
    /// Subtracted from the logit of a token of the answer.
    pub presence_penalty: f64,
    /// Subtracted from the logit of a token once for each time that it is in the answer.
    pub frequency_penalty: f64,
    /// The draws' seed. The same seed draws the same tokens from the same logits.
    pub seed: u64,
}

impl Default for Sampling {
    /// Always the most likely token.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Checks the ranges.
    ///
    /// # Errors
    /// `Invalid`, with the name of the number.
    pub fn check(&self) -> hip::Result<()> {
        let wrong = |expected: &str, found: f64| invalid("decode::Sampling", expected, found.to_string());
        if !(self.temperature >= 0.0 && self.temperature.is_finite()) {
            return wrong("a temperature from 0", self.temperature);
        }
        if !(self.top_p > 0.0 && self.top_p <= 1.0) {
            return wrong("a top_p above 0, up to 1", self.top_p);
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return wrong("a min_p from 0 to 1", self.min_p);
        }
        if !(self.repetition_penalty > 0.0 && self.repetition_penalty.is_finite()) {
            return wrong("a repetition penalty above 0", self.repetition_penalty);
        }
        for penalty in [self.presence_penalty, self.frequency_penalty] {
            if !penalty.is_finite() {
                return wrong("a finite penalty", penalty);
            }
        }
        Ok(())
    }

    fn penalises(&self) -> bool {
        [self.repetition_penalty, self.presence_penalty, self.frequency_penalty] != [1.0, 0.0, 0.0]
    }

    /// The row's parameters as `Choice` of `sample.hip`.
    fn numbers(&self) -> [f32; PARAMETERS] {
        // A positive temperature stays positive, and quotients of logits up to 1e8 stay finite.
        let temperature =
            if self.temperature > 0.0 { (self.temperature as f32).max(LEAST_TEMPERATURE) } else { 0.0 };
        [
            temperature,
            self.top_k.min(MOST_TOKENS) as f32,
            self.top_p as f32,
            self.min_p as f32,
            self.repetition_penalty as f32,
            self.presence_penalty as f32,
            self.frequency_penalty as f32,
            0.0,
        ]
    }
}

/// What a [`SampleState`] keeps beside the parameters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleTables {
    /// The counts of all tokens, which penalties need: 4 bytes for each row and token.
    pub counts: bool,
    /// The logarithm of the probability of the last token of each row.
    pub chances: bool,
    /// How many of each row's last tokens to keep.
    pub ring: usize,
}

/// The parameters, seeds and draws of the rows of a batch, in device memory that stays where it is.
#[derive(Debug)]
pub struct SampleState {
    vocabulary: usize,
    /// `[rows, PARAMETERS]`.
    parameters: RocmTensor,
    /// `[rows]` of U64.
    seeds: RocmTensor,
    /// `[rows]` of I64: the draws so far.
    steps: RocmTensor,
    /// The passes whose draws are kept.
    passes: usize,
    /// Of each pass, the tokens of all rows and then their chances, so that one copy reads all.
    drawn: RocmTensor,
    /// `[rows]` of I32: those of the last pass in `drawn`.
    tokens: RocmTensor,
    /// `[rows, vocabulary]` of I32.
    counts: Option<RocmTensor>,
    /// `[rows]` of F32: those of the last pass in `drawn`.
    chances: Option<RocmTensor>,
    /// `[length, rows]` of I32.
    ring: Option<RocmTensor>,
}

impl SampleState {
    /// The state of `rows` rows, all of which take the most likely token.
    ///
    /// # Errors
    /// `Invalid` for no rows, no tokens, or a vocabulary of more than 2^21; `OutOfMemory`.
    pub fn new(
        device: &RocmDevice,
        rows: usize,
        vocabulary: usize,
        tables: SampleTables,
    ) -> hip::Result<Self> {
        Self::of_passes(device, rows, vocabulary, tables, 1)
    }

    /// [`new`](Self::new), with memory for the draws of `passes` passes in a row. So a graph can run
    /// all of them before the host reads any draw. Each pass calls [`sample`] with its own
    /// [`pass`](Self::pass) of this state, and takes the tokens of the pass before it. This state's
    /// own tokens and chances are those of the last pass.
    ///
    /// # Errors
    /// As [`new`](Self::new); `Invalid` for no passes.
    pub fn of_passes(
        device: &RocmDevice,
        rows: usize,
        vocabulary: usize,
        tables: SampleTables,
        passes: usize,
    ) -> hip::Result<Self> {
        let most = passes.saturating_mul(2).max(vocabulary);
        let countable = rows > 0 && passes > 0 && rows.checked_mul(most).is_some();
        if !countable || !(1..=MOST_TOKENS).contains(&vocabulary) {
            let expected = format!("rows, passes, and a vocabulary of 1 to {MOST_TOKENS}");
            let found = format!("{rows} rows of {vocabulary} tokens, {passes} passes");
            return invalid(STATE, expected, found);
        }
        let open = device.open()?;
        let zeros = |shape: &[usize], dtype| full_on(&open, shape.to_vec(), 0.into(), dtype);
        let SampleTables { counts, chances, ring } = tables;
        let numbers = Sampling::default().numbers().repeat(rows);
        // Tokens and chances begin at 16 bytes, or the ops that read the tokens would copy them.
        let each = rows.next_multiple_of(4) * if chances { 2 } else { 1 };
        let drawn = zeros(&[passes * each], DType::I32)?;
        let last = narrow(drawn.clone(), 0, (passes - 1) * each, each)?;
        let (tokens, chances) = parts(&last, rows, chances)?;
        Ok(Self {
            vocabulary,
            parameters: upload(TensorData::new(numbers, [rows, PARAMETERS]), DType::F32, device)?,
            seeds: zeros(&[rows], DType::U64)?,
            steps: zeros(&[rows], DType::I64)?,
            passes,
            drawn,
            tokens,
            chances,
            counts: counts.then(|| zeros(&[rows, vocabulary], DType::I32)).transpose()?,
            ring: (ring > 0).then(|| zeros(&[ring, rows], DType::I32)).transpose()?,
        })
    }

    /// The bytes that a state of `rows` rows and one pass takes on the device, without the pool's
    /// rounding.
    pub fn bytes(rows: usize, vocabulary: usize, tables: SampleTables) -> usize {
        let SampleTables { counts, chances, ring } = tables;
        let words = ring.saturating_add(if chances { 2 } else { 1 });
        let words = words.saturating_add(if counts { vocabulary } else { 0 });
        // The seed and the number of draws have 8 bytes each.
        let others = PARAMETERS * size_of::<f32>() + size_of::<u64>() + size_of::<i64>();
        rows.saturating_mul(words.saturating_mul(size_of::<i32>()).saturating_add(others))
    }

    pub(super) fn rows(&self) -> usize {
        self.tokens.dims()[0]
    }

    pub(super) fn passes(&self) -> usize {
        self.passes
    }

    /// Of each pass the tokens, and behind them the chances if there are any.
    pub(super) fn drawn(&self) -> &RocmTensor {
        &self.drawn
    }

    /// The elements of one pass in [`drawn`](Self::drawn).
    pub(super) fn drawn_in_pass(&self) -> usize {
        self.drawn.len() / self.passes
    }

    /// Starts a sequence in a row, which is drawn by these parameters and whose draws count from 0.
    /// `prompt` are the tokens that the repetition penalty counts from the start.
    ///
    /// # Errors
    /// `Invalid` for a row or a token that does not exist, for numbers out of range, and for
    /// penalties of a state without counts; `Capture` in a capture; an error of the device.
    pub fn set(&self, row: usize, sampling: &Sampling, prompt: &[u32]) -> hip::Result<()> {
        self.resume(row, sampling, prompt, &[])
    }

    /// [`set`](Self::set) for a sequence of which `answer` was drawn before, in this row or
    /// another. The next draws are those that would have followed there.
    ///
    /// # Errors
    /// As [`set`](Self::set).
    pub fn resume(&self, row: usize, sampling: &Sampling, prompt: &[u32], answer: &[u32]) -> hip::Result<()> {
        sampling.check()?;
        if row >= self.rows() {
            return invalid(STATE, format!("a row below {}", self.rows()), row.to_string());
        }
        if sampling.penalises() && self.counts.is_none() {
            return invalid(STATE, "a state with counts for penalties", "one without");
        }
        if let Some(token) = prompt.iter().chain(answer).find(|&&token| token as usize >= self.vocabulary) {
            return invalid(STATE, format!("tokens below {}", self.vocabulary), token.to_string());
        }
        let device = self.parameters.hip_device();
        let write = |tensor: &RocmTensor, bytes: &[u8]| {
            may_be_written(STATE, tensor)?;
            device.write(tensor.buffer(), tensor.byte_offset() + row * bytes.len(), bytes)
        };
        write(&self.parameters, bytemuck::cast_slice(&sampling.numbers()))?;
        write(&self.seeds, &sampling.seed.to_ne_bytes())?;
        write(&self.steps, &(answer.len() as u64).to_ne_bytes())?;
        // Without penalties, no count changes a score.
        let Some(counts) = self.counts.as_ref().filter(|_| sampling.penalises()) else { return Ok(()) };
        let mut fresh = vec![0i32; self.vocabulary];
        prompt.iter().for_each(|&token| fresh[token as usize] = IN_PROMPT);
        answer.iter().for_each(|&token| fresh[token as usize] += 1);
        may_be_written(STATE, counts)?;
        let fresh = upload(TensorData::new(fresh, [1, self.vocabulary]), DType::I32, &counts.rocm_device())?;
        assign(STATE, &narrow(counts.clone(), 0, row, 1)?, &fresh)
    }

    /// The first rows as a state of their own, for a step that draws no others. Both states share
    /// their memory.
    ///
    /// # Errors
    /// `Invalid` for no rows, for more than there are, and for a state with a ring.
    pub fn first(&self, rows: usize) -> hip::Result<Self> {
        if !(1..=self.rows()).contains(&rows) {
            return invalid(STATE, format!("1 to {} rows", self.rows()), rows.to_string());
        }
        if self.ring.is_some() {
            return invalid(STATE, "a state without a ring", "one with a ring");
        }
        let first = |tensor: &RocmTensor| narrow(tensor.clone(), 0, 0, rows);
        Ok(Self {
            vocabulary: self.vocabulary,
            parameters: first(&self.parameters)?,
            seeds: first(&self.seeds)?,
            steps: first(&self.steps)?,
            passes: self.passes,
            drawn: self.drawn.clone(),
            tokens: first(&self.tokens)?,
            counts: self.counts.as_ref().map(first).transpose()?,
            chances: self.chances.as_ref().map(first).transpose()?,
            ring: None,
        })
    }

    /// The state for [`sample`] in pass `at` of [`of_passes`](Self::of_passes). It has tokens and chances
    /// of its own, and shares everything else with this state.
    ///
    /// # Errors
    /// `Invalid` for a pass that does not exist.
    pub fn pass(&self, at: usize) -> hip::Result<Self> {
        if at >= self.passes {
            return invalid(STATE, format!("a pass below {}", self.passes), at.to_string());
        }
        let each = self.drawn_in_pass();
        let drawn = narrow(self.drawn.clone(), 0, at * each, each)?;
        let (tokens, chances) = parts(&drawn, self.rows(), self.chances.is_some())?;
        Ok(Self {
            vocabulary: self.vocabulary,
            parameters: self.parameters.clone(),
            seeds: self.seeds.clone(),
            steps: self.steps.clone(),
            passes: 1,
            drawn,
            tokens,
            counts: self.counts.clone(),
            chances,
            ring: self.ring.clone(),
        })
    }

    /// The tokens drawn last, `[rows]` of I32. Each call of [`sample`] overwrites them, so the next
    /// step may read them there.
    pub fn tokens(&self) -> RocmTensor {
        self.tokens.clone()
    }

    /// Sets the tokens of all rows, from which the next step starts.
    ///
    /// # Errors
    /// `Invalid` for another number of tokens, or one that does not exist; `Capture` in a capture.
    pub fn set_tokens(&self, tokens: &[u32]) -> hip::Result<()> {
        let exists = |token: &&u32| (**token as usize) < self.vocabulary;
        if tokens.len() != self.rows() || !tokens.iter().all(|token| exists(&token)) {
            let expected = format!("{} tokens below {}", self.rows(), self.vocabulary);
            return invalid(STATE, expected, format!("{tokens:?}"));
        }
        let tokens: Vec<i32> = tokens.iter().map(|&token| token as i32).collect();
        write_ints(&self.tokens, 0, &tokens)
    }

    /// The natural logarithm of the probability of each row's last token in the softmax of the
    /// logits as they were given, `[rows]` of F32.
    pub fn chances(&self) -> Option<RocmTensor> {
        self.chances.clone()
    }

    /// The last tokens, `[length, rows]` of I32. Draw `n` of a row, counted from 0 since
    /// [`set`](Self::set), is at `n % length`.
    pub fn ring(&self) -> Option<RocmTensor> {
        self.ring.clone()
    }
}

/// The tokens and the chances of the first rows, from what one pass has drawn for all.
fn parts(drawn: &RocmTensor, rows: usize, chances: bool) -> hip::Result<(RocmTensor, Option<RocmTensor>)> {
    let tokens = narrow(drawn.clone(), 0, 0, rows)?;
    let chances = chances.then(|| narrow(drawn.clone(), 0, drawn.len() / 2, rows)).transpose()?;
    Ok((tokens, chances.map(|chances| chances.reinterpret(DType::F32))))
}

/// The bytes that [`sample`] takes on the device while it runs, beside logits and state, without the
/// pool's rounding.
pub fn sample_bytes(rows: usize, vocabulary: usize) -> usize {
    let scores = vocabulary.saturating_mul(size_of::<f32>());
    let chunk = STATS * size_of::<f32>() + CHUNK * size_of::<u64>() + BINS * size_of::<u32>();
    let chunks = vocabulary.div_ceil(CHUNK).saturating_mul(chunk);
    let bins = BINS * (size_of::<u32>() + size_of::<u64>());
    rows.saturating_mul(scores.saturating_add(chunks).saturating_add(bins))
}

/// Draws a token for each row into [`SampleState::tokens`], in three launches, and counts it. The
/// random number of a draw is Philox 4x32-10 of the row's seed and of the number of its draws,
/// which lies in device memory, so a captured graph draws others at each replay.
///
/// A NaN counts as -inf. If some logits are +inf, or all are -inf, these are drawn with equal
/// probabilities. Tokens whose scores are closer than 2^-27, or than f32's rounding of the score,
/// may count as equals; a temperature of 0 compares the f32 scores exactly. A token with less than
/// e^-28 of the most likely token's probability is never drawn.
///
/// # Shapes
/// - `logits`: `[rows, vocabulary]` of F32, F16 or BF16
///
/// # Errors
/// `Invalid` if the shape or the device does not fit; `Unsupported` for other dtypes; an error of
/// the device.
pub fn sample(logits: RocmTensor, state: &SampleState) -> hip::Result<()> {
    let (rows, vocabulary) = (state.rows(), state.vocabulary);
    one_device(OP, &[&logits, &state.tokens])?;
    if logits.dims() != [rows, vocabulary] {
        return invalid(OP, format!("[{rows}, {vocabulary}]"), format!("{:?}", logits.dims()));
    }
    if !matches!(logits.dtype_of(), DType::F32 | DType::F16 | DType::BF16) {
        return unsupported(OP, logits.dtype_of());
    }
    let logits = packed(logits)?;
    let (device, ty, chunks) = (logits.hip_device(), logits.kernel_type()?, vocabulary.div_ceil(CHUNK));
    // `sample_bytes` counts these six.
    let scores = RocmTensor::empty(device, [rows, vocabulary], DType::F32)?;
    let stats = RocmTensor::empty(device, [rows, chunks, STATS], DType::F32)?.skip_check();
    let bin_counts = RocmTensor::empty(device, [rows, BINS], DType::U32)?;
    let bin_weights = RocmTensor::empty(device, [rows, BINS], DType::U64)?;
    // Neither is written for rows that take the most likely token.
    let candidates = RocmTensor::empty(device, [rows, chunks, CHUNK], DType::U64)?.skip_check();
    let starts = RocmTensor::empty(device, [rows, chunks, BINS], DType::U32)?.skip_check();
    let sizes = [rows, vocabulary, chunks].map(|n| Arg::U64(n as u64));
    let inputs = [Some(&logits), state.counts.as_ref(), Some(&state.parameters)];
    let grid = device.grid_rows(rows * chunks, CHUNK);
    let outputs = [Some(&scores), Some(&stats), Some(&bin_counts), Some(&bin_weights)];
    views_to(OP, device, Template::sample_scores.ty(ty), grid, &sizes, &inputs, &[], &outputs)?;
    let inputs = [Some(&scores), Some(&stats), Some(&state.parameters)];
    let outputs = [&candidates, &starts, &bin_counts, &bin_weights].map(Some);
    views_to(OP, device, Template::sample_codes.name(), grid, &sizes, &inputs, &[], &outputs)?;
    let written = [state.counts.as_ref(), Some(&state.steps), Some(&state.tokens), state.chances.as_ref()];
    let written: Vec<_> = written.into_iter().chain([state.ring.as_ref()]).collect();
    written.iter().flatten().try_for_each(|tensor| may_be_written(OP, tensor))?;
    let grid = match device.grid_rows(rows, usize::MAX) {
        grid if grid.threads == 1 => grid,
        grid => Grid { threads: device.info().max_threads_per_block.min(THREADS), ..grid },
    };
    let length = state.ring.as_ref().map_or(1, |ring| ring.dims()[0]);
    let dims: Vec<Arg> = sizes.into_iter().chain([Arg::U64(length as u64)]).collect();
    let inputs = [&logits, &candidates, &starts, &bin_counts, &bin_weights, &stats, &state.parameters];
    let inputs = inputs.into_iter().chain([&state.seeds]).map(Some).collect::<Vec<_>>();
    views_to(OP, device, Template::sample_draw.ty(ty), grid, &dims, &inputs, &[], &written)
}
