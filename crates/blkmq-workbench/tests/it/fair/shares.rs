//! Clients that always want more get their shares.

use super::load::{Group, Outcome, Plan, run};

/// Milliseconds: from then on shares are right.
const FAIR_FROM: u64 = 100;

/// What all devices here take by default.
const DEFAULT_DEPTH: usize = 1023;

/// The largest error of a client, as a part of its due, and Jain's index of what clients got of their dues.
fn error_and_index(got: &[f64], weights: &[f64]) -> (f64, f64) {
    let [all_got, all] = [got, weights].map(|of| of.iter().sum::<f64>());
    let parts: Vec<f64> = got.iter().zip(weights).map(|(got, weight)| got / all_got / (weight / all)).collect();
    let error = parts.iter().map(|part| (part - 1.0).abs()).fold(0.0, f64::max);
    let [sum, squares] = [parts.iter().sum::<f64>(), parts.iter().map(|part| part * part).sum()];
    (error, sum * sum / (parts.len() as f64 * squares))
}

/// Each client is within 3 % of its due between these milliseconds.
fn assert_due(case: &str, outcome: &Outcome, weights: &[f64], to: u64) {
    let (error, index) = error_and_index(&outcome.rates(FAIR_FROM..to), weights);
    println!("{case}: error {:.2} %, index {index:.4}", 100.0 * error);
    assert!(error <= 0.03 && index >= 0.99, "{case}: error {:.2} %, index {index:.4}", 100.0 * error);
}

/// So many clients, every second one of which weighs `heavy`.
fn clients(nr: usize, heavy: u16, depth: usize) -> Vec<Plan> {
    let weight = |at: usize| if at.is_multiple_of(2) { 100 } else { heavy };
    (0..nr).map(|at| Plan { weight: weight(at), ..Plan::new(format!("client {at}"), depth) }).collect()
}

fn weights(plans: &[Plan]) -> Vec<f64> {
    plans.iter().map(|plan| f64::from(plan.weight)).collect()
}

/// Red if shares are not by weight: `none` gives clients 1:10 the same, so the same load fails without `fair`.
#[test]
fn clients_of_a_full_device_get_their_shares() {
    for device in ["ssd", "cloud"] {
        for nr in [2, 16] {
            for heavy in [100, 1000] {
                let plans = clients(nr, heavy, 2 * DEFAULT_DEPTH);
                let outcome = run(device, "fair", &plans, &[], 300);
                assert_due(&format!("{device}, {nr} clients 1:{}", heavy / 100), &outcome, &weights(&plans), 300);
            }
        }
        let plans = clients(2, 1000, 2 * DEFAULT_DEPTH);
        let (error, _) =
            error_and_index(&run(device, "none", &plans, &[], 300).rates(FAIR_FROM..300), &weights(&plans));
        assert!(error > 1.0, "{device}: without a scheduler the error is {error}");
    }
}

/// Red if the shares of many clients are not by weight. The device takes few requests at once, so that a run is short.
#[test]
fn many_clients_get_their_shares() {
    for device in ["ssd,hw_queue_depth=32", "cloud,hw_queue_depth=32"] {
        for (nr, heavy) in [(64, 100), (64, 1000), (256, 1000)] {
            let plans = clients(nr, heavy, 64);
            // The lightest of 256 clients 1:10 is due one in 1408.
            let ms = if device.starts_with("ssd") { 300 } else { 600 };
            let outcome = run(device, "fair", &plans, &[], ms);
            assert_due(&format!("{device}, {nr} clients 1:{}", heavy / 100), &outcome, &weights(&plans), ms);
        }
    }
}

/// The clients ask for twice as many requests as the scheduler has room for.
///
/// Red if room is granted by connection in turn: the requests of the light clients fill it, and the error is 266 %.
#[test]
fn more_requests_than_the_scheduler_has_room_for_get_their_shares() {
    let plans = clients(64, 1000, 2 * DEFAULT_DEPTH);
    let outcome = run("ssd", "fair", &plans, &[], 300);
    assert_due("ssd, 64 clients 1:10 without room", &outcome, &weights(&plans), 300);
    let at = FAIR_FROM..300;
    let kept = outcome.total(at.clone()) / run("ssd", "none", &plans[..1], &[], 300).total(at);
    assert!(kept >= 0.97, "{kept:.3} of what the device does without a scheduler");
}

/// Two groups 1:3, of which one has clients 1:3, and the other one a group of two clients beside one of one.
///
/// Red if a group's weight does not count, or that of one within it: by the weights of the clients alone the fifth gets
/// half of its due.
#[test]
fn groups_of_groups_get_their_shares() {
    let groups: [Group; 4] = [("one", "", 100), ("two", "", 300), ("inner", "two", 100), ("single", "two", 100)];
    let client = |name, group, weight| Plan { weight, group, ..Plan::new(name, 2 * DEFAULT_DEPTH) };
    let plans = [
        client("first", "one", 100),
        client("second", "one", 300),
        client("third", "inner", 100),
        client("fourth", "inner", 100),
        client("fifth", "single", 100),
    ];
    for device in ["ssd", "cloud"] {
        let outcome = run(device, "fair", &plans, &groups, 300);
        assert_due(&format!("{device}, groups"), &outcome, &[1.0, 3.0, 3.0, 3.0, 6.0], 300);
    }
}

/// Two clients of equal weight, one of which asks for eight times as much. The device could take all that both ask for.
///
/// Red if requests pass as long as the device takes them: without a scheduler the error is 78 %.
#[test]
fn asking_for_more_gains_nothing_while_the_device_has_room() {
    for device in ["ssd", "cloud"] {
        let plans = [Plan::new("few", 100), Plan::new("many", 800)];
        let [fair, none] = ["fair", "none"].map(|scheduler| run(device, scheduler, &plans, &[], 1000));
        let at = 500..1000;
        let [(error, _), (without, _)] = [fair, none].map(|of| error_and_index(&of.rates(at.clone()), &[1.0, 1.0]));
        println!("{device}: error {error:.3}, without a scheduler {without:.3}");
        assert!(error <= 0.03 && without > 0.7, "{device}: {error}, and {without} without a scheduler");
    }
}
