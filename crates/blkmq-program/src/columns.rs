//! Tables on a terminal.

use std::io::{self, Write};

/// The lines of a table. Each column is as wide as its widest cell, with at least two blanks between two columns. The
/// first `left` columns hold words, which are aligned on the left. The others hold numbers, which are aligned on the
/// right and are at least `least` characters wide.
pub fn lines(rows: &[Vec<String>], left: usize, least: usize) -> Vec<String> {
    let count = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    let widest = |column: usize| cells(column).map(|cell| cell.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> =
        (0..count).map(|column| widest(column).max(if column < left { 0 } else { least })).collect();
    let line = |row: &Vec<String>| {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let between = if column == 0 { "" } else { "  " };
            line += between;
            line += &if column < left { format!("{cell:width$}") } else { format!("{cell:>width$}") };
        }
        line.trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Writes a table with a head, laid out by [`lines`]. Without titles it has no head.
pub fn write(
    head: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
    left: usize,
    least: usize,
    out: &mut dyn Write,
) -> io::Result<()> {
    let head = head.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>();
    let all: Vec<_> = Some(head).filter(|head| !head.is_empty()).into_iter().chain(rows).collect();
    lines(&all, left, least).iter().try_for_each(|line| writeln!(out, "{line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Red if a number that is wider than the others touches its neighbour.
    #[test]
    fn cells_are_apart_whatever_they_hold() {
        let long = "a job whose name is longer than a line was meant for";
        let rows =
            [["", "", "IOPS", "p99"], [long, "read", "1.00K", "123456789.0"], ["b", "write", "9.99K", "1234567890.0"]];
        let rows = rows.map(|row| row.map(str::to_owned).to_vec());
        let lines = lines(&rows, 2, 7);
        for (line, row) in lines.iter().zip(&rows) {
            let cells: Vec<&str> = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
            assert_eq!(cells, row.iter().filter(|cell| !cell.is_empty()).collect::<Vec<_>>(), "{line}");
        }
        let ends = |cell: &str| lines.iter().find_map(|line| line.find(cell)).expect("it is there") + cell.len();
        assert_eq!((ends("IOPS"), ends("p99")), (ends("1.00K"), ends("1234567890.0")), "{lines:?}");
        assert_eq!(lines[0].find("IOPS"), Some(long.len() + 2 + "write".len() + 2 + 3), "at least 7 wide: {lines:?}");
    }

    #[test]
    fn no_rows_have_no_lines() {
        assert!(lines(&[], 1, 9).is_empty());
    }
}
