//! The pass that draws one more token of each of some texts: a graph of one pass, and one of
//! several.

use std::sync::Arc;

use burn::tensor::{Int, Tensor};
use burn_rocm::fused::RotaryPositions;
use burn_rocm::fused::decode::{self, PagedBatch, PagedLayer, SampleState, SampleTables};
use burn_rocm::graph::Graph;

use super::cache::{Cache, Keys, attend_few};
use super::ops::{Packed, Scores, primitive};
use super::{B, Model};
use crate::error::{Error, Result};

/// The passes that [`Step::run_several`] runs by one launch. Between two graphs, the copy of the
/// draws and the launch of the second graph take 17 us on an H200, where a pass of Llama 3.2 1B
/// takes 860. The passes of one graph share these 17 us.
pub const PASSES: usize = 4;

/// A pass of one token of each row: all layers, the logits, the draw of the next tokens.
///
/// It takes the tokens that the pass before has drawn, and the rows' positions, from device memory.
/// So the host can launch it without knowing them, and [`PASSES`] passes can be one graph. The first
/// call runs op by op, which compiles the kernels. The next [`run`](Self::run) and the next
/// [`run_several`](Self::run_several) are captured, and all later ones replay these graphs. If single
/// passes can't be captured, all run op by op.
#[derive(Debug)]
pub struct Step<'a> {
    model: &'a Model,
    rows: Rows,
    state: SampleState,
    /// What the device has as the rows' lengths; `None` if that is not known.
    lengths: Option<Vec<usize>>,
    mode: Mode,
    graphs: Graphs,
}

/// What was captured so far.
#[derive(Debug, Default)]
struct Graphs {
    one: Option<Graph>,
    several: Option<Graph>,
    /// Whether several passes could not be captured.
    refused: bool,
}

impl Graphs {
    /// The graph of this many passes, one or [`PASSES`], if it was captured.
    fn of(&mut self, passes: usize) -> &mut Option<Graph> {
        if passes == 1 { &mut self.one } else { &mut self.several }
    }
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

/// How passes run.
#[derive(Debug)]
enum Mode {
    /// Op by op, because none has run yet.
    First,
    /// As graphs.
    Graphs,
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
        let state = SampleState::of_passes(device, caches.len(), model.config().vocabulary, tables, PASSES)?;
        let pages = caches.iter().map(|cache| cache.pages().to_vec()).collect();
        let rows = Rows { layers: first.layers().clone(), pages, batch };
        Ok(Self { model, rows, state, lengths: None, mode: Mode::First, graphs: Graphs::default() })
    }

    /// The same step, which always runs op by op.
    pub fn op_by_op(self) -> Self {
        Self { mode: Mode::OpByOp(None), ..self }
    }

    /// How the rows' tokens are drawn, and what was drawn last. After
    /// [`run_several`](Self::run_several), [`SampleState::begin_read_passes`] reads all its draws.
    pub fn state(&self) -> &SampleState {
        &self.state
    }

    /// The graph of one pass, once there is one.
    pub fn graph(&self) -> Option<&Graph> {
        self.graphs.one.as_ref()
    }

    /// The graph of [`PASSES`] passes, once there is one.
    pub fn graph_of_several(&self) -> Option<&Graph> {
        self.graphs.several.as_ref()
    }

    /// Whether there is a graph of one pass, and one of several exists or may be captured.
    pub fn takes_several(&self) -> bool {
        self.graphs.one.is_some() && !self.graphs.refused
    }

    /// Why passes could not be captured.
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
        self.enqueue(caches, 1)
    }

    /// [`run`](Self::run), [`PASSES`] times by one launch. Draws the same tokens, bit for bit.
    ///
    /// # Errors
    /// As [`run`](Self::run); [`Error::TooLong`] also if a cache has no room for all passes. After an
    /// error of the device, some of the draws may have counted: set the rows anew.
    pub fn run_several(&mut self, caches: &mut [Cache]) -> Result<()> {
        self.enqueue(caches, PASSES)
    }

    /// Enqueues one pass or [`PASSES`].
    fn enqueue(&mut self, caches: &mut [Cache], passes: usize) -> Result<()> {
        self.rows.check(caches)?;
        caches.iter().try_for_each(|cache| cache.check(passes))?;
        let lengths: Vec<usize> = caches.iter().map(Cache::len).collect();
        if self.lengths.take().as_ref() != Some(&lengths) {
            self.bind(caches)?;
        }
        self.run_or_replay(passes)?;
        self.lengths = Some(lengths.iter().map(|length| length + passes).collect());
        caches.iter_mut().for_each(|cache| cache.advance(passes));
        Ok(())
    }

    /// Tells the device where the rows' keys and values are, and how many.
    fn bind(&self, caches: &[Cache]) -> Result<()> {
        let rows: Vec<_> = caches.iter().map(|cache| (cache.pages(), cache.len(), 1)).collect();
        Ok(self.rows.batch.write(&rows)?)
    }

    fn run_or_replay(&mut self, passes: usize) -> Result<()> {
        match &self.mode {
            Mode::Graphs => {}
            Mode::OpByOp(_) => return self.launch(passes),
            Mode::First => {
                self.launch(passes)?;
                self.mode = Mode::Graphs;
                return Ok(());
            }
        }
        if let Some(graph) = self.graphs.of(passes) {
            return Ok(graph.replay()?);
        }
        if passes > 1 && self.graphs.refused {
            return self.launch(passes);
        }
        // A capture that fails leaves everything as it was.
        let captured = match Graph::capture_after(self.model.device(), 0, || self.launch(passes)) {
            Ok((graph, Ok(()))) => Ok(graph),
            Ok((_, Err(error))) => Err(error),
            Err(error) => Err(Error::from(error)),
        };
        match captured {
            Ok(graph) => {
                graph.replay()?;
                *self.graphs.of(passes) = Some(graph);
                Ok(())
            }
            // For instance, memory may suffice for the graph of one pass alone.
            Err(error) if passes > 1 => {
                log::warn!(
                    "each token's pass is a graph of its own, because several can't be captured: {error}"
                );
                self.graphs.refused = true;
                self.launch(passes)
            }
            Err(error) => {
                log::warn!("each token's pass is launched op by op, because it can't be captured: {error}");
                self.mode = Mode::OpByOp(Some(error.to_string()));
                self.graphs = Graphs::default();
                self.launch(passes)
            }
        }
    }

    /// Launches one pass or [`PASSES`], op by op. The first takes the tokens that were drawn last,
    /// and each other those of the pass before it. The last draws into the state's own tokens, so
    /// one pass is the last of [`PASSES`].
    fn launch(&self, passes: usize) -> Result<()> {
        let mut drawn = self.state.tokens();
        for at in PASSES - passes..PASSES {
            let state = self.state.pass(at)?;
            let tokens = Tensor::<B, 1, Int>::from_primitive(drawn);
            let features = self.model.features(tokens, &self.rows)?;
            decode::sample(primitive(self.model.logits(features)?), &state)?;
            self.rows.batch.advance()?;
            drawn = state.tokens();
        }
        Ok(())
    }
}
