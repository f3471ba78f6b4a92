//! The distance of each two CPUs of a machine, as core-to-core-latency prints them.

use blkmq_vcpu::cache::{Distances, Picoseconds};

use crate::profile::{LONGEST_NS, picoseconds};

/// Reads how long a line takes from one CPU to another, in nanoseconds. The text has a row for each CPU, with
/// comma-separated values. Only those below the diagonal are given: the others are empty.
///
/// # Errors
/// The text is no matrix.
pub(crate) fn parse(text: &str) -> Result<Distances, String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let nr_cpus = lines.len();
    if !(2..=Distances::MOST_CPUS).contains(&nr_cpus) {
        return Err(format!("{nr_cpus} rows; a matrix has one for each CPU, 2 to {}", Distances::MOST_CPUS));
    }
    let rows = lines.into_iter().enumerate().map(|(row, line)| parse_row(row, line, nr_cpus));
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    Ok(Distances::new(nr_cpus, |high, low| rows[high][low]))
}

/// The values of a row, which is counted from 0 here.
fn parse_row(row: usize, line: &str, nr_cpus: usize) -> Result<Vec<Picoseconds>, String> {
    let values: Vec<&str> = line.split(',').map(str::trim).collect();
    if values.len() != nr_cpus {
        return Err(format!("row {}: {} values, but there are {nr_cpus} rows", row + 1, values.len()));
    }
    let refused = |column: usize, what: &str| format!("row {}, column {}: {what}", row + 1, column + 1);
    if let Some(column) = (row..nr_cpus).find(|column| !values[*column].is_empty()) {
        return Err(refused(column, "a value, but only what is below the diagonal has one"));
    }
    let read = |(column, value): (usize, &&str)| {
        let wrong =
            || refused(column, &format!("{value:?} is no number of nanoseconds above 0 and up to {LONGEST_NS}"));
        value.parse().ok().and_then(picoseconds).ok_or_else(wrong)
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
        let distances = parse(printed).unwrap();
        let pairs = [(0, 1), (1, 0), (0, 2), (2, 1), (2, 2)].map(|(from, to)| distances.between(from, to));
        assert_eq!((distances.nr_cpus(), pairs), (3, [5333, 5333, 20_500, 15_000, 0]));
    }

    /// Red if anything is read that is no matrix, or if the message does not lead to the place.
    #[test]
    fn what_is_no_matrix_is_refused_with_its_place() {
        let said = |text: &str| parse(text).unwrap_err();
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
