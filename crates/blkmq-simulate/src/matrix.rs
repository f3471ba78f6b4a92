//! The distance of each two CPUs of a machine, as core-to-core-latency prints them.

use blkmq_vcpu::cache::{Distances, Picoseconds};

use crate::profile::picoseconds;

/// How long a line takes from one CPU to another, in nanoseconds. A text has a row for each CPU, with comma-separated
/// values. Only those below the diagonal are given: the others are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Matrix(Vec<Vec<Picoseconds>>);

/// Why a text is no matrix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MatrixError {
    /// There are too few rows, or too many.
    #[error("{0} rows; a matrix has one for each CPU, 2 to {most}", most = Distances::MOST_CPUS)]
    Rows(usize),
    /// A row has another number of values than there are rows.
    #[error("row {row}: {found} values, but there are {expected} rows")]
    Width {
        /// The row, counted from 1.
        row: usize,
        /// Its values.
        found: usize,
        /// The rows.
        expected: usize,
    },
    /// A value below the diagonal is no length of time.
    #[error("row {row}, column {column}: {found:?} is no number of nanoseconds above 0 and up to 100000")]
    Value {
        /// The row, counted from 1.
        row: usize,
        /// The column, counted from 1.
        column: usize,
        /// What stands there.
        found: String,
    },
    /// There is a value on the diagonal or above.
    #[error("row {row}, column {column}: a value, but only what is below the diagonal has one")]
    Above {
        /// The row, counted from 1.
        row: usize,
        /// The column, counted from 1.
        column: usize,
    },
}

impl Matrix {
    /// Reads a matrix.
    ///
    /// # Errors
    /// The text is none.
    pub fn parse(text: &str) -> Result<Self, MatrixError> {
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        let nr_cpus = lines.len();
        if !(2..=Distances::MOST_CPUS).contains(&nr_cpus) {
            return Err(MatrixError::Rows(nr_cpus));
        }
        let rows = lines.into_iter().enumerate().map(|(row, line)| read_row(row, line, nr_cpus));
        rows.collect::<Result<_, _>>().map(Self)
    }

    /// The distances.
    #[must_use]
    pub fn distances(&self) -> Distances {
        Distances::new(self.0.len(), |high, low| self.0[high][low])
    }
}

/// The values of a row, which is counted from 0 here.
fn read_row(row: usize, line: &str, nr_cpus: usize) -> Result<Vec<Picoseconds>, MatrixError> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    if values.len() != nr_cpus {
        return Err(MatrixError::Width { row: row + 1, found: values.len(), expected: nr_cpus });
    }
    if let Some(column) = (row..nr_cpus).find(|column| !values[*column].is_empty()) {
        return Err(MatrixError::Above { row: row + 1, column: column + 1 });
    }
    let read = |(column, value): (usize, &&str)| {
        let refused = || MatrixError::Value { row: row + 1, column: column + 1, found: (*value).to_owned() };
        value.parse().ok().and_then(picoseconds).ok_or_else(refused)
    };
    values[..row].iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if rows and columns are mixed up, if the end of a line matters, or if a fraction of a nanosecond is lost.
    #[test]
    fn a_matrix_is_read_as_it_is_printed() {
        let printed = ",,\r\n5.333333333,,\r\n20.5,15.0004,\r\n\r\n";
        let distances = Matrix::parse(printed).unwrap().distances();
        let pairs = [(0, 1), (1, 0), (0, 2), (2, 1), (2, 2)].map(|(from, to)| distances.between(from, to));
        assert_eq!((distances.nr_cpus(), pairs), (3, [5333, 5333, 20_500, 15_000, 0]));
    }

    /// Red if anything is read that is no matrix, or if the message does not lead to the place.
    #[test]
    fn what_is_no_matrix_is_refused_with_its_place() {
        let said = |text: &str| Matrix::parse(text).unwrap_err().to_string();
        assert_eq!(said(""), "0 rows; a matrix has one for each CPU, 2 to 256");
        assert_eq!(said(&",\n".repeat(257)), "257 rows; a matrix has one for each CPU, 2 to 256");
        assert_eq!(said(",\n5,,\n"), "row 2: 3 values, but there are 2 rows");
        assert_eq!(said(",\n5,3\n"), "row 2, column 2: a value, but only what is below the diagonal has one");
        assert_eq!(said(",7\n5,\n"), "row 1, column 2: a value, but only what is below the diagonal has one");
        for wrong in ["", "x", "0", "-5", "nan", "inf", "100001", "1e300", "0.0001"] {
            let expected = format!("row 2, column 1: {wrong:?} is no number of nanoseconds above 0 and up to 100000");
            assert_eq!(said(&format!(",\n{wrong},\n")), expected);
        }
    }
}
