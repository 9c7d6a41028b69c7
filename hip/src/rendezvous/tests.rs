//! Processes are threads here: each has its own connections.

use std::net::TcpListener;
use std::thread;

use super::*;

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Long enough for a busy machine, and an end if something hangs.
fn join(world: &World) -> Result<Rendezvous> {
    Rendezvous::join_within(world, Duration::from_secs(60))
}

/// Joins as each of the worlds, at the same time.
fn join_all(worlds: Vec<World>) -> Vec<Result<Rendezvous>> {
    let threads: Vec<_> = worlds.into_iter().map(|world| thread::spawn(move || join(&world))).collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn worlds(size: usize, port: u16) -> Vec<World> {
    (0..size).map(|rank| World::on_this_machine(rank, size, port, "s")).collect()
}

#[test]
fn everybody_gets_everybodys_bytes_in_order() {
    let joined = join_all(worlds(4, free_port()));
    thread::scope(|scope| {
        for (rank, rendezvous) in joined.iter().enumerate() {
            scope.spawn(move || {
                let rendezvous = rendezvous.as_ref().unwrap();
                for round in 0..20 {
                    let own = vec![rank as u8; rank + round];
                    let all = rendezvous.gather(&own).unwrap();
                    let expected: Vec<_> = (0..4).map(|rank| vec![rank as u8; rank + round]).collect();
                    assert_eq!(all, expected);
                    assert_eq!(rendezvous.broadcast(&own).unwrap(), vec![0; round]);
                }
                rendezvous.barrier().unwrap();
            });
        }
    });
}

#[test]
fn a_taken_port_is_passed_over_and_strangers_are_ignored() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let (first, second) = (taken.local_addr().unwrap().port(), free_port());
    let mut worlds = worlds(3, first);
    worlds.iter_mut().for_each(|world| world.ports.push(second));
    // The holder of the first port answers nonsense.
    thread::spawn(move || {
        for link in taken.incoming().take(20).flatten() {
            let _ = (&link).write_all(b"HTTP/1.1 400 Bad Request");
        }
    });
    // A stranger sends nonsense to the second.
    thread::spawn(move || {
        for _ in 0..20 {
            if let Ok(mut link) = TcpStream::connect(("127.0.0.1", second)) {
                let _ = link.write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n");
                return;
            }
            sleep(AGAIN);
        }
    });
    for joined in join_all(worlds) {
        joined.unwrap();
    }
}

#[test]
fn another_size_and_a_taken_rank_are_refused_by_name() {
    let port = free_port();
    let join = move |rank, size| join(&World::on_this_machine(rank, size, port, "s"));
    let zero = thread::spawn(move || join(0, 3));
    let one = join(1, 3).unwrap();
    let error = join(1, 3).unwrap_err().to_string();
    assert!(error.contains("rank 1 is there already"), "{error}");
    let error = join(2, 4).unwrap_err().to_string();
    assert!(error.contains("rank 2 says that there are 4 processes, rank 0 says 3"), "{error}");
    let two = join(2, 3).unwrap();
    let zero = zero.join().unwrap().unwrap();
    let barriers = [zero, one, two].map(|rendezvous| thread::spawn(move || rendezvous.barrier()));
    barriers.into_iter().for_each(|barrier| barrier.join().unwrap().unwrap());
}

#[test]
fn another_job_is_refused_and_who_is_missing_is_named() {
    let port = free_port();
    let world = |rank, secret| World::on_this_machine(rank, 3, port, secret);
    thread::scope(|scope| {
        let zero = scope.spawn(|| Rendezvous::join_within(&world(0, "s"), Duration::from_secs(8)));
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            sleep(AGAIN);
        }
        // Its last try, if not its first, meets rank 0, which stays for longer.
        let error = Rendezvous::join_within(&world(2, "other"), Duration::from_secs(4)).unwrap_err();
        assert!(error.to_string().contains("another job: the secret differs"), "{error}");
        let error = zero.join().unwrap().unwrap_err().to_string();
        assert!(error.contains("rank 0 of 3 waited for ranks [1, 2]; it refused "), "{error}");
        assert!(error.contains("the secret differs") && error.len() < 800, "{error}");
    });
}

#[test]
fn a_rank_that_gave_up_and_comes_again_is_let_in() {
    let port = free_port();
    let zero = thread::spawn(move || join(&World::on_this_machine(0, 2, port, "s")));
    // Its greeting arrives, but it is gone before rank 0's answer.
    let world = World::on_this_machine(1, 2, port, "s");
    let stream = loop {
        match TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(_) => sleep(AGAIN),
        }
    };
    let mut link = Timed { link: &stream, until: Instant::now() + GREETING };
    let mut greeting = [&MAGIC[..], &1u32.to_le_bytes(), &2u32.to_le_bytes()].concat();
    greeting.extend((world.password().len() as u32).to_le_bytes());
    greeting.extend(world.password().as_bytes());
    link.write_all(&greeting).unwrap();
    drop(stream);
    let one = join(&world).unwrap();
    let zero = zero.join().unwrap().unwrap();
    let zero = thread::spawn(move || zero.barrier());
    one.barrier().unwrap();
    zero.join().unwrap().unwrap();
}

#[test]
fn a_stranger_who_sends_byte_by_byte_is_sent_away() {
    let port = free_port();
    thread::spawn(move || {
        loop {
            // Ends with an error: rank 0 sends it away, or does not listen yet.
            let _ = trickle(port);
            sleep(AGAIN);
        }
    });
    fn trickle(port: u16) -> io::Result<()> {
        let mut link = TcpStream::connect(("127.0.0.1", port))?;
        loop {
            link.write_all(b"x")?;
            sleep(GREETING / 4);
        }
    }
    sleep(AGAIN);
    for joined in join_all(worlds(2, port)) {
        joined.unwrap();
    }
}

#[test]
fn a_process_that_ends_is_an_error_for_the_others() {
    let mut joined: Vec<_> =
        join_all(worlds(3, free_port())).into_iter().map(|joined| joined.unwrap()).collect();
    drop(joined.remove(1));
    let errors: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = joined.iter().map(|left| scope.spawn(|| left.gather(b"x"))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err().to_string()).collect()
    });
    assert!(errors[0].contains("rank 0 and rank 1"), "{}", errors[0]);
    assert!(errors[1].contains("rank 2 and rank 0"), "{}", errors[1]);
    let again = joined[0].barrier().unwrap_err().to_string();
    assert!(again.contains("an earlier call failed"), "{again}");
}

/// A process with too many bytes ends the call for the others, long before the timeout of 60 seconds.
#[test]
fn too_many_bytes_are_an_error_for_all_at_once() {
    for refused in [0, 1, 2] {
        let joined: Vec<_> =
            join_all(worlds(3, free_port())).into_iter().map(|joined| joined.unwrap()).collect();
        let begun = Instant::now();
        let errors: Vec<_> = thread::scope(|scope| {
            let bytes = move |rank: usize| vec![7u8; if rank == refused { MOST_BYTES + 1 } else { 3 }];
            let ranks = joined.iter().enumerate();
            let threads: Vec<_> =
                ranks.map(|(rank, own)| scope.spawn(move || own.gather(&bytes(rank)))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap_err()).collect()
        });
        assert!(begun.elapsed() < Duration::from_secs(30), "{:?}: {errors:?}", begun.elapsed());
        for (rank, error) in errors.iter().enumerate() {
            match error {
                Error::Invalid { .. } => assert_eq!(rank, refused, "{error}"),
                Error::Collective { .. } => assert_ne!(rank, refused, "{error}"),
                other => panic!("{other}"),
            }
        }
        let again = joined[refused].barrier().unwrap_err().to_string();
        assert!(again.contains("an earlier call failed"), "{again}");
    }
}

/// Debian's `/etc/hosts` has 127.0.1.1 for a machine's own name, by which other machines reach another
/// address.
#[test]
fn a_machines_own_name_is_no_loopback() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let mut world = World::on_this_machine(0, 2, 1, "s");
    for (name, found, expected) in [
        ("n1", "127.0.1.1", "0.0.0.0"),
        ("n1.cluster", "127.0.0.1", "0.0.0.0"),
        ("n1", "::1", "::"),
        ("n1", "10.0.0.7", "10.0.0.7"),
        ("n1", "fd00::7", "fd00::7"),
        ("localhost", "127.0.0.1", "127.0.0.1"),
        ("LocalHost.", "::1", "::1"),
        ("localhost.localdomain", "127.0.0.1", "127.0.0.1"),
        ("ip6-localhost", "::1", "::1"),
        ("ip6-loopback", "::1", "::1"),
        ("localhost6", "::1", "::1"),
        ("127.0.1.1", "127.0.1.1", "127.0.1.1"),
        ("::1", "::1", "::1"),
    ] {
        (world.address, world.is_one_machine) = (name.into(), false);
        assert_eq!(listening(&world, ip(found)), ip(expected), "{name} {found}");
        // All processes reach the loopback, and no one else should.
        world.is_one_machine = true;
        assert_eq!(listening(&world, ip(found)), ip(found), "{name} {found}");
    }
}

#[test]
fn a_rank_past_the_size_and_an_endless_secret_are_refused() {
    let error = Rendezvous::join(&World::on_this_machine(2, 2, 1, "")).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let error = Rendezvous::join(&World::on_this_machine(0, usize::MAX, 1, "")).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
    let error = Rendezvous::join(&World::on_this_machine(0, 2, 1, &"x".repeat(5000))).unwrap_err();
    assert!(matches!(error, Error::Invalid { .. }), "{error}");
}

/// The others could not know which port the system gives to rank 0.
#[test]
fn port_0_is_for_one_process_only() {
    for rank in [0, 1] {
        let mut world = World::on_this_machine(rank, 2, 0, "");
        for ports in [vec![0], vec![1, 0]] {
            world.ports = ports;
            let error = Rendezvous::join_within(&world, Duration::from_secs(1)).unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
        }
    }
    Rendezvous::join(&World::on_this_machine(0, 1, 0, "")).unwrap();
}
