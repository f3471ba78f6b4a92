//! Numbers of threads as they are given: `1,2,4,..,128`.

/// Reads numbers of threads. Two dots stand for the doubles of the number before them, up to the number behind them.
pub(super) fn read(text: &str) -> Result<Vec<usize>, String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    let mut numbers: Vec<usize> = Vec::new();
    for (at, word) in words.iter().enumerate() {
        if matches!(*word, ".." | "..." | "…") {
            let end = words.get(at + 1).and_then(|word| word.parse().ok()).filter(|end| (1..=MOST).contains(end));
            let (Some(begin), Some(end)) = (numbers.last().copied(), end) else {
                return Err(format!("'{word}' stands between two numbers from 1 to {MOST}, as in 1,2,4,..,128"));
            };
            numbers
                .extend(std::iter::successors(Some(2 * begin), |last| Some(2 * last)).take_while(|next| *next < end));
            continue;
        }
        let number = word.parse().ok().filter(|number| (1..=MOST).contains(number));
        let Some(number) = number else {
            return Err(format!("'{word}' is no number of threads from 1 to {MOST}; accepted: as in 1,2,4,..,128"));
        };
        if numbers.last().is_some_and(|last| *last >= number) {
            return Err(format!("'{word}' is not above the number before it; accepted: as in 1,2,4,..,128"));
        }
        numbers.push(number);
    }
    Ok(numbers)
}

/// Most threads that are modelled.
const MOST: usize = 256;

#[cfg(test)]
mod tests {
    use super::read;

    /// Red if the dots leave out or repeat a number, or do not stop in front of the number behind them.
    #[test]
    fn dots_double_up_to_what_follows() {
        assert_eq!(read("1,2,4,..,128"), Ok(vec![1, 2, 4, 8, 16, 32, 64, 128]));
        assert_eq!(read("1, .., 48"), Ok(vec![1, 2, 4, 8, 16, 32, 48]));
        assert_eq!(read("3,..,4,..,20"), Ok(vec![3, 4, 8, 16, 20]));
        assert_eq!(read("7"), Ok(vec![7]));
    }

    /// Red if anything else is taken, or if the message does not name the word.
    #[test]
    fn what_is_no_number_of_threads_is_refused_by_its_word() {
        for (text, word) in [
            ("", "''"),
            ("0", "'0'"),
            ("257", "'257'"),
            ("1,x", "'x'"),
            ("..,4", "'..'"),
            ("1,..", "'..'"),
            ("1,..,18446744073709551615", "'..'"),
        ] {
            let said = read(text).expect_err(text);
            assert!(said.starts_with(word) && said.contains("1,2,4,..,128"), "{text}: {said}");
        }
        for text in ["2,1", "2,2", "4,..,2"] {
            assert!(read(text).expect_err(text).contains("is not above the number before it"), "{text}");
        }
    }
}
