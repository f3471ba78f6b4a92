//! Q6: how clients share a device: equal ones, weighted ones, and one with many connections.

use std::time::Duration;

use blkmq::Op;

use super::error::JudgeError;
use super::load::{Plan, SMALL};
use super::measuring::{Measuring, Test};
use super::promises::Promises;
use super::row::{Figure, Target};
use super::world::Outcome;

pub(super) const TEST: Test = Test {
    id: "Q6",
    title: "readers of 4 KiB at random places share the device; weights mean nothing to a scheduler without a target here",
    nr_runs: (2 * CLIENTS.len() + CONNECTIONS.len()) as u32,
    measure,
    judge,
};

const CLIENTS: [u32; 4] = [2, 16, 64, 256];
/// Connections of the aggressor, each of which asks for as much as the victim's only one.
pub(super) const CONNECTIONS: [u32; 5] = [1, 2, 4, 8, 16];
/// The weights that clients have in turn.
const WEIGHTS: [u16; 2] = [100, 1000];

const LEAST_JAIN: f64 = 0.99;
const LEAST_WEIGHTED_JAIN: f64 = 0.95;
/// Percent of a client's share.
const MOST_ERROR: f64 = 5.0;

/// Jain's index of what clients got per weight: 1 if all got the same, 1/n if one got everything.
fn jain(got: &[f64]) -> f64 {
    let sum: f64 = got.iter().sum();
    let squares: f64 = got.iter().map(|got| got * got).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (got.len() as f64 * squares) }
}

/// The largest difference between a client's part of everything and its share, in percent of its share.
fn largest_error(got: &[f64], weights: &[f64]) -> f64 {
    let (all, weight) = (got.iter().sum::<f64>().max(1.0), weights.iter().sum::<f64>());
    let errors = got.iter().zip(weights).map(|(got, own)| ((got / all) / (own / weight) - 1.0).abs());
    100.0 * errors.fold(0.0, f64::max)
}

/// The bytes of each client.
fn bytes(outcome: &Outcome) -> Vec<f64> {
    outcome.clients.iter().map(|client| client.bytes as f64).collect()
}

fn measure(on: &mut Measuring<'_>) -> Result<Vec<Figure>, JudgeError> {
    let mut figures = Vec::new();
    for nr_clients in CLIENTS {
        // Twice as much as the device takes, so that requests wait.
        let depth = (2 * on.site.depth()).div_ceil(nr_clients).max(4);
        for is_weighted in [false, true] {
            let weight = |n: u32| if is_weighted { WEIGHTS[n as usize % 2] } else { 100 };
            let clients = (0..nr_clients).map(|n| Plan {
                weight: weight(n),
                ..Plan::new(format!("client {n}"), Op::Read, SMALL, depth, on.site.area())
            });
            let end = on.end(Duration::from_secs(600), 20_000.max(u64::from(nr_clients) * 300));
            let outcome = on.run(clients.collect(), end)?;
            let weights: Vec<f64> = (0..nr_clients).map(|n| f64::from(weight(n))).collect();
            let got = bytes(&outcome);
            let per_weight: Vec<f64> = got.iter().zip(&weights).map(|(got, weight)| got / weight).collect();
            let kind = if is_weighted { WEIGHTED } else { EQUAL };
            figures.push(Figure::new(
                format!("{nr_clients} {kind}: Jain"),
                jain(&per_weight),
                "",
                "1 if every client got its share, 1/n if one client got everything.",
            ));
            figures.push(Figure::new(
                format!("{nr_clients} {kind}: largest error"),
                largest_error(&got, &weights),
                "%",
                "How far the worst client was from its share.",
            ));
        }
    }
    for connections in CONNECTIONS {
        let depth = on.site.depth().clamp(16, 128);
        let reader = |name: &str| Plan::new(name, Op::Read, SMALL, depth, on.site.area());
        let clients = (0..=connections).map(|n| reader(if n == 0 { "victim" } else { "aggressor" })).collect();
        let end = on.end(Duration::from_secs(600), 20_000);
        let got = bytes(&on.run(clients, end)?);
        let share = 100.0 * got[0] / got.iter().sum::<f64>().max(1.0);
        let meaning = "What one client keeps beside another one of so many connections; half is its share.";
        figures.push(Figure::new(victim_case(connections), share, "%", meaning));
    }
    Ok(figures)
}

const EQUAL: &str = "equal clients";
const WEIGHTED: &str = "clients 1:10";

/// The case in which the aggressor has so many connections.
pub(super) fn victim_case(connections: u32) -> String {
    format!("victim beside {connections} connections")
}

fn judge(own: Vec<Figure>, _: &[Figure], promises: &Promises) -> Vec<Figure> {
    let target = |case: &str| match case {
        _ if case.starts_with("victim") => Target::AtLeast(50.0 * (1.0 - MOST_ERROR / 100.0)),
        _ if case.ends_with("error") => Target::AtMost(MOST_ERROR),
        _ if case.contains(EQUAL) => Target::AtLeast(LEAST_JAIN),
        _ => Target::AtLeast(LEAST_WEIGHTED_JAIN),
    };
    own.into_iter()
        .map(|figure| {
            let target = target(&figure.case);
            figure.aims(promises.shares, target)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if the index or the error is not that of the definition, or if weights are left out.
    #[test]
    fn shares_are_judged_by_jain_and_by_the_worst_client() {
        assert_eq!(jain(&[1.0, 1.0, 1.0, 1.0]), 1.0);
        assert_eq!(jain(&[1.0, 0.0, 0.0, 0.0]), 0.25);
        assert_eq!(jain(&[0.0, 0.0]), 0.0);
        assert_eq!(largest_error(&[10.0, 100.0], &[1.0, 10.0]), 0.0);
        // Equal parts, where one should have 10/11: the other one gets 5.5 times its share.
        assert!((largest_error(&[1.0, 1.0], &[1.0, 10.0]) - 450.0).abs() < 1e-9);
    }
}
