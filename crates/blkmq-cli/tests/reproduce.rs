//! `blkmq reproduce` from outside.

mod run;

use run::{printed, refused};
use serde_json::Value;

#[test]
fn every_table_has_its_rows_beside_what_was_published() {
    let text = printed(&["reproduce", "all", "--rounds", "2", "--runtime", "5ms", "--json"]);
    let found: Value = serde_json::from_str(&text).unwrap();
    assert!(found["command"].as_str().unwrap().starts_with("blkmq reproduce all --rounds 2"), "{found}");
    assert!(found["machine"].as_str().unwrap().contains(" CPUs"), "{found}");
    let tables = found["tables"].as_array().unwrap();
    let names: Vec<_> = tables.iter().map(|table| table["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["scaling", "batch", "merge", "accounting"]);
    for row in tables.iter().flat_map(|table| table["rows"].as_array().unwrap()) {
        let iops = &row["iops"];
        let [low, median, high] =
            ["lower_quartile", "median", "upper_quartile"].map(|name| iops[name].as_f64().unwrap());
        assert!(0.0 < low && low <= median && median <= high, "{row}");
        // On virtual time that of the model would be in it.
        assert_eq!(row["cpu_ns_per_request"].as_f64().is_none_or(|ns| ns <= 0.0), row["device"] == "hdd", "{row}");
        if let Some(ratio) = row["ratio"].as_object() {
            let [low, middle, high] = ["low", "ratio", "high"].map(|name| ratio[name].as_f64().unwrap());
            assert!(0.0 <= low && low <= middle && middle <= high, "{row}");
        }
    }
    let row = |table: usize, row: usize| &tables[table]["rows"][row];
    assert_eq!((&row(0, 1)["published_iops"], &row(0, 3)["published_iops"]), (&879e3.into(), &901e3.into()));
    // The disk's table is on virtual time, so its figures are the same everywhere.
    let disk = row(2, 1);
    assert!(disk["merged_percent"].as_f64() >= disk["published_merged_percent"].as_f64(), "{disk}");
    assert!((20e3..27e3).contains(&disk["iops"]["median"].as_f64().unwrap()), "{disk}");
}

#[test]
fn words_name_machine_date_and_command() {
    let words = printed(&["reproduce", "batch", "--rounds", "2", "--runtime", "5ms"]);
    assert!(words.starts_with("measured on ") && words.contains("by 'blkmq reproduce batch"), "{words}");
    assert!(words.contains("\nbatch-16x32.fio, slices of 5 ms. Published: Yu Kuai 2025"), "{words}");
    let row = words.lines().find(|line| line.starts_with("mq-deadline single")).unwrap();
    assert!(row.contains("263K"), "{row}");
}

#[test]
fn an_unknown_table_is_named_beside_the_known_ones() {
    let text = refused(&["reproduce", "windmill"]);
    assert!(text.contains("'windmill'") && text.contains("scaling, batch, merge, accounting, all"), "{text}");
    let text = refused(&["reproduce", "batch", "--rounds", "1"]);
    assert!(text.contains('1') && text.contains("2.."), "{text}");
}
