//! Real processes that meet, or do not: this test's own executable, started again as each rank.

use super::Group;
use crate::distributed::Rendezvous;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const ROLE: &str = "CAPGRAD_TEST_ROLE";

/// One rank: meets, and does what its role says; what became of it is on a line of its own.
#[test]
fn process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let it = match Rendezvous::from_env() {
        Ok(it) => it,
        Err(error) => return println!("\nSAID error {error}"),
    };
    let met = Group::meet(&it, || Ok(b"what rank 0 brought".to_vec()));
    let (group, brought) = match met {
        Ok(met) => met,
        Err(error) => return println!("\nSAID error {error}"),
    };
    assert_eq!(brought, b"what rank 0 brought");
    match &role[..] {
        "leave" => {}
        "die" => {
            std::thread::sleep(Duration::from_millis(200));
            std::process::abort();
        }
        "panic" => panic!("as the test asked"),
        "fail" => group.fail("the disk is full"),
        _ => {
            let start = Instant::now();
            while group.lost().is_none() && start.elapsed() < Duration::from_secs(8) {
                std::thread::sleep(Duration::from_millis(5));
            }
            let why = group.lost().unwrap_or("nothing".into());
            return println!("\nSAID lost {why} after {}", start.elapsed().as_millis());
        }
    }
    println!("\nSAID met");
}

struct Started(Child);

impl Started {
    fn rank(
        role: &str,
        rank: usize,
        world: usize,
        address: &str,
        port: u16,
        seconds: u32,
    ) -> Started {
        let test = "distributed::rendezvous::tests::process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("MASTER_ADDR", address)
            .env("MASTER_PORT", port.to_string())
            .env("CAPGRAD_TIMEOUT", seconds.to_string())
            .env_remove("TORCHELASTIC_RUN_ID")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Started(child.unwrap())
    }

    fn said(mut self) -> String {
        let mut text = String::new();
        self.0.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        self.0.wait().unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("SAID "));
        line.unwrap_or("nothing").to_owned()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// What each of some ranks, by number and role, said.
fn meeting(ranks: &[(usize, &str)], world: usize, seconds: u32) -> Vec<String> {
    let port = free_port();
    let started: Vec<Started> = ranks
        .iter()
        .map(|&(rank, role)| Started::rank(role, rank, world, "127.0.0.1", port, seconds))
        .collect();
    started.into_iter().map(Started::said).collect()
}

#[test]
fn all_meet_whoever_comes_first() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0]] {
        let ranks = order.map(|rank| (rank, "leave"));
        assert_eq!(meeting(&ranks, 4, 20), ["met"; 4]);
    }
    assert_eq!(meeting(&[(0, "leave")], 1, 20), ["met"]);
}

#[test]
fn a_rank_that_is_missing_is_named_in_time() {
    let start = Instant::now();
    // On a machine with much to do it takes seconds until a process runs.
    let said = meeting(&[(0, "leave"), (2, "leave")], 4, 8);
    assert!(start.elapsed() < Duration::from_secs(24));
    assert!(said[0].contains("rank 1, 3 did not come within 8s"), "{said:?}");
    assert!(said[1].starts_with("error rendezvous on rank 2 of 4"), "{said:?}");
    let said = meeting(&[(1, "leave")], 2, 1);
    assert!(said[0].contains("rank 0 was not found at 127.0.0.1:"), "{said:?}");
}

#[test]
fn an_address_that_leads_nowhere_is_named() {
    let port = free_port();
    let start = Instant::now();
    for rank in [0, 1] {
        let said = Started::rank("leave", rank, 2, "no-such-host.invalid", port, 2).said();
        assert!(said.contains("no-such-host.invalid"), "{said}");
    }
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn two_of_the_same_number_are_told_so() {
    let said = meeting(&[(0, "leave"), (1, "leave"), (1, "leave")], 3, 10);
    assert!(said.iter().all(|said| said.contains("two processes are rank 1")), "{said:?}");
    let said = meeting(&[(0, "wait"), (0, "wait")], 2, 8);
    let port_taken = said.iter().filter(|said| said.contains("cannot be listened at")).count();
    assert_eq!(port_taken, 1, "{said:?}");
}

#[test]
fn worlds_of_different_sizes_do_not_mix() {
    let port = free_port();
    let first = Started::rank("leave", 0, 2, "127.0.0.1", port, 10);
    let second = Started::rank("leave", 1, 3, "127.0.0.1", port, 10);
    for said in [first.said(), second.said()] {
        assert!(said.contains("rank 1 expects 3 ranks, rank 0 expects 2"), "{said}");
    }
}

/// A rank that comes, dies before the others are there, and is started again.
#[test]
fn a_rank_that_dies_before_the_meeting_may_come_again() {
    let port = free_port();
    let start = |rank| Started::rank("leave", rank, 3, "127.0.0.1", port, 15);
    let (zero, mut one) = (start(0), start(1));
    std::thread::sleep(Duration::from_millis(700));
    one.0.kill().unwrap();
    one.0.wait().unwrap();
    let (one, two) = (start(1), start(2));
    assert_eq!([zero.said(), one.said(), two.said()], ["met"; 3]);
}

/// Killed, panicked, failed or left: the others hear of it, by way of rank 0 too, long before a time-out.
#[test]
fn the_end_of_a_rank_is_heard_by_all() {
    let cases = [
        ("die", 2, "rank 2 has died"),
        ("die", 0, "rank 0 has died"),
        ("panic", 1, "a peer has panicked"),
        ("fail", 2, "the disk is full"),
        ("leave", 1, "has left the run"),
    ];
    std::thread::scope(|scope| {
        for (role, rank, expected) in cases {
            scope.spawn(move || {
                let ranks: Vec<(usize, &str)> =
                    (0..3).map(|r| (r, if r == rank { role } else { "wait" })).collect();
                let mut said = meeting(&ranks, 3, 60);
                said.remove(rank);
                // Of one that left in order only those connected to it know.
                let heard = said.iter().filter(|said| said.contains(expected)).count();
                assert!(heard == 2 || (role == "leave" && heard >= 1), "{role}: {said:?}");
                for text in said.iter().filter(|text| text.contains(expected)) {
                    let ms: u64 = text.rsplit(' ').next().unwrap().parse().unwrap();
                    assert!(ms < 7000, "{text}");
                }
            });
        }
    });
}

/// Connections that say something else, or nothing, hold nobody up.
#[test]
fn strangers_are_ignored() {
    let port = free_port();
    let zero = Started::rank("leave", 0, 2, "127.0.0.1", port, 20);
    let connect = || {
        let start = Instant::now();
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => return stream,
                Err(error) => assert!(start.elapsed() < Duration::from_secs(10), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let _silent = connect();
    connect().write_all(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let one = Started::rank("leave", 1, 2, "127.0.0.1", port, 20);
    assert_eq!([zero.said(), one.said()], ["met"; 2]);
}
