//! The pass that draws one more token of each of some texts, as a graph.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use burn_rocm::fused::RotaryPositions;
use burn_rocm::fused::decode::{self, PagedBatch, PagedLayer, SampleState, SampleTables};
use burn_rocm::graph::Graph;

use super::cache::{Cache, Keys, attend_few};
use super::ops::{Packed, Scores, primitive};
use super::{B, Model};
use crate::error::{Error, Result};

/// A pass of one token of each row: all layers, the logits, the draw of the next tokens.
///
/// It takes the tokens that the pass before has drawn, and the rows' positions, from device memory.
/// So the host needs to know neither to launch it. The first pass runs op by op, which compiles the
/// kernels. The second is captured, and all later ones replay it. If it can't be captured, all run
/// op by op.
#[derive(Debug)]
pub struct Step<'a> {
    model: &'a Model,
    rows: Rows,
    state: SampleState,
    /// What the device has as the rows' lengths; `None` if that is not known.
    lengths: Option<Vec<usize>>,
    mode: Mode,
}

/// The rows' keys and values.
#[derive(Debug)]
struct Rows {
    layers: Arc<Vec<PagedLayer>>,
    /// Each row's pages.
    pages: Vec<Vec<u32>>,
    batch: PagedBatch,
}

impl Rows {
    /// Fails unless these are the rows' caches.
    fn check(&self, caches: &[Cache]) -> Result<()> {
        let is_own = |(cache, pages): (&Cache, &Vec<u32>)| {
            Arc::ptr_eq(cache.layers(), &self.layers) && cache.pages() == pages
        };
        if caches.len() == self.pages.len() && caches.iter().zip(&self.pages).all(is_own) {
            return Ok(());
        }
        let expected = "the caches that the step was made for, in the same order".to_owned();
        Err(Error::Argument { name: "caches", expected, found: format!("{} others", caches.len()) })
    }
}

/// How a pass runs.
#[derive(Debug)]
enum Mode {
    /// Op by op, because none has run yet.
    First,
    /// As the capture that becomes the graph.
    Second,
    Graph(Box<Graph>),
    /// Op by op, because somebody asked for it or because of this error.
    OpByOp(Option<String>),
}

impl Keys for Rows {
    fn positions(&self) -> RotaryPositions {
        RotaryPositions::Starts(self.batch.lengths())
    }

    fn attend(&self, layer: usize, packed: Packed, scores: Scores) -> Result<Tensor<B, 3>> {
        attend_few(&self.layers[layer], &self.batch, packed, scores)
    }
}

impl<'a> Step<'a> {
    /// A step of all these caches, one row each, which [`Cache::rows`] has made together.
    ///
    /// # Errors
    /// [`Error::Argument`] for no caches, for caches that were not made together, and for one of
    /// another capacity; an error of the device.
    pub fn new(model: &'a Model, caches: &[Cache], tables: SampleTables) -> Result<Self> {
        let together = |first: &Cache| {
            caches.iter().all(|cache| {
                Arc::ptr_eq(cache.layers(), first.layers()) && cache.pages().len() == first.pages().len()
            })
        };
        let Some(first) = caches.first().filter(|first| together(first)) else {
            let expected = "at least one, all made by one call of Cache::rows".to_owned();
            let found = format!("{} caches", caches.len());
            return Err(Error::Argument { name: "caches", expected, found });
        };
        let device = model.device();
        let batch = PagedBatch::new(device, caches.len(), first.pages().len(), 1)?;
        let state = SampleState::new(device, caches.len(), model.config().vocabulary, tables)?;
        let pages = caches.iter().map(|cache| cache.pages().to_vec()).collect();
        let rows = Rows { layers: first.layers().clone(), pages, batch };
        Ok(Self { model, rows, state, lengths: None, mode: Mode::First })
    }

    /// The same step, which always runs op by op.
    pub fn op_by_op(self) -> Self {
        Self { mode: Mode::OpByOp(None), ..self }
    }

    /// How the rows' tokens are drawn, and what was drawn last.
    pub fn state(&self) -> &SampleState {
        &self.state
    }

    /// The graph, once there is one.
    pub fn graph(&self) -> Option<&Graph> {
        match &self.mode {
            Mode::Graph(graph) => Some(graph),
            _ => None,
        }
    }

    /// Why the step could not be captured.
    pub fn not_captured(&self) -> Option<&str> {
        match &self.mode {
            Mode::OpByOp(why) => why.as_deref(),
            _ => None,
        }
    }

    /// Enqueues the pass over the tokens that were drawn last, adds them to the caches, and draws
    /// the next ones. Does not wait for the device. The caches are those of [`new`](Self::new), in
    /// the same order.
    ///
    /// # Errors
    /// [`Error::TooLong`] if a cache is full; [`Error::Argument`] for other caches; an error of the
    /// device. No cache has changed then.
    pub fn run(&mut self, caches: &mut [Cache]) -> Result<()> {
        self.rows.check(caches)?;
        caches.iter().try_for_each(|cache| cache.check(1))?;
        let lengths: Vec<usize> = caches.iter().map(Cache::len).collect();
        if self.lengths.take().as_ref() != Some(&lengths) {
            self.bind(caches)?;
        }
        self.pass_or_replay()?;
        self.lengths = Some(lengths.iter().map(|length| length + 1).collect());
        caches.iter_mut().for_each(|cache| cache.advance(1));
        Ok(())
    }

    /// Tells the device where the rows' keys and values are, and how many.
    fn bind(&self, caches: &[Cache]) -> Result<()> {
        let rows: Vec<_> = caches.iter().map(|cache| (cache.pages(), cache.len(), 1)).collect();
        Ok(self.rows.batch.write(&rows)?)
    }

    fn pass_or_replay(&mut self) -> Result<()> {
        match &self.mode {
            Mode::Graph(graph) => return Ok(graph.replay()?),
            Mode::OpByOp(_) => return self.pass(),
            Mode::First => {
                self.pass()?;
                self.mode = Mode::Second;
                return Ok(());
            }
            Mode::Second => {}
        }
        // A capture that fails leaves everything as it was.
        let captured = match Graph::capture_after(self.model.device(), 0, || self.pass()) {
            Ok((graph, Ok(()))) => Ok(graph),
            Ok((_, Err(error))) => Err(error),
            Err(error) => Err(Error::from(error)),
        };
        match captured {
            Ok(graph) => {
                graph.replay()?;
                self.mode = Mode::Graph(Box::new(graph));
                Ok(())
            }
            Err(error) => {
                log::warn!("each token's pass is launched op by op, because it can't be captured: {error}");
                self.mode = Mode::OpByOp(Some(error.to_string()));
                self.pass()
            }
        }
    }

    /// The pass, op by op.
    fn pass(&self) -> Result<()> {
        let tokens = Tensor::<B, 1, Int>::from_primitive(self.state.tokens());
        let features = self.model.features(tokens, &self.rows)?;
        decode::sample(primitive(self.model.logits(features)?), &self.state)?;
        Ok(self.rows.batch.advance()?)
    }
}
