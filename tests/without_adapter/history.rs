//! `benches/history.csv` parses, row by row.

use std::path::Path;

#[test]
fn every_row_of_the_history_is_a_measurement() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/history.csv");
    let mut file = csv::Reader::from_path(path).expect("the history");
    let columns =
        ["commit", "adapter", "driver", "backend", "tier", "bench", "metric", "value", "date", "host"];
    assert_eq!(file.headers().expect("a header"), &csv::StringRecord::from(columns.to_vec()));
    for row in file.records() {
        let row = row.unwrap_or_else(|e| panic!("{e}"));
        assert!(row[7].parse::<f64>().is_ok(), "not a number in {row:?}");
    }
}
