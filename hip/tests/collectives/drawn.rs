//! Drawn sequences of collectives, held against f64.

use std::sync::Arc;

use crate::failures::GOES_ON;
use crate::random::Random;
use hip::{Buffer, Communicator, DType, Device, Group, Part, ReduceOp};

use crate::ranks::{Ranks, on_processes, on_threads};
use crate::values::{MOVED, OPS, REDUCED, check, draw};

/// The collectives of a long sequence.
const STEPS: usize = 1000;
/// The number of short sequences.
const SEQUENCES: u64 = 1000;
/// After at most so many collectives, a short sequence ends with those that are issued or captured together.
const SHORT: usize = 8;

/// A sequence, the same for all ranks.
#[derive(Clone, Copy)]
struct Drawn {
    seed: u64,
    /// It ends after so many collectives, and those that are issued or captured together with the last.
    steps: usize,
    /// Counts are drawn below this.
    most: usize,
}

impl Drawn {
    fn long(seed: u64, steps: usize) -> Self {
        Self { seed, steps, most: 20_000 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    AllReduce,
    Broadcast,
    Reduce,
    AllGather,
    ReduceScatter,
    /// Every rank sends to the one that is this much higher, and receives from the other side.
    Ring(usize),
}

/// One step, the same for all ranks.
#[derive(Clone, Debug)]
struct Step {
    kind: Kind,
    op: ReduceOp,
    dtype: DType,
    count: usize,
    root: usize,
    in_place: bool,
    /// Elements before each range in its buffer.
    offset: usize,
    /// What each rank gives.
    given: Vec<Vec<u8>>,
}

impl Step {
    fn draw(random: &Random, size: usize, most: usize) -> Self {
        let kinds = [Kind::AllReduce, Kind::Broadcast, Kind::Reduce, Kind::AllGather, Kind::ReduceScatter];
        let kind = match random.below(6) {
            5 => Kind::Ring(random.below(size)),
            other => kinds[other],
        };
        let moves = matches!(kind, Kind::Broadcast | Kind::AllGather | Kind::Ring(_));
        let dtypes = if moves { [&REDUCED[..], &MOVED].concat() } else { REDUCED.to_vec() };
        let dtype = dtypes[random.below(dtypes.len())];
        // Often around the edges of vectors and blocks, sometimes nothing, sometimes more.
        let count = match random.below(10) {
            0 => 0,
            1 => 1,
            2..=6 => random.below(70),
            7 | 8 => 1000 + random.below(100),
            _ => random.below(most),
        };
        let elements = if kind == Kind::ReduceScatter { size * count } else { count };
        Self {
            kind,
            op: OPS[random.below(OPS.len())],
            dtype,
            count,
            root: random.below(size),
            in_place: random.below(2) == 0 && !matches!(kind, Kind::Ring(_)),
            offset: random.below(3),
            given: (0..size).map(|_| draw(random, dtype, elements)).collect(),
        }
    }

    /// This rank's buffer for what it gives, with its offset. For a call in place, the buffer has
    /// room for the result too.
    fn buffers(&self, device: &Arc<Device>, rank: usize, size: usize) -> Memory {
        let bytes = self.dtype.size();
        let head = vec![0x5a; self.offset * bytes];
        let upload = |bytes: &[u8]| Arc::new(device.upload(&[bytes, &TAIL].concat()).unwrap());
        let given = &self.given[rank];
        let results = if self.kind == Kind::AllGather { size * self.count } else { self.count };
        if !self.in_place {
            let send = upload(&[&head[..], given].concat());
            let recv = upload(&[&head[..], &vec![0xa5; results * bytes]].concat());
            return Memory { send, recv, from: self.offset, to: self.offset };
        }
        let own = rank * self.count;
        match self.kind {
            Kind::AllGather => {
                let mut all = [&head[..], &vec![0xa5; results * bytes]].concat();
                all[(self.offset + own) * bytes..][..given.len()].copy_from_slice(given);
                let both = upload(&all);
                Memory { send: both.clone(), recv: both, from: self.offset + own, to: self.offset }
            }
            Kind::ReduceScatter => {
                let both = upload(&[&head[..], given].concat());
                Memory { send: both.clone(), recv: both, from: self.offset, to: self.offset + own }
            }
            _ => {
                let both = upload(&[&head[..], given].concat());
                Memory { send: both.clone(), recv: both, from: self.offset, to: self.offset }
            }
        }
    }

    fn add<'a>(&self, group: &mut Group<'a>, on: &'a Communicator, memory: &Memory) {
        let (send, recv) = (Part::at(&memory.send, memory.from), Part::at(&memory.recv, memory.to));
        let Self { op, dtype, count, root, .. } = *self;
        let size = on.size();
        match self.kind {
            Kind::AllReduce => group.all_reduce(on, op, dtype, count, send, recv),
            Kind::Broadcast => group.broadcast(on, dtype, count, root, send, recv),
            Kind::Reduce => group.reduce(on, op, dtype, count, root, send, recv),
            Kind::AllGather => group.all_gather(on, dtype, count, send, recv),
            Kind::ReduceScatter => group.reduce_scatter(on, op, dtype, count, send, recv),
            Kind::Ring(by) => {
                let (to, from) = ((on.rank() + by) % size, (on.rank() + size - by) % size);
                let sent = group.send(on, dtype, count, to, send);
                sent.and_then(|()| group.receive(on, dtype, count, from, recv))
            }
        }
        .unwrap();
    }

    /// Makes the call alone and joins it, if there is a method for that.
    fn joined(&self, on: &Communicator, memory: &Memory) -> bool {
        let (send, recv) = (Part::at(&memory.send, memory.from), Part::at(&memory.recv, memory.to));
        match self.kind {
            Kind::AllReduce => on.all_reduce_joined(self.op, self.dtype, self.count, send, recv).unwrap(),
            Kind::AllGather => on.all_gather_joined(self.dtype, self.count, send, recv).unwrap(),
            _ => return false,
        }
        true
    }

    fn verify(&self, what: &str, device: &Device, rank: usize, memory: &Memory) {
        let bytes = self.dtype.size();
        let size = self.given.len();
        let results = if self.kind == Kind::AllGather { size * self.count } else { self.count };
        let mut found = vec![0; results * bytes];
        device.read(&memory.recv, memory.to * bytes, &mut found).unwrap();
        let mut tail = [0; TAIL.len()];
        device.read(&memory.recv, memory.recv.len() - TAIL.len(), &mut tail).unwrap();
        assert_eq!(tail, TAIL, "{what}: what lies behind the result was written");
        let mut head = vec![0; self.offset * bytes];
        device.read(&memory.recv, 0, &mut head).unwrap();
        assert!(head.iter().all(|&byte| byte == 0x5a), "{what}: what lies before the result was written");
        let reduced = (self.op, self.dtype, self.count);
        match self.kind {
            Kind::AllReduce => check(what, reduced, &self.given, 0, &found),
            Kind::ReduceScatter => check(what, reduced, &self.given, rank * self.count, &found),
            Kind::Reduce if rank == self.root => check(what, reduced, &self.given, 0, &found),
            Kind::Reduce if self.in_place => assert_eq!(found, self.given[rank], "{what}: not the root"),
            Kind::Reduce => assert!(found.iter().all(|&byte| byte == 0xa5), "{what}: not the root"),
            Kind::Broadcast => assert_eq!(found, self.given[self.root], "{what}"),
            Kind::AllGather => assert_eq!(found, self.given.concat(), "{what}"),
            Kind::Ring(by) => assert_eq!(found, self.given[(rank + size - by) % size], "{what}"),
        }
    }
}

/// The last bytes of each buffer.
const TAIL: [u8; 16] = [0x5a; 16];

/// A rank's buffers for a step, with its first elements in them.
struct Memory {
    send: Arc<Buffer>,
    recv: Arc<Buffer>,
    from: usize,
    to: usize,
}

/// Runs a sequence as one rank. One to three steps are issued together.
fn sequence(on: &Communicator, drawn: Drawn) {
    let (rank, size, device) = (on.rank(), on.size(), on.device());
    let random = Random::from_seed(drawn.seed);
    let mut done = 0;
    while done < drawn.steps {
        let steps: Vec<_> = (0..1 + random.below(3)).map(|_| Step::draw(&random, size, drawn.most)).collect();
        let memory: Vec<_> = steps.iter().map(|step| step.buffers(device, rank, size)).collect();
        let how = random.below(3);
        let joined = how == 0 && steps.len() == 1 && steps[0].joined(on, &memory[0]);
        if !joined {
            let mut group = Group::new();
            for (step, memory) in steps.iter().zip(&memory) {
                step.add(&mut group, on, memory);
            }
            let work = group.start().unwrap();
            if how < 2 { work.join() } else { work.wait() }.unwrap();
        }
        for (step, memory) in steps.iter().zip(&memory) {
            let Step { kind, op, dtype, count, root, in_place, offset, .. } = step;
            let what = format!(
                "seed {}, step {done}, rank {rank} of {size}: {kind:?} {op:?} {dtype:?} x {count}, root {root}, \
                 in place {in_place}, offset {offset}",
                drawn.seed
            );
            step.verify(&what, device, rank, memory);
            done += 1;
        }
    }
}

/// As [`sequence`], in graphs: each has one to four groups of steps, and is replayed twice. A group is
/// joined at once, at the end of the capture, or after it; a step alone also by the call itself.
fn captured_sequence(on: &Communicator, drawn: Drawn) {
    let (rank, size, device) = (on.rank(), on.size(), on.device());
    let random = Random::from_seed(drawn.seed);
    let mut done = 0;
    while done < drawn.steps {
        let groups: Vec<Vec<_>> = (0..1 + random.below(4))
            .map(|_| (0..1 + random.below(3)).map(|_| Step::draw(&random, size, drawn.most)).collect())
            .collect();
        let steps: Vec<&Step> = groups.iter().flatten().collect();
        let memory: Vec<_> = steps.iter().map(|step| step.buffers(device, rank, size)).collect();
        let contents = |buffer: &Arc<Buffer>| {
            let mut bytes = vec![0; buffer.len()];
            device.read(buffer, 0, &mut bytes).unwrap();
            bytes
        };
        let before: Vec<_> = memory.iter().map(|memory| [&memory.send, &memory.recv].map(contents)).collect();
        let mut next = memory.iter();
        let (mut late, mut later) = (Vec::new(), Vec::new());
        device.start_capture().unwrap();
        for steps in &groups {
            let how = random.below(4);
            let memory: Vec<_> = next.by_ref().take(steps.len()).collect();
            if how == 0 && steps.len() == 1 && steps[0].joined(on, memory[0]) {
                continue;
            }
            let mut group = Group::new();
            for (step, memory) in steps.iter().zip(memory) {
                step.add(&mut group, on, memory);
            }
            let work = group.start().unwrap();
            match how {
                0 | 1 => work.join().unwrap(),
                2 => late.push(work),
                _ => later.push(work),
            }
        }
        late.into_iter().for_each(|work| work.join().unwrap());
        let graph = device.stop_capture().unwrap();
        later.into_iter().for_each(|work| work.join().unwrap());
        for replay in 0..2 {
            for (memory, [send, recv]) in memory.iter().zip(&before) {
                for (buffer, bytes) in [(&memory.send, send), (&memory.recv, recv)] {
                    let fresh = device.upload(bytes).unwrap();
                    device.copy(&fresh, 0, buffer, 0, bytes.len()).unwrap();
                }
            }
            graph.replay().unwrap();
            for (step, memory) in steps.iter().zip(&memory) {
                let Step { kind, op, dtype, count, root, in_place, offset, .. } = step;
                let what = format!(
                    "seed {}, graph of step {done}, replay {replay}, rank {rank} of {size}: {kind:?} {op:?} \
                     {dtype:?} x {count}, root {root}, in place {in_place}, offset {offset}",
                    drawn.seed
                );
                step.verify(&what, device, rank, memory);
            }
        }
        done += steps.len();
    }
}

fn long(ranks: &Ranks) {
    sequence(&ranks.communicator, Drawn::long(ranks.seed, STEPS));
}

fn long_captured(ranks: &Ranks) {
    captured_sequence(&ranks.communicator, Drawn::long(ranks.seed, STEPS / 4));
}

/// Runs many sequences on one group, each with a seed of its own. Every fourth is captured.
fn short(ranks: &Ranks) {
    for number in 0..SEQUENCES {
        let seed = ranks.seed.wrapping_add(number);
        // Not the number from which the sequence draws first.
        let steps = 1 + Random::from_seed(!seed).below(SHORT);
        let drawn = Drawn { seed, steps, most: 2_000 };
        match number % 4 {
            3 => captured_sequence(&ranks.communicator, drawn),
            _ => sequence(&ranks.communicator, drawn),
        }
    }
}

#[test]
fn captured_sequences_between_threads() {
    on_threads("drawn::captured_sequences_between_threads", &[], |ranks| long_captured(&ranks));
}

#[test]
fn captured_sequences_between_processes() {
    on_processes("drawn::captured_sequences_between_processes", &[], &[], |ranks| long_captured(&ranks));
}

/// Captures and replays are compared too.
#[test]
fn captured_sequences_that_are_compared() {
    const TEST: &str = "drawn::captured_sequences_that_are_compared";
    let compared = [("BURN_ROCM_COLLECTIVE_CHECK", "1")];
    on_processes(TEST, &compared, &[], |ranks| long_captured(&ranks));
}

#[test]
fn sequences_between_threads() {
    on_threads("drawn::sequences_between_threads", &[], |ranks| long(&ranks));
}

#[test]
fn sequences_between_processes() {
    on_processes("drawn::sequences_between_processes", &[], &[], |ranks| long(&ranks));
}

/// The check between processes changes no result.
#[test]
fn sequences_that_are_compared() {
    let compared = [("BURN_ROCM_COLLECTIVE_CHECK", "1")];
    on_processes("drawn::sequences_that_are_compared", &compared, &[], |ranks| long(&ranks));
}

#[test]
fn a_thousand_short_sequences_between_threads() {
    on_threads("drawn::a_thousand_short_sequences_between_threads", &[], |ranks| short(&ranks));
}

#[test]
fn a_thousand_short_sequences_between_processes() {
    const TEST: &str = "drawn::a_thousand_short_sequences_between_processes";
    on_processes(TEST, &[], &[], |ranks| short(&ranks));
}

/// Of a library whose calls return before they are done.
fn shorter(ranks: &Ranks) {
    sequence(&ranks.communicator, Drawn::long(ranks.seed, STEPS / 4));
    captured_sequence(&ranks.communicator, Drawn::long(!ranks.seed, STEPS / 16));
}

#[test]
fn sequences_of_calls_that_go_on_between_threads() {
    on_threads("drawn::sequences_of_calls_that_go_on_between_threads", &[GOES_ON], |ranks| shorter(&ranks));
}

#[test]
fn sequences_of_calls_that_go_on_between_processes() {
    const TEST: &str = "drawn::sequences_of_calls_that_go_on_between_processes";
    on_processes(TEST, &[GOES_ON], &[], |ranks| shorter(&ranks));
}
