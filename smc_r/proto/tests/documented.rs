// SPDX-License-Identifier: GPL-2.0

//! The tests that `Documentation/peers.md` names for the differences between peers exist.

use std::{
    fs,
    path::Path, //
};

/// The text of a test, and how one of its cases begins.
fn case(folder: &Path, test: &str, name: &str) -> Result<(), String> {
    let files = [
        (
            format!("smc_r/proto/tests/{test}.rs"),
            format!("fn {name}("),
        ),
        (format!("smc_r/proto/{test}.rs"), format!("fn {name}(")),
        (format!("selftests/two/{test}/a"), format!("\"{name}:")),
        (format!("selftests/{test}"), format!("\"{name}:")),
        (format!("selftests/{test}"), format!("def {name}(")),
        (format!("selftests/{test}"), format!("\"{name}\"")),
    ];
    let has = |(file, start): &(String, String)| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| text.contains(start))
    };
    if files.iter().any(has) {
        Ok(())
    } else {
        Err(format!("there is no test `{test} {name}`"))
    }
}

#[test]
fn each_difference_has_its_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(folder.join("Documentation/peers.md")).unwrap();
    let (_, part) = text
        .split_once("## Where Linux and RFC 7609 differ")
        .unwrap();
    let rows: Vec<&str> = part
        .lines()
        .filter(|line| line.starts_with("| "))
        .skip(1)
        .collect();
    assert!(rows.len() > 70, "{} rows", rows.len());
    for row in rows {
        let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
        let [topic, rfc, linux, here, tests] = cells[..] else {
            panic!("not five columns: {row}");
        };
        assert!(
            [topic, rfc, linux, here]
                .iter()
                .all(|cell| !cell.is_empty()),
            "{row}"
        );
        for item in tests.split(", ") {
            let item = item
                .strip_prefix('`')
                .and_then(|item| item.strip_suffix('`'));
            let (test, name) = item.and_then(|item| item.split_once(' ')).expect(row);
            if let Err(error) = case(&folder, test, name) {
                panic!("{topic}: {error}");
            }
        }
    }
}
