// SPDX-License-Identifier: GPL-2.0

//! The tests that `Documentation/peers.md` names for the differences between peers, and those that
//! `Documentation/security.md` names for what users and peers can do, are run: by `make test`, or where it says so by
//! `make test-full` alone.

use std::{
    fs,
    path::Path, //
};

/// What stands behind a test that takes too long for `make test`.
const AT_LENGTH: &str = " (`make test-full`)";

/// Looks for a test in the file that it is in. `at_length`: it is run only where there is much time.
fn case(folder: &Path, test: &str, name: &str, at_length: bool) -> Result<(), String> {
    let read = |file: String| fs::read_to_string(folder.join(file)).ok();
    let named = |error| format!("`{test} {name}`: {error}");
    let result = if let Some(text) = read(format!("smc_r/proto/tests/{test}.rs")) {
        match test.split_once('/') {
            Some((binary, module)) if module != "main" => {
                let main = read(format!("smc_r/proto/tests/{binary}/main.rs"));
                let start = format!("mod {module};");
                let is_built = main.is_some_and(|text| text.lines().any(|line| line == start));
                is_core_test(&text, name, is_built)
            }
            _ => is_core_test(&text, name, true),
        }
    } else if let Some(text) = read(format!("smc_r/proto/{test}.rs")) {
        is_core_test(&text, name, true)
    } else {
        let guest = read(format!("selftests/two/{test}/a"));
        match guest.or_else(|| read(format!("selftests/{test}"))) {
            Some(text)
                if text
                    .lines()
                    .next()
                    .is_some_and(|line| line.contains("python")) =>
            {
                is_run_by_python(&text, name)
            }
            Some(text) => return is_run_by_bash(&text, name, at_length).map_err(named),
            None => Err("there is no such file".into()),
        }
    };
    match result {
        Ok(()) if at_length => Err(named("it is always run".into())),
        result => result.map_err(named),
    }
}

/// Whether a function of the core's is a test: it has the attribute for that, and is built.
fn is_core_test(text: &str, name: &str, is_built: bool) -> Result<(), String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let start = format!("fn {name}(");
    let at = lines.iter().position(|line| line.starts_with(&start));
    let at = at.ok_or("there is no such function")?;
    let above = || {
        let is_part = |line: &&&str| line.starts_with("#[") || line.starts_with("//");
        lines[..at].iter().rev().take_while(is_part)
    };
    let has = |start: &str| above().any(|line| line.starts_with(start));
    if is_built && has("#[test]") && !has("#[ignore") && !has("#[cfg") {
        Ok(())
    } else {
        Err("it is never run".into())
    }
}

/// The lines of a list from where it begins up to one that says its end.
fn list<'a>(text: &'a str, begin: &str, is_end: impl Fn(&str) -> bool) -> Option<Vec<&'a str>> {
    let lines: Vec<&str> = text.lines().collect();
    let begin = lines.iter().position(|line| *line == begin)?;
    let rest = &lines[begin + 1..];
    let end = rest.iter().position(|line| is_end(line))?;
    Some(rest[..=end].iter().map(|line| line.trim()).collect())
}

/// Whether a suite runs the function: `run_tests` gets each of a list, which is either written there
/// or in the array `CASES`. That is assigned once, and once more at most, to put something in front where the suite
/// is run at length.
fn is_run_by_bash(text: &str, name: &str, at_length: bool) -> Result<(), String> {
    let code = || text.lines().filter(|line| !line.trim().starts_with('#'));
    if !code().any(|line| line.starts_with(&format!("{name}() {{"))) {
        return Err("there is no such function".into());
    }
    let runs: Vec<&str> = code().filter(|line| line.contains("run_tests")).collect();
    let (cases, more) = match runs[..] {
        ["run_tests \\"] => (list(text, runs[0], |line| !line.ends_with('\\')), None),
        ["run_tests \"${CASES[@]}\""] => {
            let assigned: Vec<&str> = code()
                .filter(|line| line.contains("CASES=") || line.contains("CASES+="))
                .collect();
            let more = match assigned[..] {
                ["CASES=("] => None,
                ["CASES=(", more]
                    if more.starts_with(IF_AT_LENGTH) && more.ends_with(" \"${CASES[@]}\")") =>
                {
                    more.strip_prefix(IF_AT_LENGTH)
                }
                _ => return Err(format!("CASES is assigned otherwise: {assigned:?}")),
            };
            (list(text, "CASES=(", |line| line == ")"), more)
        }
        _ => return Err(format!("what it runs is unclear: {runs:?}")),
    };
    let always = cases.ok_or("its list has no end")?;
    let cases = if at_length {
        more.into_iter().collect()
    } else {
        always
    };
    let item = format!("\"{name}:");
    match cases.iter().filter(|line| line.starts_with(&item)).count() {
        1 => Ok(()),
        count => Err(format!("it is {count} times in the list")),
    }
}

/// How a suite begins the line that puts something in front of its cases.
const IF_AT_LENGTH: &str = "[ $SCALE -lt 10 ] || CASES=(";

/// Whether a suite runs the function: it is in the list that `suite.main` gets, or its name in words
/// is what `test.run` or `test.result` gets.
fn is_run_by_python(text: &str, name: &str) -> Result<(), String> {
    let lines = || text.lines().map(str::trim);
    let words = ["run", "result"].map(|call| format!("test.{call}(\"{name}\","));
    if lines().any(|line| words.iter().any(|words| line.starts_with(words))) {
        return Ok(());
    }
    if !text.lines().any(|line| line == format!("def {name}():")) {
        return Err("there is no such function".into());
    }
    let (before, all) = text.split_once("suite.main([").ok_or("there is no list")?;
    let (all, _) = all.split_once(']').ok_or("its list has no end")?;
    if before.contains("suite.main(") || !all.split(',').any(|item| item.trim() == name) {
        return Err("it is not in the list".into());
    }
    Ok(())
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
            let (item, at_length) = match item.strip_suffix(AT_LENGTH) {
                Some(item) => (item, true),
                None => (item, false),
            };
            let item = item
                .strip_prefix('`')
                .and_then(|item| item.strip_suffix('`'));
            let (test, name) = item.and_then(|item| item.split_once(' ')).expect(row);
            if let Err(error) = case(&folder, test, name, at_length) {
                panic!("{topic}: {error}");
            }
        }
    }
}

/// The rows of a table: the cells of each, without its head.
fn table<'a>(part: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let rows = || part.lines().skip_while(|line| *line != head);
    assert!(rows().next().is_some(), "there is no table {head}");
    let cells = |row: &'a str| {
        let row = row
            .strip_prefix('|')
            .and_then(|row| row.strip_suffix('|'))
            .expect(row);
        row.split('|').map(str::trim).collect()
    };
    rows()
        .skip(2)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect()
}

/// Looks for the tests that a cell names: "`suite`: case, case; `suite`", or cases of the suite `own`.
fn named_cases(folder: &Path, cell: &str, own: Option<&str>) -> Result<(), String> {
    for item in cell.split("; ") {
        let (suite, names) = match (item.strip_prefix('`'), own) {
            (Some(item), _) => item.split_once('`').ok_or("a ` without an end")?,
            (None, Some(own)) => (own, item),
            (None, None) => return Err(format!("{item}: no suite")),
        };
        let suite = format!("one/{suite}");
        if names.is_empty() {
            if !folder.join("selftests").join(&suite).is_file() {
                return Err(format!("there is no {suite}"));
            }
            continue;
        }
        for name in names.trim_start_matches(": ").split(", ") {
            case(folder, &suite, name, false)?;
        }
    }
    Ok(())
}

#[test]
fn what_is_promised_has_its_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = fs::read_to_string(folder.join("Documentation/security.md")).unwrap();
    let tables = [
        ("| Who | Can | Cannot | Case |", Some("isolation"), 12),
        (
            "| Step | What the peer does | What suffers | Counter | Test |",
            None,
            40,
        ),
    ];
    for (head, own, least) in tables {
        let rows = table(&text, head);
        assert!(rows.len() >= least, "{} rows", rows.len());
        for row in rows {
            assert_eq!(row.len(), head.matches('|').count() - 1, "{row:?}");
            if let Err(error) = named_cases(&folder, row.last().unwrap(), own) {
                panic!("{row:?}: {error}");
            }
        }
    }
}

#[test]
fn what_is_not_run_is_no_test() {
    let core = "#[test]\n// why\nfn a() {";
    assert_eq!(is_core_test(core, "a", true), Ok(()));
    assert!(is_core_test(core, "a", false).is_err());
    for text in [
        "fn a() {",
        "#[test]\nfn b() {}\n\nfn a() {",
        "#[test]\n#[ignore]\nfn a() {",
        "// fn a(",
    ] {
        assert!(is_core_test(text, "a", true).is_err(), "{text}");
    }

    let functions = "a() {\n}\nb() {\n}\nc() {\n}\n";
    let direct = format!("{functions}run_tests \\\n\t\"a:A\" \\\n\t\"b:B\"\n");
    assert_eq!(is_run_by_bash(&direct, "b", false), Ok(()));
    assert!(is_run_by_bash(&direct, "b", true).is_err());
    assert!(is_run_by_bash(&direct, "c", false).is_err());
    let array = "CASES=(\n\t\"a:A\"\n)\n";
    let front = "[ $SCALE -lt 10 ] || CASES=(\"b:B\" \"${CASES[@]}\")\n";
    let run = "run_tests \"${CASES[@]}\"\n";
    let suite = |parts: &[&str]| parts.concat();
    for (name, at_length) in [("a", false), ("b", true)] {
        let text = suite(&[functions, array, front, run]);
        assert_eq!(is_run_by_bash(&text, name, at_length), Ok(()));
        assert!(is_run_by_bash(&text, name, !at_length).is_err());
    }
    for (parts, name) in [
        (&[functions, array, front, run][..], "c"),
        (&[array, run], "a"),
        (&[functions, array], "a"),
        (&[functions, array, run, run], "a"),
        (&[functions, array, array, run], "a"),
        (&[functions, array, "CASES=()\n", run], "a"),
        (&[functions, array, front, front, run], "a"),
        (
            &[functions, array, "unset CASES; CASES=(\"b:B\")\n", run],
            "a",
        ),
    ] {
        let text = suite(parts);
        assert!(is_run_by_bash(&text, name, false).is_err(), "{text}");
    }

    let text =
        "def a():\n\ndef b():\n\n    test.run(\"C D\", x)\nsuite.main([a,\n    c], set_up)\n";
    for (name, is_run) in [("a", true), ("b", false), ("c", false), ("C D", true)] {
        assert_eq!(is_run_by_python(text, name).is_ok(), is_run, "{name}");
    }
}
