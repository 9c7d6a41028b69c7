//! Which sequences run in a step, and with how many tokens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::Instant;

use burn::tensor::{Int, Tensor};
use burn_rocm::fused::decode::{self, Draw, LateDraws, SampleState, SampleTables};
use burn_rocm_nn::language::{BLOCK, CacheError, CacheType};

use super::chances::LateLargest;
use super::handle::{Command, Limits};
use super::job::{Chances, End, Event};
use super::prefixes::{Chain, Prefixes};
use super::sequence::{Running, Sequence, sequences};
use crate::error::{Error, Result};
use crate::model::{B, Model, Paged, Piece};
use crate::serve::metrics::Metrics;

/// What the engine's thread owns.
#[derive(Debug)]
pub(super) struct Scheduler {
    model: Arc<Model>,
    limits: Limits,
    commands: Receiver<Command>,
    metrics: Arc<Metrics>,
    paged: Paged,
    /// Draws the tokens. A running sequence has a row.
    state: SampleState,
    free_rows: Vec<bool>,
    prefixes: Prefixes,
    /// Both by the order of their arrival.
    waiting: VecDeque<Sequence>,
    running: Vec<Running>,
    /// What the last step has drawn.
    flight: Option<Flight>,
    /// The order of the next sequence.
    next: u64,
}

/// A running sequence by its index, and its tokens of a step.
type Share = (usize, usize);

/// Tokens that were drawn and not read.
#[derive(Debug)]
struct Flight {
    draws: LateDraws,
    /// The sequences, by their order.
    drawn: Vec<u64>,
    /// Those that ask for the most likely tokens, and the logits of these.
    asking: Vec<u64>,
    largest: Option<LateLargest>,
}

impl Scheduler {
    pub(super) fn new(
        model: Arc<Model>,
        (limits, stored): (Limits, CacheType),
        commands: Receiver<Command>,
        metrics: Arc<Metrics>,
    ) -> Result<Self> {
        let paged = Paged::new(&model, limits.blocks, stored)?;
        let tables = SampleTables { counts: true, chances: true, ring: 0 };
        let state = SampleState::new(model.device(), limits.rows, model.config().vocabulary, tables)?;
        Ok(Self {
            model,
            limits,
            commands,
            metrics,
            paged,
            state,
            free_rows: vec![true; limits.rows],
            prefixes: Prefixes::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            flight: None,
            next: 0,
        })
    }

    /// Runs until nobody can give it work any more.
    pub(super) fn run(mut self) -> Result<()> {
        loop {
            if self.running.is_empty() && self.waiting.is_empty() {
                // Nobody waits for what a last step has drawn.
                self.flight = None;
                match self.commands.recv() {
                    Ok(command) => self.take(command)?,
                    Err(_) => return Ok(()),
                }
            }
            loop {
                match self.commands.try_recv() {
                    Ok(command) => self.take(command)?,
                    Err(TryRecvError::Empty) => break,
                    // All tickets are gone, so nobody reads what is left.
                    Err(TryRecvError::Disconnected) => return Ok(()),
                }
            }
            self.admit()?;
            self.step()?;
            self.report();
        }
    }

    fn take(&mut self, command: Command) -> Result<()> {
        match command {
            Command::Start(id, job, since, events) => {
                let before = self.waiting.len();
                self.waiting.extend(sequences(id, *job, since, self.next, &events));
                self.next += (self.waiting.len() - before) as u64;
                Ok(())
            }
            Command::Cancel(job, choice) => {
                let meant = |sequence: &Sequence| {
                    sequence.job == job && choice.is_none_or(|choice| choice == sequence.choice)
                };
                // A single choice is ended only when its text is complete, so it is not counted.
                let cancelled = u64::from(choice.is_none());
                let metrics = &self.metrics;
                self.waiting.retain(|sequence| {
                    let stays = !meant(sequence);
                    if !stays {
                        metrics.cancelled.fetch_add(cancelled, Relaxed);
                        if !sequence.begun {
                            metrics.waiting.fetch_sub(1, AcqRel);
                        }
                    }
                    stays
                });
                while let Some(index) = self.running.iter().position(|running| meant(&running.sequence)) {
                    self.metrics.cancelled.fetch_add(cancelled, Relaxed);
                    self.release(index)?;
                }
                self.report();
                Ok(())
            }
        }
    }

    /// Puts waiting sequences into the batch while there are rows and blocks for their tokens.
    fn admit(&mut self) -> Result<()> {
        while let Some(sequence) = self.waiting.front() {
            let Some(row) = self.free_rows.iter().position(|&free| free) else { return Ok(()) };
            // The others of a job wait until the first has computed their common prompt.
            let all_but_last = sequence.tokens.len() - 1;
            let leader = self.running.iter().find(|running| Some(running.sequence.order) == sequence.leader);
            let ready = leader.is_none_or(|leader| leader.cached >= all_but_last);
            if !ready && !sequence.begun {
                return Ok(());
            }
            let fork = leader.filter(|_| !sequence.begun).map(|leader| leader.id);
            // At least one token must run, because its logits are wanted.
            let (found, chain) = self.prefixes.find(&sequence.tokens[..all_but_last]);
            let shared = if fork.is_some() { all_but_last / BLOCK } else { found.len() };
            let blocks = self.paged.sequences();
            // What the others' tokens still lack: blocks are taken only when a step needs them. And
            // a block for each of the others at least.
            let mut lacked = 0;
            for other in &self.running {
                let all = (other.sequence.tokens.len() + other.unread + 1).div_ceil(BLOCK);
                lacked += all.saturating_sub(blocks.blocks_of(other.id)?.len()).max(1);
            }
            // Room for the next token too.
            let needed = (sequence.tokens.len() + 1).div_ceil(BLOCK) - shared + lacked;
            if !self.running.is_empty() && needed > blocks.blocks_free() {
                let is_taken = |block: &&u32| fork.is_none() && blocks.holders(**block) == 1;
                let taken = found.iter().filter(is_taken).count();
                if needed + taken > blocks.blocks_free() + self.prefixes.unused(blocks) {
                    return Ok(());
                }
            }
            let (id, cached, chain) = match fork {
                // The tree may have other blocks than the leader.
                Some(leader) => (blocks.fork(leader, all_but_last)?, all_but_last, Chain::default()),
                None => (blocks.adopt(&found)?, found.len() * BLOCK, chain),
            };
            let Some(mut sequence) = self.waiting.pop_front() else { return Ok(()) };
            if !sequence.begun {
                sequence.begun = true;
                self.metrics.waiting.fetch_sub(1, AcqRel);
                self.metrics.reused_tokens.fetch_add(cached as u64, Relaxed);
                sequence.send(Event::Begun { choice: sequence.choice, reused: cached });
            }
            self.free_rows[row] = false;
            self.running.push(Running { sequence, id, row, cached, unread: 0, chain, set: false });
        }
        Ok(())
    }

    /// A token of each sequence that is up to date, and pieces of the others up to the limit.
    fn plan(&self) -> Vec<Share> {
        let mut order: Vec<usize> = (0..self.running.len()).collect();
        order.retain(|&index| !self.running[index].is_complete());
        order.sort_by_key(|&index| (self.running[index].rest() > 1, self.running[index].sequence.order));
        let mut left = self.limits.step;
        let mut shares = Vec::new();
        for index in order {
            let tokens = self.running[index].rest().min(left);
            if tokens > 0 {
                left -= tokens;
                shares.push((index, tokens));
            }
        }
        // Drawn tokens then lie in the order of their rows, mostly.
        shares.sort_by_key(|&(index, _)| self.running[index].row);
        shares
    }

    /// Launches a step, and then reads what the step before has drawn. So the device has work while
    /// the host plans.
    fn step(&mut self) -> Result<()> {
        let launched = self.launch()?;
        if let Some(flight) = std::mem::replace(&mut self.flight, launched) {
            self.land(flight)?;
        }
        Ok(())
    }

    /// Runs the model once. Returns what is drawn, if anything is.
    fn launch(&mut self) -> Result<Option<Flight>> {
        let (shares, drawn, logits) = loop {
            let shares = self.plan();
            if shares.is_empty() {
                return Ok(None);
            }
            // The shares whose next token is drawn, and the share of each row. Rows without a draw
            // repeat another's: what is drawn there is not used, and the row is set again later.
            let drawn: Vec<usize> = (0..shares.len())
                .filter(|&share| self.running[shares[share].0].rest() == shares[share].1)
                .collect();
            let row_of = |share: usize| self.running[shares[share].0].row;
            let rows = drawn.iter().map(|&share| row_of(share) + 1).max().unwrap_or(0);
            let mut wanted = vec![drawn.first().copied().unwrap_or(0); rows];
            drawn.iter().for_each(|&share| wanted[row_of(share)] = share);
            let piece = |&(index, tokens): &Share| {
                let running = &self.running[index];
                Piece { sequence: running.id, tokens: running.next(tokens) }
            };
            let pieces: Vec<Piece> = shares.iter().map(piece).collect();
            match self.model.forward_batch(&pieces, &wanted, &mut self.paged, &self.state) {
                Ok(logits) => break (shares, drawn, logits),
                Err(Error::Cache(CacheError::OutOfBlocks { needed, free })) => {
                    self.make_room(needed.saturating_sub(free).max(1))?;
                }
                Err(error) => return Err(error),
            }
        };
        self.metrics.steps.fetch_add(1, Relaxed);
        for &(index, tokens) in &shares {
            let running = &mut self.running[index];
            let of_prompt = running.sequence.prompt.saturating_sub(running.cached).min(tokens);
            self.metrics.prompt_tokens.fetch_add(of_prompt as u64, Relaxed);
            running.cached += tokens;
            let Running { sequence, id, cached, chain, .. } = running;
            let known = &sequence.tokens[..sequence.tokens.len().min(*cached)];
            self.prefixes.extend(chain, known, *id, self.paged.sequences())?;
        }
        let Some(logits) = logits else { return Ok(None) };
        let drawn: Vec<usize> = drawn.into_iter().map(|share| shares[share].0).collect();
        self.draw(logits, &drawn).map(Some)
    }

    /// Draws the next tokens of these sequences.
    fn draw(&mut self, logits: Tensor<B, 2>, drawn: &[usize]) -> Result<Flight> {
        for &index in drawn {
            let Running { sequence, row, set, unread, .. } = &mut self.running[index];
            *unread += 1;
            if !std::mem::replace(set, true) {
                let (prompt, answer) = sequence.tokens.split_at(sequence.prompt);
                self.state.resume(*row, &sequence.sampling, prompt, answer)?;
            }
        }
        let (mut asking, mut rows, mut most) = (Vec::new(), Vec::new(), 0);
        for Running { sequence, row, .. } in drawn.iter().map(|&index| &self.running[index]) {
            // The drawn token's own probability comes with it.
            if let Some(count) = sequence.chances.filter(|&count| count > 0) {
                asking.push(sequence.order);
                rows.push(*row as i32);
                most = most.max(count);
            }
        }
        let drawn = drawn.iter().map(|&index| self.running[index].sequence.order).collect();
        let state = self.state.first(logits.dims()[0])?;
        decode::sample(logits.clone().into_primitive().tensor(), &state)?;
        let draws = state.begin_read()?;
        // The next step overwrites the tokens, so they are taken before it. The draw's memory is free
        // again for the sort.
        let largest = (!rows.is_empty()).then(|| {
            let tokens = Tensor::<B, 1, Int>::from_primitive(self.state.tokens());
            LateLargest::begin(&logits, &tokens, &rows, most)
        });
        Ok(Flight { draws, drawn, asking, largest: largest.transpose()? })
    }

    /// Reads what was drawn.
    fn land(&mut self, flight: Flight) -> Result<()> {
        let Flight { draws, drawn, asking, largest } = flight;
        let draws = draws.wait()?;
        let largest = largest.map(LateLargest::wait).transpose()?.unwrap_or_default();
        let now = Instant::now();
        let mut ended = Vec::new();
        for order in drawn {
            // It may have ended meanwhile.
            let found = self.running.iter_mut().find(|running| running.sequence.order == order);
            let Some(Running { sequence, row, unread, .. }) = found else { continue };
            *unread -= 1;
            let Some(&Draw { token, chance }) = draws.get(*row) else { continue };
            // A NaN among the logits makes the probability NaN.
            let Some(chance) = chance.filter(|chance| !chance.is_nan()) else {
                ended.push((order, End::Failed(Error::NotNumbers.to_string())));
                continue;
            };
            let at = asking.iter().position(|&asking| asking == order);
            let chances = sequence.chances.map(|count| match at {
                Some(at) => largest.of_row(at, chance, count),
                None => Chances { drawn: chance, best: Vec::new() },
            });
            let times = if sequence.drawn() == 0 { &self.metrics.first } else { &self.metrics.between };
            times.count(now - sequence.since);
            sequence.since = now;
            self.metrics.generated_tokens.fetch_add(1, Relaxed);
            if let Some(why) = sequence.push(token, chances) {
                ended.push((order, why));
            }
        }
        for (order, why) in ended {
            if let Some(index) = self.running.iter().position(|running| running.sequence.order == order) {
                self.end(index, why)?;
            }
        }
        Ok(())
    }

    /// Frees blocks: of prefixes that no sequence has, or else of the sequence that came last.
    fn make_room(&mut self, blocks: usize) -> Result<()> {
        // Some more at once, because looking for them takes time.
        let more = blocks.max(self.limits.rows);
        if self.prefixes.evict(more, self.paged.sequences())? >= blocks {
            return Ok(());
        }
        // Its sequences may end, and one that gives its blocks back has no unread token then.
        if let Some(flight) = self.flight.take() {
            return self.land(flight);
        }
        let last = (0..self.running.len()).max_by_key(|&index| self.running[index].sequence.order);
        let Some(last) = last else { return Ok(()) };
        if self.running.len() == 1 {
            // The limit of a sequence is that of the cache, and other blocks are free now. So this
            // can't be.
            return self.end(last, End::Failed("the cache has too few blocks".to_owned()));
        }
        self.metrics.preemptions.fetch_add(1, Relaxed);
        let sequence = self.release(last)?;
        let at = self.waiting.partition_point(|waiting| waiting.order < sequence.order);
        self.waiting.insert(at, sequence);
        Ok(())
    }

    /// Ends a sequence.
    fn end(&mut self, index: usize, why: End) -> Result<()> {
        let sequence = self.release(index)?;
        sequence.send(Event::End { choice: sequence.choice, why });
        Ok(())
    }

    /// Takes a sequence out of the batch.
    fn release(&mut self, index: usize) -> Result<Sequence> {
        let Running { sequence, id, row, .. } = self.running.remove(index);
        self.paged.sequences().free(id)?;
        self.free_rows[row] = true;
        Ok(sequence)
    }

    fn report(&mut self) {
        let blocks = self.paged.sequences();
        let metrics = &self.metrics;
        if self.running.is_empty() {
            metrics.blocks_lost.store(self.prefixes.len() - self.prefixes.unused(blocks), Relaxed);
        }
        metrics.preempted.store(self.waiting.iter().filter(|sequence| sequence.begun).count(), Relaxed);
        metrics.blocks_used.store(blocks.blocks() - blocks.blocks_free(), Relaxed);
        metrics.blocks_kept.store(self.prefixes.len(), Relaxed);
        // Whoever sees that none runs sees the others' numbers too.
        metrics.running.store(self.running.len(), Release);
    }
}
