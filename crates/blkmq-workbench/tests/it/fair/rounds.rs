//! Rounds in which unlike clients go alone so that their prices are known.

use blkmq::Op;

use super::load::{Plan, Work, run};

/// Eight unlike clients of devices that do 1000, 120 and some 120 operations a second.
///
/// Red if clients of a slow device are served exclusively, each until 64 of its operations tell a price: a client then
/// waits for 11 s on the second device, and for 8 s on the disk, where a run of 512 KiB of each other client takes some
/// 2 s. Red if a client is charged what is predicted in its turn: on the first device one then waits for 3.9 s (all
/// tried).
#[test]
fn nobody_waits_long_while_others_go_alone() {
    let sizes = [4096, 8192, 16384, 32768];
    let kinds = [Op::Read, Op::Write].into_iter().flat_map(|op| sizes.map(|bytes| Work::Data { op, bytes }));
    let plans: Vec<_> = kinds.map(|work| Plan { work: work.clone(), ..Plan::new(format!("{work:?}"), 16) }).collect();
    let devices = [("cloud,iops=1000,mbps=30", 1500), ("cloud,iops=120,mbps=4", 2500), ("hdd,write_cache=0", 4000)];
    for (device, most) in devices {
        let outcome = run(device, "fair", &plans, &[], 60_000);
        let waits: Vec<_> = (0..plans.len()).map(|client| outcome.longest_wait(client, 1000..60_000)).collect();
        println!("{device}: {waits:?} ms");
        assert!(waits.iter().all(|wait| *wait <= most), "{device}: {waits:?} ms");
    }
}
