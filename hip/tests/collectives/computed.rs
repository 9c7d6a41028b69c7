//! What each call computes: every dtype and reduction, and one thread that drives all ranks.

use std::sync::Arc;

use crate::random::Random;
use hip::{Communicator, DType, Device, Error, Fp8, Group, Part, ReduceOp};

use crate::ranks::{in_child, on_cpu, on_threads};
use crate::values::{MOVED, OPS, REDUCED, check, draw, ordered_sum};

#[test]
fn every_dtype_and_reduction() {
    on_threads("computed::every_dtype_and_reduction", &[], |ranks| {
        let on = &ranks.communicator;
        let (rank, size, device) = (on.rank(), on.size(), on.device());
        let random = Random::from_seed(ranks.seed);
        for dtype in REDUCED {
            for op in OPS {
                for count in [1, 33, 2500] {
                    let given: Vec<_> = (0..size).map(|_| draw(&random, dtype, size * count)).collect();
                    let send = Arc::new(device.upload(&given[rank]).unwrap());
                    let recv = Arc::new(device.alloc(size * count * dtype.size()).unwrap());
                    let (from, to) = (Part::whole(&send), Part::whole(&recv));
                    let read = |elements: usize| {
                        let mut found = vec![0; elements * dtype.size()];
                        device.read(&recv, 0, &mut found).unwrap();
                        found
                    };
                    on.all_reduce(op, dtype, size * count, from, to).unwrap().join().unwrap();
                    let found = read(size * count);
                    check("all_reduce", (op, dtype, size * count), &given, 0, &found);
                    if on_cpu() && op == ReduceOp::Sum && dtype.is_float() && dtype != DType::F64 {
                        assert_eq!(found, ordered_sum(dtype, &given, size * count), "{dtype:?}: the order");
                    }
                    on.reduce_scatter(op, dtype, count, from, to).unwrap().join().unwrap();
                    check("reduce_scatter", (op, dtype, count), &given, rank * count, &read(count));
                    for root in 0..size {
                        on.reduce(op, dtype, count, root, from, to).unwrap().join().unwrap();
                        if rank == root {
                            check("reduce", (op, dtype, count), &given, 0, &read(count));
                        }
                    }
                }
            }
        }
        for dtype in [&REDUCED[..], &MOVED].concat() {
            let given: Vec<_> = (0..size).map(|_| draw(&random, dtype, 77)).collect();
            let send = Arc::new(device.upload(&given[rank]).unwrap());
            let recv = Arc::new(device.alloc(size * 77 * dtype.size()).unwrap());
            let (from, to) = (Part::whole(&send), Part::whole(&recv));
            let mut found = vec![0; size * 77 * dtype.size()];
            on.all_gather(dtype, 77, from, to).unwrap().join().unwrap();
            device.read(&recv, 0, &mut found).unwrap();
            assert_eq!(found, given.concat(), "{dtype:?}");
            for (root, given) in given.iter().enumerate() {
                on.broadcast(dtype, 77, root, from, to).unwrap().join().unwrap();
                device.read(&recv, 0, &mut found[..77 * dtype.size()]).unwrap();
                assert_eq!(found[..77 * dtype.size()], given[..], "{dtype:?}");
            }
            // A plain send and receive, without a group: to the next rank from even ones, and back.
            if size.is_multiple_of(2) {
                let peer = rank ^ 1;
                for sends in [0, 1] {
                    if rank % 2 == sends {
                        on.send(dtype, 77, peer, from).unwrap().join().unwrap();
                    } else {
                        on.receive(dtype, 77, peer, to).unwrap().wait().unwrap();
                        device.read(&recv, 0, &mut found[..77 * dtype.size()]).unwrap();
                        assert_eq!(found[..77 * dtype.size()], given[peer], "{dtype:?}");
                    }
                }
            }
        }
        on.check().unwrap();
    });
}

#[test]
fn one_thread_drives_all_ranks() {
    let Some((seed, devices)) = in_child("computed::one_thread_drives_all_ranks", &[]) else { return };
    let ranks = Communicator::local(&devices).unwrap();
    let random = Random::from_seed(seed);
    for round in 0..20 {
        let count = random.below(5000);
        let given: Vec<_> = ranks.iter().map(|_| draw(&random, DType::F32, count)).collect();
        let buffers: Vec<_> = ranks
            .iter()
            .zip(&given)
            .map(|(on, given)| Arc::new(on.device().upload(given).unwrap()))
            .collect();
        let mut group = Group::new();
        for (on, buffer) in ranks.iter().zip(&buffers) {
            let part = Part::whole(buffer);
            group.all_reduce(on, ReduceOp::Sum, DType::F32, count, part, part).unwrap();
        }
        let work = group.start().unwrap();
        match round % 3 {
            0 => work.join().unwrap(),
            1 => work.wait().unwrap(),
            _ => drop(work),
        }
        for (on, buffer) in ranks.iter().zip(&buffers) {
            let mut found = vec![0; count * 4];
            on.device().read(buffer, 0, &mut found).unwrap();
            check(&format!("seed {seed}"), (ReduceOp::Sum, DType::F32, count), &given, 0, &found);
        }
    }
    // All ranks leave in one thread, one after the other.
    drop(ranks);
}

/// Each rank is in two groups, in reverse order in the second one.
#[test]
fn a_device_is_in_two_groups() {
    let Some((_, devices)) = in_child("computed::a_device_is_in_two_groups", &[]) else { return };
    let first = Communicator::local(&devices).unwrap();
    let back: Vec<_> = devices.iter().rev().cloned().collect();
    let second = Communicator::local(&back).unwrap();
    std::thread::scope(|scope| {
        for (on, device) in first.iter().zip(&devices) {
            let other = &second[devices.len() - 1 - on.rank()];
            scope.spawn(move || {
                assert_eq!(other.device().info().index, device.info().index);
                let buffer = Arc::new(device.upload(&[0; 1]).unwrap());
                for root in 0..on.size() {
                    for group in [on, other] {
                        let own = Arc::new(device.upload(&[group.rank() as u8]).unwrap());
                        let (from, to) = (Part::whole(&own), Part::whole(&buffer));
                        group.broadcast(DType::U8, 1, root, from, to).unwrap().join().unwrap();
                        let mut found = [99];
                        device.read(&buffer, 0, &mut found).unwrap();
                        assert_eq!(found, [root as u8]);
                    }
                }
            });
        }
    });
}

/// Work that is enqueued behind a join sees the result, and the memory of dropped buffers is not
/// reused under a collective. Only GPUs can fail this: a CPU device's call returns when it is done.
#[test]
fn buffers_may_be_dropped_before_the_join() {
    on_threads("computed::buffers_may_be_dropped_before_the_join", &[], |ranks| {
        let on = &ranks.communicator;
        let (rank, size, device) = (on.rank(), on.size(), on.device());
        const COUNT: usize = 1 << 18;
        for round in 0..20 {
            let value = (rank + round) as f32;
            let send = Arc::new(device.upload(&value.to_ne_bytes().repeat(COUNT)).unwrap());
            let recv = Arc::new(device.alloc(COUNT * 4).unwrap());
            let work = on
                .all_reduce(ReduceOp::Sum, DType::F32, COUNT, Part::whole(&send), Part::whole(&recv))
                .unwrap();
            drop(send);
            // Without the `Work`, this could get the memory of `send`.
            let other = device.upload(&(-1f32).to_ne_bytes().repeat(COUNT)).unwrap();
            work.join().unwrap();
            let mut found = vec![0; COUNT * 4];
            device.read(&recv, 0, &mut found).unwrap();
            let sum = (0..size).map(|rank| (rank + round) as f32).sum::<f32>();
            assert_eq!(found, sum.to_ne_bytes().repeat(COUNT), "round {round}");
            drop(other);
        }
    });
}

/// The number of a code. FNUZ's types have one NaN in place of -0, and their exponents are one less.
fn number(fp8: Fp8, code: u8) -> f64 {
    let (bits, bias) = match fp8 {
        Fp8::E4M3 => (3, 7),
        Fp8::E4M3Fnuz => (3, 8),
        Fp8::E5M2 => return half::f16::from_bits(u16::from(code) << 8).to_f64(),
        Fp8::E5M2Fnuz => (2, 16),
    };
    let is_nan = if fp8 == Fp8::E4M3 { code & 0x7f == 0x7f } else { code == 0x80 };
    if is_nan {
        return f64::NAN;
    }
    let one = 1u8 << bits;
    let (exponent, fraction) = (i32::from((code & 0x7f) / one), f64::from(code % one) / f64::from(one));
    let size = match exponent {
        0 => fraction * 2f64.powi(1 - bias),
        _ => (1.0 + fraction) * 2f64.powi(exponent - bias),
    };
    if code >= 0x80 { -size } else { size }
}

/// The types of fp8 that a device's library reduces.
fn family(device: &Device) -> &'static [Fp8] {
    let arch = &device.info().arch;
    let chip = arch.split(':').next().unwrap_or(arch);
    let of_nvidia = chip.strip_prefix("sm_").and_then(|version| version.parse::<u32>().ok());
    match chip {
        "gfx942" => &[Fp8::E4M3Fnuz, Fp8::E5M2Fnuz],
        "gfx950" | "gfx1200" | "gfx1201" => &[Fp8::E4M3, Fp8::E5M2],
        _ if chip.starts_with("gfx") || of_nvidia.is_some_and(|version| version < 90) => &[],
        _ => &[Fp8::E4M3, Fp8::E5M2],
    }
}

/// fp8 is reduced and moved. A sum of n terms in any order and in the type itself errs as `check` in
/// `values.rs` says, with half a unit in the last place of 2^-4 or 2^-3. All types are moved. A
/// reduction of a type that the device's library lacks is a typed error.
#[test]
fn fp8_is_reduced_and_moved() {
    on_threads("computed::fp8_is_reduced_and_moved", &[], |ranks| {
        let on = &ranks.communicator;
        let (rank, size, device) = (on.rank(), on.size(), on.device());
        let random = Random::from_seed(ranks.seed);
        const COUNT: usize = 500;
        let family = family(device);
        for (&fp8, u) in family.iter().zip([2f64.powi(-4), 2f64.powi(-3)]) {
            // The number of the smallest code.
            let least = number(fp8, 1);
            // Codes of numbers up to 2, so that no product of four is beyond 16.
            let codes: Vec<u8> = (0..=255).filter(|&code| number(fp8, code).abs() <= 2.0).collect();
            let draw = || (0..COUNT * size).map(|_| codes[random.below(codes.len())]).collect();
            let given: Vec<Vec<u8>> = (0..size).map(|_| draw()).collect();
            let send = Arc::new(device.upload(&given[rank]).unwrap());
            let recv = Arc::new(device.alloc(size * COUNT).unwrap());
            let (from, to) = (Part::whole(&send), Part::whole(&recv));
            let read = |bytes: usize| {
                let mut found = vec![0; bytes];
                device.read(&recv, 0, &mut found).unwrap();
                found
            };
            for op in OPS {
                on.all_reduce(op, fp8, size * COUNT, from, to).unwrap().join().unwrap();
                let all = read(size * COUNT);
                on.reduce_scatter(op, fp8, COUNT, from, to).unwrap().join().unwrap();
                for (at, code) in all.iter().chain(&read(COUNT)).enumerate() {
                    let at = if at < size * COUNT { at } else { rank * COUNT + at - size * COUNT };
                    let terms: Vec<f64> = given.iter().map(|given| number(fp8, given[at])).collect();
                    let magnitudes: f64 = terms.iter().map(|term| term.abs()).sum();
                    let roundings = (size + 3) as f64;
                    let (exact, bound) = match op {
                        ReduceOp::Sum => (terms.iter().sum(), roundings * u * magnitudes),
                        ReduceOp::Average => {
                            let mean = terms.iter().sum::<f64>() / size as f64;
                            (mean, roundings * u * magnitudes / size as f64)
                        }
                        ReduceOp::Product => {
                            let product: f64 = terms.iter().product();
                            (product, roundings * u * product.abs())
                        }
                        ReduceOp::Max => (terms.iter().copied().fold(f64::NEG_INFINITY, f64::max), 0.0),
                        ReduceOp::Min => (terms.iter().copied().fold(f64::INFINITY, f64::min), 0.0),
                    };
                    let under = if bound == 0.0 { 0.0 } else { roundings * least };
                    let found = number(fp8, *code);
                    let error = (found - exact).abs();
                    assert!(error <= bound + under, "{op:?} of {fp8:?}: {found}, not {exact} of {terms:?}");
                }
            }
        }
        for fp8 in [Fp8::E4M3, Fp8::E5M2, Fp8::E4M3Fnuz, Fp8::E5M2Fnuz] {
            let given: Vec<Vec<u8>> =
                (0..size).map(|rank| (0..=255).map(|i: u8| i ^ rank as u8).collect()).collect();
            let send = Arc::new(device.upload(&given[rank]).unwrap());
            let recv = Arc::new(device.alloc(size * 256).unwrap());
            let (from, to) = (Part::whole(&send), Part::whole(&recv));
            let mut found = vec![0; size * 256];
            on.all_gather(fp8, 256, from, to).unwrap().join().unwrap();
            device.read(&recv, 0, &mut found).unwrap();
            assert_eq!(found, given.concat(), "{fp8:?}");
            on.broadcast(fp8, 256, 1, from, to).unwrap().join().unwrap();
            device.read(&recv, 0, &mut found[..256]).unwrap();
            assert_eq!(found[..256], given[1][..], "{fp8:?}");
            if !family.contains(&fp8) {
                let error = on.all_reduce(ReduceOp::Sum, fp8, 256, from, to).map(drop).unwrap_err();
                assert!(
                    matches!(error, Error::Unsupported { op: "all_reduce", what: Some(_), .. }),
                    "{error}"
                );
                on.check().unwrap();
            }
        }
    });
}
