//! Spans and events of the crate `tracing`: ops, regions, graphs, compilations.
//!
//! The tests take turns, because a graph's capture and a compilation's cache are shared.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};

use burn_rocm::graph::Graph;
use burn_rocm::{RocmDevice, RocmTensor, region};
use burn_rocm_tests::*;
use serial_test::serial;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;

type Fields = BTreeMap<&'static str, String>;

/// What a subscriber saw: the spans' names with their fields, those that were entered around each,
/// and events.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(String, Fields)>>>);

struct Read<'a>(&'a mut Fields);

impl Visit for Read<'_> {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.insert(field.name(), value.to_owned());
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.insert(field.name(), format!("{value:?}"));
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, id: &Id, context: Context<'_, S>) {
        let metadata = attributes.metadata();
        if metadata.target() != "burn_rocm" {
            return;
        }
        assert_eq!(*metadata.level(), Level::TRACE);
        let mut fields = Fields::new();
        attributes.record(&mut Read(&mut fields));
        let scope = context.span_scope(id).unwrap().skip(1).map(|span| span.name());
        fields.insert("inside", scope.collect::<Vec<_>>().join(" "));
        self.0.lock().unwrap().push((metadata.name().to_owned(), fields));
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "burn_rocm" {
            let mut fields = Fields::new();
            event.record(&mut Read(&mut fields));
            self.0.lock().unwrap().push(("event".to_owned(), fields));
        }
    }
}

/// What this thread's work shows to a subscriber.
fn seen<T>(body: impl FnOnce() -> T) -> (T, Vec<(String, Fields)>) {
    let seen = Seen::default();
    let subscriber = tracing_subscriber::registry().with(seen.clone());
    let result = tracing::subscriber::with_default(subscriber, body);
    let all = std::mem::take(&mut *seen.0.lock().unwrap());
    (result, all)
}

fn ones(shape: &[usize]) -> RocmTensor {
    R::float_ones(Shape::from(shape.to_vec()), &RocmDevice::default(), FloatDType::F32)
}

fn named<'a>(all: &'a [(String, Fields)], kind: &str) -> Vec<&'a Fields> {
    all.iter().filter(|(name, _)| name == kind).map(|(_, fields)| fields).collect()
}

#[test]
#[serial]
fn each_op_is_a_span_inside_its_regions() {
    let (a, b) = (ones(&[30, 50]), ones(&[50, 70]));
    let (product, all) = seen(|| {
        let _train = region("train");
        let _forward = region("forward");
        R::float_matmul(a, b)
    });
    let regions = named(&all, "region");
    let names: Vec<_> = regions.iter().map(|fields| (&*fields["region"], &*fields["inside"])).collect();
    assert_eq!(names, [("train", ""), ("forward", "region")]);
    let ops = named(&all, "op");
    let [op] = ops[..] else { panic!("{all:?}") };
    for (field, value) in [
        ("op", "float_matmul"),
        ("otel.name", "float_matmul"),
        ("dtype", "f32"),
        ("shapes", "[30, 50] [50, 70]"),
        ("inside", "region region"),
    ] {
        assert_eq!(op[field], value, "{op:?}");
    }
    // Reads are ops, and what comes after the subscriber is none of its.
    let (data, all) = seen(|| read_float::<R>(product.clone()));
    assert_eq!(data.to_vec::<f32>().unwrap()[0], 50.0);
    assert_eq!(named(&all, "op").len(), 1, "{all:?}");
    let ((), all) = seen(|| ());
    drop(R::float_exp(product));
    assert_eq!(all, []);
}

#[test]
#[serial]
fn a_panic_ends_its_span() {
    let (a, b) = (ones(&[3, 5]), ones(&[7, 9]));
    let ((), all) = seen(|| {
        let body = || R::float_matmul(a.clone(), b.clone());
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).is_err());
        drop(R::float_exp(a.clone()));
    });
    let ops = named(&all, "op");
    let inside: Vec<_> = ops.iter().map(|fields| (&*fields["op"], &*fields["inside"])).collect();
    assert_eq!(inside, [("float_matmul", ""), ("float_exp", "")]);
}

#[test]
#[serial]
fn a_replay_is_a_span_that_says_what_it_runs() {
    let x = ones(&[2000, 1100]);
    let (graph, _out) = Graph::capture_after(&RocmDevice::default(), 1, || R::float_exp(x.clone())).unwrap();
    let ((), all) = seen(|| (0..2).for_each(|_| graph.replay().unwrap()));
    let graphs = named(&all, "graph");
    assert_eq!((graphs.len(), all.len()), (2, 2), "{all:?}");
    let name = format!("graph {}", graphs[0]["number"]);
    assert_eq!((&graphs[0]["otel.name"], graphs[0]), (&name, graphs[1]));
    assert!(graphs[0]["runs"].starts_with("a graph of 1 kernels"), "{graphs:?}");
}

/// On the CPU device the C++ compiler has built the kernels before the program runs.
#[test]
#[serial]
fn a_compilation_is_an_event() {
    let source =
        format!("// {:?}\nextern \"C\" __global__ void empty() {{}}\n", std::time::SystemTime::now());
    let device = hip::Device::get(0).unwrap();
    let program = hip::Program { name: "spans.hip", source: &source, headers: &[], options: &[] };
    let (kernel, all) = seen(|| device.kernel(&program, "empty"));
    kernel.unwrap();
    let events = named(&all, "event");
    let [event] = events[..] else { panic!("{all:?}") };
    assert_eq!((&*event["message"], &*event["kernel"]), ("compiled", "empty"));
    assert!(event["milliseconds"].parse::<f64>().unwrap() > 0.0, "{event:?}");
}
