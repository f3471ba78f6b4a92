//! `blkmq simulate validate`: the model beside what others measured.

use std::io::Write;
use std::path::PathBuf;

use blkmq_program::{Failure, interrupt};
use blkmq_simulate::Predictor;
use blkmq_simulate::compare::compare;
use blkmq_simulate::published::{Row, rows, sources};
use clap::Args;
use clap::builder::PossibleValuesParser;

use super::output::Output;
use super::parallel;

const EXAMPLES: &str = "\
Examples:
  blkmq simulate validate
  blkmq simulate validate --source icpe24 --source folly-locks --json rows.json

A row is a published figure. The columns: where it was published; which figure it is; whether it is compared by its value,
by its gain over another one, or by the shape of its curve; whether it counts towards the median, and if not, why; the
figure, the model's, and how far the model is off. Below are the medians, and the comparisons of designs that the model has
in another order. docs/scale.md says what was measured, and what each reason means.

The exit code is 1 if the model is too far off: if the median of the rows that count is above 25 %, or an order is wrong.";

/// Hold the model against published measurements.
#[derive(Debug, Args)]
#[command(after_help = format!("{EXAMPLES}\n\n{}", blkmq_program::EXIT_CODES))]
pub(super) struct Validate {
    /// Only what was published here. May be repeated.
    #[arg(long, value_name = "SOURCE", value_parser = PossibleValuesParser::new(sources()))]
    source: Vec<String>,
    /// The number from which everything follows.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    seed: u64,
    /// Print one JSON object instead of the table, or write it to a file beside the table.
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    json: Option<Option<PathBuf>>,
}

impl Validate {
    pub(super) fn run(&self, out: &mut dyn Write) -> Result<(), Failure> {
        let is_wanted = |row: &Row| self.source.is_empty() || self.source.iter().any(|source| source == row.source);
        let rows: Vec<Row> = rows().into_iter().filter(is_wanted).collect();
        let output = Output::open(self.json.as_ref())?;
        let predictor = Predictor::new(self.seed);
        let points: Vec<&Row> = rows.iter().filter(|row| row.is_point()).collect();
        let values = parallel::map(&points, &interrupt::flag(), |row| predictor.value(row, &rows));
        if values.len() < points.len() {
            return Err(interrupt::failure("simulate validate"));
        }
        let mut values = values.into_iter();
        let comparison = compare(&rows, |_| values.next().flatten());
        output.write(&comparison, out, |out| comparison.lines().iter().try_for_each(|line| writeln!(out, "{line}")))?;
        match comparison.failures().len() {
            0 => Ok(()),
            1 => Err(Failure::Running("simulate validate: the model is off in one thing".to_owned())),
            some => Err(Failure::Running(format!("simulate validate: the model is off in {some} things"))),
        }
    }
}
