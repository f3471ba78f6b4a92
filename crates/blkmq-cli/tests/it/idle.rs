//! What a server takes of a processor while its clients ask for nothing.

use std::thread;
use std::time::{Duration, Instant};

use crate::served::{Nbd, Served};
use nix::time::{ClockId, clock_getcpuclockid};
use nix::unistd::Pid;

const CONNECTIONS: usize = 256;

/// Enough that a client counts as one that waits for each answer, and is looked for.
const READS: u64 = 32;

/// CPU time of the server's process so far.
fn cpu(clock: ClockId) -> Duration {
    clock.now().expect("the server runs").into()
}

/// CPU time and not the time that passes is compared, so it does not matter what else the machine does. The middle of
/// some limiters counts, because the connections may still be at work in the first.
///
/// Red if a connection wakes by itself, as with a limit to its sleep: 256 sleeps of 0.1 s take 1 % or more. Red if a
/// thread measures costs again and again although no connection looks.
#[test]
fn an_idle_server_takes_less_than_a_thousandth_of_a_processor() {
    let server = Served::start(&["--device", "ram,size=1M"]);
    let mut clients: Vec<Nbd> = (0..CONNECTIONS).map(|_| server.connect("")).collect();
    for client in &mut clients {
        (0..READS).for_each(|_| assert_eq!(client.read(0, 512), [0; 512]));
    }
    let clock = clock_getcpuclockid(Pid::from_raw(server.child.id() as i32)).expect("the server runs");
    let mut shares = [(); 5].map(|()| {
        let (start, before) = (Instant::now(), cpu(clock));
        thread::sleep(Duration::from_secs(1));
        (cpu(clock) - before).as_secs_f64() / start.elapsed().as_secs_f64()
    });
    shares.sort_unstable_by(f64::total_cmp);
    assert!(shares[2] < 0.001, "{shares:?} of a processor");
    // All of them are still there.
    clients.iter_mut().for_each(|client| assert_eq!(client.read(512, 512), [0; 512]));
}
